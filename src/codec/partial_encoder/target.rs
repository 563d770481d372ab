//! The shard that is written to: all about it but its bytes.

use std::num::NonZeroU64;
use std::sync::Arc;

use zarrs::array::codec::ShardingCodec;
use zarrs::array::{BytesRepresentation, ChunkShape, DataType, FillValue};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecError};

use crate::codec::CudaShardingCodec;
use crate::codec::find;
use crate::codec::index::ShardIndex;
use crate::codec::shard::{Shard, index_geometry};
use crate::layout::SubchunkGrid;

/// A codec, and the shape, data type and fill value of shards.
pub(super) struct Target {
    pub(super) codec: Arc<CudaShardingCodec>,
    pub(super) shape: ChunkShape,
    pub(super) data_type: DataType,
    pub(super) fill_value: FillValue,
    /// The codec of the subchunks, if they are shards of this crate and nothing else.
    pub(super) nested: Option<Arc<CudaShardingCodec>>,
    pub(super) index: ShardIndex,
}

impl Target {
    /// # Errors
    /// A [`CodecError`] if the shapes do not fit each other.
    pub(super) fn new(
        codec: Arc<CudaShardingCodec>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Self, CodecError> {
        let (_, index) = index_geometry(&codec, shape)?;
        let inner = &codec.inner_codecs;
        let alone =
            inner.array_to_array_codecs().is_empty() && inner.bytes_to_bytes_codecs().is_empty();
        Ok(Self {
            nested: alone
                .then(|| find::ours(inner.array_to_bytes_codec()))
                .flatten(),
            codec,
            shape: shape.to_vec(),
            data_type: data_type.clone(),
            fill_value: fill_value.clone(),
            index,
        })
    }

    /// Whether every subchunk that is not empty has the same encoded size; if they are shards, whether
    /// that holds for what is in them.
    ///
    /// # Errors
    /// A [`CodecError`] if the inner codecs do not fit the data type.
    pub(super) fn has_subchunks_of_one_size(&self) -> Result<bool, CodecError> {
        let codec = &self.codec;
        let (shape, inner) = (&codec.subchunk_shape, &codec.inner_codecs);
        let encoded = inner.encoded_representation(shape, &self.data_type, &self.fill_value)?;
        if matches!(encoded, BytesRepresentation::FixedSize(_)) {
            return Ok(true);
        }
        match &self.nested {
            None => Ok(false),
            Some(nested) => {
                let nested = Self::new(nested.clone(), shape, &self.data_type, &self.fill_value)?;
                nested.has_subchunks_of_one_size()
            }
        }
    }

    /// Whether a subchunk may be overwritten by just the bytes of it that change: each encodes some
    /// element, and nothing else. A checksum would not be right after two writers of one subchunk.
    pub(super) fn is_written_in_pieces(&self) -> bool {
        if let Some(nested) = &self.nested {
            let shape = &self.codec.subchunk_shape;
            let nested = Self::new(nested.clone(), shape, &self.data_type, &self.fill_value);
            return nested.is_ok_and(|nested| nested.is_written_in_pieces());
        }
        let codec = &self.codec;
        !self.is_delegated()
            && codec.recognised.is_ok()
            && codec.inner_codecs.bytes_to_bytes_codecs().is_empty()
    }

    /// Whether the subchunks are shards that are updated as a whole, for want of a way into them.
    pub(super) fn has_closed_shards(&self) -> bool {
        let inner = self.codec.inner_codecs.array_to_bytes_codec();
        // Ours, too, says that it is zarrs' own.
        let sharded = inner.as_any().is::<ShardingCodec>();
        sharded && (self.nested.is_none() || self.is_delegated())
    }

    /// Whether zarrs' codecs handle the elements one by one.
    pub(super) fn is_delegated(&self) -> bool {
        CudaShardingCodec::is_delegated(&self.data_type)
    }

    /// The subchunks of the shard. Elements without a fixed size count as one byte.
    ///
    /// # Errors
    /// A [`CodecError`] if the shapes do not fit each other.
    pub(super) fn grid(&self) -> Result<SubchunkGrid, CodecError> {
        if self.is_delegated() {
            return Ok(index_geometry(&self.codec, &self.shape)?.0);
        }
        Ok(self.shard()?.grid)
    }

    /// # Errors
    /// A [`CodecError`] as for [`Shard::new`].
    pub(super) fn shard(&self) -> Result<Shard<'_>, CodecError> {
        Shard::new(&self.codec, &self.shape, &self.data_type, &self.fill_value)
    }
}
