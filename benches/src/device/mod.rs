//! Measures a device and the engine on it. Ratios compare measurements that took turns in one
//! process.
//!
//! | file | measurement |
//! |---|---|
//! | `on_device` | kernels, relative to a copy within the device |
//! | `bus` | copies in either direction, and in both at once |
//! | `pinned` | the engine without its copies on the host, relative to `bus` |
//! | `staging` | kinds of pinned memory for uploads |
//! | `inputs` | inputs of streams: filled, and read back |
//! | `whole` | the whole engine, relative to its slowest inevitable step, and to the host |
//! | `compressed` | the same with compressors, also relative to nvCOMP alone and to zarrs |
//! | `sweep` | the parameters of [`Tuning`] |
//! | `chunks` | nvCOMP alone by number and size of chunks, beside threads of the host |
//! | `shards` | whole shards of each kind of data, encoded and decoded, and their ratios |
//! | `stream` | writers of streams and of levels, beside the host engine |
//! | `reads` | arrays and crops into the memory of the device, beside the host and a copy |
//! | `start` | the first times of a process |
//!
//! Every operation is run before it is timed, and its result is checked. The reference is the host
//! engine, or the plain bytes if the operation only moves them. The host decompresses compressed
//! bytes. The only exception is `pinned`.

mod bus;
mod chunks;
mod compressed;
mod failure;
mod inputs;
mod on_device;
mod pinned;
mod program;
mod reads;
mod report;
mod samples;
mod shards;
mod staging;
mod start;
mod stream;
mod sweep;
#[cfg(test)]
mod tests;
mod volumes;
mod whole;
mod workbench;

pub use program::program;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use bus::Bus;
use failure::Result;
use report::Report;
use workbench::Workbench;
use zarrs_cuda_engine::contract::{Chain, EncodedShard, Engine, KnownChain, ShardJob, Stage};
use zarrs_cuda_engine::cuda::driver::{self, Driver};
use zarrs_cuda_engine::cuda::{CudaEngine, DeviceLimits, Devices, Tuning};
use zarrs_cuda_engine::host::HostEngine;
use zarrs_cuda_engine::layout::SubchunkGrid;

/// The size of an element, in bytes: uint16.
pub(crate) const ELEMENT: usize = 2;

/// The fill value. No subchunk is full of it, neither in the data nor in pinned memory that was
/// never written, which a system may have zeroed.
pub(crate) const FILL_VALUE: [u8; ELEMENT] = [0xd6, 0x2b];

/// The sizes and numbers of the measurements.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// Elements along each of the three axes of the box on the device.
    pub(crate) edge: usize,
    /// Elements along each axis of the box's subchunks.
    pub(crate) subchunk: usize,
    /// The lengths of gathered runs to measure, in bytes.
    pub(crate) runs: Vec<usize>,
    /// The shortest run whose gathering has a goal.
    pub(crate) shortest_run: usize,
    /// The length of a copy over the bus, in bytes.
    pub(crate) copy: usize,
    /// The length of copies that are not timed, in bytes.
    pub(crate) staging: usize,
    /// The edges of shards. The last one is used for tuning.
    pub(crate) shards: Vec<usize>,
    /// The numbers of concurrent calls.
    pub(crate) calls: Vec<usize>,
    /// The total length of the distinct shards that calls cycle through, in bytes, if the data
    /// suffice.
    pub(crate) distinct: usize,
    /// The least time that each operation runs before it is timed: clocks rise, and memory is
    /// faulted in.
    pub(crate) warm_up: Duration,
    /// How often each operation is timed.
    pub(crate) rounds: usize,
    pub(crate) tuning: Tuning,
    pub(crate) limits: DeviceLimits,
    pub(crate) slabs: Vec<usize>,
    pub(crate) rings: Vec<usize>,
    pub(crate) batches: Vec<usize>,
    /// The numbers of batches in flight.
    pub(crate) in_flight: Vec<usize>,
    pub(crate) threads: Vec<usize>,
    pub(crate) sweep_rounds: usize,
    /// The time limit of the sweep.
    pub(crate) sweep_time: Duration,
    /// The file of nvCOMP; `None` searches for one.
    pub(crate) nvcomp: Option<PathBuf>,
    /// The numbers of concurrent calls with a compressor, and how often they are timed.
    pub(crate) compressed_calls: Vec<usize>,
    pub(crate) compressed_rounds: usize,
    /// The memory of the engine with a compressor; `None` selects the default.
    pub(crate) compressed_memory: Option<usize>,
    pub(crate) compressed_batches: Vec<usize>,
    /// The numbers of streams of kernels.
    pub(crate) streams: Vec<usize>,
    /// The numbers of chunks that nvCOMP compresses at once, and their sizes in bytes.
    pub(crate) chunk_counts: Vec<usize>,
    pub(crate) chunk_bytes: Vec<usize>,
    /// The most bytes of chunks at once. More are left out.
    pub(crate) chunk_memory: usize,
    /// The time limit of the measurements of chunks.
    pub(crate) chunk_time: Duration,
    /// The numbers of threads of the host beside nvCOMP.
    pub(crate) host_threads: Vec<usize>,
    /// Elements along each axis of the shards of each kind of data, and their concurrent calls.
    pub(crate) volume: usize,
    pub(crate) volume_calls: Vec<usize>,
    pub(crate) stream: stream::Lengths,
    pub(crate) reads: reads::Shapes,
}

