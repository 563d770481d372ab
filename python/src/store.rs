//! The stores from which a call reads the values of an array, and to which it writes them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs_storage::{MaybeBytesIterator, ReadableStorageTraits, StorageError, StoreKey};

use crate::change::Stored;
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
        found.ok_or_else(|| StorageError::Other(format!("{range} was not read before the call")))
    }
}

impl Store {
    /// The value of `key`, to be changed in part; `None` if there is none.
    pub(crate) fn stored(&self, key: &str) -> Result<Option<Stored>, Error> {
        match self {
            Self::Files(files) => {
                let opened = files.open_sized(key);
                let opened = opened.map_err(|error| Error::store("read", key, &error.into()))?;
                Ok(opened.map(|(file, size)| Stored::File(file, size)))
            }
            Self::Given(_) => Ok(self.whole(key)?.map(Stored::Bytes)),
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
