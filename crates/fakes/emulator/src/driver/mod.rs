//! The C functions of the CUDA driver, on emulated devices.
//!
//! The functions do what NVIDIA's documentation says, and are strict: a use that the documentation
//! forbids is an error with a message ([`violations`]), also where a real driver would say nothing.
//! Nothing happens before `cuInit`, and in a forked child every function fails.
//!
//! There are two ways to them:
//! - A test of this process takes the functions from this module, and adds a device of its own with
//!   [`add`]. The devices of a process never go away.
//! - A test that wants to be a process with a driver starts a child with the shared library in its
//!   `LD_LIBRARY_PATH`, as `libcuda.so.1`: see [`library`]. The variable `ZARRS_CUDA_EMULATED` says
//!   what it has, for example `devices=2 schedule=latest`. There a violation ends the process.

mod capture;
mod codes;
mod config;
mod device;
mod functions;
mod rows;
mod world;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

pub use self::codes::Code;
pub use self::config::{Config, Inject};
pub use self::functions::*;
pub use self::world::{Live, add, calls, inject, live, violations};

/// Why a call fails.
#[derive(Debug)]
struct Failure {
    code: Code,
    /// The caller's mistake, if the caller made one.
    message: Option<String>,
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        let message = None;
        Self { code, message }
    }
}

/// Returns the failure of a call that is forbidden.
fn wrong<T>(code: Code, message: &str) -> Result<T, Failure> {
    Err(Failure {
        code,
        message: Some(message.to_owned()),
    })
}

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Lives while a function of the host runs, which may not call the driver.
struct HostFunctionRuns;

impl HostFunctionRuns {
    fn new() -> Self {
        IN_HOST_FUNCTION.set(true);
        Self
    }
}

impl Drop for HostFunctionRuns {
    fn drop(&mut self) {
        IN_HOST_FUNCTION.set(false);
    }
}

/// Puts the shared library into `folder`, by both names that programs look for.
///
/// # Errors
/// The library was not built beside this program, or the folder cannot be written.
pub fn library(folder: &Path) -> io::Result<()> {
    let program = env::current_exe()?;
    let name = "libzarrs_cuda_emulator.so";
    let built: Vec<PathBuf> = program
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|folder| [folder.join(name), folder.join("deps").join(name)])
        .collect();
    let file = built.iter().find(|file| file.exists()).ok_or_else(|| {
        io::Error::other(format!(
            "the emulated driver was not built: there is no {built:?}"
        ))
    })?;
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::copy(file, folder.join(name))?;
    }
    Ok(())
}
