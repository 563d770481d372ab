//! A store that reads metadata as zarr-python does, even where JSON or zarrs would refuse them.
//!
//! The stored metadata do not change. [`Lenient::repairs`] returns the differences between the stored
//! metadata and those that were read, so that a subcommand can report them, or refuse.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    Bytes, MaybeBytes, MaybeBytesIterator, ReadableStorageTraits, StorageError, StoreKey,
    StorePrefix,
};

use super::Store;
use super::fill_value::as_zarrs_reads;
use super::forward::{forward_listing, forward_writes};
use super::json::{Repair, plain};
use crate::extensions::as_simple_name;

/// The names of files of metadata: the last parts of their keys.
const METADATA: [&str; 4] = ["zarr.json", ".zarray", ".zgroup", ".zattrs"];

/// A store over another one, which repairs metadata when it reads them.
pub(super) struct Lenient {
    store: Arc<Store>,
    repairs: Mutex<BTreeMap<StoreKey, Vec<Repair>>>,
}

impl Lenient {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            repairs: Mutex::default(),
        }
    }

    /// Returns the repairs of all metadata that were read so far, by their keys.
    pub(super) fn repairs(&self) -> BTreeMap<StoreKey, Vec<Repair>> {
        let repairs = self.repairs.lock();
        repairs.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether the metadata of an array of Zarr v2 were read whose fill value is `null`.
    pub(super) fn has_no_fill_value(&self) -> bool {
        let repairs = self.repairs();
        let mut repairs = repairs.values().flatten();
        repairs.any(|repair| matches!(repair, Repair::FillValue { stored, .. } if stored == "null"))
    }

    /// Returns the value of the key of metadata `key`, repaired. Returns a value that cannot be repaired
    /// unchanged, so that zarrs refuses it.
    fn repaired(&self, key: &StoreKey, stored: Bytes) -> Bytes {
        let name = key.as_str().rsplit('/').next().unwrap_or_default();
        if !METADATA.contains(&name) {
            return stored;
        }
        let Ok(text) = str::from_utf8(&stored) else {
            return stored;
        };
        let read = plain(text);
        let (mut text, mut repairs) = (read.text, read.repairs);
        if name == ".zarray"
            && let Some((changed, repair)) = with_fill_value(&text)
        {
            text = changed.into();
            repairs.push(repair);
        }
        if name == ".zarray"
            && let Some(changed) = without_order(&text)
        {
            text = changed.into();
        }
        if name == ".zarray"
            && let Some(changed) = with_simple_name(&text)
        {
            text = changed.into();
        }
        if !repairs.is_empty() {
            let mut all = self.repairs.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(key.clone(), repairs);
        }
        Bytes::from(text.into_owned())
    }
}

/// Returns the metadata of an array of Zarr v2 that has no dimensions and the order F, with the order C;
/// `None` for other arrays. zarrs would make a transposition of zero dimensions, which has undefined
/// behaviour.
fn without_order(text: &str) -> Option<String> {
    let mut metadata: Value = serde_json::from_str(text).ok()?; // zarrs reports the error
    let has_none = metadata.get("shape")?.as_array()?.is_empty();
    let order = metadata.get_mut("order")?;
    (has_none && *order == "F").then(|| *order = "C".into())?;
    Some(metadata.to_string())
}

/// Returns the metadata of an array of Zarr v2 whose data type is a structure, with a name for that data type;
/// `None` for other arrays. zarrs has no data types of Zarr v2 without a name.
fn with_simple_name(text: &str) -> Option<String> {
    let mut metadata: Value = serde_json::from_str(text).ok()?; // zarrs reports the error
    let dtype = metadata.get_mut("dtype")?;
    *dtype = as_simple_name(dtype)?.into();
    Some(metadata.to_string())
}

/// Returns the metadata of an array of Zarr v2 with the fill value that zarrs reads; `None` if the stored one
/// is right.
fn with_fill_value(text: &str) -> Option<(String, Repair)> {
    let mut metadata: Value = serde_json::from_str(text).ok()?; // zarrs reports the error
    let dtype = metadata.get("dtype")?.as_str()?;
    let stored = metadata.get("fill_value").unwrap_or(&Value::Null);
    let filters = metadata.get("filters").and_then(Value::as_array);
    let has_bytes =
        filters.is_some_and(|all| all.iter().any(|filter| filter["id"] == "vlen-bytes"));
    let read = if has_bytes && *stored == 0 {
        json!("") // numcodecs reads null as an empty byte string, and not as the byte 0
    } else {
        as_zarrs_reads(dtype, stored)?
    };
    let repair = Repair::FillValue {
        stored: stored.to_string(),
        read: read.to_string(),
    };
    metadata["fill_value"] = read;
    Some((metadata.to_string(), repair))
}

