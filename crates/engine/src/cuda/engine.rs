//! The CUDA engine: prepares each kind of shard once, caches the result, and encodes and decodes shards in
//! lanes.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::arena::Tuning;
use super::check_progress::Work;
use super::compressed_frame_parts::{self, CompressedFrameLayout};
use super::compression::Prepared;
use super::counters::Counters;
use super::decode::DecodedShard;
use super::decompress::Decompression;
use super::decompression;
use super::device::Device;
use super::eligible::{self, check_decoding, expected_layout, split_layout};
use super::lanes::{DeviceLimits, Devices};
use super::result_checks::{CheckedShard, DEFAULT_EVERY, ResultChecks};
use super::session::{FreeEvents, Session};
use super::sizing::{self, Compressors, KindQuestion, ShardKind, Sizing};
use super::{decode, encode, nvcomp};
use crate::contract::BufferBytes;
use crate::contract::coded_bytes::StoredBytes;
use crate::contract::{EncodedShard, Engine, EngineError, KnownChain, ShardJob};
use crate::layout::{Extent, SubchunkGrid};

/// The engine on those devices that a set of options allows.
#[derive(Clone, Debug)]
pub struct CudaEngine {
    pub devices: Arc<Devices>,
    pub limits: DeviceLimits,
    pub tuning: Tuning,
    /// Whether the times of stages are measured, for the metrics.
    pub(super) times: bool,
    pub(super) compressors: Compressors,
    /// Whether the engine also decodes the shards that it encodes.
    decodes: bool,
    /// One batch of so many is compared with the host's after a kind of shards has passed; 0 if the results of
    /// devices are not checked at all.
    pub(super) check_every: u32,
}

/// An engine for whole shards of one shape and chain. Its methods run on a device, or return an error.
#[derive(Clone, Debug)]
pub struct CudaShards {
    engine: CudaEngine,
    kind: Arc<ShardKind>,
}

impl CudaEngine {
    pub fn new(devices: Arc<Devices>, limits: DeviceLimits, tuning: Tuning) -> Self {
        Self {
            devices,
            limits,
            tuning,
            times: false,
            compressors: Compressors::default(),
            decodes: true,
            check_every: DEFAULT_EVERY,
        }
    }

    /// Returns this engine, which compares one of `every` batches with the host's after a kind of shards has
    /// passed its comparisons.
    #[must_use]
    pub fn with_check_every(mut self, every: NonZeroU32) -> Self {
        self.check_every = every.get();
        self
    }

    /// Returns this engine, which does not check the results of devices. For devices that compute nothing, and
    /// for benchmarks of the device alone.
    #[cfg(any(test, feature = "fakes"))]
    #[must_use]
    pub fn without_checks(mut self) -> Self {
        self.check_every = 0;
        self
    }

    /// Returns this engine, with the times of stages in the metrics if `times`.
    #[must_use]
    pub fn with_times(mut self, times: bool) -> Self {
        self.times = times;
        self
    }

    /// Returns this engine for shards of `chain`. The engine decodes shards with a compressor only if
    /// `compressors` allows it: decompressors on a device have undefined behaviour on corrupt data.
    pub fn for_chain(mut self, chain: &KnownChain, compressors: Compressors) -> Self {
        self.decodes = chain.is_fixed_size()
            || compressors.decode && compressed_frame_parts::suits(chain).is_ok();
        self.compressors = compressors;
        self
    }

    /// Prepares the engine for shards of `grid` and `chain`. The result is cached.
    ///
    /// # Errors
    /// No device is usable now, or none can run these shards. The error has the reason.
    pub fn shards(
        self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
    ) -> Result<CudaShards, EngineError> {
        Ok(CudaShards {
            kind: self.kind(grid, chain)?,
            engine: self,
        })
    }

