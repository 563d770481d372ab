//! Translates the attributes of xarray from Zarr v2 to Zarr v3.
//!
//! xarray keeps the value of missing elements in `fill_value` of Zarr v2, and in the attribute
//! `_FillValue` of Zarr v3. It keeps the names of dimensions in the attribute `_ARRAY_DIMENSIONS` of
//! Zarr v2, and in `dimension_names` of Zarr v3. An array without `_ARRAY_DIMENSIONS` is not xarray's.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use half::f16;
use serde_json::{Map, Value, json};
use zarrs::array::{DataType, FillValue};
use zarrs::metadata::v2::ArrayMetadataV2;
use zarrs::plugin::{ExtensionName, ZarrVersion};

const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";
const FILL_VALUE: &str = "_FillValue";

/// The names of dimensions and the attributes of an array of xarray, in Zarr v3.
pub(super) struct InV3 {
    pub(super) dimension_names: Vec<String>,
    pub(super) attributes: Map<String, Value>,
    /// A line for people about elements that xarray will read otherwise than before.
    pub(super) note: Option<String>,
}

/// Returns the attributes in Zarr v3 of an array that xarray wrote in Zarr v2; `None` if another
/// program wrote it.
pub(super) fn in_v3(
    metadata: &ArrayMetadataV2,
    data_type: &DataType,
    fill_value: Option<&FillValue>,
) -> Option<InV3> {
    let mut attributes = metadata.attributes.clone();
    let dimension_names: Vec<String> =
        serde_json::from_value(attributes.get(DIMENSIONS)?.clone()).ok()?;
    if dimension_names.len() != metadata.shape.len() {
        return None;
    }
    attributes.shift_remove(DIMENSIONS);
    let note = match fill_value.map(|fill_value| Element::of(data_type, fill_value)) {
        None => restate(&mut attributes, data_type),
        // xarray uses the fill value of the metadata, whatever the attribute says.
        Some(Some(element)) => {
            element.state(&mut attributes);
            None
        }
        Some(None) => {
            attributes.shift_remove(FILL_VALUE);
            Some(format!(
                "elements that are the fill value are missing for xarray in Zarr v2. In Zarr v3 it has \
                 no missing elements of {data_type}, and reads them as they are"
            ))
        }
    };
    Some(InV3 {
        dimension_names,
        attributes,
        note,
    })
}

/// Replaces an attribute `_FillValue` in the form of Zarr v2, a plain value, by the form of Zarr v3.
fn restate(attributes: &mut Map<String, Value>, data_type: &DataType) -> Option<String> {
    let value = match attributes.get(FILL_VALUE)? {
        Value::Array(values) if values.len() == 1 && !is_complex(data_type) => values.first()?,
        value => value,
    };
    let value = value.clone();
    if let Some(element) = Element::of_json(data_type, &value) {
        element.state(attributes);
        return None;
    }
    attributes.shift_remove(FILL_VALUE);
    Some(format!(
        "the attribute {FILL_VALUE} is {value}, which is no {data_type}: it is left out, because xarray \
         could not open the array with it"
    ))
}

fn is_complex(data_type: &DataType) -> bool {
    matches!(name_of(data_type).as_str(), "complex64" | "complex128")
}

fn name_of(data_type: &DataType) -> String {
    let name = data_type.name(ZarrVersion::V3);
    name.map_or_else(String::new, std::borrow::Cow::into_owned)
}

/// An element of a data type for which xarray has missing elements.
enum Element {
    Bool(bool),
    /// An integer, as a JSON number.
    Integer(Value),
    Float(f64),
    Complex(f64, f64),
    Text(String),
}

