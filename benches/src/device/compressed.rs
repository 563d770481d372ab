//! The whole engine with a compressor: from an ordinary `Vec` to the bytes of a shard.
//!
//! The engine cannot be faster than the slowest of three: nvCOMP alone on the same batches with the
//! data on the device, a copy to the device, and the copies on the host. The copy back to the host
//! is only as long as the compressed bytes. Each of these is timed in turns with the engine. So are
//! the host engine and zarrs' own codec on all cores.

use std::borrow::Cow;
use std::num::NonZeroU64;

use serde_json::{Value, json};
use zarrs::array::codec::{ShardingCodec, ShardingCodecConfiguration};
use zarrs::array::{ArrayBytes, ArrayToBytesCodecTraits, CodecOptions, FillValue, data_type};

use super::bus::Bus;
use super::failure::{Failure, Result, require};
use super::report::{Report, Row};
use super::samples::{Samples, race};
use super::whole::{Rings, Stages, together};
use super::workbench::Workbench;
use super::{ELEMENT, FILL_VALUE, Kind, Sizes, Tuning, cores};
use zarrs_cuda_engine::contract::{BloscStage, Cname, Engine, EngineError, Shuffle, Stage};
use zarrs_cuda_engine::cuda::arena::SLOT_ALIGNMENT;
use zarrs_cuda_engine::cuda::compression::Prepared;
use zarrs_cuda_engine::cuda::driver::{DeviceSpan, Driver};
use zarrs_cuda_engine::cuda::kernels::chunk_tables::{ChunkTables, chunk_tables};
use zarrs_cuda_engine::cuda::kernels::shuffle::shuffle;
use zarrs_cuda_engine::cuda::kernels::spans::Slots;
use zarrs_cuda_engine::cuda::nvcomp::{self, CompressBatch, Compressor, Requirements, VARIABLE};
use zarrs_cuda_engine::cuda::sizing::Sizing;
use zarrs_cuda_engine::cuda::{Compressors, CudaEngine, DeviceLimits, HighestLevels};
use zarrs_cuda_engine::host::HostEngine;

/// The goal, as a part of the slowest step that the engine cannot avoid.
const GOAL: f64 = 0.8;

/// The goal, as a multiple of zarrs' codec.
const GOAL_OF_ZARRS: f64 = 3.0;

/// A compressor, with its descriptions for the engines and for zarrs.
struct Codec {
    name: &'static str,
    stage: Stage,
    configuration: Value,
    /// The goals relative to the slowest step, and to zarrs.
    goals: [Option<f64>; 2],
}

fn codecs() -> [Codec; 4] {
    let blosc = |name, cname: Cname, of_zarrs| Codec {
        name,
        stage: Stage::Blosc(BloscStage {
            cname,
            level: 5,
            shuffle: Shuffle::Byte,
            typesize: ELEMENT,
            blocksize: 0,
        }),
        configuration: json!({ "name": "blosc", "configuration": {
            "cname": cname.as_str(), "clevel": 5, "shuffle": "shuffle", "typesize": ELEMENT,
            "blocksize": 0,
        }}),
        goals: [Some(GOAL), of_zarrs],
    };
    [
        Codec {
            name: "zstd-1",
            stage: Stage::Zstd {
                level: 1,
                checksum: false,
            },
            configuration: json!({
                "name": "zstd", "configuration": { "level": 1, "checksum": false },
            }),
            goals: [Some(GOAL), Some(GOAL_OF_ZARRS)],
        },
        Codec {
            name: "gzip-1",
            stage: Stage::Gzip { level: 1 },
            configuration: json!({ "name": "gzip", "configuration": { "level": 1 } }),
            goals: [None, None],
        },
        blosc("blosc-lz4-shuffle", Cname::Lz4, None),
        blosc("blosc-zstd-shuffle", Cname::Zstd, Some(GOAL_OF_ZARRS)),
    ]
}

