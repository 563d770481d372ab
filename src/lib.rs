//! A fast `sharding_indexed` codec for [`zarrs`], for applications that write and read sharded Zarr
//! arrays.
//!
//! One line makes zarrs use the codec for every sharded array that the application opens afterwards. The
//! files stay standard: any Zarr reader opens them.
//!
//! ```standalone_crate
//! # use std::sync::Arc;
//! # use zarrs::array::{Array, ArrayBuilder, data_type};
//! let _registration = zarrs_cuda::register(zarrs_cuda::Options::default())?;
//! # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
//! # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0u16);
//! # builder.subchunk_shape(vec![8, 8]);
//! # zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?.store_metadata()?;
//!
//! let array = Array::open(store, "/volume")?;
//! array.store_chunk(&[0, 0], vec![1_u16; 32 * 32])?;
//! println!("{}", zarrs_cuda::explain(&array)?);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! The [guide] shows how to use this crate, page by page, and has [reference pages](guide::reference) for
//! promises and measurements.
//!
//! | you want to | use |
//! |---|---|
//! | use the codec for every array of the process | [`register`] |
//! | build an array with it, from zarrs' `ArrayBuilder` | [`build_sharded`] |
//! | use it for one array, with options of its own | [`CudaShardingCodecBuilder`] |
//! | see what happens to an array's shards, and why | [`explain`] |
//! | change how it works | [`Options`], which never reach array metadata |
//! | update parts of stored shards | zarrs' `experimental_partial_encoding`, with a [`WriteStrategy`] |
//! | compact, repair or look into stored shards | [`compact`], [`recover`], [`inspect`]; [`maintenance::Shards`] for an array |
//! | write boxes from your own memory, many at once | [`writer::BoxWriter`] |
//! | append slices while they arrive, in bounded memory | [`writer::ArrayWriter`] |
//! | and write the smaller levels of an image in the same pass | [`writer::MultiscaleWriter`] |
//! | read boxes of an array into your own memory, many at once, or slices while they arrive | [`reader::ArrayReader`] |
//! | let many processes write the same shards | [`storage::SparseShardStore`] |
//! | keep arrays in S3 and other object stores | `objects::BlockingObjectStore` (feature `object_store`) |
//! | let a device be ready before the first shard | [`warm_up`] |
//! | see which devices and compressors there are, or why not | [`machine`](machine()) |
//! | count what the process did; what a reader did | [`metrics`]; [`ArrayReader::metrics`](reader::ArrayReader::metrics) |
//!
//! [`CudaShardingCodec`] is the page of the codec. Shards are encoded on an NVIDIA GPU where one helps:
//! [`Backend`] says when.
//!
//! ## Features
//!
//! On by default: `async`, `cuda`, `cuda-12000`, `pcodec`. Others: `filesystem`, `object_store`, `ndarray`,
//! `dlpack`. [Install](guide::start#install) says what each adds.
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::unwrap_used,
        reason = "made-up data, and a test's way to fail"
    )
)]

mod box_writer;
mod build;
mod codec;
#[cfg(test)]
mod conformance;
mod error;
pub mod guide;
pub mod maintenance;
mod metadata;
mod metrics;
#[cfg(feature = "object_store")]
pub mod objects;
#[cfg(test)]
mod on_devices;
mod options;
mod panics;
mod plan;
mod pyramid;
pub mod reader;
mod registration;
mod shard;
pub mod storage;
mod store;
pub mod writer;

use std::time::Duration;

use zarrs_cuda_engine::cuda;

pub use build::build_sharded;
pub use codec::{CudaShardingCodec, CudaShardingCodecBuilder, explain};
pub use error::Error;
pub use maintenance::{compact, inspect, recover};
pub use metrics::{MemoryEstimate, Metrics};
pub use options::{Backend, Check, CompactionRequest, LevelPolicy, Options, WriteStrategy};
pub use plan::{
    Estimates, ExplainedStage, Explanation, Machine, MachineDevice, MachineDriver, MachineNvcomp,
    Place, TypicalShard, machine, typical_shards,
};
pub use registration::{Registration, register};

/// Returns the counters of this process: the work of the CUDA engine, the number of partial writes, and the
/// time that appends to [writers](writer) waited.
///
/// The counters of the CUDA engine are zero if no device was ever used, and in a process that was forked
/// after a device was used. [`ArrayReader::metrics`](reader::ArrayReader::metrics) counts the work of a
/// reader.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// let before = zarrs_cuda::metrics();
/// array.store_chunk(&[0, 0], vec![7_u16; 32 * 32])?;
///
/// let now = zarrs_cuda::metrics();
/// let [encoded, stored] = [
///     now.host_encode_bytes_in - before.host_encode_bytes_in,
///     now.host_encode_bytes_out - before.host_encode_bytes_out,
/// ];
/// println!("{encoded} bytes became {stored} on the host");
/// # assert_eq!(encoded, 32 * 32 * 2);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn metrics() -> Metrics {
    Metrics {
        missing_devices: plan::missing_devices(),
        ..metrics::counters::add_to(cuda::metrics())
    }
}

