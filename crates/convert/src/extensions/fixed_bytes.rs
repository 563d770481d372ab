//! Data types whose elements have a fixed number of bytes, under the names that zarr-python writes.
//!
//! | numpy | Zarr v2 | Zarr v3 |
//! |---|---|---|
//! | `S3` | `\|S3` | `null_terminated_bytes` with `length_bytes` |
//! | `V3` | `\|V3` | `raw_bytes` with `length_bytes` |
//!
//! zarrs knows `|V3` alone, and writes it as `r24`, which zarr-python does not open. Arrays of `r24` are read
//! as `raw_bytes`.

use std::any::{Any, TypeId};
use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};
use zarrs::array::data_type::api::codec_traits::bytes::{
    BytesCodecEndiannessMissingError, BytesDataTypePlugin, BytesDataTypeTraits,
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

pub(super) fn register() {
    register_data_type_v2(DataTypeRuntimePluginV2::new(
        |name| in_v2(name).is_some(),
        |metadata| match metadata {
            DataTypeMetadataV2::Simple(name) => made(in_v2(name), name),
            DataTypeMetadataV2::Structured(_) => made(None, "of fields"),
        },
    ));
    register_data_type_v3(DataTypeRuntimePluginV3::new(
        |name| Kind::of_v3(name).is_some() || bits(name).is_some(),
        |metadata| made(in_v3(metadata), metadata.name()),
    ));
}

fn made(parsed: Option<FixedBytes>, name: &str) -> Result<DataType, PluginCreateError> {
    let unknown = || PluginCreateError::NameInvalid {
        name: name.to_string(),
    };
    parsed.map(DataType::new).ok_or_else(unknown)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Zeros at the end are padding, and no part of the value.
    NullTerminated,
    Raw,
}

impl Kind {
    fn v3_name(self) -> &'static str {
        match self {
            Self::NullTerminated => "null_terminated_bytes",
            Self::Raw => "raw_bytes",
        }
    }

    fn of_v3(name: &str) -> Option<Self> {
        [Self::NullTerminated, Self::Raw]
            .into_iter()
            .find(|kind| kind.v3_name() == name)
    }
}

#[derive(Clone, Copy, Debug)]
struct FixedBytes {
    kind: Kind,
    /// The number of bytes of an element, at least 1.
    size: usize,
}

impl FixedBytes {
    fn new(kind: Kind, size: usize) -> Option<Self> {
        (size > 0).then_some(Self { kind, size })
    }
}

/// Returns the data type with a name of Zarr v2 such as `|S3`.
fn in_v2(name: &str) -> Option<FixedBytes> {
    let (kind, size) = match name.strip_prefix("|S") {
        Some(size) => (Kind::NullTerminated, size),
        None => (Kind::Raw, name.strip_prefix("|V")?),
    };
    FixedBytes::new(kind, number(size)?)
}

fn in_v3(metadata: &MetadataV3) -> Option<FixedBytes> {
    if let Some(bits) = bits(metadata.name()) {
        let size = bits.is_multiple_of(8).then_some(bits / 8)?;
        return FixedBytes::new(Kind::Raw, size);
    }
    let size = metadata.configuration()?.get("length_bytes")?.as_u64()?;
    FixedBytes::new(Kind::of_v3(metadata.name())?, usize::try_from(size).ok()?)
}

/// Returns the number of bits in a name such as `r24`.
fn bits(name: &str) -> Option<usize> {
    number(name.strip_prefix('r')?)
}

/// Parses a number that consists of digits alone. (`parse` also accepts `+3`.)
fn number(text: &str) -> Option<usize> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

impl ExtensionName for FixedBytes {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        Some(match (version, self.kind) {
            (ZarrVersion::V3, kind) => kind.v3_name().into(),
            (ZarrVersion::V2, Kind::NullTerminated) => format!("|S{}", self.size).into(),
            (ZarrVersion::V2, Kind::Raw) => format!("|V{}", self.size).into(),
        })
    }
}

impl DataTypeTraits for FixedBytes {
    fn configuration(&self, version: ZarrVersion) -> Configuration {
        let mut configuration = Map::new();
        if matches!(version, ZarrVersion::V3) {
            configuration.insert("length_bytes".to_string(), json!(self.size));
        }
        configuration.into()
    }

    /// Compares the kind, too: zarrs would compare only the configuration, which has no kind.
    fn eq(&self, other: &dyn DataTypeTraits) -> bool {
        let other = other.as_any().downcast_ref::<Self>();
        other.is_some_and(|other| self.kind == other.kind && self.size == other.size)
    }

    fn size(&self) -> DataTypeSize {
        DataTypeSize::Fixed(self.size)
    }