    /// Prepares the engine only to decode shards of `grid` and `chain`. It decodes shards of every level, and
    /// encodes none if the chain has a compressor.
    ///
    /// # Errors
    /// No device is usable now, or none can decode these shards. The error has the reason.
    pub fn decoder(
        self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
    ) -> Result<CudaShards, EngineError> {
        if chain.is_fixed_size() {
            return self.shards(grid, chain);
        }
        self.devices.check_usable(&self.limits)?;
        check_decoding(grid, chain).map_err(EngineError::Unsuitable)?;
        Ok(CudaShards {
            kind: Arc::new(ShardKind::new(grid.clone(), chain.clone())),
            engine: self,
        })
    }

    /// Returns the largest number of multiprocessors among the usable devices that the engine may use; 0 if
    /// there is no such device. Takes no context and no lock.
    pub fn multiprocessors(&self) -> usize {
        self.devices.multiprocessors(&self.limits)
    }

    /// Returns the number of nvCOMP's chunks that keep all multiprocessors of a device busy.
    pub fn chunks_to_fill(&self) -> usize {
        (self.tuning.per_multiprocessor).saturating_mul(self.multiprocessors())
    }

    /// Returns the most subchunks of `grid` to compress at once in one stream of kernels, for a job of any
    /// number of subchunks.
    pub fn most_at_once(&self, grid: &SubchunkGrid) -> usize {
        Sizing::compressed_at_once(grid, self.multiprocessors(), self.tuning)
    }

    /// Returns the most subchunks of a shard of `grid` to compress or decompress at once in one stream of
    /// kernels.
    pub fn compressed_at_once(&self, grid: &SubchunkGrid) -> usize {
        Sizing::of_shard(grid, self.multiprocessors(), self.tuning)
    }

    /// Returns the prepared kind for encoding shards of `grid` and `chain`, from the cache if possible.
    ///
    /// # Errors
    /// No device is usable now, or none can run these shards. The error has the reason.
    pub fn kind(
        &self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
    ) -> Result<Arc<ShardKind>, EngineError> {
        let most = self.compressed_at_once(grid);
        self.kind_of_batches(grid, chain, most)
    }

    /// Returns the prepared kind like [`kind`](Self::kind), but at most `most` subchunks are compressed at
    /// once.
    ///
    /// # Errors
    /// The errors are those of [`kind`](Self::kind).
    pub fn kind_of_batches(
        &self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
        most: usize,
    ) -> Result<Arc<ShardKind>, EngineError> {
        self.kept_kind(grid, chain, (most, None, false), || {
            let compression = eligible::chain_on_device(grid, chain, self.compressors.levels)
                .map_err(EngineError::Unsuitable)?;
            let mut kind = ShardKind::new(grid.clone(), chain.clone());
            if let Some(compression) = compression {
                kind.compressor = Some(
                    self.ask(|nvcomp, device| Prepared::new(compression, nvcomp, device, most))?,
                );
                kind.most = most;
            }
            Ok(kind)
        })
    }

    /// Returns the prepared kind for decoding shards of `grid` and `chain` whose frames have the layout
    /// `layout`.
    fn decoding_kind(
        &self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
        layout: CompressedFrameLayout,
    ) -> Result<Arc<ShardKind>, EngineError> {
        let most = self.compressed_at_once(grid);
        self.kept_kind(grid, chain, (most, Some(layout), false), || {
            self.prepare_decoding(grid, chain, Some(layout), most)
        })
    }

    /// Returns the prepared kind for reading subchunks of `grid` into device memory. A subchunk of `chain` is
    /// decompressed from frames of the layout `layout`, or comes without a compressor.
    ///
    /// # Errors
    /// No device is usable now, or none can read these subchunks. The error has the reason.
    pub(super) fn reading_kind(
        &self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
        layout: Option<CompressedFrameLayout>,
    ) -> Result<Arc<ShardKind>, EngineError> {
        let tuning = Tuning {
            streams: Tuning::READ_BATCHES,
            ..self.tuning
        };
        let most = Sizing::compressed_at_once(grid, self.multiprocessors(), tuning);
        self.kept_kind(grid, chain, (most, layout, true), || {
            let mut kind = self.prepare_decoding(grid, chain, layout, most)?;
            kind.reads = true;
            Ok(kind)
        })
    }