/// Makes the devices that `options` allow ready for the first shard: creates their contexts, compiles the
/// kernels for them, and loads nvCOMP, if it is installed, and its kernels.
///
/// nvCOMP's kernels are loaded by compressing two small subchunks with each of its compressors, and, if
/// [`Options::with_device_decode`] is set, decompressing them. A compressor that fails then is no error, since
/// the host can run it: the reason is logged.
///
/// Without this call, the first shards wait for this work; [`explain`] says which kernels are not compiled.
/// Contexts and kernels that exist are not made again; the compressors run again. Call this function on a thread of its own, so that the
/// application can start meanwhile.
///
/// ```
/// use zarrs_cuda::Options;
///
/// let options = Options::default().with_devices([0]);
/// if let Err(error) = zarrs_cuda::warm_up(&options) {
///     println!("shards will be encoded on the host: {error}");
/// }
/// ```
///
/// # Errors
/// [`Error::BackendUnavailable`] if no device can be used, or if one cannot compile the kernels. Under
/// [`Backend::Auto`] the host then encodes the shards.
pub fn warm_up(options: &Options) -> Result<(), Error> {
    let backend = Backend::Cuda;
    plan::Engines::warm_up(options).map_err(|reason| Error::BackendUnavailable { backend, reason })
}

/// Checks that the backend of `options` can be used. Under [`Backend::Cuda`] each array does so at its first read
/// or write, so that it never uses the host in silence. Creates no context on a device.
///
/// ```
/// use zarrs_cuda::{Backend, Error, Options};
///
/// let options = Options::default().with_backend(Backend::Cuda);
/// match zarrs_cuda::check_backend(&options) {
///     Ok(()) => println!("shards will be encoded on a device"),
///     Err(Error::BackendUnavailable { reason, .. }) => println!("no job without a device: {reason}"),
///     Err(error) => return Err(error.into()),
/// }
/// assert!(zarrs_cuda::check_backend(&options.with_backend(Backend::Host)).is_ok());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::BackendUnavailable`] if `options` or the environment ask for [`Backend::Cuda`], and no device is
/// usable; or if a setting in the environment cannot be understood.
pub fn check_backend(options: &Options) -> Result<(), Error> {
    plan::Engines::of_process(options).check(options)
}

/// Checks that the settings of devices in `options` and in the environment can be understood, as opening an array
/// does. Looks for no device.
///
/// ```
/// // Before a long job begins: a misspelt ZARRS_CUDA_DEVICES would be an error of its first array.
/// let options = zarrs_cuda::Options::default();
/// if let Err(problem) = zarrs_cuda::check_settings(&options) {
///     eprintln!("cannot begin: {problem}");
///     std::process::exit(2);
/// }
/// ```
///
/// # Errors
/// The name of a setting, its value, and the values that it may have.
pub fn check_settings(options: &Options) -> Result<(), String> {
    plan::Engines::of_process(options).check_settings()
}

/// Returns whether this process was forked from a process that had looked for devices. CUDA does not work in such
/// a process, so it uses no device.
///
/// ```
/// // In a worker process, before it opens an array.
/// if zarrs_cuda::is_forked_after_devices() {
///     eprintln!("this worker encodes on the host: start workers by `spawn` instead of `fork`");
/// }
/// # assert!(!zarrs_cuda::is_forked_after_devices());
/// ```
#[must_use]
pub fn is_forked_after_devices() -> bool {
    cuda::is_forked()
}

/// Releases the device memory and page-locked memory that the CUDA engine keeps for the next shard. A thread frees the
/// memory of tensors that were given back.
///
/// Buffers that are idle for [`Options::with_device_idle_time`] are released without this call. The memory of
/// the driver stays: its context and the compiled kernels. In a forked child process this function does
/// nothing, because the memory belongs to the parent.
///
/// ```no_run
/// # use zarrs::array::{ArrayBuilder, data_type};
/// # use zarrs_cuda::{CudaShardingCodecBuilder, Options};
/// # let codec = CudaShardingCodecBuilder::new(vec![32.try_into()?; 3], &data_type::uint16())
/// #     .options(Options::default().with_devices([0]))
/// #     .build_arc()?;
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = ArrayBuilder::new(vec![128; 3], vec![64; 3], data_type::uint16(), 0_u16);
/// # let array = builder.array_to_bytes_codec(codec).build(store, "/volume")?;
/// array.store_chunk(&[0, 0, 0], vec![7_u16; 64 * 64 * 64])?;
///
/// // The application needs the memory of the device for something else now.
/// zarrs_cuda::release_idle_memory();
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub fn release_idle_memory() {
    cuda::release_idle();
}

/// Ends the use of devices, because the process is about to end.
///
/// Devices begin no new work from now on: the host takes over under [`Backend::Auto`], and it is an error
/// under [`Backend::Cuda`]. The function waits at most `time` for work that devices have begun, and frees
/// idle buffers meanwhile. Whatever is in use after that time is never freed, and the driver is not called
/// for it any more.
///
/// Without this call, a thread that uses a device while the process ends may be in a function of the driver
/// when the driver shuts down. A second call changes nothing. In a process that was forked after a device was
/// used, the function does nothing.
///
/// ```
/// use std::time::Duration;
///
/// // At the end of `main`, while threads of the application may still run.
/// zarrs_cuda::shut_down_devices(Duration::from_secs(10));
/// ```
pub fn shut_down_devices(time: Duration) {
    cuda::shut_down(time);
}