impl Sizes {
    /// The sizes for a device with 8 GiB of memory or more.
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
            limits: DeviceLimits {
                devices: None,
                device_memory: Some(2 << 30),
                pinned_memory: 2 << 30,
                idle: None,
                ..DeviceLimits::default()
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
            compressed_batches: vec![64 << 20, 128 << 20, 256 << 20],
            streams: vec![1, 2, 3],
            chunk_counts: vec![16, 64, 256, 1024],
            chunk_bytes: vec![16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20],
            chunk_memory: 1 << 30,
            chunk_time: Duration::from_secs(10),
            host_threads: vec![1, 4, 8, 16],
            volume: 256,
            volume_calls: vec![1, 8],
            stream: stream::Lengths {
                frame: 1024,
                shard: 256,
                epochs: 2,
                subchunks: vec![32, 64],
                rounds: 3,
                time: Duration::from_secs(150),
            },
            reads: reads::Shapes {
                edge: 512,
                shard: 256,
                crop: 64,
                crops: 64,
                subchunks: vec![32, 64],
                rounds: 3,
                time: Duration::from_secs(35),
            },
        }
    }

    /// The size of the box, in bytes.
    pub(crate) fn box_len(&self) -> usize {
        self.edge.pow(3) * ELEMENT
    }

    /// The size of the generated data, in bytes: the box, and more for runs with gaps.
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

    /// The job of one of `calls` concurrent calls.
    fn job(&self, calls: usize) -> ShardJob<'_> {
        self.job_of_threads(cores().get() / calls.max(1))
    }

    fn job_of_threads(&self, threads: usize) -> ShardJob<'_> {
        ShardJob {
            grid: &self.grid,
            chain: Chain::Known(&self.chain),
            fill_value: &FILL_VALUE,
            store_empty: false,
            validate_checksums: true,
            threads: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN),
            huge_pages: true,
        }
    }

    /// Encodes `decoded` on the host engine.
    fn encode_on_host(&self, decoded: &[u8]) -> Result<EncodedShard> {
        Ok(HostEngine.encode(&self.job(1), decoded, 0, 0)?)
    }

    /// Splits `data` into shards.
    fn shards_of<'a>(&self, data: &'a [u8]) -> Vec<&'a [u8]> {
        data.chunks_exact(self.grid.shard_bytes()).collect()
    }
}

pub(crate) fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Generates bytes in which no subchunk is empty, and no two subchunks are alike.
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

/// What to measure, and where results go.
pub(crate) struct Run<'a> {
    /// Whether to measure a section, one of [`SECTIONS`] and [`NAMED_SECTIONS`].
    pub(crate) wants: &'a dyn Fn(&str) -> bool,
    /// Takes each result, as a line, as soon as it is known.
    pub(crate) say: &'a dyn Fn(&str),
    /// Takes all results so far, after each section.
    pub(crate) save: &'a dyn Fn(&Value),
}

/// The sections, in order.
pub(crate) const SECTIONS: [&str; 8] = [
    "kernels",
    "bus",
    "pinned",
    "staging",
    "inputs",
    "whole",
    "compressed",
    "sweep",
];

/// The sections that are measured only where they are named, in order. The first one is of a process that has
/// not used a device yet.
pub(crate) const NAMED_SECTIONS: [&str; 5] = ["start", "chunks", "stream", "reads", "shards"];

