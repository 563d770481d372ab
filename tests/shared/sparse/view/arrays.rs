//! zarrs' arrays over the adapter, and directly over the store.

use std::sync::Arc;

use serde_json::json;
use zarrs::array::{Array, ArraySubset};
use zarrs::storage::storage_adapter::sync_to_async::SyncToAsyncStorageAdapter;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ListableStorageTraits, ReadableStorageTraits, StorePrefix};
use zarrs_codec::CodecMetadataOptions;
use zarrs_cuda::storage::SparseShardStore;

use super::stores::{Here, Layout, files};

fn layout() -> Layout {
    let mut layout = Layout::new(&[10, 9], &[4, 6], &[2, 3]);
    layout.codecs = json!([
        { "name": "bytes", "configuration": { "endian": "little" } },
        { "name": "zstd", "configuration": { "level": 1, "checksum": false } },
    ]);
    layout
}

/// Subsets that are not aligned to subchunks, with elements other than the fill value.
fn subsets() -> Vec<(ArraySubset, Vec<u8>)> {
    let of = |rows: std::ops::Range<u64>, columns: std::ops::Range<u64>, first: u8| {
        let subset = ArraySubset::new_with_ranges(&[rows, columns]);
        let elements = (0..subset.num_elements()).map(|i| first + u8::try_from(i).unwrap());
        let elements = elements.collect();
        (subset, elements)
    };
    vec![
        of(0..10, 0..9, 1),
        of(1..6, 2..8, 100),
        of(9..10, 0..9, 200),
        of(3..4, 3..4, 255),
    ]
}

fn expected() -> Vec<u8> {
    let mut all = vec![0; 90];
    for (subset, elements) in subsets() {
        let (rows, columns) = (subset.to_ranges()[0].clone(), subset.to_ranges()[1].clone());
        let places = rows.flat_map(|row| columns.clone().map(move |column| row * 9 + column));
        for (place, element) in places.zip(elements) {
            all[usize::try_from(place).unwrap()] = element;
        }
    }
    all
}

#[test]
fn written_as_subchunks_and_read_as_shards() {
    let (folder, store) = files();
    let layout = layout();
    layout.create(&*store);
    let sparse = SparseShardStore::open_renaming(store.clone(), layout.path, store.clone());
    let sparse = Arc::new(sparse.unwrap());
    let array = Array::open(sparse.clone(), layout.path).unwrap();
    assert_eq!(array.chunk_grid_shape(), [5, 3]);
    for (subset, elements) in subsets() {
        array.store_array_subset(&subset, elements).unwrap();
    }
    let read = |array: &Array<SparseShardStore<_>>| {
        array
            .retrieve_array_subset::<Vec<u8>>(&array.subset_all())
            .unwrap()
    };
    assert_eq!(read(&array), expected());
    // Another process.
    let other = Array::open(layout.open(&store), layout.path).unwrap();
    assert_eq!(read(&other), expected());

    let shards = Array::open(store.clone(), layout.path).unwrap();
    let plain = || {
        shards
            .retrieve_array_subset::<Vec<u8>>(&shards.subset_all())
            .unwrap()
    };
    assert_eq!(plain(), [0; 90]);
    assert_eq!(sparse.pending().unwrap().len(), 6);
    let done = sparse.consolidate_all(&|_| {}).unwrap();
    assert_eq!(
        (done.shards, done.done, done.sum.subchunks, done.sum.invalid),
        (6, 6, 15, 0)
    );
    assert_eq!(plain(), expected());
    assert_eq!(read(&array), expected());
    // Only the metadata, the marker of frames and the shards are left.
    let keys = store.list().unwrap();
    assert_eq!(keys.len(), 8, "{keys:?}");
    assert_eq!(sparse.consolidate_all(&|_| {}).unwrap().shards, 0);

    // A subchunk that only holds the fill value is erased. If it was the last one, its shard is
    // erased, too.
    let first = ArraySubset::new_with_ranges(&[0..4, 0..6]);
    array.store_array_subset(&first, vec![0_u8; 24]).unwrap();
    assert!(
        array
            .retrieve_array_subset::<Vec<u8>>(&first)
            .unwrap()
            .iter()
            .all(|&x| x == 0)
    );
    let done = sparse.consolidate(&[0, 0]).unwrap().unwrap();
    assert_eq!((done.subchunks, done.after), (4, 0));
    assert_eq!(store.list().unwrap().len(), 7);
    drop(folder);
}

