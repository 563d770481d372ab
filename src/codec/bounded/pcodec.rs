//! Decodes pcodec chunk by chunk: zarrs' codec lets the `pco` crate allocate what the header of a file
//! claims.
//!
//! This module checks how much memory a chunk would take before the `pco` crate decodes the chunk.
//! <https://github.com/pcodec/pcodec> describes the format.

use std::any::Any;
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use half::f16;
use pco::data_types::Number;
use pco::errors::PcoError;
use pco::metadata::DeltaEncoding;
use pco::{standalone, wrapped};
use zarrs::array::codec::{PcodecCodec, PcodecDataTypeExt, PcodecElementType};
use zarrs::array::{
    ArrayBytes, ArrayBytesRaw, BytesRepresentation, ChunkShape, DataType, FillValue,
    transmute_to_bytes_vec,
};
use zarrs::metadata::Configuration;
use zarrs::plugin::{ExtensionName, ZarrVersion};
use zarrs_codec::{
    ArrayCodecTraits, ArrayToBytesCodecTraits, CodecError, CodecMetadataOptions, CodecOptions,
    CodecSpecificOptions, CodecTraits, PartialDecoderCapability, PartialEncoderCapability,
    RecommendedConcurrency,
};

use crate::shard::error::not_decoded;
use zarrs_cuda_engine::subchunk::NotDecoded;

/// Returns a codec that decodes as `codec` does, within bounds of memory, or `None` if `codec` is not pcodec.
pub(super) fn bounded(
    codec: &Arc<dyn ArrayToBytesCodecTraits>,
) -> Option<Arc<dyn ArrayToBytesCodecTraits>> {
    codec
        .as_any()
        .is::<PcodecCodec>()
        .then(|| Arc::new(BoundedPcodec(codec.clone())) as _)
}

/// zarrs' pcodec codec, with a decoder that checks each chunk before it allocates memory for the chunk.
#[derive(Debug)]
struct BoundedPcodec(Arc<dyn ArrayToBytesCodecTraits>);

impl ExtensionName for BoundedPcodec {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        self.0.name(version)
    }
}

impl CodecTraits for BoundedPcodec {
    /// Returns zarrs' codec, because chains are recognised by the types of their codecs.
    fn as_any(&self) -> &dyn Any {
        self.0.as_any()
    }

    fn configuration(
        &self,
        version: ZarrVersion,
        options: &CodecMetadataOptions,
    ) -> Option<Configuration> {
        self.0.configuration(version, options)
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        self.0.partial_decoder_capability()
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        self.0.partial_encoder_capability()
    }
}

impl ArrayCodecTraits for BoundedPcodec {
    fn recommended_concurrency(
        &self,
        shape: &[NonZeroU64],
        data_type: &DataType,
    ) -> Result<RecommendedConcurrency, CodecError> {
        self.0.recommended_concurrency(shape, data_type)
    }

    fn partial_decode_granularity(&self, shape: &[NonZeroU64]) -> ChunkShape {
        self.0.partial_decode_granularity(shape)
    }
}

/// Parts of a subchunk are decoded and encoded by way of the whole subchunk, as zarrs' codec does it.
#[cfg_attr(feature = "async", async_trait::async_trait)]
impl ArrayToBytesCodecTraits for BoundedPcodec {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn ArrayToBytesCodecTraits> {
        self
    }

    fn with_codec_specific_options(
        self: Arc<Self>,
        options: &CodecSpecificOptions,
    ) -> Arc<dyn ArrayToBytesCodecTraits> {
        Arc::new(Self(self.0.clone().with_codec_specific_options(options)))
    }

    fn encoded_representation(
        &self,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<BytesRepresentation, CodecError> {
        self.0.encoded_representation(shape, data_type, fill_value)
    }

    fn encode<'a>(
        &self,
        bytes: ArrayBytes<'a>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        self.0.encode(bytes, shape, data_type, fill_value, options)
    }

    fn decode<'a>(
        &self,
        bytes: ArrayBytesRaw<'a>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        _fill_value: &FillValue,
        _options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        let pcodec = data_type.codec_pcodec()?;
        let count = shape
            .iter()
            .try_fold(pcodec.pcodec_elements_per_element() as u64, |count, d| {
                count.checked_mul(d.get())
            })
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| CodecError::Other(format!("{shape:?} elements are too many")))?;
        macro_rules! numbers {
            ($number:ty) => {
                decode::<$number>(&bytes, count).map(transmute_to_bytes_vec)
            };
        }
        let decoded = match pcodec.pcodec_element_type() {
            PcodecElementType::U16 => numbers!(u16),
            PcodecElementType::U32 => numbers!(u32),
            PcodecElementType::U64 => numbers!(u64),
            PcodecElementType::I16 => numbers!(i16),
            PcodecElementType::I32 => numbers!(i32),
            PcodecElementType::I64 => numbers!(i64),
            PcodecElementType::F16 => numbers!(f16),
            PcodecElementType::F32 => numbers!(f32),
            PcodecElementType::F64 => numbers!(f64),
        };
        decoded.map(ArrayBytes::from).map_err(|failed| {
            not_decoded(failed, |reason| {
                format!(
                    "pcodec could not decode {} bytes to {count} numbers: {reason}; the shard may be corrupted",
                    bytes.len()
                )
            })
        })
    }
}

