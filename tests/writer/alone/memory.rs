//! The peak memory of a stream of 4 GiB, compared with the writer's estimate: within 10 %. The
//! stores fall behind, so that all buffers are used.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, CodecOptions, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    AtomicRenameStorageTraits, Bytes, ListableStorageTraits, MaybeBytesIterator,
    OffsetBytesIterator, ReadableStorageTraits, ReadableWritableStorageTraits, StorageError,
    StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
};
use zarrs_cuda::writer::{ArrayWriter, ArrayWriterBuilder, Axis, MultiscaleWriter};
use zarrs_cuda::{Backend, CudaShardingCodec, Options};
use zarrs_cuda_testing::index::IndexLayout;
use zarrs_cuda_testing::{Rng, Shards, codecs};

use crate::in_its_own_process;
use crate::memory::status;

const MIB: usize = 1 << 20;
/// The length of the stream.
const STREAM: usize = 4096 * MIB;
/// A length that is enough for the same peak.
const SHORT: usize = STREAM / 4;
/// A slice has 1024 × 1024 elements of two bytes.
const SLICE: usize = 2 * MIB;
/// The number of generated slices, which are appended repeatedly: an epoch.
const SLICES: usize = 16;
/// The memory budget of the writer.
const BUDGET: usize = 640 * MIB;

/// A store that discards complete shards, and pauses now and then.
struct Discarding<S> {
    inner: Arc<S>,
    calls: Mutex<u64>,
    shards: AtomicUsize,
}

impl<S> Discarding<S> {
    fn new(inner: Arc<S>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            calls: Mutex::new(0),
            shards: AtomicUsize::new(0),
        })
    }

    /// Waits until the appending thread has filled all buffers, at the beginning and once later.
    /// Other calls to the store wait, too.
    fn pause(&self) {
        let mut calls = self.calls.lock().unwrap();
        *calls += 1;
        if *calls != 1 && *calls != 40 {
            return;
        }
        let mut still = 0;
        let mut seen = usize::MAX;
        while still < 30 {
            std::thread::sleep(Duration::from_millis(10));
            let appended = APPENDED.load(Ordering::Relaxed);
            still = if appended == seen && appender_sleeps() {
                still + 1
            } else {
                0
            };
            seen = appended;
        }
    }
}

/// The file with the state of the appending thread.
static APPENDER: OnceLock<PathBuf> = OnceLock::new();

fn appender_sleeps() -> bool {
    let stat = fs::read_to_string(APPENDER.get().unwrap()).unwrap();
    // The state follows the name, which is in parentheses.
    stat.rsplit(") ").next().unwrap().starts_with('S')
}

/// The number of appended bytes.
static APPENDED: AtomicUsize = AtomicUsize::new(0);

fn is_shard(key: &StoreKey) -> bool {
    key.as_str().contains("/c/") && !is_temporary(key)
}

fn is_temporary(key: &StoreKey) -> bool {
    Path::new(key.as_str())
        .extension()
        .is_some_and(|e| e == "tmp")
}

impl<S: ReadableStorageTraits> ReadableStorageTraits for Discarding<S> {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.inner.get_partial_many(key, byte_ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.inner.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        self.inner.supports_get_partial()
    }
}

impl<S: WritableStorageTraits> WritableStorageTraits for Discarding<S> {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        if key.as_str().ends_with("zarr.json") || is_temporary(key) {
            return self.inner.set(key, value);
        }
        self.pause();
        self.shards.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        self.pause();
        self.inner.set_partial_many(key, offset_values)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.inner.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.inner.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        self.inner.supports_set_partial()
    }
}

impl<S> AtomicRenameStorageTraits for Discarding<S>
where
    S: AtomicRenameStorageTraits + WritableStorageTraits,
{
    fn rename(&self, source: &StoreKey, destination: &StoreKey) -> Result<(), StorageError> {
        self.inner.rename(source, destination)?;
        if is_shard(destination) {
            self.shards.fetch_add(1, Ordering::Relaxed);
            self.inner.erase(destination)?;
        }
        Ok(())
    }
}

impl<S: ListableStorageTraits> ListableStorageTraits for Discarding<S> {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.inner.list()
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.inner.list_prefix(prefix)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.inner.list_dir(prefix)
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.inner.size_prefix(prefix)
    }
}

