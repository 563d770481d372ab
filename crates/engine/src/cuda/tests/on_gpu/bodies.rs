//! Bodies of tests that run at full size on a GPU, and small on the simulation: their correctness
//! can be checked without a GPU.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{iter, num::NonZeroUsize};

use rayon::prelude::*;

use crate::contract::{Chain, EncodedShard, Engine, EngineError, KnownChain, ShardJob, Stage};
use crate::cuda::driver::Driver;
use crate::cuda::{CudaEngine, DeviceLimits, Devices, Tuning};
use crate::host::HostEngine;
use crate::layout::{SubchunkGrid, batches};

/// A shard and its encoding by the host engine.
pub(in crate::cuda) struct Subject {
    grid: SubchunkGrid,
    chain: KnownChain,
    fill_value: Vec<u8>,
    elements: Vec<u8>,
    expected: EncodedShard,
}

/// A shape, a chain, and which rows of subchunks along the first axis are empty, in quarters.
type Kind = (
    [u64; 3],
    [u64; 3],
    usize,
    [usize; 3],
    usize,
    usize,
    Range<usize>,
);

/// Subchunk, subchunks along each axis, bytes of an element, order of axes, reversed bytes,
/// checksums, and the empty quarters. The shards have from 4 to 64 MiB.
const LARGE: &[Kind] = &[
    ([32; 3], [4, 4, 4], 2, [0, 1, 2], 1, 0, 0..0),
    ([32; 3], [8, 8, 8], 2, [0, 1, 2], 2, 1, 0..0),
    ([32; 3], [8, 8, 16], 2, [0, 1, 2], 1, 0, 0..2),
    ([16, 32, 24], [8, 4, 7], 4, [2, 1, 0], 4, 1, 1..3),
    ([8, 20, 25], [16, 9, 7], 8, [0, 2, 1], 1, 0, 2..4),
    ([32, 64, 31], [10, 7, 6], 1, [1, 2, 0], 1, 1, 0..1),
    ([16, 16, 128], [12, 6, 3], 4, [0, 1, 2], 4, 2, 1..2),
    ([64, 64, 64], [4, 4, 2], 2, [0, 1, 2], 1, 1, 3..4),
    ([32; 3], [6, 5, 4], 2, [0, 1, 2], 2, 0, 0..4),
];

/// The same kinds in a few KiB, and one with long subchunks.
const SMALL: &[Kind] = &[
    ([4; 3], [2, 2, 2], 2, [0, 1, 2], 1, 0, 0..0),
    ([4; 3], [4, 3, 3], 2, [0, 1, 2], 2, 1, 0..0),
    ([4; 3], [8, 2, 3], 2, [0, 1, 2], 1, 0, 0..2),
    ([2, 5, 3], [8, 3, 4], 4, [2, 1, 0], 4, 1, 1..3),
    ([2, 5, 3], [8, 3, 4], 8, [0, 2, 1], 1, 0, 2..4),
    ([3, 8, 7], [8, 3, 2], 1, [1, 2, 0], 1, 1, 0..1),
    ([2, 2, 16], [8, 3, 2], 4, [0, 1, 2], 4, 2, 1..2),
    ([32, 32, 16], [4, 1, 1], 2, [0, 1, 2], 1, 1, 3..4),
    ([4; 3], [4, 2, 2], 2, [0, 1, 2], 2, 0, 0..4),
];

pub(in crate::cuda) fn large() -> Vec<Subject> {
    LARGE.iter().map(Subject::new).collect()
}

pub(in crate::cuda) fn small() -> Vec<Subject> {
    SMALL.iter().map(Subject::new).collect()
}

