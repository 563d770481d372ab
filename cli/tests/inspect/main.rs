//! `zarrs-cuda inspect`: an array in the terminal, as JSON, and as a page in a browser.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    reason = "made-up data, and a test's way to fail"
)]

mod arrays;
mod browser;
mod metadata;
mod page;
mod terminal;

use std::path::Path;
use std::process::{Command, Output};

/// Runs the program on an array.
fn inspect(array: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zarrs-cuda"));
    command.arg("inspect").arg(array).args(arguments);
    command.env("NO_COLOR", "1").env("COLUMNS", "80");
    command.output().unwrap()
}

/// What the program prints, if it ends with this exit code.
fn said(array: &Path, arguments: &[&str], code: i32) -> String {
    let output = inspect(array, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(code), "{errors}{text}");
    text
}
