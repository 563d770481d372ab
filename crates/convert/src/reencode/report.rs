//! The reports of runs.

use std::num::NonZeroU64;
use std::time::Duration;

use zarrs_cuda::Explanation;

use crate::chunks::ChunkCounts;
use crate::codec::SubchunkCodec;
use crate::failure::Failure;
use crate::open::Place;

/// The report of a run.
#[derive(Clone, Debug)]
pub enum Report {
    /// One array was re-encoded.
    Array(Box<ArrayReport>),
    /// A group was, or some of its arrays.
    Group(GroupReport),
}

/// The report of one array.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ArrayReport {
    /// The array that was read.
    pub input: Place,
    /// The array that was written.
    pub output: Place,
    /// The work; `None` if an earlier run has done it.
    pub copied: Option<Copied>,
}

/// An array that was copied.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Copied {
    /// The shape of both arrays, in elements.
    pub shape: Vec<u64>,
    /// The shape of a shard, in elements.
    pub shard: Vec<NonZeroU64>,
    /// The shape of a subchunk, in elements.
    pub subchunk: Vec<NonZeroU64>,
    /// The codec of subchunks.
    pub codec: SubchunkCodec,
    /// The stored chunks of the input.
    pub chunks: ChunkCounts,
    /// The stages of shards, if they were asked for and can be told.
    pub explanation: Option<Explanation>,
    /// Whether the output was read again, and is equal.
    pub verified: bool,
    /// The bytes of all elements that were read.
    pub bytes_decoded: u64,
    /// The time that the copy took.
    pub time: Duration,
    /// The bytes of all elements, if they are known: elements may differ in size.
    pub values_bytes: Option<u64>,
    /// The bytes of all objects of the input; `None` if its store cannot tell.
    pub stored_bytes_before: Option<u64>,
    /// The bytes of all objects of the output; `None` if its store cannot tell.
    pub stored_bytes_now: Option<u64>,
    /// Lines for people: temporaries that are left, copies of metadata that are out of date.
    pub notes: Vec<String>,
    /// The metadata that were read otherwise than they are stored, as lines for people.
    pub repaired_metadata: Vec<String>,
}

/// The report of a group.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupReport {
    /// The group that was read.
    pub input: Place,
    /// The group that was written.
    pub output: Place,
    /// The arrays and groups of the input.
    pub members: usize,
    /// The output; `None` if nothing was written, because of `failures`.
    pub written: Option<WrittenGroup>,
    /// The arrays and groups that failed.
    pub failures: Vec<Failure>,
}

/// A group that was written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WrittenGroup {
    /// The arrays that are complete.
    pub arrays: Vec<ArrayReport>,
    /// The number of groups, with the root.
    pub groups: usize,
    /// Lines for people: temporaries that are left, copies of metadata that are out of date.
    pub notes: Vec<String>,
    /// The metadata of groups that were read otherwise than they are stored, as lines for people.
    pub repaired_metadata: Vec<String>,
    /// The paths of files and directories of the input that are no part of the hierarchy.
    pub left_out: Vec<String>,
}
