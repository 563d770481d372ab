//! Finds our codec behind zarrs' trait objects, whose `as_any` leads to zarrs' own codec.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};

use zarrs::array::{Array, ChunkShape, DataType, FillValue};
use zarrs::plugin::{ExtensionName, ZarrVersion};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecError, CodecSpecificOptions};

use super::CudaShardingCodec;
use crate::Error;
use crate::plan::Explanation;

/// An option that only our codec understands: the codec puts itself here.
#[derive(Default)]
struct Finder(Mutex<Option<Arc<CudaShardingCodec>>>);

/// Our codec calls this with the options that it is given.
pub(super) fn answer(codec: &Arc<CudaShardingCodec>, options: &CodecSpecificOptions) {
    if let Some(finder) = options.get_option::<Finder>() {
        *finder.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(codec.clone());
    }
}

/// Returns `codec` if it is ours.
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

/// Explains what happens to the shards of `array`: each stage, where it runs, and why.
///
/// # Errors
/// - [`Error::ForeignCodec`] if the array's codec is not this crate's: the array was opened before
///   [`register`](crate::register), was built with `ArrayBuilder::subchunk_shape`, or is not
///   sharded.
/// - Otherwise as for [`CudaShardingCodec::explain`].
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
    let shape: Vec<NonZeroU64> = array
        .chunk_shape(&first)
        .map_err(|error| CodecError::Other(error.to_string()))?;
    let (shape, data_type, fill_value) = representation(array, shape)?;
    codec.explain(&shape, &data_type, &fill_value)
}

/// Returns what the array-to-bytes codec of `array` gets of a chunk of `shape` (elements).
///
/// # Errors
/// A [`CodecError`] if an array-to-array codec does not accept it.
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
