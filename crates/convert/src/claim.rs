//! The marker of an incomplete output, which one process at a time holds.
//!
//! The process has an advisory lock on the marker. The system takes the lock away when the process ends,
//! however it ends.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use zarrs_cuda::storage::{Life, Owner};

use crate::failure::Failure;
use zarrs_cuda::storage::{Durable, NewFile};

/// A marker that this process holds.
pub(crate) struct Claim {
    file: File,
    path: PathBuf,
    /// The marker was not there before. It is deleted unless something is written to it.
    is_new: bool,
    /// Directories that were made for the marker, the deepest first.
    made: Vec<PathBuf>,
}

/// Why a marker cannot be held.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Another process holds it.
    Busy,
    Failed(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Claim {
    /// Takes the marker at `path`. Makes it, empty, if there is none, and the directories that it needs.
    pub(crate) fn take(path: &Path) -> Result<Self, Refused> {
        let made = made_directories(path.parent())?;
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            let (file, is_new) = match options.clone().create_new(true).open(path) {
                Ok(file) => (file, true),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    match options.open(path) {
                        Err(error) if error.kind() == ErrorKind::NotFound => continue,
                        opened => (opened?, false),
                    }
                }
                Err(error) => {
                    remove(&made);
                    return Err(error.into());
                }
            };
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(Refused::Busy),
                // Some file systems have no locks: there the owner that the marker names has to do.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            // The process that held it may have replaced or deleted it in between.
            if is_at(&file, path) {
                let path = path.to_path_buf();
                return Ok(Self {
                    file,
                    path,
                    is_new,
                    made,
                });
            }
        }
    }

    /// Whether the marker was there before it was taken.
    pub(crate) fn was_there(&self) -> bool {
        !self.is_new
    }

    /// The bytes of the marker.
    pub(crate) fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file.rewind()?;
        self.file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Replaces the marker at once. This process goes on holding it.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let temporary = NewFile::beside(&self.path)?;
        let file = temporary.file().try_clone()?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(ErrorKind::WouldBlock.into()),
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        temporary.file().write_all(bytes)?;
        temporary.rename_to(&self.path, Durable::Bytes)?;
        self.file = file;
        self.keep();
        Ok(())
    }

    /// The marker stays when the process ends.
    pub(crate) fn keep(&mut self) {
        self.is_new = false;
        self.made.clear();
    }

    /// Deletes the marker.
    pub(crate) fn remove(mut self) -> io::Result<()> {
        self.keep();
        fs::remove_file(&self.path)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_new {
            let _ = fs::remove_file(&self.path); // the reason to give up is the one to tell
            remove(&self.made);
        }
    }
}

/// Checks that the process `owner`, which a marker names, does not run. Some file systems have no locks.
pub(crate) fn must_have_ended(
    owner: Option<&Owner>,
    shown: &dyn fmt::Display,
) -> Result<(), Failure> {
    match owner {
        Some(owner) if owner != Owner::this() && owner.life() == Life::Runs => {
            Err(busy(shown, Some(owner)))
        }
        _ => Ok(()),
    }
}

/// Another run writes the output at `shown`.
pub(crate) fn busy(shown: &dyn fmt::Display, owner: Option<&Owner>) -> Failure {
    let whose = owner.map_or(String::new(), |owner| {
        format!(", by the process {} of this machine", owner.process())
    });
    Failure::failed(format!("{shown} is being written{whose}"))
        .with_remedy("wait until that run has ended, or name another OUT")
}

/// Makes `directory` and those above it. Returns the ones that were not there, the deepest first.
fn made_directories(directory: Option<&Path>) -> io::Result<Vec<PathBuf>> {
    let mut missing = Vec::new();
    let mut next = directory.filter(|path| !path.as_os_str().is_empty());
    while let Some(path) = next
        && !path.try_exists()?
    {
        missing.push(path.to_path_buf());
        next = path.parent().filter(|path| !path.as_os_str().is_empty());
    }
    if let Some(directory) = missing.first()
        && let Err(error) = fs::create_dir_all(directory)
    {
        remove(&missing);
        return Err(error);
    }
    Ok(missing)
}

/// Removes directories that are empty, the deepest first.
fn remove(directories: &[PathBuf]) {
    for directory in directories {
        if fs::remove_dir(directory).is_err() {
            break; // another process has put something there
        }
    }
}

/// Whether `path` is the name of the open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => id(open) == id(named),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::{Claim, Refused};

    #[test]
    fn one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/marker");
        let busy = || matches!(Claim::take(&path), Err(Refused::Busy));
        let claim = Claim::take(&path).unwrap();
        assert!(!claim.was_there() && busy());
        drop(claim);
        assert!(!folder.path().join("deep").exists(), "nothing was done");

        let mut claim = Claim::take(&path).unwrap();
        claim.write(b"a run").unwrap();
        assert!(busy());
        claim.write(b"the run").unwrap();
        assert!(busy());
        drop(claim);
        let mut claim = Claim::take(&path).unwrap();
        assert!(claim.was_there());
        assert_eq!(claim.read().unwrap(), b"the run");
        claim.remove().unwrap();
        assert!(folder.path().join("deep/er").exists() && !path.exists());
    }
}
