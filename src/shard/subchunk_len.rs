//! The limit for the length of an encoded subchunk.

use zarrs::array::BytesRepresentation;
use zarrs_codec::CodecError;

/// The limit, given by the metadata, for the number of bytes of a subchunk that is encoded, or between two of
/// its codecs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SubchunkLen {
    Exactly(u64),
    AtMost(u64),
    Anything,
}

impl SubchunkLen {
    /// Returns the largest number of bytes, or `None` if the metadata do not bound it.
    pub(crate) fn most(self) -> Option<u64> {
        match self {
            Self::Exactly(most) | Self::AtMost(most) => Some(most),
            Self::Anything => None,
        }
    }

    /// Returns whether the metadata bound the length.
    pub(crate) fn is_bounded(self) -> bool {
        self.most().is_some()
    }

    /// Checks that subchunk `number` may have `len` bytes.
    ///
    /// # Errors
    /// A [`CodecError`] if the subchunk may not have `len` bytes.
    pub(crate) fn check(self, number: usize, len: usize) -> Result<(), CodecError> {
        let len = len as u64;
        let (expected, most) = match self {
            Self::Exactly(size) if len != size => ("exactly", size),
            Self::AtMost(most) if len > most => ("at most", most),
            _ => return Ok(()),
        };
        Err(CodecError::Other(format!(
            "subchunk {number} has {len} bytes in the shard index, expected {expected} {most}; the shard may be corrupted"
        )))
    }
}

impl From<BytesRepresentation> for SubchunkLen {
    fn from(representation: BytesRepresentation) -> Self {
        /// The number of bytes that a subchunk may have beyond twice the bound of zarrs' own encoders,
        /// because other encoders may need more.
        const SLACK: u64 = 4096;
        match representation {
            BytesRepresentation::FixedSize(size) => Self::Exactly(size),
            BytesRepresentation::BoundedSize(size) => {
                Self::AtMost(size.saturating_mul(2).saturating_add(SLACK))
            }
            BytesRepresentation::UnboundedSize => Self::Anything,
        }
    }
}
