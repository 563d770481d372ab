//! Stores of zarr-python that only Python can read and write: each request waits for zarr-python's event loop.

use std::io;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator, InvalidByteRangeError};
use zarrs_storage::{
    ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits, store_set_partial_many,
};

type Result<T, E = StorageError> = std::result::Result<T, E>;

/// A store of Python, in an object of the class `zarrs_cuda._asked.Asked`.
#[derive(Debug)]
pub(crate) struct Asked(pub(crate) Py<PyAny>);

impl Asked {
    /// Calls `question` with the store. A thread of zarr-python's event loop must not call this function,
    /// because it would wait for itself.
    fn ask<T>(&self, question: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        match Python::try_attach(|py| question(self.0.bind(py))) {
            Some(answer) => answer.map_err(|error| io::Error::other(error).into()),
            None => Err(StorageError::Other(
                "Python ends, and its stores cannot be asked any more".to_owned(),
            )),
        }
    }

    /// Returns the bytes of `key` at `range`, after a check that the store returned all of them.
    fn part(&self, key: &StoreKey, range: ByteRange) -> Result<MaybeBytes> {
        let (start, length, from_end) = match range {
            ByteRange::FromStart(start, length) => (start, length, false),
            ByteRange::Suffix(length) => (0, Some(length), true),
        };
        let arguments = (key.as_str(), start, length, from_end);
        let got: Option<Vec<u8>> =
            self.ask(|store| store.call_method1("get", arguments)?.extract())?;
        let Some(got) = got else {
            return Ok(None);
        };
        if length.is_some_and(|length| length != got.len() as u64) {
            // A store returns all bytes of a range that exist, so the value ends where the returned bytes
            // end.
            let end = start.saturating_add(got.len() as u64);
            return Err(InvalidByteRangeError::new(range, end).into());
        }
        Ok(Some(got.into()))
    }
}

impl ReadableStorageTraits for Asked {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes> {
        self.part(key, ByteRange::FromStart(0, None))
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>> {
        let mut parts = Vec::new();
        for range in byte_ranges {
            let Some(part) = self.part(key, range)? else {
                return Ok(None);
            };
            parts.push(Ok(part));
        }
        Ok(Some(Box::new(parts.into_iter())))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>> {
        self.ask(|store| store.call_method1("size", (key.as_str(),))?.extract())
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Asked {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        self.ask(|store| {
            let value = PyBytes::new(store.py(), &value);
            store.call_method1("set", (key.as_str(), value)).map(drop)
        })
    }

    fn set_partial_many(&self, key: &StoreKey, parts: OffsetBytesIterator) -> Result<()> {
        store_set_partial_many(self, key, parts)
    }

    fn erase(&self, key: &StoreKey) -> Result<()> {
        self.ask(|store| store.call_method1("erase", (key.as_str(),)).map(drop))
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<()> {
        self.list_prefix(prefix)?
            .iter()
            .try_for_each(|key| self.erase(key))
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

impl ListableStorageTraits for Asked {
    fn list(&self) -> Result<StoreKeys> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys> {
        let mut keys: Vec<String> = self.ask(|store| {
            store
                .call_method1("list_prefix", (prefix.as_str(),))?
                .extract()
        })?;
        keys.sort();
        keys.into_iter()
            .map(|key| Ok(StoreKey::new(key)?))
            .collect()
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes> {
        let below = self.list_prefix(prefix)?;
        let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
        for key in below {
            let rest = key
                .as_str()
                .strip_prefix(prefix.as_str())
                .unwrap_or_default();
            match rest.split_once('/') {
                None => keys.push(key),
                Some((first, _)) => prefixes.push(StorePrefix::new(format!("{prefix}{first}/"))?),
            }
        }
        prefixes.dedup();
        Ok(StoreKeysPrefixes::new(keys, prefixes))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64> {
        let mut sum = 0;
        for key in self.list_prefix(prefix)? {
            sum += self.size_key(&key)?.unwrap_or(0);
        }
        Ok(sum)
    }
}
