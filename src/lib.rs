//! A `sharding_indexed` codec for [`zarrs`] that is built for throughput.
//!
//! One line, and every sharded array that an application opens afterwards goes through it, in
//! files that any Zarr reader opens:
//!
//! ```standalone_crate
//! # use std::sync::Arc;
//! # use zarrs::array::{Array, ArrayBuilder, data_type};
//! let _registration = zarrs_cuda::register(zarrs_cuda::Options::default())?;
//! # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
//! # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0u16);
//! # builder.subchunk_shape(vec![8, 8]);
//! # let array = Array::new_with_metadata(store.clone(), "/volume", builder.build_metadata()?.into())?;
//! # array.store_metadata()?;
//!
//! let array = Array::open(store, "/volume")?;
//! array.store_chunk(&[0, 0], vec![1_u16; 32 * 32])?;
//! println!("{}", zarrs_cuda::explain(&array)?);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`register`] makes zarrs use the codec for every array; [`CudaShardingCodecBuilder`] makes it
//!   for one.
//! - [`Options`] are runtime only: they never reach array metadata, which is zarrs' own.
//! - [`explain`] says what happens to the shards of an array, and why.
//! - [`CudaShardingCodec`] is the page of the codec.
//! - [`WriteStrategy`] is how parts of stored shards are updated, with zarrs'
//!   `experimental_partial_encoding`; [`compact`], [`recover`] and [`inspect`] look after such shards,
//!   and [`Shards`] does it for those of an array.
//! - [`writer`] makes finished shards of slices as they come: an
//!   [`ArrayWriter`](writer::ArrayWriter) appends them along the first axis, in bounded memory.
//! - [`storage`] has adapters of stores that see shards as chunks: a
//!   [`SparseShardStore`](storage::SparseShardStore) lets many processes write the same shards.
//! - [`metrics`] is what the CUDA engine did, how many partial writes there were, and how long
//!   appends waited.
//!
//! Shards are encoded on an NVIDIA GPU where one helps: [`Backend`] says when.
//!
//! ## Features
//!
//! - `async` (default): the asynchronous partial decoder and encoder. Keep it on where
//!   `zarrs/async` is on: without it, asynchronous partial reads read whole shards.
//! - `pcodec` (default): the codec `numcodecs.pcodec`, decoded in bounded memory. Keep it on where
//!   `zarrs/pcodec` is on: without it, a hostile shard of that codec can take any amount of memory.
//! - `filesystem`: zarrs' filesystem store, of a version that syncs every write.
//! - `ndarray`: views of `ndarray` are appended to a [writer].
//! - `dlpack`: tensors of other libraries, on the host or a device, are appended to a [writer]
//!   through `DLPack`.
//! - `indicatif`: a progress bar that follows a [writer].
#![deny(unsafe_code)]
// With that feature, what programs of this repository reach is public.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::unwrap_used,
        reason = "made-up data, and a test's way to fail"
    )
)]

// The benchmark of devices names its own crate, and is tested on a simulated device here.
#[cfg(test)]
extern crate self as zarrs_cuda;

mod codec;
#[cfg(test)]
mod conformance;
#[cfg_attr(
    feature = "internals",
    allow(
        missing_docs,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc,
        clippy::must_use_candidate,
        clippy::new_without_default,
        clippy::return_self_not_must_use,
        reason = "public for programs of this repository alone"
    )
)]
mod engine;
mod error;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
#[cfg_attr(
    feature = "internals",
    allow(
        missing_docs,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc,
        clippy::must_use_candidate,
        clippy::new_without_default,
        clippy::return_self_not_must_use,
        reason = "public for programs of this repository alone"
    )
)]
mod layout;
mod maintenance;
mod memory_limit;
mod options;
mod plan;
mod registration;
pub mod storage;
mod write_strategy;
pub mod writer;

pub use codec::{CudaShardingCodec, CudaShardingCodecBuilder, explain};
pub use engine::cuda::{MemoryEstimate, Metrics};
pub use error::Error;
pub use maintenance::{
    Compaction, ExtentProblem, Inspection, Recovery, RecoveryOutcome, ShardFormat, Shards,
    StoredSubchunk, SubchunkState, UpdateRecord, compact, inspect, recover,
};
#[cfg(feature = "async")]
pub use maintenance::{async_compact, async_inspect, async_recover};
pub use options::{Backend, LevelPolicy, Options};
pub use plan::{ExplainedStage, Explanation, Place};
pub use registration::{Registration, register};
pub use write_strategy::{CompactionRequest, WriteStrategy};

/// What the CUDA engine of this process did until now (nothing, if no device was ever used, or if the
/// process was forked after one was), how many partial writes there were, and how long appends to
/// [writers](writer) waited.
#[must_use]
pub fn metrics() -> Metrics {
    let [partial_writes, compaction_requests, compactions] = write_strategy::counters::snapshot();
    let (writer_waits, writer_wait) = writer::counters::snapshot();
    Metrics {
        partial_writes,
        compaction_requests,
        compactions,
        writer_waits,
        writer_wait,
        ..engine::cuda::metrics()
    }
}

/// Give back the device and page-locked memory that the CUDA engine keeps for the next shard. Buffers
/// that nothing used for ten seconds are given back without it. The driver's own memory stays: its
/// context and the compiled kernels.
///
/// In a forked child this does nothing: the memory is the parent's.
pub fn release_idle_memory() {
    engine::cuda::release_idle();
}
