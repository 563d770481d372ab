//! How fast a device is, and the engine on it: ratios of what is measured in turns, in one process.
//!
//! | file | what it measures |
//! |---|---|
//! | `on_device` | kernels, against a copy within the device |
//! | `bus` | copies in either direction, and in both at once |
//! | `pinned` | the engine without its copies on the host, against `bus` |
//! | `staging` | kinds of pinned memory for the way to the device |
//! | `whole` | the engine as it is called, against the slowest thing that it cannot avoid, and the host |
//! | `compressed` | the same with compressors, nvCOMP alone and zarrs among what it is compared with |
//! | `sweep` | the numbers of [`Tuning`] |
//!
//! Whatever is timed was run before, and what it gave was compared with the host engine, or
//! with the plain bytes where nothing but their places changes; what was compressed, the host
//! decompressed to what it was. The one exception is `pinned`.

pub(crate) mod bus;
pub(crate) mod compressed;
pub(crate) mod failure;
pub(crate) mod on_device;
pub(crate) mod pinned;
pub(crate) mod report;
pub(crate) mod samples;
pub(crate) mod staging;
pub(crate) mod sweep;
pub(crate) mod whole;
pub(crate) mod workbench;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use bus::Bus;
use failure::Result;
use report::Report;
use workbench::Workbench;
use zarrs_cuda::internals::cuda::driver::{self, Driver};
use zarrs_cuda::internals::cuda::{CudaEngine, Devices, Limits, Tuning};
use zarrs_cuda::internals::engine::{Chain, EncodedShard, Engine, Job, KnownChain, Stage};
use zarrs_cuda::internals::host::HostEngine;
use zarrs_cuda::internals::layout::SubchunkGrid;

/// Bytes of an element: uint16.
pub(crate) const ELEMENT: usize = 2;

/// No subchunk is full of it: neither of the data, nor of pinned memory that was never written, which
/// a system may have zeroed.
pub(crate) const FILL_VALUE: [u8; ELEMENT] = [0xd6, 0x2b];

/// How much is measured.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// Elements along each of the three axes of the box that lies on the device.
    pub(crate) edge: usize,
    /// And of its subchunks.
    pub(crate) subchunk: usize,
    /// Bytes of the runs that are gathered, in turn.
    pub(crate) runs: Vec<usize>,
    /// The shortest run whose gathering has a goal.
    pub(crate) shortest_run: usize,
    /// Bytes of a copy over the bus.
    pub(crate) copy: usize,
    /// Bytes that are moved at once where time does not matter.
    pub(crate) staging: usize,
    /// Edges of shards, the one that is tuned for last.
    pub(crate) shards: Vec<usize>,
    /// Calls at the same time.
    pub(crate) calls: Vec<usize>,
    /// Bytes of distinct shards that calls work through, if there is that much.
    pub(crate) distinct: usize,
    /// How long everything runs at least before it is timed: clocks rise, and memory is faulted in.
    pub(crate) warm_up: Duration,
    /// How often everything is timed.
    pub(crate) rounds: usize,
    pub(crate) tuning: Tuning,
    pub(crate) limits: Limits,
    pub(crate) slabs: Vec<usize>,
    pub(crate) rings: Vec<usize>,
    pub(crate) batches: Vec<usize>,
    /// Batches on their way at once.
    pub(crate) in_flight: Vec<usize>,
    pub(crate) threads: Vec<usize>,
    pub(crate) sweep_rounds: usize,
    /// How long the sweep may take.
    pub(crate) sweep_time: Duration,
    /// The file of nvCOMP; `None` to look for one.
    pub(crate) nvcomp: Option<PathBuf>,
    /// Calls at the same time, with a compressor, and how often they are timed.
    pub(crate) compressed_calls: Vec<usize>,
    pub(crate) compressed_rounds: usize,
    /// Of the engine with a compressor; `None` for what it takes unless told.
    pub(crate) compressed_memory: Option<usize>,
    pub(crate) compressed_batches: Vec<usize>,
}

impl Sizes {
    /// For a device with 8 GiB of memory or more.
    fn of_hardware() -> Self {
        Self {
            edge: 1024,
            subchunk: 32,
            runs: vec![64 << 10, 16 << 10, 4 << 10],
            shortest_run: 16 << 10,
            copy: 512 << 20,
            staging: 64 << 20,
            shards: vec![256, 512],
            calls: vec![1, 2, 4, 8],
            distinct: (1 << 30) + 1,
            warm_up: Duration::from_millis(300),
            rounds: 7,
            tuning: Tuning::DEFAULT,
            limits: Limits {
                devices: None,
                device_memory: Some(2 << 30),
                pinned_memory: 2 << 30,
            },
            slabs: vec![1 << 20, 2 << 20, 4 << 20, 8 << 20],
            rings: vec![3, 4, 6],
            batches: vec![4 << 20, 8 << 20, 16 << 20, 32 << 20],
            in_flight: vec![2, 3],
            threads: vec![2, 4, 8, 16],
            sweep_rounds: 3,
            sweep_time: Duration::from_secs(80),
            nvcomp: None,
            compressed_calls: vec![1, 4],
            compressed_rounds: 5,
            compressed_memory: None,
            compressed_batches: vec![32 << 20, 64 << 20, 128 << 20, 256 << 20],
        }
    }

