//! `zarrs-cuda plan`: proposes shards and subchunks for how an array will be written and read.

mod memory;

use clap::ValueEnum;
use serde_json::json;
use zarrs::array::DataType;
use zarrs::metadata::v3::MetadataV3;
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::SubchunkCodec;
use zarrs_cuda_convert::shapes::{Written, edges, near_cubic, shard_for, volume};
use zarrs_cuda_convert::words::{bytes_text, counted, shape_text};

use crate::arguments::{CODECS, Shape, Size};
use crate::common::Common;
use crate::outcome::Outcome;

/// Propose shards and subchunks for how an array will be written and read
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The shape of the array, in elements
    #[arg(long, value_name = "A,B,…")]
    shape: Shape,
    /// The data type of elements, such as uint16
    #[arg(long, value_name = "TYPE")]
    dtype: String,
    /// Slices along the first axis that arrive each second, if the array is streamed
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// How the array will mostly be read
    #[arg(long, value_enum, value_name = "HOW", default_value = "boxes")]
    read: Read,
    /// About how large a shard is, decoded
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    shard_size: Size,
    /// About how large a subchunk is, decoded
    #[arg(long, value_name = "SIZE", default_value = "128KiB")]
    subchunk_size: Size,
    #[arg(long, value_name = "CODEC", default_value = "zstd:1", help = CODECS)]
    codec: SubchunkCodec,
}

impl Args {
    fn written(&self) -> Written<'static> {
        self.rate.map_or(Written::Shards, |_| Written::Slices)
    }
}

/// The shapes and the size of an element, which decide the shape of a shard.
struct Shapes<'a> {
    array: &'a [u64],
    subchunk: &'a [u64],
    /// The size of an element in bytes.
    element: u64,
}

impl Shapes<'_> {
    /// Returns the shape of a shard of about `bytes` bytes.
    fn shard(&self, written: Written<'_>, bytes: u64) -> Vec<u64> {
        let elements = (bytes / self.element.max(1)).max(1);
        shard_for(written, self.array, self.subchunk, elements)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Read {
    /// Boxes anywhere
    Boxes,
    /// Whole slices along the first axis
    Slices,
    /// Lines along the first axis, such as time series of an element
    Lines,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text
        .parse()
        .ok()
        .filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "it is slices per second, above 0".to_string())
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let data_type =
        DataType::from_metadata(&MetadataV3::new(args.dtype.clone())).map_err(|error| {
            Failure::usage(format!("--dtype {}: {error}", args.dtype))
                .with_remedy("it is a data type of Zarr v3, as uint8, uint16, int32 or float32")
        })?;
    let Some(element) = data_type.fixed_size() else {
        return Err(Failure::usage(format!(
            "--dtype {}: its elements differ in size, so nothing can be planned",
            args.dtype
        )));
    };
    let shape = edges(&args.shape.0);
    if shape.is_empty() {
        return Err(Failure::usage("an array without dimensions needs no plan"));
    }
    let subchunk_elements = (args.subchunk_size.bytes() as u64 / element as u64).max(1);
    let subchunk = subchunk_for(args.read, &shape, subchunk_elements);
    let sizes = Shapes {
        array: &shape,
        subchunk: &subchunk,
        element: element as u64,
    };
    let shard = sizes.shard(args.written(), args.shard_size.bytes() as u64);
    let memory = memory::of(args, common, &data_type, &sizes, &shard)?;
    let counts = |extents: &[u64], by: &[u64]| {
        let counts = extents
            .iter()
            .zip(by)
            .map(|(extent, by)| extent.div_ceil(*by));
        counts.fold(1, |product: u64, count| product.saturating_mul(count))
    };
    let (shards, subchunks) = (counts(&shape, &shard), counts(&shard, &subchunk));
    let bytes = |shape: &[u64]| volume(shape).saturating_mul(element as u64);
    let mut lines = vec![
        format!(
            "array     {} {}, {}",
            shape_text(&shape),
            args.dtype,
            bytes_text(bytes(&shape))
        ),
        format!(
            "shard     {}, {} decoded: {} in all",
            shape_text(&shard),
            bytes_text(bytes(&shard)),
            counted(shards, "object")
        ),
        format!(
            "subchunk  {}, {} decoded: {subchunks} in a shard, whose index takes {}",
            shape_text(&subchunk),
            bytes_text(bytes(&subchunk)),
            bytes_text(subchunks * 16 + 4)
        ),
    ];
    lines.extend(memory.lines());
    let slice = bytes(&shape[1..]);
    let objects = counts(&shape[1..], &shard[1..]);
    let per_hour = args
        .rate
        .map(|rate| per_hour(rate, shard[0], objects, slice));
    if let Some((objects, rate)) = per_hour {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rounded for people"
        )]
        let rate = bytes_text(rate as u64);
        lines.push(format!(
            "rate      {rate} and {:.2} objects each second: {objects:.0} objects per hour",
            objects / 3600.0
        ));
    }
    lines.extend(args.rate.map(|rate| at_risk(rate, shard[0])));
    lines.push(format!(
        "\nzarrs-cuda {} --shard {} --subchunk {} --codec {}",
        if args.rate.is_some() {
            "stream OUT"
        } else {
            "reencode IN OUT"
        },
        shape_text(&shard),
        shape_text(&subchunk),
        args.codec
    ));
    let json = json!({
        "shape": shape, "data_type": args.dtype, "shard": shard, "subchunk": subchunk,
        "shards": shards, "subchunks_per_shard": subchunks,
        "array_bytes": bytes(&shape), "shard_bytes": bytes(&shard), "subchunk_bytes": bytes(&subchunk),
        "memory": memory.text(),
        "memory_fits": memory.fits(),
        "shard_size_that_fits": memory.fitting_shard_size(),
        "objects_per_hour": per_hour.map(|(objects, _)| objects),
        "bytes_per_second": per_hour.map(|(_, rate)| rate),
    });
    Ok(Outcome::new(lines.join("\n"), json))
}

