//! The type of a writer as an application has it: of an array, or of an image with its levels.

use std::sync::Arc;
use std::time::Duration;

use zarrs::array::Element;

use super::appending::Appending;
use super::error::WriterError;
use super::pause::Kept;
use super::shared::Shared;
use crate::metrics::MemoryEstimate;

/// Appends slices along the first axis of an array: an [`ArrayWriter`](super::ArrayWriter), or a
/// [`MultiscaleWriter`](super::MultiscaleWriter), which also writes the smaller levels of an image.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![0, 64], vec![16, 64], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![4, 16]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/frames")?;
/// # array.store_metadata()?;
/// use zarrs_cuda::writer::{Appending, ArrayWriter, Writer, WriterError};
///
/// /// Appends a frame of a camera, which does not wait. Drops the frame if there is no room.
/// fn offer<W: Appending>(writer: &mut Writer<W>, frame: &[u16]) -> Result<bool, WriterError> {
///     let rest = writer.try_append(frame)?;
///     if !rest.is_empty() && rest.len() < frame.len() {
///         writer.append(rest)?; // a part of the frame was appended
///         return Ok(true);
///     }
///     Ok(rest.is_empty())
/// }
///
/// let mut writer = ArrayWriter::builder(&array).build()?;
/// assert!(offer(&mut writer, &[7; 64])?);
/// # assert_eq!(writer.finish()?.finished_slices, 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Writer<W: Appending> {
    open: Kept<W>,
    /// The shared states of the streams of all levels, from level 0 on.
    pub(crate) shared: Vec<Arc<Shared>>,
    memory: MemoryEstimate,
}

impl<W: Appending> Writer<W> {
    /// Makes a writer whose buffers take at most `memory`.
    pub(crate) fn new(
        open: W,
        memory: MemoryEstimate,
        flush_after: Option<Duration>,
        drop_limit: Duration,
    ) -> std::io::Result<Self> {
        let streams = open.streams().into_iter();
        Ok(Self {
            shared: streams.map(|stream| stream.shared.clone()).collect(),
            open: Kept::new(open, flush_after, drop_limit)?,
            memory,
        })
    }

    /// Does `work` with the writer. The timer does not look at the writer meanwhile.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut W) -> Result<T, WriterError>,
    ) -> Result<T, WriterError> {
        self.open.with(work)
    }

    /// Returns the most memory that the buffers of the writer take, together for all levels of an image.
    #[must_use]
    pub fn memory_estimate(&self) -> MemoryEstimate {
        self.memory
    }

    /// Returns the first slice that is appended. For a writer of an image, it is a slice of level 0.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.open.start()
    }

    /// Appends `elements`, in C order: any number of them, not only whole slices. Waits while the
    /// encoder or the store is behind. An image takes elements of level 0.
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
    /// - [`WriterError::Level`] for an error of another level of an image than level 0.
    pub fn append<T: Element>(&mut self, elements: &[T]) -> Result<(), WriterError> {
        self.with(|writer| {
            let bytes = writer.top().bytes_of(elements)?;
            writer.put(&bytes, true).map(drop)
        })
    }

    /// Appends the bytes of elements, in C order, each in the byte order of this machine: any
    /// number of bytes, not only whole elements. Waits like [`append`](Self::append).
    ///
    /// # Errors
    /// The errors of [`append`](Self::append).
    pub fn append_bytes(&mut self, bytes: &[u8]) -> Result<(), WriterError> {
        self.with(|writer| writer.put(bytes, true).map(drop))
    }

    /// Appends as many of `elements` as there is room for, without waiting, and returns the elements that
    /// were not appended.
    ///
    /// There is room again when a batch was encoded and stored, because its buffers are then free.
    ///
    /// # Errors
    /// The errors of [`append`](Self::append).
    pub fn try_append<'a, T: Element>(
        &mut self,
        elements: &'a [T],
    ) -> Result<&'a [T], WriterError> {
        self.with(|writer| {
            let bytes = writer.top().bytes_of(elements)?;
            let size = writer.top().job.grid.shard().element_size();
            // `left` is a multiple of `size`: no element was cut before, and a batch has whole elements.
            let left = writer.put(&bytes, false)?;
            Ok(&elements[elements.len() - left / size..])
        })
    }

    /// Appends as many of `bytes` as there is room for, without waiting, and returns the bytes that were not
    /// appended.
    ///
    /// # Errors
    /// The errors of [`append`](Self::append).
    pub fn try_append_bytes<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], WriterError> {
        self.with(|writer| {
            let left = writer.put(bytes, false)?;
            Ok(&bytes[bytes.len() - left..])
        })
    }

    /// Returns the number of bytes of an incomplete slice that were appended; 0 between two slices.
    #[must_use]
    pub fn partial_slice(&self) -> usize {
        let partial = self.with(|writer| Ok(writer.top().partial_slice()));
        // A forked child may not use the writer.
        partial.unwrap_or(0)
    }

    /// Forgets the appended part of an incomplete slice, and returns its size in bytes.
    pub fn discard_partial_slice(&mut self) -> usize {
        let discarded = self.with(|writer| Ok(writer.top_mut().discard_partial_slice()));
        // In a forked child, which may not use the writer, nothing was discarded.
        discarded.unwrap_or(0)
    }

    /// Waits until every complete shard is stored, and covered by the array's metadata. A writer of an image
    /// does so for each level.
    ///
    /// Incomplete shards stay in memory. After an error of the store, `flush` tries again; if it
    /// succeeds, more can be appended.
    ///
    /// # Errors
    /// The errors of [`append`](Self::append).
    pub fn flush(&mut self) -> Result<(), WriterError> {
        self.with(W::flush)
    }

    /// Stores the complete shards for at most `limit`, and drops everything that is not stored by then.
    /// Returns the index of the first slice that is not stored, of level 0 if this is a writer of an image.
    ///
    /// A write that the store has not completed after `limit` is not cancelled, and may complete its shard
    /// later.
    ///
    /// # Errors
    /// [`WriterError::Store`] if a temporary could not be erased. Slices that could not be stored are logged.
    pub fn stop(self, limit: Duration) -> Result<u64, WriterError> {
        self.open.stop(limit, true)
    }

    /// Gives up at once: stores nothing more, forgets what is not stored, and erases the writer's temporaries.
    /// Returns the first slice that is not stored.
    ///
    /// # Errors
    /// [`WriterError::Store`] if a temporary could not be erased.
    pub fn abort(self) -> Result<u64, WriterError> {
        match self.open.take()? {
            Some(mut writer) => {
                writer.top().check_process()?;
                writer.give_up()
            }
            None => Ok(self.start()),
        }
    }
}
