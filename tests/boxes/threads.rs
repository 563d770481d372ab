//! Writers of one process that meet in shards lose nothing.

use std::sync::Arc;
use std::thread;

use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::ReadableWritableListableStorageTraits;
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs_cuda::writer::{BoxWriter, ShardUpdate};

const THREADS: u64 = 4;
const ROUNDS: u64 = 30;

fn array<S: ?Sized>(store: &Arc<S>) -> Array<S> {
    let shape = vec![THREADS, ROUNDS];
    let mut builder = ArrayBuilder::new(shape, vec![4, 10], data_type::uint16(), 0_u16);
    builder.subchunk_shape(vec![4, 5]);
    builder.build(store.clone(), "/a").unwrap()
}

fn expected() -> Vec<u16> {
    (0..THREADS * ROUNDS).map(|n| n as u16 + 1).collect()
}

/// Each thread writes a row, element after element, with a writer of its own.
fn check<S: ReadableWritableListableStorageTraits + 'static>(
    update: ShardUpdate,
    in_rayon: bool,
    open: impl Fn() -> Arc<S> + Sync,
) {
    let store = open();
    array(&store).store_metadata().unwrap();
    let write_row = |row: u64| {
        let array = array(&open());
        let writer = BoxWriter::builder(&array).with_update(update);
        let writer = writer.with_sync(false).build().unwrap();
        for column in 0..ROUNDS {
            let element = [(row * ROUNDS + column) as u16 + 1];
            let subset = [row..row + 1, column..column + 1];
            writer.write(&subset, &element).unwrap();
        }
    };
    if in_rayon {
        rayon::scope(|scope| {
            for row in 0..THREADS {
                let write_row = &write_row;
                scope.spawn(move |_| write_row(row));
            }
        });
    } else {
        thread::scope(|scope| {
            for row in 0..THREADS {
                let write_row = &write_row;
                scope.spawn(move || write_row(row));
            }
        });
    }
    if update == ShardUpdate::Shared {
        let sparse = zarrs_cuda::storage::SparseShardStore::open(store.clone(), "/a");
        sparse.unwrap().consolidate_all(&|_| {}).unwrap();
    }
    let array = array(&store);
    let found: Vec<u16> = array.retrieve_array_subset(&array.subset_all()).unwrap();
    assert_eq!(found, expected(), "{update:?}");
}

#[test]
fn threads_lose_nothing() {
    for update in [
        ShardUpdate::Rewrite,
        ShardUpdate::InPlace,
        ShardUpdate::Shared,
    ] {
        for in_rayon in [false, true] {
            let store = Arc::new(MemoryStore::new());
            check(update, in_rayon, || store.clone());
            // Each thread opens a store of its own, and one of them by another path.
            let folder = TempDir::new().unwrap();
            check(update, in_rayon, || {
                Arc::new(FilesystemStore::new(folder.path()).unwrap())
            });
        }
    }
}

#[test]
fn tasks_lose_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Arc::new(AsyncMemoryStore::new());
        array(&store).async_store_metadata().await.unwrap();
        let row = async |row: u64| {
            let array = array(&store);
            let writer = BoxWriter::builder(&array).build().unwrap();
            for column in 0..ROUNDS {
                let element = [(row * ROUNDS + column) as u16 + 1];
                let subset = [row..row + 1, column..column + 1];
                writer.async_write(&subset, &element).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let rows = (0..THREADS).map(row);
        futures::future::join_all(rows).await;
        let array = array(&store);
        let all = array.subset_all();
        let found = array.async_retrieve_array_subset::<Vec<u16>>(&all);
        assert_eq!(found.await.unwrap(), expected());
    });
}