/// Measures the first device of this process.
fn of_process(sizes: &Sizes, run: &Run<'_>) -> std::result::Result<Value, String> {
    let begin = Instant::now();
    let drivers = driver::cuda::open_all().map_err(|error| error.to_string())?;
    let Some(driver) = drivers.drivers.into_iter().next() else {
        return Err("there is no CUDA device".to_string());
    };
    let opened = begin.elapsed();
    let mut report = Report::new(driver.device(), sizes, run.say);
    if (run.wants)("start") {
        let start = start::measure(&driver, opened, sizes, &mut report);
        report.failed("the start of a process", start);
        (run.save)(&report.so_far());
    }
    if (run.wants)("stream") {
        stream::measure(driver.device().ordinal, sizes, run, &mut report);
        (run.save)(&report.so_far());
    }
    if (run.wants)("reads") {
        let reads = reads::measure(&*driver, sizes, run, &mut report);
        report.failed("reads into the memory of the device", reads);
        (run.save)(&report.so_far());
    }
    measure_more(&driver, sizes, run, &mut report);
    Ok(report.finish())
}

/// Opens the first device, and copies bytes there and back: a sign that the device still answers.
///
/// # Errors
/// The device does not answer, or not with the same bytes.
pub(crate) fn probe() -> std::result::Result<(), String> {
    let drivers = driver::cuda::open_all().map_err(|error| error.to_string())?;
    let driver = drivers.drivers.into_iter().next();
    let driver = driver.ok_or("there is no CUDA device")?;
    let there_and_back = || -> Result<()> {
        let workbench = Workbench::new(&*driver, 1 << 16)?;
        let span = workbench.device(1 << 20)?;
        let bytes = made_up(span.len);
        workbench.upload(span, &bytes)?;
        workbench.check("what came back", span, [(0, &bytes[..])])
    };
    there_and_back().map_err(|failure| failure.0)
}

/// Measures the sections that need no process of their own. Failures are listed in `errors`, and do not stop the
/// other measurements.
fn measure_more(driver: &Arc<dyn Driver>, sizes: &Sizes, run: &Run<'_>, report: &mut Report<'_>) {
    let mut limits = sizes.limits.clone();
    limits.devices = Some(vec![driver.device().ordinal]);
    let engine = CudaEngine::new(Devices::new(vec![driver.clone()]), limits, sizes.tuning);
    if (run.wants)("chunks") {
        let chunks = chunks::measure(&**driver, &engine, sizes, report);
        report.failed("chunks", chunks);
        (run.save)(&report.so_far());
    }
    if (run.wants)("shards") {
        let shards = shards::measure(&engine, sizes, run, report);
        report.failed("shards of each kind of data", shards);
        (run.save)(&report.so_far());
    }
    if !SECTIONS.iter().any(|section| (run.wants)(section)) {
        return;
    }
    let data = made_up(sizes.data_len());
    if (run.wants)("kernels") {
        let kernels = on_device::measure(&**driver, sizes, &data, report);
        report.failed("kernels on the device", kernels);
        (run.save)(&report.so_far());
    }
    let engine = of_engine(driver, &engine, sizes, &data, run, report);
    report.failed("the engine", engine);
}

/// Measures everything except the kernels alone.
fn of_engine(
    driver: &Arc<dyn Driver>,
    engine: &CudaEngine,
    sizes: &Sizes,
    data: &[u8],
    run: &Run<'_>,
    report: &mut Report<'_>,
) -> Result<()> {
    if !SECTIONS[1..].iter().any(|section| (run.wants)(section)) {
        return Ok(());
    }
    let workbench = Workbench::new(&**driver, sizes.staging)?;
    let bus = Bus::new(&workbench, sizes, data)?;
    for section in &SECTIONS[1..] {
        if !(run.wants)(section) {
            continue;
        }
        let (what, outcome) = match *section {
            "bus" => ("the bus", bus.measure(sizes, report)),
            "pinned" => (
                "the engine from pinned to pinned memory",
                pinned::measure(engine, &bus, sizes, data, report),
            ),
            "staging" => (
                "pinned memory for the way to the device",
                staging::measure(engine, &bus, sizes, data, report),
            ),
            "inputs" => (
                "inputs of streams",
                inputs::measure(engine, bus.workbench, sizes, data, report),
            ),
            "whole" => (
                "the engine as it is called",
                whole::measure(engine, &bus, sizes, data, report),
            ),
            "compressed" => (
                "the engine with a compressor",
                compressed::measure(engine, &bus, sizes, report),
            ),
            _ => (
                "the sweep over the tuning",
                sweep::measure(engine, sizes, data, report),
            ),
        };
        report.failed(what, outcome);
        (run.save)(&report.so_far());
    }
    Ok(())
}
