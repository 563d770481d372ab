//! What is needed to understand the bytes of a shard.

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

/// What is needed to understand the bytes of a shard: its codec, its shape, and what its elements
/// are.
#[derive(Clone, Debug)]
pub struct ShardFormat {
    codec: Arc<CudaShardingCodec>,
    shape: ChunkShape,
    data_type: DataType,
    fill_value: FillValue,
}

impl ShardFormat {
    /// Shards of `shape` (elements), as `codec` encodes them.
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

    /// The shard of `array` with the chunk indices `shard`. The array's codec may be this crate's
    /// or zarrs' own `sharding_indexed`, whose shards are the same.
    ///
    /// # Errors
    /// - [`Error::NotShards`] if the array is not sharded, or if what it stores are not shards, but
    ///   what bytes-to-bytes codecs made of them.
    /// - [`Error::Codec`] if `shard` is not in the array's chunk grid, or the codecs do not fit.
    pub fn of<TStorage: ?Sized>(array: &Array<TStorage>, shard: &[u64]) -> Result<Self, Error> {
        let codecs = array.codecs();
        let codec = codec_of(codecs.array_to_bytes_codec())?;
        if !codecs.bytes_to_bytes_codecs().is_empty() {
            let outer: Vec<_> = codecs
                .bytes_to_bytes_codecs()
                .iter()
                .map(|codec| codec.name(ZarrVersion::V3).unwrap_or_default().into_owned())
                .collect();
            return Err(Error::NotShards {
                reason: format!(
                    "they are shards encoded once more, by {}. Nothing in them can be updated or looked at by itself: read and store whole chunks",
                    outer.join(", ")
                ),
            });
        }
        let shape = array.chunk_shape(shard).map_err(|error| {
            CodecError::Other(format!(
                "there is no shard {shard:?} in a grid of {:?} shards: {error}",
                array.chunk_grid_shape()
            ))
        })?;
        let (shape, data_type, fill_value) = find::representation(array, shape)?;
        Self::new(codec, shape, data_type, fill_value)
    }

    /// The codec.
    #[must_use]
    pub fn codec(&self) -> &Arc<CudaShardingCodec> {
        &self.codec
    }

    /// The shape of a shard, in elements.
    #[must_use]
    pub fn shape(&self) -> &[NonZeroU64] {
        &self.shape
    }

    pub(super) fn stored(&self) -> Result<StoredShard<'_>, CodecError> {
        StoredShard::new(&self.codec, &self.shape, &self.data_type, &self.fill_value)
    }
}

/// `codec`, or ours of its configuration.
fn codec_of(codec: &Arc<dyn ArrayToBytesCodecTraits>) -> Result<Arc<CudaShardingCodec>, Error> {
    if let Some(ours) = find::ours(codec) {
        return Ok(ours);
    }
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
    let ours = CudaShardingCodec::new_with_configuration(&configuration, Options::default())?;
    Ok(Arc::new(ours))
}

/// Say what is wrong with `object`.
pub(super) fn diagnosis_of(
    stored: &StoredShard<'_>,
    object: &[u8],
) -> Result<Diagnosis, CodecError> {
    let is_index = |index: &[u8], size| stored.extents(index, size).is_ok();
    let geometry = Geometry {
        location: stored.location(),
        index_len: stored.index_len(),
        checksum: stored.index_has_checksum()?,
        is_index: &is_index,
    };
    Ok(diagnose(object, &geometry))
}