#[test]
fn the_array_grows() {
    let store = Arc::new(MemoryStore::new());
    let layout = layout();
    layout.create(&*store);
    let sparse = layout.open(&store);
    let mut array = Array::open(sparse, layout.path).unwrap();
    array.set_shape(vec![20, 9]).unwrap();
    array
        .attributes_mut()
        .insert("made by".to_owned(), json!("a test"));
    array.store_metadata().unwrap();
    array.store_chunk(&[9, 2], vec![7_u8; 6]).unwrap();
    let shards = Array::open(store.clone(), layout.path).unwrap();
    assert_eq!(
        (shards.shape(), shards.chunk_grid_shape()),
        (&[20, 9][..], &[5, 2][..])
    );
    assert_eq!(shards.attributes()["made by"], "a test");
    assert_eq!(
        shards
            .codecs()
            .create_metadatas(&CodecMetadataOptions::default())
            .len(),
        1
    );
    layout.open(&store).consolidate(&[4, 1]).unwrap().unwrap();
    let corner = ArraySubset::new_with_ranges(&[18..20, 6..9]);
    assert_eq!(
        shards.retrieve_array_subset::<Vec<u8>>(&corner).unwrap(),
        [7; 6]
    );
}

#[tokio::test]
async fn asynchronously() {
    let memory = Arc::new(MemoryStore::new());
    let layout = layout();
    layout.create(&*memory);
    let store = Arc::new(SyncToAsyncStorageAdapter::new(memory.clone(), Here));
    let sparse = SparseShardStore::async_open(store, layout.path)
        .await
        .unwrap();
    let sparse = Arc::new(sparse);
    let array = Array::async_open(sparse.clone(), layout.path)
        .await
        .unwrap();
    for (subset, elements) in subsets() {
        array
            .async_store_array_subset(&subset, elements)
            .await
            .unwrap();
    }
    let all = array.subset_all();
    let read: Vec<u8> = array.async_retrieve_array_subset(&all).await.unwrap();
    assert_eq!(read, expected());
    let seen = std::sync::Mutex::new(Vec::new());
    let on_progress = |progress: &zarrs_cuda::storage::ConsolidationProgress| {
        seen.lock().unwrap().push((progress.shards, progress.done));
    };
    let done = sparse.async_consolidate_all(&on_progress).await.unwrap();
    assert_eq!((done.done, done.sum.subchunks), (6, 15));
    assert_eq!(
        seen.into_inner().unwrap(),
        [(6, 1), (6, 2), (6, 3), (6, 4), (6, 5), (6, 6)]
    );
    assert!(sparse.async_pending().await.unwrap().is_empty());
    assert_eq!(sparse.async_consolidate(&[0, 0]).await.unwrap(), None);
    let read: Vec<u8> = array.async_retrieve_array_subset(&all).await.unwrap();
    assert_eq!(read, expected());
    let shards = Array::open(memory, layout.path).unwrap();
    assert_eq!(
        shards.retrieve_array_subset::<Vec<u8>>(&all).unwrap(),
        expected()
    );
}

/// Threads of several processes write different subchunks of one shard.
#[test]
fn many_writers_at_once() {
    let layout = Layout::new(&[64], &[64], &[1]);
    let (_folder, store) = files();
    layout.create(&*store);
    let adapters = [layout.open(&store), layout.open(&store)];
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let consolidating = scope.spawn(|| {
            let mut times = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                adapters[1].consolidate(&[0]).unwrap();
                times += 1;
            }
            times
        });
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let adapter = adapters[usize::from(writer % 2 == 0)].clone();
                scope.spawn(move || {
                    let array = Array::open(adapter, "/group/array").unwrap();
                    for round in 1..6_u8 {
                        for at in (writer..64).step_by(4) {
                            array.store_chunk(&[at], vec![round]).unwrap();
                            let read: Vec<u8> = array.retrieve_chunk(&[at]).unwrap();
                            assert_eq!(read, [round], "subchunk {at}");
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(consolidating.join().unwrap() > 0);
    });
    adapters[0].consolidate_all(&|_| {}).unwrap();
    let shards = Array::open(store.clone(), layout.path).unwrap();
    assert_eq!(shards.retrieve_chunk::<Vec<u8>>(&[0]).unwrap(), [5; 64]);
    let frame = StorePrefix::new("group/array/c/0.frame/").unwrap();
    assert!(store.list_prefix(&frame).unwrap().is_empty());
    assert!(
        store
            .get(&"group/array/c/0.tmp".try_into().unwrap())
            .unwrap()
            .is_none()
    );
}
