//! Many writers that are open in one process share its threads and its memory.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use zarrs::array::{Array, ArrayBuilder, ArraySubset, data_type};
use zarrs::storage::ListableStorageTraits;
use zarrs::storage::store::MemoryStore;
use zarrs_cuda::writer::{Axis, MultiscaleBuilder, MultiscaleWriter, Reduction, WriterError};
use zarrs_cuda::{Backend, CudaShardingCodec, Options};
use zarrs_cuda_testing::index::IndexLayout;
use zarrs_cuda_testing::{Shards, codecs};

use crate::in_its_own_process;
use crate::memory::status;

/// Images that are written at the same time, by so many threads of the application.
const IMAGES: usize = 96;
const THREADS: usize = 8;
/// Extents of a slice, and the slices of each image. The last shard is short.
const EDGE: usize = 64;
const SLICES: usize = 43;
const LEVELS: usize = 3;
const MIB: usize = 1 << 20;

/// The threads of this process.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

fn element(image: usize, slice: usize, y: usize, x: usize) -> u16 {
    (image * 601 + slice * 67 + y * EDGE + x) as u16
}

fn slice(image: usize, slice: usize) -> Vec<u16> {
    let rows = (0..EDGE).flat_map(|y| (0..EDGE).map(move |x| (y, x)));
    rows.map(|(y, x)| element(image, slice, y, x)).collect()
}

fn level_0(store: &Arc<MemoryStore>, image: usize) -> Array<MemoryStore> {
    let shards = Shards {
        shape: vec![8, 32, 32],
        subchunk: vec![4, 16, 16],
        data_type: data_type::uint16(),
        fill: vec![0, 0],
        codecs: vec![codecs::bytes("little"), codecs::zstd(1, false)],
        index: IndexLayout::default(),
    };
    let options = Options::default().with_backend(Backend::Host);
    let codec = CudaShardingCodec::new_with_configuration(&shards.configuration(), options);
    let shape = vec![0, EDGE as u64, EDGE as u64];
    let array = ArrayBuilder::new(shape, shards.shape, data_type::uint16(), 0_u16)
        .array_to_bytes_codec(Arc::new(codec.unwrap()))
        .build(store.clone(), &format!("/image{image}/0"))
        .unwrap();
    array.store_metadata().unwrap();
    array
}

fn builder(array: &Array<MemoryStore>, limit: Option<usize>) -> MultiscaleBuilder<MemoryStore> {
    let builder = MultiscaleWriter::builder(array)
        .with_axes([Axis::time("t"), Axis::space("y"), Axis::space("x")])
        .with_reduction(Reduction::Decimate)
        .with_levels(LEVELS)
        // The smallest batches, so that all writers need as much.
        .with_epochs_per_batch(1);
    match limit {
        Some(limit) => builder.with_host_memory(limit),
        None => builder,
    }
}

fn check(store: &Arc<MemoryStore>, image: usize) {
    for level in 0..LEVELS {
        let array = Array::open(store.clone(), &format!("/image{image}/{level}")).unwrap();
        let (step, edge) = (1 << level, EDGE >> level);
        assert_eq!(array.shape(), [SLICES as u64, edge as u64, edge as u64]);
        let subset = ArraySubset::new_with_shape(array.shape().to_vec());
        let read: Vec<u16> = array.retrieve_array_subset(&subset).unwrap();
        let expected = (0..SLICES).flat_map(|slice| {
            let rows = (0..edge).flat_map(move |y| (0..edge).map(move |x| (y, x)));
            rows.map(move |(y, x)| element(image, slice, y * step, x * step))
        });
        assert!(
            read.into_iter().eq(expected),
            "image {image}, level {level}"
        );
    }
}

fn append_all(image: usize, writer: &mut MultiscaleWriter) {
    for number in 0..SLICES {
        writer.append(&slice(image, number)).unwrap();
    }
}