/// An array whose shard epochs have 128 MiB.
fn array<S>(store: &Arc<S>, compressor: &[Value]) -> Array<S>
where
    S: ?Sized + ReadableWritableStorageTraits + 'static,
{
    let codecs = std::iter::once(codecs::bytes("little"));
    let shards = Shards {
        shape: vec![64, 512, 512],
        subchunk: vec![SLICES as u64, 64, 64],
        data_type: data_type::uint16(),
        fill: vec![0, 0],
        codecs: codecs.chain(compressor.iter().cloned()).collect(),
        index: IndexLayout::default(),
    };
    let options = Options::default()
        .with_backend(Backend::Host)
        .with_host_memory(BUDGET);
    let codec = CudaShardingCodec::new_with_configuration(&shards.configuration(), options);
    let shape = vec![0, 1024, 1024];
    let array = ArrayBuilder::new(shape, shards.shape, data_type::uint16(), 0_u16)
        .array_to_bytes_codec(Arc::new(codec.unwrap()))
        .build(store.clone(), "/array")
        .unwrap();
    array.store_metadata().unwrap();
    array
}

/// An epoch of slices that are either incompressible, or compressible by any compressor.
fn frames(compressible: bool) -> Vec<u8> {
    let mut rng = Rng(7);
    let mut frames = Vec::with_capacity(SLICES * SLICE);
    for _ in 0..SLICES * SLICE / 8 {
        let word = rng.next();
        frames.extend(if compressible {
            [1, 0, word.to_le_bytes()[0] & 3, 0, 1, 0, 2, 0]
        } else {
            word.to_ne_bytes()
        });
    }
    frames
}

/// Watches this thread, and returns the memory of the process before it appends. Resets the peak
/// (proc(5)).
fn begin() -> usize {
    let thread = fs::read_link("/proc/thread-self").unwrap();
    let stat = Path::new("/proc").join(thread).join("stat");
    APPENDER.set(stat).unwrap();
    fs::write("/proc/self/clear_refs", "5").unwrap();
    status("VmRSS:")
}

/// Appends `len` bytes. Returns the estimate and the peak memory.
fn stream<S>(builder: &ArrayWriterBuilder<S>, len: usize, compressible: bool) -> (usize, usize)
where
    S: ?Sized + ReadableWritableStorageTraits + 'static,
{
    let frames = frames(compressible);
    let estimate = builder.memory_estimate().unwrap();
    assert_eq!((estimate.pinned, estimate.device), (0, 0));
    let before = begin();
    let start = std::time::Instant::now();
    let mut writer = builder.build().unwrap();
    assert_eq!(writer.memory_estimate().host, estimate.host);
    for _ in 0..len / frames.len() {
        for piece in frames.chunks(SLICE) {
            writer.append_bytes(piece).unwrap();
            APPENDED.fetch_add(piece.len(), Ordering::Relaxed);
        }
    }
    let report = writer.finish().unwrap();
    let peak = status("VmHWM:").saturating_sub(before);
    assert_eq!(report.raw_bytes, len as u64);
    // A shard epoch is four shards of 32 MiB.
    assert_eq!(report.shards, len as u64 / (32 * MIB as u64));
    println!(
        "{} MiB of {} MiB, in {:?}, {:?} of it waiting",
        peak / MIB,
        estimate.host / MIB,
        start.elapsed(),
        report.waiting,
    );
    assert!(
        report.waiting > Duration::ZERO,
        "the store never fell behind"
    );
    (estimate.host, peak)
}

#[track_caller]
fn within_ten_percent((estimate, peak): (usize, usize)) {
    assert!(estimate <= BUDGET);
    assert!(
        peak <= estimate + estimate / 10,
        "{peak} of {estimate} bytes"
    );
    assert!(
        peak >= estimate - estimate / 10,
        "{peak} of {estimate} bytes"
    );
}

fn builder<S>(array: &Array<S>) -> ArrayWriterBuilder<S>
where
    S: ?Sized + ReadableWritableStorageTraits + 'static,
{
    let options = CodecOptions::default().with_concurrent_target(2);
    ArrayWriter::builder(array).with_codec_options(options)
}

fn to_nowhere(compressor: &[Value], len: usize, compressible: bool) -> (usize, usize) {
    let store = Discarding::new(Arc::new(MemoryStore::new()));
    let array = array(&store, compressor);
    let result = stream(&builder(&array), len, compressible);
    assert_eq!(store.shards.load(Ordering::Relaxed), len / (32 * MIB));
    result
}

