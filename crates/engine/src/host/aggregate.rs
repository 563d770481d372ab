//! Encoded subchunks into their places: C order, dense, whichever thread finishes first.
//!
//! The place of a subchunk is known when the sizes of all subchunks before it are. So a thread leaves
//! its finished batch here, and the thread that completes a run of batches copies the whole run:
//!
//! ```text
//! push(batch b, bytes):
//!     lock
//!         waiting[b] = bytes
//!         while waiting has the next batch: take it, and reserve its place
//!     unlock
//!     copy the taken batches into their places, and give the buffers back
//! ```
//!
//! No thread waits for another, so this cannot hang, whatever rayon does with the threads. Waiting
//! batches take their encoded size; the first few have room for more.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::contract::EngineError;
use crate::layout::Extent;
use crate::memory::disjoint::{Segment, Segments};

/// A batch of consecutive subchunks, encoded one after the other.
#[derive(Debug, Default)]
pub(super) struct EncodedRun {
    /// Encoded subchunks, and room for more.
    buffer: Vec<u8>,
    used: usize,
    /// Where each subchunk of the batch lies in the buffer.
    pub(super) extents: Vec<Extent>,
}

impl EncodedRun {
    /// Returns the encoded subchunks.
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }

    /// Appends what `encode` writes to the start of `bound` bytes; it returns how many.
    ///
    /// # Errors
    /// What `encode` returns.
    pub(super) fn append_with(
        &mut self,
        bound: usize,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, EngineError>,
    ) -> Result<Range<usize>, EngineError> {
        let needed = self.used.saturating_add(bound);
        if self.buffer.len() < needed {
            // Zeroed once: batches are used again.
            self.buffer.resize(needed.max(2 * self.used), 0);
        }
        let start = self.used;
        self.used += encode(&mut self.buffer[start..start + bound])?.min(bound);
        Ok(start..self.used)
    }

    /// Appends `bytes`.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.used;
        self.buffer.truncate(start);
        self.buffer.extend_from_slice(bytes);
        self.used = self.buffer.len();
        start..self.used
    }

    /// Returns the size of the encoded subchunks, in bytes.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Gives back the room for more.
    fn shrink(&mut self) {
        self.buffer.truncate(self.used);
        self.buffer.shrink_to_fit();
    }

    fn clear(&mut self) {
        self.used = 0;
        self.extents.clear();
    }
}

/// Collects batches into one dense run of bytes.
#[derive(Debug)]
pub(super) struct Aggregate<'a> {
    output: &'a Segments,
    state: Mutex<AggregateState>,
}

#[derive(Debug)]
struct AggregateState {
    next: usize,
    waiting: BTreeMap<usize, EncodedRun>,
    extents: Vec<Extent>,
    idle: Vec<EncodedRun>,
}

impl<'a> Aggregate<'a> {
    /// Collects into `output`, for a shard of `num_subchunks`.
    pub(super) fn new(output: &'a Segments, num_subchunks: usize) -> Self {
        Self {
            output,
            state: Mutex::new(AggregateState {
                next: 0,
                waiting: BTreeMap::new(),
                extents: Vec::with_capacity(num_subchunks),
                idle: Vec::new(),
            }),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, AggregateState> {
        // A thread that panicked while it held the lock has left numbers that add up.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an empty batch, with the memory of one that is done.
    pub(super) fn empty_batch(&self) -> EncodedRun {
        let mut batch = self.state().idle.pop().unwrap_or_default();
        batch.clear();
        batch
    }

    /// Batch `number` is encoded.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the output is too small.
    pub(super) fn push(&self, number: usize, mut batch: EncodedRun) -> Result<(), EngineError> {
        /// More waiting batches than this are a queue behind a slow one: their memory adds up.
        const FEW: usize = 4;
        let mut placed: Vec<(EncodedRun, Segment<'_>)> = Vec::new();
        {
            let mut state = self.state();
            if state.waiting.len() >= FEW {
                batch.shrink();
            }
            state.waiting.insert(number, batch);
            while let Some(batch) = {
                let next = state.next;
                state.waiting.remove(&next)
            } {
                state.next += 1;
                let segment = self.output.reserve(batch.len())?;
                let start = segment.offset();
                let shift = |extent: &Range<usize>| start + extent.start..start + extent.end;
                state
                    .extents
                    .extend(batch.extents.iter().map(|e| e.as_ref().map(shift)));
                placed.push((batch, segment));
            }
        }
        for (batch, mut segment) in placed {
            segment.append(batch.bytes())?;
            drop(segment);
            let mut state = self.state();
            if state.idle.len() < FEW {
                state.idle.push(batch);
            }
        }
        Ok(())
    }

    /// Returns where each subchunk lies in the output.
    pub(super) fn finish(self) -> Vec<Extent> {
        self.state
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .extents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(bytes: &[u8]) -> EncodedRun {
        let mut batch = EncodedRun::default();
        let extent = batch.append(bytes);
        batch.extents = vec![None, Some(extent)];
        batch
    }

    #[test]
    fn batches_in_any_order_lie_in_c_order() {
        let output = Segments::new(Vec::with_capacity(16));
        output.reserve(1).expect("fits").append(&[0]).expect("fits");
        let aggregate = Aggregate::new(&output, 6);
        aggregate.push(2, batch(&[3, 3, 3])).expect("fits");
        aggregate.push(0, batch(&[1])).expect("fits");
        aggregate.push(1, batch(&[2, 2])).expect("fits");
        assert_eq!(aggregate.empty_batch().len(), 0);
        let expected = [None, Some(1..2), None, Some(2..4), None, Some(4..7)];
        assert_eq!(aggregate.finish(), expected);
        assert_eq!(output.finish().expect("filled"), [0, 1, 2, 2, 3, 3, 3]);
    }
}