/// Returns the slices that a kill loses, of a stream of `rate` slices per second in shards of `depth` slices.
fn at_risk(rate: f64, depth: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "rounded for people")]
    let seconds = depth as f64 / rate;
    format!(
        "at risk   a kill loses the slices of shards under way, up to {depth} ({seconds:.1} s), and a second more"
    )
}

/// Returns the objects per hour and the bytes per second of a stream of `rate` slices per second. A shard has
/// `depth` slices, and each layer of shards has `objects` shards.
#[allow(clippy::cast_precision_loss, reason = "rounded for people")]
fn per_hour(rate: f64, depth: u64, objects: u64, slice_bytes: u64) -> (f64, f64) {
    let layers = rate * 3600.0 / depth as f64;
    (layers * objects as f64, rate * slice_bytes as f64)
}

/// Returns the shape of a subchunk of about `elements` elements, such that the reads `read` decode few other
/// elements.
fn subchunk_for(read: Read, shape: &[u64], elements: u64) -> Vec<u64> {
    match read {
        Read::Boxes => near_cubic(shape, elements),
        Read::Slices => {
            // One slice deep, with as many elements of the slice as fit.
            let mut subchunk = vec![1];
            subchunk.extend(near_cubic(&shape[1..], elements));
            subchunk
        }
        Read::Lines => {
            // Across the axis, a quarter of the elements, as far as powers of two allow.
            let across = near_cubic(&shape[1..], (elements / 4096).max(16));
            let along = (elements / volume(&across).max(1)).max(1);
            let mut subchunk = vec![(1 << along.ilog2()).min(shape[0]).max(1)];
            subchunk.extend(across);
            subchunk
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Read, subchunk_for};
    use zarrs_cuda_convert::shapes::{Written, shard_for, volume};

    #[test]
    fn proposals_fit() {
        for shape in [
            vec![1],
            vec![1_000_000],
            vec![10_000, 2304, 2304],
            vec![3, 100, 4, 5000],
            vec![7, 1, 1, 1, 9],
        ] {
            for read in [Read::Boxes, Read::Slices, Read::Lines] {
                for written in [Written::Shards, Written::Slices] {
                    let subchunk = subchunk_for(read, &shape, 1 << 16);
                    let shard = shard_for(written, &shape, &subchunk, 1 << 26);
                    assert!(volume(&subchunk) <= 1 << 16, "{shape:?} {subchunk:?}");
                    assert!(volume(&shard) <= 1 << 26, "{shape:?} {shard:?}");
                    for (shard, subchunk) in shard.iter().zip(&subchunk) {
                        assert!(*subchunk > 0 && shard.is_multiple_of(*subchunk));
                    }
                }
            }
        }
        assert_eq!(subchunk_for(Read::Slices, &[100, 512, 512], 1 << 16)[0], 1);
        assert!(subchunk_for(Read::Lines, &[100_000, 512, 512], 1 << 16)[0] >= 1024);
    }
}
