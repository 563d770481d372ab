//! Registers the library's codec with zarrs, and runs the command, which registers a codec with options of
//! its own.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use zarrs_cuda::{Backend, Options, Registration};

use crate::error::unsupported;

static REGISTRATION: Mutex<Option<Registration>> = Mutex::new(None);

/// Makes zarrs use the library's codec for every sharded array that this module opens, on the host. Arrays that
/// may use a device are given that option when they are opened, so that no device is looked for here.
pub(crate) fn register() -> PyResult<()> {
    let options = Options::default().with_backend(Backend::Host);
    match zarrs_cuda::register(options) {
        Ok(registration) => {
            let mut known = REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner);
            *known = Some(registration);
            Ok(())
        }
        // Another interpreter of this process has initialised the module before.
        Err(zarrs_cuda::Error::AlreadyRegistered) => Ok(()),
        Err(error) => Err(unsupported(error)),
    }
}

/// Returns a sentence for each variable of the environment that looks like one of this package and is none.
#[pyfunction]
pub(crate) fn unknown_variables() -> Vec<String> {
    zarrs_cuda_cli::unknown_variables()
}

/// Runs the command `zarrs-cuda` with `arguments`, and returns its exit code. Nothing else of the module
/// should be used in this process afterwards: the command handles signals, and removes the registration of
/// the library's codec.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    let executable: OsString = py.import("sys")?.getattr("executable")?.extract()?;
    let known = REGISTRATION.lock();
    let registration = known.unwrap_or_else(PoisonError::into_inner).take();
    let words = [executable, "-m".into(), "zarrs_cuda".into()];
    Ok(py.detach(|| {
        drop(registration);
        zarrs_cuda_cli::run_as(words.into(), arguments)
    }))
}