    fn prepare_decoding(
        &self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
        layout: Option<CompressedFrameLayout>,
        most: usize,
    ) -> Result<ShardKind, EngineError> {
        eligible::check_elements(grid, chain).map_err(EngineError::Unsuitable)?;
        let mut kind = ShardKind::new(grid.clone(), chain.clone());
        if let Some(layout) = layout {
            kind.decompressor = Some(self.ask(|nvcomp, device| {
                decompression::Prepared::new(layout, nvcomp, device, most)
            })?);
            kind.most = most;
        }
        Ok(kind)
    }

    fn kept_kind(
        &self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
        (most, layout, reads): (usize, Option<CompressedFrameLayout>, bool),
        prepare: impl FnOnce() -> Result<ShardKind, EngineError>,
    ) -> Result<Arc<ShardKind>, EngineError> {
        // A forked child gets an error here, before it takes a lock.
        self.devices.check_usable(&self.limits)?;
        self.devices.kinds.get_or(
            |known: &KindQuestion| {
                (known.layout, known.reads) == (layout, reads)
                    && known.most == most
                    && known.grid == *grid
                    && known.chain == *chain
                    && known.compressors == self.compressors
                    && known.devices == self.limits.devices
            },
            || {
                let question = KindQuestion {
                    devices: self.limits.devices.clone(),
                    compressors: self.compressors.clone(),
                    grid: grid.clone(),
                    chain: chain.clone(),
                    most,
                    layout,
                    reads,
                };
                Ok((question, Arc::new(prepare()?)))
            },
        )
    }

    /// Asks nvCOMP a question, while the context of a device is current on this thread. The question takes
    /// the number of the device.
    ///
    /// # Errors
    /// No device is usable, there is no nvCOMP, or it does not support the question. The error has the
    /// reason.
    fn ask<T>(
        &self,
        question: impl FnOnce(&nvcomp::Nvcomp, usize) -> Result<T, String>,
    ) -> Result<T, EngineError> {
        let answer = self.devices.with_context(&self.limits, |device| {
            let nvcomp = nvcomp::of_process(self.compressors.nvcomp.as_deref())?;
            question(&nvcomp, device)
        })?;
        answer.map_err(EngineError::Unsuitable)
    }

    /// Returns the bytes of memory that a lane for shards of `grid` and `chain` takes, computed as for its
    /// allocation.
    ///
    /// # Errors
    /// No device is usable, or none can hold the lane. The error has the reason.
    #[cfg(test)]
    pub fn memory_estimate(
        &self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
    ) -> Result<BufferBytes, EngineError> {
        self.clone().shards(grid, chain)?.memory_estimate()
    }

    /// Returns whether the engine also decodes the shards that it encodes.
    pub fn decodes(&self) -> bool {
        self.decodes
    }

    /// Returns whether the contexts of the devices exist, so that nothing is created by asking them.
    pub fn has_contexts(&self) -> bool {
        self.devices.have_contexts(&self.limits)
    }

    /// Returns the numbers of the devices that the engine may use.
    ///
    /// # Errors
    /// The reason why no device is usable.
    pub fn numbers(&self) -> Result<Vec<usize>, String> {
        let usable = self.devices.usable_numbers(&self.limits);
        usable.map_err(|error| error.to_string())
    }

    /// Checks without a context that a device is there for shards of `chain`, and that nvCOMP is there if
    /// they have a compressor.
    ///
    /// # Errors
    /// The reason why no device can run these shards.
    pub fn check_without_context(&self, chain: &KnownChain) -> Result<(), String> {
        self.numbers()?;
        if !chain.is_fixed_size() {
            nvcomp::of_process(self.compressors.nvcomp.as_deref())?;
        }
        Ok(())
    }

    /// Returns the counters of the CUDA engine.
    pub fn counters(&self) -> &Counters {
        &self.devices.counters
    }

