//! The engine on simulated devices, with emulated kernels.

mod bodies;
mod calls;
mod compression;
mod decompression;
mod download;
mod faults;
mod faulty_reads;
mod handing_over;
pub(super) mod hangs;
mod kernels_alone;
mod lanes;
#[cfg(target_os = "linux")]
mod numa;
mod order;
mod reading;
mod schedules;
mod shut_down;
mod slabs;
mod split_blosc;
mod stream;
mod warm_up;
mod wrong_results;

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::contract::{Chain, Engine, EngineError, KnownChain, ShardJob, Stage};
use crate::cuda::driver::Driver;
use crate::cuda::driver::simulation::{Config, Live, Schedule, Simulation};
use crate::cuda::sizing::ShardKind;
use crate::cuda::{CudaEngine, DeviceLimits, Devices, Tuning};
use crate::fallback::WithFallback;
use crate::host::HostEngine;
use crate::layout::SubchunkGrid;

/// In which order a device runs its work: as late as possible, at once, or any.
fn schedule_of(seed: u64) -> Schedule {
    match seed % 8 {
        0 => Schedule::Eager,
        1 => Schedule::Latest,
        _ => Schedule::Priority(seed),
    }
}

pub(super) fn limits() -> DeviceLimits {
    DeviceLimits {
        devices: None,
        device_memory: Some(1 << 24),
        pinned_memory: 1 << 24,
        idle: None,
        ..DeviceLimits::default()
    }
}

/// A shard, its chain, and elements that leave some subchunks empty.
pub(super) struct Shard {
    grid: SubchunkGrid,
    chain: KnownChain,
    elements: Vec<u8>,
    fill_value: Vec<u8>,
    store_empty: bool,
}

/// The subchunks of a [`Shard`] that are empty.
#[derive(Clone, Copy, Debug)]
enum Empty {
    EachThird,
    /// The subchunks below this number: the batches that they fill have nothing to copy back.
    First(usize),
    /// The subchunks from the first number to before the second.
    Within(usize, usize),
    All,
}

/// The number of subchunks of a [`Shard`].
const SUBCHUNKS: usize = 36;

impl Shard {
    /// A shard whose every third subchunk is empty.
    pub(super) fn new(stages: usize) -> Self {
        Self::with(stages, Empty::EachThird, false)
    }

    /// 3 × 4 × 3 subchunks of 2 × 5 × 6 elements of 2 bytes.
    fn with(stages: usize, empty: Empty, store_empty: bool) -> Self {
        let grid = SubchunkGrid::new(&[6, 20, 18], &[2, 5, 6], 2).expect("divides");
        let chain = KnownChain {
            order: vec![0, 2, 1],
            swap: 2,
            stages: vec![Stage::Crc32c; stages],
        };
        let fill_value = vec![7, 0x80];
        let elements = (0..6 * 20 * 18)
            .flat_map(|i: usize| {
                let (z, y, x) = (i / 360, i / 18 % 20, i % 18);
                let subchunk = (z / 2 * 4 + y / 5) * 3 + x / 6;
                let empty = match empty {
                    Empty::EachThird => subchunk % 3 == 1,
                    Empty::First(end) => subchunk < end,
                    Empty::Within(start, end) => (start..end).contains(&subchunk),
                    Empty::All => true,
                };
                if empty {
                    [7, 0x80]
                } else {
                    [(i * 7) as u8, (i >> 3) as u8]
                }
            })
            .collect();
        Self {
            grid,
            chain,
            elements,
            fill_value,
            store_empty,
        }
    }

    /// Shards of several kinds, by number.
    fn of_kind(kind: usize) -> Self {
        let stages = [1, 0, 2][kind % 3];
        let empty = [
            Empty::EachThird,
            Empty::First(9),
            Empty::First(20),
            Empty::Within(9, 27),
            Empty::Within(18, SUBCHUNKS),
            Empty::All,
            Empty::First(0),
        ][kind % 7];
        Self::with(stages, empty, kind % 5 == 4)
    }

    /// Returns the device's view of the shard, without a compressor.
    fn kind(&self) -> ShardKind {
        ShardKind::new(self.grid.clone(), self.chain.clone())
    }

    fn job(&self) -> ShardJob<'_> {
        ShardJob {
            grid: &self.grid,
            chain: Chain::Known(&self.chain),
            fill_value: &self.fill_value,
            store_empty: self.store_empty,
            validate_checksums: true,
            threads: NonZeroUsize::MIN,
            huge_pages: false,
        }
    }

    /// Encodes the shard and decodes it again on `engine`, and compares both with the host.
    pub(super) fn round_trip(&self, engine: &dyn Engine) -> Result<(), EngineError> {
        let job = self.job();
        let host = HostEngine.encode(&job, &self.elements, 3, 5)?;
        let encoded = engine.encode(&job, &self.elements, 3, 5)?;
        assert_eq!(encoded.extents, host.extents);
        assert_eq!(encoded.bytes, host.bytes);
        let decoded = engine.decode(&job, &encoded.bytes, &encoded.extents)?;
        assert!(decoded == self.elements, "decodes to something else");
        Ok(())
    }

    /// Encodes and decodes the shard on `engine`. Its chain may be any.
    fn run(&self, engine: &(impl Engine + Clone)) -> Result<(), EngineError> {
        if self.chain.is_fixed_size() {
            self.round_trip(engine)
        } else {
            self.there_and_back(engine).map(|_| ())
        }
    }
}

/// `engine`, with the host for shards that a device does not decode.
fn strict<E: Engine + Clone>(engine: &E) -> WithFallback<E> {
    WithFallback::strict(engine.clone())
}

/// Returns an engine on one simulated device.
fn engine_on(simulation: &Arc<Simulation>) -> CudaEngine {
    engine_on_all(std::slice::from_ref(simulation))
}

fn engine_on_all(simulations: &[Arc<Simulation>]) -> CudaEngine {
    let drivers = simulations
        .iter()
        .map(|simulation| simulation.clone() as Arc<dyn Driver>)
        .collect();
    CudaEngine::new(Devices::new(drivers), limits(), Tuning::TINY)
}

/// Returns the engine with `streams` streams of kernels in each lane.
fn with_streams(mut engine: CudaEngine, streams: usize) -> CudaEngine {
    engine.tuning.streams = streams;
    engine
}

fn simulation(schedule: Schedule) -> Arc<Simulation> {
    Arc::new(Simulation::new(Config {
        schedule,
        ..Config::default()
    }))
}

/// Asserts that no rule was broken, and that nothing is left after the engine is gone.
fn assert_clean(simulation: &Simulation) {
    let violations = simulation.violations();
    assert!(violations.is_empty(), "{violations:#?}");
    assert_eq!(simulation.live(), Live::default());
    assert_eq!(
        simulation.uploads_read(),
        0,
        "bytes of write-combined memory"
    );
}
