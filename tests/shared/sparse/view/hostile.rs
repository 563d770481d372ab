//! Frames and shards that other programs wrote entirely or in part.

use std::sync::Arc;

use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, ListableStorageTraits, ReadableStorageTraits, ReadableWritableListableStorageTraits,
    StoreKey, StorePrefix, WritableStorageTraits,
};

use super::stores::{Layout, files};

const SHARD: &str = "group/array/c/0";

fn key(key: &str) -> StoreKey {
    StoreKey::new(key).unwrap()
}

fn chunk(at: u8) -> StoreKey {
    key(&format!("group/array/c/{at}"))
}

/// A shard of four subchunks. The last one is in the frame.
fn prepare(store: &Arc<dyn ReadableWritableListableStorageTraits>) -> Layout {
    let layout = Layout::new(&[8], &[8], &[2]);
    layout.create(&**store);
    let sparse = layout.open(store);
    for at in 0..3_u8 {
        sparse.set(&chunk(at), vec![at + 1; 2].into()).unwrap();
    }
    sparse.consolidate(&[0]).unwrap().unwrap();
    sparse.set(&chunk(3), vec![4; 2].into()).unwrap();
    layout
}

fn stores() -> Vec<(
    Option<tempfile::TempDir>,
    Arc<dyn ReadableWritableListableStorageTraits>,
)> {
    let (folder, store) = files();
    vec![(None, Arc::new(MemoryStore::new())), (Some(folder), store)]
}

fn frame(store: &dyn ReadableWritableListableStorageTraits) -> Vec<StoreKey> {
    let prefix = StorePrefix::new(format!("{SHARD}.frame/")).unwrap();
    store.list_prefix(&prefix).unwrap()
}

#[test]
fn objects_that_are_not_whole_are_absent() {
    for (_folder, store) in stores() {
        let layout = prepare(&store);
        let last = chunk(3);
        let sparse = layout.open(&store);
        let [object] = &frame(&*store)[..] else {
            panic!("one object");
        };
        let whole = store.get(object).unwrap().unwrap();
        for len in 0..whole.len() {
            store.set(object, whole.slice(..len)).unwrap();
            assert_eq!(sparse.get(&last).unwrap(), None);
            assert_eq!(
                sparse
                    .list_prefix(&StorePrefix::new("group/array/c/").unwrap())
                    .unwrap()
                    .len(),
                3
            );
        }
        // The torn version is neither deleted nor packed.
        let done = sparse.consolidate(&[0]).unwrap().unwrap();
        assert_eq!((done.subchunks, done.invalid), (0, 1));
        sparse.set(&last, vec![5; 2].into()).unwrap();
        assert_eq!(frame(&*store).len(), 2);
        assert_eq!(sparse.get(&last).unwrap().unwrap(), vec![5; 2]);
        let done = sparse.consolidate(&[0]).unwrap().unwrap();
        assert_eq!((done.subchunks, done.versions, done.invalid), (1, 1, 1));
        assert_eq!(frame(&*store), std::slice::from_ref(object));
        assert_eq!(sparse.get(&last).unwrap().unwrap(), vec![5; 2]);
        // Its slow writer completes it.
        store.set(object, whole.clone()).unwrap();
        assert_eq!(sparse.get(&last).unwrap().unwrap(), vec![4; 2]);
        assert_eq!(sparse.discard_invalid(&[0]).unwrap(), 0);
        assert_eq!(frame(&*store), std::slice::from_ref(object));
        // Or is dead.
        store.set(object, whole.slice(..1)).unwrap();
        assert_eq!(sparse.discard_invalid(&[0]).unwrap(), 1);
        assert!(frame(&*store).is_empty());
        assert_eq!(sparse.get(&last).unwrap().unwrap(), vec![5; 2]);
        assert_eq!(sparse.discard_invalid(&[9]).unwrap(), 0);
        sparse.discard_invalid(&[0, 0]).unwrap_err();
    }
}

