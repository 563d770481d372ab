//! Writes an image and its smaller levels in one pass.

mod axis;
mod builder;
mod cascade;
mod describe;
mod feed;
mod ome;
mod plan;
mod pyramid;
mod stored;

#[cfg(test)]
pub(crate) mod tests;

use zarrs::array::Element;

pub use crate::engine::reduce::Reduction;
pub use axis::Axis;
pub use builder::MultiscaleBuilder;

#[cfg(feature = "dlpack")]
use super::dlpack;
use super::{ArrayWriter, DeviceEvent, DeviceSlice, Progress, WriterError, WriterReport};
use crate::MemoryEstimate;
use cascade::{Cascade, at_level};

/// Appends slices along the first axis of an image, and writes all levels of its pyramid.
///
/// Each slice is reduced while it is in memory: each level is made from the level above, in windows of
/// one or two elements along each axis ([`Axis::with_factor`]), by a [`Reduction`]. A window at the
/// end of an odd extent has the elements that exist. The levels are arrays in the group of level 0,
/// whose attributes describe them by [OME-Zarr 0.5](https://ngff.openmicroscopy.org/0.5/).
///
/// ```
/// # use std::sync::Arc;
/// # use zarrs::array::{ArrayBuilder, data_type};
/// # use zarrs_cuda::CudaShardingCodecBuilder;
/// use zarrs_cuda::writer::{Axis, MultiscaleWriter, Reduction};
///
/// # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let codec = CudaShardingCodecBuilder::new(vec![4.try_into()?, 16.try_into()?, 16.try_into()?], &data_type::uint16());
/// # let mut builder = ArrayBuilder::new(vec![0, 64, 64], vec![8, 64, 64], data_type::uint16(), 0u16);
/// # builder.array_to_bytes_codec(codec.build_arc()?);
/// // Level 0, of shape (0, 64, 64), in shards of (8, 64, 64). It need not be stored.
/// let array = builder.build(store, "/image/0")?;
///
/// let mut writer = MultiscaleWriter::builder(&array)
///     .with_axes([
///         Axis::time("t"),
///         Axis::space("y").with_unit("micrometer").with_scale(0.325),
///         Axis::space("x").with_unit("micrometer").with_scale(0.325),
///     ])
///     .with_reduction(Reduction::Mean)
///     .build()?;
/// for n in 0..20 {
///     writer.append(&vec![n as u16; 64 * 64])?;
/// }
/// let reports = writer.finish()?;
/// // Levels of 64, 32 and 16 elements along the axes of space.
/// assert_eq!(reports.len(), 3);
/// assert_eq!(reports[2].finished_slices, 20);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// Each level keeps the promises of an [`ArrayWriter`]: a shard appears when it is complete, and the
/// shape covers finished shards only, also after a kill. A writer that is built again goes on where the
/// array of level 0 ends. It reads what the other levels need from the level above, and the levels are
/// in the end the same bytes as if nothing had happened.
///
/// All levels share the budgets of the [`Options`](crate::Options) of the array's codec.
#[derive(Debug)]
pub struct MultiscaleWriter {
    top: ArrayWriter,
    lower: Cascade,
    /// A slice of level 0 that was appended in part.
    begun: Vec<u8>,
    /// Whether windows whose second slice did not come have ended.
    is_ending: bool,
    memory: MemoryEstimate,
    reports: Option<Vec<WriterReport>>,
}

impl MultiscaleWriter {
    /// Returns a builder of a writer to `array`, which is level 0 of an image. The image is the group
    /// that has the array. Neither needs to be stored.
    ///
    /// The array has shards of this crate's codec, or of zarrs'.
    pub fn builder<TStorage>(array: &zarrs::array::Array<TStorage>) -> MultiscaleBuilder<TStorage>
    where
        TStorage: ?Sized + zarrs_storage::ReadableWritableStorageTraits + 'static,
    {
        MultiscaleBuilder::new(array)
    }

    /// Returns the most memory that the buffers of all levels take.
    #[must_use]
    pub fn memory_estimate(&self) -> MemoryEstimate {
        self.memory
    }

