//! Names that outlast a power failure: a file that is synced may still have no name, until its directory is
//! synced, too.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use zarrs_storage::StoreKey;

/// Directories with names that were made, and are not known to be on the disk.
#[derive(Debug)]
pub(crate) struct Names {
    root: PathBuf,
    new: Mutex<BTreeSet<PathBuf>>,
}

impl Names {
    /// The names of the files below `root`.
    pub(crate) fn new(root: PathBuf) -> Self {
        let new = Mutex::default();
        Self { root, new }
    }

    /// Note that the name of `key` was made, or erased. The directories above it may be new, too.
    pub(crate) fn note(&self, key: &StoreKey) {
        let above = Path::new(key.as_str()).ancestors().skip(1);
        let mut new = self.new.lock().unwrap_or_else(PoisonError::into_inner);
        new.extend(above.map(Path::to_path_buf));
    }

    /// Let the disk have every name that was noted before the call. After an error they are tried again.
    ///
    /// # Errors
    /// The error of the file system.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let take = || self.new.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = std::mem::take(&mut *take());
        // The deepest first: a directory that is on the disk has all of its names.
        let synced = noted
            .iter()
            .rev()
            .try_for_each(|directory| sync_directory(&self.root.join(directory)));
        if synced.is_err() {
            take().extend(noted);
        }
        synced
    }
}

/// Let the disk know which names there are beside `path`.
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

/// Let the disk know which names there are in `directory`.
///
/// # Errors
/// The error of the file system, unless another process has removed the directory.
#[cfg(unix)]
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory).and_then(|directory| directory.sync_all()) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        // Some file systems sync no directories.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Nothing: directories are not synced on this system.
#[cfg(not(unix))]
pub(crate) fn sync_directory(_directory: &Path) -> io::Result<()> {
    Ok(())
}
