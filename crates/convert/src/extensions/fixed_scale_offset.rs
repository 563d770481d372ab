//! The codec `fixedscaleoffset` of Zarr v3, as numcodecs calculates it.
//!
//! zarrs keeps the scale and the offset as `float32`, and converts every element to `float32` in between.
//! This codec keeps both numbers as the metadata have them. It calculates in the data type in which numpy
//! would: `float64`, or the data type of the encoded elements if these are smaller floats.

use std::any::Any;
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::{ArrayBytes, DataType, FillValue, Indexer};
use zarrs::metadata::Configuration as Json;
use zarrs::plugin::{ExtensionName, PluginCreateError, ZarrVersion};
use zarrs::storage::StorageError;
use zarrs_codec::{
    ArrayCodecTraits, ArrayPartialDecoderTraits, ArrayToArrayCodecTraits, Codec, CodecError,
    CodecMetadataOptions, CodecOptions, CodecRuntimePluginV3, CodecTraits,
    PartialDecoderCapability, PartialEncoderCapability, RecommendedConcurrency, register_codec_v3,
};

use super::number::Number;

const NAME: &str = "numcodecs.fixedscaleoffset";

pub(super) fn register() {
    register_codec_v3(CodecRuntimePluginV3::new(
        |name| name == NAME,
        |metadata| {
            let empty = Json::default();
            create(metadata.configuration().unwrap_or(&empty))
        },
    ));
}

fn create(configuration: &Json) -> Result<Codec, PluginCreateError> {
    let configuration = Configuration::parse(configuration)
        .map_err(|error| PluginCreateError::Other(format!("{NAME}: {error}")))?;
    Ok(Codec::ArrayToArray(Arc::new(FixedScaleOffset {
        configuration,
    })))
}

/// The configuration of the codec in the metadata of an array.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The configuration as JSON, for new metadata.
    json: Json,
    scale: f64,
    offset: f64,
    /// The data type of the decoded elements; `None` for the data type of the array.
    pub dtype: Option<Number>,
    /// The data type of the encoded elements; `None` for that of the decoded ones.
    pub astype: Option<Number>,
}

impl Configuration {
    pub(crate) fn parse(json: &Json) -> Result<Self, String> {
        let number = |name: &str| {
            let value = json.get(name);
            value
                .and_then(Value::as_f64)
                .ok_or_else(|| format!("its `{name}` is {}, and not a number", json!(value)))
        };
        let data_type = |name: &str| match json.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Number::parse(text).map(Some),
            Some(other) => Err(format!("its `{name}` is {other}, and not a data type")),
        };
        Ok(Self {
            json: json.clone(),
            scale: number("scale")?,
            offset: number("offset")?,
            dtype: data_type("dtype")?,
            astype: data_type("astype")?,
        })
    }

    /// Returns the elements of `dtype` whose encodings of `astype` are `encoded`; both in native byte order.
    ///
    /// # Errors
    /// An element is one that `dtype` cannot hold.
    pub(crate) fn decoded(
        &self,
        encoded: &[u8],
        dtype: Number,
        astype: Number,
    ) -> Result<Vec<u8>, String> {
        let &Self { scale, offset, .. } = self;
        let precision = astype.precision();
        let mut decoded = Vec::with_capacity(encoded.len() / astype.size * dtype.size);
        for element in encoded.chunks_exact(astype.size) {
            let encoded = astype.read(element);
            let value = precision.decoded(encoded, scale, offset);
            if !dtype.write(value, &mut decoded) {
                return Err(format!(
                    "{encoded} / {scale} + {offset} is {value}, which {dtype} cannot hold"
                ));
            }
        }
        Ok(decoded)
    }
}

#[derive(Clone, Debug)]
struct FixedScaleOffset {
    configuration: Configuration,
}

impl FixedScaleOffset {
    /// Returns the data types of the decoded and of the encoded elements, for an array of `data_type`.
    fn numbers(&self, data_type: &DataType) -> Result<(Number, Number), CodecError> {
        let unsupported = || CodecError::UnsupportedDataType(data_type.clone(), NAME.to_string());
        let Configuration { dtype, astype, .. } = self.configuration;
        let dtype = match dtype {
            Some(dtype) => dtype,
            None => [
                "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8",
            ]
            .into_iter()
            .filter_map(|name| Number::parse(name).ok())
            .find(|number| number.data_type() == *data_type)
            .ok_or_else(unsupported)?,
        };
        if dtype.data_type() != *data_type {
            return Err(unsupported());
        }
        Ok((dtype, astype.unwrap_or(dtype)))
    }
}

impl ExtensionName for FixedScaleOffset {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        matches!(version, ZarrVersion::V3).then_some(Cow::Borrowed(NAME))
    }
}

impl CodecTraits for FixedScaleOffset {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn configuration(&self, _: ZarrVersion, _: &CodecMetadataOptions) -> Option<Json> {
        Some(self.configuration.json.clone())
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        PartialDecoderCapability {
            partial_read: true,
            partial_decode: true,
        }
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        PartialEncoderCapability {
            partial_encode: false,
        }
    }
}

impl ArrayCodecTraits for FixedScaleOffset {
    fn recommended_concurrency(
        &self,
        _shape: &[NonZeroU64],
        _data_type: &DataType,
    ) -> Result<RecommendedConcurrency, CodecError> {
        Ok(RecommendedConcurrency::new_maximum(1))
    }
}

impl ArrayToArrayCodecTraits for FixedScaleOffset {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn ArrayToArrayCodecTraits> {
        self
    }

