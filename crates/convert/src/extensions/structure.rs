//! Structures: data types of fields, under the name `struct` that zarr-python writes.
//!
//! Zarr v2 has a list of fields in place of a name, such as `[["a", "<i4"], ["b", "|S3"]]`, also nested. zarrs
//! takes only names, so metadata are read with the name [`as_simple_name`]. An element is the bytes of its
//! fields, without gaps.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};
use zarrs::array::data_type::api::codec_traits::bytes::{
    BytesCodecEndiannessMissingError, BytesDataTypeExt, BytesDataTypePlugin, BytesDataTypeTraits,
};
use zarrs::array::data_type::api::{
    DataTypeFillValueError, DataTypeFillValueMetadataError, DataTypeRuntimePluginV2,
    DataTypeRuntimePluginV3, DataTypeTraits, register_data_type_v2, register_data_type_v3,
};
use zarrs::array::{DataType, DataTypeSize, FillValue};
use zarrs::metadata::v2::DataTypeMetadataV2;
use zarrs::metadata::v3::MetadataV3;
use zarrs::metadata::{Configuration, Endianness, FillValueMetadata};
use zarrs::plugin::{ExtensionName, PluginCreateError, ZarrVersion};

const NAME: &str = "struct";
/// The name by which zarr-python before 3.2 wrote structures.
const OLD_NAME: &str = "structured";
/// The begin of the name of a structure of Zarr v2. `|` says that it has no byte order.
const SIMPLE: &str = "|struct";
/// The number of structures within one another that are read.
const DEPTH: usize = 16;

pub(super) fn register() {
    register_data_type_v2(DataTypeRuntimePluginV2::new(
        |name| as_written(name).is_some(),
        |metadata| {
            let fields = match metadata {
                DataTypeMetadataV2::Simple(name) => as_written(name),
                DataTypeMetadataV2::Structured(_) => None,
            };
            let fields = fields.ok_or_else(|| other("its fields are no JSON"))?;
            made(Structure::of_v2(&fields, DEPTH))
        },
    ));
    register_data_type_v3(DataTypeRuntimePluginV3::new(
        |name| name == NAME || name == OLD_NAME,
        |metadata| made(Structure::of_v3(metadata)),
    ));
}

fn made(parsed: Result<Structure, String>) -> Result<DataType, PluginCreateError> {
    parsed
        .map(DataType::new)
        .map_err(|error| other(&format!("a structure: {error}")))
}

fn other(error: &str) -> PluginCreateError {
    PluginCreateError::Other(error.to_string())
}

/// Returns the name of a data type of Zarr v2 that is a list of fields; `None` for other data types.
pub(crate) fn as_simple_name(dtype: &Value) -> Option<String> {
    dtype.is_array().then(|| format!("{SIMPLE}{dtype}"))
}

/// Returns the list of fields whose name is `name`; `None` if `name` is no structure's.
pub(crate) fn as_written(name: &str) -> Option<Value> {
    let fields: Value = serde_json::from_str(name.strip_prefix(SIMPLE)?).ok()?;
    fields.is_array().then_some(fields)
}

#[derive(Clone, Debug)]
struct Field {
    name: String,
    data_type: DataType,
    /// The first byte of the field in an element.
    start: usize,
    size: usize,
}

/// A data type whose elements have fields.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    fields: Vec<Field>,
    /// The number of bytes of an element, at least 1.
    size: usize,
}

impl Structure {
    /// Returns the data types of the fields.
    pub(crate) fn data_types(&self) -> impl Iterator<Item = &DataType> {
        self.fields.iter().map(|field| &field.data_type)
    }

    fn new(named: Vec<(String, DataType)>) -> Result<Self, String> {
        let mut fields: Vec<Field> = Vec::with_capacity(named.len());
        let mut start = 0_usize;
        for (name, data_type) in named {
            if fields.iter().any(|field| field.name == name) {
                return Err(format!("two of its fields are called {name:?}"));
            }
            let size = data_type
                .fixed_size()
                .ok_or_else(|| format!("the elements of its field {name:?} differ in size"))?;
            fields.push(Field {
                name,
                data_type,
                start,
                size,
            });
            start = start
                .checked_add(size)
                .ok_or("its elements are too large")?;
        }
        if start == 0 {
            return Err("it has no fields".to_string());
        }
        Ok(Self {
            fields,
            size: start,
        })
    }

