//! The marker file of an incomplete output. One process at a time holds the marker.
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
    /// Whether this process made the marker. Then dropping the claim deletes it, unless something was written
    /// to it.
    is_new: bool,
    /// The directories that were made for the marker, the deepest first.
    made: Vec<PathBuf>,
}

/// The reason why the marker cannot be taken.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Another process holds the marker.
    Busy,
    Failed(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Claim {
    /// Takes the marker at `path`. Makes an empty marker and its directories if there are none.
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
                // On file systems without locks, only the process that the marker names tells whether a run
                // writes the output.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            // The process that held the marker may have replaced or deleted it before this process got the
            // lock.
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

    /// Returns whether the marker existed before this process took it.
    pub(crate) fn was_there(&self) -> bool {
        !self.is_new
    }

    /// Returns the bytes of the marker file, from its start.
    pub(crate) fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file.rewind()?;
        self.file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Replaces the contents of the marker in one step. This process still holds the marker.
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

    /// Makes the marker stay when the claim is dropped.
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
            let _ = fs::remove_file(&self.path); // the caller reports the reason for giving up
            remove(&self.made);
        }
    }
}

/// Checks that the process `owner`, which a marker names, has ended. This check serves file systems without
/// locks.
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

/// Returns the error that another run, of the process `owner`, writes the output at `shown`.
pub(crate) fn busy(shown: &dyn fmt::Display, owner: Option<&Owner>) -> Failure {
    let whose = owner.map_or(String::new(), |owner| {
        format!(", by the process {} of this machine", owner.process())
    });
    Failure::failed(format!("{shown} is being written{whose}"))
        .with_remedy("wait until that run has ended, or name another OUT")
}

/// Makes `directory` and the directories above it. Returns the directories that this call made, the deepest
/// first.
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

/// Removes those of `directories` that are empty. The deepest comes first.
fn remove(directories: &[PathBuf]) {
    for directory in directories {
        if fs::remove_dir(directory).is_err() {
            break; // another process has put something there
        }
    }
}

/// Returns whether `path` names the open file `file`, and not another file that has replaced it.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => is_same(&open, &named),
        _ => false,
    }
}

/// Returns whether both are of one file.
#[cfg(unix)]
pub(crate) fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

/// Returns false: the system does not tell.
#[cfg(not(unix))]
pub(crate) fn is_same(_one: &fs::Metadata, _other: &fs::Metadata) -> bool {
    false
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
