//! Looks whether the plan of a run is still there, so that a process that was away for long stores nothing in the
//! output of another run.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use zarrs::storage::{Bytes, StorageError};

use super::{done_key, plan_key};
use crate::claim::is_same;
use crate::open::{Place, Store};
use crate::shard_file::ShardFile;

/// The largest plan whose bytes are compared at each look.
const SMALL: usize = 64 << 10;
/// The time for which only the size of a larger plan is compared.
const AGE: Duration = Duration::from_secs(1);

/// The state of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    There,
    /// The run is complete.
    Complete,
    /// The plan was deleted or replaced, and the run is not complete.
    Gone,
}

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
    fn is_there(&self) -> Result<bool, StorageError> {
        let key = plan_key()?;
        let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bytes.len() > SMALL && compared.is_some_and(|at| at.elapsed() < AGE) {
            return Ok(self.store.size_key(&key)? == Some(self.bytes.len() as u64));
        }
        let found = self.store.get(&key)?;
        *compared = Some(Instant::now());
        Ok(found.is_some_and(|found| found == self.bytes))
    }

    /// Looks for the plan. Looks again before it says that the plan is gone: while several processes create one plan,
    /// some stores show a part of it.
    ///
    /// # Errors
    /// The errors of the store.
    pub(super) fn look(&self) -> Result<Look, StorageError> {
        const PAUSES: [u64; 5] = [10, 50, 100, 200, 0];
        for pause in PAUSES {
            if self.is_there()? {
                return Ok(Look::There);
            }
            // The record of a complete run is stored before the plan is deleted.
            if self.is_complete()? {
                return Ok(Look::Complete);
            }
            std::thread::sleep(Duration::from_millis(pause));
        }
        Ok(Look::Gone)
    }

    /// Says that the plan is [`Look::Gone`].
    pub(super) fn gone(&self) -> String {
        format!(
            "the plan of {} was deleted or replaced while this part was made",
            self.place
        )
    }

    /// Returns whether the run is recorded as complete.
    pub(super) fn is_complete(&self) -> Result<bool, StorageError> {
        let done = self.store.get(&done_key()?)?;
        Ok(done.is_some_and(|done| done == self.bytes))
    }

    /// Calls `create`, which creates a shard, while the plan is stored. If the plan is replaced meanwhile, takes the
    /// shard back, so that the other run does not have it.
    ///
    /// # Errors
    /// The plan is gone, and the run is not complete; the errors of the store.
    pub(super) fn create(
        &self,
        create: impl FnOnce() -> Result<Option<Created>, StorageError>,
    ) -> Result<(), StorageError> {
        let gone = || StorageError::Other(self.gone());
        if self.look()? == Look::Gone {
            return Err(gone());
        }
        let created = create()?;
        // Another process that has completed the run has found this shard.
        if self.look()? != Look::Gone {
            return Ok(());
        }
        if let Some(created) = created {
            created.take_back()?;
        }
        Err(gone())
    }

    /// Gives `shard` its path, as [`create`](Self::create) does.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create).
    pub(crate) fn create_shard(&self, shard: ShardFile, index: &[u8]) -> Result<(), StorageError> {
        self.create(|| {
            let created = Created::file(shard.path(), shard.file())?;
            Ok(shard.create_shard(index)?.then_some(created))
        })
    }
}

/// A value that this process has created.
pub(super) enum Created {
    /// The file at this path, as it was when it was made.
    File(PathBuf, Metadata),
    /// An object. Another one may have its key by now, and stores do not compare before they delete.
    Object,
}

impl Created {
    pub(super) fn file(path: &Path, file: &File) -> io::Result<Self> {
        Ok(Self::File(path.to_path_buf(), file.metadata()?))
    }

    /// Deletes the file, unless another one has its path.
    fn take_back(self) -> io::Result<()> {
        let Self::File(path, made) = self else {
            return Ok(());
        };
        match fs::symlink_metadata(&path) {
            Ok(found) if is_same(&made, &found) => fs::remove_file(&path),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
