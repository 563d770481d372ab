//! The library's codec in zarrs' registry, and the command, which registers a codec with options of its own.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use zarrs_cuda::Registration;

use crate::error::unsupported;

static REGISTRATION: Mutex<Option<Registration>> = Mutex::new(None);

/// Makes every sharded array of this module one of the library.
pub(crate) fn register() -> PyResult<()> {
    match zarrs_cuda::register(zarrs_cuda::Options::default()) {
        Ok(registration) => {
            let mut known = REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner);
            *known = Some(registration);
            Ok(())
        }
        // The module is initialised again, by another interpreter of this process.
        Err(zarrs_cuda::Error::AlreadyRegistered) => Ok(()),
        Err(error) => Err(unsupported(error)),
    }
}

/// Runs the command `zarrs-cuda` with `arguments`, and returns its exit code. It is the last thing that this process
/// does with the module: the command handles signals, and sharded arrays are not the library's any more.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    let mut known = REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner);
    let registration = known.take();
    drop(known);
    py.detach(|| {
        drop(registration);
        zarrs_cuda_cli::run(arguments)
    })
}
