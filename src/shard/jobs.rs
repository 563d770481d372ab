//! Chooses the engine and the number of threads for a shard, and makes the engine's job.

use std::num::NonZeroUsize;

use zarrs::array::concurrency::calc_concurrency_outer_inner;
use zarrs_codec::{ArrayCodecTraits, CodecOptions, RecommendedConcurrency};

use super::foreign::ForeignChain;
use super::sharding::Sharding;
use crate::error::Error;
use crate::plan::{self, DeviceReads, PlanSummary, ReadsError, ShardPlan};
use zarrs_cuda_engine::contract::ShardJob;
use zarrs_cuda_engine::layout::SubchunkGrid;

impl Sharding {
    /// Returns the engine that encodes a shard.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if the options ask for a device that cannot be used.
    pub(crate) fn choose_engine(&self) -> Result<ShardPlan, Error> {
        self.choose_engine_for(&self.grid)
    }

    /// Returns the engine that encodes some subchunks, laid out as a shard of `grid`.
    ///
    /// # Errors
    /// The errors of [`choose_engine`](Self::choose_engine).
    pub(crate) fn choose_engine_for(&self, grid: &SubchunkGrid) -> Result<ShardPlan, Error> {
        let codec = &self.codec;
        codec.engines.choose(&codec.options, grid, self.known())
    }

    /// Returns the plans to encode and to decode a shard in words, without creating a context on a device.
    ///
    /// # Errors
    /// The errors of [`choose_engine`](Self::choose_engine).
    pub(crate) fn preview_engines(&self) -> Result<[PlanSummary; 2], Error> {
        let (codec, grid) = (&self.codec, &self.grid);
        codec.engines.preview(&codec.options, grid, self.known())
    }

    /// Returns the engine that decodes a whole shard.
    ///
    /// # Errors
    /// The errors of [`choose_engine`](Self::choose_engine).
    pub(crate) fn choose_decoder(&self) -> Result<ShardPlan, Error> {
        let (codec, grid) = (&self.codec, &self.grid);
        codec
            .engines
            .choose_decoder(&codec.options, grid, self.known())
    }

    /// Returns the reads of subchunks into the memory of the CUDA device `device`; without a number, of the first one.
    ///
    /// # Errors
    /// No device was asked for, or none can be used.
    pub(crate) fn choose_reads(&self, device: Option<usize>) -> Result<DeviceReads, ReadsError> {
        let (codec, kind) = (&self.codec, (&self.grid, self.known()));
        (codec.engines).choose_reads(&codec.options, device, kind)
    }

    /// Describes how subchunks are read into the memory of a device, for people; `None` if no device was asked for.
    pub(crate) fn explain_reads(&self) -> Option<String> {
        let codec = &self.codec;
        (codec.engines).explain_reads(&codec.options, &self.grid, self.known())
    }

    /// Calls `f` with the engine's job for a shard.
    pub(crate) fn with_job<T>(
        &self,
        options: &CodecOptions,
        f: impl FnOnce(&ShardJob<'_>) -> T,
    ) -> T {
        let (outer, inner) = self.concurrency(options);
        let foreign = ForeignChain::new(self, options.with_concurrent_target(inner));
        f(&ShardJob {
            grid: &self.grid,
            chain: plan::chain(self.known().ok(), &foreign),
            fill_value: self.fill_value.as_ne_bytes(),
            store_empty: options.store_empty_chunks(),
            validate_checksums: options.validate_checksums(),
            threads: outer,
            huge_pages: self.codec.options.huge_pages(),
        })
    }

    /// Returns the number of subchunks to encode or decode at once, and the number of threads for each.
    pub(crate) fn concurrency(&self, options: &CodecOptions) -> (NonZeroUsize, usize) {
        // zarrs: "concurrency is unconstrained if the concurrent target is set to zero".
        let target = match options.concurrent_target() {
            0 => rayon::current_num_threads(),
            target => target,
        };
        let codec = &self.codec;
        let inner = || {
            codec
                .inner_codecs
                .recommended_concurrency(&codec.subchunk_shape, &self.data_type)
        };
        let (outer, inner) = match self.known().map_err(|_| inner()) {
            Err(Ok(inner)) => calc_concurrency_outer_inner(
                target,
                &RecommendedConcurrency::new_maximum(self.grid.num_subchunks()),
                &inner,
            ),
            _ => (target, 1),
        };
        (NonZeroUsize::new(outer).unwrap_or(NonZeroUsize::MIN), inner)
    }
}