impl ReadableStorageTraits for Lenient {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        let stored = self.store.get(key)?;
        Ok(stored.map(|stored| self.repaired(key, stored)))
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.store.get_partial_many(key, byte_ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.store.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        self.store.supports_get_partial()
    }
}

forward_writes!(Lenient, store);
forward_listing!(Lenient, store);

fn is_not_json(repair: &Repair) -> bool {
    matches!(repair, Repair::ByteOrderMark | Repair::Quoted { .. })
}

/// Returns a line for people for each repair of metadata that are no JSON.
pub(super) fn not_json(repairs: &BTreeMap<StoreKey, Vec<Repair>>) -> Vec<String> {
    let mut repairs = repairs.clone();
    for of_key in repairs.values_mut() {
        of_key.retain(is_not_json);
    }
    lines(&repairs)
}

/// Returns a line for people for each repair that makes the metadata `bytes` in the file `name` JSON.
pub fn repairs_of(name: &str, bytes: &[u8]) -> Vec<String> {
    let repairs = str::from_utf8(bytes).map_or_else(|_| Vec::new(), |text| plain(text).repairs);
    let repairs = repairs.iter().filter(|repair| is_not_json(repair));
    repairs.map(|repair| line(name, repair)).collect()
}

/// Returns a line for people for each repair: the file, the member, and the value.
pub(super) fn lines(repairs: &BTreeMap<StoreKey, Vec<Repair>>) -> Vec<String> {
    let mut lines = Vec::new();
    for (key, repairs) in repairs {
        lines.extend(repairs.iter().map(|repair| line(key.as_str(), repair)));
    }
    lines
}

fn line(key: &str, repair: &Repair) -> String {
    match repair {
        Repair::ByteOrderMark => format!("{key} begins with a byte order mark"),
        Repair::Quoted { member, number } => {
            format!(
                "`{member}` in {key} is {number}, which JSON does not have, and is read as a string"
            )
        }
        Repair::Long { member, number } => {
            format!(
                "`{member}` in {key} is {number}, which is read as a double: it has more than 64 bits"
            )
        }
        Repair::FillValue { stored, read } => {
            format!("`fill_value` in {key} is {stored}, and is read as {read}, as by numpy")
        }
    }
}

#[cfg(test)]
mod tests {
    use zarrs::storage::store::MemoryStore;
    use zarrs_storage::WritableStorageTraits;

    use super::*;

    fn key(text: &str) -> StoreKey {
        StoreKey::new(text).unwrap()
    }

    #[test]
    fn metadata_alone_are_repaired() {
        let inner = Arc::new(MemoryStore::new());
        let text = r#"{"attributes": {"a": NaN}}"#;
        for name in ["zarr.json", "b/zarr.json", "c/0"] {
            inner.set(&key(name), text.into()).unwrap();
        }
        let store = Lenient::new(inner.clone());
        let get = |name| store.get(&key(name)).unwrap().unwrap();
        assert_eq!(get("c/0"), text);
        assert!(store.repairs().is_empty());
        let quoted = r#"{"attributes": {"a": "NaN"}}"#;
        assert_eq!(
            (get("zarr.json"), get("b/zarr.json")),
            (quoted.into(), quoted.into())
        );
        assert_eq!(inner.get(&key("zarr.json")).unwrap().unwrap(), text);
        assert_eq!(
            lines(&store.repairs()),
            [
                "`attributes.a` in b/zarr.json is NaN, which JSON does not have, and is read as a string",
                "`attributes.a` in zarr.json is NaN, which JSON does not have, and is read as a string",
            ]
        );
    }

    #[test]
    fn fill_values_of_v2_are_repaired() {
        let inner = Arc::new(MemoryStore::new());
        let text = r#"{"dtype": "<i4", "fill_value": "7"}"#;
        inner.set(&key(".zarray"), text.into()).unwrap();
        let store = Lenient::new(inner);
        let read = store.get(&key(".zarray")).unwrap().unwrap();
        assert_eq!(read, r#"{"dtype":"<i4","fill_value":7}"#);
        assert_eq!(
            lines(&store.repairs()),
            ["`fill_value` in .zarray is \"7\", and is read as 7, as by numpy"]
        );
    }
}
