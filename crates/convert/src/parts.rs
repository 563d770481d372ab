//! Chooses the boxes in which shards are made or compared, so that all buffers fit the budget.

use zarrs::array::{Array, ArraySubset};
use zarrs_codec::{ArrayCodecTraits, CodecOptions};

use crate::budget::{Budget, argument};
use crate::failure::Failure;
use crate::shapes::{Written, edges, least_common_multiple, shard_for, volume};
use crate::words::bytes_text;
use crate::words::shape_text;

/// The number of buffers with the size of a part. One part is read, and its encoded bytes; meanwhile the part
/// before is padded to whole subchunks and encoded. A comparison has four buffers: two parts, and the encoded
/// bytes of each.
const BUFFERS: u64 = 5;
/// The number of buffers per thread with the size of a chunk or subchunk: encoded, decoded, and between two
/// codecs.
pub const OF_THREAD: u64 = 3;
/// The bytes per subchunk of a shard, for its extent and its entry in the index.
const OF_SUBCHUNK: u64 = 64;

/// The shapes and sizes that decide how much memory it takes to make a shard, or to compare two.
pub struct Sizes<'a> {
    pub shard: &'a [u64],
    pub subchunk: &'a [u64],
    /// The unit in which the input is read.
    pub input_chunk: &'a [u64],
    /// The size of an element in bytes.
    pub element: u64,
    /// Whether the encoded shard has to be in memory as a whole until it is stored, because it is an object.
    pub is_object: bool,
}

impl Sizes<'_> {
    /// Returns the number of subchunks in a shard, and the bytes that their extents take.
    fn index(&self) -> (u64, u64) {
        let subchunks = volume(self.shard) / volume(self.subchunk).max(1);
        (subchunks, subchunks.saturating_mul(OF_SUBCHUNK))
    }

    /// Returns the bytes that the buffers of a thread take.
    fn of_thread(&self) -> u64 {
        let largest = volume(self.input_chunk).max(volume(self.subchunk));
        OF_THREAD.saturating_mul(largest.saturating_mul(self.element))
    }

    /// Returns the bytes that do not depend on the size of parts.
    fn fixed(&self, threads: usize) -> u64 {
        let of_threads = self.of_thread().saturating_mul(threads as u64);
        of_threads.saturating_add(self.index().1)
    }
}

/// The parts in which shards are made: whole shards, or boxes of subchunks.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The shape of a part, in elements: whole subchunks.
    pub shape: Vec<u64>,
    /// The number of threads that decode chunks, or encode subchunks, at once.
    threads: usize,
    /// The size of a part in bytes.
    part: u64,
    /// The number of bytes that each of these threads takes.
    of_thread: u64,
    /// The average number of times that each chunk of the input is read, for one shard.
    reads: f64,
    is_whole: bool,
    /// The number of shards that fit the budget at once.
    at_once: usize,
    /// The bytes of the budget.
    budget: u64,
}

impl Parts {
    /// Returns the bytes that it takes to make shards as a whole, with `threads`.
    pub fn bytes_of_whole(sizes: &Sizes<'_>, threads: usize) -> u64 {
        let shard = volume(sizes.shard).saturating_mul(sizes.element);
        let buffers = BUFFERS.saturating_mul(shard);
        buffers.saturating_add(sizes.fixed(threads))
    }

