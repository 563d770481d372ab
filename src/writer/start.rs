//! Where a writer begins: at the border of a shard, or behind the last slice of the stored array.

/// Where a writer begins: see [`with_start`](super::WriterBuilder::with_start).
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![0, 64], vec![16, 64], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![4, 16]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/frames")?;
/// # array.store_metadata()?;
/// # let _registration = zarrs_cuda::register(zarrs_cuda::Options::default())?;
/// use zarrs::array::Array;
/// use zarrs_cuda::writer::{ArrayWriter, Start};
///
/// // Replaces whatever is stored, then goes on within the last shard.
/// for (start, end) in [(Start::Slice(0), 20), (Start::Resume, 40)] {
///     let array = Array::open(store.clone(), "/frames")?;
///     let mut writer = ArrayWriter::builder(&array).with_start(start).build()?;
///     writer.append(&[7_u16; 20 * 64])?;
///     assert_eq!(writer.finish()?.finished_slices, end);
/// }
/// # drop(array);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// At this slice: an index along the first axis, at the border of a shard.
    Slice(u64),
    /// Behind the last slice of the stored array, also inside a shard.
    ///
    /// If the array ends inside a shard, `build` reads the slices of that shard back, and encodes them again
    /// together with the slices that are appended. The stored shard stays until the new shard, which has all
    /// of these slices, replaces it: when the shard is full, or at `finish`. Elements that the stored shard
    /// has beyond the end of the array become the fill value. If no slice is appended, `finish` stores
    /// nothing.
    Resume,
}

impl From<u64> for Start {
    fn from(slice: u64) -> Self {
        Self::Slice(slice)
    }
}
