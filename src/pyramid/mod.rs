//! Writes an image and its smaller levels in one pass.

mod axis;
mod builder;
mod cascade;
mod describe;
mod feed;
mod image;
mod levels;
mod made_from;
mod ome;
mod plan;
mod planning;
mod reduction;
mod stored;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

pub use axis::Axis;
pub use builder::MultiscaleBuilder;
pub use reduction::Reduction;

use crate::writer::shared::Shared;
use crate::writer::{Progress, Writer, WriterError, WriterExplanation, WriterReport};
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
/// // Level 0, of shape (0, 64, 64), in shards of (8, 64, 64). The array need not be stored yet.
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
/// Each level keeps the promises of an [`ArrayWriter`](crate::writer::ArrayWriter): a shard appears when it is complete, and the
/// shape covers finished shards only, also after a kill. A writer that is built again goes on where the
/// array of level 0 ends. The new writer reads what the other levels need from the level above, and the
/// levels are in the end the same bytes as if nothing had happened.
///
/// While the input rests, complete shards of all levels are stored, and a writer that is dropped stores them,
/// as an [`ArrayWriter`](crate::writer::ArrayWriter) does.
///
/// All levels share the budgets of the [`Options`](crate::Options) of the array's codec.
pub type MultiscaleWriter = Writer<Image>;

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

    /// Returns the progress of the writer of each level, from level 0 on.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        self.shared.iter().map(|shared| shared.progress()).collect()
    }

    /// Returns the behaviour of the writer of each level and the reasons for it, from level 0 on.
    #[must_use]
    pub fn explain(&self) -> Vec<WriterExplanation> {
        let of = |shared: &Arc<Shared>| shared.setup.explanation.clone();
        self.shared.iter().map(of).collect()
    }

    /// Stores everything that was appended, on all levels, including windows whose second slice did
    /// not come, and returns a report for each level.
    ///
    /// Nothing can be appended afterwards. A second call returns the same reports. After an error
    /// `finish` can be called again: the writer loses nothing that it holds.
    ///
    /// # Errors
    /// [`WriterError::IncompleteSlice`] if the last slice is not complete; the writer stays open, and takes
    /// the rest. The other errors are those of [`append`](Self::append).
    pub fn finish(&mut self) -> Result<Vec<WriterReport>, WriterError> {
        self.with(Image::finish)
    }
}
