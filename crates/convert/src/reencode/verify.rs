//! Compares the output array with the input array.

use zarrs::array::{Array, ArrayBytes, ArraySubset};

use super::Job;
use super::arrays::OutputArray;
use super::copy::{Counter, cannot_read, read};
use super::covered::Covered;
use super::lanes::Lanes;
use super::shapes::Shapes;
use crate::failure::Failure;

/// Reads the region of each shard from both arrays with zarrs' own codecs, and compares the bits.
///
/// The registration of our codec has ended, so that the codec does not check itself. For the input there is
/// no second decoder: tests compare each codec that it may have with numcodecs and zarr-python.
pub(super) fn verify(job: &Job<'_>, shapes: &Shapes, output: &OutputArray) -> Result<(), Failure> {
    let (opened, chunks) = job.listed()?;
    let input = opened.array.with_storage(opened.array.storage());
    let input = input.with_codec_options(shapes.parts.options());
    let output = Array::new_with_metadata(output.storage(), "/", output.metadata().clone())
        .map_err(Failure::to(format_args!("open {}", job.output)))?
        .with_codec_options(shapes.parts.options());
    let covered = Covered::of(&opened, &chunks, &input, &output)?;
    let counter = Counter::new(job, "verifying", &output, &covered);
    let compare = |(indices, region): (Vec<u64>, ArraySubset)| {
        for part in shapes.parts.of(&region) {
            let written = output.retrieve_array_subset::<ArrayBytes<'static>>(&part);
            let options = shapes.parts.options();
            let written = written
                .map_err(|error| cannot_read(&part, &output, &job.output, &options, &error))?;
            if read(job, &chunks, &input, shapes, &part)? != written {
                return Err(Failure::not_well(format!(
                    "the elements {part} of {} are not what was read from {} (shard {})",
                    job.output,
                    job.input,
                    output.chunk_key(&indices),
                ))
                .with_remedy(
                    "the output is not made readable: start again with --overwrite, and report this \
                     if it happens again",
                ));
            }
        }
        counter.add(region.num_elements());
        Ok(())
    };
    Lanes::run(covered.shards(), shapes.parts.at_once(), |lanes| {
        while let Some(shard) = lanes.next() {
            if job.watcher.is_stopping() {
                break;
            }
            compare(shard)?;
        }
        Ok(())
    })?;
    counter.finish()?;
    job.say(
        "verified: equal, bit for bit. OUT was read again with zarrs' codecs, and compared with IN as \
         they decode it",
    );
    Ok(())
}
