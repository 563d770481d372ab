//! Finds this crate's codec behind zarrs' trait objects, whose `as_any` returns zarrs' own codec.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};

use zarrs::array::codec::{ShardingCodec, ShardingCodecConfiguration};
use zarrs::array::{Array, ChunkShape, DataType, FillValue};
use zarrs::metadata::ConfigurationSerialize;
use zarrs::plugin::{ExtensionName, ZarrVersion};
use zarrs_codec::{
    ArrayToBytesCodecTraits, CodecError, CodecMetadataOptions, CodecSpecificOptions, CodecTraits,
};

use super::CudaShardingCodec;
use crate::error::Error;
use crate::options::Options;
use crate::plan::Explanation;
use crate::shard::error::sourced;

/// An option that only this crate's codec understands: a codec that is given this option puts itself into it.
#[derive(Default)]
struct Finder(Mutex<Option<Arc<CudaShardingCodec>>>);

/// Puts `codec` into the [`Finder`] among `options`, if there is one. This crate's codec calls this function
/// with the options that it is given.
pub(super) fn answer(codec: &Arc<CudaShardingCodec>, options: &CodecSpecificOptions) {
    if let Some(finder) = options.get_option::<Finder>() {
        *finder.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(codec.clone());
    }
}

/// Returns `codec` as this crate's codec, or `None` if it is another one.
pub(crate) fn ours(codec: &Arc<dyn ArrayToBytesCodecTraits>) -> Option<Arc<CudaShardingCodec>> {
    let question = CodecSpecificOptions::default().with_option(Finder::default());
    let _unchanged = codec.clone().with_codec_specific_options(&question);
    let finder = question.get_option::<Finder>()?;
    finder
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
}

/// Returns the sharding codec of `array` if it is this crate's, or else a codec of this crate with the
/// configuration of zarrs' own.
///
/// # Errors
/// [`Error::NotShards`] if `array` has no sharding codec, or if other codecs encode its shards once more.
pub(crate) fn of_array<TStorage: ?Sized>(
    array: &Array<TStorage>,
) -> Result<Arc<CudaShardingCodec>, Error> {
    let codecs = array.codecs();
    let codec = codecs.array_to_bytes_codec();
    let ours = match ours(codec) {
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

/// Makes a codec of this crate with the configuration of `codec`, zarrs' own.
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

/// Explains what happens to the shards of `array`: each stage, where it runs, and why.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::Error;
///
/// match zarrs_cuda::explain(&array) {
///     Ok(explanation) => println!("{explanation}"),
///     // It was opened before `register`, or it is not sharded.
///     Err(Error::ForeignCodec { codec }) => println!("zarrs encodes this array by {codec}"),
///     Err(error) => return Err(error.into()),
/// }
/// # assert_eq!(zarrs_cuda::explain(&array)?.shard, [32, 32]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - [`Error::ForeignCodec`] if the array's codec is not this crate's. It is zarrs' own, if the array
///   was opened before [`register`](crate::register) or built with `ArrayBuilder::subchunk_shape`. Or
///   the array is not sharded.
/// - Otherwise the errors of [`CudaShardingCodec::explain`].
pub fn explain<TStorage: ?Sized>(array: &Array<TStorage>) -> Result<Explanation, Error> {
    let codecs = array.codecs();
    let codec = ours(codecs.array_to_bytes_codec()).ok_or_else(|| Error::ForeignCodec {
        codec: codecs
            .array_to_bytes_codec()
            .name(ZarrVersion::V3)
            .unwrap_or_default()
            .into_owned(),
    })?;
    let first = vec![0; array.dimensionality()];
    let shape: Vec<NonZeroU64> = array.chunk_shape(&first).map_err(sourced)?;
    let (shape, data_type, fill_value) = representation(array, shape)?;
    codec.explain(&shape, &data_type, &fill_value)
}

/// Returns the shape (elements), data type and fill value that the array-to-bytes codec of `array` is given
/// for a chunk of `shape`.
///
/// # Errors
/// A [`CodecError`] if an array-to-array codec does not accept its input.
pub(crate) fn representation<TStorage: ?Sized>(
    array: &Array<TStorage>,
    shape: ChunkShape,
) -> Result<(ChunkShape, DataType, FillValue), CodecError> {
    let mut representation = (shape, array.data_type().clone(), array.fill_value().clone());
    for codec in array.codecs().array_to_array_codecs() {
        let (shape, data_type, fill_value) = &representation;
        representation = codec.encoded_representation(shape, data_type, fill_value)?;
    }
    Ok(representation)
}
