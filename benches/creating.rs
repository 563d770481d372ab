//! Threads fill an array part by part. Its shards do not exist yet.
//!
//! `cargo bench --package zarrs_cuda_benches --bench creating` prints a table. Absent shards cannot
//! be told apart, so threads that create different shards of one array wait for each other. This
//! benchmark measures that cost.
//!
//! - `shared`: each of N threads stores its own part of each of M shards.
//! - `apart`: each thread fills M / N shards of its own, part by part.
//! - `whole`: as `apart`, but each shard is one call, which does not wait for other threads.
//!
//! A part is a quarter of a shard of 1 MiB, in 16 subchunks of zstd. Shards are files, or objects
//! below `RangeWrites` in a store in memory that takes 30 ms for each call. A refused write is
//! retried. `lost` counts parts that were stored and are missing afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use zarrs::array::{Array, ArrayBytes, ArraySubset, CodecOptions};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits,
    ReadableWritableStorageTraits, StorageError, StoreKey, StorePrefix, WritableStorageTraits,
};
use zarrs_cuda::storage::RangeWrites;
use zarrs_cuda::{Options, register};
use zarrs_cuda_benches::Result;

const PARTS: u64 = 4;
/// Elements of a part, of two bytes each.
const PART: u64 = 128 << 10;
const SHARD: u64 = PARTS * PART;

/// A store in memory that takes 30 ms for each call.
struct Slow(MemoryStore);

impl Slow {
    fn wait() {
        thread::sleep(Duration::from_millis(30));
    }
}

impl ReadableStorageTraits for Slow {
    fn get(&self, key: &StoreKey) -> std::result::Result<MaybeBytes, StorageError> {
        Self::wait();
        self.0.get(key)
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        ranges: ByteRangeIterator<'a>,
    ) -> std::result::Result<MaybeBytesIterator<'a>, StorageError> {
        Self::wait();
        self.0.get_partial_many(key, ranges)
    }

    fn size_key(&self, key: &StoreKey) -> std::result::Result<Option<u64>, StorageError> {
        Self::wait();
        self.0.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Slow {
    fn set(&self, key: &StoreKey, value: Bytes) -> std::result::Result<(), StorageError> {
        Self::wait();
        self.0.set(key, value)
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        _: OffsetBytesIterator,
    ) -> std::result::Result<(), StorageError> {
        Err(StorageError::Unsupported(format!(
            "{key} can be stored only as a whole"
        )))
    }

    fn erase(&self, key: &StoreKey) -> std::result::Result<(), StorageError> {
        Self::wait();
        self.0.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> std::result::Result<(), StorageError> {
        Self::wait();
        self.0.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Shared,
    Apart,
    Whole,
}

type Store = Arc<dyn ReadableWritableStorageTraits>;

fn array(store: Store, shards: u64) -> Result<Array<dyn ReadableWritableStorageTraits>> {
    let metadata = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": [shards * SHARD],
        "data_type": "uint16",
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [SHARD] } },
        "chunk_key_encoding": { "name": "default" },
        "fill_value": 0,
        "codecs": [{ "name": "sharding_indexed", "configuration": {
            "chunk_shape": [PART / 16],
            "codecs": [
                { "name": "bytes", "configuration": { "endian": "little" } },
                { "name": "zstd", "configuration": { "level": 1, "checksum": false } },
            ],
            "index_codecs": [
                { "name": "bytes", "configuration": { "endian": "little" } },
                { "name": "crc32c" },
            ],
            "index_location": "end",
        } }],
    });
    let metadata = serde_json::from_value(metadata)?;
    Ok(Array::new_with_metadata(store, "/array", metadata)?)
}

/// The elements from `start` to `end`: ramps with some noise.
fn elements(start: u64, end: u64) -> Vec<u16> {
    let element = |at: u64| {
        let noise = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
        u16::try_from((at / 64) % 4000 + noise + 1).unwrap_or(1)
    };
    (start..end).map(element).collect()
}

struct Outcome {
    seconds: f64,
    refused: usize,
    lost: usize,
}

fn measure(store: &Store, work: Work, threads: u64, shards: u64) -> Result<Outcome> {
    let array = array(store.clone(), shards)?;
    let options = CodecOptions::default().with_experimental_partial_encoding(true);
    let refused = AtomicUsize::new(0);
    let store = |start: u64, end: u64| {
        let subset = ArraySubset::new_with_ranges(&[start..end]);
        let elements = elements(start, end);
        for _ in 0..10_000 {
            match array.store_array_subset_opt(&subset, &elements[..], &options) {
                Ok(()) => return,
                Err(_) => refused.fetch_add(1, Ordering::Relaxed),
            };
        }
    };
    let part = |shard: u64, part: u64| {
        let start = shard * SHARD + part * PART;
        store(start, start + PART);
    };
    let begin = Instant::now();
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || match work {
                Work::Shared => (0..shards).for_each(|shard| {
                    let mine = (0..PARTS).filter(|part| part % threads == thread);
                    mine.for_each(|number| part(shard, number));
                }),
                Work::Apart => {
                    let mine = (0..shards).filter(|shard| shard % threads == thread);
                    mine.for_each(|shard| (0..PARTS).for_each(|number| part(shard, number)));
                }
                Work::Whole => {
                    let mine = (0..shards).filter(|shard| shard % threads == thread);
                    mine.for_each(|shard| store(shard * SHARD, (shard + 1) * SHARD));
                }
            });
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    let is_lost = |part: &u64| {
        let (start, end) = (part * PART, (part + 1) * PART);
        let subset = ArraySubset::new_with_ranges(&[start..end]);
        let read = array.retrieve_array_subset::<ArrayBytes>(&subset);
        let read = read.ok().and_then(|read| read.into_fixed().ok());
        let expected: Vec<u8> = elements(start, end)
            .iter()
            .flat_map(|e| e.to_ne_bytes())
            .collect();
        read.is_none_or(|read| *read != *expected)
    };
    Ok(Outcome {
        seconds,
        refused: refused.into_inner(),
        lost: (0..shards * PARTS).filter(is_lost).count(),
    })
}

fn main() -> Result<()> {
    let _registration = register(Options::default())?;
    println!("store     work     threads  shards  seconds  refused  lost");
    for slow in [false, true] {
        for work in [Work::Shared, Work::Apart, Work::Whole] {
            for threads in [1, 2, 4] {
                let shards = if slow { 8 } else { 64 };
                let folder = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR"))?;
                let store: Store = if slow {
                    Arc::new(RangeWrites::new(Arc::new(Slow(MemoryStore::new()))))
                } else {
                    Arc::new(FilesystemStore::new(folder.path())?)
                };
                let Outcome {
                    seconds,
                    refused,
                    lost,
                } = measure(&store, work, threads, shards)?;
                let (name, work) = (if slow { "30 ms" } else { "files" }, format!("{work:?}"));
                println!(
                    "{name:9} {:8} {threads:7} {shards:7} {seconds:8.3} {refused:8} {lost:5}",
                    work.to_lowercase()
                );
            }
        }
    }
    Ok(())
}