impl Subject {
    fn new((subchunk, counts, element, order, swap, checksums, empty): &Kind) -> Self {
        let shard: Vec<u64> = iter::zip(subchunk, counts).map(|(s, c)| s * c).collect();
        let grid = SubchunkGrid::new(&shard, subchunk, *element).unwrap();
        let fill_value: Vec<u8> = (0..*element).map(|byte| 0xC0 | byte as u8).collect();
        // The length is a prime, and long enough that no two subchunks are alike.
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let noise: Vec<u8> = iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .take(65_521)
        .collect();
        let mut elements = vec![0; grid.shard_bytes()];
        for part in elements.chunks_mut(noise.len()) {
            part.copy_from_slice(&noise[..part.len()]);
        }
        // Batches follow rows of subchunks.
        let rows = counts[0] as usize;
        let row = elements.len() / rows;
        let empty = rows * empty.start / 4 * row..rows * empty.end / 4 * row;
        for value in elements[empty].chunks_mut(*element) {
            value.copy_from_slice(&fill_value);
        }
        let mut this = Self {
            grid,
            chain: KnownChain {
                order: order.to_vec(),
                swap: *swap,
                stages: vec![Stage::Crc32c; *checksums],
            },
            fill_value,
            elements,
            expected: EncodedShard {
                bytes: Vec::new(),
                extents: Vec::new(),
            },
        };
        this.expected = HostEngine
            .encode(&this.job(4), &this.elements, 3, 5)
            .unwrap();
        this
    }

    fn job(&self, threads: usize) -> ShardJob<'_> {
        ShardJob {
            grid: &self.grid,
            chain: Chain::Known(&self.chain),
            fill_value: &self.fill_value,
            store_empty: false,
            validate_checksums: true,
            threads: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN),
            huge_pages: true,
        }
    }

    /// Encodes and decodes on `engine`, and compares the results with the host's.
    pub(in crate::cuda) fn round_trip(
        &self,
        engine: &dyn Engine,
        threads: usize,
    ) -> Result<(), EngineError> {
        let (job, expected) = (self.job(threads), &self.expected);
        let encoded = engine.encode(&job, &self.elements, 3, 5)?;
        assert_eq!(encoded.extents, expected.extents);
        assert!(encoded.bytes == expected.bytes, "other bytes: {job:?}");
        let decoded = engine.decode(&job, &encoded.bytes, &encoded.extents)?;
        assert!(decoded == self.elements, "other elements: {job:?}");
        Ok(())
    }

    pub(in crate::cuda) fn bytes(&self) -> usize {
        self.elements.len()
    }

    /// Splits the shard into batches of at most `bytes`. Returns how many of them are empty, and
    /// how many there are.
    pub(in crate::cuda) fn empty_batches(&self, bytes: usize) -> (usize, usize) {
        let batches = batches(&self.grid, bytes / self.grid.subchunk_bytes());
        let is_empty = |first: usize, len: usize| {
            let extents = &self.expected.extents[first..first + len];
            extents.iter().all(Option::is_none)
        };
        let empty = batches.iter().filter(|b| is_empty(b.first, b.len()));
        (empty.count(), batches.len())
    }
}

/// Budgets that hold several lanes of any subject.
fn limits(memory: Option<usize>) -> DeviceLimits {
    DeviceLimits {
        devices: None,
        device_memory: memory,
        pinned_memory: 1 << 30,
        idle: None,
        ..DeviceLimits::default()
    }
}

/// Encodes and decodes all `subjects` on `threads` threads, each with one of `tunings`. Runs for at
/// least `time`, until each subject was tried. Returns the number of round trips.
pub(in crate::cuda) fn under_load(
    devices: &Arc<Devices>,
    subjects: &[Subject],
    tunings: &[Tuning],
    threads: usize,
    time: Duration,
) -> usize {
    let batch = tunings.iter().map(|t| t.batch).min().unwrap();
    let some_empty = subjects.iter().any(|subject| {
        let (empty, all) = subject.empty_batches(batch);
        0 < empty && empty < all
    });
    assert!(some_empty, "no batch among others is empty");

    let before = devices.counters.snapshot();
    let (begin, trips) = (Instant::now(), AtomicUsize::new(0));
    let rounds = subjects.len().div_ceil(threads);
    thread::scope(|scope| {
        for number in 0..threads {
            let tuning = tunings[number % tunings.len()];
            let engine = CudaEngine::new(devices.clone(), limits(None), tuning);
            let trips = &trips;
            scope.spawn(move || {
                let mut round = 0;
                while round < rounds || begin.elapsed() < time {
                    let subject = &subjects[(number + round * threads) % subjects.len()];
                    subject.round_trip(&engine, 1 + round % 3).unwrap();
                    trips.fetch_add(1, Ordering::Relaxed);
                    round += 1;
                }
            });
        }
    });
    let trips = trips.into_inner();
    let after = devices.counters.snapshot();
    assert_eq!(after.shards_encoded - before.shards_encoded, trips as u64);
    assert_eq!(after.shards_decoded - before.shards_decoded, trips as u64);
    assert_eq!(after.lanes_waiting, 0);
    trips
}

