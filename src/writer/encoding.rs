//! Encodes the batches of a writer in steps, which threads of the process do one at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::assembler::Assembler;
use super::shared::{Batch, Failure, Item, Setup, Shared, State};
use zarrs_cuda_engine::contract::stream::{BatchInput, EncodedPart, Encoder, FailedBatch};

/// The next step of encoding a stream.
pub(super) enum Step {
    Submit(Batch, Box<dyn BatchInput>),
    Complete,
    End,
}

/// Encodes the batches of a writer, and lets the assembler put them together to shards.
#[derive(Debug)]
pub(super) struct Encoding {
    encoder: Box<dyn Encoder>,
    assembler: Assembler,
    under_way: VecDeque<Batch>,
    /// The number of the encoded batch that is added to shards next.
    next: u64,
}

impl Encoding {
    pub(super) fn new(encoder: Box<dyn Encoder>, assembler: Assembler) -> Self {
        Self {
            encoder,
            assembler,
            under_way: VecDeque::new(),
            next: 0,
        }
    }

    /// Returns how many batches can be under way at once.
    pub(super) fn depth(&self) -> usize {
        self.encoder.depth()
    }

    /// Takes the buffers with which the oldest batch is completed. Returns whether the pool had enough of
    /// them.
    pub(super) fn prepare(&mut self, setup: &Setup) -> bool {
        let Some(oldest) = self.under_way.front() else {
            return false;
        };
        self.encoder.prepare() && self.assembler.prepare(setup, oldest)
    }

    /// Does one step of encoding.
    pub(super) fn run(&mut self, shared: &Shared, step: Step) {
        match step {
            Step::Submit(batch, input) => {
                self.encoder.submit(input, batch.grid.clone());
                self.under_way.push_back(batch);
            }
            Step::Complete => self.complete(shared),
            Step::End => {
                if let Err(error) = self.encoder.end() {
                    shared.break_down(error.to_string());
                }
                let work = self.assembler.end(&shared.setup);
                give(shared, work);
                shared.change(|state| state.ended = true);
            }
        }
    }

    fn complete(&mut self, shared: &Shared) {
        let begin = Instant::now();
        let depth = self.depth();
        // The device also needs the next batch. While this thread is in `complete`, it submits no batch.
        let is_encoded = self.encoder.wait(&|| begins_batch(&shared.lock(), depth));
        if !is_encoded {
            shared.lock().progress.encoding += begin.elapsed();
            return;
        }
        let completed = self.encoder.complete();
        let Some(batch) = self.under_way.pop_front() else {
            return;
        };
        let time = begin.elapsed();
        match completed {
            Some(Ok(encoded)) => {
                let bytes = batch.grid.epochs() * shared.setup.grid.epoch_bytes();
                let packed: usize = encoded.parts.iter().map(EncodedPart::len).sum();
                // After a failure, the batches behind the failed one are encoded again, and must not be added
                // yet.
                if batch.number == self.next {
                    self.next += 1;
                    let setup = &shared.setup;
                    let work = self.assembler.add(setup, &batch, encoded);
                    give(shared, work);
                } else {
                    shared.break_down("an encoder returned batches out of order".to_string());
                }
                shared.change(|state| {
                    state.progress.batches_encoding -= 1;
                    state.progress.encoding += time;
                    state.progress.encoded_bytes += bytes as u64;
                    state.progress.packed_bytes += packed as u64;
                });
            }
            Some(Err(FailedBatch { error, input })) => {
                let slices = shared.setup.grid.epoch_slices() as u64;
                let first = batch.first_epoch * slices;
                let last = first + batch.grid.epochs() as u64 * slices - 1;
                tracing::warn!(first, last, %error, "slices could not be encoded");
                shared.change(|state| {
                    state.progress.batches_encoding -= 1;
                    // The batch goes back to its place: the batches behind it also come back, and are encoded
                    // again after it.
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
            None => {
                shared.break_down("an encoder forgot a batch that it was given".to_string());
            }
        }
    }
}

fn give(shared: &Shared, work: Result<super::assembler::WorkOfShards, String>) {
    match work {
        Ok(work) => {
            for (id, work) in work {
                shared.add_work(id, work);
            }
        }
        Err(reason) => shared.break_down(reason),
    }
}

/// Takes the next step out of `state`; `None` if there is none. `is_ready` says whether the oldest batch has
/// the buffers with which it is completed.
pub(super) fn next(state: &mut State, depth: usize, is_ready: bool) -> Option<Step> {
    if !may_go_on(state) {
        return None;
    }
    let under_way = state.progress.batches_encoding;
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
    (under_way > 0 && is_ready).then_some(Step::Complete)
}

/// Returns whether there is a step. Completing the oldest batch is a step only if it `is_ready`, and needs no
/// buffer.
pub(super) fn has_step(state: &State, depth: usize, is_ready: bool) -> bool {
    let under_way = state.progress.batches_encoding;
    let ends = matches!(state.batches.front(), Some(Item::End))
        && under_way == 0
        && state.failure.is_none();
    may_go_on(state) && (begins_batch(state, depth) || ends || (under_way > 0 && is_ready))
}

/// Returns whether the next step submits a batch.
fn begins_batch(state: &State, depth: usize) -> bool {
    may_go_on(state)
        && state.failure.is_none()
        && matches!(state.batches.front(), Some(Item::Batch(..)))
        && state.progress.batches_encoding < depth
}

fn may_go_on(state: &State) -> bool {
    !state.aborted && state.broken.is_none()
}