    /// Parses a list of fields of Zarr v2, with at most `depth` structures within one another.
    fn of_v2(fields: &Value, depth: usize) -> Result<Self, String> {
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| format!("more than {DEPTH} structures are within one another"))?;
        let fields = fields.as_array().into_iter().flatten();
        let named = fields.map(|field| {
            let parts = field.as_array().map_or(&[][..], Vec::as_slice);
            let (name, dtype) = match parts {
                [Value::String(name), dtype] => (name, dtype),
                [Value::String(name), _, _] => {
                    return Err(format!(
                        "its field {name:?} is an array of a shape, which Zarr v3 has no data type for"
                    ));
                }
                _ => return Err(format!("its field {field} is not understood")),
            };
            let data_type = match dtype {
                Value::Array(_) => DataType::new(Self::of_v2(dtype, depth)?),
                Value::String(dtype) => field_of_v2(name, dtype)?,
                _ => return Err(format!("its field {name:?} is {dtype}")),
            };
            Ok((name.clone(), data_type))
        });
        Self::new(named.collect::<Result<_, _>>()?)
    }

    /// Parses a data type of Zarr v3, in the form of today or in the older one.
    fn of_v3(metadata: &MetadataV3) -> Result<Self, String> {
        let fields = metadata.configuration().and_then(|all| all.get("fields"));
        let fields = fields
            .and_then(Value::as_array)
            .ok_or("its `fields` are no list")?;
        let named = fields.iter().map(|field| {
            let (name, data_type) = match field.as_array().map(Vec::as_slice) {
                Some([name, data_type]) => (name, data_type),
                _ => (&field["name"], &field["data_type"]),
            };
            let name = name
                .as_str()
                .ok_or_else(|| format!("its field {field} is not understood"))?;
            let understood = serde_json::from_value::<MetadataV3>(data_type.clone())
                .map_err(|error| error.to_string())
                .and_then(|metadata| {
                    DataType::from_metadata(&metadata).map_err(|error| error.to_string())
                });
            let data_type = understood
                .map_err(|error| format!("its field {name:?} is {data_type}: {error}"))?;
            Ok((name.to_string(), data_type))
        });
        Self::new(named.collect::<Result<_, String>>()?)
    }

    /// Returns `elements` with the bytes of each field as `change` makes them of the bytes of all elements.
    fn changed(
        &self,
        elements: Cow<'_, [u8]>,
        change: impl Fn(&Field, Vec<u8>) -> Result<Vec<u8>, BytesCodecEndiannessMissingError>,
    ) -> Result<Vec<u8>, BytesCodecEndiannessMissingError> {
        let mut changed = elements.into_owned();
        for field in &self.fields {
            let range = field.start..field.start + field.size;
            let mut column = Vec::with_capacity(changed.len() / self.size * field.size);
            for element in changed.chunks_exact(self.size) {
                column.extend_from_slice(&element[range.clone()]);
            }
            let column = change(field, column)?;
            let new = column.chunks_exact(field.size);
            for (element, new) in changed.chunks_exact_mut(self.size).zip(new) {
                element[range.clone()].copy_from_slice(new);
            }
        }
        Ok(changed)
    }
}

/// Returns the data type of a field of Zarr v2.
fn field_of_v2(name: &str, dtype: &str) -> Result<DataType, String> {
    if dtype.starts_with('>') {
        return Err(format!(
            "its field {name:?} is big-endian (`{dtype}`), and structures have no byte order in Zarr v3"
        ));
    }
    if dtype == "|O" {
        return Err(format!(
            "its field {name:?} has Python objects (`|O`), which Zarr v3 has no data type for"
        ));
    }
    DataType::from_metadata(&DataTypeMetadataV2::Simple(dtype.to_string()))
        .map_err(|error| format!("its field {name:?} is `{dtype}`: {error}"))
}

fn in_v3(data_type: &DataType) -> Value {
    let name = data_type.name(ZarrVersion::V3).unwrap_or_default();
    let configuration = data_type.configuration(ZarrVersion::V3);
    if configuration.is_empty() {
        return name.into();
    }
    let configuration: Map<String, Value> = configuration.into();
    json!({ "name": name, "configuration": configuration })
}

