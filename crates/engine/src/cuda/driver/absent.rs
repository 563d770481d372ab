//! No driver: the package was compiled without the feature `cuda`.

use super::{DriverError, Fault, Found};
use crate::cuda::library::ABSENT;

/// Returns an error, since there is no driver.
///
/// # Errors
/// Always, because the package was compiled without the feature `cuda`.
pub fn open_all() -> Result<Found, DriverError> {
    Err(absent())
}

/// Returns an error, since there is no driver.
///
/// # Errors
/// Always, because the package was compiled without the feature `cuda`.
pub(crate) fn count() -> Result<usize, DriverError> {
    Err(absent())
}

fn absent() -> DriverError {
    DriverError {
        operation: "look for CUDA devices".to_string(),
        device: None,
        fault: Fault::Unavailable,
        reason: ABSENT.to_string(),
    }
}

/// Returns `None`, since there is no driver.
pub(crate) fn current_device() -> Option<usize> {
    None
}

/// Returns `None`, since there is no driver.
pub(crate) fn version() -> Option<(u32, u32)> {
    None
}
