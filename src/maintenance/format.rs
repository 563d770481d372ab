//! The format of a shard: all that its bytes do not say themselves.

use std::num::NonZeroU64;
use std::sync::Arc;

use zarrs::array::{Array, ChunkShape, DataType, FillValue};
use zarrs_codec::CodecError;

use super::diagnosis::{Diagnosis, Geometry, diagnose};
use crate::codec::find;
use crate::codec::sharding::Sharding;
use crate::{CudaShardingCodec, Error};

/// The format of a shard: its codec, shape, data type and fill value. Needed to understand the
/// bytes of a shard.
#[derive(Clone, Debug)]
pub struct ShardFormat {
    codec: Arc<CudaShardingCodec>,
    shards: Arc<Sharding>,
}

impl ShardFormat {
    /// Returns the format of shards of `shape` (elements) that `codec` encodes.
    ///
    /// # Errors
    /// [`Error::Codec`] if the shapes and codecs do not fit each other.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "the parts of a format, which it keeps"
    )]
    pub fn new(
        codec: Arc<CudaShardingCodec>,
        shape: ChunkShape,
        data_type: DataType,
        fill_value: FillValue,
    ) -> Result<Self, Error> {
        let shards = codec.sharding(&shape, &data_type, &fill_value)?;
        Ok(Self { codec, shards })
    }

    /// Returns the format of the shard of `array` with the chunk indices `shard`. The array's codec
    /// may be this crate's or zarrs' own `sharding_indexed`, whose shards are the same.
    ///
    /// # Errors
    /// - [`Error::NotShards`] if the array is not sharded, or if bytes-to-bytes codecs encode its
    ///   shards once more.
    /// - [`Error::Codec`] if `shard` is not in the array's chunk grid, or the codecs do not fit.
    pub fn of<TStorage: ?Sized>(array: &Array<TStorage>, shard: &[u64]) -> Result<Self, Error> {
        Self::of_codec(find::of_array(array)?, array, shard)
    }

    /// The same, where `codec` is that of `array`.
    pub(super) fn of_codec<TStorage: ?Sized>(
        codec: Arc<CudaShardingCodec>,
        array: &Array<TStorage>,
        shard: &[u64],
    ) -> Result<Self, Error> {
        let grid = array.chunk_grid_shape();
        let is_in_grid = shard.len() == grid.len() && shard.iter().zip(grid).all(|(i, n)| i < n);
        let shape = array.chunk_shape(shard).ok().filter(|_| is_in_grid);
        let shape = shape.ok_or_else(|| {
            let message = format!("there is no shard {shard:?} in a grid of {grid:?} shards");
            CodecError::Other(message)
        })?;
        let (shape, data_type, fill_value) = find::representation(array, shape)?;
        Self::new(codec, shape, data_type, fill_value)
    }

    /// Returns the codec.
    #[must_use]
    pub fn codec(&self) -> &Arc<CudaShardingCodec> {
        &self.codec
    }

    /// Returns the shape of a shard, in elements.
    #[must_use]
    pub fn shape(&self) -> &[NonZeroU64] {
        &self.shards.shape
    }

    pub(crate) fn shards(&self) -> &Arc<Sharding> {
        &self.shards
    }
}

/// Returns the diagnosis of `object`.
pub(super) fn diagnosis_of(shards: &Sharding, object: &[u8]) -> Diagnosis {
    let is_index = |index: &[u8], size| shards.entries(index, size).is_ok();
    let geometry = Geometry {
        location: shards.index.location(),
        index_len: shards.index.len(),
        checksum: shards.index.has_checksum(),
        is_index: &is_index,
    };
    diagnose(object, &geometry)
}
