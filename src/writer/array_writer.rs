//! The writer of an array.

use std::time::{Duration, Instant};

use super::appending::Appending;
use super::device::{DeviceEvent, DeviceSlice};
use super::error::WriterError;
use super::explanation::WriterExplanation;
use super::from_device;
use super::handle::Writer;
use super::pause;
use super::report::{Progress, WriterReport};
use super::retry::Attempt;
use super::stream::Stream;

/// Appends slices along the first axis of an array.
///
/// Appended elements are copied into a batch. Threads of the writer encode full batches and store
/// shards. All buffers are within the budgets of the [`Options`](crate::Options), so an append
/// waits while the store is behind; [`try_append`](ArrayWriter::try_append) does not wait.
///
/// A shard appears under its key when it is complete, and the shape in the array's metadata grows
/// over finished shards only. On a filesystem this takes
/// [`with_atomic_rename`](super::ArrayWriterBuilder::with_atomic_rename).
///
/// While the input rests, complete shards are stored: see
/// [`with_flush_after`](super::ArrayWriterBuilder::with_flush_after).
///
/// Call [`finish`](ArrayWriter::finish) at the end. A writer that is dropped without it stores its complete
/// shards, unless the thread panics, for at most the time of
/// [`with_drop_limit`](super::ArrayWriterBuilder::with_drop_limit). The writer logs the slices that are lost.
///
/// A writer belongs to the process that built it. In a forked child every append is an error, and
/// dropping the writer does nothing.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![0, 64], vec![16, 64], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![4, 16]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/frames")?;
/// # array.store_metadata()?;
/// use zarrs_cuda::writer::ArrayWriter;
///
/// // The array has the shape (0, 64), and shards of (16, 64).
/// let mut writer = ArrayWriter::builder(&array).build()?;
/// for n in 0..20_u16 {
///     writer.append(&[n; 64])?;
/// }
/// let report = writer.finish()?;
/// assert_eq!((report.finished_slices, report.shards), (20, 2));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub type ArrayWriter = Writer<Stream>;

impl ArrayWriter {
    /// Returns the behaviour of the writer and the reasons for it: its engine, its buffers, and whether it
    /// has a lease.
    #[must_use]
    pub fn explain(&self) -> WriterExplanation {
        self.shared[0].setup.explanation.clone()
    }

    /// Returns how much was appended, encoded and stored until now.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.shared[0].progress()
    }

    /// Stores everything that was appended, including short last shards, lets the array's metadata
    /// cover it, and returns a report.
    ///
    /// Nothing can be appended afterwards. A second call returns the same report. After an error
    /// `finish` can be called again: the writer loses nothing that it holds.
    ///
    /// # Errors
    /// [`WriterError::IncompleteSlice`] if the last slice is not complete; the writer stays open, and takes
    /// the rest. The other errors are those of [`append`](Self::append).
    pub fn finish(&mut self) -> Result<WriterReport, WriterError> {
        self.with(Stream::finish)
    }
}

impl Appending for Stream {
    fn top(&self) -> &Stream {
        self
    }

    fn top_mut(&mut self) -> &mut Stream {
        self
    }

    fn streams(&self) -> Vec<&Stream> {
        vec![self]
    }

    fn put(&mut self, bytes: &[u8], wait: bool) -> Result<usize, WriterError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let before = rest.len();
            rest = self.take(rest, wait)?;
            if rest.len() == before {
                self.shared.lock().progress.refusals += 1;
                break;
            }
        }
        Ok(rest.len())
    }

    #[allow(unsafe_code)]
    unsafe fn append_device(&mut self, slice: &DeviceSlice) -> Result<DeviceEvent, WriterError> {
        // SAFETY: the caller promises what `append` demands.
        unsafe { from_device::append(self, slice) }
    }

    fn flush(&mut self) -> Result<(), WriterError> {
        Self::flush(self)
    }

    fn give_up(&mut self) -> Result<u64, WriterError> {
        Self::give_up(self)
    }

    fn look(&mut self) -> Option<Duration> {
        if self.is_over() {
            return None;
        }
        let now = Instant::now();
        let (has_failed, is_well) = self.shared.has_failed();
        match self.retry.look(now, has_failed, is_well) {
            Attempt::NotNeeded => {}
            Attempt::Now => self.shared.try_again(),
            Attempt::Later(left) => return Some(left),
        }
        if self.filling.is_due(now) {
            match self.submit_due() {
                Ok(true) => {}
                Ok(false) => return Some(pause::SOON),
                Err(error) => {
                    tracing::debug!(%error, "complete shards cannot be stored in a pause");
                    return Some(self.filling.flush_after());
                }
            }
        }
        Some(self.attend(now))
    }
}
