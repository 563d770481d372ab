//! Places encoded subchunks densely in C order, whichever thread encodes its batch first.
//!
//! The place of a subchunk is known when all subchunks before it are encoded. A thread hands in its finished
//! batch here. The thread that completes a run of batches copies the whole run:
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
//! No thread waits for another, so rayon cannot cause a deadlock. Waiting batches take the memory of their
//! encoded size; only the first few keep spare capacity.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::contract::EngineError;
use crate::layout::Extent;
use crate::memory::disjoint::{Segment, Segments};

/// A batch of consecutive subchunks, encoded one after the other.
#[derive(Debug, Default)]
pub(super) struct EncodedRun {
    /// The encoded subchunks, and room for more.
    buffer: Vec<u8>,
    used: usize,
    /// The extent of each subchunk of the batch in the buffer.
    pub(super) extents: Vec<Extent>,
}

impl EncodedRun {
    /// Returns the encoded subchunks.
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }

    /// Makes room for `bound` bytes, into which `encode` writes. Appends as many of them as `encode` returns.
    ///
    /// # Errors
    /// The errors of `encode`.
    pub(super) fn append_with(
        &mut self,
        bound: usize,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, EngineError>,
    ) -> Result<Range<usize>, EngineError> {
        let needed = self.used.saturating_add(bound);
        if self.buffer.len() < needed {
            // These zeros are written once, because batches are used again.
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

    /// Frees the spare capacity of the batch.
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
    /// Collects the subchunks of a shard of `num_subchunks` subchunks into `output`.
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
        // The numbers stay consistent even if a thread panicked while it held the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an empty batch, with the memory of a finished one if there is one.
    pub(super) fn empty_batch(&self) -> EncodedRun {
        let mut batch = self.state().idle.pop().unwrap_or_default();
        batch.clear();
        batch
    }

    /// Hands in the batch `number`, which is encoded.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the output is too small.
    pub(super) fn push(&self, number: usize, mut batch: EncodedRun) -> Result<(), EngineError> {
        /// The number of waiting batches that keep their spare capacity. More than these wait for a slow
        /// batch, and their memory adds up.
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

    /// Returns the extent of each subchunk in the output.
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
