//! Finds the stored objects of an array by a listing.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use zarrs::array::ChunkKeyEncoding;
use zarrs_cuda::storage::LockFile;

use crate::failure::Failure;
use crate::open::{Opened, Place, is_missing, no_file};

/// The suffix of a directory beside a shard, in which subchunks wait until they are packed into the shard.
pub const FRAME: &str = ".frame";
/// The extension of the files of subchunks in such a directory.
const CHUNK: &str = "chunk";

/// The keys of an array's chunks or shards: they become indices, and indices become keys.
pub struct Keys<'a> {
    encoding: &'a ChunkKeyEncoding,
    rank: usize,
    /// The number of chunks along each axis.
    grid: &'a [u64],
}

impl<'a> Keys<'a> {
    pub fn new(encoding: &'a ChunkKeyEncoding, grid: &'a [u64]) -> Self {
        Self {
            encoding,
            rank: grid.len(),
            grid,
        }
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the key of the chunk with these indices.
    pub fn encode(&self, indices: &[u64]) -> String {
        self.encoding.encode(indices).as_str().to_string()
    }

    /// Returns the same grid with the key encoding `encoding`.
    #[must_use]
    pub fn spelled_as(&self, encoding: &'a ChunkKeyEncoding) -> Self {
        Self::new(encoding, self.grid)
    }

    /// Returns whether keys contain the indices in decimal digits, so that [`parse`](Self::parse) understands
    /// them.
    pub fn are_known(&self) -> bool {
        let indices: Vec<u64> = (0..self.rank as u64).map(|axis| 10 + axis).collect();
        self.parse(self.encoding.encode(&indices).as_str()).as_ref() == Some(&indices)
    }

    /// Returns the indices of the chunk with this key, even outside of the grid; `None` if the key is not a
    /// chunk's.
    pub fn parse(&self, key: &str) -> Option<Vec<u64>> {
        let numbers: Vec<u64> = key
            .split(|c: char| !c.is_ascii_digit())
            .filter(|digits| !digits.is_empty())
            .map(|digits| digits.parse().ok())
            .collect::<Option<_>>()?;
        // The prefix or suffix of a key may contain digits, too.
        let mut candidates = (0..=numbers.len().checked_sub(self.rank)?)
            .map(|first| &numbers[first..first + self.rank]);
        let indices = candidates.find(|indices| self.encoding.encode(indices).as_str() == key)?;
        Some(indices.to_vec())
    }

    /// Returns the indices of the chunk with this key; `None` if the key is not that of a chunk in the grid.
    pub fn in_grid(&self, key: &str) -> Option<Vec<u64>> {
        let indices = self.parse(key)?;
        let is_within = indices.iter().zip(self.grid).all(|(i, n)| i < n);
        is_within.then_some(indices)
    }

    /// Returns the indices of the shard in whose directory of waiting subchunks the key lies; `None` for
    /// other keys.
    pub fn framed(&self, key: &str) -> Option<Vec<u64>> {
        let (directory, name) = key.rsplit_once('/')?;
        let (_, kind) = name.rsplit_once('.')?;
        let shard = directory.strip_suffix(FRAME).filter(|_| kind == CHUNK)?;
        self.parse(shard)
    }
}

/// A stored object that a listing has found.
pub struct Object<'a> {
    pub key: &'a str,
    pub kind: ObjectKind<'a>,
}

pub enum ObjectKind<'a> {
    File(&'a fs::DirEntry),
    /// A directory. The listing finds the objects in it, too.
    Directory(&'a fs::DirEntry),
    /// A pipe, a socket or a device.
    Special(&'a fs::DirEntry),
    /// An object of a store that is no directory, and the object's size in bytes.
    Sized(u64),
}

impl Object<'_> {
    /// Returns the size in bytes; `None` if the object was deleted meanwhile. For a link, it is the size of
    /// the file to which the link leads.
    ///
    /// # Errors
    /// The file cannot be looked at, or the object is no file.
    pub fn size(&self) -> Result<Option<u64>, Failure> {
        match self.kind {
            ObjectKind::File(entry) => match fs::metadata(entry.path()) {
                Ok(found) => Ok(Some(found.len())),
                Err(error) if is_missing(&error) => Ok(None),
                Err(error) => {
                    let file = entry.path();
                    let file = file.display();
                    Err(Failure::failed(format!("cannot look at {file}: {error}")))
                }
            },
            ObjectKind::Directory(entry) | ObjectKind::Special(entry) => {
                Err(Failure::failed(no_file(&entry.path())))
            }
            ObjectKind::Sized(size) => Ok(Some(size)),
        }
    }
}

/// Calls `on_object` with each object of an array, in any order. Returns a failure for each directory that
/// cannot be read, and whose objects were not found.
///
/// # Errors
/// The store cannot be listed.
pub fn objects(
    opened: &Opened,
    mut on_object: impl FnMut(&Object<'_>),
) -> Result<Vec<Failure>, Failure> {
    let mut failures = Vec::new();
    match (&opened.place, &opened.stores.sizes) {
        (Place::Directory(root), _) => {
            let each = |key: String, kind: ObjectKind<'_>| {
                on_object(&Object { key: &key, kind });
                Ok(())
            };
            let failed = |problem: String| {
                let failure = Failure::failed(problem).with_remedy(
                    "see to it that this process may read it, and run the command again",
                );
                failures.push(failure);
                Ok(())
            };
            entries(root, each, failed).map_err(Failure::failed)?;
        }
        (Place::Url(_), Some(sizes)) => {
            let sizes = sizes().map_err(Failure::to(format_args!(
                "list the objects of {}",
                opened.place
            )))?;
            for (key, size) in sizes {
                let kind = ObjectKind::Sized(size);
                on_object(&Object { key: &key, kind });
            }
        }
        (Place::Url(_), None) => {
            return Err(Failure::failed(format!(
                "cannot list the objects of {}",
                opened.place
            )));
        }
    }
    Ok(failures)
}

/// Calls `on_file` with the key of each file in `root` and below, in any order. Follows links. Leaves out
/// names that are not UTF-8, which are no keys.
///
/// # Errors
/// A directory cannot be listed, or a link leads nowhere: a chunk may be missing there.
pub fn files(root: &Path, on_file: impl FnMut(String, &fs::DirEntry)) -> Result<(), String> {
    entries(root, files_to(on_file), Err)
}

/// Returns a function that calls `on_file` with the entries that are files.
fn files_to(
    mut on_file: impl FnMut(String, &fs::DirEntry),
) -> impl FnMut(String, ObjectKind<'_>) -> Result<(), String> {
    move |key, kind| {
        if let ObjectKind::File(entry) = kind {
            on_file(key, entry);
        }
        Ok(())
    }
}

/// Calls `on_file` with the key of each file that [`files`] finds in `root`, an array with the chunks `keys`.
///
/// # Errors
/// The errors of [`files`]; a directory, a pipe, a socket or a device has the key of a chunk.
pub fn files_of_array(
    root: &Path,
    keys: &Keys<'_>,
    mut on_file: impl FnMut(&str),
) -> Result<(), String> {
    let each = |key: String, kind: ObjectKind<'_>| {
        match kind {
            ObjectKind::File(_) => on_file(&key),
            ObjectKind::Directory(entry) | ObjectKind::Special(entry) => {
                if keys.in_grid(&key).is_some() {
                    return Err(no_file(&entry.path()));
                }
            }
            ObjectKind::Sized(_) => {}
        }
        Ok(())
    };
    entries(root, each, Err)
}