    /// Returns how far the writer of each level is, from level 0 on.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        self.writers().map(ArrayWriter::progress).collect()
    }

    /// Returns the first slice of level 0 that this writer writes.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.top.shared.setup.start
    }

    fn writers(&self) -> impl Iterator<Item = &ArrayWriter> {
        let lower = self.lower.levels.iter().map(|lower| &lower.writer);
        std::iter::once(&self.top).chain(lower)
    }

    /// Appends `elements` to level 0, in C order: any number of them, not only whole slices. Waits
    /// while the encoder or the store of a level is behind.
    ///
    /// # Errors
    /// As for [`ArrayWriter::append`]. An error of another level than level 0 is a
    /// [`WriterError::Level`].
    pub fn append<T: Element>(&mut self, elements: &[T]) -> Result<(), WriterError> {
        let bytes = self.top.bytes_of(elements)?;
        self.append_bytes(&bytes)
    }

    /// Appends the bytes of elements to level 0, in C order, each in the byte order of this machine:
    /// any number of bytes, not only whole elements. Waits like [`append`](Self::append).
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn append_bytes(&mut self, bytes: &[u8]) -> Result<(), WriterError> {
        self.put(bytes, true).map(|_| ())
    }

    /// Appends as many of `elements` as there is room for, without waiting, and returns the others.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn try_append<'a, T: Element>(
        &mut self,
        elements: &'a [T],
    ) -> Result<&'a [T], WriterError> {
        let bytes = self.top.bytes_of(elements)?;
        let size = self.top.job.grid.shard().element_size();
        let rest = self.put(&bytes, false)?;
        Ok(&elements[elements.len() - rest / size..])
    }

    /// Appends as many of `bytes` as there is room for, without waiting, and returns the others.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn try_append_bytes<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], WriterError> {
        let rest = self.put(bytes, false)?;
        Ok(&bytes[bytes.len() - rest..])
    }

    /// Appends `bytes`, and returns how many are left.
    fn put(&mut self, bytes: &[u8], wait: bool) -> Result<usize, WriterError> {
        if self.is_ending {
            let end = self.top.end_slice();
            return Err(WriterError::Finished { end });
        }
        if self.top.holds {
            return self.put_batches(bytes, wait);
        }
        let mut rest = bytes;
        // The first slice of a window whose second one is in `bytes`, too.
        let mut first = None;
        let result = self.put_slices(&mut rest, &mut first, wait);
        if let Some(first) = first {
            // The second one was not taken.
            self.lower.add(0, first)?;
        }
        result?;
        self.lower.settle(wait)?;
        Ok(self.refuse(rest.len()))
    }

    /// Counts a refusal if not all bytes were appended. Returns how many are `left`.
    fn refuse(&self, left: usize) -> usize {
        if left > 0 {
            self.top.shared.lock().progress.refusals += 1;
        }
        left
    }

    /// Appends `bytes` to batches that the levels below are made of, and returns how many are left.
    fn put_batches(&mut self, bytes: &[u8], wait: bool) -> Result<usize, WriterError> {
        let mut rest = bytes;
        while self.submit_full(wait)? && !rest.is_empty() {
            let before = rest.len();
            rest = self.top.take(rest, wait)?;
            if rest.len() == before {
                break;
            }
        }
        Ok(self.refuse(rest.len()))
    }

    /// Submits the batch of level 0 if it is full. Returns whether there is room again.
    fn submit_full(&mut self, wait: bool) -> Result<bool, WriterError> {
        cascade::submit_full(0, &mut self.top, &mut self.lower.levels, wait)
    }

    /// Appends elements that are on the device on which level 0 is encoded: any number of bytes, not only
    /// whole elements. If the other levels are encoded there, too, nothing is copied to the host. Waits
    /// like [`append`](Self::append).
    ///
    /// # Errors
    /// As for [`ArrayWriter::append_device`].
    ///
    /// # Safety
    /// The requirements of [`ArrayWriter::append_device`].
    #[allow(unsafe_code)]
    pub unsafe fn append_device(
        &mut self,
        slice: &DeviceSlice,
    ) -> Result<DeviceEvent, WriterError> {
        if self.is_ending {
            let end = self.top.end_slice();
            return Err(WriterError::Finished { end });
        }
        // All copies are in one stream of the device, so that the last one stands for all.
        let mut last = None;
        // SAFETY: what the caller promises.
        let appended = unsafe { self.append_parts(slice, &mut last) };
        let last = last.unwrap_or_else(DeviceEvent::of_nothing);
        if let Err(error) = appended {
            // What was appended has been read when the caller hears of the error.
            last.wait()?;
            return Err(error);
        }
        Ok(last)
    }

    /// Appends a slice batch by batch. `last` tells when all that was appended has been read.
    ///
    /// # Safety
    /// As for [`append_device`](Self::append_device).
    #[allow(unsafe_code)]
    unsafe fn append_parts(
        &mut self,
        slice: &DeviceSlice,
        last: &mut Option<DeviceEvent>,
    ) -> Result<(), WriterError> {
        let mut at = 0;
        while at < slice.len {
            self.submit_full(true)?;
            let len = (slice.len - at).min(self.top.batch_bytes - self.top.filled);
            let part = DeviceSlice {
                pointer: slice.pointer.saturating_add(at as u64),
                len,
                ..*slice
            };
            // SAFETY: a part of what the caller promises.
            *last = Some(unsafe { self.top.append_device(&part) }?);
            at += len;
        }
        self.submit_full(true).map(|_| ())
    }

    /// Appends the elements of `tensor` to level 0: see [`ArrayWriter::append_dlpack`]. All of it has been
    /// read when this returns.
    ///
    /// # Errors
    /// As for [`ArrayWriter::append_dlpack`]. An error of another level than level 0 is a
    /// [`WriterError::Level`].
    ///
    /// # Safety
    /// As for [`ArrayWriter::append_dlpack`].
    #[cfg(feature = "dlpack")]
    #[allow(unsafe_code)]
    pub unsafe fn append_dlpack(
        &mut self,
        tensor: &impl dlpark::traits::TensorView,
        stream: u64,
    ) -> Result<(), WriterError> {
        // SAFETY: the caller's promise.
        match unsafe { dlpack::elements_of(&self.top, tensor, stream)? } {
            dlpack::Elements::Host(bytes) => self.append_bytes(bytes),
            // SAFETY: the caller's promise, since it is waited for.
            dlpack::Elements::Device(slice) => unsafe { self.append_device(&slice)? }.wait(),
        }
    }

    /// Appends the beginning of `rest`, and leaves what was not appended. `first` is the last slice
    /// that was, if it begins a window of two.
    fn put_slices<'a>(
        &mut self,
        rest: &mut &'a [u8],
        first: &mut Option<&'a [u8]>,
        wait: bool,
    ) -> Result<(), WriterError> {
        let slice = self.top.job.grid.slice_bytes();
        while !rest.is_empty() {
            let at = self.top.partial_slice();
            let (now, behind) = rest.split_at(rest.len().min(slice - at));
            if !self.lower.settle(wait)? {
                return Ok(());
            }
            let is_whole = now.len() == slice;
            let waits = behind.len() >= slice && first.is_none() && self.lower.begins_window();
            let taken = if is_whole && !waits {
                (self.lower).add_taken_by(&mut self.top, *first, now, wait)?
            } else {
                self.top.take_slice(now, wait, &|_| ())?
            };
            if !taken {
                return Ok(());
            }
            *rest = behind;
            let before = first.take();
            if !is_whole {
                self.begin_slice(at, now, before)?;
            } else if waits {
                *first = Some(now);
            }
        }
        Ok(())
    }

    /// Adds a part of a slice, from its byte `at` on, behind the slice `before` it.
    fn begin_slice(
        &mut self,
        at: usize,
        part: &[u8],
        before: Option<&[u8]>,
    ) -> Result<(), WriterError> {
        if let Some(before) = before {
            self.lower.add(0, before)?;
        }
        let slice = self.top.job.grid.slice_bytes();
        self.begun.truncate(at);
        self.begun.reserve_exact(slice - at);
        self.begun.extend_from_slice(part);
        if self.begun.len() == slice {
            self.lower.add(0, &self.begun)?;
        }
        Ok(())
    }

    /// Forgets the appended part of an incomplete slice, and returns its size in bytes.
    pub fn discard_partial_slice(&mut self) -> usize {
        self.top.discard_partial_slice()
    }

    /// Waits until every complete shard of each level is stored, and covered by its array's metadata.
    ///
    /// After an error of the store, `flush` tries again; if it succeeds, more can be appended.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn flush(&mut self) -> Result<(), WriterError> {
        if self.reports.is_some() {
            return Ok(());
        }
        self.try_again()?;
        cascade::flush(0, &mut self.top, &mut self.lower.levels)
    }

    /// Lets all writers try again what has failed.
    fn try_again(&self) -> Result<(), WriterError> {
        self.top.check_process()?;
        self.writers().for_each(|writer| writer.shared.try_again());
        Ok(())
    }

    /// Stores everything that was appended, on all levels, including windows whose second slice did
    /// not come, and returns a report for each level.
    ///
    /// Nothing can be appended afterwards. A second call returns the same reports. After an error
    /// `finish` can be called again: the writer loses nothing that it holds.
    ///
    /// # Errors
    /// [`WriterError::IncompleteSlice`] if the last slice is not complete; the writer has not ended
    /// then. Otherwise as for [`append`](Self::append).
    pub fn finish(&mut self) -> Result<Vec<WriterReport>, WriterError> {
        if let Some(reports) = &self.reports {
            return Ok(reports.clone());
        }
        self.try_again()?;
        self.top.check_whole_slices()?;
        self.is_ending = true;
        if self.top.holds {
            cascade::end_batches(0, &mut self.top, &mut self.lower.levels)?;
        } else {
            self.lower.end_windows()?;
        }
        cascade::end(0, &mut self.top, &mut self.lower.levels)?;
        let mut reports = vec![self.top.finish()?];
        reports.extend(self.lower.finish()?);
        self.reports = Some(reports.clone());
        Ok(reports)
    }

    /// Gives up: forgets what is not stored, and erases the temporaries of all levels. Returns the
    /// first slice of level 0 that is not stored.
    ///
    /// # Errors
    /// [`WriterError::Store`] if a temporary could not be erased.
    pub fn abort(self) -> Result<u64, WriterError> {
        let mut result = self.top.abort();
        for (level, lower) in self.lower.levels.into_iter().enumerate() {
            let aborted = at_level(level, lower.writer.abort());
            // The others give up nevertheless.
            result = result.and_then(|first| aborted.map(|_| first));
        }
        result
    }
}