impl ExtensionName for Structure {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        matches!(version, ZarrVersion::V3).then_some(Cow::Borrowed(NAME))
    }
}

impl DataTypeTraits for Structure {
    fn configuration(&self, _: ZarrVersion) -> Configuration {
        let fields = self
            .fields
            .iter()
            .map(|field| json!({ "name": field.name, "data_type": in_v3(&field.data_type) }));
        let fields = fields.collect();
        Map::from_iter([("fields".to_string(), Value::Array(fields))]).into()
    }

    fn size(&self) -> DataTypeSize {
        DataTypeSize::Fixed(self.size)
    }

    /// Reads the fill value: fields by their names, of which zeros are missing; or base64 of an element.
    fn fill_value(
        &self,
        metadata: &FillValueMetadata,
        version: ZarrVersion,
    ) -> Result<FillValue, DataTypeFillValueMetadataError> {
        let error = || DataTypeFillValueMetadataError;
        let bytes = match (metadata, version) {
            (FillValueMetadata::Null, ZarrVersion::V2) => vec![0; self.size],
            (FillValueMetadata::Number(zero), ZarrVersion::V2) if zero.as_f64() == Some(0.0) => {
                vec![0; self.size]
            }
            (FillValueMetadata::String(text), _) => {
                let stored = BASE64_STANDARD.decode(text).map_err(|_| error())?;
                if stored.len() != self.size {
                    return Err(error());
                }
                let read = self.decode(stored.into(), Some(Endianness::Little));
                read.map_err(|_| error())?.into_owned()
            }
            (FillValueMetadata::Object(values), ZarrVersion::V3) => {
                let mut bytes = Vec::with_capacity(self.size);
                for field in &self.fields {
                    match values.get(&field.name) {
                        None => bytes.resize(bytes.len() + field.size, 0),
                        Some(value) => {
                            let value = field.data_type.fill_value(value, version)?;
                            bytes.extend_from_slice(value.as_ne_bytes());
                        }
                    }
                }
                bytes
            }
            _ => return Err(error()),
        };
        (bytes.len() == self.size)
            .then(|| FillValue::new(bytes))
            .ok_or_else(error)
    }

    fn metadata_fill_value(
        &self,
        fill_value: &FillValue,
    ) -> Result<FillValueMetadata, DataTypeFillValueError> {
        let mut bytes = fill_value.as_ne_bytes();
        let mut values = HashMap::new();
        for field in &self.fields {
            let value;
            (value, bytes) = bytes
                .split_at_checked(field.size)
                .ok_or(DataTypeFillValueError)?;
            let value = FillValue::new(value.to_vec());
            let value = field.data_type.metadata_fill_value(&value)?;
            values.insert(field.name.clone(), value);
        }
        if !bytes.is_empty() {
            return Err(DataTypeFillValueError);
        }
        Ok(FillValueMetadata::Object(values))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Each field has the byte order of the codec. Without one it is the little-endian one, as zarr-python reads
/// structures of older versions.
impl BytesDataTypeTraits for Structure {
    fn encode<'a>(
        &self,
        bytes: Cow<'a, [u8]>,
        order: Option<Endianness>,
    ) -> Result<Cow<'a, [u8]>, BytesCodecEndiannessMissingError> {
        self.coded(bytes, order, |codec, column, order| {
            codec.encode(column, Some(order))
        })
    }

    fn decode<'a>(
        &self,
        bytes: Cow<'a, [u8]>,
        order: Option<Endianness>,
    ) -> Result<Cow<'a, [u8]>, BytesCodecEndiannessMissingError> {
        self.coded(bytes, order, |codec, column, order| {
            codec.decode(column, Some(order))
        })
    }
}

impl Structure {
    /// Changes the byte order of each field by `code`, unless `order` is that of this machine.
    fn coded<'a>(
        &self,
        bytes: Cow<'a, [u8]>,
        order: Option<Endianness>,
        code: impl for<'c> Fn(
            &dyn BytesDataTypeTraits,
            Cow<'c, [u8]>,
            Endianness,
        ) -> Result<Cow<'c, [u8]>, BytesCodecEndiannessMissingError>,
    ) -> Result<Cow<'a, [u8]>, BytesCodecEndiannessMissingError> {
        let order = order.unwrap_or(Endianness::Little);
        if order.is_native() {
            return Ok(bytes);
        }
        let coded = self.changed(bytes, |field, column| {
            let codec = field.data_type.codec_bytes();
            let codec = codec.map_err(|_| BytesCodecEndiannessMissingError)?;
            Ok(code(codec, column.into(), order)?.into_owned())
        });
        coded.map(Cow::Owned)
    }
}

