//! Translates zarrs' codec chains for the engines, if the engines know every codec of the chain.

use std::num::NonZeroU64;

use zarrs::array::codec::{
    BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec,
};
use zarrs::array::{ArrayBytes, CodecChain, DataType, FillValue};
use zarrs::metadata::ConfigurationSerialize;
use zarrs::metadata_ext::codec::blosc::{
    BloscCodecConfiguration, BloscCompressor, BloscShuffleMode,
};
use zarrs::metadata_ext::codec::crc32c::{
    Crc32cCodecConfiguration, Crc32cCodecConfigurationLocation,
};
use zarrs::metadata_ext::codec::gzip::GzipCodecConfiguration;
use zarrs::metadata_ext::codec::transpose::TransposeCodecConfiguration;
use zarrs::metadata_ext::codec::zstd::ZstdCodecConfiguration;
use zarrs::plugin::ZarrVersion;
use zarrs_codec::{
    ArrayToBytesCodecTraits, BytesToBytesCodecTraits, CodecMetadataOptions, CodecOptions,
    CodecTraits,
};

use zarrs_cuda_engine::contract::{BloscStage, Cname, KnownChain, Shuffle, Stage};

/// A chain whose codecs the engines know. Its `bytes` codec is still to be resolved for a data type.
#[derive(Clone, Debug)]
pub(crate) struct RecognisedChain {
    /// The order of the axes. `None` if no codec transposes: then the order is the identity, for any number of
    /// dimensions.
    order: Option<Vec<usize>>,
    stages: Vec<Stage>,
}

/// Recognises `chain` by the types of its codecs, because anyone can register a codec under any name.
///
/// # Errors
/// The reason why the engines do not know the chain, in words for `explain`.
pub(crate) fn recognise(chain: &CodecChain) -> Result<RecognisedChain, String> {
    let mut order: Option<Vec<usize>> = None;
    for codec in chain.array_to_array_codecs() {
        let next = transpose_order(codec.as_ref()).ok_or_else(|| unknown(codec.as_ref()))?;
        order = Some(match order {
            None => next,
            Some(first) => compose(&first, &next).ok_or("two transposes differ in length")?,
        });
    }
    let array_to_bytes = chain.array_to_bytes_codec();
    if !array_to_bytes.as_any().is::<BytesCodec>() {
        return Err(unknown(array_to_bytes.as_ref()));
    }
    let stages = chain
        .bytes_to_bytes_codecs()
        .iter()
        .map(|codec| stage(codec.as_ref()).ok_or_else(|| unknown(codec.as_ref())))
        .collect::<Result<_, _>>()?;
    Ok(RecognisedChain { order, stages })
}

impl RecognisedChain {
    /// Returns the chain for arrays of `dimensions` dimensions and `data_type`; `array_to_bytes` is its
    /// `bytes` codec.
    ///
    /// # Errors
    /// The reason why the engines cannot run the chain, in words for `explain`. zarrs runs the chain in this
    /// case, and reports its own errors.
    pub(crate) fn resolve(
        &self,
        array_to_bytes: &dyn ArrayToBytesCodecTraits,
        dimensions: usize,
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<KnownChain, String> {
        let order = match &self.order {
            None => (0..dimensions).collect(),
            Some(order) if order.len() == dimensions => order.clone(),
            Some(order) => {
                return Err(format!(
                    "a transpose of {} dimensions in an array of {dimensions}",
                    order.len()
                ));
            }
        };
        let swap = swap_unit(array_to_bytes, data_type, fill_value).ok_or_else(|| {
            format!("the bytes codec does more to {data_type} than order its bytes")
        })?;
        Ok(KnownChain {
            order,
            swap,
            stages: self.stages.clone(),
        })
    }
}

/// Returns the size of the groups of bytes that `codec` reverses, found by encoding a probe: anyone can
/// register data types, too. Returns `None` if `codec` does anything else.
fn swap_unit(
    codec: &dyn ArrayToBytesCodecTraits,
    data_type: &DataType,
    fill_value: &FillValue,
) -> Option<usize> {
    let size = data_type.fixed_size().filter(|&size| size > 0)?;
    // The probe has all 256 values if elements are single bytes. Otherwise it has bytes that no wrong size of
    // groups maps to the encoded ones by chance.
    let elements = 256_usize.div_ceil(size).max(2);
    let probe: Vec<u8> = if size == 1 {
        (0..=255).collect()
    } else {
        let mut state = 1_u32;
        (0..elements * size)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect()
    };
    let shape = [NonZeroU64::new(u64::try_from(elements).ok()?)?];
    let options = CodecOptions::default();
    let encoded = codec
        .encode(
            ArrayBytes::from(probe.as_slice()),
            &shape,
            data_type,
            fill_value,
            &options,
        )
        .ok()?;
    let decoded = codec
        .decode(encoded.clone(), &shape, data_type, fill_value, &options)
        .ok()?
        .into_fixed()
        .ok()?;
    if *decoded != *probe {
        return None;
    }
    (1..=size).filter(|unit| size % unit == 0).find(|&unit| {
        probe
            .chunks(unit)
            .flat_map(|group| group.iter().rev())
            .eq(encoded.iter())
    })
}

/// Returns the order of the axes after the transpose `first` and then the transpose `next`.
fn compose(first: &[usize], next: &[usize]) -> Option<Vec<usize>> {
    (first.len() == next.len())
        .then(|| next.iter().map(|&axis| first.get(axis).copied()).collect())
        .flatten()
}

fn unknown<C: CodecTraits + ?Sized>(codec: &C) -> String {
    match codec.name(ZarrVersion::V3) {
        Some(name) => format!("`{name}` is not a codec that the engines know"),
        None => "a nameless codec is not one that the engines know".to_string(),
    }
}

/// Returns the parsed configuration of `codec`, or `None` if its type is not `C`.
fn configuration<C: CodecTraits + 'static, T: ConfigurationSerialize>(
    codec: &(impl CodecTraits + ?Sized),
) -> Option<T> {
    if !codec.as_any().is::<C>() {
        return None;
    }
    let configuration = codec.configuration(ZarrVersion::V3, &CodecMetadataOptions::default())?;
    T::try_from_configuration(configuration).ok()
}