    /// Chooses the parts that take the least time within `budget`.
    ///
    /// # Errors
    /// The budget does not fit one subchunk at a time.
    pub fn choose(sizes: &Sizes<'_>, budget: &Budget, threads: usize) -> Result<Self, Failure> {
        let Sizes {
            shard,
            subchunk,
            input_chunk,
            element,
            is_object,
        } = *sizes;
        let bytes = |shape: &[u64]| volume(shape).saturating_mul(element);
        let (subchunks, index) = sizes.index();
        let of_thread = sizes.of_thread();
        let fixed = |threads: usize| sizes.fixed(threads);
        let encoded = if is_object { bytes(shard) } else { 0 };
        let mut best: Option<Self> = None;
        for threads in 1..=threads.max(1) {
            let Some(room) = budget.bytes().checked_sub(fixed(threads)) else {
                break;
            };
            let elements = |room: u64| room / BUFFERS / element;
            let is_whole = volume(shard) <= elements(room);
            let shape = if is_whole {
                shard.to_vec()
            } else {
                let room = room.saturating_sub(encoded);
                if volume(subchunk) > elements(room) {
                    break;
                }
                part(shard, subchunk, input_chunk, elements(room))
            };
            let reads = reads(shard, &shape, input_chunk);
            #[allow(clippy::cast_precision_loss, reason = "a few threads")]
            let time = |parts: &Self| parts.reads / parts.threads as f64;
            // Another shard takes buffers of its own, for two threads more: those that read and write it.
            let another = BUFFERS.saturating_mul(bytes(shard)).saturating_add(index);
            let another = another.saturating_add(2 * of_thread);
            let rest = room.saturating_sub(BUFFERS.saturating_mul(bytes(shard)));
            let others = if is_whole { rest / another.max(1) } else { 0 };
            let parts = Self {
                part: bytes(&shape),
                shape,
                threads,
                of_thread,
                reads,
                is_whole,
                budget: budget.bytes(),
                at_once: usize::try_from(others).map_or(threads, |others| threads.min(others + 1)),
            };
            if best.as_ref().is_none_or(|best| time(&parts) <= time(best)) {
                best = Some(parts);
            }
        }
        best.ok_or_else(|| {
            let beside = fixed(1).saturating_add(BUFFERS.saturating_mul(bytes(subchunk)));
            let whole = fixed(1).saturating_add(BUFFERS.saturating_mul(bytes(shard)));
            let least = beside.saturating_add(encoded).min(whole);
            let mut doing = format!(
                "make subchunks of {} ({}) from chunks of {} ({} decoded)",
                shape_text(subchunk),
                bytes_text(bytes(subchunk)),
                shape_text(input_chunk),
                bytes_text(bytes(input_chunk)),
            );
            if index > budget.bytes() / 2 {
                doing = format!(
                    "make shards of {} with {subchunks} subchunks",
                    shape_text(shard)
                );
                return budget.refusal(
                    doing,
                    least,
                    ", or a smaller --shard, or a larger --subchunk",
                );
            }
            if !is_object {
                return budget.refusal(doing, least, "");
            }
            doing += &format!(
                ", in objects of {} ({}), each of which is sent as a whole",
                shape_text(shard),
                bytes_text(bytes(shard))
            );
            let room = budget.bytes().saturating_sub(beside);
            let or = if room >= bytes(subchunk).max(1 << 20) {
                format!(
                    ", or smaller shards, as by --shard-size {}",
                    argument(room - (1 << 20) + 1)
                )
            } else {
                String::new()
            };
            budget.refusal(doing, least, &or)
        })
    }

    /// Returns whether each shard is made as a whole.
    pub fn are_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns the number of shards that are made, or compared, at once. Each of them takes part of all threads, so
    /// there are no more shards than threads.
    pub fn at_once(&self) -> usize {
        self.at_once
    }

    /// Returns the most bytes that buffers take while shards are made.
    pub fn most_bytes(&self) -> u64 {
        let shards = (self.at_once as u64).saturating_mul(self.bytes(self.part));
        shards.min(self.budget)
    }

    /// Returns the most bytes that buffers take while a box of `whole` bytes is read in these parts.
    pub fn bytes(&self, whole: u64) -> u64 {
        let part = whole.min(self.part);
        let of_threads = self.of_thread.saturating_mul(self.threads as u64);
        BUFFERS.saturating_mul(part).saturating_add(of_threads)
    }

    /// Returns the options for arrays that are read or written in these parts. They bound the threads, and so
    /// the chunks that are in memory at once.
    pub fn options(&self) -> CodecOptions {
        zarrs::config::global_config()
            .codec_options()
            .with_concurrent_target(self.threads)
            .with_chunk_concurrent_minimum(self.threads)
    }

