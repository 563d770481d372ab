//! What an array's values are read from and written to during a call.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs_storage::{MaybeBytesIterator, ReadableStorageTraits, StorageError, StoreKey};

use crate::error::Error;
use crate::files::Files;

/// Values, by their keys.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Files(Arc<Files>),
    /// What Python got from its store before the call. Every key that the call needs is there.
    Given(Arc<HashMap<String, Option<Bytes>>>),
}

impl Store {
    /// The value of `key`, whole; `None` if there is none.
    pub(crate) fn whole(&self, key: &str) -> Result<Option<Bytes>, Error> {
        match self {
            Self::Files(files) => {
                let value = files.whole(key);
                let value = value.map_err(|error| Error::store("read", key, &error.into()))?;
                Ok(value.map(Bytes::from))
            }
            Self::Given(values) => {
                given(values, key).map_err(|error| Error::store("read", key, &error))
            }
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
    values: &HashMap<String, Option<Bytes>>,
    key: &str,
) -> Result<Option<Bytes>, StorageError> {
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
                Ok(Some(Box::new(byte_ranges.map(move |range| {
                    Ok(value.slice(inside(range, value.len() as u64)?))
                }))))
            }
        }
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        match self {
            Self::Files(files) => files.size_key(key),
            Self::Given(values) => {
                let value = given(values, key.as_str())?;
                Ok(value.map(|value| value.len() as u64))
            }
        }
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}