#[test]
fn many_images_share_threads_and_memory() {
    let test = "many_images_share_threads_and_memory";
    in_its_own_process(module_path!(), test, share);
}

fn share() {
    let store = Arc::new(MemoryStore::new());
    let arrays: Vec<_> = (0..=IMAGES).map(|image| level_0(&store, image)).collect();
    let needed = builder(&arrays[0], None).memory_reserved().unwrap();
    // Not quite enough for another one; what is left is lent.
    let limit = IMAGES * needed + needed - 1;
    // The first writer starts the pools of the process.
    let first = builder(&arrays[0], Some(limit)).build().unwrap();
    first.abort().unwrap();
    let (threads_before, memory_before) = (threads(), status("VmRSS:"));
    let mut writers: Vec<_> = arrays[..IMAGES]
        .iter()
        .map(|array| builder(array, Some(limit)).build().unwrap())
        .collect();
    // The timer.
    let open = threads();
    assert!(
        open <= threads_before + 1,
        "{threads_before} and {open} threads"
    );

    let keys = store.list().unwrap();
    let last = builder(&arrays[IMAGES], Some(limit));
    let error = last
        .build()
        .expect_err("there is no memory for another one");
    assert!(matches!(error, WriterError::Memory { .. }), "{error}");
    let told = error.to_string();
    for part in [
        format!("{IMAGES} open writers"),
        format!("{} bytes", IMAGES * needed),
        needed.to_string(),
        limit.to_string(),
        "with_host_memory".to_owned(),
    ] {
        assert!(told.contains(&part), "{part} is not in: {told}");
    }
    assert_eq!(store.list().unwrap(), keys, "a writer that is refused");

    let most = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(threads(), Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        let parts = writers.chunks_mut(IMAGES / THREADS).enumerate();
        let appending: Vec<_> = parts
            .map(|(part, writers)| {
                scope.spawn(move || {
                    let first = part * (IMAGES / THREADS);
                    for number in 0..SLICES {
                        for (image, writer) in (first..).zip(&mut *writers) {
                            writer.append(&slice(image, number)).unwrap();
                        }
                    }
                    for writer in writers {
                        writer.flush().unwrap();
                    }
                })
            })
            .collect();
        let appended: Vec<_> = appending.into_iter().map(ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(appended.iter().all(Result::is_ok));
    });
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    // Threads that store and encode, rayon's pool for streams, the crew, the timer; and the threads of this test.
    let allowed = 64 + cores.max(4) + cores + 15 + 1 + THREADS + 1;
    let most = most.into_inner() - threads_before;
    let stored: usize = (store.list().unwrap().iter())
        .filter_map(|key| zarrs::storage::ReadableStorageTraits::size_key(&*store, key).unwrap())
        .map(|size| usize::try_from(size).unwrap())
        .sum();
    let memory = status("VmRSS:").saturating_sub(memory_before);
    println!(
        "{most} threads of {allowed}, {} MiB of {} MiB and {} MiB stored, for {needed} bytes each",
        memory / MIB,
        limit / MIB,
        stored / MIB,
    );
    assert!(most <= allowed, "{most} threads");
    // A store in memory keeps the buffers that it is given; the threads have contexts of compressors.
    assert!(memory <= limit + 4 * stored + 64 * MIB, "{memory} bytes");

    // There is room for another one when one has finished.
    writers[0].finish().unwrap();
    let mut last = last.build().unwrap();
    append_all(IMAGES, &mut last);
    last.finish().unwrap();
    for writer in &mut writers {
        writer.finish().unwrap();
    }
    (0..=IMAGES).for_each(|image| check(&store, image));

    // The threads end when there is nothing to do. Those of rayon's pool stay.
    let begin = Instant::now();
    while threads() > threads_before + cores + 1 {
        assert!(
            begin.elapsed() < Duration::from_secs(40),
            "{} threads have nothing to do",
            threads()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
