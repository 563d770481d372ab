//! Arrays of Zarr v2 whose elements zarrs would decode otherwise than numcodecs.
//!
//! zarrs turns the filters and the compressor of Zarr v2 into one chain of codecs. For some lists of codecs,
//! the chain decodes other elements, without an error. This module corrects the metadata of such an array, or
//! refuses it.

use zarrs::array::{Array, ArrayMetadata};
use zarrs::metadata::v2::{ArrayMetadataV2, DataTypeMetadataV2, MetadataV2};
use zarrs_codec::Codec;

/// Returns `array`, changed so that its elements are those that numcodecs decodes. Arrays of Zarr v3 stay
/// unchanged.
///
/// # Errors
/// zarrs cannot decode these elements. The message names the codec that is the reason.
pub(crate) fn as_numcodecs_reads<S: ?Sized>(array: Array<S>) -> Result<Array<S>, String> {
    let ArrayMetadata::V2(metadata) = array.metadata() else {
        return Ok(array);
    };
    must_keep_order(metadata)?;
    match with_byte_strings(metadata)? {
        None => Ok(array),
        Some(metadata) => {
            let path = array.path().as_str();
            Array::new_with_metadata(array.storage(), path, ArrayMetadata::V2(metadata))
                .map_err(|error| error.to_string())
        }
    }
}

/// Returns the filters in the order of encoding, and then the compressor.
fn codecs(metadata: &ArrayMetadataV2) -> impl Iterator<Item = &MetadataV2> {
    let filters = metadata.filters.iter().flatten();
    filters.chain(&metadata.compressor)
}

/// Checks that zarrs keeps the order of the codecs: it would move a codec that makes bytes of elements before
/// all others.
fn must_keep_order(metadata: &ArrayMetadataV2) -> Result<(), String> {
    let mut of_bytes: Option<&str> = None;
    for codec in codecs(metadata) {
        let id = codec.id();
        match Codec::from_metadata(codec) {
            Ok(Codec::ArrayToArray(_) | Codec::ArrayToBytes(_)) => {
                if let Some(before) = of_bytes {
                    return Err(format!(
                        "its codec `{id}` takes elements, and stands behind the codec `{before}`, which \
                         makes bytes of them: zarrs would apply `{id}` first"
                    ));
                }
                if matches!(id, "vlen-utf8" | "vlen-bytes" | "vlen-array") {
                    of_bytes = Some(id);
                }
            }
            Ok(Codec::BytesToBytes(_)) | Err(_) => of_bytes = Some(id),
        }
    }
    Ok(())
}

/// Returns metadata in which the data type `|O` is byte strings, if the filters say so. zarrs would read it
/// as text.
fn with_byte_strings(metadata: &ArrayMetadataV2) -> Result<Option<ArrayMetadataV2>, String> {
    let is_object = matches!(&metadata.dtype, DataTypeMetadataV2::Simple(name) if name == "|O");
    if !is_object {
        return Ok(None);
    }
    let mut ids = codecs(metadata).map(MetadataV2::id);
    match ids.find(|id| matches!(*id, "vlen-utf8" | "vlen-bytes")) {
        Some("vlen-utf8") => Ok(None),
        Some(_) => {
            let mut metadata = metadata.clone();
            metadata.dtype = DataTypeMetadataV2::Simple("|VX".to_string());
            Ok(Some(metadata))
        }
        None => Err(
            "its elements are Python objects (`|O`), and no filter `vlen-utf8` or `vlen-bytes` says \
             that they are text or byte strings"
                .to_string(),
        ),
    }
}
