//! What consolidations did.

use std::fmt;

/// What was done to a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consolidation {
    /// How many subchunks were written or erased since the shard was packed last.
    pub subchunks: usize,
    /// How many objects held them, which are deleted now.
    pub versions: usize,
    /// How many objects were not whole, and stay: they are being written, or those who wrote them died.
    pub invalid: usize,
    /// How many names in the frame are not UTF-8, and were passed over: no version has such a name. Which they
    /// are is logged as a warning. They stay, and can be deleted.
    pub not_utf_8: usize,
    /// The size of the shard before, in bytes; 0 if there was none.
    pub before: u64,
    /// Its size now; 0 if there is none, since all of it is empty.
    pub after: u64,
}

/// How far a consolidation is, and what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsolidationProgress {
    /// How many shards had a frame.
    pub shards: usize,
    /// How many of them are done.
    pub done: usize,
    /// The sum over these.
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
