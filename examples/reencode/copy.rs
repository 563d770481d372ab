//! Copies and verifies the array.

use std::fmt;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::HumanBytes;
use zarrs::array::{Array, ArrayBytes, ArraySubset};
use zarrs::storage::{ListableStorageTraits, ReadableStorageTraits, StorePrefix};

use crate::arrays::{Input, Output, open};
use crate::job::Job;
use crate::progress::Progress;
use crate::shapes::{Shapes, volume};
use crate::{Stop, is_stopped};

/// The shards of the output: the indices of each, and its region within the array.
fn shards(shapes: &Shapes) -> impl Iterator<Item = (Vec<u64>, ArraySubset)> {
    let edges = || shapes.array.iter().zip(&shapes.shard);
    let grid = edges().map(|(array, &shard)| array.div_ceil(shard.get()));
    let grid = ArraySubset::new_with_shape(grid.collect());
    grid.indices().into_iter().map(move |indices| {
        let ranges: Vec<_> = edges()
            .zip(&indices)
            .map(|((&array, shard), index)| {
                let start = index * shard.get();
                start..start.saturating_add(shard.get()).min(array)
            })
            .collect();
        (indices.to_vec(), ArraySubset::new_with_ranges(&ranges))
    })
}

fn read<S>(array: &Array<S>, path: &Path, region: &ArraySubset) -> Result<ArrayBytes<'static>, Stop>
where
    S: ?Sized + ReadableStorageTraits + 'static,
{
    array.retrieve_array_subset(region).map_err(|error| {
        Stop::Failed(format!(
            "cannot read the elements {region} of {}: {error}",
            path.display()
        ))
    })
}

/// Writes every shard.
pub(crate) fn copy(
    job: &Job,
    shapes: &Shapes,
    input: &Input,
    output: &Output,
) -> Result<Copied, Stop> {
    let start = Instant::now();
    let mut progress = Progress::new("writing", output);
    let mut bytes_decoded = 0;
    let is_written = |indices: &[u64]| {
        let size = output.storage().size_key(&output.chunk_key(indices));
        job.resume && matches!(size, Ok(Some(_)))
    };
    thread::scope(|scope| {
        // The channel has no buffer: one shard is read while another is written.
        let (sender, receiver) = mpsc::sync_channel(0);
        scope.spawn(move || {
            for (indices, region) in shards(shapes).take_while(|_| !is_stopped()) {
                let bytes = if is_written(&indices) {
                    Ok(None)
                } else {
                    read(input, &job.input, &region).map(Some)
                };
                if sender.send((indices, region, bytes)).is_err() {
                    break; // the writer has stopped
                }
            }
        });
        for (indices, region, bytes) in receiver {
            if is_stopped() {
                break;
            }
            if let Some(bytes) = bytes? {
                bytes_decoded += bytes.size() as u64;
                // At the end of the array this fills the shard with the fill value.
                output.store_array_subset(&region, bytes).map_err(|error| {
                    format!(
                        "cannot write the shard {} of {}: {error}",
                        output.chunk_key(&indices),
                        job.output.display()
                    )
                })?;
            }
            progress.add(&region);
        }
        progress.finish()
    })?;
    Ok(Copied {
        bytes_decoded,
        time: start.elapsed(),
    })
}

/// Reads every shard's region from both arrays with zarrs' own codecs, and compares the bits.
///
/// Our codec is no longer registered, so that it does not check itself.
pub(crate) fn verify(job: &Job, shapes: &Shapes, output: &Output) -> Result<(), Stop> {
    let input = open(&job.input)?;
    let output = Array::new_with_metadata(output.storage(), "/", output.metadata().clone())
        .map_err(|error| format!("cannot open {}: {error}", job.output.display()))?;
    let mut progress = Progress::new("verifying", &output);
    for (indices, region) in shards(shapes).take_while(|_| !is_stopped()) {
        if read(&input, &job.input, &region)? != read(&output, &job.output, &region)? {
            return Err(Stop::Different(format!(
                "the elements {region} of {} are not what was read from {} (shard {}). The \
                 output is not made readable; please report this",
                job.output.display(),
                job.input.display(),
                output.chunk_key(&indices),
            )));
        }
        progress.add(&region);
    }
    progress.finish()?;
    println!("verified: equal, bit for bit");
    Ok(())
}

/// The summary for the last line.
pub(crate) struct Copied {
    bytes_decoded: u64,
    time: Duration,
}

#[allow(clippy::cast_precision_loss)] // rounded for people
impl Copied {
    pub(crate) fn summary(
        &self,
        job: &Job,
        input: &Input,
        output: &Output,
    ) -> Result<String, String> {
        let cannot = |error: &dyn fmt::Display| format!("cannot tell the size stored: {error}");
        let root = StorePrefix::root();
        let stored_in = input.storage().size_prefix(&root);
        let stored_in = stored_in.map_err(|error| cannot(&error))?;
        let stored_out = output.storage().size_prefix(&root);
        let stored_out = stored_out.map_err(|error| cannot(&error))?;
        let rate = self.bytes_decoded as f64 / self.time.as_secs_f64().max(1e-9);
        let size = match input.data_type().fixed_size() {
            Some(size) => volume(input.shape()).saturating_mul(size as u64),
            None if job.resume => 0, // only a part of the array was copied in this run
            None => self.bytes_decoded,
        };
        let values = if size == 0 {
            String::new()
        } else {
            let ratio = size as f64 / stored_out as f64;
            format!("{} of values ({ratio:.2}:1), ", HumanBytes(size))
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let rate = HumanBytes(rate as u64);
        Ok(format!(
            "{values}stored in {} before and {} now; {:.2} s, {rate}/s",
            HumanBytes(stored_in),
            HumanBytes(stored_out),
            self.time.as_secs_f64(),
        ))
    }
}
