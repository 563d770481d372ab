//! Lets the names of files outlast a power failure: a file that is synced may still have no name until its
//! directory is synced, too.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use zarrs_storage::StoreKey;

use super::files::directory_of;
#[cfg(test)]
use zarrs_cuda_testing::stores::disk::Disk;

/// Syncs a directory of a store, so that the names in it are on the disk.
type Sync = Box<dyn Fn(&Path) -> io::Result<()> + Send + std::marker::Sync>;

/// The directories in which names were made or erased, and which were not synced since.
pub(crate) struct Names {
    sync: Sync,
    new: Mutex<BTreeSet<PathBuf>>,
    /// The lock that is held while directories are synced: a call must not return while another call syncs
    /// its names.
    syncing: Mutex<()>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names")
            .field("new", &self.new)
            .finish_non_exhaustive()
    }
}

impl Names {
    /// Returns the names of the values of `store`; `None` if these are not files, or the store syncs names
    /// itself.
    pub(crate) fn of<S: ?Sized + 'static>(store: &Arc<S>) -> Option<Self> {
        #[cfg(test)]
        if let Some(disk) = (store as &dyn std::any::Any).downcast_ref::<Arc<Disk>>() {
            let disk = disk.clone();
            return Some(Self::synced_by(move |directory| {
                disk.sync(directory);
                Ok(())
            }));
        }
        directory_of(store).map(Self::new)
    }

    /// Returns the names of the files below `root`.
    pub(crate) fn new(root: PathBuf) -> Self {
        Self::synced_by(move |directory| sync_directory(&root.join(directory)))
    }

    fn synced_by(
        sync: impl Fn(&Path) -> io::Result<()> + Send + std::marker::Sync + 'static,
    ) -> Self {
        Self {
            sync: Box::new(sync),
            new: Mutex::default(),
            syncing: Mutex::default(),
        }
    }

    /// Notes that the name of `key` was made or erased. The directories above it may be new, too.
    pub(crate) fn note(&self, key: &StoreKey) {
        let above = Path::new(key.as_str()).ancestors().skip(1);
        let mut new = self.new.lock().unwrap_or_else(PoisonError::into_inner);
        new.extend(above.map(Path::to_path_buf));
    }

    /// Syncs every name that was noted before the call. After an error, the next call tries the same names
    /// again.
    ///
    /// # Errors
    /// The error of the file system.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let _turn = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let take = || self.new.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = std::mem::take(&mut *take());
        // The deepest directories are synced first. So all names in a directory are on the disk before its
        // own name is.
        let synced = noted
            .iter()
            .rev()
            .try_for_each(|directory| (self.sync)(directory));
        if synced.is_err() {
            take().extend(noted);
        }
        synced
    }
}

/// Syncs the names in the directory of `path`.
///
/// # Errors
/// The error of the file system, unless another process has removed the directory.
pub(crate) fn sync_names_beside(path: &Path) -> io::Result<()> {
    let directory = match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    sync_directory(directory)
}

/// Syncs the names in `directory`.
///
/// # Errors
/// The error of the file system, unless another process has removed the directory.
#[cfg(unix)]
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory).and_then(|directory| directory.sync_all()) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        // Some file systems cannot sync directories.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Does nothing, because directories are not synced on this system.
#[cfg(not(unix))]
pub(crate) fn sync_directory(_directory: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    /// The first call has taken the names of the second one.
    #[test]
    fn no_call_returns_while_another_one_syncs_its_names() {
        let (begins, has_begun) = channel();
        let (ends, may_end) = channel();
        let may_end = Mutex::new(may_end);
        let names = Arc::new(Names::synced_by(move |directory| {
            if directory == Path::new("a") {
                begins.send(()).unwrap();
                may_end.lock().unwrap().recv().unwrap();
            }
            Ok(())
        }));
        names.note(&StoreKey::new("a/b").unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| names.sync().unwrap());
            has_begun.recv().unwrap();
            let second = scope.spawn(|| names.sync().unwrap());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!second.is_finished());
            ends.send(()).unwrap();
        });
    }

    #[test]
    fn names_that_were_not_synced_are_tried_again() {
        let synced = Arc::new(Mutex::new(Vec::new()));
        let names = {
            let synced = synced.clone();
            Names::synced_by(move |directory| {
                let mut synced = synced.lock().unwrap();
                synced.push(directory.to_path_buf());
                if synced.len() == 2 {
                    return Err(ErrorKind::Other.into());
                }
                Ok(())
            })
        };
        names.note(&StoreKey::new("a/c/0").unwrap());
        names.sync().unwrap_err();
        names.sync().unwrap();
        names.sync().unwrap();
        let expected = ["a/c", "a", "a/c", "a", ""];
        assert_eq!(*synced.lock().unwrap(), expected.map(PathBuf::from));
    }
}
