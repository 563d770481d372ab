//! The shapes of the output.

use std::fmt;
use std::num::NonZeroU64;

use zarrs_codec::ArrayCodecTraits;

use super::Job;
use super::arrays::Input;
use crate::arguments::Shape;
use crate::failure::Failure;
use crate::shapes::{Written, edges, least_common_multiple};

/// The shapes of the array, its shards and their subchunks.
pub(crate) struct Shapes {
    pub(crate) array: Vec<u64>,
    pub(crate) shard: Vec<NonZeroU64>,
    pub(crate) subchunk: Vec<NonZeroU64>,
    /// The unit in which the input is read: its chunks, or subchunks if it is sharded.
    input_chunk: Vec<u64>,
}

impl Shapes {
    pub(super) fn choose(job: &Job<'_>, input: &Input) -> Result<Self, Failure> {
        let array = input.shape().to_vec();
        let asked = |option: &str, shape: &'_ Option<Shape>| {
            let Some(Shape(shape)) = shape else {
                return Ok(None);
            };
            if shape.len() == array.len() {
                return Ok(Some(edges(shape)));
            }
            if job.args.recursive {
                return Ok(None); // it is for other arrays
            }
            Err(Failure::usage(format!(
                "{option} has {} dimensions, but the array has {}: {array:?}",
                shape.len(),
                array.len()
            )))
        };
        let args = &job.args.shapes;
        let shard = asked("--shard", &args.shard)?;
        let subchunk = asked("--subchunk", &args.subchunk)?;
        let input_chunk = match input.chunk_shape(&vec![0; array.len()]) {
            Ok(chunk) => {
                let codecs = input.codecs();
                edges(&codecs.partial_decode_granularity(&chunk))
            }
            Err(_) => vec![1; array.len()], // an array without elements
        };
        let fixed_size = input.data_type().fixed_size();
        let element = fixed_size.map_or(32, |size| size.max(1) as u64);

        let (shard, subchunk) = args.chosen(
            &array,
            shard,
            subchunk,
            Written::Chunks(&input_chunk),
            element,
        )?;
        Ok(Self {
            array,
            shard,
            subchunk,
            input_chunk,
        })
    }

    /// Returns a note if chunks of the input cross the borders of shards, and so are read
    /// repeatedly.
    pub(crate) fn reading_twice(&self) -> Option<String> {
        let mut times = 1.0;
        for ((&array, shard), &chunk) in self.array.iter().zip(&self.shard).zip(&self.input_chunk) {
            // A border of a shard divides a chunk unless it is also a border of a chunk.
            let last = array.saturating_sub(1);
            let divided = last / shard.get() - last / least_common_multiple(shard.get(), chunk);
            #[allow(clippy::cast_precision_loss)] // it is printed with one decimal
            let reads = 1.0 + divided as f64 / array.div_ceil(chunk).max(1) as f64;
            times *= reads;
        }
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