    /// Returns the parts of the shard with the elements `region`, in C order.
    pub fn of(&self, region: &ArraySubset) -> impl Iterator<Item = ArraySubset> {
        let region = region.to_ranges();
        let counts = region
            .iter()
            .zip(&self.shape)
            .map(|(range, part)| (range.end - range.start).div_ceil(*part));
        let counts = ArraySubset::new_with_shape(counts.collect());
        let shape = self.shape.clone();
        counts.indices().into_iter().map(move |indices| {
            let axes = region.iter().zip(&shape).zip(indices.iter());
            let ranges: Vec<_> = axes
                .map(|((range, part), index)| {
                    let start = range.start + index * part;
                    start..start.saturating_add(*part).min(range.end)
                })
                .collect();
            ArraySubset::new_with_ranges(&ranges)
        })
    }

    /// Returns a note for people if shards are made in parts.
    pub fn note(&self, budget: &Budget) -> Option<String> {
        if self.is_whole {
            return None;
        }
        let mut note = format!(
            "note: a shard is made in parts of {:?}, to keep within {} of memory",
            self.shape,
            bytes_text(budget.bytes())
        );
        if self.reads >= 1.5 {
            note += &format!(
                "; for each shard a chunk of the input is read {:.1} times, which more --memory avoids",
                self.reads
            );
        }
        Some(note)
    }
}

/// Returns the shape of the unit in which an array is read: its chunks, or subchunks if it is sharded.
pub fn unit<S: ?Sized>(array: &Array<S>) -> Vec<u64> {
    let origin = vec![0; array.dimensionality()];
    match array.chunk_shape(&origin) {
        Ok(chunk) => edges(&array.codecs().partial_decode_granularity(&chunk)),
        Err(_) => vec![1; array.dimensionality()], // an array without elements
    }
}

/// Returns the size in bytes of an element of an array; a guess if elements differ in size.
pub fn element_bytes<S: ?Sized>(array: &Array<S>) -> u64 {
    let size = array.data_type().fixed_size();
    size.map_or(32, |size| size.max(1) as u64)
}

/// Returns the shape of a part of at most `elements` elements. It is a run of subchunks in C order, unless
/// another shape reads chunks of the input less often.
fn part(shard: &[u64], subchunk: &[u64], chunk: &[u64], elements: u64) -> Vec<u64> {
    let run = run(shard, subchunk, chunk, elements);
    let other = shard_for(Written::Chunks(chunk), shard, subchunk, elements);
    if reads(shard, &other, chunk) < reads(shard, &run, chunk) {
        other
    } else {
        run
    }
}

/// Returns the shape of a run of subchunks that follow one another in C order, with at most `elements`
/// elements.
fn run(shard: &[u64], subchunk: &[u64], chunk: &[u64], elements: u64) -> Vec<u64> {
    let mut run = subchunk.to_vec();
    for axis in (0..shard.len()).rev() {
        let others = volume(&run) / run[axis].max(1);
        let most = elements / others.max(1);
        if shard[axis] <= most {
            run[axis] = shard[axis];
            continue;
        }
        // Make the run end at a border of chunks if possible.
        let whole = least_common_multiple(subchunk[axis], chunk[axis].max(1));
        let unit = if whole <= most { whole } else { subchunk[axis] };
        run[axis] = (most / unit * unit).max(subchunk[axis]);
        break;
    }
    run
}

/// Returns the average number of times that each chunk is read, if a box of `extents` is read in parts of
/// shape `part`.
pub fn reads(extents: &[u64], part: &[u64], chunk: &[u64]) -> f64 {
    let axes = extents.iter().zip(part).zip(chunk);
    axes.map(|((&extent, &part), &chunk)| {
        // A border of a part divides a chunk, unless the border is also a border of chunks.
        let last = extent.saturating_sub(1);
        let chunk = chunk.max(1);
        let divided = last / part.max(1) - last / least_common_multiple(part.max(1), chunk);
        #[allow(clippy::cast_precision_loss, reason = "it is printed with one decimal")]
        let reads = 1.0 + divided as f64 / extent.div_ceil(chunk).max(1) as f64;
        reads
    })
    .product()
}

#[cfg(test)]
mod tests {
    use zarrs::array::ArraySubset;

    use super::{BUFFERS, Parts, Sizes, run};
    use crate::budget::Budget;
    use crate::shapes::volume;

