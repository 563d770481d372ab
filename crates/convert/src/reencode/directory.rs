//! The output in a directory: its state, its marker, and its deletion.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use zarrs_cuda::maintenance::ArrayLease;
use zarrs_cuda::storage::{LockFile, Unfinished};

use super::found::{Found, INCOMPLETE, METADATA, is_part_of_chunk_key};
use super::same_run;
use crate::claim::{Claim, Refused, busy, must_have_ended};
use crate::failure::Failure;
use crate::open::{is_array, is_group, is_of_run, is_of_writer, read_file};
use crate::replace::KeptTemporaries;

/// Returns the state of the directory. A marker that `claim` has just made does not count. `is_of_parts`: whether a run
/// in parts makes an array or a group there.
pub(super) fn look(
    path: &Path,
    claim: Option<&Claim>,
    is_of_parts: bool,
) -> Result<Found, Failure> {
    let doing = format!("look at {}", path.display());
    let marker = path.join(INCOMPLETE);
    let is_new = claim.is_some_and(|claim| !claim.was_there());
    let mut others = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Found {
                is_empty: true,
                ..Found::default()
            });
        }
        Err(error) => return Err(Failure::to(&doing)(error)),
    };
    // Files of this program do not count: a temporary of the marker, from a run that was killed, a lease, and a lock
    // file.
    let other = others.find(|entry| {
        let name = entry.as_ref().map(fs::DirEntry::file_name);
        let is_ours = |name: &str| {
            let of = Unfinished::of(name).map(|file| file.name);
            of == Some(INCOMPLETE) || is_new && name == INCOMPLETE || is_of_writer(name)
        };
        !name.is_ok_and(|name| name.to_str().is_some_and(is_ours))
    });
    let is_empty = other.transpose().map_err(Failure::to(&doing))?.is_none();
    let marker = match read_file(&marker) {
        _ if is_new => None,
        Ok(marker) => Some(marker),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::to(&doing)(error)),
    };
    let (is_array, is_group) = (is_array(path)?, is_group(path)?);
    // Look for foreign files only in an array, beside a marker, and where a run in parts has begun: in a group, the
    // directories of arrays are no foreign files.
    let files = match () {
        () if is_array || marker.is_some() || is_of_parts => {
            files(path).map_err(Failure::to(&doing))?
        }
        () => Files::default(),
    };
    let values = files.files.iter().filter(|file| {
        let name = file.file_name().and_then(|name| name.to_str());
        file.parent() != Some(path) || name != Some(INCOMPLETE)
    });
    Ok(Found {
        is_empty,
        is_array,
        is_group,
        holds_values: values.count() > 0 || files.foreign.is_some(),
        foreign: files.foreign.map(|path| path.display().to_string()),
        marker,
    })
}

/// Takes the marker of the output, so that no other run writes there.
pub(super) fn claim(path: &Path) -> Result<Claim, Failure> {
    let shown = path.display();
    let marker = path.join(INCOMPLETE);
    let owner = || same_run::owner_of(&read_file(&marker).unwrap_or_default());
    let mut claim = Claim::take(&marker).map_err(|refused| match refused {
        Refused::Busy => busy(&shown, owner().as_ref()),
        Refused::Failed(error) => Failure::failed(format!("cannot make {shown} ready: {error}")),
    })?;
    // Read the owner from the marker, too: some file systems have no locks.
    let marker = claim
        .read()
        .map_err(Failure::to(format_args!("read {}", marker.display())))?;
    must_have_ended(same_run::owner_of(&marker).as_ref(), &shown)?;
    Ok(claim)
}

/// Deletes the array at `path`, and leaves an empty marker. Returns the temporaries that were not deleted.
pub(super) fn delete_array(path: &Path, claim: &mut Claim) -> Result<KeptTemporaries, Failure> {
    let doing = format!("empty {}", path.display());
    // Write the marker first: a half-deleted array must be recognised as an incomplete output.
    claim.write(b"").map_err(Failure::to(&doing))?;
    let mut files = files(path).map_err(Failure::to(&doing))?;
    let marker = path.join(INCOMPLETE);
    files.files.retain(|file| *file != marker);
    files.files.sort_by_key(|file| file.parent() != Some(path));
    for file in files.files {
        fs::remove_file(file).map_err(Failure::to(&doing))?;
    }
    let left = tidied(&files.temporaries).map_err(Failure::to(&doing))?;
    for lock in &files.locks {
        delete_lock(lock).map_err(Failure::to(&doing))?;
    }
    for directory in files.directories.iter().rev() {
        match fs::remove_dir(directory) {
            // A temporary of another process is left in the directory.
            Err(error) if !left.is_empty() && error.kind() == ErrorKind::DirectoryNotEmpty => {}
            removed => removed.map_err(Failure::to(&doing))?,
        }
    }
    Ok(left)
}

/// The files and directories in the directory of an array.
#[derive(Default)]
struct Files {
    /// The files that belong to the array.
    files: Vec<PathBuf>,
    temporaries: Vec<PathBuf>,
    /// Lock files, of writers that may run.
    locks: Vec<PathBuf>,
    /// The directories. Each comes before the directories in it.
    directories: Vec<PathBuf>,
    /// The first path that does not belong to an array.
    foreign: Option<PathBuf>,
}

