//! Compares the metadata of two arrays: whether both describe the same array.

use std::sync::Arc;

use zarrs::array::{Array, ArrayMetadata};
use zarrs::storage::store::MemoryStore;

/// Returns the name of a member in which the metadata of two arrays differ; `None` if they do not. The first
/// extent and the attributes are not compared.
pub(crate) fn differs<T: ?Sized, U: ?Sized>(
    one: &Array<T>,
    other: &Array<U>,
) -> Option<&'static str> {
    // Some fill values can be written in several ways, such as not a number. So the values are compared.
    let same_fill_value = one.fill_value() == other.fill_value();
    let (one, other) = (one.metadata(), other.metadata());
    let (ArrayMetadata::V3(one), ArrayMetadata::V3(other)) = (one, other) else {
        return Some("version of Zarr");
    };
    let members = [
        ("shape", one.shape.get(1..) == other.shape.get(1..)),
        ("data type", one.data_type == other.data_type),
        ("chunk grid", one.chunk_grid == other.chunk_grid),
        (
            "chunk key encoding",
            one.chunk_key_encoding == other.chunk_key_encoding,
        ),
        ("fill value", same_fill_value),
        ("chain of codecs", one.codecs == other.codecs),
    ];
    let differing = members.into_iter().find(|(_, same)| !same);
    differing.map(|(member, _)| member)
}

/// Returns the name of a member in which two values of `zarr.json` differ, in whatever way each is spelled.
/// The first extent and the attributes are not compared. Returns `None` if they do not differ, or if this
/// process does not understand `before`.
pub(crate) fn stored_differs(before: &[u8], now: &[u8]) -> Option<&'static str> {
    let before = spelled_out(before)?;
    match spelled_out(now) {
        Some(now) => differs(&before, &now),
        None => Some("member that this process does not understand"),
    }
}

/// Returns the array that a value of `zarr.json` describes, with all members that its codecs may leave out.
fn spelled_out(metadata: &[u8]) -> Option<Array<MemoryStore>> {
    let metadata: ArrayMetadata = serde_json::from_slice(metadata).ok()?;
    let store = Arc::new(MemoryStore::new());
    let array = Array::new_with_metadata(store.clone(), "/", metadata).ok()?;
    array.builder().build(store, "/").ok()
}

#[cfg(test)]
mod tests {
    use super::stored_differs;

    const ARRAY: &str = r#"{"zarr_format":3,"node_type":"array","shape":[6,5],"data_type":"uint8",
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2,5]}},
        "chunk_key_encoding":{"name":"default"},"fill_value":0,"attributes":{"a":1},
        "codecs":[{"name":"bytes"},{"name":"crc32c"}]}"#;

    fn with(old: &str, new: &str) -> String {
        assert!(ARRAY.contains(old), "{old}");
        ARRAY.replace(old, new)
    }

    #[test]
    fn how_it_is_spelled_is_no_difference() {
        let differs = |now: &str| stored_differs(ARRAY.as_bytes(), now.as_bytes());
        for same in [
            ARRAY.to_owned(),
            with("[6,5]", "[9,5]"),
            with(r#"{"a":1}"#, r#"{"b":[2]}"#),
            with(r#"{"name":"crc32c"}"#, r#""crc32c""#),
            with(
                r#"{"name":"default"}"#,
                r#"{"name":"default","configuration":{"separator":"/"}}"#,
            ),
        ] {
            assert_eq!(differs(&same), None, "{same}");
        }
        for (other, member) in [
            (with("[6,5]", "[6,4]"), "shape"),
            (with("uint8", "int8"), "data type"),
            (with("[2,5]", "[3,5]"), "chunk grid"),
            (with(r#""default"}"#, r#""v2"}"#), "chunk key encoding"),
            (with(r#""fill_value":0"#, r#""fill_value":1"#), "fill value"),
            (with(r#",{"name":"crc32c"}"#, ""), "chain of codecs"),
            (
                with("crc32c", "unknown"),
                "member that this process does not understand",
            ),
            (
                "{}".to_owned(),
                "member that this process does not understand",
            ),
        ] {
            assert_eq!(differs(&other), Some(member), "{other}");
        }
        assert_eq!(stored_differs(b"{}", ARRAY.as_bytes()), None);
    }
}
