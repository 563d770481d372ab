//! The program `zarrs-cuda`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(zarrs_cuda_cli::run(std::env::args_os().skip(1)))
}
