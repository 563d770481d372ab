//! The stores from which a call reads the values of an array, and to which it writes them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator, InvalidByteRangeError};
use zarrs_storage::{
    MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey,
    StorePrefix, WritableStorageTraits,
};

use crate::error::Error;
use crate::files::Files;

/// Values, by their keys.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Files(Arc<Files>),
    /// What Python got from its store before the call. Every key that the call needs is there.
    Given(Arc<HashMap<String, Option<Value>>>),
}

/// A value that Python got from its store.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Whole(Bytes),
    /// Parts of it: where each begins, or `None` for one that ends where the value ends.
    Parts(Vec<(Option<u64>, Bytes)>),
}

impl Value {
    fn part(&self, range: ByteRange) -> Result<Bytes, StorageError> {
        let parts = match self {
            Self::Whole(value) => return Ok(value.slice(inside(range, value.len() as u64)?)),
            Self::Parts(parts) => parts,
        };
        let found = parts.iter().find_map(|(start, part)| match (range, start) {
            (ByteRange::Suffix(_), None) => {
                Some(part.slice(inside(range, part.len() as u64).ok()?))
            }
            (ByteRange::FromStart(from, Some(len)), Some(start)) => {
                let range = ByteRange::FromStart(from.checked_sub(*start)?, Some(len));
                Some(part.slice(inside(range, part.len() as u64).ok()?))
            }
            _ => None,
        });
        found.ok_or_else(|| match range {
            // The first part is the index. What is behind another one was asked for with it, and the value
            // ended before.
            ByteRange::FromStart(from, Some(_))
                if parts
                    .iter()
                    .skip(1)
                    .any(|(start, _)| start.is_some_and(|start| start <= from)) =>
            {
                InvalidByteRangeError::new(range, from).into()
            }
            _ => StorageError::Other(format!("{range} was not read before the call")),
        })
    }
}

impl Store {
    /// As [`whole`](Self::whole), in memory that may be changed.
    pub(crate) fn copy(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Self::Files(files) => {
                let value = files.whole(key);
                value.map_err(|error| Error::store("read", key, &error.into()))
            }
            Self::Given(_) => Ok(self.whole(key)?.map(Vec::from)),
        }
    }

    /// Whether there is a value of `key`.
    pub(crate) fn has(&self, key: &str) -> Result<bool, Error> {
        let found = match self {
            Self::Given(values) => given(values, key).map(|value| value.is_some()),
            Self::Files(files) => StoreKey::new(key)
                .map_err(Into::into)
                .and_then(|key| files.size_key(&key))
                .map(|size| size.is_some()),
        };
        found.map_err(|error| Error::store("look for", key, &error))
    }

    /// Whether [`whole`](Self::whole) has all of the value of `key`, if there is one.
    pub(crate) fn has_whole(&self, key: &str) -> bool {
        match self {
            Self::Given(values) => !matches!(values.get(key), Some(Some(Value::Parts(_)))),
            Self::Files(_) => true,
        }
    }

    /// The value of `key`, whole; `None` if there is none.
    pub(crate) fn whole(&self, key: &str) -> Result<Option<Bytes>, Error> {
        let failed = |error: StorageError| Error::store("read", key, &error);
        match self {
            Self::Files(files) => {
                let value = files.whole(key).map_err(|error| failed(error.into()))?;
                Ok(value.map(Bytes::from))
            }
            Self::Given(values) => match given(values, key).map_err(failed)? {
                Some(Value::Whole(value)) => Ok(Some(value)),
                Some(Value::Parts(_)) => {
                    Err(Error::Other(format!("only parts of {key} were read")))
                }
                None => Ok(None),
            },
        }
    }
}

/// One value, in memory: what a shard is while a part of it is changed. Its key does not matter.
#[derive(Debug, Default)]
pub(crate) struct InMemory(Mutex<Option<Vec<u8>>>);

impl InMemory {
    pub(crate) fn new(value: Vec<u8>) -> Self {
        Self(Mutex::new(Some(value)))
    }

    pub(crate) fn take(&self) -> Option<Vec<u8>> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadableStorageTraits for InMemory {
    fn get_partial_many<'a>(
        &'a self,
        _key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        if self.lock().is_none() {
            return Ok(None);
        }
        Ok(Some(Box::new(byte_ranges.map(move |range| {
            let value = self.lock();
            let value = value.as_deref().unwrap_or_default();
            Ok(Bytes::copy_from_slice(
                &value[inside(range, value.len() as u64)?],
            ))
        }))))
    }

    fn size_key(&self, _key: &StoreKey) -> Result<Option<u64>, StorageError> {
        Ok(self.lock().as_ref().map(|value| value.len() as u64))
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for InMemory {
    fn set(&self, _key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        *self.lock() = Some(value.into());
        Ok(())
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        let mut value = self.lock();
        let value = value.get_or_insert_default();
        for (offset, part) in offset_values {
            let end = usize::try_from(offset)
                .ok()
                .and_then(|at| at.checked_add(part.len()));
            let end = end.ok_or_else(|| {
                StorageError::Other(format!("{key} would have more bytes than there is memory"))
            })?;
            if end > value.len() {
                value.resize(end, 0);
            }
            value[end - part.len()..end].copy_from_slice(&part);
        }
        Ok(())
    }

    fn erase(&self, _key: &StoreKey) -> Result<(), StorageError> {
        self.take();
        Ok(())
    }

    fn erase_prefix(&self, _prefix: &StorePrefix) -> Result<(), StorageError> {
        self.take();
        Ok(())
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}

/// The bytes that `range` means of a value of `size` bytes.
pub(crate) fn inside(range: ByteRange, size: u64) -> Result<Range<usize>, StorageError> {
    let ends = match range {
        ByteRange::FromStart(start, None) => Some((start, size)),
        ByteRange::FromStart(start, Some(len)) => start.checked_add(len).map(|end| (start, end)),
        ByteRange::Suffix(len) => size.checked_sub(len).map(|start| (start, size)),
    };
    ends.filter(|(start, end)| start <= end && *end <= size)
        .and_then(|(start, end)| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?))
        .ok_or_else(|| {
            StorageError::Other(format!("{range} is not in the {size} bytes of the value"))
        })
}

fn given(
    values: &HashMap<String, Option<Value>>,
    key: &str,
) -> Result<Option<Value>, StorageError> {
    let value = values.get(key).ok_or_else(|| {
        StorageError::Other(format!("{key} was not read from the store before the call"))
    })?;
    Ok(value.clone())
}

impl ReadableStorageTraits for Store {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        match self {
            Self::Files(files) => files.get_partial_many(key, byte_ranges),
            Self::Given(values) => {
                let Some(value) = given(values, key.as_str())? else {
                    return Ok(None);
                };
                Ok(Some(Box::new(
                    byte_ranges.map(move |range| value.part(range)),
                )))
            }
        }
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        match self {
            Self::Files(files) => files.size_key(key),
            Self::Given(values) => match given(values, key.as_str())? {
                Some(Value::Whole(value)) => Ok(Some(value.len() as u64)),
                Some(Value::Parts(_)) => Err(StorageError::UnknownKeySize(key.clone())),
                None => Ok(None),
            },
        }
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}
