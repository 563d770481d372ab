//! The CUDA engine: stages in order of use, one file each, above the interface `driver`. Tests simulate the
//! driver.
//!
//! | file | what it does |
//! |---|---|
//! | `driver` | the interface to a device: allocate, copy, launch, record, wait; the CUDA driver, and a
//! simulation |
//! | `kernels` | each kernel with the launch that it wants |
//! | `device`, `forks` | a device of this process, and whether it can still be used |
//! | `application` | an application's memory that a lane reads, and the work that the lane waits for |
//! | `waits` | the host's waits for a device, and their limit |
//! | `arena` | the memory of a lane, divided into regions; alignments; tuned parameters |
//! | `nvcomp` | NVIDIA's compressors: loaded, asked and called |
//! | `compression` | a chain's compressor on a device, and its buffers |
//! | `frame_parsing` | the structure of one frame: headers, sizes and chains of blocks |
//! | `compressed_frame_parts` | where the compressed streams of a shard's frames are |
//! | `eligible` | which chains a device encodes and decodes |
//! | `frame_checks` | the frames that a device has made, walked before they are stored |
//! | `check_progress` | how far the results of a device were compared with those of the host |
//! | `result_checks` | the results of a device, compared with those of the host |
//! | `decompression` | a chain's decompressor on a device, and its buffers |
//! | `sizing` | kinds of shards, and the memory of a lane: estimated, allocated and divided |
//! | `lane` | a lane: streams, events, pinned and device memory |
//! | `lanes` | the lanes of all devices, under their budgets |
//! | `copiers` | threads that copy between the caller's memory and pinned memory |
//! | `numa` | the nodes of a machine, and copiers for those that have devices |
//! | `slabs` | page-locked memory that readers fill, and from which a lane copies |
//! | `session` | a lane in use: free events, times of stages |
//! | `transfers` | the rings of pinned memory, to the device and back |
//! | `enqueue`, `compress`, `decompress` | batches of subchunks through the kernels |
//! | `answer` | where the encoded subchunks of a batch lie, as the device says |
//! | `encode`, `decode` | a whole shard |
//! | `engine` | the engine: kinds of shards, prepared once and cached |
//! | `read` | subchunks into the memory of a device |
//! | `rows_box` | boxes of rows, copied from one layout to another |
//! | `retired`, `freeing` | memory of a device that its owners use no more |
//! | `download` | an application's bytes on a device, for the host |
//! | `stream` | slices in, batches of encoded subchunks out, in a lane of its own |
//! | `uses` | how many threads and batches use devices |
//! | `counters`, `recent_answers` | the metrics; a cache of recent answers |
//!
//! While a lane is held, nothing runs on rayon: see `copiers`.

mod answer;
mod application;
pub mod arena;
mod check_progress;
#[allow(unsafe_code)]
mod compress;
pub mod compressed_frame_parts;
pub mod compression;
#[allow(unsafe_code)]
pub mod copiers;
mod counters;
#[allow(unsafe_code)]
mod decode;
#[allow(unsafe_code)]
mod decompress;
mod decompression;
mod device;
#[allow(unsafe_code)]
mod download;
pub mod driver;
mod eligible;
#[allow(unsafe_code)]
pub mod encode;
mod engine;
#[allow(unsafe_code)]
mod enqueue;
mod forks;
mod frame_checks;
mod frame_parsing;
#[allow(unsafe_code)]
mod freeing;
#[allow(unsafe_code)]
pub mod kernels;
#[allow(unsafe_code)]
mod lane;
mod lanes;
#[allow(unsafe_code)]
mod library;
mod metrics;
#[allow(unsafe_code)]
mod numa;
#[allow(unsafe_code)]
pub mod nvcomp;
#[allow(unsafe_code)]
pub mod read;
mod recent_answers;
mod result_checks;
mod retired;
mod rows_box;
#[allow(unsafe_code)]
pub mod session;
pub mod sizing;
#[allow(unsafe_code)]
mod slabs;
#[allow(unsafe_code)]
mod stream;
#[cfg(test)]
mod tests;
mod transfers;
mod uses;
mod waits;
mod warm_up;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use arena::Tuning;
pub use compression::HighestLevels;
pub use download::Download;
pub use eligible::{check_chain, check_decoding, chunks_of_subchunk};
pub use engine::CudaEngine;
pub use lanes::{DeviceLimits, Devices, ReadSlabs};
pub use metrics::DeviceMetrics;
pub use read::{CudaReads, DeviceBuffer, HandOver, Next, SubchunkToPlace};
pub use sizing::Compressors;
pub use slabs::PinnedSlab;