/// Returns the `count` numbers of the file `bytes`.
///
/// # Errors
/// [`NotDecoded::Invalid`] if the file has more or fewer numbers, or is invalid. [`NotDecoded::Memory`] if
/// memory cannot be had.
fn decode<T: Number + Default>(bytes: &[u8], count: usize) -> Result<Vec<T>, NotDecoded> {
    let invalid = |error: PcoError| error.to_string();
    let (file, mut rest) = standalone::FileDecompressor::new(bytes).map_err(invalid)?;
    // The `pco` crate's decoder of whole chunks allocates before their metadata can be seen. The decoder of
    // wrapped chunks does not. From the file header it needs the version only.
    let version = [file.format_version().major, file.format_version().minor];
    let (chunks, _) = wrapped::FileDecompressor::new(&version[..]).map_err(invalid)?;

    let mut numbers = Vec::new();
    // Each chunk grows `numbers`, so a file with few numbers does not take the memory for `count` numbers.
    while let Some(chunk) = Chunk::<T>::of(rest)? {
        let start = numbers.len();
        if chunk.count > count - start {
            let reason = format!("it says that there are {} more after {start}", chunk.count);
            return Err(reason.into());
        }
        let of_file = file.uniform_type();
        if of_file.is_some_and(|number_type| number_type as u8 != chunk.number_type) {
            return Err("it has numbers of two types".to_string().into());
        }
        let (mut metadata, page) = chunks
            .chunk_decompressor::<T, _>(chunk.encoded)
            .map_err(invalid)?;
        check_window(&metadata.meta().delta_encoding, count)?;
        numbers
            .try_reserve_exact(chunk.count)
            .map_err(|_| NotDecoded::Memory {
                what: "the numbers of a chunk of pcodec",
                bytes: chunk.count.saturating_mul(size_of::<T>()),
            })?;
        numbers.resize(start + chunk.count, T::default());
        let mut page = metadata
            .page_decompressor(page, chunk.count)
            .map_err(invalid)?;
        let progress = page.read(&mut numbers[start..]).map_err(invalid)?;
        if !progress.finished || progress.n_processed != chunk.count {
            let (got, count) = (progress.n_processed, chunk.count);
            return Err(format!("it has {got} of {count} numbers of a chunk").into());
        }
        rest = page.into_src();
    }
    if numbers.len() == count {
        Ok(numbers)
    } else {
        Err(format!("it has {}", numbers.len()).into())
    }
}

/// The begin of a chunk of `T` in a file of pcodec.
struct Chunk<'a, T> {
    number_type: u8,
    count: usize,
    /// The metadata and the numbers of the chunk, and the chunks that follow.
    encoded: &'a [u8],
    _numbers: std::marker::PhantomData<T>,
}

impl<'a, T: Number> Chunk<'a, T> {
    /// Returns the chunk with which `file`, the rest of a file, begins. Returns `None` at the end of the
    /// file.
    ///
    /// # Errors
    /// The defect of the chunk, for example a dictionary that the rest of the file is too short for.
    fn of(file: &'a [u8]) -> Result<Option<Self>, String> {
        const DICTIONARY: u32 = 4;
        let truncated = || "it is truncated".to_string();
        let &[number_type, ref rest @ ..] = file else {
            return Err(truncated());
        };
        if number_type == 0 {
            return Ok(None);
        }
        if number_type != T::NUMBER_TYPE_BYTE {
            return Err(format!("it has numbers of type {number_type}"));
        }
        let (&[a, b, c], encoded) = rest.split_first_chunk::<3>().ok_or_else(truncated)?;
        // The metadata begin with 4 bits for the mode. If the mode is a dictionary, 25 bits for its length
        // follow.
        let mode = encoded
            .first_chunk()
            .map(|bytes| u32::from_le_bytes(*bytes));
        if let Some(mode) = mode
            && mode & 15 == DICTIONARY
        {
            let entries = (mode >> 4) as usize & ((1 << 25) - 1);
            if entries.saturating_mul(size_of::<T>()) > encoded.len() {
                return Err(format!(
                    "it says that {entries} numbers are in {} bytes",
                    encoded.len()
                ));
            }
        }
        Ok(Some(Self {
            number_type,
            count: u32::from_le_bytes([a, b, c, 0]) as usize + 1,
            encoded,
            _numbers: std::marker::PhantomData,
        }))
    }
}

/// Checks that `delta` looks back no further than an encoder of `count` numbers would.
fn check_window(delta: &DeltaEncoding, count: usize) -> Result<(), String> {
    /// The number of elements that the `pco` crate's encoder may look back, also where it encodes fewer
    /// numbers.
    const USUAL: usize = 1 << 15;
    let DeltaEncoding::Lookback { config, .. } = delta else {
        return Ok(());
    };
    let most = count
        .checked_next_power_of_two()
        .unwrap_or(count)
        .max(USUAL);
    match 1_usize.checked_shl(config.window_n_log) {
        Some(window) if window <= most => Ok(()),
        _ => Err(format!(
            "it looks back over 2 to the power of {} numbers",
            config.window_n_log
        )),
    }
}