    /// Returns the checks of the results of `device` for the shard `job` of `kind`.
    pub(super) fn checks<'a>(
        &'a self,
        device: &'a Device,
        kind: &'a ShardKind,
        job: &ShardJob<'a>,
    ) -> ResultChecks<'a> {
        ResultChecks {
            device,
            counters: &self.devices.counters,
            kind,
            fill_value: job.fill_value,
            store_empty: job.store_empty,
            pads: false,
            reducer: None,
            every: self.check_every,
        }
    }

    /// Runs `work` in a lane. If there is no memory for the planned lane, uses a lane with smaller batches.
    pub fn in_lane<T>(
        &self,
        kind: &ShardKind,
        work: impl Fn(&Session<'_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.in_lane_of_device(kind, None, work)
            .map(|(result, _)| result)
    }

    /// Runs `work` in a lane like [`in_lane`](Self::in_lane). Also returns the device of the lane. An error
    /// after wrong data names the results of `shard` that were not compared.
    pub(super) fn in_lane_of_device<T>(
        &self,
        kind: &ShardKind,
        shard: Option<(Work, &ShardJob<'_>)>,
        work: impl Fn(&Session<'_>) -> Result<T, EngineError>,
    ) -> Result<(T, Arc<Device>), EngineError> {
        let plan = |most| kind.sizing(most, self.tuning);
        let (mut acquired, sizing) = self.devices.acquire(&plan, &self.limits)?;
        let lane = acquired.lane().map_err(EngineError::Device)?;
        let device = lane.device().clone();
        let entered = device.enter().map_err(EngineError::Device)?;
        if let Err(reason) = kind.check(&sizing, device.info().ordinal) {
            // Nothing was enqueued, so that another shard can use the lane.
            drop(entered);
            acquired.reusable();
            return Err(EngineError::Unsuitable(reason));
        }
        let result = device
            .watch(lane.start())
            .map_err(EngineError::Device)
            .and_then(|running| {
                let session = Session {
                    lane: running,
                    sizing: &sizing,
                    events: FreeEvents::new(running),
                    copiers: self.devices.copiers_of(&device),
                    counters: &self.devices.counters,
                    times: self.times,
                };
                work(&session)
            });
        if let Err(EngineError::Device(error)) = &result {
            // If the error means that the device is broken, `watch` quarantines the device.
            let _ = device.watch::<()>(Err(error.clone()));
        }
        drop(entered);
        if result.is_ok() {
            acquired.reusable();
        }
        match (result, shard) {
            (Ok(result), _) => Ok((result, device)),
            (Err(error), Some((of, job))) => {
                Err(self.checks(&device, kind, job).with_unchecked(of, error))
            }
            (Err(error), None) => Err(error),
        }
    }
}

impl CudaShards {
    /// Returns the bytes of memory that a lane of this engine takes, computed as for its allocation.
    ///
    /// # Errors
    /// No device is usable, or none can hold the lane. The error has the reason.
    pub fn memory_estimate(&self) -> Result<BufferBytes, EngineError> {
        let engine = &self.engine;
        let estimate = |kind: &ShardKind| -> Result<BufferBytes, EngineError> {
            let sizing = engine
                .devices
                .first(&engine.limits, |budget| kind.sizing(budget, engine.tuning))?;
            Ok(sizing.estimate())
        };
        let (grid, chain) = (&self.kind.grid, &self.kind.chain);
        let decoding = |layout| -> Result<BufferBytes, EngineError> {
            let whole = estimate(&*engine.decoding_kind(grid, chain, layout)?)?;
            // Another encoder may have split the blocks. A device may decode frames of one kind alone.
            let split = split_layout(layout, chain)
                .and_then(|layout| engine.decoding_kind(grid, chain, layout).ok())
                .and_then(|kind| estimate(&kind).ok());
            Ok(split.map_or(whole, |split| most(whole, split)))
        };
        if self.only_decodes() {
            return decoding(expected_layout(grid, chain).map_err(EngineError::Unsuitable)?);
        }
        let encoding = estimate(&self.kind)?;
        // The estimate is for frames that this engine encodes. If the engine cannot decode these frames, the
        // estimate for encoding is used.
        let decoding = match &self.kind.compressor {
            Some(prepared) if engine.decodes => {
                decoding(prepared.compression.as_layout(grid, chain)).unwrap_or(encoding)
            }
            _ => encoding,
        };
        Ok(most(encoding, decoding))
    }

    /// Returns whether the engine has no compressor for its chain, because it was prepared only to decode.
    fn only_decodes(&self) -> bool {
        self.kind.compressor.is_none() && !self.kind.chain.is_fixed_size()
    }

    /// Checks that `job` is for shards of this kind.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if `job` is for other shards, and [`EngineError::Unsuitable`] if no device
    /// knows the chain of `job`.
    fn check_job(&self, job: &ShardJob<'_>) -> Result<(), EngineError> {
        let chain = sizing::known(&job.chain).map_err(EngineError::Unsuitable)?;
        if *job.grid == self.kind.grid && *chain == self.kind.chain {
            return Ok(());
        }
        Err(EngineError::Internal(
            "a shard of another kind than planned",
        ))
    }

    /// Encodes a shard whose job and length were checked, with `head` and `tail` bytes of room, and checks the
    /// result. Does not count the shard.
    ///
    /// # Errors
    /// Errors of the device, and of a result that is wrong.
    pub(super) fn encode_checked(
        &self,
        job: &ShardJob<'_>,
        decoded: &[u8],
        (head, tail): (usize, usize),
    ) -> Result<EncodedShard, EngineError> {
        let bytes = decoded.len();
        let _span = tracing::debug_span!("encode", engine = "cuda", bytes).entered();
        let shard = Some((Work::Encode, job));
        let (encoded, device) = self
            .engine
            .in_lane_of_device(&self.kind, shard, |session| {
                encode::encode(session, job, &self.kind, decoded, (head, tail))
            })?;
        let checked = CheckedShard {
            decoded,
            encoded: &encoded.shard.bytes,
            extents: &encoded.shard.extents,
            on_host: &encoded.on_host,
            batch: encoded.batch,
            uses: &encoded.uses,
        };
        self.engine
            .checks(&device, &self.kind, job)
            .check_encoded(job, &checked)?;
        Ok(encoded.shard)
    }

    /// Decodes a shard whose chain has a compressor. Does not count the shard.
    ///
    /// # Errors
    /// [`EngineError::Unsuitable`] if the host has to decode the shard, and errors of the device.
    pub(super) fn decompress(
        &self,
        job: &ShardJob<'_>,
        encoded: &[u8],
        extents: &[Extent],
    ) -> Result<Vec<u8>, EngineError> {
        let chain = &self.kind.chain;
        let parts = compressed_frame_parts::parse(job, chain, encoded, extents)
            .map_err(|reason| EngineError::Unsuitable(reason.to_string()))?;
        let kind = self.engine.decoding_kind(job.grid, chain, parts.layout)?;
        let shard = Some((Work::Decode, job));
        let (decoded, device) = self.engine.in_lane_of_device(&kind, shard, |session| {
            let Some(prepared) = kind.decompressor.as_ref() else {
                return Err(EngineError::Internal("a lane without a decompressor"));
            };
            let decompression = Decompression {
                prepared,
                parts: &parts,
            };
            decode::decode(session, job, &kind, encoded, extents, Some(decompression))
        })?;
        self.checked(&device, &kind, job, (encoded, extents), decoded)
    }

    /// Checks a decoded shard, and returns it.
    fn checked(
        &self,
        device: &Device,
        kind: &ShardKind,
        job: &ShardJob<'_>,
        (encoded, extents): (&[u8], &[Extent]),
        shard: DecodedShard,
    ) -> Result<Vec<u8>, EngineError> {
        let checked = CheckedShard {
            decoded: &shard.decoded,
            encoded,
            extents,
            on_host: &[],
            batch: shard.batch,
            uses: &shard.uses,
        };
        self.engine
            .checks(device, kind, job)
            .check_decoded(job, &checked)?;
        Ok(shard.decoded)
    }
}

/// Returns the larger number of bytes of each kind of memory.
fn most(one: BufferBytes, other: BufferBytes) -> BufferBytes {
    BufferBytes {
        device: one.device.max(other.device),
        pinned: one.pinned.max(other.pinned),
        ..BufferBytes::default()
    }
}

impl Engine for CudaShards {
    fn name(&self) -> &'static str {
        super::NAME
    }

    fn encode(
        &self,
        job: &ShardJob<'_>,
        decoded: &[u8],
        head: usize,
        tail: usize,
    ) -> Result<EncodedShard, EngineError> {
        self.check_job(job)?;
        if self.only_decodes() {
            return Err(EngineError::Unsuitable(
                "this engine was prepared only to decode".to_string(),
            ));
        }
        let expected = job.grid.shard_bytes();
        if decoded.len() != expected {
            return Err(EngineError::InputLength {
                got: decoded.len(),
                expected,
            });
        }
        let encoded = self.encode_checked(job, decoded, (head, tail))?;
        let bytes = StoredBytes::of_extents(job.grid.subchunk_bytes(), &encoded.extents);
        self.engine.devices.counters.shard_encoded(bytes);
        Ok(encoded)
    }

    /// Decodes a whole shard. Shards with a compressor are decoded only if the options ask for it.
    fn decode(
        &self,
        job: &ShardJob<'_>,
        encoded: &[u8],
        extents: &[Extent],
    ) -> Result<Vec<u8>, EngineError> {
        self.check_job(job)?;
        let chain = &self.kind.chain;
        let span = tracing::debug_span!("decode", engine = "cuda", bytes = encoded.len());
        let decoded = if chain.is_fixed_size() {
            decode::check(job, chain, encoded, extents)?;
            let _span = span.entered();
            let shard = Some((Work::Decode, job));
            let (decoded, device) =
                self.engine
                    .in_lane_of_device(&self.kind, shard, |session| {
                        decode::decode(session, job, &self.kind, encoded, extents, None)
                    })?;
            self.checked(&device, &self.kind, job, (encoded, extents), decoded)?
        } else if self.engine.decodes {
            span.in_scope(|| self.decompress(job, encoded, extents))?
        } else {
            return Err(EngineError::Unsuitable(
                "the options ask for no decompressors on a device".to_string(),
            ));
        };
        let bytes = StoredBytes::of_extents(job.grid.subchunk_bytes(), extents);
        self.engine.devices.counters.shard_decoded(bytes);
        Ok(decoded)
    }

    fn decodes_whole_shards(&self) -> bool {
        self.engine.decodes
    }

    fn first_wait(&self) -> Option<String> {
        self.engine.devices.first_wait(&self.engine.limits)
    }

    fn fell_back(&self, reason: &str) {
        self.engine.counters().fell_back(reason);
    }
}

/// Encodes and decodes shards of any kind, for tests and benchmarks. A kind is prepared when its first shard
/// comes.
#[cfg(any(test, feature = "fakes"))]
impl Engine for CudaEngine {
    fn name(&self) -> &'static str {
        super::NAME
    }

    fn encode(
        &self,
        job: &ShardJob<'_>,
        decoded: &[u8],
        head: usize,
        tail: usize,
    ) -> Result<EncodedShard, EngineError> {
        let chain = sizing::known(&job.chain).map_err(EngineError::Unsuitable)?;
        let shards = self.clone().shards(job.grid, chain)?;
        shards.encode(job, decoded, head, tail)
    }

    fn decode(
        &self,
        job: &ShardJob<'_>,
        encoded: &[u8],
        extents: &[Extent],
    ) -> Result<Vec<u8>, EngineError> {
        let chain = sizing::known(&job.chain).map_err(EngineError::Unsuitable)?;
        let shards = self.clone().decoder(job.grid, chain)?;
        shards.decode(job, encoded, extents)
    }

    fn decodes_whole_shards(&self) -> bool {
        self.decodes
    }

    fn fell_back(&self, reason: &str) {
        self.counters().fell_back(reason);
    }
}
