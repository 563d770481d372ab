//! Futures that are dropped at any await: each shard is old or new, and its lock is free.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::store::AsyncMemoryStore;
use zarrs::storage::{
    AsyncListableStorageTraits, AsyncMaybeBytesIterator, AsyncReadableStorageTraits,
    AsyncWritableStorageTraits, Bytes, MaybeBytes, OffsetBytesIterator, StorageError, StoreKey,
    StoreKeys, StoreKeysPrefixes, StorePrefix,
};
use zarrs_cuda::writer::{BoxWriter, ShardUpdate};

/// A store whose calls are pending once before they do anything, and once afterwards.
#[derive(Default)]
pub(crate) struct Slow(AsyncMemoryStore);

async fn pause() {
    let mut is_first = true;
    std::future::poll_fn(|context| {
        if std::mem::take(&mut is_first) {
            context.waker().wake_by_ref();
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
}

async fn slowly<T>(call: impl Future<Output = T>) -> T {
    pause().await;
    let result = call.await;
    pause().await;
    result
}

#[async_trait::async_trait]
impl AsyncReadableStorageTraits for Slow {
    async fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        slowly(self.0.get(key)).await
    }

    async fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<AsyncMaybeBytesIterator<'a>, StorageError> {
        slowly(self.0.get_partial_many(key, byte_ranges)).await
    }

    async fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        slowly(self.0.size_key(key)).await
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

#[async_trait::async_trait]
impl AsyncWritableStorageTraits for Slow {
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        slowly(self.0.set(key, value)).await
    }

    async fn set_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator<'a>,
    ) -> Result<(), StorageError> {
        slowly(self.0.set_partial_many(key, offset_values)).await
    }

    async fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        slowly(self.0.erase(key)).await
    }

    async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        slowly(self.0.erase_prefix(prefix)).await
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}

#[async_trait::async_trait]
impl AsyncListableStorageTraits for Slow {
    async fn list(&self) -> Result<StoreKeys, StorageError> {
        slowly(self.0.list()).await
    }

    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        slowly(self.0.list_prefix(prefix)).await
    }

    async fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        slowly(self.0.list_dir(prefix)).await
    }

    async fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        slowly(self.0.size_prefix(prefix)).await
    }
}

fn array(store: &Arc<Slow>) -> Array<Slow> {
    let mut builder = ArrayBuilder::new(vec![8, 8], vec![4, 4], data_type::uint16(), 0_u16);
    builder.subchunk_shape(vec![2, 2]);
    builder.build(store.clone(), "/a").unwrap()
}

/// Polls `future` so many times. Returns its value if it was ready.
fn polled<T>(future: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..times {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
    }
    None
}

fn end<T>(future: impl Future<Output = T>) -> T {
    polled(future, usize::MAX).unwrap()
}

#[test]
fn dropped_at_any_await() {
    let mut awaits = 0;
    // All shards, of which one is covered.
    let elements: Vec<u16> = (0..64).map(|n| n + 100).collect();
    let (rows, columns) = (0..8_u64, 0..8_u64);
    for times in 0.. {
        let store = Arc::new(Slow::default());
        let array = array(&store);
        end(array.async_store_metadata()).unwrap();
        let writer = BoxWriter::builder(&array).with_requests(2).build().unwrap();
        end(writer.async_write(&[0..8, 0..8], &[1_u16; 64])).unwrap();
        let new = &elements[..56];
        let part = [rows.clone(), columns.start..7];
        let written = polled(writer.async_write(&part, new), times);
        let chunk =
            |indices: [u64; 2]| -> Vec<u16> { end(array.async_retrieve_chunk(&indices)).unwrap() };
        let shards = || [[0, 0], [0, 1], [1, 0], [1, 1]].map(chunk);
        let now = shards();
        // The locks of dropped futures are free.
        end(writer.async_write(&part, new)).unwrap();
        let complete = shards();
        for (now, complete) in now.iter().zip(&complete) {
            assert!(
                *now == [1; 16] || now == complete,
                "after {times} polls: {now:?}"
            );
        }
        if written.is_some() {
            assert_eq!(now, complete);
            break;
        }
        awaits += 1;
    }
    assert!(awaits > 10, "{awaits} awaits");
}

/// Subchunks that are stored beside shards are old or new, each for itself.
#[test]
fn dropped_while_subchunks_are_stored() {
    for times in 0..200 {
        let store = Arc::new(Slow::default());
        let array = array(&store);
        end(array.async_store_metadata()).unwrap();
        let writer = BoxWriter::builder(&array).with_update(ShardUpdate::Shared);
        let writer = writer.build().unwrap();
        let written = polled(writer.async_write(&[0..8, 0..8], &[2_u16; 64]), times);
        let sparse = end(zarrs_cuda::storage::SparseShardStore::async_open(
            store, "/a",
        ))
        .unwrap();
        let reader = end(sparse.async_reader()).unwrap().build().unwrap();
        let found: Vec<u16> = end(reader.async_read(&[0..8, 0..8])).unwrap();
        for (number, element) in found.iter().enumerate() {
            let first = found[number / 16 * 16 + number % 8 / 2 * 2];
            assert!(
                *element == first && [0, 2].contains(element),
                "after {times} polls"
            );
        }
        if written.is_some() {
            assert!(found.iter().all(|element| *element == 2));
            return;
        }
    }
    panic!("200 polls are too few");
}