/// Microscopy-like data: a smooth field with 5 bits of noise, as consecutive cubes.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "made-up data"
)]
pub(crate) fn microscopy(edge: usize, cubes: usize) -> Vec<u8> {
    let axis = |len: usize, wave: &dyn Fn(f64) -> f64| -> Vec<f64> {
        (0..len).map(|i| wave(i as f64)).collect()
    };
    let depth = axis(edge * cubes, &|z| (z / 40.0).sin());
    let height = axis(edge, &|y| (y / 55.0).cos());
    let width = axis(edge, &|x| (x / 70.0).sin());
    let plane = |z: usize, to: &mut [u8]| {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(z as u64 + 1);
        for (row, y) in to.chunks_mut(edge * ELEMENT).zip(&height) {
            for (to, x) in row.chunks_mut(ELEMENT).zip(&width) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let field = depth[z] + y + x;
                let value = (field.mul_add(800.0, 3000.0) as u16 & !31) | (state & 31) as u16;
                to.copy_from_slice(&value.to_le_bytes());
            }
        }
    };
    let bytes = edge * edge * ELEMENT;
    let mut data = vec![0; bytes * depth.len()];
    let planes = depth.len().div_ceil(cores().get()).max(1);
    std::thread::scope(|scope| {
        for (part, to) in data.chunks_mut(planes * bytes).enumerate() {
            let plane = &plane;
            scope.spawn(move || {
                for (i, to) in to.chunks_mut(bytes).enumerate() {
                    plane(part * planes + i, to);
                }
            });
        }
    });
    data
}

/// Shards of one size. They are so many that no shard is still in a cache when it is used again.
struct Data {
    edge: usize,
    bytes: Vec<u8>,
}

impl Data {
    fn new(edge: usize, sizes: &Sizes) -> Self {
        let shard = edge.pow(3) * ELEMENT;
        let most = sizes.compressed_calls.iter().copied().max().unwrap_or(1);
        let count = most.max(sizes.distinct.div_ceil(shard));
        Self {
            edge,
            bytes: microscopy(edge, count),
        }
    }
}

pub(crate) fn measure(
    engine: &CudaEngine,
    bus: &Bus<'_, '_>,
    sizes: &Sizes,
    report: &mut Report<'_>,
) -> Result<()> {
    report.section(
        "compressed",
        "Vec to the bytes of a shard; decoded bytes, against the slowest thing that has to be done",
    );
    if !has_nvcomp(sizes, report)? {
        return Ok(());
    }
    report.note("batch_bytes", sizes.tuning.compressed_batch);
    engine.devices.release_idle();
    let mut data = None;
    for &edge in &sizes.shards {
        let data = data.insert(Data::new(edge, sizes));
        let rings = Rings::new(engine, bus, &data.bytes)?;
        for codec in codecs() {
            let subject = Subject::new(engine, bus, sizes, data, &codec)?;
            for &calls in &sizes.compressed_calls {
                subject.time(&rings, calls, report)?;
            }
        }
    }
    match data {
        Some(data) => sweep(engine, sizes, &data, report),
        None => Ok(()),
    }
}

/// Returns whether there is nvCOMP. Notes its version, or why there is none.
pub(crate) fn has_nvcomp(sizes: &Sizes, report: &mut Report<'_>) -> Result<bool> {
    match nvcomp::of_process(sizes.nvcomp.as_deref()) {
        Ok(library) => {
            report.say(&format!("  nvCOMP {}", library.version()));
            report.note("nvcomp", library.version().to_string());
            Ok(true)
        }
        // A user who names a library wants it measured, so its absence is an error then.
        Err(reason) if sizes.nvcomp.is_none() && std::env::var_os(VARIABLE).is_none() => {
            report.say(&format!("  not measured: {reason}"));
            report.note("not_measured", reason);
            Ok(false)
        }
        Err(reason) => Err(Failure(reason)),
    }
}

/// Returns an engine for the chain of `kind`, which also decodes.
pub(crate) fn engine_for(
    engine: &CudaEngine,
    kind: &Kind,
    sizes: &Sizes,
    tuning: Tuning,
) -> CudaEngine {
    let limits = DeviceLimits {
        device_memory: sizes.compressed_memory,
        ..engine.limits.clone()
    };
    let compressors = Compressors {
        levels: HighestLevels::ALL,
        nvcomp: sizes.nvcomp.clone(),
        decode: true,
    };
    CudaEngine::new(engine.devices.clone(), limits, tuning).for_chain(&kind.chain, compressors)
}

/// Encodes `shard` on `engine`. Returns the encoded size if the host decodes the right elements.
fn verified(engine: &CudaEngine, kind: &Kind, shard: &[u8]) -> Result<usize> {
    let job = kind.job(1);
    let encoded = engine.encode(&job, shard, 0, 0)?;
    let decoded = HostEngine.decode(&job, &encoded.bytes, &encoded.extents)?;
    require(decoded == shard, || {
        "the host decodes to something else".to_string()
    })?;
    Ok(encoded.bytes.len())
}

/// zarrs' own codec for shards of a kind.
struct Zarrs {
    codec: ShardingCodec,
    shape: Vec<NonZeroU64>,
}

