//! Where a writer begins: at the border of a shard, or behind the last slice of the stored array.

/// Where a writer begins: see [`with_start`](super::WriterBuilder::with_start).
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
