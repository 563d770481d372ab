//! Appends slices to an array while they arrive, or writes boxes of it, in bounded memory.
//!
//! A [`BoxWriter`] writes boxes from memory of the caller. An [`ArrayWriter`] takes the frames of a camera, a simulation or a model, slice after slice
//! along the first axis, and stores every shard as soon as it is complete:
//!
//! ```
//! # use std::sync::Arc;
//! # use zarrs::array::{ArrayBuilder, data_type};
//! # use zarrs_cuda::CudaShardingCodecBuilder;
//! use zarrs_cuda::writer::ArrayWriter;
//!
//! # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
//! # let codec = CudaShardingCodecBuilder::new(vec![4.try_into()?, 16.try_into()?, 16.try_into()?], &data_type::uint16());
//! # let mut builder = ArrayBuilder::new(vec![0, 64, 64], vec![8, 64, 64], data_type::uint16(), 0u16);
//! # builder.array_to_bytes_codec(codec.build_arc()?);
//! // The array has the shape (0, 64, 64), and shards of (8, 64, 64).
//! let array = builder.build(store, "/frames")?;
//! array.store_metadata()?;
//!
//! let mut writer = ArrayWriter::builder(&array).build()?;
//! for n in 0..20 {
//!     let frame = vec![n as u16; 64 * 64];
//!     writer.append(&frame)?;
//! }
//! let report = writer.finish()?;
//! assert_eq!((report.finished_slices, report.shards), (20, 3));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! The [guide](crate::guide::stream) shows how to use it. The [reference
//! page](crate::guide::reference::streaming) says what is promised to followers, after a crash, and
//! after errors.

pub(crate) mod appending;
mod array_length;
mod array_writer;
mod assembler;
mod begun;
pub(crate) mod builder;
pub(crate) mod cuts;
pub(crate) mod device;
#[cfg(feature = "dlpack")]
#[allow(unsafe_code)]
pub(crate) mod dlpack;
mod encoding;
mod ending;
pub(crate) mod error;
mod explanation;
mod filling;
#[allow(unsafe_code)]
mod from_device;
pub(crate) mod handle;
mod late_lease;
mod leftovers;
#[cfg(feature = "ndarray")]
mod ndarray;
pub(crate) mod pause;
pub(crate) mod plan;
pub(crate) mod read_back;
mod report;
pub(crate) mod retry;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod sink;
mod slow_shard;
mod staff;
pub(crate) mod start;
mod stored_bytes;
pub(crate) mod stores;
mod storing;
pub(crate) mod stream;
mod timer;
mod visits;
pub(crate) mod waiting;
mod workers;

#[cfg(all(test, target_os = "linux"))]
mod forked;
#[cfg(test)]
pub(crate) mod interrupted;
#[cfg(test)]
mod power_failure;

pub use appending::Appending;
pub use array_writer::ArrayWriter;
pub use builder::ArrayWriterBuilder;
pub use device::{DeviceEvent, DeviceSlice};
pub use error::WriterError;
pub use explanation::WriterExplanation;
pub use handle::Writer;
pub use report::{Progress, WriterReport};
pub use settings::WriterBuilder;
pub use start::Start;
pub use start::Start::Resume;

pub use crate::box_writer::{
    BoxReport, BoxWriter, BoxWriterBuilder, BoxWriterError, BoxWriterErrorKind, Input, ShardUpdate,
};
pub use crate::pyramid::{Axis, MultiscaleBuilder, MultiscaleWriter, Reduction};
pub use crate::store::conditional::{ConditionalStore, ValueVersion};