impl Zarrs {
    fn new(kind: &Kind, configuration: &Value) -> Result<Self> {
        let bytes = json!({ "name": "bytes", "configuration": { "endian": "little" } });
        let configuration: ShardingCodecConfiguration = serde_json::from_value(json!({
            "chunk_shape": kind.grid.subchunk(),
            "codecs": [bytes, configuration],
            "index_codecs": [bytes, { "name": "crc32c" }],
            "index_location": "end",
        }))?;
        let shape = kind.grid.shard().iter();
        Ok(Self {
            codec: ShardingCodec::new_with_configuration(&configuration)?,
            shape: shape
                .map(|&extent| NonZeroU64::try_from(extent as u64))
                .collect::<std::result::Result<_, _>>()?,
        })
    }

    /// Encodes on this many threads of the pool.
    fn encode(&self, shard: &[u8], threads: usize) -> std::result::Result<Vec<u8>, EngineError> {
        let encoded = self.codec.encode(
            ArrayBytes::new_flen(Cow::Borrowed(shard)),
            &self.shape,
            &data_type::uint16(),
            &FillValue::from(u16::from_le_bytes(FILL_VALUE)),
            &CodecOptions::default().with_concurrent_target(threads),
        );
        let encoded = encoded.map_err(|error| EngineError::Foreign(Box::new(error)))?;
        Ok(encoded.into_owned())
    }
}

/// nvCOMP alone. Its input is the first batch of a shard, and its memory is as large as in the
/// engine.
pub(crate) struct Alone<'d> {
    workbench: Workbench<'d>,
    compressor: Compressor,
    pub(crate) requirements: Requirements,
    tables: ChunkTables,
    inputs: Slots,
    outputs: Slots,
    temp: DeviceSpan,
    output_sizes: DeviceSpan,
    statuses: DeviceSpan,
    /// The length of the input, in bytes.
    pub(crate) bytes: usize,
}

impl<'d> Alone<'d> {
    /// Prepares the first `count` subchunks of a shard, in slots that begin `stride` bytes apart.
    pub(crate) fn new(
        driver: &'d dyn Driver,
        sizes: &Sizes,
        kind: &Kind,
        (prepared, count, stride): (&Prepared, usize, usize),
        shard: &[u8],
    ) -> Result<Self> {
        let workbench = Workbench::new(driver, sizes.staging)?;
        let requirements = *prepared.requirements(count).map_err(Failure)?;
        let compression = &prepared.compression;
        let chunks_of_all = count * compression.chunking.blocks();
        let alignment = requirements.alignments.output.max(SLOT_ALIGNMENT);
        let stream = requirements.max_output.next_multiple_of(alignment);
        let slots = |count: usize, stride: usize| -> Result<Slots> {
            let span = workbench.device(count * stride)?;
            Ok(Slots {
                span,
                stride,
                count,
            })
        };

        let mut inputs = slots(count, stride)?;
        let mut plain = kind.clone();
        plain.chain.stages.clear();
        let subchunks = plain.encode_on_host(shard)?.bytes;
        let len = kind.grid.subchunk_bytes();
        let mut bytes = vec![0; inputs.span.len];
        for (slot, subchunk) in bytes.chunks_mut(stride).zip(subchunks.chunks(len)) {
            slot[..len].copy_from_slice(subchunk);
        }
        workbench.upload(inputs.span, &bytes)?;
        if let Some((what, blocks)) = compression.shuffled() {
            let shuffled = slots(count, stride)?;
            workbench.upload(shuffled.span, &bytes)?;
            let enqueue = |stream| {
                // SAFETY: the memory belongs to the workbench, and the stream is synchronised.
                unsafe { shuffle(driver, stream, what, inputs, shuffled, blocks) }
            };
            workbench.run(enqueue)?;
            inputs = shuffled;
        }

        let outputs = slots(chunks_of_all, stream)?;
        let tables = ChunkTables {
            input_pointers: workbench.device(chunks_of_all * 8)?,
            input_sizes: workbench.device(chunks_of_all * 8)?,
            output_pointers: workbench.device(chunks_of_all * 8)?,
        };
        // SAFETY: the memory belongs to the workbench, and the stream is synchronised.
        workbench.run(|stream| unsafe {
            let chunking = compression.chunking;
            chunk_tables(driver, stream, inputs, chunking, None, outputs, tables)
        })?;
        let this = Self {
            compressor: prepared.compressor,
            temp: workbench.device(requirements.temp.max(1))?,
            output_sizes: workbench.device(chunks_of_all * 8)?,
            statuses: workbench.device(chunks_of_all * 4)?,
            bytes: count * len,
            requirements,
            tables,
            inputs,
            outputs,
            workbench,
        };
        this.seconds()?;
        let none_failed = vec![0; this.statuses.len];
        this.workbench
            .check("nvCOMP alone", this.statuses, [(0, &none_failed[..])])?;
        Ok(this)
    }

