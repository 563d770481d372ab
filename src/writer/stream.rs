//! A stream of slices to one array: the open batch, and the state that the writer shares with its threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zarrs::array::{ArrayBytes, Element};

use super::error::WriterError;
use super::filling::Filling;
use super::plan::Plan;
use super::report::{Progress, WriterReport};
use super::retry::Retry;
use super::shared::{Batch, Item, Shared};
use super::slow_shard::SlowShard;
use super::waiting::Waiting;
use crate::metrics::MemoryEstimate;
use crate::metrics::counters;
use crate::plan::ToHost;
use crate::store::lease::Held;
use zarrs_cuda_engine::contract::stream::{BatchInput, OnRead, StreamEngine, StreamJob};
use zarrs_cuda_engine::layout::BatchGrid;
use zarrs_cuda_engine::memory::buffers::Patience;
use zarrs_cuda_engine::process::account::Reservation;

/// The state of an [`ArrayWriter`] between two calls of the application: the open batch, and the state that
/// the writer shares with its threads.
#[derive(Debug)]
pub struct Stream {
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Arc<dyn StreamEngine>,
    /// Brings elements on a device to the host; `None` if a device encodes this stream.
    pub(crate) to_host: Option<ToHost>,
    pub(crate) memory: MemoryEstimate,
    /// The number of bytes of host memory in the smallest buffers, which the writer reserved.
    pub(crate) reserved: usize,
    /// The grid of a full batch.
    pub(crate) grid: Arc<BatchGrid>,
    pub(crate) batch_bytes: usize,
    /// The batch that is being filled; `None` if no buffer was taken for it.
    pub(crate) input: Option<Box<dyn BatchInput>>,
    pub(crate) filled: usize,
    /// Whether a full batch waits for [`submit_full`](Self::submit_full), because the level below is made of
    /// it.
    pub(crate) holds: bool,
    /// The number of batches that were submitted before the open one.
    pub(crate) batches: u64,
    pub(crate) epochs: u64,
    pub(crate) first_append: Option<Instant>,
    pub(crate) filling: Filling,
    pub(crate) retry: Retry,
    pub(crate) waiting: Arc<Waiting>,
    /// The lease of the array, which is deleted when the writer has finished, or is dropped.
    pub(crate) lease: Option<Held>,
    /// The reserved memory, until the writer has finished; `None` if the levels of an image share a
    /// reservation.
    pub(crate) reservation: Option<Reservation>,
    pub(crate) report: Option<WriterReport>,
    pub(crate) job: Arc<StreamJob>,
    /// The identifier of the process that built the writer.
    pub(crate) process: u32,
}

impl Stream {
    pub(crate) fn new(
        shared: Arc<Shared>,
        engine: Arc<dyn StreamEngine>,
        plan: &Plan,
        batch: BatchGrid,
        (lease, reservation): (Option<Held>, Option<Reservation>),
        flush_after: Option<Duration>,
        waiting: Arc<Waiting>,
    ) -> Self {
        let job = plan.job.clone();
        Self {
            to_host: plan
                .choice
                .to_host(shared.setup.encoding.shards.codec.options.device_timeout()),
            batch_bytes: job.epochs * job.grid.epoch_bytes(),
            grid: Arc::new(batch),
            shared,
            engine,
            memory: plan.memory,
            reserved: plan.reserved,
            input: None,
            filled: 0,
            holds: false,
            batches: 0,
            epochs: 0,
            first_append: None,
            filling: Filling::new(&job.grid, flush_after),
            retry: Retry::new(flush_after.unwrap_or_default()),
            waiting,
            lease,
            reservation,
            report: None,
            job,
            process: std::process::id(),
        }
    }

    /// Checks that this process has built the writer, and was not forked from the process that has.
    pub(crate) fn check_process(&self) -> Result<(), WriterError> {
        // The check takes no lock, because a thread of the parent may have held it during the fork.
        check_process(self.process, self.shared.setup.first())
    }

    /// Returns the progress of the writer.
    pub(crate) fn progress(&self) -> Progress {
        self.shared.progress()
    }

