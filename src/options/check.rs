//! How often the results of a device are compared with those of the host.

use std::num::NonZeroU32;

/// How often the results of a device are compared with those of the host.
///
/// Every batch of subchunks is compared until its kind of shards has passed on its device: until every buffer that
/// is used on the device was used three times, and 64 subchunks that the device made were compared. This warm-up
/// cannot be left out. The variants say how often later batches are compared. Each shard that uses a buffer which no
/// compared shard used three times is compared, too.
///
/// Structures are checked in every batch: the headers, sizes and blocks of compressed frames, and the checksums of
/// `crc32c` codecs behind a compressor.
///
/// ```
/// use zarrs_cuda::{Check, Options};
///
/// let options = Options::default();
/// assert_eq!(options.device_check(), Check::Warmup);
/// let options = options.with_device_check(Check::Every(8.try_into()?));
/// # assert_ne!(options.device_check(), Check::Warmup);
/// # Ok::<(), std::num::TryFromIntError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// One batch in 64 is compared after the warm-up.
    #[default]
    Warmup,
    /// One batch in this many is compared after the warm-up.
    Every(NonZeroU32),
    /// All batches are compared. The host then decompresses everything that a device compresses.
    All,
}

impl Check {
    /// Returns the number of batches of which one is compared after the warm-up; `None` for the default of the
    /// engine.
    pub(crate) fn every(self) -> Option<NonZeroU32> {
        match self {
            Self::Warmup => None,
            Self::Every(every) => Some(every),
            Self::All => Some(NonZeroU32::MIN),
        }
    }
}