    /// Times the compression of the batch, in seconds on the device.
    pub(crate) fn seconds(&self) -> Result<f64> {
        let batch = CompressBatch {
            requirements: &self.requirements,
            chunks: self.outputs.count,
            input_pointers: self.tables.input_pointers,
            input_sizes: self.tables.input_sizes,
            output_pointers: self.tables.output_pointers,
            inputs: &[self.inputs.span],
            outputs: &[self.outputs.span],
            temp: self.temp,
            output_sizes: self.output_sizes,
            statuses: self.statuses,
        };
        let driver = self.workbench.driver;
        let enqueue = |stream| {
            // SAFETY: the memory belongs to the workbench, and the stream is synchronised. `chunks`
            // wrote the tables for slots whose strides are multiples of the alignments.
            unsafe { self.compressor.compress(driver, stream, &batch) }
        };
        self.workbench.time(enqueue)
    }
}

/// Shards of one size with one compressor.
struct Subject<'a> {
    engine: CudaEngine,
    bus: &'a Bus<'a, 'a>,
    sizes: &'a Sizes,
    codec: &'a Codec,
    kind: Kind,
    edge: usize,
    shards: Vec<&'a [u8]>,
    alone: Alone<'a>,
    zarrs: Zarrs,
    /// The encoded size of the first shard, in bytes.
    encoded: usize,
    encoded_on_host: usize,
}

impl<'a> Subject<'a> {
    fn new(
        engine: &CudaEngine,
        bus: &'a Bus<'a, 'a>,
        sizes: &'a Sizes,
        data: &'a Data,
        codec: &'a Codec,
    ) -> Result<Self> {
        let stages = [codec.stage.clone()];
        let kind = Kind::new(data.edge, sizes.subchunk, &[0, 1, 2], &stages)?;
        let engine = engine_for(engine, &kind, sizes, sizes.tuning);
        let shards: Vec<_> = data.bytes.chunks(kind.grid.shard_bytes()).collect();
        let on_device = engine.kind(&kind.grid, &kind.chain)?;
        let sizing = engine.devices.first(&engine.limits, |budget| {
            Sizing::within(&on_device, budget, engine.tuning)
        })?;
        let prepared = on_device
            .compressor
            .as_ref()
            .ok_or_else(|| Failure(format!("{} is no compressor", codec.name)))?;
        let driver = bus.workbench.driver;
        let batch = (prepared, sizing.batch, sizing.slot_stride);
        let alone = Alone::new(driver, sizes, &kind, batch, shards[0])?;
        let encoded: Vec<usize> = shards
            .iter()
            .map(|shard| verified(&engine, &kind, shard))
            .collect::<Result<_>>()?;
        Ok(Self {
            zarrs: Zarrs::new(&kind, &codec.configuration)?,
            encoded: encoded[0],
            encoded_on_host: kind.encode_on_host(shards[0])?.bytes.len(),
            edge: data.edge,
            engine,
            bus,
            sizes,
            codec,
            kind,
            shards,
            alone,
        })
    }