use crate::error::{DriverError, Fault};

/// The name of the engine.
pub const NAME: &str = "cuda";

static DEVICES: OnceLock<Result<Arc<Devices>, DriverError>> = OnceLock::new();

/// The process that first looked for devices; 0 if no process has.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Returns the metrics of the devices of this process.
pub fn metrics() -> DeviceMetrics {
    match DEVICES.get() {
        Some(Ok(devices)) => devices.counters.snapshot(),
        _ => DeviceMetrics::default(),
    }
}

/// Frees the idle lanes of this process, and lets a thread free its spare memory.
pub fn release_idle() {
    if let Some(Ok(devices)) = DEVICES.get() {
        devices.release_idle();
    }
}

/// Whether [`shut_down`] was called.
static SHUT_DOWN: AtomicBool = AtomicBool::new(false);

/// Ends the use of the devices of this process: they begin no new work from now on. Waits at most `time` for
/// lanes in use, and frees the idle lanes. The rest is leaked. In a process that was forked after it looked
/// for devices, does nothing.
pub fn shut_down(time: Duration) {
    SHUT_DOWN.store(true, Ordering::SeqCst);
    if let Some(Ok(devices)) = DEVICES.get() {
        devices.shut_down(time);
    }
}

/// Returns the major and the minor version of CUDA that the driver supports. `None` if [`devices`] has not
/// looked for a driver yet, if there is none, or if it does not report its version.
pub fn driver_version() -> Option<(u32, u32)> {
    driver::version()
}

/// Returns the number of the device whose CUDA context is current on this thread; `None` if there is none. The
/// call neither loads nor initialises the driver.
pub fn current_device() -> Option<usize> {
    driver::current_device()
}

/// Returns the number of devices that this process sees, usable or not.
///
/// # Errors
/// There is no driver, or this process was forked after it looked for devices.
pub fn visible_devices() -> Result<usize, DriverError> {
    driver::count()
}

/// Returns whether this process was forked from a process that had looked for devices. CUDA does not work here.
pub fn is_forked() -> bool {
    ![0, std::process::id()].contains(&PROCESS.load(Ordering::Relaxed))
}

/// Returns the devices of this process. The first call searches for them.
///
/// # Errors
/// No device is usable. The error has the reason and the remedy.
pub fn devices() -> Result<Arc<Devices>, DriverError> {
    let this = std::process::id();
    let first = PROCESS.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err_and(|process| process != this) {
        // A thread of the parent may have been inside `get_or_init` when the process forked. The
        // child would wait for that thread for ever.
        return Err(DriverError {
            operation: "look for CUDA devices".to_string(),
            device: None,
            fault: Fault::Unavailable,
            reason: "the process was forked after it looked for them".to_string(),
        });
    }
    if SHUT_DOWN.load(Ordering::SeqCst) {
        return Err(lanes::shut_down_error());
    }
    let found = DEVICES
        .get_or_init(|| {
            let found = driver::open_all()?;
            for driver in &found.drivers {
                let device = driver.device();
                tracing::info!(
                    ordinal = device.ordinal,
                    name = device.name,
                    memory = device.total_memory,
                    "CUDA device"
                );
            }
            Ok(Devices::of_process(found))
        })
        .clone();
    if SHUT_DOWN.load(Ordering::SeqCst) {
        return Err(lanes::shut_down_error());
    }
    found
}
