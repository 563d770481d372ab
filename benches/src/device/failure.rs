//! The reason why a measurement failed.

use std::error::Error;
use std::fmt;

/// The reason why a measurement failed.
pub(crate) struct Failure(pub(crate) String);

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns an error unless `condition` holds.
pub(crate) fn require(condition: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if condition {
        Ok(())
    } else {
        Err(Failure(otherwise()))
    }
}
