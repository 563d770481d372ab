//! The writer of an application.

use std::sync::Arc;
use std::time::Duration;

use zarrs::array::Element;

use super::Stream;
use super::error::WriterError;
use super::explanation::WriterExplanation;
use super::pause::Kept;
use super::report::{Progress, WriterReport};
use super::shared::Shared;
use crate::metrics::MemoryEstimate;

/// Appends slices along the first axis of an array.
///
/// Appended elements are copied into a batch. Threads of the writer encode full batches and store
/// shards. All buffers are within the budgets of the [`Options`](crate::Options), so an append
/// waits while the store is behind; [`try_append`](Self::try_append) does not wait.
///
/// A shard appears under its key when it is complete, and the shape in the array's metadata grows
/// over finished shards only. On a filesystem this takes
/// [`with_atomic_rename`](super::ArrayWriterBuilder::with_atomic_rename).
///
/// While the input rests, complete shards are stored: see
/// [`with_flush_after`](super::ArrayWriterBuilder::with_flush_after).
///
/// Call [`finish`](Self::finish) at the end. A writer that is dropped without it stores its complete
/// shards, unless the thread panics, for at most the time of
/// [`with_drop_limit`](super::ArrayWriterBuilder::with_drop_limit). It logs the slices that are lost.
///
/// A writer belongs to the process that built it. In a forked child every append is an error, and
/// dropping the writer does nothing.
#[derive(Debug)]
pub struct ArrayWriter {
    stream: Kept<Stream>,
    shared: Arc<Shared>,
    memory: MemoryEstimate,
}

impl ArrayWriter {
    pub(super) fn new(
        stream: Stream,
        flush_after: Option<Duration>,
        drop_limit: Duration,
    ) -> std::io::Result<Self> {
        let (shared, memory) = (stream.shared.clone(), stream.memory);
        let start = shared.setup.start;
        Ok(Self {
            stream: Kept::new(stream, start, flush_after, drop_limit)?,
            shared,
            memory,
        })
    }

    /// Does `work` with the stream, at which the timer does not look meanwhile.
    pub(super) fn with<T>(
        &self,
        work: impl FnOnce(&mut Stream) -> Result<T, WriterError>,
    ) -> Result<T, WriterError> {
        self.stream.with(work)
    }

    /// Returns the most memory that the buffers take.
    #[must_use]
    pub fn memory_estimate(&self) -> MemoryEstimate {
        self.memory
    }

    /// Returns what the writer does, and why: its engine, its buffers, and whether it has a lease.
    #[must_use]
    pub fn explain(&self) -> WriterExplanation {
        self.shared.setup.explanation.clone()
    }

    /// Returns how far the writer is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.shared.progress()
    }

    /// Appends `elements`, in C order: any number of them, not only whole slices. Waits while the
    /// encoder or the store is behind.
    ///
    /// # Errors
    /// - [`WriterError::Element`] if the elements are not of the array's data type, and
    ///   [`WriterError::Unsupported`] if [`append_bytes`](Self::append_bytes) has cut the last
    ///   element. Nothing was appended.
    /// - [`WriterError::Store`] and [`WriterError::Encode`] if earlier slices could not be stored.
    ///   The elements that this call appended before are kept; [`progress`](Self::progress) says
    ///   how many bytes were appended in all. [`flush`](Self::flush) tries again.
    /// - [`WriterError::Broken`] if the writer cannot go on, [`WriterError::Finished`] if it was
    ///   finished.
    pub fn append<T: Element>(&mut self, elements: &[T]) -> Result<(), WriterError> {
        self.with(|stream| stream.append(elements))
    }

    /// Appends the bytes of elements, in C order, each in the byte order of this machine: any
    /// number of bytes, not only whole elements. Waits like [`append`](Self::append).
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn append_bytes(&mut self, bytes: &[u8]) -> Result<(), WriterError> {
        self.with(|stream| stream.append_bytes(bytes))
    }

    /// Appends as many of `elements` as there is room for, without waiting, and returns the others.
    ///
    /// There is room again when a batch was encoded and stored.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn try_append<'a, T: Element>(
        &mut self,
        elements: &'a [T],
    ) -> Result<&'a [T], WriterError> {
        self.with(|stream| stream.try_append(elements))
    }

    /// Appends as many of `bytes` as there is room for, without waiting, and returns the others.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn try_append_bytes<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], WriterError> {
        self.with(|stream| stream.try_append_bytes(bytes))
    }

    /// Forgets the appended part of an incomplete slice, and returns its size in bytes.
    pub fn discard_partial_slice(&mut self) -> usize {
        let discarded = self.with(|stream| Ok(stream.discard_partial_slice()));
        // In a forked child there is nothing to discard.
        discarded.unwrap_or(0)
    }

    /// Waits until every complete shard is stored, and covered by the array's metadata.
    ///
    /// Incomplete shards stay in memory. After an error of the store, `flush` tries again; if it
    /// succeeds, more can be appended.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn flush(&mut self) -> Result<(), WriterError> {
        self.with(Stream::flush)
    }

    /// Stores everything that was appended, including short last shards, lets the array's metadata
    /// cover it, and returns a report.
    ///
    /// Nothing can be appended afterwards. A second call returns the same report. After an error
    /// `finish` can be called again: the writer loses nothing that it holds.
    ///
    /// # Errors
    /// [`WriterError::IncompleteSlice`] if the last slice is not complete; the writer has not ended
    /// then. Otherwise as for [`append`](Self::append).
    pub fn finish(&mut self) -> Result<WriterReport, WriterError> {
        self.with(Stream::finish)
    }

    /// Stores complete shards, for at most `limit`, and gives up the rest. Returns the first slice that is
    /// not stored then.
    ///
    /// A store that is at work after the limit is left alone, and may complete its shard later.
    ///
    /// # Errors
    /// [`WriterError::Store`] if a temporary could not be erased. What could not be stored is logged.
    pub fn stop(self, limit: Duration) -> Result<u64, WriterError> {
        self.stream.stop(limit, true)
    }

    /// Gives up at once: stores nothing more, forgets what is not stored, and erases the writer's temporaries.
    /// Returns the first slice that is not stored.
    ///
    /// # Errors
    /// [`WriterError::Store`] if a temporary could not be erased.
    pub fn abort(self) -> Result<u64, WriterError> {
        let start = self.shared.setup.start;
        self.stream.take()?.map_or(Ok(start), Stream::abort)
    }
}
