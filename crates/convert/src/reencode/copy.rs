//! Copies the elements of the input array to the output array.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use zarrs::array::{Array, ArrayBytes, ArrayError, ArraySubset};
use zarrs::storage::{StorageError, StoreKey, StorePrefix};
use zarrs_codec::CodecOptions;

use super::Job;
use super::arrays::{Input, OutputArray};
use super::assembly::{Assembly, filled_up};
use super::covered::Covered;
use super::lanes::Lanes;
use super::resume::Stored;
use super::shapes::Shapes;
use crate::chunks::Chunks;
use crate::failure::Failure;
use crate::open::{Place, Store};
use crate::shapes::edges;
use crate::watcher::{Step, Unit};

/// Reads elements of the input, whose `chunks` were listed.
pub(super) fn read(
    job: &Job<'_>,
    chunks: &Chunks,
    input: &Input,
    shapes: &Shapes,
    region: &ArraySubset,
) -> Result<ArrayBytes<'static>, Failure> {
    let options = shapes.parts.options();
    let read = chunks.read(input, region, &options);
    read.map_err(|error| cannot_read(region, input, &job.input, &options, &error))
}

/// Returns the failure to read the elements `region` of `array` at `place`. It names the first chunk that cannot be read.
pub(super) fn cannot_read(
    region: &ArraySubset,
    array: &Array<Store>,
    place: &Place,
    options: &CodecOptions,
    error: &ArrayError,
) -> Failure {
    let error = error.to_string();
    let chunk = unreadable_chunk(array, region, options)
        .filter(|chunk| !error.contains(chunk.as_str()))
        .map_or_else(String::new, |chunk| format!(", of the chunk {chunk}"));
    Failure::failed(format!(
        "cannot read the elements {region} of {place}{chunk}: {error}"
    ))
}

/// Returns the key of the first chunk in `region` that cannot be read.
fn unreadable_chunk(
    array: &Array<Store>,
    region: &ArraySubset,
    options: &CodecOptions,
) -> Option<StoreKey> {
    let chunks = array.chunks_in_array_subset(region).ok()??;
    let is_unreadable = |chunk: &[u64]| {
        let part = array.chunk_subset(chunk).ok()?.overlap(region).ok()?;
        let read = array.retrieve_array_subset_opt::<ArrayBytes<'static>>(&part, options);
        Some(read.is_err())
    };
    let chunks = chunks.indices();
    let mut chunks = chunks.iter();
    let found = chunks.find(|chunk| is_unreadable(chunk) == Some(true))?;
    Some(array.chunk_key(&found))
}

/// Counts finished shards, for the watcher's progress and for the error of a run that stops.
pub(super) struct Counter<'a> {
    what: &'static str,
    step: Step<'a>,
    element: u64,
    shards: u128,
    shards_done: AtomicU64,
}

impl<'a> Counter<'a> {
    pub(super) fn new<S: ?Sized>(
        job: &Job<'a>,
        what: &'static str,
        array: &Array<S>,
        covered: &Covered<'_>,
    ) -> Self {
        let size = array.data_type().fixed_size();
        let element = size.unwrap_or(1) as u64;
        let unit = match size {
            Some(_) => Unit::Bytes,
            None => Unit::Things("elements"),
        };
        let total = covered.elements().saturating_mul(element);
        Self {
            what,
            step: Step::begin(job.watcher, what, unit, total),
            element,
            shards: covered.len(),
            shards_done: AtomicU64::new(0),
        }
    }

    /// Counts a finished shard of so many elements.
    pub(super) fn add(&self, elements: u64) {
        self.step.add(elements.saturating_mul(self.element));
        self.shards_done.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns an error that tells the progress, unless every shard is done.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let done = self.shards_done.into_inner();
        if u128::from(done) == self.shards {
            return Ok(());
        }
        Err(Failure::interrupted(format!(
            "{} stopped after {done} of {} shards",
            self.what, self.shards
        )))
    }
}

/// Writes each covered shard that an earlier run has not stored: as many at once as the budget allows.
pub(super) fn copy(
    job: &Job<'_>,
    shapes: &Shapes,
    covered: &Covered<'_>,
    chunks: &Chunks,
    input: &Input,
    output: &OutputArray,
    stored: &Stored<'_>,
) -> Result<Transfer, Failure> {
    let start = Instant::now();
    let copying = Copying {
        job,
        shapes,
        chunks,
        input,
        output,
        stored,
        counter: Counter::new(job, "writing", output, covered),
        bytes_decoded: AtomicU64::new(0),
        made_again: AtomicU64::new(0),
    };
    Lanes::run(covered.shards(), shapes.parts.at_once(), |lanes| {
        copying.lane(lanes)
    })?;
    copying.counter.finish()?;
    Ok(Transfer {
        bytes_decoded: copying.bytes_decoded.into_inner(),
        made_again: copying.made_again.into_inner(),
        time: start.elapsed(),
    })
}

/// The indices of a shard, and its region within the array.
type Shard = (Vec<u64>, ArraySubset);

/// A part of a shard that was read.
struct ReadPart {
    shard: Shard,
    region: ArraySubset,
    /// The elements; `None` if an earlier run stored the shard.
    bytes: Option<ArrayBytes<'static>>,
    is_last: bool,
}