fn transpose_order(codec: &(impl CodecTraits + ?Sized)) -> Option<Vec<usize>> {
    match configuration::<TransposeCodec, _>(codec)? {
        TransposeCodecConfiguration::V1(configuration) => Some(configuration.order.0),
        _ => None,
    }
}

fn stage(codec: &dyn BytesToBytesCodecTraits) -> Option<Stage> {
    if let Some(ZstdCodecConfiguration::V1(zstd)) = configuration::<ZstdCodec, _>(codec) {
        return Some(Stage::Zstd {
            level: zstd.level.into(),
            checksum: zstd.checksum,
        });
    }
    if let Some(GzipCodecConfiguration::V1(gzip)) = configuration::<GzipCodec, _>(codec) {
        return Some(Stage::Gzip {
            level: gzip.level.as_u32(),
        });
    }
    if let Some(BloscCodecConfiguration::V1(blosc)) = configuration::<BloscCodec, _>(codec) {
        return Some(Stage::Blosc(BloscStage {
            cname: match blosc.cname {
                BloscCompressor::BloscLZ => Cname::BloscLz,
                BloscCompressor::LZ4 => Cname::Lz4,
                BloscCompressor::LZ4HC => Cname::Lz4Hc,
                BloscCompressor::Snappy => Cname::Snappy,
                BloscCompressor::Zlib => Cname::Zlib,
                BloscCompressor::Zstd => Cname::Zstd,
            },
            level: blosc.clevel.into(),
            shuffle: match blosc.shuffle {
                BloscShuffleMode::NoShuffle => Shuffle::None,
                BloscShuffleMode::Shuffle => Shuffle::Byte,
                BloscShuffleMode::BitShuffle => Shuffle::Bit,
            },
            // zarrs, too, gives C-Blosc a type size of at least 1.
            typesize: blosc.typesize.unwrap_or_default().max(1),
            blocksize: blosc.blocksize,
        }));
    }
    match configuration::<Crc32cCodec, _>(codec)? {
        Crc32cCodecConfiguration::V1(_) => Some(Stage::Crc32c),
        Crc32cCodecConfiguration::Numcodecs(numcodecs) => {
            (numcodecs.location == Crc32cCodecConfigurationLocation::End).then_some(Stage::Crc32c)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use zarrs::array::data_type;
    use zarrs::metadata::Endianness;

    use super::*;

    #[test]
    fn the_unit_of_byte_order() {
        let foreign_order = match Endianness::native() {
            Endianness::Little => BytesCodec::big(),
            Endianness::Big => BytesCodec::little(),
        };
        for (data_type, unit) in [
            (data_type::bool(), 1),
            (data_type::uint8(), 1),
            (data_type::uint16(), 2),
            (data_type::float64(), 8),
            (data_type::complex64(), 4),
            (data_type::complex128(), 8),
            (data_type::raw_bits(3), 1),
        ] {
            let size = data_type.fixed_size().expect("fixed");
            let fill_value = FillValue::new(vec![0; size]);
            let unit_of = |codec: &BytesCodec| swap_unit(codec, &data_type, &fill_value);
            assert_eq!(unit_of(&foreign_order), Some(unit), "{data_type}");
            assert_eq!(unit_of(&BytesCodec::default()), Some(1), "{data_type}");
        }
    }

    #[test]
    fn two_transposes_compose() {
        // Encoded axis k is the axis first[next[k]] of the array.
        assert_eq!(compose(&[2, 0, 1], &[1, 2, 0]), Some(vec![0, 1, 2]));
        assert_eq!(compose(&[2, 0, 1], &[2, 0, 1]), Some(vec![1, 2, 0]));
        assert_eq!(compose(&[0, 1], &[0, 1, 2]), None);
    }
}
