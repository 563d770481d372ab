//! The whole engine: from an ordinary `Vec` to a new one.
//!
//! The engine cannot be faster than the slowest of three: a copy to the device, copies from a `Vec`
//! to a ring of pinned memory, and copies from such a ring to a new `Vec`. The last two use the
//! engine's own threads. Each is timed alone, in turns with the engine, and so is the host engine.

use std::cell::Cell;
use std::sync::Barrier;
use std::time::Instant;

use serde_json::{Value, json};

use super::bus::Bus;
use super::failure::{Failure, Result, require};
use super::report::{Report, Row};
use super::samples::{race, rate};
use super::{Kind, Sizes, cores};
use crate::warm;
use zarrs_cuda_engine::contract::{EncodedShard, Engine, EngineError, ShardJob, Stage};
use zarrs_cuda_engine::cuda::CudaEngine;
use zarrs_cuda_engine::cuda::DeviceMetrics;
use zarrs_cuda_engine::cuda::copiers::Copy;
use zarrs_cuda_engine::cuda::driver::{PinnedSpan, PinnedUse};
use zarrs_cuda_engine::host::HostEngine;
use zarrs_cuda_engine::memory::allocate;

/// The goal, as a part of the slowest step that the engine cannot avoid.
const GOAL: f64 = 0.8;

/// The purpose of the memory, for error messages.
const OUTPUT: &str = "a benchmark's output";

