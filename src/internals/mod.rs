//! Private parts, for the fuzz targets, benchmarks and Python package of this repository. Nothing here is part of the crate's
//! interface, and no promise of semantic versioning covers it.

mod device_frames;
mod limit;

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use zarrs::array::{Array, DataType, FillValue};
use zarrs_codec::CodecOptions;
use zarrs_storage::byte_range::ByteRange;

pub use device_frames::{DeviceFrames, DeviceShuffle, DeviceStream};
pub use limit::Limit;

pub use crate::codec::packed::Packing;

/// Files of which parts are written where they are.
pub mod files {
    pub use crate::store::hold;
    pub use crate::store::in_place::write;
}

use crate::codec::find;
use crate::codec::sharding::Sharding;
use crate::{CudaShardingCodec, Error};

/// Whether a codec had no memory: the bytes that it was given may be right.
#[must_use]
pub fn is_out_of_memory(error: &zarrs_codec::CodecError) -> bool {
    crate::codec::error::out_of_memory(error).is_some()
}

/// Where the index is in each shard of `array`.
///
/// # Errors
/// If the array has no plain shards.
pub fn index_range<T: ?Sized>(array: &Array<T>) -> Result<ByteRange, Error> {
    Ok(sharding_of(array)?.index.byte_range())
}

/// Where the subchunks are that the boxes of `shape` at `starts` meet, both in elements of the shard, in a
/// shard of `array` that has the encoded index `index`.
///
/// # Errors
/// If the array has no plain shards, or the index is damaged.
pub fn ranges_of_boxes<T: ?Sized>(
    array: &Array<T>,
    index: &[u8],
    starts: &[Vec<usize>],
    shape: &[usize],
) -> Result<Vec<Range<u64>>, Error> {
    let sharding = sharding_of(array)?;
    let entries = sharding.index.decode(
        Cow::Borrowed(index),
        i64::MAX as u64,
        &CodecOptions::default(),
    )?;
    let extents: Vec<_> = entries.iter().collect();
    let numbers = starts
        .iter()
        .flat_map(|start| sharding.grid.numbers_in(start, shape));
    let found = numbers.filter_map(|number| extents.get(number)?.clone());
    Ok(found
        .map(|extent| extent.start as u64..extent.end as u64)
        .collect())
}

/// How a shard of `array`, of `size` bytes and with the encoded index `index`, is copied without unused
/// bytes; `None` if it has none.
///
/// # Errors
/// If the array has no plain shards, or the index is damaged.
pub fn packing<T: ?Sized>(
    array: &Array<T>,
    index: &[u8],
    size: usize,
) -> Result<Option<Packing>, Error> {
    Ok(sharding_of(array)?.packing(index, size, &CodecOptions::default())?)
}

fn sharding_of<T: ?Sized>(array: &Array<T>) -> Result<Arc<Sharding>, Error> {
    let codec = find::of_array(array)?;
    let first = vec![0; array.dimensionality()];
    let shape = array
        .chunk_shape(&first)
        .map_err(|error| Error::NotShards {
            reason: error.to_string(),
        })?;
    Ok(codec.sharding(&shape, array.data_type(), array.fill_value())?)
}

/// The compressed streams of the shard `encoded`, as a device would be given them.
///
/// # Errors
/// Why the host decodes the shard.
pub fn device_frames(
    codec: &CudaShardingCodec,
    shape: &[NonZeroU64],
    data_type: &DataType,
    fill_value: &FillValue,
    encoded: &[u8],
) -> Result<DeviceFrames, String> {
    let options = CodecOptions::default();
    let shard = codec
        .sharding(shape, data_type, fill_value)
        .map_err(|e| e.to_string())?;
    let chain = shard.known()?;
    let extents = shard
        .decode_index(encoded, &options)
        .map_err(|e| e.to_string())?;
    shard
        .with_job(&options, |job| {
            device_frames::device_frames(job, chain, encoded, &extents)
        })
        .map_err(str::to_string)
}
