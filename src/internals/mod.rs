//! Private parts, for the fuzz targets, benchmarks and Python package of this repository. Nothing here is part of the crate's
//! interface, and no promise of semantic versioning covers it.

mod limit;

use std::num::NonZeroU64;

use zarrs::array::{DataType, FillValue};
use zarrs_codec::CodecOptions;

pub use limit::Limit;

pub use crate::engine::cuda::internals as cuda;
pub use crate::engine::cuda::internals::frames::{DeviceFrames, DeviceShuffle, DeviceStream};
pub use crate::per_process::PerProcess;

/// The contract of engines.
pub mod engine {
    pub use crate::engine::{
        BloscStage, Chain, Cname, EncodedShard, Engine, EngineError, Job, KnownChain, Shuffle,
        Stage,
    };
}

/// The host engine.
pub mod host {
    pub use crate::engine::host::HostEngine;
    pub use crate::engine::{fresh, memory};
}

/// Geometry.
pub mod layout {
    pub use crate::layout::{Lift, LiftBatch, LiftSlab, SubchunkGrid};
}

use crate::CudaShardingCodec;

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
            cuda::frames::device_frames(job, chain, encoded, &extents)
        })
        .map_err(str::to_string)
}