    /// Returns the bytes of `elements`, if they are of the array's data type.
    pub(crate) fn bytes_of<'a, T: Element>(
        &self,
        elements: &'a [T],
    ) -> Result<std::borrow::Cow<'a, [u8]>, WriterError> {
        let data_type = self.shared.setup.array.data_type();
        T::validate_data_type(data_type)?;
        let cut = self.filled % self.job.grid.shard().element_size();
        if cut > 0 {
            return Err(WriterError::Unsupported {
                reason: format!(
                    "the last element has {cut} of its bytes, and no other can begin: append its rest with `append_bytes`"
                ),
            });
        }
        match T::to_array_bytes(data_type, elements)? {
            ArrayBytes::Fixed(bytes) => Ok(bytes),
            _ => Err(WriterError::Unsupported {
                reason: format!("elements of {data_type} have no fixed size"),
            }),
        }
    }

    /// Appends the beginning of `bytes`, as much as the open batch takes, and returns the rest. If no buffer
    /// is free for a batch, waits for one if it may `wait`, and otherwise appends nothing.
    pub(crate) fn take<'a>(
        &mut self,
        bytes: &'a [u8],
        wait: bool,
    ) -> Result<&'a [u8], WriterError> {
        self.take_telling(bytes, wait, &|_| ())
    }

    /// Appends like [`take`](Self::take). The threads that copy report in `read` what they have copied: see
    /// [`BatchInput::write_telling`].
    pub(crate) fn take_telling<'a>(
        &mut self,
        bytes: &'a [u8],
        wait: bool,
        read: &OnRead<'_>,
    ) -> Result<&'a [u8], WriterError> {
        self.check()?;
        self.first_append.get_or_insert_with(Instant::now);
        if self.input.is_none() {
            self.input = self.next_input(wait)?;
        }
        let Some(input) = &mut self.input else {
            return Ok(bytes);
        };
        let (now, rest) = bytes.split_at(bytes.len().min(self.batch_bytes - self.filled));
        let written = input.write_telling(self.filled, now, read);
        written.map_err(|error| self.broken(&error.to_string()))?;
        self.advance(now.len());
        Ok(rest)
    }

    /// Appends all of `bytes`, which are part of one slice, or nothing if no buffer is free for a batch.
    /// Waits for a buffer if it may `wait`. Returns whether `bytes` were appended. The threads that copy
    /// report in `read` what they have copied.
    pub(crate) fn take_slice(
        &mut self,
        bytes: &[u8],
        wait: bool,
        read: &OnRead<'_>,
    ) -> Result<bool, WriterError> {
        // A batch ends at the end of a slice, so that the rest is empty or all of `bytes`.
        Ok(self.take_telling(bytes, wait, read)?.is_empty())
    }

    /// Notes that `len` bytes were put into the open batch.
    pub(crate) fn advance(&mut self, len: usize) {
        self.filled += len;
        let appended = {
            let progress = &mut self.shared.lock().progress;
            progress.appended_bytes += len as u64;
            progress.appended_bytes
        };
        if let Some(slow) = self.filling.advance(len as u64, appended) {
            self.tell_slow(slow);
        }
        if !self.holds {
            self.submit_full();
        }
    }

    /// Notes that the stream has all slices that were read back. Times and waits count from now on.
    pub(crate) fn has_read_back(&mut self) {
        self.first_append = None;
        self.filling.has_read_back(self.shared.setup.read_back);
        let progress = &mut self.shared.lock().progress;
        (progress.waits, progress.waiting) = (0, Duration::ZERO);
    }

    /// Returns the number of complete slices in the open batch.
    pub(crate) fn whole_slices(&self) -> usize {
        self.filled / self.job.grid.slice_bytes()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.filled == self.batch_bytes
    }

    /// Submits the open batch if it is full.
    pub(crate) fn submit_full(&mut self) {
        if self.is_full() {
            self.submit(self.grid.clone(), self.job.epochs);
        }
    }

    /// Checks that more slices can be appended.
    pub(crate) fn check(&self) -> Result<(), WriterError> {
        self.check_process()?;
        let state = self.shared.lock();
        if let Some(end) = state.end {
            return Err(WriterError::Finished { end });
        }
        Shared::error(&state).map_or(Ok(()), Err)
    }

    pub(crate) fn broken(&self, reason: &str) -> WriterError {
        self.shared.break_down(reason.to_string());
        WriterError::Broken {
            reason: reason.to_string(),
            finished_slices: self.shared.progress().finished_slices,
        }
    }

    /// Returns a buffer for the next batch; `None` if no buffer is free and the call may not `wait`.
    pub(crate) fn next_input(
        &self,
        wait: bool,
    ) -> Result<Option<Box<dyn BatchInput>>, WriterError> {
        let look = |new| {
            let input = self.engine.input(new);
            input.map_err(|error| self.broken(&error.to_string()))
        };
        // The memory of a used buffer is mapped already, so it is worth waiting as long as an allocation
        // would take.
        let patience = Patience::for_bytes(self.batch_bytes);
        let mut since = None;
        let found = loop {
            let seen = self.shared.signal.count();
            let new = !wait || patience.is_over();
            let found = look(new)?;
            if found.is_some() || !wait {
                break found;
            }
            since.get_or_insert_with(Instant::now);
            self.check()?;
            let most = (!new).then(|| patience.left());
            self.waiting.wait(&self.shared.signal, seen, most)?;
        };
        if let Some(since) = since {
            let waited = since.elapsed();
            counters::append_waited(waited);
            self.shared.change(|state| {
                state.progress.waits += 1;
                state.progress.waiting += waited;
            });
        }
        Ok(found)
    }

    /// Gives the filled buffer to the encoder, as a batch of `grid`.
    pub(crate) fn submit(&mut self, grid: Arc<BatchGrid>, epochs: usize) {
        let Some(input) = self.input.take() else {
            return;
        };
        let first = self.shared.setup.start / self.job.grid.epoch_slices() as u64;
        let batch = Batch {
            number: self.batches,
            first_epoch: first + self.epochs,
            grid,
        };
        self.batches += 1;
        self.epochs += epochs as u64;
        self.filled = 0;
        self.filling.submitted();
        self.shared
            .change(|state| state.batches.push_back(Item::Batch(batch, input)));
    }

    /// Returns the first slice that was not appended completely.
    pub(crate) fn end_slice(&self) -> u64 {
        self.shared.setup.first() + self.progress().appended_slices
    }

    /// Returns the number of bytes of a slice that was appended in part.
    pub(crate) fn partial_slice(&self) -> usize {
        self.filled % self.job.grid.slice_bytes()
    }

    /// Forgets the appended part of an incomplete slice, and returns its size in bytes.
    pub(crate) fn discard_partial_slice(&mut self) -> usize {
        let partial = self.partial_slice();
        // The next elements are written over the incomplete slice.
        self.filled -= partial;
        self.shared.lock().progress.appended_bytes -= partial as u64;
        partial
    }

    /// Submits the complete shards of the open batch, and moves the rest of it to the next batch. Returns
    /// whether it did so: unless it may `wait`, there may be no buffer for the rest.
    pub(crate) fn submit_complete_shards(&mut self, wait: bool) -> Result<bool, WriterError> {
        /// The approximate number of bytes that are moved at once.
        const PIECE: usize = 1 << 20;
        let per_shard = self.job.grid.epochs_per_shard();
        let complete = self.filled / self.job.grid.epoch_bytes() / per_shard * per_shard;
        if complete == 0 || !self.shared.setup.whole_shards {
            return Ok(true);
        }
        let grid = self.job.grid.batch(complete);
        let grid = grid.map_err(|error| self.broken(&error.to_string()))?;
        let (mut at, end) = (complete * self.job.grid.epoch_bytes(), self.filled);
        let mut moved = 0;
        let mut next = match (at < end, wait) {
            (false, _) => None,
            (true, true) => self.next_input(true)?,
            (true, false) => {
                // If there is no memory for another buffer, the complete shards wait for the rest of their
                // batch.
                let input = self.engine.input(true).ok().flatten();
                if input.is_none() {
                    return Ok(false);
                }
                input
            }
        };
        if let (Some(input), Some(next)) = (&mut self.input, &mut next) {
            let mut piece = vec![0; PIECE.min(end - at)];
            while at < end {
                let piece = &mut piece[..PIECE.min(end - at)];
                let copied = input
                    .read(at, piece)
                    .and_then(|()| next.write(moved, piece));
                // After an error, the elements stay in the buffer of the open batch.
                copied.map_err(|error| WriterError::Device {
                    source: Box::new(error),
                })?;
                at += piece.len();
                moved += piece.len();
            }
        }
        self.submit(Arc::new(grid), complete);
        self.input = next;
        self.filled = moved;
        Ok(true)
    }

    /// Waits until everything that was given to the threads is stored and covered by the metadata.
    pub(crate) fn stored(&self) -> Result<(), WriterError> {
        self.shared.change(|state| state.grow_now = true);
        let result = self.waiting.until(&self.shared, |state| {
            if let Some(error) = Shared::error(state) {
                // The steps of storing that have begun end first, so that all failed steps can be tried
                // again.
                let busy = state.growing || state.shards.values().any(|storing| storing.busy);
                return (!busy).then_some(Err(error));
            }
            let ended = state.end.is_none() || state.ended;
            (ended && state.is_idle() && !self.shared.must_grow(state) && !state.growing)
                .then_some(Ok(()))
        });
        self.shared.change(|state| state.grow_now = false);
        result
    }

    /// Waits until every complete shard is stored, and covered by the metadata.
    pub(crate) fn flush(&mut self) -> Result<(), WriterError> {
        self.check_process()?;
        if self.report.is_some() {
            return Ok(());
        }
        self.shared.try_again();
        self.submit_complete_shards(true)?;
        self.stored()
    }

    /// Logs that a shard takes long to fill.
    pub(crate) fn tell_slow(&self, slow: SlowShard) {
        self.shared.lock().progress.slow_shard = Some(slow.in_time);
        tracing::warn!(
            path = %self.shared.setup.array.path(),
            "a shard of {} slices takes long to fill, and a kill loses the slices in it: {slow}",
            self.job.grid.shard_slices(),
        );
    }

    /// Submits complete shards of this stream that have waited long enough, without waiting. Returns whether
    /// it did.
    pub(crate) fn submit_due(&mut self) -> Result<bool, WriterError> {
        self.check()?;
        self.submit_complete_shards(false)
    }

    /// Lets the metadata cover all complete shards as soon as they are stored, if one of these shards has
    /// waited long enough.
    pub(crate) fn promise_due(&mut self, now: Instant) {
        if !self.filling.take_metadata_due(now) {
            return;
        }
        let slices = self.job.grid.shard_slices() as u64;
        let start = self.shared.setup.start;
        self.shared.change(|state| {
            let appended = state.progress.appended_bytes / self.job.grid.slice_bytes() as u64;
            state.promised = start + appended / slices * slices;
        });
    }

    /// Does everything that is due except submitting shards. Returns the time until the next call.
    pub(crate) fn attend(&mut self, now: Instant) -> Duration {
        self.promise_due(now);
        let appended = self.shared.lock().progress.appended_bytes;
        if let Some(slow) = self.filling.overdue(now, appended) {
            self.tell_slow(slow);
        }
        self.filling.next(now)
    }

    /// Returns whether the writer has nothing to store any more, or cannot go on.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.is_closed() || self.shared.lock().broken.is_some()
    }
}

/// Checks that this process is `process`, in which a writer was built that begins at the slice `start`.
pub(crate) fn check_process(process: u32, start: u64) -> Result<(), WriterError> {
    if process == std::process::id() {
        return Ok(());
    }
    Err(WriterError::Broken {
        reason: "its process was forked after it was built, and the writer is the parent's: build another one here, for another part of the array".to_string(),
        finished_slices: start,
    })
}
