//! The format of a shard: all that its bytes do not say themselves.

use std::num::NonZeroU64;
use std::sync::Arc;

use zarrs::array::codec::{ShardingCodec, ShardingCodecConfiguration};
use zarrs::array::{Array, ChunkShape, DataType, FillValue};
use zarrs::metadata::ConfigurationSerialize;
use zarrs::plugin::{ExtensionName, ZarrVersion};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecError, CodecMetadataOptions, CodecTraits};

use super::diagnosis::{Diagnosis, Geometry, diagnose};
use crate::codec::find;
use crate::codec::stored::StoredShard;
use crate::{CudaShardingCodec, Error, Options};

/// The format of a shard: its codec, shape, data type and fill value. Needed to understand the
/// bytes of a shard.
#[derive(Clone, Debug)]
pub struct ShardFormat {
    codec: Arc<CudaShardingCodec>,
    shape: ChunkShape,
    data_type: DataType,
    fill_value: FillValue,
}

impl ShardFormat {
    /// Returns the format of shards of `shape` (elements) that `codec` encodes.
    ///
    /// # Errors
    /// [`Error::Codec`] if the shapes and codecs do not fit each other.
    pub fn new(
        codec: Arc<CudaShardingCodec>,
        shape: ChunkShape,
        data_type: DataType,
        fill_value: FillValue,
    ) -> Result<Self, Error> {
        let format = Self {
            codec,
            shape,
            data_type,
            fill_value,
        };
        format.stored()?;
        Ok(format)
    }

    /// Returns the format of the shard of `array` with the chunk indices `shard`. The array's codec
    /// may be this crate's or zarrs' own `sharding_indexed`, whose shards are the same.
    ///
    /// # Errors
    /// - [`Error::NotShards`] if the array is not sharded, or if bytes-to-bytes codecs encode its
    ///   shards once more.
    /// - [`Error::Codec`] if `shard` is not in the array's chunk grid, or the codecs do not fit.
    pub fn of<TStorage: ?Sized>(array: &Array<TStorage>, shard: &[u64]) -> Result<Self, Error> {
        Self::of_codec(codec_of(array)?, array, shard)
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
        &self.shape
    }

    pub(crate) fn stored(&self) -> Result<StoredShard<'_>, CodecError> {
        StoredShard::new(&self.codec, &self.shape, &self.data_type, &self.fill_value)
    }
}

/// The sharding codec of `array`: ours, or ours of the configuration of zarrs' own.
///
/// # Errors
/// [`Error::NotShards`] if it has none, or if the shards are encoded once more.
pub(crate) fn codec_of<TStorage: ?Sized>(
    array: &Array<TStorage>,
) -> Result<Arc<CudaShardingCodec>, Error> {
    let codecs = array.codecs();
    let codec = codecs.array_to_bytes_codec();
    let ours = match find::ours(codec) {
        Some(ours) => ours,
        None => Arc::new(ours_of(codec)?),
    };
    let outer = codecs.bytes_to_bytes_codecs().iter();
    let outer: Vec<_> = outer
        .map(|codec| codec.name(ZarrVersion::V3).unwrap_or_default())
        .collect();
    if outer.is_empty() {
        return Ok(ours);
    }
    Err(Error::NotShards {
        reason: format!(
            "they are shards that {} encoded once more. Nothing in them can be updated or looked at by itself: read and store whole chunks",
            outer.join(" and ")
        ),
    })
}

/// Our codec of the configuration of zarrs' own.
fn ours_of(codec: &Arc<dyn ArrayToBytesCodecTraits>) -> Result<CudaShardingCodec, Error> {
    let configuration = codec
        .as_any()
        .downcast_ref::<ShardingCodec>()
        .and_then(|stock| stock.configuration_v3(&CodecMetadataOptions::default()))
        .and_then(|c| ShardingCodecConfiguration::try_from_configuration(c).ok())
        .ok_or_else(|| Error::NotShards {
            reason: format!(
                "its array-to-bytes codec is `{}`",
                codec.name(ZarrVersion::V3).unwrap_or_default()
            ),
        })?;
    let codec = CudaShardingCodec::new_with_configuration(&configuration, Options::default())?;
    Ok(codec)
}

/// Say what is wrong with `object`.
pub(super) fn diagnosis_of(stored: &StoredShard<'_>, object: &[u8]) -> Diagnosis {
    let is_index = |index: &[u8], size| stored.entries(index, size).is_ok();
    let geometry = Geometry {
        location: stored.index().location(),
        index_len: stored.index().len(),
        checksum: stored.index().has_checksum(),
        is_index: &is_index,
    };
    diagnose(object, &geometry)
}
