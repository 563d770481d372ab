//! Decides which jobs are better done on a device.

use std::num::NonZeroUsize;
use std::sync::OnceLock;

use super::estimates::{DeviceWork, Estimates, Work, estimates};

/// The rule by which [`Backend::Auto`](crate::Backend::Auto) chooses a device: the faster place by an
/// estimate.
///
/// The estimate depends on the kind of shard, on the device, and on the processors of the process at its
/// start. It never depends on load. So equal data give equal shards, with equal options, on the same machine,
/// and as long as no device fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineRule {
    /// A device, if the estimate for this many processors of the host finds it to be faster.
    Faster { processors: NonZeroUsize },
    /// Everything that a device can do goes there.
    #[cfg(test)]
    Everything,
}

impl Default for EngineRule {
    fn default() -> Self {
        Self::Faster {
            processors: processors_at_start(),
        }
    }
}

impl EngineRule {
    /// Everything that a device can do goes there.
    #[cfg(test)]
    pub(crate) const ALL: Self = Self::Everything;

    /// Estimates the time of `work` on the host and on `device`.
    pub(super) fn estimates(self, work: &Work, device: Option<DeviceWork>) -> Estimates {
        let processors = match self {
            Self::Faster { processors } => processors,
            #[cfg(test)]
            Self::Everything => processors_at_start(),
        };
        estimates(work, processors, device)
    }

    /// Returns the reason why a job stays on the host, or `None` if it goes to a device. `estimates` are those
    /// of the job; `None` if there is no figure for its codecs.
    pub(super) fn on_host(self, estimates: Option<Estimates>) -> Option<String> {
        match self {
            #[cfg(test)]
            Self::Everything => None,
            Self::Faster { .. } => match estimates {
                Some(estimates) if estimates.prefer_device() => None,
                Some(Estimates { device: None, .. }) | None => Some(
                    "there is no figure for these codecs on a device, so the host is assumed to be faster; `Backend::Cuda` uses a device".to_string(),
                ),
                Some(estimates) => Some(format!(
                    "the host is estimated to be the better place: {estimates}"
                )),
            },
        }
    }
}

/// Returns the number of processors that this process may use. The number is asked for once, when the first
/// codec is made, so that equal data stay equal shards when the number changes.
fn processors_at_start() -> NonZeroUsize {
    static PROCESSORS: OnceLock<NonZeroUsize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
}