/// Nests parallel iterators while there is only one lane. The thread that holds the lane must not
/// run another shard's work, which would wait for that lane.
pub(in crate::cuda) fn one_lane_and_nested_rayon(
    driver: Arc<dyn Driver>,
    subject: Subject,
    tuning: Tuning,
    patience: Duration,
) {
    let devices = Devices::new(vec![driver]);
    let one = CudaEngine::new(devices.clone(), limits(None), tuning)
        .memory_estimate(&subject.grid, &subject.chain)
        .unwrap();
    let limits = DeviceLimits {
        devices: None,
        device_memory: Some(one.device),
        pinned_memory: one.pinned,
        idle: None,
        ..DeviceLimits::default()
    };
    let engine = CudaEngine::new(devices.clone(), limits, tuning);
    let worker = thread::spawn(move || {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build();
        pool.unwrap().install(|| {
            (0..6).into_par_iter().for_each(|_| {
                (0..4).into_par_iter().for_each(|_| {
                    subject.round_trip(&engine, 2).unwrap();
                });
            });
        });
    });
    let begin = Instant::now();
    while !worker.is_finished() {
        // A deadlock must fail the test, not hang it.
        assert!(begin.elapsed() < patience, "deadlock");
        thread::sleep(Duration::from_millis(10));
    }
    worker.join().unwrap();
    let metrics = devices.counters.snapshot();
    assert_eq!(metrics.shards_decoded, 24);
    assert_eq!((metrics.lanes_created, metrics.lanes_waiting), (1, 0));
}

/// Idle lanes are freed on request and, after a while, by themselves. Afterwards lanes are created
/// again.
pub(in crate::cuda) fn idle_lanes(driver: Arc<dyn Driver>, subject: &Subject, tuning: Tuning) {
    let devices = Devices::new(vec![driver]);
    let engine = |idle| {
        let limits = DeviceLimits {
            idle,
            ..limits(None)
        };
        CudaEngine::new(devices.clone(), limits, tuning)
    };
    let alive = || devices.counters.snapshot().lanes_alive;
    let (never, late) = (engine(None), engine(Some(Duration::from_hours(1))));
    let (soon, shortly) = (Duration::from_millis(200), Duration::from_millis(500));
    for engine in [&never, &late] {
        subject.round_trip(engine, 1).unwrap();
        thread::sleep(shortly);
        assert_eq!(alive(), 1);
        devices.release_idle();
        assert_eq!(alive(), 0);
    }
    // The thread that frees lanes sleeps for an hour now, unless it is woken.
    subject.round_trip(&late, 1).unwrap();
    subject.round_trip(&engine(Some(soon)), 1).unwrap();
    let begin = Instant::now();
    while alive() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(40), "still there");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(begin.elapsed() >= soon / 2);
    subject.round_trip(&never, 1).unwrap();
    assert_eq!(devices.counters.snapshot().lanes_created, 4);
}

/// Less memory makes smaller batches; too little memory makes an error that says why.
pub(in crate::cuda) fn budgets(driver: Arc<dyn Driver>, subject: &Subject, tuning: Tuning) {
    let devices = Devices::new(vec![driver]);
    let mut memory = None;
    let mut engines = 0;
    loop {
        let engine = CudaEngine::new(devices.clone(), limits(memory), tuning);
        match engine.memory_estimate(&subject.grid, &subject.chain) {
            Ok(estimate) => {
                assert!(memory.is_none_or(|most| estimate.device <= most));
                memory = Some(estimate.device - 1);
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("with_device_memory"), "{text}");
                assert!(matches!(error, EngineError::Unsuitable(_)), "{text}");
                let error = subject.round_trip(&engine, 1).unwrap_err();
                assert!(matches!(error, EngineError::Unsuitable(_)), "{error}");
                break;
            }
        }
        subject.round_trip(&engine, 2).unwrap();
        // The lane of the larger budget must not be reused.
        devices.release_idle();
        engines += 1;
    }
    assert!(engines > 2, "{engines} different batches");
}
