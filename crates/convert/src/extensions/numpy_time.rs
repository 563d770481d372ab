//! numpy's dates and durations in Zarr v2, such as `<M8[ns]`. zarrs itself knows them only in Zarr v3.

use serde_json::json;
use zarrs::array::DataType;
use zarrs::array::data_type::api::{DataTypeRuntimePluginV2, register_data_type_v2};
use zarrs::metadata::v2::DataTypeMetadataV2;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::PluginCreateError;

pub(super) fn register() {
    register_data_type_v2(DataTypeRuntimePluginV2::new(
        |name| in_v3(name).is_some(),
        |metadata| match metadata {
            DataTypeMetadataV2::Simple(name) => match in_v3(name) {
                Some(metadata) => DataType::from_metadata(&metadata),
                None => Err(PluginCreateError::NameInvalid { name: name.clone() }),
            },
            DataTypeMetadataV2::Structured(_) => Err(PluginCreateError::Other(
                "a structure is no date and no duration".to_string(),
            )),
        },
    ));
}

/// Returns the data type of Zarr v3 for a name such as `<M8[ns]`, `>m8[25us]` or `<M8`.
fn in_v3(name: &str) -> Option<MetadataV3> {
    let name = name.strip_prefix(['<', '>'])?;
    let (kind, unit) = match name.strip_prefix("M8") {
        Some(unit) => ("numpy.datetime64", unit),
        None => ("numpy.timedelta64", name.strip_prefix("m8")?),
    };
    let unit = match unit {
        "" => "generic",
        unit => unit.strip_prefix('[')?.strip_suffix(']')?,
    };
    let digits = unit.find(|letter: char| !letter.is_ascii_digit())?;
    let scale: u32 = match &unit[..digits] {
        "" => 1,
        scale => scale.parse().ok()?,
    };
    let metadata = json!({
        "name": kind, "configuration": { "unit": &unit[digits..], "scale_factor": scale },
    });
    serde_json::from_value(metadata).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, kind, unit, scale) in [
            ("<M8[ns]", "numpy.datetime64", "ns", 1),
            (">m8[25us]", "numpy.timedelta64", "us", 25),
            ("<M8", "numpy.datetime64", "generic", 1),
        ] {
            let metadata = in_v3(name).unwrap();
            assert_eq!(metadata.name(), kind);
            let configuration = metadata.configuration().unwrap();
            assert_eq!(configuration["unit"], unit);
            assert_eq!(configuration["scale_factor"], scale);
            DataType::from_metadata(&metadata).unwrap();
        }
        for name in [
            "<M4[ns]", "M8[ns]", "<M8[", "<M8[]", "<M8[5]", "<M8[ns", "|M8[ns]",
        ] {
            assert!(in_v3(name).is_none(), "{name}");
        }
        // The unit is zarrs' to judge.
        let unknown = in_v3("<M8[parsec]").unwrap();
        DataType::from_metadata(&unknown).unwrap_err();
    }
}
