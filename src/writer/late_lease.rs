//! Takes the lease of a writer that begins within the array, or behind its end.
//!
//! Several such writers may write one array, so the writer has no lease at first. The writer takes the lease
//! before it extends the array: before it stores a shard with slices behind the end that the array had when
//! the writer was built.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use zarrs_storage::StorageError;

use super::sink::Length;
use crate::store::array_lease::{Leases, Work};
use crate::store::lease::Held;

pub(crate) struct LateLease {
    leases: Leases,
    /// The number of slices that the array had when the writer was built.
    slices: u64,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// Whether the writer may extend the array.
    may_extend: bool,
    /// The lease that was taken; also `None` if the store has no leases.
    lease: Option<Held>,
}

impl fmt::Debug for LateLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateLease")
            .field("slices", &self.slices)
            .finish_non_exhaustive()
    }
}

impl LateLease {
    pub(crate) fn new(leases: Leases, slices: u64) -> Self {
        Self {
            leases,
            slices,
            taken: Mutex::default(),
        }
    }

    /// Takes the lease before a shard is stored whose slices end at `end`, if these slices extend the array.
    /// From then on `length` checks that no other process changes the number of slices.
    ///
    /// # Errors
    /// The errors of [`Leases::take`] and of `length`, and that another process has changed the number of
    /// slices since the writer was built. After an error, this function may be called again.
    pub(crate) fn before(&self, end: u64, length: &dyn Length) -> Result<(), StorageError> {
        if end <= self.slices {
            return Ok(());
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.may_extend {
            return Ok(());
        }
        if taken.lease.is_none() {
            taken.lease = self.leases.take(Work::Alone)?;
        }
        length.expect(self.slices)?;
        taken.may_extend = true;
        Ok(())
    }
}