inventory::submit! {
    BytesDataTypePlugin {
        type_id: TypeId::of::<Structure>(),
        caster: |any| any.downcast_ref::<Structure>().map(|found| found as &dyn BytesDataTypeTraits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(fields: &Value) -> Result<Structure, String> {
        Structure::of_v2(fields, DEPTH)
    }

    #[test]
    fn fields_of_both_versions_are_the_same() {
        super::super::register();
        let fields = json!([
            ["a", "<i4"],
            ["n", [["b", "|S3"], ["c", "<f8"]]],
            ["d", "|b1"]
        ]);
        let name = as_simple_name(&fields).unwrap();
        assert_eq!(as_written(&name), Some(fields.clone()));
        let structure = v2(&fields).unwrap();
        assert_eq!(structure.size, 16);
        let metadata = in_v3(&DataType::new(structure.clone()));
        let metadata: MetadataV3 = serde_json::from_value(metadata).unwrap();
        let again = Structure::of_v3(&metadata).unwrap();
        assert!(DataTypeTraits::eq(&structure, &again));
        let other = v2(&json!([["a", "<i4"], ["n", "|V11"], ["d", "|b1"]])).unwrap();
        assert!(!DataTypeTraits::eq(&structure, &other));

        let bytes: Vec<u8> = (0..16).map(|byte| u8::from(byte != 15) * byte).collect();
        let value = FillValue::new(bytes.clone());
        let written = structure.metadata_fill_value(&value).unwrap();
        let read = structure.fill_value(&written, ZarrVersion::V3).unwrap();
        assert_eq!(read, value);
        let base64 = FillValueMetadata::from(BASE64_STANDARD.encode(&bytes));
        assert_eq!(
            structure.fill_value(&base64, ZarrVersion::V2).unwrap(),
            value
        );
        let missing = FillValueMetadata::Object(HashMap::new());
        let zeros = structure.fill_value(&missing, ZarrVersion::V3).unwrap();
        assert_eq!(zeros, FillValue::new(vec![0; 16]));
    }

    #[test]
    fn each_field_has_the_byte_order() {
        super::super::register();
        let structure = v2(&json!([["a", "<i2"], ["b", "|S3"], ["c", "<c8"]])).unwrap();
        let bytes: Vec<u8> = (0..26).collect();
        let encoded = structure.encode((&bytes).into(), Some(Endianness::Big));
        let encoded = encoded.unwrap().into_owned();
        let first = [1, 0, 2, 3, 4, 8, 7, 6, 5, 12, 11, 10, 9];
        if cfg!(target_endian = "little") {
            let second = first.map(|byte| byte + 13);
            assert_eq!(encoded, [first, second].concat());
        }
        let decoded = structure.decode(encoded.into(), Some(Endianness::Big));
        assert_eq!(*decoded.unwrap(), *bytes);
    }

    #[test]
    fn nonsense_is_refused() {
        super::super::register();
        let mut deep = json!("<i4");
        for _ in 0..100 {
            deep = json!([["a", deep]]);
        }
        for fields in [
            deep,
            json!([]),
            json!([["a", ">i4"]]),
            json!([["a", "|O"]]),
            json!([["a", "<i4", [2]]]),
            json!([["a", "<i4"], ["a", "<i4"]]),
            json!([["a"]]),
            json!([5]),
            json!([["a", 5]]),
            json!([
                ["a", "|S9223372036854775807"],
                ["b", "|S9223372036854775807"],
                ["c", "|S9"]
            ]),
        ] {
            v2(&fields).expect_err(&fields.to_string());
        }
        for fields in [
            json!(5),
            json!([5]),
            json!([{ "name": "a" }]),
            json!([["a", "string"]]),
        ] {
            let metadata = json!({ "name": NAME, "configuration": { "fields": fields } });
            let metadata = serde_json::from_value(metadata).unwrap();
            Structure::of_v3(&metadata).expect_err(&fields.to_string());
        }
    }
}
