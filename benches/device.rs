//! The CUDA engine on the first GPU of this machine, with nvCOMP if there is one.
//!
//! `cargo bench --package zarrs_cuda_benches --bench device [-- SECTION…]` prints a table and
//! writes `target/bench/device.json`, or the file that `ZARRS_CUDA_BENCH_OUT` names, anew after
//! each section. The sections are `kernels`, `bus`, `pinned`, `staging`, `inputs`, `whole`,
//! `compressed` and `sweep`. Without a GPU it explains why it measures nothing, and fails only with
//! `ZARRS_CUDA_REQUIRE_GPU=1`. With `--list` it prints its name and measures nothing.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;
use zarrs_cuda_benches::device;

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
    // Renamed when it is complete: the benchmark may be ended at any time.
    let new = path.with_extension("json.new");
    fs::write(&new, serde_json::to_string_pretty(document)?)?;
    Ok(fs::rename(&new, &path)?)
}

fn main() -> ExitCode {
    // Test runners pass this argument. It also shows that this program can start.
    if env::args().any(|argument| argument == "--list") {
        println!("device: benchmark");
        return ExitCode::SUCCESS;
    }
    let sections: Vec<String> = env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_known = |section: &&String| device::SECTIONS.contains(&section.as_str());
    if let Some(section) = sections.iter().find(|section| !is_known(section)) {
        eprintln!(
            "device has no section {section}, only {:?}",
            device::SECTIONS
        );
        return ExitCode::FAILURE;
    }
    let run = device::Run {
        wants: &|section| sections.is_empty() || sections.iter().any(|wanted| wanted == section),
        say: &|line| println!("{line}"),
        save: &|document| {
            if let Err(error) = write(document) {
                eprintln!("device cannot write its results so far: {error}");
            }
        },
    };
    let document = match device::first_device(&run) {
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
    println!("written to {}", output().display());
    match document["errors"].as_array() {
        Some(errors) if errors.is_empty() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
