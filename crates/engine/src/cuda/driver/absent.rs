//! No driver: the package was compiled without the feature `cuda`.

use std::sync::Arc;

use super::{Driver, DriverError, Fault};
use crate::cuda::library::ABSENT;

/// Returns an error, since there is no driver.
///
/// # Errors
/// Always, because the package was compiled without the feature `cuda`.
pub fn open_all() -> Result<Vec<Arc<dyn Driver>>, DriverError> {
    Err(DriverError {
        operation: "look for CUDA devices".to_string(),
        device: None,
        fault: Fault::Unavailable,
        reason: ABSENT.to_string(),
    })
}

/// Returns `None`, since there is no driver.
pub(crate) fn version() -> Option<(u32, u32)> {
    None
}