fn files(path: &Path) -> io::Result<Files> {
    let mut found = Files::default();
    let mut directories = vec![path.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let file_type = entry.file_type()?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or("?");
            let is_kept = ArrayLease::is_key(name) || is_of_run(name);
            if is_kept && !file_type.is_symlink() {
                continue; // not a part of the array
            }
            if LockFile::is_key(name) && file_type.is_file() {
                found.locks.push(entry.path());
                continue;
            }
            let temporary = Unfinished::of(name);
            let name = temporary.as_ref().map_or(name, |file| file.name);
            let is_metadata = directory == path && METADATA.contains(&name);
            if file_type.is_dir() && is_part_of_chunk_key(name) {
                directories.push(entry.path());
            } else if !file_type.is_file() || !(is_metadata || is_part_of_chunk_key(name)) {
                found.foreign.get_or_insert_with(|| entry.path());
            } else if temporary.is_some() {
                found.temporaries.push(entry.path());
            } else {
                found.files.push(entry.path());
            }
        }
        if directory != path {
            found.directories.push(directory);
        }
    }
    Ok(found)
}

/// Deletes a lock file that no process has.
///
/// # Errors
/// [`ErrorKind::ResourceBusy`] if a process has the lock; otherwise the error of the file system.
fn delete_lock(lock: &Path) -> io::Result<()> {
    match LockFile::try_take(&lock.with_extension("")) {
        // The lock file is deleted with the lock.
        Ok(Some(taken)) => drop(taken),
        Ok(None) => {
            let what = format!(
                "another process writes there, and has the lock file {}",
                lock.display()
            );
            return Err(io::Error::new(ErrorKind::ResourceBusy, what));
        }
        // Without locks, no process has it.
        Err(error) if error.kind() == ErrorKind::Unsupported => return fs::remove_file(lock),
        Err(error) => return Err(error),
    }
    Ok(())
}

fn tidied(temporaries: &[PathBuf]) -> io::Result<KeptTemporaries> {
    let mut left = KeptTemporaries::default();
    for temporary in temporaries {
        left.tidy(temporary)?;
    }
    Ok(left)
}

/// Deletes the temporaries of runs that have ended, and returns the other temporaries. With `group`, the path
/// of a group, it looks only at temporaries of that group's metadata; without, at all in the array `root`.
pub(super) fn remove_temporaries(
    root: &Path,
    group: Option<&str>,
) -> Result<KeptTemporaries, Failure> {
    let path = group.map_or_else(|| root.to_path_buf(), |group| root.join(group));
    let temporaries = || {
        if group.is_none() {
            return Ok(files(&path)?.temporaries);
        }
        let entries = fs::read_dir(&path)?.map(|entry| Ok(entry?.path()));
        let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
        entries.retain(|entry| {
            let name = entry.file_name().and_then(|name| name.to_str());
            let file = name.and_then(Unfinished::of);
            file.is_some_and(|file| METADATA.contains(&file.name))
        });
        Ok(entries)
    };
    temporaries()
        .and_then(|temporaries| tidied(&temporaries))
        .map_err(Failure::to(format_args!("tidy {}", path.display())))
}

/// Returns the paths of the arrays and groups below `root`, relative to it.
pub(super) fn nodes_in(root: &Path) -> Result<BTreeSet<String>, Failure> {
    let cannot = |path: &Path, error: io::Error| {
        Failure::failed(format!(
            "cannot list the directory {}: {error}",
            path.display()
        ))
    };
    let mut found = BTreeSet::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries.map_err(|error| cannot(&directory, error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| cannot(&directory, error))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|error| cannot(&path, error))?;
            // A link to a directory is no part of an output, so nothing behind it will be deleted.
            if kind.is_symlink() {
                continue;
            }
            let is_array = is_array(&path)? || path.join(INCOMPLETE).is_file();
            if (is_array || is_group(&path)?)
                && let Ok(relative) = path.strip_prefix(root)
            {
                found.insert(relative.to_string_lossy().into_owned());
            }
            if kind.is_dir() && !is_array {
                directories.push(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lock files do not count, and are deleted with an array unless a process has them.
    #[test]
    fn lock_files_in_an_output() {
        let folder = tempfile::tempdir().unwrap();
        let array = folder.path().join("array");
        fs::create_dir(&array).unwrap();
        fs::write(array.join("zarr.json.__lock"), "").unwrap();
        assert!(look(&array, None, false).unwrap().is_empty);
        fs::create_dir_all(array.join("c/0")).unwrap();
        for name in ["c/0/1", "c/0/1.__lock", "c/0/2.__lock", "zarr.json"] {
            fs::write(
                array.join(name),
                r#"{ "zarr_format": 3, "node_type": "array" }"#,
            )
            .unwrap();
        }
        let found = look(&array, None, false).unwrap();
        assert!(!found.is_empty && found.foreign.is_none());
        let lock = LockFile::try_take(&array.join("c/0/2")).unwrap();
        let mut claim = claim(&array).unwrap();
        let busy = delete_array(&array, &mut claim).unwrap_err();
        assert!(format!("{busy:?}").contains("c/0/2.__lock"), "{busy:?}");
        drop(lock);
        delete_array(&array, &mut claim).unwrap();
        let left = fs::read_dir(&array).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [INCOMPLETE]);
    }
}
