//! Properties of the subchunks of a shard that a partial write needs.

use zarrs::array::BytesRepresentation;
use zarrs::array::codec::ShardingCodec;
use zarrs_codec::CodecError;

use crate::shard::sharding::Sharding;

impl Sharding {
    /// Returns whether every subchunk that is not empty has the same encoded size. If subchunks are shards,
    /// whether that holds for the subchunks in them.
    ///
    /// # Errors
    /// A [`CodecError`] if the inner codecs do not fit the data type.
    pub(super) fn has_subchunks_of_one_size(&self) -> Result<bool, CodecError> {
        if let BytesRepresentation::FixedSize(_) = self.subchunk_representation()? {
            return Ok(true);
        }
        match self.nested()? {
            None => Ok(false),
            Some(nested) => nested.has_subchunks_of_one_size(),
        }
    }

    /// Returns whether a subchunk may be overwritten by just the bytes of it that change: each encodes some
    /// element, and nothing else. A checksum would not be right after two writers of one subchunk.
    pub(super) fn is_written_in_pieces(&self) -> bool {
        match self.nested() {
            Err(_) => false,
            Ok(Some(nested)) => nested.is_written_in_pieces(),
            Ok(None) => {
                self.delegated().is_none()
                    && self.codec.recognised.is_ok()
                    && self.codec.inner_codecs.bytes_to_bytes_codecs().is_empty()
            }
        }
    }

    /// Returns whether the subchunks are shards that are updated as a whole, for want of a way into them.
    pub(super) fn has_closed_shards(&self) -> bool {
        let inner = self.codec.inner_codecs.array_to_bytes_codec();
        // This crate's codec also says that it is zarrs' own.
        let sharded = inner.as_any().is::<ShardingCodec>();
        sharded && (self.codec.nested.is_none() || self.delegated().is_some())
    }
}
