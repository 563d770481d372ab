//! Tells the command which commit it is of, for reports of measurements.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=../.git/HEAD");
    println!("cargo::rerun-if-changed=build.rs");
    let commit = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output();
    let commit = commit.ok().filter(|output| output.status.success());
    let commit = commit.and_then(|output| String::from_utf8(output.stdout).ok());
    let commit = commit.map_or_else(|| "unknown".to_string(), |commit| commit.trim().to_string());
    println!("cargo::rustc-env=ZARRS_CUDA_COMMIT={commit}");
}
