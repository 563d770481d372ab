//! Reports the progress and the results of consolidations.

use std::fmt;

/// The result of the consolidation of a shard.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.store_metadata()?;
/// # let sparse = std::sync::Arc::new(zarrs_cuda::storage::SparseShardStore::open(store, "/volume")?);
/// # let subchunks = zarrs::array::Array::open(sparse.clone(), "/volume")?;
/// subchunks.store_chunk(&[0, 0], vec![1_u16; 8 * 8])?;
/// subchunks.store_chunk(&[0, 1], vec![2_u16; 8 * 8])?;
/// let packed = sparse.consolidate(&[0, 0])?.ok_or("nothing is stored beside the shard")?;
/// assert_eq!((packed.subchunks, packed.before), (2, 0));
/// if packed.invalid > 0 {
///     println!("{} objects were left by writers that died", packed.invalid);
/// }
/// # assert!(packed.after > 2 * 128);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consolidation {
    /// The number of subchunks that were written or erased since the shard was packed last.
    pub subchunks: usize,
    /// The number of objects in the frame that held these subchunks, and were deleted.
    pub versions: usize,
    /// The number of incomplete objects: they are being written, or their writers died. They stay in the
    /// frame.
    pub invalid: usize,
    /// The number of names in the frame that are not UTF-8. No version has such a name, so they are skipped,
    /// and logged as a warning. They stay in the frame, and may be deleted.
    pub not_utf_8: usize,
    /// The size of the shard before, in bytes; 0 if there was none.
    pub before: u64,
    /// The size of the shard now, in bytes; 0 if it was erased because all of it is empty.
    pub after: u64,
}

/// The progress of a consolidation of many shards, and its results until now.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.store_metadata()?;
/// # let sparse = std::sync::Arc::new(zarrs_cuda::storage::SparseShardStore::open(store, "/volume")?);
/// # let subchunks = zarrs::array::Array::open(sparse.clone(), "/volume")?;
/// subchunks.store_chunk(&[0, 0], vec![1_u16; 8 * 8])?;
/// subchunks.store_chunk(&[7, 7], vec![2_u16; 8 * 8])?;
/// let progress = sparse.consolidate_all(&|progress| {
///     eprint!("\r{} of {} shards", progress.done, progress.shards);
/// })?;
/// assert_eq!((progress.done, progress.sum.subchunks), (2, 2));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsolidationProgress {
    /// The number of shards that had a frame.
    pub shards: usize,
    /// The number of shards that are consolidated.
    pub done: usize,
    /// The sum of the results of the shards that are consolidated.
    pub sum: Consolidation,
}

impl fmt::Display for ConsolidationProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shards, done, sum } = self;
        write!(
            f,
            "{done} of {shards} shards, {} subchunks, {} -> {} bytes",
            sum.subchunks, sum.before, sum.after
        )?;
        if sum.invalid > 0 {
            write!(f, ", {} objects that are not whole", sum.invalid)?;
        }
        if sum.not_utf_8 > 0 {
            write!(f, ", {} names that are not UTF-8", sum.not_utf_8)?;
        }
        Ok(())
    }
}

impl ConsolidationProgress {
    pub(super) fn add(&mut self, one: Consolidation) {
        self.done += 1;
        self.sum.subchunks += one.subchunks;
        self.sum.versions += one.versions;
        self.sum.invalid += one.invalid;
        self.sum.not_utf_8 += one.not_utf_8;
        self.sum.before += one.before;
        self.sum.after += one.after;
    }
}