impl Element {
    /// Returns the element of `fill_value`; `None` if xarray has no missing elements of this data type.
    fn of(data_type: &DataType, fill_value: &FillValue) -> Option<Self> {
        let bytes = fill_value.as_ne_bytes();
        macro_rules! number {
            ($type:ty, $bytes:expr) => {
                <$type>::from_ne_bytes($bytes.try_into().ok()?)
            };
        }
        Some(match name_of(data_type).as_str() {
            "bool" => Self::Bool(bytes != [0]),
            "int8" => Self::Integer(json!(number!(i8, bytes))),
            "int16" => Self::Integer(json!(number!(i16, bytes))),
            "int32" => Self::Integer(json!(number!(i32, bytes))),
            "int64" => Self::Integer(json!(number!(i64, bytes))),
            "uint8" => Self::Integer(json!(number!(u8, bytes))),
            "uint16" => Self::Integer(json!(number!(u16, bytes))),
            "uint32" => Self::Integer(json!(number!(u32, bytes))),
            "uint64" => Self::Integer(json!(number!(u64, bytes))),
            "float16" => Self::Float(number!(f16, bytes).to_f64()),
            "float32" => Self::Float(f64::from(number!(f32, bytes))),
            "float64" => Self::Float(number!(f64, bytes)),
            "complex64" => {
                let (re, im) = bytes.split_at_checked(4)?;
                Self::Complex(f64::from(number!(f32, re)), f64::from(number!(f32, im)))
            }
            "complex128" => {
                let (re, im) = bytes.split_at_checked(8)?;
                Self::Complex(number!(f64, re), number!(f64, im))
            }
            "string" => Self::Text(String::from_utf8(bytes.to_vec()).ok()?),
            "fixed_length_utf32" => {
                let metadata = data_type.metadata_fill_value(fill_value).ok()?;
                Self::Text(metadata.as_str()?.to_string())
            }
            _ => return None,
        })
    }

    /// Returns the element in an attribute of Zarr v2, or in one that already has the form of Zarr v3.
    fn of_json(data_type: &DataType, value: &Value) -> Option<Self> {
        let float = |value: &Value| match value {
            Value::String(text) => match text.as_str() {
                "NaN" => Some(f64::NAN),
                "Infinity" => Some(f64::INFINITY),
                "-Infinity" => Some(f64::NEG_INFINITY),
                text => {
                    let bytes = BASE64_STANDARD.decode(text).ok()?;
                    Some(f64::from_le_bytes(bytes.try_into().ok()?))
                }
            },
            value => value.as_f64(),
        };
        Some(match (name_of(data_type).as_str(), value) {
            ("bool", Value::Bool(value)) => Self::Bool(*value),
            ("float16" | "float32" | "float64", value) => Self::Float(float(value)?),
            ("complex64" | "complex128", Value::Array(parts)) => match &parts[..] {
                [re, im] => Self::Complex(float(re)?, float(im)?),
                _ => return None,
            },
            ("complex64" | "complex128", value) => Self::Complex(float(value)?, 0.0),
            ("string" | "fixed_length_utf32", Value::String(text)) => Self::Text(text.clone()),
            (name, Value::Number(number)) if name.contains("int") => {
                let is_whole = number.as_f64().is_some_and(|number| number.fract() == 0.0);
                is_whole.then(|| Self::Integer(value.clone()))?
            }
            _ => return None,
        })
    }

    /// Writes the attribute in the form in which xarray writes it to Zarr v3.
    fn state(self, attributes: &mut Map<String, Value>) {
        let base64 = |number: f64| json!(BASE64_STANDARD.encode(number.to_le_bytes()));
        let value = match self {
            Self::Bool(value) => json!(value),
            Self::Integer(value) => value,
            Self::Float(value) => base64(value),
            Self::Complex(re, im) => json!([base64(re), base64(im)]),
            Self::Text(text) => {
                // xarray cannot read `_FillValue` of text in Zarr v3. `missing_value` has the same meaning.
                attributes.shift_remove(FILL_VALUE);
                attributes.entry("missing_value").or_insert(json!(text));
                return;
            }
        };
        attributes.insert(FILL_VALUE.to_string(), value);
    }
}
