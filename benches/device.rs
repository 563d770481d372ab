//! The CUDA engine on the first GPU of this machine, with nvCOMP if there is one.
//!
//! `cargo bench --package zarrs_cuda_benches --bench device [-- SECTION…]` prints a table and
//! writes `target/bench/device.json`, or the file that `ZARRS_CUDA_BENCH_OUT` names, anew after
//! each section. The sections are `kernels`, `bus`, `pinned`, `staging`, `inputs`, `whole`,
//! `compressed` and `sweep`; and, only where they are named, `start`, `chunks`, `stream`, `reads` and `shards`. With
//! `--probe` it only copies bytes to the device and back. Without a GPU it explains why it measures nothing, and fails only with
//! `ZARRS_CUDA_REQUIRE_GPU=1`. With `--list` it prints its name and measures nothing.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use zarrs_cuda_benches::device;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let output = env::var_os("ZARRS_CUDA_BENCH_OUT").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).join("../bench/device.json"),
        PathBuf::from,
    );
    if device::program(&arguments, &output) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