    /// Times this many concurrent calls.
    fn time(&self, rings: &Rings<'_>, calls: usize, report: &mut Report<'_>) -> Result<()> {
        let (shards, len) = (&self.shards, self.kind.grid.shard_bytes());
        let job = self.kind.job(calls);
        let encode = |engine: &dyn Engine| -> Result<f64> {
            let first = rings.take(calls);
            let call = |i: usize| engine.encode(&job, shards[(first + i) % shards.len()], 0, 0);
            Ok(together(calls, len, call)?.0)
        };
        let by = &self.zarrs;
        let by_zarrs = || -> Result<f64> {
            let (first, threads) = (rings.take(calls), job.threads.get());
            let shard = |i: usize| shards[(first + i) % shards.len()];
            Ok(together(calls, len, |i| by.encode(shard(i), threads))?.0)
        };
        let before = self.engine.counters().snapshot();
        let [alone, bus, filled, emptied, device, host, zarrs] = race(
            self.sizes.warm_up,
            self.sizes.compressed_rounds,
            [
                &mut |_| self.alone.seconds(),
                &mut |_| self.bus.seconds_to_device(),
                &mut |_| rings.fill(shards[rings.take(1) % shards.len()]),
                &mut |_| rings.empty(self.encoded),
                &mut |_| encode(&self.engine),
                &mut |_| encode(&HostEngine),
                &mut |_| by_zarrs(),
            ],
        )?;
        let after = self.engine.counters().snapshot();
        // Taking times is work for the device, so it has a round of its own.
        let before_times = self.engine.counters().snapshot();
        encode(&self.engine.clone().with_times(true))?;
        let stages = Stages::since(&before_times, &self.engine, len).rates();
        let bytes = calls * len;
        let mut limits: [(&str, &Samples, usize); 4] = [
            ("nvCOMP alone", &alone, self.alone.bytes),
            ("to the device", &bus, self.bus.len()),
            ("Vec to pinned", &filled, len),
            ("pinned to fresh Vec", &emptied, len),
        ];
        limits.sort_by(|(_, a, of_a), (_, b, of_b)| a.rate(*of_a).total_cmp(&b.rate(*of_b)));
        let (what, slowest, of_slowest) = limits[0];
        let [goal, goal_of_zarrs] = self.codec.goals;
        let ratio = compression_ratio(len, self.encoded);
        let ratio_on_host = compression_ratio(len, self.encoded_on_host);
        let name = format!("{}³, {}, {calls} at once", self.edge, self.codec.name);
        let row = Row::new(name, &device, bytes)
            .with("calls", calls)
            .with("chain", self.codec.name)
            .with("shard_bytes", len)
            .with("nvcomp_batch_bytes", self.alone.bytes)
            .with("nvcomp_temp_bytes", self.alone.requirements.temp)
            .with("threads_per_call", job.threads.get())
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
            .with("zarrs_gb_per_s", zarrs.rates(bytes))
            .with("compression_ratio", ratio)
            .with("host_compression_ratio", ratio_on_host)
            .with(
                "subchunks_on_host",
                after.subchunks_on_host - before.subchunks_on_host,
            )
            .with("stages_gb_per_s", stages)
            .ratio("the slowest", device.by(bytes, slowest, of_slowest), goal)
            .ratio("zarrs", device.by(bytes, &zarrs, bytes), goal_of_zarrs)
            .ratio("the host engine", device.by(bytes, &host, bytes), None);
        report.row(row);
        report.say(&format!(
            "    compression ratio {ratio:.2}, on the host {ratio_on_host:.2}; slowest: {what}"
        ));
        Ok(())
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn compression_ratio(decoded: usize, encoded: usize) -> f64 {
    decoded as f64 / encoded as f64
}

/// Varies [`Tuning::compressed_batch`] and [`Tuning::streams`], and measures the rate of encoding with
/// zstd.
fn sweep(engine: &CudaEngine, sizes: &Sizes, data: &Data, report: &mut Report<'_>) -> Result<()> {
    report.section(
        "compressed_sweep",
        "encode with zstd-1; decoded bytes that are compressed at once, streams of kernels",
    );
    let [codec, ..] = codecs();
    let kind = Kind::new(data.edge, sizes.subchunk, &[0, 1, 2], &[codec.stage])?;
    let len = kind.grid.shard_bytes();
    let shards: Vec<_> = data.bytes.chunks(len).collect();
    let streams = sizes.streams.iter();
    let points = streams.flat_map(|&streams| {
        let batches = sizes.compressed_batches.iter();
        batches.map(move |&batch| (streams, batch))
    });
    for (streams, compressed_batch) in points {
        engine.devices.release_idle();
        let tuning = Tuning {
            compressed_batch,
            streams,
            ..sizes.tuning
        };
        let tuned = engine_for(engine, &kind, sizes, tuning);
        let lane = tuned
            .clone()
            .shards(&kind.grid, &kind.chain)?
            .memory_estimate()?;
        verified(&tuned, &kind, shards[0])?;
        for &calls in &sizes.compressed_calls {
            let job = kind.job(calls);
            let [samples] = race(
                std::time::Duration::ZERO,
                sizes.sweep_rounds,
                [&mut |round| {
                    let shard = |i: usize| shards[(round * calls + i) % shards.len()];
                    Ok(together(calls, shards[0].len(), |i| {
                        tuned.encode(&job, shard(i), 0, 0)
                    })?
                    .0)
                }],
            )?;
            let name = format!(
                "{} KiB in {streams}, {calls} at once",
                compressed_batch >> 10
            );
            let row = Row::new(name, &samples, calls * len)
                .with("compressed_batch", compressed_batch)
                .with("streams", streams)
                .with("calls", calls)
                .with("lane_bytes_on_the_device", lane.device);
            report.row(row);
        }
    }
    engine.devices.release_idle();
    Ok(())
}
