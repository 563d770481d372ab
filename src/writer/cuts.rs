//! Cuts an image that is written from a start within it. The cuts wait for the first shard: the image stays
//! as it is until a shard is about to be replaced.
//!
//! All levels are cut before the first shard is replaced, the lowest level first. So a process that dies
//! between two cuts leaves levels that are shorter than the level above, and the next writer makes these
//! again. In the other order, a level would keep slices that were made of replaced slices.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zarrs_storage::StorageError;

use super::sink::Length;

/// The arrays of an image that are still to be cut, from level 0 on.
#[derive(Debug, Default)]
pub(crate) struct Cuts(Mutex<Vec<Cut>>);

/// An array that is to be cut to at most `slices` slices.
#[derive(Debug)]
struct Cut {
    length: Arc<dyn Length>,
    slices: u64,
}

impl Cuts {
    fn due(&self) -> MutexGuard<'_, Vec<Cut>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the array of the next level, which is to be cut to at most `slices` slices.
    pub(crate) fn add(&self, length: Arc<dyn Length>, slices: u64) {
        self.due().push(Cut { length, slices });
    }

    /// Returns whether an array is still to be cut.
    pub(crate) fn are_due(&self) -> bool {
        !self.due().is_empty()
    }

    /// Cuts the arrays that are still to be cut, from the last one on, except for the first `left` arrays.
    /// After an error the next call cuts the arrays that were not cut.
    ///
    /// # Errors
    /// The errors of the store.
    pub(crate) fn make(&self, left: usize) -> Result<(), StorageError> {
        let mut due = self.due();
        while let Some(cut) = due.get(left..).and_then(<[_]>::last) {
            cut.length.cut(cut.slices)?;
            due.pop();
        }
        Ok(())
    }
}

/// The cuts of an image, and the slices of one level that can be stored without them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cutting {
    pub(crate) cuts: Arc<Cuts>,
    /// The first slice of the level that may change: a shard that ends there or before is stored without
    /// cuts.
    pub(crate) kept: u64,
    /// The number of slices to which the level is cut.
    pub(crate) end: u64,
}

impl Cutting {
    /// Makes the cuts that a shard needs before it is replaced, where the shard ends at slice `end`.
    ///
    /// # Errors
    /// The errors of the store.
    pub(crate) fn before(&self, end: u64) -> Result<(), StorageError> {
        if end > self.kept {
            self.cuts.make(0)
        } else {
            Ok(())
        }
    }
}