fn to_files(compressor: &[Value], len: usize) -> (usize, usize) {
    // In memory if possible: those pages do not belong to this process.
    let shared = Path::new("/dev/shm");
    let directory = if shared.is_dir() {
        TempDir::new_in(shared).unwrap()
    } else {
        TempDir::new().unwrap()
    };
    let files = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    let store = Discarding::new(files);
    let array = array(&store, compressor);
    let result = stream(
        &builder(&array).with_atomic_rename(store.clone()),
        len,
        false,
    );
    assert_eq!(store.shards.load(Ordering::Relaxed), len / (32 * MIB));
    result
}

#[test]
fn no_compressor_to_nowhere() {
    in_its_own_process(module_path!(), "no_compressor_to_nowhere", || {
        within_ten_percent(to_nowhere(&[], STREAM, false));
    });
}

#[test]
fn no_compressor_to_files_that_grow() {
    in_its_own_process(module_path!(), "no_compressor_to_files_that_grow", || {
        within_ten_percent(to_files(&[], STREAM));
    });
}

#[test]
fn zstd_of_incompressible_data_to_nowhere() {
    in_its_own_process(
        module_path!(),
        "zstd_of_incompressible_data_to_nowhere",
        || {
            within_ten_percent(to_nowhere(&[codecs::zstd(1, false)], STREAM, false));
        },
    );
}

#[test]
fn zstd_of_incompressible_data_to_files_that_grow() {
    in_its_own_process(
        module_path!(),
        "zstd_of_incompressible_data_to_files_that_grow",
        || {
            within_ten_percent(to_files(&[codecs::zstd(1, false)], SHORT));
        },
    );
}

#[test]
fn zstd_of_compressible_data_stays_below() {
    in_its_own_process(
        module_path!(),
        "zstd_of_compressible_data_stays_below",
        || {
            let (estimate, peak) = to_nowhere(&[codecs::zstd(1, false)], SHORT, true);
            assert!(peak <= estimate, "{peak} of {estimate} bytes");
        },
    );
}

/// All levels share the budget. Slices are appended in two pieces, so that one is also kept until it is
/// complete.
#[test]
fn all_levels_of_an_image() {
    in_its_own_process(module_path!(), "all_levels_of_an_image", || {
        let store = Discarding::new(Arc::new(MemoryStore::new()));
        let array = array(&store, &[]);
        let options = CodecOptions::default().with_concurrent_target(2);
        let builder = MultiscaleWriter::builder(&array)
            .with_axes(["z", "y", "x"].map(Axis::space))
            .with_codec_options(options);
        let frames = frames(false);
        let estimate = builder.memory_estimate().unwrap().host;
        assert!(estimate <= BUDGET, "{estimate} of {BUDGET} bytes");
        let before = begin();
        let mut writer = builder.build().unwrap();
        assert_eq!(writer.memory_estimate().host, estimate);
        for piece in (0..SHORT / frames.len()).flat_map(|_| frames.chunks(SLICE / 2)) {
            writer.append_bytes(piece).unwrap();
            APPENDED.fetch_add(piece.len(), Ordering::Relaxed);
        }
        let reports = writer.finish().unwrap();
        let peak = status("VmHWM:").saturating_sub(before);
        println!("{} MiB of {} MiB", peak / MIB, estimate / MIB);
        assert_eq!(reports.len(), 5);
        assert!(reports.iter().any(|report| report.waiting > Duration::ZERO));
        // Not all buffers of all levels are full at the same time.
        assert!(
            peak <= estimate + estimate / 10,
            "{peak} of {estimate} bytes"
        );
        assert!(
            peak >= estimate - estimate / 3,
            "{peak} of {estimate} bytes"
        );
    });
}

/// The output of an unknown codec is collected before it is assembled. That memory counts, too.
#[test]
fn an_unknown_codec_is_counted() {
    in_its_own_process(module_path!(), "an_unknown_codec_is_counted", || {
        let (estimate, peak) = to_nowhere(&[codecs::xor()], SHORT, false);
        assert!(
            peak <= estimate + estimate / 25,
            "{peak} of {estimate} bytes"
        );
    });
}
