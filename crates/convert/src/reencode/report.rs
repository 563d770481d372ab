//! The reports of runs.

use std::num::NonZeroU64;
use std::time::Duration;

use zarrs_cuda::Explanation;

use crate::chunks::ChunkCounts;
use crate::codec::SubchunkCodec;
use crate::failure::Failure;
use crate::open::Place;
use crate::shared_run::Part;

/// The report of a run.
#[derive(Clone, Debug)]
pub enum Report {
    /// The run re-encoded one array.
    Array(Box<ArrayReport>),
    /// The run re-encoded a group, or some of its arrays.
    Group(GroupReport),
    /// The run made a part, or planned the parts.
    Part(PartReport),
    /// The run told its work.
    DryRun(DryRun),
}

/// The report of one part of a run, or of its plan.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PartReport {
    /// The part; `None` if the parts were planned.
    pub part: Option<Part>,
    /// The number of parts.
    pub parts: NonZeroU64,
    /// The place that was read.
    pub input: String,
    /// The place that was written.
    pub output: Place,
    /// The number of arrays of the whole run.
    pub arrays: usize,
    /// The number of bytes of all elements that were read, decoded; or of the subchunks that were moved.
    pub bytes: u64,
    /// The time that the part took.
    pub time: Duration,
    /// The state of the part, and of the run.
    pub state: PartState,
    /// The paths of arrays and groups that are left out.
    pub left_out: Vec<String>,
    /// Lines for people about what could not be deleted.
    pub notes: Vec<String>,
    /// A failure for each array or group that cannot be re-encoded.
    pub failures: Vec<Failure>,
}

/// The state of a part, and of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartState {
    /// The parts are planned.
    Prepared,
    /// The part is made. The parts `missing`, which count from 1, are not.
    Made {
        /// The parts that are not made.
        missing: Vec<u64>,
    },
    /// The part was the last one: readers see the output now.
    Completed,
    /// The output was complete before.
    WasComplete,
    /// The output was complete before, and so many of its shards that were missing or damaged are made again.
    Mended {
        /// The number of shards.
        shards: u64,
        /// Whether the subchunks of the other shards were decoded, and not only the indices.
        is_decoded: bool,
    },
    /// Nothing was written, because of failures.
    Refused,
}

impl PartState {
    /// Returns the state of a part that was made, when the parts `missing`, which count from 0, are not.
    pub(crate) fn after(missing: Vec<u64>) -> Self {
        if missing.is_empty() {
            return Self::Completed;
        }
        let missing = missing.into_iter().map(|part| part + 1);
        Self::Made {
            missing: missing.collect(),
        }
    }
}

/// The report of one array.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ArrayReport {
    /// The array that was read.
    pub input: Place,
    /// The array that was written.
    pub output: Place,
    /// The work on the array; `None` if an earlier run had completed it.
    pub copied: Option<Copied>,
    /// The number of shards that were missing or damaged in an array that an earlier run had completed, and are made
    /// again.
    pub made_again: u64,
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
    /// The stages of shards, if the settings ask for them and they are known.
    pub explanation: Option<Explanation>,
    /// Whether the run compared the output with the input, and found them equal.
    pub verified: bool,
    /// The number of bytes of all elements that were read.
    pub bytes_decoded: u64,
    /// The time that the copy took.
    pub time: Duration,
    /// The number of bytes of all elements; `None` if that is not known, because elements differ in size.
    pub values_bytes: Option<u64>,
    /// The number of bytes of all objects of the input; `None` if its store cannot tell.
    pub stored_bytes_before: Option<u64>,
    /// The number of bytes of all objects of the output; `None` if its store cannot tell.
    pub stored_bytes_now: Option<u64>,
    /// Lines for people about temporaries that could not be deleted, and about consolidated metadata that are
    /// out of date.
    pub notes: Vec<String>,
    /// Lines for people about metadata that had to be repaired to be read.
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
    /// The number of arrays and groups in the input.
    pub members: usize,
    /// The arrays and groups that were written; `None` if nothing was written, because of `failures`.
    pub written: Option<WrittenGroup>,
    /// A failure for each array or group that could not be re-encoded.
    pub failures: Vec<Failure>,
}

/// A group that was written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WrittenGroup {
    /// The arrays that are complete.
    pub arrays: Vec<ArrayReport>,
    /// The number of groups, including the root.
    pub groups: usize,
    /// Lines for people about temporaries that could not be deleted, and about consolidated metadata that are
    /// out of date.
    pub notes: Vec<String>,
    /// Lines for people about metadata of groups that had to be repaired to be read.
    pub repaired_metadata: Vec<String>,
    /// The paths of files and directories of the input that are no part of the hierarchy.
    pub left_out: Vec<String>,
}

/// The work of a run that was not made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DryRun {
    /// The place that would be read.
    pub input: Place,
    /// The place that would be written.
    pub output: Place,
    /// The arrays that would be written.
    pub arrays: Vec<ArrayWork>,
    /// The parts of the run; one if it has no parts.
    pub parts: Vec<PartWork>,
    /// The paths of arrays and groups that would be left out.
    pub left_out: Vec<String>,
    /// A failure for each array or group that cannot be re-encoded.
    pub failures: Vec<Failure>,
    /// Whether nothing would be written, because of `failures`.
    pub is_refused: bool,
    /// Whether nothing would be written, because the parts of the run are made already.
    pub is_complete: bool,
    /// Whether the run would go on with an output, and keep shards of it.
    pub resumes: bool,
}

/// The work on one array.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ArrayWork {
    /// The array that would be read.
    pub input: Place,
    /// The shape of the array, in elements.
    pub shape: Vec<u64>,
    /// The name of the data type.
    pub data_type: String,
    /// The shape of a shard, in elements.
    pub shard: Vec<NonZeroU64>,
    /// The shape of a subchunk, in elements.
    pub subchunk: Vec<NonZeroU64>,
    /// The work on all shards to make.
    pub work: Work,
    /// The number of stored shards that the run would keep.
    pub kept: u64,
    /// The most bytes that buffers take.
    pub memory: u64,
}

/// The work of one part.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PartWork {
    /// The part.
    pub part: Part,
    /// The work on its shards.
    pub work: Work,
    /// The most bytes that buffers take.
    pub memory: u64,
}

/// An amount of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Work {
    /// The number of shards to make. A shard that has only the fill value is made and not stored.
    pub shards: u64,
    /// The number of bytes of the decoded elements. An element whose size differs counts as 32 bytes.
    pub bytes: u64,
    /// The number of reads of objects of the input. An object that several shards need is read for each.
    pub reads: u64,
}

impl Work {
    /// Adds the work `other`.
    pub(super) fn add(&mut self, other: Self) {
        self.shards = self.shards.saturating_add(other.shards);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.reads = self.reads.saturating_add(other.reads);
    }
}
