//! The CUDA engine on the first GPU of this machine, with nvCOMP if there is one.
//!
//! `cargo bench --bench device` prints a table and writes `target/bench/device.json`, or the file
//! that `ZARRS_CUDA_BENCH_OUT` names. Without a GPU it explains why it measures nothing, and fails
//! only with `ZARRS_CUDA_REQUIRE_GPU=1`. With `--list` it prints its name and measures nothing.

mod measure;

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

fn output() -> PathBuf {
    env::var_os("ZARRS_CUDA_BENCH_OUT").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).join("../bench/device.json"),
        PathBuf::from,
    )
}

fn write(document: &Value) -> Result<(), Box<dyn Error>> {
    let path = output();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&path, serde_json::to_string_pretty(document)?)?;
    println!("written to {}", path.display());
    Ok(())
}

fn main() -> ExitCode {
    // Test runners pass this argument. It also shows that this program can start.
    if env::args().any(|argument| argument == "--list") {
        println!("device: benchmark");
        return ExitCode::SUCCESS;
    }
    let document = match measure::first_device(&|line| println!("{line}")) {
        Ok(document) => document,
        Err(reason) if env::var("ZARRS_CUDA_REQUIRE_GPU").is_ok_and(|v| v == "1") => {
            eprintln!("device needs a GPU, and ZARRS_CUDA_REQUIRE_GPU is 1: {reason}");
            return ExitCode::FAILURE;
        }
        Err(reason) => {
            println!("device is skipped: {reason}");
            return ExitCode::SUCCESS;
        }
    };
    if let Err(error) = write(&document) {
        eprintln!("device cannot write its results: {error}");
        return ExitCode::FAILURE;
    }
    match document["errors"].as_array() {
        Some(errors) if errors.is_empty() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
