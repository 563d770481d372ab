//! Checks an encoded batch of a stream before it is returned: the frames of all of its subchunks, and, if the
//! batch is due, all of its subchunks against the slices that pinned memory has.

use std::ops::Range;

use super::input::CudaInput;
use super::layout::PlacedSubchunk;
use super::shared::StreamLane;
use crate::contract::EngineError;
use crate::cuda::check_progress::{LaneUses, MISSING, Source, Unchecked, Work};
use crate::layout::BatchGrid;
use crate::subchunk::compare::{Comparison, compare_all};

/// The slices of a stream that were returned since the last comparison without a difference, counted from the
/// first slice of the stream.
#[derive(Clone, Debug, Default)]
pub(super) struct UncheckedSlices(Range<u64>);

impl UncheckedSlices {
    /// Notes that a batch of `slices` slices is returned.
    pub(super) fn returned(&mut self, slices: usize, compared: bool) {
        self.0.end += slices as u64;
        if compared {
            self.0.start = self.0.end;
        }
    }

    /// Notes that a batch of `slices` slices is returned, which the host has encoded.
    pub(super) fn by_host(&mut self, slices: usize) {
        let nothing_unchecked = self.0.is_empty();
        self.returned(slices, nothing_unchecked);
    }

    /// Says which slices were returned since that comparison; `None` if there are none.
    pub(super) fn since_comparison(&self) -> Option<String> {
        let Range { start, end } = self.0;
        let last = end.checked_sub(1).filter(|last| start <= *last)?;
        Some(format!(
            "slices of this stream that were returned since its last comparison without a difference, counted from its first: {start} to {last}"
        ))
    }

    /// Says which slices were returned, and which slices the next batch has, of which there are `slices`.
    fn text(&self, slices: usize) -> String {
        let Range { start, end } = self.0;
        let last = (end + slices as u64).saturating_sub(1);
        let of_batch = format!(
            "the batch has the slices {end} to {last}, counted from the first of its stream"
        );
        if start == end {
            return format!("{of_batch}; slices returned since that comparison: none");
        }
        let before = end - 1;
        format!("{of_batch}; slices returned since that comparison: {start} to {before}")
    }
}

/// The result of checking a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchCheck {
    /// All subchunks were compared.
    Compared,
    NotCompared,
    /// The device made no subchunk of the batch that is stored.
    NothingMade,
}

/// The numbers of the buffers of a batch: in the lane, among the inputs, and among the outputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchBuffers {
    pub(super) lane: u64,
    pub(super) flight: usize,
    pub(super) input: Option<usize>,
    pub(super) output: Option<usize>,
}

impl BatchBuffers {
    /// Returns one use of each buffer.
    fn uses(self, shared: &StreamLane) -> LaneUses {
        let one = |number: Option<usize>, all: usize| {
            let is_it = |other| u32::from(Some(other) == number);
            (0..all).map(is_it).collect()
        };
        let sizing = &shared.sizing;
        let mut inputs: Vec<u32> = one(self.input, sizing.raws.len());
        let missing = inputs.iter_mut().skip(shared.inputs.count());
        missing.for_each(|uses| *uses = MISSING);
        LaneUses {
            lane: self.lane,
            classes: [
                one(Some(self.flight), sizing.lane.batches.len()),
                inputs,
                one(self.output, sizing.outputs.len()),
            ],
        }
    }
}

impl StreamLane {
    /// Returns one use of each buffer of a batch.
    pub(super) fn all_buffers(&self) -> LaneUses {
        let sizing = &self.sizing;
        let classes = [
            &sizing.lane.batches.len(),
            &self.inputs.count(),
            &sizing.outputs.len(),
        ];
        LaneUses {
            lane: 0,
            classes: classes.map(|buffers| vec![1; *buffers]),
        }
    }

    /// Checks the encoded batch of `input`. Pinned memory has all of its slices, if the batch has to be
    /// compared.
    ///
    /// # Errors
    /// [`EngineError::Device`] if the batch is wrong, or if the device went into quarantine meanwhile.
    pub(super) fn check_batch(
        &self,
        input: &mut CudaInput,
        batch: &BatchGrid,
        subchunks: &[PlacedSubchunk],
        output: &[u8],
        buffers: BatchBuffers,
        unchecked: &UncheckedSlices,
    ) -> Result<BatchCheck, EngineError> {
        let checks = self.checks();
        if checks.every == 0 {
            return Ok(BatchCheck::NotCompared);
        }
        let (source, is_due) = input.comparison(Source::Host);
        let work = Work::Stream(source);
        let bytes = |placed: &PlacedSubchunk| {
            let place = placed.place.clone()?;
            Some(output.get(place).unwrap_or_default())
        };
        let unchecked = unchecked.text(batch.epochs() * self.job.grid.epoch_slices());
        for placed in subchunks.iter().filter(|placed| !placed.by_host) {
            if let Some(encoded) = bytes(placed) {
                checks.check_frame(work, placed.number, encoded, Some(&unchecked))?;
            }
        }
        let (progress, subject) = (&self.kind.checks, checks.subject(work));
        // The host looks at all subchunks that are not stored, if it has their elements.
        let mut all: Vec<_> = subchunks.iter().map(|p| (p.number, bytes(p))).collect();
        if !is_due {
            let has_elements = !input.lacks_bytes();
            all.retain(|(_, encoded)| has_elements && encoded.is_none());
        }
        if !all.is_empty() {
            let grid = (self.job.grid.padded_batch(batch.epochs()))
                .map_err(|_| EngineError::Internal("a batch that is no box"))?;
            let job = self.job.as_shard(&grid, &self.kind.chain);
            let comparison = Comparison::new(&job, &self.kind.chain);
            let decoded = input.bytes(batch.epochs());
            let compared = compare_all(&all, self.job.threads, |number, encoded| {
                comparison.check_encoded(decoded, number, encoded)
            });
            checks.result_of(work, compared, Some(&unchecked))?;
        }
        let made = |placed: &&PlacedSubchunk| placed.place.is_some() && !placed.by_host;
        let made = subchunks.iter().filter(made).count() as u64;
        if is_due {
            checks.counters.batch_checked();
            progress.equal(&subject, made, &buffers.uses(self));
        } else {
            let (shards, batches) = (0, 1);
            progress.returned(&subject, Unchecked { shards, batches });
        }
        // Another thread may have found a difference meanwhile.
        self.device().check_usable()?;
        Ok(match (made, is_due) {
            (0, _) => BatchCheck::NothingMade,
            (_, true) => BatchCheck::Compared,
            (_, false) => BatchCheck::NotCompared,
        })
    }
}
