//! The CUDA engine's own time and its calls of the driver, on a device that completes at once.
//!
//! `cargo bench --package zarrs_cuda_benches --bench instant` encodes shards of 256 MiB. Copies in
//! memory are dealt out to the threads and left out, so the time is what the engine adds to them.
//! With `--list` it prints its name and measures nothing.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zarrs_cuda_engine::contract::{Chain, KnownChain, ShardJob};
use zarrs_cuda_engine::cuda::copiers::Copiers;
use zarrs_cuda_engine::cuda::session::{FreeEvents, Session};
use zarrs_cuda_engine::cuda::{CudaEngine, DeviceLimits, Devices, Tuning, encode};
use zarrs_cuda_engine::fakes::instant::InstantDevice;
use zarrs_cuda_engine::layout::SubchunkGrid;

/// The edges of the shard and of its subchunks, in elements of two bytes.
const SHARD: [u64; 3] = [512, 512, 512];
const SUBCHUNK: [u64; 3] = [64, 64, 64];
const ROUNDS: usize = 15;
/// The most time that the engine may add to the copies of a slab, in microseconds.
const GOAL: f64 = 20.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().any(|argument| argument == "--list") {
        println!("instant: benchmark");
        return Ok(());
    }
    let grid = SubchunkGrid::new(&SHARD, &SUBCHUNK, 2)?;
    let chain = KnownChain {
        order: vec![0, 1, 2],
        swap: 1,
        stages: Vec::new(),
    };
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let job = ShardJob {
        grid: &grid,
        chain: Chain::Known(&chain),
        fill_value: &[0; 2],
        store_empty: true,
        validate_checksums: true,
        threads,
        huge_pages: true,
    };
    let device = Arc::new(InstantDevice::new(grid.subchunk_bytes()));
    let limits = DeviceLimits {
        device_memory: Some(4 << 30),
        pinned_memory: 1 << 30,
        ..DeviceLimits::default()
    };
    let engine = CudaEngine::new(Devices::new(vec![device.clone()]), limits, Tuning::DEFAULT);
    let kind = engine.kind(&grid, &chain)?;
    let shard = vec![1; grid.shard_bytes()];
    // SAFETY: the encoded shards are dropped unread.
    let copiers = unsafe { Copiers::that_copy_nothing(threads.get() - 1) };
    let mut times = Vec::new();
    let mut calls = 0;
    for _ in 0..ROUNDS {
        let before = device.calls().all();
        times.push(engine.in_lane(&kind, |session| {
            let session = Session {
                lane: session.lane,
                sizing: session.sizing,
                events: FreeEvents::new(session.lane),
                copiers: &copiers,
                counters: session.counters,
                times: false,
            };
            let begin = Instant::now();
            encode::encode(&session, &job, &kind, &shard, (0, 0))?;
            Ok(begin.elapsed())
        })?);
        calls = device.calls().all() - before;
    }
    times.sort();
    let median: Duration = times[ROUNDS / 2];
    let slabs = grid.shard_bytes() / Tuning::DEFAULT.for_shards_of(grid.shard_bytes()).slab;
    #[allow(clippy::cast_precision_loss, reason = "few slabs")]
    let of_slab = |time: Duration| time.as_secs_f64() * 1e6 / slabs as f64;
    println!(
        "a shard of {} MiB in {slabs} slabs: {calls} calls of the driver; without the copies {:.1} µs a slab (from {:.1} to {:.1}), goal {GOAL}",
        grid.shard_bytes() >> 20,
        of_slab(median),
        of_slab(times[0]),
        of_slab(times[ROUNDS - 1]),
    );
    println!("{:#?}", device.calls());
    Ok(())
}
