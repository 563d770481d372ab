//! Properties of the subchunks of a shard that a partial write needs.

use zarrs::array::BytesRepresentation;
use zarrs::array::codec::ShardingCodec;
use zarrs_codec::CodecError;

use crate::shard::sharding::Sharding;

impl Sharding {
    /// Returns whether all subchunks that are not empty have the same encoded size. If the subchunks are
    /// shards, returns the answer for the subchunks inside these shards.
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

    /// Returns whether just the changed bytes of a subchunk may be overwritten: each byte encodes some
    /// element, and nothing else. A checksum would be wrong after two writers of one subchunk.
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

    /// Returns whether the subchunks are themselves shards that must be updated as a whole, because this
    /// crate cannot update the subchunks inside them.
    pub(super) fn has_closed_shards(&self) -> bool {
        let inner = self.codec.inner_codecs.array_to_bytes_codec();
        // `as_any` of this crate's codec also returns a `ShardingCodec`.
        let sharded = inner.as_any().is::<ShardingCodec>();
        sharded && (self.codec.nested.is_none() || self.delegated().is_some())
    }
}