    /// Bytes of the box.
    pub(crate) fn box_len(&self) -> usize {
        self.edge.pow(3) * ELEMENT
    }

    /// Bytes of made-up data: the box, and some more for runs that do not lie densely.
    pub(crate) fn data_len(&self) -> usize {
        self.box_len() + self.box_len() / 16
    }
}

/// Shards of one shape and chain.
#[derive(Clone, Debug)]
struct Kind {
    grid: SubchunkGrid,
    chain: KnownChain,
}

impl Kind {
    /// Shards of `edge` by `edge` by `edge` elements.
    fn new(edge: usize, subchunk: usize, order: &[usize], stages: &[Stage]) -> Result<Self> {
        Ok(Self {
            grid: SubchunkGrid::new(&[edge as u64; 3], &[subchunk as u64; 3], ELEMENT)?,
            chain: KnownChain {
                order: order.to_vec(),
                swap: 1,
                stages: stages.to_vec(),
            },
        })
    }

    /// The job of one of `calls` at the same time.
    fn job(&self, calls: usize) -> Job<'_> {
        self.job_of_threads(cores().get() / calls.max(1))
    }

    fn job_of_threads(&self, threads: usize) -> Job<'_> {
        Job {
            grid: &self.grid,
            chain: Chain::Known(&self.chain),
            fill_value: &FILL_VALUE,
            store_empty: false,
            validate_checksums: true,
            threads: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN),
            huge_pages: true,
        }
    }

    /// What the host engine makes of `decoded`.
    fn encode_on_host(&self, decoded: &[u8]) -> Result<EncodedShard> {
        Ok(HostEngine.encode(&self.job(1), decoded, 0, 0)?)
    }

    /// The parts of `data` that are shards.
    fn shards_of<'a>(&self, data: &'a [u8]) -> Vec<&'a [u8]> {
        data.chunks_exact(self.grid.shard_bytes()).collect()
    }
}

pub(crate) fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Bytes of which no subchunk is empty, and no two alike.
pub(crate) fn made_up(len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    let part = len.div_ceil(cores().get()).next_multiple_of(8).max(8);
    std::thread::scope(|scope| {
        for (number, part) in data.chunks_mut(part).enumerate() {
            scope.spawn(move || {
                let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(number as u64 + 1);
                for word in part.chunks_mut(8) {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
                }
            });
        }
    });
    data
}

/// Measure the first device of this machine, and show each result to `say` when it is there.
///
/// # Errors
/// There is no device that can be used: why.
pub(crate) fn first_device(say: &dyn Fn(&str)) -> std::result::Result<Value, String> {
    let drivers = driver::open_all().map_err(|error| error.to_string())?;
    let Some(driver) = drivers.into_iter().next() else {
        return Err("there is no CUDA device".to_string());
    };
    Ok(measure(&driver, &Sizes::of_hardware(), say))
}

/// Measure everything. What failed is among the `errors`, and the rest is measured all the same.
pub(crate) fn measure(driver: &Arc<dyn Driver>, sizes: &Sizes, say: &dyn Fn(&str)) -> Value {
    let mut report = Report::new(driver.device(), sizes, say);
    let data = made_up(sizes.data_len());
    let kernels = on_device::measure(&**driver, sizes, &data, &mut report);
    report.failed("kernels on the device", kernels);
    let engine = of_engine(driver, sizes, &data, &mut report);
    report.failed("the engine", engine);
    report.finish()
}

/// Everything but the kernels alone.
pub(crate) fn of_engine(
    driver: &Arc<dyn Driver>,
    sizes: &Sizes,
    data: &[u8],
    report: &mut Report<'_>,
) -> Result<()> {
    let workbench = Workbench::new(&**driver, sizes.staging)?;
    let bus = Bus::new(&workbench, sizes, data)?;
    bus.measure(sizes, report)?;
    let mut limits = sizes.limits.clone();
    limits.devices = Some(vec![driver.device().ordinal]);
    let devices = Devices::new(vec![driver.clone()]);
    let engine = CudaEngine::new(devices, limits, sizes.tuning);
    let pinned = pinned::measure(&engine, &bus, sizes, data, report);
    report.failed("the engine from pinned to pinned memory", pinned);
    let staging = staging::measure(&engine, &bus, sizes, data, report);
    report.failed("pinned memory for the way to the device", staging);
    let whole = whole::measure(&engine, &bus, sizes, data, report);
    report.failed("the engine as it is called", whole);
    let compressed = compressed::measure(&engine, &bus, sizes, report);
    report.failed("the engine with a compressor", compressed);
    let swept = sweep::measure(&engine, sizes, data, report);
    report.failed("the sweep over the tuning", swept);
    Ok(())
}
