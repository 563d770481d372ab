//! Shards that are not there are named, and a call uses as many threads as it may.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    MaybeBytesIterator, ReadableStorageTraits, ReadableWritableListableStorageTraits, StorageError,
    StoreKey,
};
use zarrs_cuda::reader::{ArrayReader, Output};
use zarrs_cuda::storage::SparseShardStore;

/// An array of 4 × 4 shards with 2 × 2 subchunks of 4 × 4 elements, none of which is stored.
fn array<S: ReadableWritableListableStorageTraits + 'static>(store: Arc<S>) -> Array<S> {
    let mut builder = ArrayBuilder::new(vec![32, 32], vec![8, 8], data_type::uint16(), 7_u16);
    builder.subchunk_shape(vec![4, 4]);
    let array = builder.build(store, "/").unwrap();
    array.store_metadata().unwrap();
    array
}

fn absent<S: ReadableStorageTraits + 'static>(
    reader: &ArrayReader<S>,
    rows: std::ops::Range<u64>,
) -> Vec<String> {
    let subset = ArraySubset::from([rows.clone(), 0..32]);
    let mut bytes = vec![0; 2 * 32 * usize::try_from(rows.end - rows.start).unwrap()];
    let report = reader
        .read_bytes_into(&subset, Output::contiguous(&mut bytes))
        .unwrap();
    let mut keys: Vec<String> = report.absent.iter().map(ToString::to_string).collect();
    keys.sort();
    keys
}

#[test]
fn shards_that_are_not_there() {
    fn check<S: ReadableWritableListableStorageTraits + 'static>(
        array: &Array<S>,
        reader: &ArrayReader<S>,
    ) {
        assert_eq!(absent(reader, 0..8), ["c/0/0", "c/0/1", "c/0/2", "c/0/3"]);
        array.store_chunk(&[0, 2], vec![1_u16; 64]).unwrap();
        array
            .store_chunk_subset(&[0, 3], &[0..1, 0..1], vec![1_u16])
            .unwrap();
        // With an index that is kept, too.
        for _ in 0..2 {
            assert_eq!(absent(reader, 4..5), ["c/0/0", "c/0/1"]);
        }
        array.erase_chunk(&[0, 2]).unwrap();
        assert_eq!(absent(reader, 0..1), ["c/0/0", "c/0/1", "c/0/2"]);
    }
    let memory = array(Arc::new(MemoryStore::new()));
    check(&memory, &ArrayReader::builder(&memory).build().unwrap());
    let folder = TempDir::new().unwrap();
    let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let files = array(store.clone());
    let reader = ArrayReader::builder(&files).on_filesystem(&store);
    check(&files, &reader.build().unwrap());
}

#[test]
fn a_shard_with_a_frame_is_there() {
    let store = Arc::new(MemoryStore::new());
    array(store.clone());
    let sparse = Arc::new(SparseShardStore::open(store, "/").unwrap());
    let reader = sparse.reader().unwrap().build().unwrap();
    let subchunks = Array::open(sparse.clone(), "/").unwrap();
    subchunks.store_chunk(&[0, 1], vec![1_u16; 16]).unwrap();
    // Of other subchunks than the one in the frame, too.
    assert_eq!(absent(&reader, 4..8), ["c/0/1", "c/0/2", "c/0/3"]);
    sparse.consolidate(&[0, 0]).unwrap();
    assert_eq!(absent(&reader, 4..8), ["c/0/1", "c/0/2", "c/0/3"]);
}

/// A store that notes which threads ask it.
struct Noting(MemoryStore, Mutex<HashSet<ThreadId>>);

impl ReadableStorageTraits for Noting {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.1.lock().unwrap().insert(std::thread::current().id());
        std::thread::sleep(std::time::Duration::from_millis(2));
        self.0.get_partial_many(key, ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.0.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

#[test]
fn a_call_uses_as_many_threads_as_it_may() {
    for (threads, most) in [(Some(1), 1), (Some(2), 2), (None, 16)] {
        let store = Arc::new(Noting(MemoryStore::new(), Mutex::default()));
        let array = array(Arc::new(MemoryStore::new())).with_storage(store.clone());
        let mut builder = ArrayReader::builder(&array);
        if let Some(threads) = threads {
            builder = builder.with_threads(threads);
        }
        let elements: Vec<u16> = builder.build().unwrap().read(&array.subset_all()).unwrap();
        assert!(elements.iter().all(|element| *element == 7));
        let used = store.1.lock().unwrap().len();
        assert!(used <= most, "{used} threads of {most}");
        assert!(threads.is_some() || used > 1, "the limit is the default");
    }
}
