//! The lease of a writer that begins within the array, from the moment on that it extends the array.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use zarrs_storage::StorageError;

use crate::store::array_lease::{Leases, Work};
use crate::store::lease::Held;

pub(super) struct LateLease {
    leases: Leases,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// Whether there was a lease to take, or the store was found to have none.
    is_asked: bool,
    lease: Option<Held>,
}

impl fmt::Debug for LateLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateLease").finish_non_exhaustive()
    }
}

impl LateLease {
    pub(super) fn new(leases: Leases) -> Self {
        Self {
            leases,
            taken: Mutex::default(),
        }
    }

    /// Takes the lease. Returns whether that was not done before.
    ///
    /// # Errors
    /// The errors of [`Leases::take`]; then it may be called again.
    pub(super) fn take(&self) -> Result<bool, StorageError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.is_asked {
            return Ok(false);
        }
        taken.lease = self.leases.take(Work::Alone)?;
        taken.is_asked = true;
        Ok(true)
    }
}
