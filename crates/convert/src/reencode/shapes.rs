//! The shapes of the output.

use std::fmt;
use std::num::NonZeroU64;

use zarrs::array::Array;

use super::Job;
use crate::budget::Budget;
use crate::failure::Failure;
use crate::open::{Place, Store};
use crate::parts::{Parts, Sizes, element_bytes, reads, unit};
use crate::shapes::{Written, edges, must_be_whole};

/// The shapes of the output array, of its shards and of their subchunks.
pub(crate) struct Shapes {
    pub(crate) array: Vec<u64>,
    pub(crate) shard: Vec<NonZeroU64>,
    pub(crate) subchunk: Vec<NonZeroU64>,
    /// The unit in which the input is read: its chunks, or subchunks if it is sharded.
    input_chunk: Vec<u64>,
    pub(super) parts: Parts,
}

impl Shapes {
    pub(super) fn choose(job: &Job<'_>, input: &Array<Store>) -> Result<Self, Failure> {
        let array = input.shape().to_vec();
        let (input_chunk, element) = (unit(input), element_bytes(input));
        let (wishes, pattern) = job.settings.shapes.at(&job.path);
        let other_rank = |option: &str, rank: usize| {
            let option = match pattern {
                Some(pattern) => format!("--shape-for {pattern}"),
                None if job.settings.recursive => return Ok(()), // the shape is for other arrays
                None => option.to_owned(),
            };
            Err(Failure::usage(format!(
                "{option} has {rank} dimensions, but {} has {}: {array:?}",
                job.input,
                array.len()
            )))
        };
        let written = Written::Chunks(&input_chunk);
        let (shard, subchunk) = wishes.proposed(&array, written, element, other_rank)?;
        must_be_whole(&shard, &subchunk).map_err(|failure| {
            let options = match pattern {
                Some(pattern) => format!("--shape-for {pattern}"),
                None => wishes.options().join(", "),
            };
            failure.about(format_args!("{options}, for {}", job.input))
        })?;
        let sizes = Sizes {
            shard: &edges(&shard),
            subchunk: &edges(&subchunk),
            input_chunk: &input_chunk,
            element,
            is_object: matches!(job.output, Place::Url(_)),
        };
        let parts = Parts::choose(&sizes, &job.settings.budget(), job.settings.threads)?;
        Ok(Self {
            array,
            shard,
            subchunk,
            input_chunk,
            parts,
        })
    }

    /// Returns notes for people about work that other options would avoid.
    pub(super) fn notes(&self, budget: &Budget) -> impl Iterator<Item = String> {
        let twice = self.reading_twice();
        twice.into_iter().chain(self.parts.note(budget))
    }

    /// Returns a note if chunks of the input cross the borders of shards, and are read more than once for
    /// this reason.
    fn reading_twice(&self) -> Option<String> {
        let times = reads(&self.array, &edges(&self.shard), &self.input_chunk);
        (times >= 1.5).then(|| {
            format!(
                "note: each chunk of the input is read {times:.1} times; a --shard whose edges are \
                 multiples of {:?} avoids that",
                self.input_chunk
            )
        })
    }
}

impl fmt::Display for Shapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "array {:?}, shards {:?}, subchunks {:?}",
            self.array, self.shard, self.subchunk
        )
    }
}
