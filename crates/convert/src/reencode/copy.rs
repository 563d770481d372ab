//! Copies the elements of the input array to the output array.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use zarrs::array::{Array, ArrayBytes, ArrayError, ArraySubset};
use zarrs::storage::{StorageError, StorePrefix};

use super::Job;
use super::arrays::{Input, OutputArray};
use super::assembly::Assembly;
use super::covered::Covered;
use super::resume::Stored;
use super::shapes::Shapes;
use crate::chunks::Chunks;
use crate::failure::Failure;
use crate::open::{Place, Store};
use crate::watcher::{Step, Unit};

/// Reads elements of the input, whose `chunks` were listed.
pub(super) fn read(
    job: &Job<'_>,
    chunks: &Chunks,
    input: &Input,
    shapes: &Shapes,
    region: &ArraySubset,
) -> Result<ArrayBytes<'static>, Failure> {
    let read = chunks.read(input, region, &shapes.parts.options());
    read.map_err(|error| cannot_read(region, &job.input, &error))
}

pub(super) fn cannot_read(region: &ArraySubset, place: &Place, error: &ArrayError) -> Failure {
    Failure::failed(format!(
        "cannot read the elements {region} of {place}: {error}"
    ))
}

/// Counts finished shards, for the watcher's progress and for the error of a run that stops.
pub(super) struct Counter<'a> {
    what: &'static str,
    step: Step<'a>,
    element: u64,
    shards: u128,
    shards_done: u128,
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
            shards_done: 0,
        }
    }

    /// Counts a finished shard.
    pub(super) fn add(&mut self, region: &ArraySubset) {
        let elements = region.num_elements();
        self.step.add(elements.saturating_mul(self.element));
        self.shards_done += 1;
    }

    /// Returns an error that tells the progress, unless every shard is done.
    pub(super) fn finish(self) -> Result<(), Failure> {
        if self.shards_done == self.shards {
            return Ok(());
        }
        Err(Failure::interrupted(format!(
            "{} stopped after {} of {} shards",
            self.what, self.shards_done, self.shards
        )))
    }
}

/// Writes each covered shard that an earlier run has not stored.
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
    let mut counter = Counter::new(job, "writing", output, covered);
    let mut bytes_decoded = 0;
    let parts = &shapes.parts;
    thread::scope(|scope| {
        // The channel has no buffer: one part is read while another is written.
        let (sender, receiver) = mpsc::sync_channel(0);
        scope.spawn(move || {
            for (indices, region) in covered.shards() {
                match stored.goes_on() {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(failure) => {
                        let part = region.clone();
                        let _ = sender.send((indices, region, part, Some(Err(failure)), true));
                        return;
                    }
                }
                let is_written = match stored.has(&indices, &region) {
                    Ok(is_written) => is_written,
                    Err(failure) => {
                        let part = region.clone();
                        let _ = sender.send((indices, region, part, Some(Err(failure)), true));
                        return; // a writer that has stopped reports its own error
                    }
                };
                let mut boxes = parts.of(&region).peekable();
                while let Some(part) = boxes.next() {
                    let bytes = (!is_written).then(|| read(job, chunks, input, shapes, &part));
                    let is_last = is_written || boxes.peek().is_none();
                    let (indices, region) = (indices.clone(), region.clone());
                    let read = (indices, region, part, bytes, is_last);
                    if job.watcher.is_stopping() || sender.send(read).is_err() {
                        return; // the user has stopped the run, or the writer has stopped
                    }
                    if is_written {
                        break;
                    }
                }
            }
        });
        let mut assembly: Option<Assembly> = None;
        for (indices, region, part, bytes, is_last) in receiver {
            if job.watcher.is_stopping() {
                break;
            }
            if let Some(bytes) = bytes.transpose()? {
                bytes_decoded += bytes.size() as u64;
                // zarrs takes the strings of a shard for fill values if their concatenated bytes repeat the
                // fill value: ["aa", ""] for twice "a". So shards of strings are always put together from
                // parts.
                if parts.are_whole() && output.data_type().fixed_size().is_some() {
                    // At the end of the array, this call fills the rest of the shard with the fill value.
                    output
                        .store_array_subset(&region, bytes)
                        .map_err(Failure::to(format_args!(
                            "write the shard {} of {}",
                            output.chunk_key(&indices),
                            job.output
                        )))?;
                } else {
                    let mut shard = match assembly.take() {
                        Some(shard) => shard,
                        None => Assembly::new(
                            output,
                            &job.output,
                            &shapes.subchunk,
                            &indices,
                            region.clone(),
                            parts.options(),
                        )?
                        .that_creates(stored.watch()),
                    };
                    shard.add(&part, bytes)?;
                    if is_last {
                        shard.finish()?;
                    } else {
                        assembly = Some(shard);
                    }
                }
            }
            if is_last {
                counter.add(&region);
            }
        }
        counter.finish()
    })?;
    Ok(Transfer {
        bytes_decoded,
        time: start.elapsed(),
    })
}

/// The size of a copy, and the time that the copy took.
pub(super) struct Transfer {
    pub(super) bytes_decoded: u64,
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
