//! The crate on devices: the engines that are chosen, writers, images and updates.
//!
//! | file | devices |
//! |---|---|
//! | `on_gpu` | the first GPU of this machine; the tests are skipped if there is none |
//! | `processes` | the emulated driver, in processes of their own |
//! | the others | simulated devices, which see what each operation reads and writes |
//!
//! `suites` has bodies of tests that simulated devices and a GPU share.

mod choice;
mod conformance;
mod copies;
mod foreign;
#[allow(unsafe_code)]
mod images;
mod on_gpu;
mod partial_writes;
#[allow(unsafe_code)]
mod placing;
#[cfg(target_os = "linux")]
mod processes;
#[allow(unsafe_code)]
mod reading;
mod requests;
mod rule;
#[allow(unsafe_code)]
mod suites;
mod traffic;
mod warm_up;
#[allow(unsafe_code)]
mod writer;

use std::num::NonZeroUsize;
use std::sync::Arc;

use zarrs_cuda_engine::contract::{
    Chain, EncodedShard, Engine, EngineError, KnownChain, ShardJob, Stage,
};
use zarrs_cuda_engine::cuda::driver::Driver;
use zarrs_cuda_engine::cuda::{Devices, Tuning};
use zarrs_cuda_engine::fakes::simulation::{Config, Live, Schedule, Simulation};
use zarrs_cuda_engine::host::HostEngine;
use zarrs_cuda_engine::layout::SubchunkGrid;

/// In which order a device runs its work: as late as possible, at once, or any.
fn schedule_of(seed: u64) -> Schedule {
    match seed % 8 {
        0 => Schedule::Eager,
        1 => Schedule::Latest,
        _ => Schedule::Priority(seed),
    }
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

/// A shard whose every third subchunk is empty, and its encoding by the host engine.
struct Shard {
    grid: SubchunkGrid,
    chain: KnownChain,
    elements: Vec<u8>,
    expected: EncodedShard,
}

impl Shard {
    /// 3 × 4 × 3 subchunks of 16 × 5 × 6 elements of 2 bytes, with these stages.
    fn new(stages: Vec<Stage>) -> Self {
        let shape: [usize; 3] = [48, 20, 18];
        let grid = SubchunkGrid::new(&[48, 20, 18], &[16, 5, 6], 2).unwrap();
        let elements = (0..shape.iter().product())
            .flat_map(|i: usize| {
                let (z, y, x) = (i / 360, i / 18 % 20, i % 18);
                let subchunk = (z / 16 * 4 + y / 5) * 3 + x / 6;
                if subchunk % 3 == 1 {
                    [7, 0x80]
                } else {
                    [(i * 7) as u8, (i >> 3) as u8]
                }
            })
            .collect();
        let mut this = Self {
            grid,
            chain: KnownChain {
                order: vec![0, 2, 1],
                swap: 2,
                stages,
            },
            elements,
            expected: EncodedShard {
                bytes: Vec::new(),
                extents: Vec::new(),
            },
        };
        this.expected = HostEngine
            .encode(&this.job(), &this.elements, 3, 5)
            .unwrap();
        this
    }

    fn job(&self) -> ShardJob<'_> {
        ShardJob {
            grid: &self.grid,
            chain: Chain::Known(&self.chain),
            fill_value: &[7, 0x80],
            store_empty: false,
            validate_checksums: true,
            threads: NonZeroUsize::MIN,
            huge_pages: false,
        }
    }

    /// Encodes and decodes on `engine`, and compares the results with the host's. The chain has no
    /// compressor.
    fn round_trip(&self, engine: &dyn Engine) -> Result<(), EngineError> {
        let (job, expected) = (self.job(), &self.expected);
        let encoded = engine.encode(&job, &self.elements, 3, 5)?;
        assert_eq!(encoded.extents, expected.extents);
        assert!(encoded.bytes == expected.bytes, "other bytes");
        let decoded = engine.decode(&job, &encoded.bytes, &encoded.extents)?;
        assert!(decoded == self.elements, "other elements");
        Ok(())
    }
}
