//! The thread that encodes batches.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::assembler::Assembler;
use super::shared::{Batch, Failure, Item, Shared, State};
use crate::engine::stream::{EncodedPart, Encoder, FailedBatch};

/// The next step of the thread.
enum Step {
    Submit(Batch, Box<dyn crate::engine::stream::Input>),
    Complete,
    End,
    Leave,
}

/// Runs the encoding thread until there is nothing left to do.
pub(super) fn run(shared: &Arc<Shared>, encoder: Box<dyn Encoder>, assembler: Assembler) {
    let mut thread = Thread {
        shared,
        encoder,
        assembler,
        under_way: VecDeque::new(),
        next: 0,
    };
    if catch_unwind(AssertUnwindSafe(|| thread.run())).is_err() {
        shared.break_down("a codec panicked while it encoded a batch".to_string());
    }
}

struct Thread<'a> {
    shared: &'a Arc<Shared>,
    encoder: Box<dyn Encoder>,
    assembler: Assembler,
    under_way: VecDeque<Batch>,
    /// The number of the batch that shards get next.
    next: u64,
}

impl Thread<'_> {
    fn run(&mut self) {
        loop {
            let (depth, under_way) = (self.encoder.depth(), self.under_way.len());
            let step = self.shared.wait(|state| next(state, depth, under_way));
            match step {
                Step::Submit(batch, input) => {
                    self.encoder.submit(input, batch.grid.clone());
                    self.under_way.push_back(batch);
                }
                Step::Complete => self.complete(),
                Step::End => {
                    let work = self.assembler.end(&self.shared.setup);
                    self.give(work);
                    self.shared.change(|state| state.ended = true);
                }
                Step::Leave => return,
            }
        }
    }

    fn complete(&mut self) {
        let begin = Instant::now();
        let completed = self.encoder.complete();
        let Some(batch) = self.under_way.pop_front() else {
            return;
        };
        let time = begin.elapsed();
        match completed {
            Some(Ok(encoded)) => {
                let bytes = batch.grid.epochs() * self.shared.setup.grid.epoch_bytes();
                let packed: usize = encoded.parts.iter().map(EncodedPart::len).sum();
                // After a failure those behind it come back, too.
                if batch.number == self.next {
                    self.next += 1;
                    let setup = &self.shared.setup;
                    let work = self.assembler.add(setup, &batch, encoded);
                    self.give(work);
                } else {
                    self.shared
                        .break_down("an encoder returned batches out of order".to_string());
                }
                self.shared.change(|state| {
                    state.progress.batches_encoding -= 1;
                    state.progress.encoding += time;
                    state.progress.encoded_bytes += bytes as u64;
                    state.progress.packed_bytes += packed as u64;
                });
            }
            Some(Err(FailedBatch { error, input })) => {
                let slices = self.shared.setup.grid.epoch_slices() as u64;
                let first = batch.first_epoch * slices;
                let last = first + batch.grid.epochs() as u64 * slices - 1;
                tracing::warn!(first, last, %error, "slices could not be encoded");
                self.shared.change(|state| {
                    state.progress.batches_encoding -= 1;
                    // Where it was: those behind it come back, too, and are encoded after it again.
                    let is_before = |item: &Item| matches!(item, Item::Batch(other, _) if other.number < batch.number);
                    let at = state.batches.iter().take_while(|item| is_before(item)).count();
                    state.batches.insert(at, Item::Batch(batch, input));
                    state.failure.get_or_insert(Failure::Encode {
                        first,
                        last,
                        source: Arc::new(error),
                    });
                });
            }
            None => self
                .shared
                .break_down("an encoder forgot a batch that it was given".to_string()),
        }
    }

    fn give(&self, work: Result<super::assembler::WorkOfShards, String>) {
        match work {
            Ok(work) => {
                for (id, work) in work {
                    self.shared.add_work(id, work);
                }
            }
            Err(reason) => self.shared.break_down(reason),
        }
    }
}

fn next(state: &mut State, depth: usize, under_way: usize) -> Option<Step> {
    if state.aborted || state.broken.is_some() {
        return Some(Step::Leave);
    }
    if state.failure.is_none() && under_way < depth {
        match state.batches.pop_front() {
            Some(Item::Batch(batch, input)) => {
                state.progress.batches_encoding += 1;
                return Some(Step::Submit(batch, input));
            }
            Some(Item::End) if under_way == 0 => return Some(Step::End),
            Some(item) => state.batches.push_front(item),
            None => {}
        }
    }
    if under_way > 0 {
        return Some(Step::Complete);
    }
    (state.closed && state.ended && state.batches.is_empty()).then_some(Step::Leave)
}
