//! Writes an image and its smaller levels in one pass.

mod axis;
mod builder;
mod cascade;
mod describe;
mod feed;
mod image;
mod made_from;
mod ome;
mod plan;
mod pyramid;
mod reduction;
mod stored;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use zarrs::array::Element;

pub use axis::Axis;
pub use builder::MultiscaleBuilder;
pub use reduction::Reduction;

use super::pause::Kept;
use super::shared::Shared;
use super::{DeviceEvent, DeviceSlice, Progress, WriterError, WriterExplanation, WriterReport};
use crate::metrics::MemoryEstimate;
use image::Image;

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
/// Each level keeps the promises of an [`ArrayWriter`](super::ArrayWriter): a shard appears when it is complete, and the
/// shape covers finished shards only, also after a kill. A writer that is built again goes on where the
/// array of level 0 ends. It reads what the other levels need from the level above, and the levels are
/// in the end the same bytes as if nothing had happened.
///
/// While the input rests, complete shards of all levels are stored, and a writer that is dropped stores them,
/// as an [`ArrayWriter`](super::ArrayWriter) does.
///
/// All levels share the budgets of the [`Options`](crate::Options) of the array's codec.
#[derive(Debug)]
pub struct MultiscaleWriter {
    image: Kept<Image>,
    /// The shared state of the writer of each level, from level 0 on.
    shared: Vec<Arc<Shared>>,
    memory: MemoryEstimate,
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

    fn new(
        image: Image,
        flush_after: Option<Duration>,
        drop_limit: Duration,
    ) -> std::io::Result<Self> {
        let writers = image.writers();
        let shared: Vec<_> = writers.map(|writer| writer.shared.clone()).collect();
        let memory = image.memory;
        let start = shared.first().map_or(0, |top| top.setup.start);
        Ok(Self {
            image: Kept::new(image, start, flush_after, drop_limit)?,
            shared,
            memory,
        })
    }

    /// Returns the most memory that the buffers of all levels take.
    #[must_use]
    pub fn memory_estimate(&self) -> MemoryEstimate {
        self.memory
    }

    /// Returns how far the writer of each level is, from level 0 on.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        self.shared.iter().map(|shared| shared.progress()).collect()
    }

    /// Returns what the writer of each level does, and why, from level 0 on.
    #[must_use]
    pub fn explain(&self) -> Vec<WriterExplanation> {
        let of = |shared: &Arc<Shared>| shared.setup.explanation.clone();
        self.shared.iter().map(of).collect()
    }

    /// Returns the first slice of level 0 that this writer writes.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.shared.first().map_or(0, |top| top.setup.start)
    }

    /// Appends `elements` to level 0, in C order: any number of them, not only whole slices. Waits
    /// while the encoder or the store of a level is behind.
    ///
    /// # Errors
    /// As for [`ArrayWriter::append`](super::ArrayWriter::append). An error of another level than level 0 is a
    /// [`WriterError::Level`].
    pub fn append<T: Element>(&mut self, elements: &[T]) -> Result<(), WriterError> {
        self.image.with(|image| image.append(elements))
    }

    /// Appends the bytes of elements to level 0, in C order, each in the byte order of this machine:
    /// any number of bytes, not only whole elements. Waits like [`append`](Self::append).
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn append_bytes(&mut self, bytes: &[u8]) -> Result<(), WriterError> {
        self.image.with(|image| image.append_bytes(bytes))
    }

    /// Appends as many of `elements` as there is room for, without waiting, and returns the others.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn try_append<'a, T: Element>(
        &mut self,
        elements: &'a [T],
    ) -> Result<&'a [T], WriterError> {
        self.image.with(|image| image.try_append(elements))
    }

    /// Appends as many of `bytes` as there is room for, without waiting, and returns the others.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn try_append_bytes<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], WriterError> {
        self.image.with(|image| image.try_append_bytes(bytes))
    }

    /// Appends elements that are on the device on which level 0 is encoded: any number of bytes, not only
    /// whole elements. If the other levels are encoded there, too, nothing is copied to the host. Waits
    /// like [`append`](Self::append).
    ///
    /// # Errors
    /// As for [`ArrayWriter::append_device`](super::ArrayWriter::append_device).
    ///
    /// # Safety
    /// The requirements of [`ArrayWriter::append_device`](super::ArrayWriter::append_device).
    #[allow(unsafe_code)]
    pub unsafe fn append_device(
        &mut self,
        slice: &DeviceSlice,
    ) -> Result<DeviceEvent, WriterError> {
        // SAFETY: what the caller promises.
        self.image
            .with(|image| unsafe { image.append_device(slice) })
    }

    /// Appends the elements of `tensor` to level 0: see [`ArrayWriter::append_dlpack`](super::ArrayWriter::append_dlpack). All of it has been
    /// read when this returns.
    ///
    /// # Errors
    /// As for [`ArrayWriter::append_dlpack`](super::ArrayWriter::append_dlpack). An error of another level than level 0 is a
    /// [`WriterError::Level`].
    ///
    /// # Safety
    /// As for [`ArrayWriter::append_dlpack`](super::ArrayWriter::append_dlpack).
    #[cfg(feature = "dlpack")]
    #[allow(unsafe_code)]
    pub unsafe fn append_dlpack(
        &mut self,
        tensor: &impl dlpark::traits::TensorView,
        stream: u64,
    ) -> Result<(), WriterError> {
        // SAFETY: what the caller promises.
        self.image
            .with(|image| unsafe { image.append_dlpack(tensor, stream) })
    }

    /// Forgets the appended part of an incomplete slice, and returns its size in bytes.
    pub fn discard_partial_slice(&mut self) -> usize {
        let discarded = self.image.with(|image| Ok(image.discard_partial_slice()));
        // In a forked child there is nothing to discard.
        discarded.unwrap_or(0)
    }

    /// Waits until every complete shard of each level is stored, and covered by its array's metadata.
    ///
    /// After an error of the store, `flush` tries again; if it succeeds, more can be appended.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn flush(&mut self) -> Result<(), WriterError> {
        self.image.with(Image::flush)
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
        self.image.with(Image::finish)
    }

    /// Stores complete shards of all levels, for at most `limit`, and gives up the rest. Returns the first
    /// slice of level 0 that is not stored then.
    ///
    /// # Errors
    /// As for [`ArrayWriter::stop`](super::ArrayWriter::stop).
    pub fn stop(self, limit: Duration) -> Result<u64, WriterError> {
        self.image.stop(limit, true)
    }

    /// Gives up at once: stores nothing more, forgets what is not stored, and erases the temporaries of all levels. Returns the
    /// first slice of level 0 that is not stored.
    ///
    /// # Errors
    /// [`WriterError::Store`] if a temporary could not be erased.
    pub fn abort(self) -> Result<u64, WriterError> {
        let start = self.start();
        self.image.take()?.map_or(Ok(start), Image::abort)
    }
}