/// A copy that several lanes make.
struct Copying<'a> {
    job: &'a Job<'a>,
    shapes: &'a Shapes,
    chunks: &'a Chunks,
    input: &'a Input,
    output: &'a OutputArray,
    stored: &'a Stored<'a>,
    counter: Counter<'a>,
    bytes_decoded: AtomicU64,
    /// The number of shards of an array that readers see, which were written again.
    made_again: AtomicU64,
}

impl Copying<'_> {
    /// Copies shards one after the other: one part is read while the part before is written.
    fn lane<I: Iterator<Item = Shard> + Send>(&self, lanes: &Lanes<I>) -> Result<(), Failure> {
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::sync_channel(0); // it has no buffer
            let reading = scope.spawn(move || self.read(lanes, &sender));
            let written = self.write(receiver);
            let read = reading.join();
            written.and(read.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// Reads the shards that `lanes` give, until the user stops the run, or the writer has stopped.
    fn read<I: Iterator<Item = Shard> + Send>(
        &self,
        lanes: &Lanes<I>,
        sender: &SyncSender<ReadPart>,
    ) -> Result<(), Failure> {
        let parts = &self.shapes.parts;
        while let Some(shard) = lanes.next() {
            if !self.stored.goes_on()? {
                lanes.stop();
                break;
            }
            let (indices, region) = &shard;
            let is_written = self.stored.has(indices, region)?;
            let mut boxes = parts.of(region).peekable();
            while let Some(part) = boxes.next() {
                let read = || read(self.job, self.chunks, self.input, self.shapes, &part);
                let part = ReadPart {
                    bytes: (!is_written).then(read).transpose()?,
                    is_last: is_written || boxes.peek().is_none(),
                    shard: shard.clone(),
                    region: part,
                };
                if self.job.watcher.is_stopping() || sender.send(part).is_err() {
                    return Ok(());
                }
                if is_written {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Writes the parts that were read, until the user stops the run.
    fn write(&self, parts: Receiver<ReadPart>) -> Result<(), Failure> {
        let mut assembly: Option<Assembly> = None;
        for part in parts {
            if self.job.watcher.is_stopping() {
                break;
            }
            let is_last = part.is_last;
            let (indices, region) = &part.shard;
            let elements = region.num_elements();
            if let Some(bytes) = part.bytes {
                self.bytes_decoded
                    .fetch_add(bytes.size() as u64, Ordering::Relaxed);
                let indices = indices.clone();
                assembly = self.write_part(assembly, part.shard, &part.region, bytes, is_last)?;
                if is_last && self.stored.is_shown() {
                    self.count_made_again(&indices)?;
                }
            }
            if is_last {
                self.counter.add(elements);
            }
        }
        Ok(())
    }

    /// Counts a shard that was made again, unless all of its elements are the fill value: then it is not stored, and was
    /// not missing.
    fn count_made_again(&self, indices: &[u64]) -> Result<(), Failure> {
        let key = self.output.chunk_key(indices);
        let size = self.output.storage().size_key(&key);
        let size = size.map_err(Failure::to(format_args!(
            "look at the shard {key} of {}",
            self.job.output
        )))?;
        self.made_again
            .fetch_add(u64::from(size.is_some()), Ordering::Relaxed);
        Ok(())
    }

    /// Writes a part. Returns the shard that it belongs to, unless it was the last part of it.
    fn write_part<'a>(
        &'a self,
        assembly: Option<Assembly<'a>>,
        (indices, region): Shard,
        part: &ArraySubset,
        bytes: ArrayBytes<'static>,
        is_last: bool,
    ) -> Result<Option<Assembly<'a>>, Failure> {
        let Self { output, job, .. } = self;
        let parts = &self.shapes.parts;
        // zarrs takes the strings of a shard for fill values if their concatenated bytes repeat the fill
        // value: ["aa", ""] for twice "a". So shards of strings are always put together from parts.
        if parts.are_whole() && output.data_type().fixed_size().is_some() {
            // The shard is stored as a whole, and not as its part within the array: zarrs would read what is stored,
            // which may be a torn shard.
            let doing = format!(
                "write the shard {} of {}",
                output.chunk_key(&indices),
                job.output
            );
            let bytes = filled_up(bytes, region.shape(), &edges(&self.shapes.shard), output);
            let bytes = bytes.map_err(Failure::to(&doing))?;
            let stored = output.store_chunk(&indices, bytes);
            stored.map_err(Failure::to(&doing))?;
            return Ok(None);
        }
        let mut shard = match assembly {
            Some(shard) => shard,
            None => Assembly::new(
                output,
                &job.output,
                &self.shapes.subchunk,
                &indices,
                region,
                parts.options(),
            )?
            .that_creates(self.stored.watch()),
        };
        shard.add(part, bytes)?;
        if is_last {
            shard.finish()?;
            return Ok(None);
        }
        Ok(Some(shard))
    }
}

/// The size of a copy, and the time that the copy took.
pub(super) struct Transfer {
    pub(super) bytes_decoded: u64,
    /// The number of shards of an array that readers see, which were written again.
    pub(super) made_again: u64,
    pub(super) time: Duration,
}

/// Returns the bytes of all objects stored at `place`; `None` if the store cannot tell.
pub(super) fn size(place: &Place, store: &Store) -> Result<Option<u64>, Failure> {
    match store.size_prefix(&StorePrefix::root()) {
        Ok(size) => Ok(Some(size)),
        Err(StorageError::Unsupported(_)) => Ok(None),
        Err(error) => Err(Failure::failed(format!(
            "cannot tell the size of {place}: {error}"
        ))),
    }
}
