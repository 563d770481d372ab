//! What can go wrong with a writer.

use std::sync::Arc;

use zarrs::array::ElementError;
use zarrs_storage::{StorageError, StoreKey};

use crate::Error;

/// An error of an [`ArrayWriter`](super::ArrayWriter).
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum WriterError {
    /// The array cannot be written as a stream of slices.
    #[error("the array cannot be written as a stream of slices: {reason}")]
    Unsupported {
        /// Why, and what to do.
        reason: String,
    },
    /// The stream does not start at the border of a shard.
    #[error(
        "a writer starts at the border of a shard: slice {start} is not a multiple of {shard_slices}, the extent of a shard along the first axis. Start at slice {before}, and append what the array has from there on once more"
    )]
    Start {
        /// The first slice.
        start: u64,
        /// Slices of a shard.
        shard_slices: u64,
        /// The border of a shard before it.
        before: u64,
    },
    /// The buffers do not fit the budget.
    #[error(
        "the smallest buffers for this stream take {needed} bytes of {memory}, and the budget is {budget}: {advice}"
    )]
    Memory {
        /// Which memory.
        memory: &'static str,
        /// The fewest bytes that will do.
        needed: usize,
        /// What [`Options`](crate::Options) allow, in bytes.
        budget: usize,
        /// What would make it fit.
        advice: String,
    },
    /// The array, its codec or its backend cannot be used.
    #[error(transparent)]
    Array(#[from] Error),
    /// What was appended are not elements of the array.
    #[error("cannot append these elements: {0}")]
    Element(#[from] ElementError),
    /// The last slice is not complete.
    #[error(
        "slice {slice} has {got} of its {expected} bytes: append the rest, or call `discard_partial_slice`, and finish again"
    )]
    IncompleteSlice {
        /// Its index along the first axis.
        slice: u64,
        /// What was appended of it, in bytes.
        got: usize,
        /// What it takes, in bytes.
        expected: usize,
    },
    /// Slices could not be encoded.
    #[error(
        "cannot encode slices {first} to {last}: {reason}. Slices below {finished_slices} are stored; `flush` and `finish` try the others again"
    )]
    Encode {
        /// The first of them.
        first: u64,
        /// The last of them.
        last: u64,
        /// Why.
        reason: String,
        /// All slices below this one are stored.
        finished_slices: u64,
    },
    /// A store failed. Nothing that was appended is lost yet.
    #[error(
        "cannot {doing} {key}: {source}. Slices below {finished_slices} are stored; `flush` and `finish` try the others again"
    )]
    Store {
        /// What was being done.
        doing: &'static str,
        /// To what.
        key: StoreKey,
        /// All slices below this one are stored.
        finished_slices: u64,
        /// Why it failed.
        source: Arc<StorageError>,
    },
    /// The writer cannot go on, or it is that of the process that this one was forked from.
    #[error(
        "the writer cannot go on: {reason}. Slices below {finished_slices} are stored, the others have to be appended again, to a new writer"
    )]
    Broken {
        /// Why.
        reason: String,
        /// All slices below this one are stored.
        finished_slices: u64,
    },
    /// A device failed while it read what was appended there.
    #[error("a device failed: {reason}")]
    Device {
        /// What failed.
        reason: String,
    },
    /// The writer was finished.
    #[error("the writer was finished at slice {end}, and takes nothing more")]
    Finished {
        /// The first slice that it did not write.
        end: u64,
    },
}
