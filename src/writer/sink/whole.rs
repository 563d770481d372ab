//! Stores shards by one `set` each.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use zarrs::array::Array;
use zarrs_storage::{
    StorageError, StorageHandle, StoreKey, WritableStorage, WritableStorageTraits,
};

use super::ShardSink;

/// Stores shards in the array's own storage, through its storage transformers, each by one `set`. The store
/// decides whether a reader can see a part of a shard.
pub(crate) struct WholeSink {
    storage: WritableStorage,
}

impl WholeSink {
    /// Makes a sink for the shards of `array`.
    pub(crate) fn of<T>(array: &Array<T>) -> Result<Self, StorageError>
    where
        T: ?Sized + WritableStorageTraits + 'static,
    {
        let storage = Arc::new(StorageHandle::new(array.storage()));
        let storage = array
            .storage_transformers()
            .create_writable_transformer(storage)?;
        Ok(Self { storage })
    }
}

impl fmt::Debug for WholeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WholeSink").finish_non_exhaustive()
    }
}

fn does_not_grow(key: &StoreKey) -> StorageError {
    StorageError::Unsupported(format!(
        "cannot write pieces of {key}: shards are stored whole here"
    ))
}

impl ShardSink for WholeSink {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.storage.set(key, value)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.storage.erase(key)
    }

    fn write(
        &self,
        key: &StoreKey,
        _pieces: Vec<(u64, Bytes)>,
        _first: bool,
    ) -> Result<(), StorageError> {
        Err(does_not_grow(key))
    }

    fn complete(&self, key: &StoreKey) -> Result<(), StorageError> {
        Err(does_not_grow(key))
    }

    fn discard(&self, _key: &StoreKey) -> Result<(), StorageError> {
        // A shard that is stored whole leaves no pieces.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use zarrs::array::{ArrayBuilder, data_type};

    use super::super::super::interrupted::{files, interrupted, key, put, value};
    use super::*;

    #[test]
    fn shards_are_stored_by_one_call() {
        let (_directory, store) = files();
        let array = ArrayBuilder::new(vec![4], vec![2], data_type::uint8(), 0u8)
            .build(store.clone(), "/a")
            .unwrap();
        let sink = WholeSink::of(&array).unwrap();
        store.work();
        let (zero, one) = (key("a/c/0"), key("a/c/1"));
        sink.set(&zero, Bytes::from_static(b"whole")).unwrap();
        sink.erase(&one).unwrap();
        assert_eq!(store.requests().len(), 2);
        assert_eq!(value(&store, "a/c/0").unwrap(), b"whole");
        assert!(sink.write(&one, Vec::new(), true).is_err());
        assert!(sink.complete(&one).is_err());
        sink.discard(&zero).unwrap();
        assert_eq!(store.requests().len(), 2);
    }

    #[test]
    fn interrupted_anywhere() {
        let end = interrupted(
            |store| put(store, "a/c/1", "before"),
            |store| {
                let array = ArrayBuilder::new(vec![4], vec![2], data_type::uint8(), 0u8)
                    .build(store.clone(), "/a")
                    .unwrap();
                WholeSink::of(&array).unwrap()
            },
            &[
                &|sink: &WholeSink| sink.set(&key("a/c/0"), Bytes::from_static(b"whole")),
                &|sink: &WholeSink| sink.erase(&key("a/c/1")),
            ],
            |_| {},
        );
        assert_eq!(end["a/c/0"], b"whole");
        assert_eq!(end.len(), 1);
    }
}
