//! Looks whether the plan of a run is still there, so that a process that was away for long stores nothing in the
//! output of another run.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use zarrs::storage::{Bytes, StorageError};

use super::plan_key;
use crate::open::{Place, Store};

/// The largest plan whose bytes are compared at each look.
const SMALL: usize = 64 << 10;
/// The time for which only the size of a larger plan is compared.
const AGE: Duration = Duration::from_secs(1);

/// The plan of a run, as it was when this process joined the run.
pub(crate) struct PlanWatch {
    place: Place,
    store: Arc<Store>,
    bytes: Bytes,
    /// The time at which the bytes were compared last.
    compared: Mutex<Option<Instant>>,
}

impl PlanWatch {
    pub(super) fn new(place: &Place, store: &Arc<Store>, bytes: Bytes) -> Self {
        Self {
            place: place.clone(),
            store: store.clone(),
            bytes,
            compared: Mutex::default(),
        }
    }

    /// Returns the bytes of the plan.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether the plan is still stored.
    ///
    /// # Errors
    /// The errors of the store.
    pub(super) fn is_there(&self) -> Result<bool, StorageError> {
        let key = plan_key()?;
        let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bytes.len() > SMALL && compared.is_some_and(|at| at.elapsed() < AGE) {
            return Ok(self.store.size_key(&key)? == Some(self.bytes.len() as u64));
        }
        let found = self.store.get(&key)?;
        *compared = Some(Instant::now());
        Ok(found.is_some_and(|found| found == self.bytes))
    }

    /// Calls `create`, which creates a shard and returns whether it did, while the plan is stored. Calls `erase` for a
    /// shard that was created while the plan was replaced.
    ///
    /// # Errors
    /// The plan is gone; the errors of the store.
    pub(crate) fn create(
        &self,
        create: impl FnOnce() -> Result<bool, StorageError>,
        erase: impl FnOnce() -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let gone = || {
            let place = &self.place;
            StorageError::Other(format!(
                "the plan of {place} was deleted or replaced while this part was made"
            ))
        };
        if !self.is_there()? {
            return Err(gone());
        }
        if create()? && !self.is_there()? {
            erase()?;
            return Err(gone());
        }
        Ok(())
    }
}