/// Runs `calls` concurrent calls of `f`. Before the clock starts, `output` bytes of memory are touched
/// and freed for each call. Returns the seconds from the start of the first to the end
/// of the last, and the results, which are dropped after the clock has stopped.
pub(crate) fn together<T: Send>(
    calls: usize,
    output: usize,
    f: impl Fn(usize) -> std::result::Result<T, EngineError> + Sync,
) -> Result<(f64, Vec<T>)> {
    let barrier = Barrier::new(calls);
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..calls)
            .map(|call| {
                let (barrier, f) = (&barrier, &f);
                scope.spawn(move || {
                    let touched = warm::touch(output);
                    barrier.wait();
                    let begin = Instant::now();
                    let result = f(call);
                    (begin, Instant::now(), touched.map(|()| result))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect()
    });
    let (mut begins, mut ends, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for result in results {
        let (begin, end, value) = result.map_err(|_| Failure("a call panicked".to_string()))?;
        begins.push(begin);
        ends.push(end);
        values.push(value??);
    }
    let (begin, end) = (begins.into_iter().min(), ends.into_iter().max());
    let seconds = begin
        .zip(end)
        .map_or(0.0, |(begin, end)| (end - begin).as_secs_f64());
    Ok((seconds, values))
}

/// The time on the device for each stage of some shards.
pub(crate) struct Stages {
    before: DeviceMetrics,
    after: DeviceMetrics,
    shard: usize,
}

impl Stages {
    /// Shards with `shard` decoded bytes that were processed since `before`.
    pub(crate) fn since(before: &DeviceMetrics, engine: &CudaEngine, shard: usize) -> Self {
        Self {
            before: before.clone(),
            after: engine.counters().snapshot(),
            shard,
        }
    }

    /// The rate of each stage that took time, in GB/s. Copies count copied bytes, other stages
    /// decoded bytes.
    pub(crate) fn rates(&self) -> Value {
        let (before, after) = (&self.before, &self.after);
        let up = after.bytes_to_device - before.bytes_to_device;
        let down = after.bytes_from_device - before.bytes_from_device;
        let shards = after.shards_encoded + after.shards_decoded
            - before.shards_encoded
            - before.shards_decoded;
        // Shards of calls without copies on the host are not counted. Such calls move as many
        // bytes.
        let decoded = match usize::try_from(shards) {
            Ok(shards) if shards > 0 => shards * self.shard,
            _ => usize::try_from(up).unwrap_or(0),
        };
        let bytes = |n: u64| usize::try_from(n).unwrap_or(0);
        let stages = [
            (
                "to_device",
                bytes(up),
                after.to_device.saturating_sub(before.to_device),
            ),
            (
                "scatter",
                decoded,
                after.scatter.saturating_sub(before.scatter),
            ),
            (
                "crc32c",
                decoded,
                after.crc32c.saturating_sub(before.crc32c),
            ),
            (
                "shuffle",
                decoded,
                after.shuffle.saturating_sub(before.shuffle),
            ),
            (
                "compress",
                decoded,
                after.compress.saturating_sub(before.compress),
            ),
            ("frame", decoded, after.frame.saturating_sub(before.frame)),
            (
                "aggregate",
                decoded,
                after.aggregate.saturating_sub(before.aggregate),
            ),
            ("split", decoded, after.split.saturating_sub(before.split)),
            (
                "unscatter",
                decoded,
                after.unscatter.saturating_sub(before.unscatter),
            ),
            (
                "from_device",
                bytes(down),
                after.from_device.saturating_sub(before.from_device),
            ),
        ];
        let rates = stages.into_iter().filter(|(_, _, time)| !time.is_zero());
        rates
            .map(|(name, bytes, time)| (name.to_string(), json!(rate(bytes, time.as_secs_f64()))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

/// Rings of pinned memory, as large as a lane's.
pub(crate) struct Rings<'a> {
    engine: &'a CudaEngine,
    bus: &'a Bus<'a, 'a>,
    slab: usize,
    to_device: PinnedSpan,
    from_device: PinnedSpan,
    /// The number of shards that were taken.
    taken: Cell<usize>,
}

impl<'a> Rings<'a> {
    pub(crate) fn new(engine: &'a CudaEngine, bus: &'a Bus<'a, 'a>, data: &[u8]) -> Result<Self> {
        let len = engine.tuning.slab * engine.tuning.ring;
        let this = Self {
            engine,
            bus,
            slab: engine.tuning.slab,
            to_device: bus.workbench.pinned(len, PinnedUse::ToDevice)?,
            from_device: bus.workbench.pinned(len, PinnedUse::FromDevice)?,
            taken: Cell::new(0),
        };
        bus.workbench.fill_pinned(this.from_device, data)?;
        Ok(this)
    }

    /// Takes the next `count` shards, and returns the number of the first. Callers share the
    /// sequence, so every shard is used before one is used again.
    pub(crate) fn take(&self, count: usize) -> usize {
        self.taken.replace(self.taken.get() + count)
    }

    /// The offset of slab `number` in a ring.
    fn place(&self, number: usize) -> usize {
        number % self.engine.tuning.ring * self.slab
    }

    /// Times copying all of `decoded` to the ring, slab by slab, in seconds.
    pub(crate) fn fill(&self, decoded: &[u8]) -> Result<f64> {
        let to = self.bus.workbench.write(self.to_device)?;
        let begin = Instant::now();
        for (i, slab) in decoded.chunks(self.slab).enumerate() {
            // SAFETY: the slab lies within the ring, which the host may write now.
            let copy = unsafe { Copy::bytes(slab.as_ptr(), to.add(self.place(i)), slab.len()) };
            self.engine.devices.copiers.run(&[copy], cores());
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Times filling a new `Vec` of `len` bytes from the ring, slab by slab, in seconds.
    pub(crate) fn empty(&self, len: usize) -> Result<f64> {
        let from = self.bus.workbench.read(self.from_device)?;
        warm::touch(len)?;
        let begin = Instant::now();
        let mut output = allocate::with_capacity(len, OUTPUT, true)?;
        for (i, at) in (0..len).step_by(self.slab).enumerate() {
            let from = &from[self.place(i)..][..self.slab.min(len - at)];
            // SAFETY: the range lies within the capacity, and only this function has the `Vec`.
            let copy = unsafe {
                let to = output.as_mut_ptr().add(at);
                Copy::bytes(from.as_ptr(), to, from.len())
            };
            self.engine.devices.copiers.run(&[copy], cores());
        }
        let seconds = begin.elapsed().as_secs_f64();
        // SAFETY: every slab of the `Vec` was copied.
        let output = unsafe { allocate::assume_filled(output, len) };
        let same = output.chunks(from.len()).all(|part| from.starts_with(part));
        require(same, || "copies to a fresh Vec: wrong bytes".to_string())?;
        Ok(seconds)
    }
}

pub(crate) fn measure(
    engine: &CudaEngine,
    bus: &Bus<'_, '_>,
    sizes: &Sizes,
    data: &[u8],
    report: &mut Report<'_>,
) -> Result<()> {
    let rings = Rings::new(engine, bus, data)?;
    for &edge in &sizes.shards {
        for (name, stages) in [("none", vec![]), ("crc32c", vec![Stage::Crc32c])] {
            let kind = Kind::new(edge, sizes.subchunk, &[0, 1, 2], &stages)?;
            let most = sizes.calls.iter().copied().max().unwrap_or(1);
            let mut shards = kind.shards_of(data);
            // One for each call, and so many that no shard is still in a cache when it is used
            // again.
            shards.truncate(most.max(sizes.distinct.div_ceil(kind.grid.shard_bytes())));
            let encoded = verified(engine, &kind, &shards)?;
            verified_together(engine, &kind.job(most), &shards, &encoded, most)?;
            let subjects = sizes.calls.iter().map(|&calls| Subject {
                rings: &rings,
                kind: &kind,
                name: format!("{edge}³, {name}, {calls} at once"),
                calls,
                sizes,
            });
            for subject in subjects.clone() {
                subject.encode(&shards, report)?;
            }
            for subject in subjects {
                subject.decode(&shards, &encoded, report)?;
            }
        }
    }
    Ok(())
}

/// Encodes `shards` on the host. Fails unless the device encodes the same bytes, and decodes them.
fn verified(engine: &CudaEngine, kind: &Kind, shards: &[&[u8]]) -> Result<Vec<EncodedShard>> {
    let job = kind.job(1);
    let encode = |shard: &&[u8]| {
        let expected = kind.encode_on_host(shard)?;
        let encoded = engine.encode(&job, shard, 0, 0)?;
        let same = encoded.bytes == expected.bytes && encoded.extents == expected.extents;
        require(same, || {
            "the device and the host encode differently".to_string()
        })?;
        let decoded = engine.decode(&job, &encoded.bytes, &encoded.extents)?;
        require(&decoded == shard, || {
            "the device decodes wrongly".to_string()
        })?;
        Ok(expected)
    };
    shards.iter().map(encode).collect()
}

/// Runs one untimed round of `calls` concurrent calls. Fails unless each encodes and decodes as the
/// host does.
pub(crate) fn verified_together(
    engine: &CudaEngine,
    job: &ShardJob<'_>,
    shards: &[&[u8]],
    on_host: &[EncodedShard],
    calls: usize,
) -> Result<()> {
    let (_, same) = together(calls, 0, |i| {
        let (shard, expected) = (shards[i % shards.len()], &on_host[i % shards.len()]);
        let encoded = engine.encode(job, shard, 0, 0)?;
        let decoded = engine.decode(job, &expected.bytes, &expected.extents)?;
        Ok(encoded.bytes == expected.bytes
            && encoded.extents == expected.extents
            && decoded == shard)
    })?;
    require(same.iter().all(|&same| same), || {
        format!("{calls} calls at once: one encodes or decodes wrongly")
    })
}

/// This many concurrent calls for shards of a kind.
struct Subject<'a> {
    rings: &'a Rings<'a>,
    kind: &'a Kind,
    name: String,
    calls: usize,
    sizes: &'a Sizes,
}

impl Subject<'_> {
    fn encode(&self, shards: &[&[u8]], report: &mut Report<'_>) -> Result<()> {
        report.section(
            "encode",
            "Vec to fresh Vec; decoded bytes, against the slowest thing that has to be done",
        );
        let (job, at_once) = (self.kind.job(self.calls), self.calls);
        let output = self.kind.grid.shard_bytes();
        let encode = |engine: &dyn Engine| -> Result<f64> {
            let first = self.rings.take(at_once);
            let calls = |i: usize| {
                let shard = shards[(first + i) % shards.len()];
                engine.encode(&job, shard, 0, 0)
            };
            Ok(together(at_once, output, calls)?.0)
        };
        self.time(Some(GOAL), shards, &encode, report)
    }

    fn decode(
        &self,
        shards: &[&[u8]],
        encoded: &[EncodedShard],
        report: &mut Report<'_>,
    ) -> Result<()> {
        report.section(
            "decode",
            "Vec to fresh Vec; decoded bytes, against the slowest thing that has to be done",
        );
        let (job, at_once) = (self.kind.job(self.calls), self.calls);
        let output = self.kind.grid.shard_bytes();
        let decode = |engine: &dyn Engine| -> Result<f64> {
            let first = self.rings.take(at_once);
            let calls = |i: usize| {
                let shard = &encoded[(first + i) % encoded.len()];
                engine.decode(&job, &shard.bytes, &shard.extents)
            };
            Ok(together(at_once, output, calls)?.0)
        };
        self.time(None, shards, &decode, report)
    }

    fn time(
        &self,
        goal: Option<f64>,
        shards: &[&[u8]],
        work: &dyn Fn(&dyn Engine) -> Result<f64>,
        report: &mut Report<'_>,
    ) -> Result<()> {
        let (rings, len) = (self.rings, self.kind.grid.shard_bytes());
        let engine = rings.engine;
        let [bus, filled, emptied, device, host] = race(
            self.sizes.warm_up,
            self.sizes.rounds,
            [
                &mut |_| rings.bus.seconds_to_device(),
                &mut |_| rings.fill(shards[rings.take(1) % shards.len()]),
                &mut |_| rings.empty(len),
                &mut |_| work(engine),
                &mut |_| work(&HostEngine),
            ],
        )?;
        // Taking times is work for the device, so it has a round of its own.
        let before = engine.counters().snapshot();
        work(&engine.clone().with_times(true))?;
        let stages = Stages::since(&before, engine, len).rates();
        let bytes = self.calls * len;
        let mut limits = [
            ("to the device", &bus, rings.bus.len()),
            ("Vec to pinned", &filled, len),
            ("pinned to fresh Vec", &emptied, len),
        ];
        limits.sort_by(|(_, a, of_a), (_, b, of_b)| a.rate(*of_a).total_cmp(&b.rate(*of_b)));
        let (what, slowest, of_slowest) = limits[0];
        let row = Row::new(&self.name, &device, bytes)
            .with("calls", self.calls)
            .with("shard_bytes", len)
            .with("threads_per_call", self.kind.job(self.calls).threads.get())
            .with(
                "limits_gb_per_s",
                limits
                    .map(|(name, samples, bytes)| {
                        json!({ "name": name, "rate": samples.rate(bytes) })
                    })
                    .to_vec(),
            )
            .with("slowest", what)
            .with("host_gb_per_s", host.rates(bytes))
            .with("stages_gb_per_s", stages)
            .ratio("the slowest", device.by(bytes, slowest, of_slowest), goal)
            .ratio("the host engine", device.by(bytes, &host, bytes), None);
        report.row(row);
        Ok(())
    }
}
