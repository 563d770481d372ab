//! `zarrs-cuda reshard`, against zarrs and a naive reader of shards.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    reason = "made-up data, and a test's way to fail"
)]

mod arrays;
#[path = "../../../tests/interop/environment.rs"]
#[allow(dead_code, reason = "the tests of the library use the rest")]
mod environment;
mod interop;
mod interrupted;
mod parts;
mod property;
mod refusals;

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The program, which is to reshard `input` to `output`.
fn command(input: &Path, output: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zarrs-cuda"));
    command.arg("reshard").arg(input).arg(output).args(options);
    command.env("NO_COLOR", "1");
    command
}

fn run(input: &Path, output: &Path, options: &[&str]) -> Output {
    command(input, output, options).output().unwrap()
}

/// Reshards, and returns what the program says.
fn resharded(input: &Path, output: &Path, options: &[&str]) -> Value {
    let done = run(input, output, &[options, &["--json"]].concat());
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{said}");
    serde_json::from_slice(&done.stdout).unwrap()
}

/// Says something past the test harness, which keeps what tests print.
fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "interop: {line}");
}
