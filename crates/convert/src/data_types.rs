//! Data types in the metadata of new arrays, in the form that other implementations read.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use zarrs::array::data_type::BytesDataType;
use zarrs::array::{ArrayMetadata, DataType, FillValue};
use zarrs::metadata::FillValueMetadata;
use zarrs::metadata::v3::{ArrayMetadataV3, MetadataV3};
use zarrs::plugin::{ExtensionName, ZarrVersion};

use crate::extensions::Structure;
use crate::failure::Failure;

/// The names of data types that zarr-python 3.4 opens. tensorstore opens only the numbers among them.
const ZARR_PYTHON: [&str; 21] = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "string",
    "bytes",
    "fixed_length_utf32",
    "null_terminated_bytes",
    "raw_bytes",
    "numpy.datetime64",
    "numpy.timedelta64",
];
/// The names of data types that tensorstore opens and zarr-python does not.
const TENSORSTORE: [&str; 1] = ["bfloat16"];

/// Checks that another implementation opens a new array of `data_type`.
pub fn must_be_read_elsewhere(data_type: &DataType) -> Result<(), Failure> {
    if let Some(structure) = data_type.downcast_ref::<Structure>() {
        return structure.data_types().try_for_each(must_be_read_elsewhere);
    }
    let name = data_type.name(ZarrVersion::V3);
    let is_known = |name: &str| ZARR_PYTHON.contains(&name) || TENSORSTORE.contains(&name);
    if name.as_deref().is_some_and(is_known) {
        return Ok(());
    }
    let shown = name.map_or_else(|| format!("{data_type:?}"), |name| name.to_string());
    let failure = Failure::failed(format!(
        "cannot make an array of {shown}: neither zarr-python nor tensorstore would open it"
    ));
    Err(failure.with_remedy(format!(
        "convert the elements first. Data types that others open are {}, {}",
        ZARR_PYTHON.join(", "),
        TENSORSTORE.join(", ")
    )))
}

/// Returns `metadata` of a new array, with the names and fill values that zarr-python 3.4 writes.
///
/// zarrs writes byte strings as `bytes`, and their fill value as a list of numbers, which zarr-python cannot
/// open. zarr-python writes `variable_length_bytes`, and the fill value as base64.
pub fn as_others_read(mut metadata: ArrayMetadataV3, fill_value: &FillValue) -> ArrayMetadataV3 {
    let data_type = DataType::from_metadata(&metadata.data_type);
    if data_type.is_ok_and(|data_type| data_type.is::<BytesDataType>()) {
        metadata.data_type = MetadataV3::new("variable_length_bytes");
        let base64 = BASE64_STANDARD.encode(fill_value.as_ne_bytes());
        metadata.fill_value = FillValueMetadata::from(base64);
    }
    metadata
}

/// Returns the text of `metadata`. The same metadata are the same text: zarrs has the fields of a fill value in
/// no order, and this function sorts them by name.
pub(crate) fn as_json(metadata: &ArrayMetadata) -> serde_json::Result<Vec<u8>> {
    let mut metadata = serde_json::to_value(metadata)?;
    if let Some(fill_value) = metadata.get_mut("fill_value") {
        fill_value.sort_all_objects();
    }
    serde_json::to_vec_pretty(&metadata)
}