    const MIB: u64 = 1 << 20;

    fn sizes<'a>(shard: &'a [u64], subchunk: &'a [u64], input_chunk: &'a [u64]) -> Sizes<'a> {
        Sizes {
            shard,
            subchunk,
            input_chunk,
            element: 2,
            is_object: false,
        }
    }

    #[test]
    fn parts_fit_and_cover_the_shard_once() {
        for (shard, subchunk, chunk) in [
            ([512, 512, 256], [32, 32, 64], [64, 64, 64]),
            ([512, 512, 256], [32, 32, 64], [1, 2048, 2048]),
            ([100, 90, 60], [10, 9, 6], [7, 13, 60]),
            ([64, 1024, 1024], [64, 32, 32], [128, 128, 128]),
        ] {
            let sizes = sizes(&shard, &subchunk, &chunk);
            for memory in [1, 16, 64, 256, 4096] {
                let budget = Budget::new(memory * MIB);
                let Ok(parts) = Parts::choose(&sizes, &budget, 4) else {
                    continue;
                };
                let part = volume(&parts.shape) * 2;
                assert!(BUFFERS * part <= budget.bytes(), "{parts:?}");
                for (part, subchunk) in parts.shape.iter().zip(&subchunk) {
                    assert!(part.is_multiple_of(*subchunk), "{parts:?}");
                }
                let region = ArraySubset::new_with_ranges(&[5..shard[0], 0..shard[1], 0..shard[2]]);
                let elements: u64 = parts.of(&region).map(|part| part.num_elements()).sum();
                assert_eq!(elements, region.num_elements());
            }
        }
    }

    #[test]
    fn much_memory_makes_whole_shards() {
        let sizes = sizes(&[512, 512, 256], &[32, 32, 64], &[64, 64, 64]);
        let parts = |memory: u64| Parts::choose(&sizes, &Budget::new(memory * MIB), 4).unwrap();
        assert!(parts(1024).are_whole());
        assert!(!parts(256).are_whole());
        assert!(parts(256).threads == 4);
        // A shard has 128 MiB, and five buffers of this size are in memory.
        let at_once = [256, 1024, 1300, 2000, 2700, 1 << 20].map(|memory| parts(memory).at_once());
        assert_eq!(at_once, [1, 1, 2, 3, 4, 4]);
    }

    #[test]
    fn chunks_are_read_once_where_that_fits() {
        // A run of subchunks would read each chunk eight times.
        let sizes = sizes(&[512, 512, 512], &[16, 16, 16], &[128, 128, 128]);
        let parts = Parts::choose(&sizes, &Budget::new(64 * MIB), 1).unwrap();
        assert!((parts.reads - 1.0).abs() < f64::EPSILON, "{parts:?}");
        assert_eq!(
            run(&[512, 512], &[16, 16], &[100, 100], 512 * 64),
            [64, 512]
        );
        assert_eq!(run(&[512, 512], &[16, 16], &[32, 32], 512 * 60), [32, 512]);
    }

    #[test]
    fn what_cannot_fit_is_refused_with_what_would() {
        let mut sizes = sizes(&[512, 512, 512], &[16, 16, 16], &[512, 512, 512]);
        let Err(failure) = Parts::choose(&sizes, &Budget::new(64 * MIB), 4) else {
            panic!("a chunk of 256 MiB was to be decoded within 64 MiB");
        };
        let text = format!("{failure:?}");
        assert!(
            text.contains("256.00 MiB") && text.contains("--memory 771MiB"),
            "{text}"
        );
        Parts::choose(&sizes, &Budget::new(771 * MIB), 4).unwrap();
        // An object is sent as a whole.
        sizes.input_chunk = &[64, 64, 64];
        sizes.is_object = true;
        let Err(failure) = Parts::choose(&sizes, &Budget::new(64 * MIB), 4) else {
            panic!("an object of 256 MiB was to be made within 64 MiB");
        };
        let text = format!("{failure:?}");
        assert!(text.contains("--shard-size 6"), "{text}");
        Parts::choose(&sizes, &Budget::new(300 * MIB), 4).unwrap();
    }
}
