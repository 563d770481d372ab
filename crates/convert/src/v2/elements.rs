//! Codecs that change elements: `delta`, `quantize`, `astype` and `fixedscaleoffset`.
//!
//! Their configurations name the data types of both sides, with byte orders. So they decode bytes to bytes,
//! and the data type of the array does not matter.

use std::borrow::Cow;

use serde_json::Value;
use zarrs::metadata::Configuration;

use super::filter::{Decoder, ElementSizes, EncodedSize, Expected};
use crate::extensions::{FixedScaleOffset, Number};

/// Returns a decoder of `delta`: differences of neighbours, along the memory of the chunk.
pub(super) fn delta(configuration: &Configuration) -> Result<Box<dyn Decoder>, String> {
    let (decoded, encoded) = dtype_and_astype(configuration)?;
    Ok(Elements::boxed(Change::Differences, decoded, encoded))
}

/// Returns a decoder of `quantize`, whose elements were rounded before they were stored.
pub(super) fn quantize(configuration: &Configuration) -> Result<Box<dyn Decoder>, String> {
    let (decoded, encoded) = dtype_and_astype(configuration)?;
    if !decoded.is_float() || !encoded.is_float() {
        return Err(format!(
            "its data types are {decoded} and {encoded}, and not floats"
        ));
    }
    Ok(Elements::boxed(Change::DataType, decoded, encoded))
}

/// Returns a decoder of `astype`.
pub(super) fn astype(configuration: &Configuration) -> Result<Box<dyn Decoder>, String> {
    let [decoded, encoded] = ["decode_dtype", "encode_dtype"].map(|name| {
        data_type(configuration, name)?
            .ok_or_else(|| format!("its `{name}` is missing, which is a data type"))
    });
    Ok(Elements::boxed(Change::DataType, decoded?, encoded?))
}

/// Returns a decoder of `fixedscaleoffset`.
pub(super) fn fixed_scale_offset(
    configuration: &Configuration,
) -> Result<Box<dyn Decoder>, String> {
    let parsed = FixedScaleOffset::parse(configuration)?;
    let (decoded, encoded) = dtype_and_astype(configuration)?;
    Ok(Elements::boxed(Change::Scale(parsed), decoded, encoded))
}

/// Returns the data types of decoded and of encoded elements; `astype` is `dtype` if it is missing.
fn dtype_and_astype(configuration: &Configuration) -> Result<(Number, Number), String> {
    let dtype = data_type(configuration, "dtype")?.ok_or("its `dtype` is missing")?;
    let astype = data_type(configuration, "astype")?;
    Ok((dtype, astype.unwrap_or(dtype)))
}

fn data_type(configuration: &Configuration, name: &str) -> Result<Option<Number>, String> {
    match configuration.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => {
            let number = Number::parse(text);
            number
                .map(Some)
                .map_err(|error| format!("its `{name}`: {error}"))
        }
        Some(other) => Err(format!("its `{name}` is {other}, and not a data type")),
    }
}

#[derive(Debug)]
struct Elements {
    change: Change,
    decoded: Number,
    encoded: Number,
}

#[derive(Debug)]
enum Change {
    /// Each element is the difference to the one before.
    Differences,
    /// Elements have another data type, and no other values.
    DataType,
    Scale(FixedScaleOffset),
}

impl Elements {
    fn boxed(change: Change, decoded: Number, encoded: Number) -> Box<dyn Decoder> {
        Box::new(Self {
            change,
            decoded,
            encoded,
        })
    }
}

/// Returns elements of the data type `to` with the values of `elements`, as numpy converts them; both in native
/// byte order.
fn cast(elements: Cow<'_, [u8]>, from: Number, to: Number) -> Result<Vec<u8>, String> {
    if from.data_type() == to.data_type() {
        return Ok(elements.into_owned());
    }
    let mut cast = Vec::with_capacity(elements.len() / from.size * to.size);
    for element in elements.chunks_exact(from.size) {
        if !to.cast(from, element, &mut cast) {
            return Err(format!(
                "an element is {}, which {to} cannot hold",
                from.read(element)
            ));
        }
    }
    Ok(cast)
}

impl Decoder for Elements {
    fn decode<'a>(
        &self,
        mut bytes: Cow<'a, [u8]>,
        expected: Expected,
    ) -> Result<Cow<'a, [u8]>, String> {
        let Self {
            decoded, encoded, ..
        } = self;
        if !bytes.len().is_multiple_of(encoded.size) {
            return Err(format!(
                "{} bytes are no elements of {encoded}",
                bytes.len()
            ));
        }
        let elements = (bytes.len() / encoded.size) as u64;
        expected
            .size
            .must_be(elements.saturating_mul(decoded.size as u64))?;
        if encoded.order.is_foreign() {
            reverse_each(bytes.to_mut(), encoded.size);
        }
        let mut result = match &self.change {
            Change::DataType => cast(bytes, *encoded, *decoded)?,
            Change::Differences => {
                let between = decoded.promoted(*encoded);
                let mut sums = cast(bytes, *encoded, between)?;
                between.accumulate(&mut sums);
                cast(sums.into(), between, *decoded)?
            }
            Change::Scale(scale) => scale.decoded(&bytes, *decoded, *encoded)?,
        };
        if decoded.order.is_foreign() {
            reverse_each(&mut result, decoded.size);
        }
        Ok(result.into())
    }

    fn encoded_size(&self, decoded: u64) -> EncodedSize {
        let elements = decoded / self.decoded.size as u64;
        EncodedSize::Exactly(elements.saturating_mul(self.encoded.size as u64))
    }

    fn elements(&self) -> Option<ElementSizes> {
        let is_each_alone = !matches!(self.change, Change::Differences);
        is_each_alone.then_some(ElementSizes {
            decoded: self.decoded.size as u64,
            encoded: self.encoded.size as u64,
        })
    }
}

fn reverse_each(bytes: &mut [u8], size: usize) {
    for element in bytes.chunks_exact_mut(size) {
        element.reverse();
    }
}
