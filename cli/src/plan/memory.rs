//! The memory that it takes to write the shards of a plan, and the size of shards that would fit.

use std::num::NonZeroU64;
use std::sync::Arc;

use zarrs::array::{Array, ArrayBuilder, DataType, FillValue};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::writer::{ArrayWriter, WriterError};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::budget::argument;
use zarrs_cuda_convert::parts::{Parts, Sizes};
use zarrs_cuda_convert::shapes::volume;
use zarrs_cuda_convert::words::bytes_text;

use super::{Args, Shapes};
use crate::common::Common;

/// The memory that it takes to write shards of a plan, and the memory that there is.
pub(super) struct Memory {
    /// The bytes that buffers take, if a shard is written as a whole.
    bytes: u64,
    budget: u64,
    is_stream: bool,
    /// The size of decoded shards that fit the budget; `None` if no smaller size helps.
    fitting: Option<u64>,
}

/// Returns the memory for shards of the shape `shard`.
pub(super) fn of(
    args: &Args,
    common: &Common,
    data_type: &DataType,
    shapes: &Shapes<'_>,
    shard: &[u64],
) -> Result<Memory, Failure> {
    let budget = common.budget();
    let needed = |shard: &[u64]| match args.rate {
        Some(_) => of_stream(args, common, data_type, shapes, shard),
        None => Ok(of_reencode(common, shapes, shard)),
    };
    let size = |shard: &[u64]| volume(shard).saturating_mul(shapes.element);
    let bytes = needed(shard)?;
    let mut fitting = None;
    let mut smaller = size(shard) / 2;
    let least = size(shapes.subchunk);
    while bytes > budget.bytes() && fitting.is_none() && smaller >= least.max(1) {
        let shard = shapes.shard(args.written(), smaller);
        if needed(&shard)? <= budget.bytes() {
            fitting = Some(size(&shard));
        }
        smaller /= 2;
    }
    Ok(Memory {
        bytes,
        budget: budget.bytes(),
        is_stream: args.rate.is_some(),
        fitting,
    })
}

impl Memory {
    pub(super) fn fits(&self) -> bool {
        self.bytes <= self.budget
    }

    pub(super) fn fitting_shard_size(&self) -> Option<u64> {
        self.fitting
    }

    pub(super) fn text(&self) -> String {
        bytes_text(self.bytes)
    }

    /// Returns lines for people about the memory.
    pub(super) fn lines(&self) -> Vec<String> {
        let (memory, budget) = (self.text(), bytes_text(self.budget));
        let whose = if self.is_stream {
            "the stream"
        } else {
            "`reencode`"
        };
        let mut lines = vec![format!("memory    about {memory} for buffers of {whose}")];
        if self.fits() {
            return lines;
        }
        lines.push(if self.is_stream {
            format!("          which is more than the {budget} of --memory: `stream` will refuse it")
        } else {
            format!(
                "          which is more than the {budget} of --memory: `reencode` makes a shard in parts, or \
                 refuses it where it has to be sent as a whole; readers of whole shards need that memory, too"
            )
        });
        lines.push(match self.fitting {
            Some(size) => format!("          --shard-size {} would fit", argument(size)),
            None => format!(
                "          no shards of these subchunks fit: give --memory {}, or a smaller --subchunk-size",
                argument(self.bytes)
            ),
        });
        lines
    }
}

/// Returns the bytes that `reencode` takes if it makes shards as a whole, from chunks with the shape of the
/// subchunks.
fn of_reencode(common: &Common, shapes: &Shapes<'_>, shard: &[u64]) -> u64 {
    let sizes = Sizes {
        shard,
        subchunk: shapes.subchunk,
        input_chunk: shapes.subchunk,
        element: shapes.element,
        is_object: false,
    };
    Parts::bytes_of_whole(&sizes, common.threads())
}

/// Returns the bytes of memory that a writer of slices needs.
fn of_stream(
    args: &Args,
    common: &Common,
    data_type: &DataType,
    shapes: &Shapes<'_>,
    shard: &[u64],
) -> Result<u64, Failure> {
    let doing = "plan";
    let subchunk: Vec<_> = shapes
        .subchunk
        .iter()
        .filter_map(|&extent| NonZeroU64::new(extent))
        .collect();
    let codec = CudaShardingCodecBuilder::new(subchunk, data_type)
        .bytes_to_bytes_codecs(args.codec.for_elements(data_type)?)
        .options(common.options())
        .build_arc()
        .map_err(Failure::to(&doing))?;
    let mut shape = shapes.array.to_vec();
    if let Some(slices) = shape.first_mut() {
        *slices = 0;
    }
    let fill_value = FillValue::new(vec![0; data_type.fixed_size().unwrap_or(1)]);
    // The store is only an argument: nothing is stored in it.
    let store = FilesystemStore::new(std::env::temp_dir()).map_err(Failure::to(&doing))?;
    let store = Arc::new(store);
    let array: Array<FilesystemStore> =
        ArrayBuilder::new(shape, shard.to_vec(), data_type.clone(), fill_value)
            .array_to_bytes_codec(codec)
            .build(store.clone(), "/")
            .map_err(Failure::to(&doing))?;
    let writer = ArrayWriter::builder(&array).with_atomic_rename(store);
    match writer.memory_estimate() {
        Ok(memory) => Ok((memory.host + memory.pinned + memory.device) as u64),
        Err(WriterError::Memory { needed, .. }) => Ok(needed as u64),
        Err(error) => Err(Failure::to(&doing)(error)),
    }
}