    fn encoded_data_type(&self, decoded: &DataType) -> Result<DataType, CodecError> {
        let (_, astype) = self.numbers(decoded)?;
        Ok(astype.data_type())
    }

    fn encode<'a>(
        &self,
        bytes: ArrayBytes<'a>,
        _shape: &[NonZeroU64],
        data_type: &DataType,
        _fill_value: &FillValue,
        _options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        let (dtype, astype) = self.numbers(data_type)?;
        let Configuration { scale, offset, .. } = self.configuration;
        let precision = dtype.precision();
        let bytes = bytes.into_fixed()?;
        let mut encoded = Vec::with_capacity(bytes.len() / dtype.size * astype.size);
        for element in bytes.chunks_exact(dtype.size) {
            let value = precision.encoded(dtype.read(element), scale, offset);
            // numcodecs, too, loses a value that the encoded data type cannot have.
            astype.write(value, &mut encoded);
        }
        Ok(encoded.into())
    }

    fn decode<'a>(
        &self,
        bytes: ArrayBytes<'a>,
        _shape: &[NonZeroU64],
        data_type: &DataType,
        _fill_value: &FillValue,
        _options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        let decoded = self.decoded(&bytes.into_fixed()?, data_type)?;
        Ok(decoded.into())
    }

    /// Returns a partial decoder that returns the fill value itself where a chunk is missing. zarrs' own
    /// partial decoder encodes and decodes it, which changes it.
    fn partial_decoder(
        self: Arc<Self>,
        input_handle: Arc<dyn ArrayPartialDecoderTraits>,
        _shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        _options: &CodecOptions,
    ) -> Result<Arc<dyn ArrayPartialDecoderTraits>, CodecError> {
        Ok(Arc::new(PartialDecoder {
            codec: self,
            encoded: input_handle,
            data_type: data_type.clone(),
            fill_value: fill_value.clone(),
        }))
    }
}

struct PartialDecoder {
    codec: Arc<FixedScaleOffset>,
    encoded: Arc<dyn ArrayPartialDecoderTraits>,
    data_type: DataType,
    fill_value: FillValue,
}

impl ArrayPartialDecoderTraits for PartialDecoder {
    fn data_type(&self) -> &DataType {
        &self.data_type
    }

    fn exists(&self) -> Result<bool, StorageError> {
        self.encoded.exists()
    }

    fn size_held(&self) -> usize {
        self.encoded.size_held()
    }

    fn partial_decode(
        &self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'_>, CodecError> {
        if !self.exists()? {
            let elements = indexer.len();
            return Ok(ArrayBytes::new_fill_value(
                &self.data_type,
                elements,
                &self.fill_value,
            )?);
        }
        let encoded = self.encoded.partial_decode(indexer, options)?;
        let decoded = self
            .codec
            .decoded(&encoded.into_fixed()?, &self.data_type)?;
        Ok(decoded.into())
    }

    fn supports_partial_decode(&self) -> bool {
        self.encoded.supports_partial_decode()
    }
}

impl FixedScaleOffset {
    fn decoded(&self, bytes: &[u8], data_type: &DataType) -> Result<Vec<u8>, CodecError> {
        let (dtype, astype) = self.numbers(data_type)?;
        let decoded = self.configuration.decoded(bytes, dtype, astype);
        decoded.map_err(|error| CodecError::Other(format!("{NAME}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(configuration: &Value, encoded: &[u8]) -> Result<Vec<u8>, String> {
        let json = configuration.as_object().unwrap();
        let json: Json = json.clone().into();
        let codec = FixedScaleOffset {
            configuration: Configuration::parse(&json)?,
        };
        let data_type = codec.configuration.dtype.unwrap().data_type();
        let size = data_type.fixed_size().unwrap();
        let fill_value = FillValue::new(vec![0; size]);
        let encoded = ArrayBytes::from(encoded.to_vec());
        let decoded = codec
            .decode(
                encoded,
                &[],
                &data_type,
                &fill_value,
                &CodecOptions::default(),
            )
            .map_err(|error| error.to_string())?;
        Ok(decoded.into_fixed().unwrap().into_owned())
    }

    #[test]
    fn numbers_are_as_precise_as_in_the_metadata() {
        let configuration =
            json!({ "scale": 0.1, "offset": -3.7, "dtype": "<f8", "astype": "<i2" });
        let decoded = decode(&configuration, &[3, 0, 251, 255]).unwrap();
        let expected = [3.0 / 0.1 - 3.7, -5.0 / 0.1 - 3.7].map(f64::to_ne_bytes);
        assert_eq!(decoded, expected.concat());
    }

    #[test]
    fn a_value_that_does_not_fit_is_an_error() {
        for (dtype, scale) in [("u1", 0.1), ("i8", 1e-30), ("i2", 0.0)] {
            let configuration =
                json!({ "scale": scale, "offset": 0, "dtype": dtype, "astype": "u1" });
            let error = decode(&configuration, &[200]).unwrap_err();
            assert!(error.contains("cannot hold"), "{error}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for configuration in [
            json!({ "scale": "1", "offset": 0, "dtype": "u1" }),
            json!({ "offset": 0, "dtype": "u1" }),
            json!({ "scale": 1, "offset": 0, "dtype": "c8" }),
            json!({ "scale": 1, "offset": 0, "dtype": "<<f8" }),
            json!({ "scale": 1, "offset": 0, "dtype": 5 }),
        ] {
            let json: Json = configuration.as_object().unwrap().clone().into();
            Configuration::parse(&json).unwrap_err();
        }
    }
}