    /// Reads the fill value: base64 of at most `size` bytes, which zeros follow, or a list of all bytes.
    fn fill_value(
        &self,
        metadata: &FillValueMetadata,
        version: ZarrVersion,
    ) -> Result<FillValue, DataTypeFillValueMetadataError> {
        let error = || DataTypeFillValueMetadataError;
        let metadata = serde_json::to_value(metadata).map_err(|_| error())?;
        let mut bytes = match (metadata, version) {
            (Value::Null, ZarrVersion::V2) => Vec::new(),
            (Value::String(text), _) => BASE64_STANDARD.decode(text).map_err(|_| error())?,
            (list @ Value::Array(_), _) => {
                let bytes: Vec<u8> = serde_json::from_value(list).map_err(|_| error())?;
                if bytes.len() != self.size {
                    return Err(error());
                }
                bytes
            }
            _ => return Err(error()),
        };
        if bytes.len() > self.size {
            return Err(error());
        }
        bytes.resize(self.size, 0);
        Ok(FillValue::new(bytes))
    }

    fn metadata_fill_value(
        &self,
        fill_value: &FillValue,
    ) -> Result<FillValueMetadata, DataTypeFillValueError> {
        let mut bytes = fill_value.as_ne_bytes();
        if bytes.len() != self.size {
            return Err(DataTypeFillValueError);
        }
        if self.kind == Kind::NullTerminated {
            let end = bytes.iter().rposition(|&byte| byte != 0);
            bytes = &bytes[..end.map_or(0, |end| end + 1)];
        }
        Ok(FillValueMetadata::from(BASE64_STANDARD.encode(bytes)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Elements of bytes have no byte order, so both codings change nothing.
impl BytesDataTypeTraits for FixedBytes {
    fn encode<'a>(
        &self,
        bytes: Cow<'a, [u8]>,
        _: Option<Endianness>,
    ) -> Result<Cow<'a, [u8]>, BytesCodecEndiannessMissingError> {
        Ok(bytes)
    }

    fn decode<'a>(
        &self,
        bytes: Cow<'a, [u8]>,
        _: Option<Endianness>,
    ) -> Result<Cow<'a, [u8]>, BytesCodecEndiannessMissingError> {
        Ok(bytes)
    }
}

inventory::submit! {
    BytesDataTypePlugin {
        type_id: TypeId::of::<FixedBytes>(),
        caster: |any| any.downcast_ref::<FixedBytes>().map(|found| found as &dyn BytesDataTypeTraits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v3(name: &str, configuration: &Value) -> Option<FixedBytes> {
        let metadata = json!({ "name": name, "configuration": configuration });
        in_v3(&serde_json::from_value(metadata).unwrap())
    }

    #[test]
    fn names_of_both_versions() {
        for (v2_name, v3_name, size) in [
            ("|S3", "null_terminated_bytes", 3),
            ("|V16", "raw_bytes", 16),
        ] {
            let data_type = in_v2(v2_name).unwrap();
            assert_eq!(data_type.name(ZarrVersion::V3).unwrap(), v3_name);
            assert_eq!(data_type.name(ZarrVersion::V2).unwrap(), v2_name);
            let again = v3(v3_name, &json!({ "length_bytes": size })).unwrap();
            assert!(DataTypeTraits::eq(&data_type, &again));
        }
        assert_eq!(v3("r24", &json!({})).unwrap().size, 3);
        for name in ["|S0", "|V", "|VX", "|S+3", "|S-1", "<S3", "|O"] {
            assert!(in_v2(name).is_none(), "{name}");
        }
        for name in ["r", "r0", "r12", "raw_bytes", "r+8"] {
            assert!(v3(name, &json!({ "length_bytes": 0 })).is_none(), "{name}");
        }
    }

    #[test]
    fn fill_values() {
        let text = in_v2("|S3").unwrap();
        let raw = in_v2("|V3").unwrap();
        let fill = |data_type: FixedBytes, json: Value| {
            let metadata: FillValueMetadata = serde_json::from_value(json).unwrap();
            let value = data_type.fill_value(&metadata, ZarrVersion::V2).ok()?;
            let again = data_type.metadata_fill_value(&value).unwrap();
            Some((
                value.as_ne_bytes().to_vec(),
                serde_json::to_value(again).unwrap(),
            ))
        };
        assert_eq!(
            fill(text, json!("YQ==")),
            Some((b"a\0\0".to_vec(), json!("YQ==")))
        );
        assert_eq!(
            fill(raw, json!("YQ==")),
            Some((b"a\0\0".to_vec(), json!("YQAA")))
        );
        assert_eq!(
            fill(raw, json!([1, 2, 3])),
            Some((vec![1, 2, 3], json!("AQID")))
        );
        assert_eq!(fill(text, Value::Null), Some((vec![0; 3], json!(""))));
        for wrong in [
            json!([1, 2]),
            json!("YWJjZA=="),
            json!("?"),
            json!([1, 2, 256]),
        ] {
            assert_eq!(fill(raw, wrong), None);
        }
    }
}