#[test]
fn names_that_are_none() {
    for (_folder, store) in stores() {
        let layout = prepare(&store);
        let whole = store.get(&frame(&*store)[0]).unwrap().unwrap();
        for name in [
            "0000000A.0000000000000001.A.chunk",
            "00000000.1.A.chunk",
            "00000000.0000000000000009.A.chunk.tmp",
            "notes.txt",
        ] {
            store
                .set(&key(&format!("{SHARD}.frame/{name}")), whole.clone())
                .unwrap();
        }
        // A lock file, and the temporary of a process that replaces the shard.
        let owner = zarrs_cuda::storage::Owner::this();
        for name in [format!("{SHARD}.__lock"), format!("{SHARD}.{owner}-7.tmp")] {
            store.set(&key(&name), whole.clone()).unwrap();
        }
        let sparse = layout.open(&store);
        let listed = sparse.list_prefix(&StorePrefix::new("group/array/c/").unwrap());
        assert_eq!(listed.unwrap(), [0, 1, 2, 3].map(chunk));
        for at in 0..4_u8 {
            let value = sparse.get(&chunk(at)).unwrap().unwrap();
            assert_eq!(value, vec![at + 1; 2]);
        }
        sparse.consolidate_all(&|_| {}).unwrap();
        assert_eq!(frame(&*store).len(), 4);
        let greatest = format!("{SHARD}.frame/00000000.FFFFFFFFFFFFFFFF.A.chunk");
        store.set(&key(&greatest), whole).unwrap();
        let error = sparse.set(&chunk(0), vec![1].into()).unwrap_err();
        assert!(error.to_string().contains("greatest number"), "{error}");
    }
}

/// zarrs' store panics when it lists such names.
#[cfg(target_os = "linux")]
#[test]
fn names_that_are_not_utf_8_are_errors() {
    use std::os::unix::ffi::OsStrExt;

    let (folder, store) = files();
    let store: Arc<dyn ReadableWritableListableStorageTraits> = store;
    let sparse = prepare(&store).open(&store);
    let name = std::ffi::OsStr::from_bytes(b"0000000\xff");
    let frame = folder.path().join(format!("{SHARD}.frame"));
    std::fs::write(frame.join(name), "").unwrap();
    let error = sparse.get(&chunk(0)).unwrap_err();
    assert!(error.to_string().contains("not UTF-8"), "{error}");
    std::fs::remove_file(frame.join(name)).unwrap();
    assert_eq!(sparse.get(&chunk(0)).unwrap().unwrap(), vec![1; 2]);
}

#[test]
fn corrupted_shards_are_errors() {
    for (_folder, store) in stores() {
        let layout = prepare(&store);
        let whole = store.get(&key(SHARD)).unwrap().unwrap();
        let sparse = layout.open(&store);
        let check = |object: Bytes, what: &str| {
            store.set(&key(SHARD), object.clone()).unwrap();
            // The subchunk in the frame is readable.
            assert_eq!(sparse.get(&chunk(3)).unwrap().unwrap(), vec![4; 2]);
            let read = sparse.get(&chunk(0));
            assert!(read.is_err(), "{what}");
            assert!(sparse.get_partial(&chunk(0), ByteRange::Suffix(1)).is_err());
            let consolidated = sparse.consolidate(&[0]);
            let error = consolidated.unwrap_err().to_string();
            assert!(error.contains(SHARD), "{error}");
            assert_eq!(frame(&*store).len(), 1);
            assert_eq!(store.get(&key(SHARD)).unwrap().unwrap(), object);
        };
        for len in 0..whole.len() {
            check(whole.slice(..len), &format!("{len} bytes"));
        }
        for at in 6..whole.len() {
            let mut flipped = whole.to_vec();
            flipped[at] ^= 1;
            check(flipped.into(), &format!("byte {at}"));
        }
        // Valid checksums, but extents outside of the shard.
        for [offset, len] in [[u64::MAX - 1, 4], [0, 1 << 60], [0, 1 << 30], [5, u64::MAX]] {
            let mut object = whole.to_vec();
            let index = object.len() - 68;
            object[index..index + 8].copy_from_slice(&offset.to_le_bytes());
            object[index + 8..index + 16].copy_from_slice(&len.to_le_bytes());
            let checksum = crc32c::crc32c(&object[index..index + 64]);
            object[index + 64..].copy_from_slice(&checksum.to_le_bytes());
            check(object.into(), &format!("{offset} {len}"));
        }
        // Extents that all cover the whole shard.
        let mut object = [&vec![7; 1000], &whole[whole.len() - 68..]].concat();
        for entry in 0..4 {
            let at = 1000 + 16 * entry;
            object[at..at + 8].copy_from_slice(&0_u64.to_le_bytes());
            object[at + 8..at + 16].copy_from_slice(&1000_u64.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&object[1000..1064]);
        object[1064..].copy_from_slice(&checksum.to_le_bytes());
        store.set(&key(SHARD), object.into()).unwrap();
        let error = sparse.consolidate(&[0]).unwrap_err().to_string();
        assert!(error.contains("more than"), "{error}");
        store.set(&key(SHARD), whole).unwrap();
        sparse.consolidate(&[0]).unwrap().unwrap();
        assert_eq!(sparse.get(&chunk(0)).unwrap().unwrap(), vec![1; 2]);
    }
}