/// Calls `on_file` with each file that [`files`] finds. Skips directories and links that cannot be read.
pub fn readable_files(root: &Path, on_file: impl FnMut(String, &fs::DirEntry)) {
    let _ = entries(root, files_to(on_file), |_| Ok(())); // no failure ends the listing
}

/// Calls `on_entry` with each entry below `root` and its key, except for lock files. An error of `on_entry` ends the listing.
/// `failed` gets each failure to read: it returns `Ok` to go on, or an error to end the listing.
fn entries(
    root: &Path,
    mut on_entry: impl FnMut(String, ObjectKind<'_>) -> Result<(), String>,
    mut failed: impl FnMut(String) -> Result<(), String>,
) -> Result<(), String> {
    let mut directories: Vec<(PathBuf, String)> = vec![(root.to_path_buf(), String::new())];
    while let Some((directory, prefix)) = directories.pop() {
        let cannot = |error: &dyn std::fmt::Display| {
            format!("cannot list the directory {}: {error}", directory.display())
        };
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            // Another process has deleted the directory meanwhile, for example one of waiting subchunks.
            Err(error) if error.kind() == ErrorKind::NotFound && !prefix.is_empty() => continue,
            Err(error) => {
                failed(cannot(&error))?;
                continue;
            }
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    failed(cannot(&error))?;
                    break;
                }
            };
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let mut kind = match entry.file_type() {
                Ok(kind) => kind,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    failed(cannot(&error))?;
                    continue;
                }
            };
            if kind.is_symlink() {
                match end_of(&entry.path(), &directory) {
                    Ok(end) => kind = end,
                    // Skip hidden links that lead nowhere: editors leave them beside files, and no key of a
                    // chunk begins with a dot.
                    Err(_) if name.starts_with('.') => continue,
                    Err(reason) => {
                        failed(reason)?;
                        continue;
                    }
                }
            }
            let key = format!("{prefix}{name}");
            if kind.is_dir() {
                on_entry(key.clone(), ObjectKind::Directory(&entry))?;
                directories.push((entry.path(), key + "/"));
            } else if kind.is_file() && LockFile::is_key(&name) {
                // It is a part of no array.
            } else if kind.is_file() {
                on_entry(key, ObjectKind::File(&entry))?;
            } else {
                on_entry(key, ObjectKind::Special(&entry))?;
            }
        }
    }
    Ok(())
}

/// Checks that `directory` is not a link that leads back to a directory that contains the link.
///
/// # Errors
/// The link cannot be followed, or leads back.
pub fn ends_elsewhere(directory: &Path) -> Result<(), String> {
    let is_link = fs::symlink_metadata(directory).is_ok_and(|found| found.is_symlink());
    if is_link && let Some(parent) = directory.parent() {
        end_of(directory, parent)?;
    }
    Ok(())
}

/// Returns the type of the file to which `link`, in `directory`, leads.
///
/// # Errors
/// The reason: the link leads nowhere, or to a directory that contains the link.
fn end_of(link: &Path, directory: &Path) -> Result<fs::FileType, String> {
    let shown = link.display();
    let metadata = fs::metadata(link).map_err(|error| {
        let goal = fs::read_link(link).unwrap_or_default();
        format!(
            "the link {shown} to {} cannot be followed ({error}): restore what it leads to, or delete it",
            goal.display()
        )
    })?;
    if metadata.is_dir()
        && let (Ok(goal), Ok(from)) = (link.canonicalize(), directory.canonicalize())
        && from.starts_with(&goal)
    {
        return Err(format!(
            "the link {shown} leads back to {}, which contains it: delete it",
            goal.display()
        ));
    }
    Ok(metadata.file_type())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_files_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["c.__lock/0", "c/0/1", "c/0/1.__lock", "zarr.json.__lock"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let mut found = Vec::new();
        files(folder.path(), |key, _| found.push(key)).unwrap();
        found.sort();
        assert_eq!(found, ["c.__lock/0", "c/0/1"]);
    }
}
