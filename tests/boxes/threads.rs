//! Writers of one process that meet in shards lose nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tempfile::TempDir;
use zarrs::array::codec::{Crc32cCodec, ShardingCodecBuilder};
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::ReadableWritableListableStorageTraits;
use zarrs::storage::store::MemoryStore;
use zarrs_cuda::writer::{BoxWriter, ShardUpdate};

use super::dropped::Slow;

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
            // Each thread opens a store of its own, and half of them by another path.
            let folder = TempDir::new().unwrap();
            let real = folder.path().join("real");
            std::fs::create_dir(&real).unwrap();
            let mut paths = vec![real.clone()];
            #[cfg(unix)]
            {
                let link = folder.path().join("link");
                std::os::unix::fs::symlink(&real, &link).unwrap();
                paths.push(link);
            }
            let opened = AtomicUsize::new(0);
            check(update, in_rayon, || {
                let number = opened.fetch_add(1, Ordering::Relaxed);
                Arc::new(FilesystemStore::new(&paths[number % paths.len()]).unwrap())
            });
        }
    }
}

/// Writers that know that a store has files, and writers that do not, share its locks.
#[test]
fn a_store_of_files_behind_a_trait() {
    let folder = TempDir::new().unwrap();
    let files = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let hidden: Arc<dyn ReadableWritableListableStorageTraits> = files.clone();
    let array = array(&files);
    array.store_metadata().unwrap();
    let known = BoxWriter::builder(&array).with_sync(false).build().unwrap();
    let unknown = BoxWriter::builder(&array.with_storage(hidden))
        .build()
        .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for column in 0..ROUNDS {
                known.write(&[0..1, column..column + 1], &[1_u16]).unwrap();
            }
        });
        scope.spawn(|| {
            for column in 0..ROUNDS {
                unknown
                    .write(&[1..2, column..column + 1], &[1_u16])
                    .unwrap();
            }
        });
    });
    let found: Vec<u16> = array.retrieve_array_subset(&[0..2, 0..ROUNDS]).unwrap();
    assert!(found.iter().all(|element| *element == 1), "{found:?}");
}

/// Chunks that zarrs encodes, in tasks of rayon's global pool: no task waits for another one that waits for it.
#[test]
fn chunks_of_zarrs_in_rayon() {
    let mut builder = ArrayBuilder::new(
        vec![THREADS, ROUNDS],
        vec![4, 10],
        data_type::uint16(),
        0_u16,
    );
    let shards = ShardingCodecBuilder::new(
        vec![4.try_into().unwrap(), 5.try_into().unwrap()],
        &data_type::uint16(),
    );
    builder.array_to_bytes_codec(shards.build_arc());
    builder.bytes_to_bytes_codecs(vec![Arc::new(Crc32cCodec::new())]);
    let array = builder.build(Arc::new(MemoryStore::new()), "/a").unwrap();
    let writer = BoxWriter::builder(&array).build().unwrap();
    assert!(writer.is_by_zarrs());
    rayon::scope(|scope| {
        for row in 0..THREADS {
            for column in 0..ROUNDS {
                let writer = &writer;
                scope.spawn(move |_| {
                    let element = [(row * ROUNDS + column) as u16 + 1];
                    let subset = [row..row + 1, column..column + 1];
                    writer.write(&subset, &element).unwrap();
                });
            }
        }
    });
    let found: Vec<u16> = array.retrieve_array_subset(&array.subset_all()).unwrap();
    assert_eq!(found, expected());
}

/// The store is pending in each call, so that tasks meet while they write.
#[test]
fn tasks_lose_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Arc::new(Slow::default());
        array(&store).async_store_metadata().await.unwrap();
        let tasks = (0..THREADS).map(|row| {
            let store = store.clone();
            tokio::spawn(async move {
                let array = array(&store);
                let writer = BoxWriter::builder(&array).build().unwrap();
                for column in 0..ROUNDS {
                    let element = [(row * ROUNDS + column) as u16 + 1];
                    let subset = [row..row + 1, column..column + 1];
                    writer.async_write(&subset, &element).await.unwrap();
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let array = array(&store);
        let all = array.subset_all();
        let found = array.async_retrieve_array_subset::<Vec<u16>>(&all);
        assert_eq!(found.await.unwrap(), expected());
    });
}
