//! The objects of an array, found by a listing.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use zarrs::array::ChunkKeyEncoding;

use crate::failure::Failure;
use crate::open::{Opened, Place, is_missing, no_file};

/// The suffix of the directory in which subchunks wait for a consolidation.
pub const FRAME: &str = ".frame";
/// The extension of the name of each subchunk in such a directory.
const CHUNK: &str = "chunk";

/// Understands the keys of an array's chunks, or shards.
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

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The key of the chunk with these indices.
    pub fn encode(&self, indices: &[u64]) -> String {
        self.encoding.encode(indices).as_str().to_string()
    }

    /// The same grid with other keys.
    #[must_use]
    pub fn spelled_as(&self, encoding: &'a ChunkKeyEncoding) -> Self {
        Self::new(encoding, self.grid)
    }

    /// Whether keys spell out indices in decimal digits, so that they can be understood.
    pub fn are_known(&self) -> bool {
        let indices: Vec<u64> = (0..self.rank as u64).map(|axis| 10 + axis).collect();
        self.parse(self.encoding.encode(&indices).as_str()).as_ref() == Some(&indices)
    }

    /// The indices of the chunk with this key, in the grid or not; `None` if it is no chunk's.
    pub fn parse(&self, key: &str) -> Option<Vec<u64>> {
        let numbers: Vec<u64> = key
            .split(|c: char| !c.is_ascii_digit())
            .filter(|digits| !digits.is_empty())
            .map(|digits| digits.parse().ok())
            .collect::<Option<_>>()?;
        // A prefix or suffix may have digits, too.
        let mut candidates = (0..=numbers.len().checked_sub(self.rank)?)
            .map(|first| &numbers[first..first + self.rank]);
        let indices = candidates.find(|indices| self.encoding.encode(indices).as_str() == key)?;
        Some(indices.to_vec())
    }

    /// The indices of the chunk with this key, if it is in the grid.
    pub fn in_grid(&self, key: &str) -> Option<Vec<u64>> {
        let indices = self.parse(key)?;
        let is_within = indices.iter().zip(self.grid).all(|(i, n)| i < n);
        is_within.then_some(indices)
    }

    /// The indices of the shard in whose frame the object with this key lies.
    pub fn framed(&self, key: &str) -> Option<Vec<u64>> {
        let (directory, name) = key.rsplit_once('/')?;
        let (_, kind) = name.rsplit_once('.')?;
        let shard = directory.strip_suffix(FRAME).filter(|_| kind == CHUNK)?;
        self.parse(shard)
    }
}

/// An object that a listing has found.
pub struct Object<'a> {
    pub key: &'a str,
    pub kind: ObjectKind<'a>,
}

pub enum ObjectKind<'a> {
    File(&'a fs::DirEntry),
    /// A directory, of which the objects are found, too.
    Directory(&'a fs::DirEntry),
    /// A pipe, a socket or a device.
    Special(&'a fs::DirEntry),
    /// An object of a store that is none of files, and its size in bytes.
    Sized(u64),
}

impl Object<'_> {
    /// The size in bytes; `None` if the object was erased meanwhile. A link has the size of the file to which it
    /// leads.
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

/// Calls `on_object` with each object of an array, in any order. Returns the directories that cannot be read:
/// nothing is known of what is in them.
///
/// # Errors
/// The store lists nothing.
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

/// The files in `root` and below, by their keys, in any order. Links are followed. Names that are not
/// UTF-8 are no keys.
///
/// # Errors
/// A directory that cannot be listed, or a link that leads nowhere: a chunk may be missing there.
pub fn files(root: &Path, on_file: impl FnMut(String, &fs::DirEntry)) -> Result<(), String> {
    entries(root, files_to(on_file), Err)
}

/// Hands on the files among entries.
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

/// The keys of [`files`] in an array with the chunks `keys`.
///
/// # Errors
/// As for [`files`], and a directory, a pipe, a socket or a device in the place of a chunk.
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

/// The files of [`files`], without those in directories and behind links that cannot be read.
pub fn readable_files(root: &Path, on_file: impl FnMut(String, &fs::DirEntry)) {
    let _ = entries(root, files_to(on_file), |_| Ok(())); // no failure ends it
}

/// The entries below `root`, by their keys. `on_entry` may end the listing. `failed` gets each problem of reading,
/// and goes on or ends the listing.
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
            // Another process has removed it since: a frame, for example.
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
                    // Editors leave such links beside files. No key of a chunk begins with a dot.
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
            } else if kind.is_file() {
                on_entry(key, ObjectKind::File(&entry))?;
            } else {
                on_entry(key, ObjectKind::Special(&entry))?;
            }
        }
    }
    Ok(())
}

/// Checks that `directory`, if it is a link, does not lead back to a directory that contains the link.
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

/// The kind of file to which a link in `directory` leads.
///
/// # Errors
/// Why it leads to none, or to a directory that contains the link.
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
