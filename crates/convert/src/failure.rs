//! Reasons to stop, and what to do about them.

use std::error::Error;
use std::fmt;

/// The kind of a [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// Something could not be done.
    Failed,
    /// The settings make no sense together, or for this input.
    Usage,
    /// Damage or a difference was found, and the rest was left out.
    NotWell,
    /// The watcher asked the run to stop.
    Interrupted,
}

/// The reason why something stopped, and what to do about it.
///
/// The message and the remedy call settings by the options of the command `zarrs-cuda`, as `--overwrite`.
#[derive(Clone, Debug)]
pub struct Failure {
    kind: FailureKind,
    message: String,
    remedy: Option<String>,
}

impl Failure {
    fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        let message = message.to_string().trim_end().to_string();
        Self {
            kind,
            message,
            remedy: None,
        }
    }

    /// Something could not be done. The message says what, to what, and why.
    #[must_use]
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::Failed, message)
    }

    /// The settings make no sense together, or for this input.
    #[must_use]
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::Usage, message)
    }

    /// Damage or a difference was found, and the rest was left out.
    #[must_use]
    pub fn not_well(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::NotWell, message)
    }

    /// The user stopped the work. The message says how far it came.
    #[must_use]
    pub fn interrupted(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::Interrupted, message)
    }

    /// Adds what to do. A remedy that is there already stays.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy.get_or_insert_with(|| remedy.to_string());
        self
    }

    /// Adds what is true nevertheless.
    #[must_use]
    pub fn with_note(mut self, note: &str) -> Self {
        self.message = format!("{}\n{note}", self.message);
        self
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Returns the words for the work that was done, its object, and the reason.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the words for the way out, if there is one.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

/// The message alone.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(f)
    }
}

impl Error for Failure {}

impl From<zarrs_cuda::Error> for Failure {
    fn from(error: zarrs_cuda::Error) -> Self {
        let failure = Self::failed(&error);
        match error {
            zarrs_cuda::Error::BackendUnavailable { .. } => failure.with_remedy(
                "`zarrs-cuda doctor` says what this machine has; without --backend the processor does \
                 what a device cannot",
            ),
            zarrs_cuda::Error::ShardChanged { .. } => failure.with_remedy(
                "`zarrs-cuda consolidate --over-changed` packs the subchunks over such shards",
            ),
            zarrs_cuda::Error::Undecided { .. } => failure.with_remedy(
                "give the process more memory, or let fewer threads work (--threads), and run the same \
                 command again",
            ),
            _ => failure,
        }
    }
}
