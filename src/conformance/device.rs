//! How fast the first CUDA device of this machine is, and the CUDA engine on it.

use serde_json::Value;

use crate::engine::cuda::measure;

/// Measure the first CUDA device: its kernels, the bus, and the engine, with nvCOMP where there is
/// one, as ratios of what was timed in turns. `say` gets lines of a table as they come; the result is one JSON document. What failed
/// is in its `errors`, and the rest was measured all the same; `goals` says which were met.
///
/// It takes some minutes, 8 GiB of memory on the host and 5 GiB on the device; with compressors, on
/// the device a quarter of what is free as well.
///
/// # Errors
/// There is no device that can be used: why.
pub fn measure_device(say: impl Fn(&str)) -> Result<Value, String> {
    measure::first_device(&say)
}
