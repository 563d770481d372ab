//! Finds out which kind of node is at a place: an array, a group, or nothing. Unreadable metadata are an
//! error.
//!
//! "Is something here?" has three answers: yes, no, and unreadable. The third answer is an error of every
//! function here. Otherwise a caller would take a node that it cannot understand for nothing, and write over
//! it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use zarrs_cuda::maintenance::ArrayLease;
use zarrs_cuda::storage::LockFile;
use zarrs_storage::{StorageError, StoreKey};

use super::files::read_file;
use super::json::{Plain, plain};
use super::{Place, Store};
use crate::failure::Failure;

/// The kind of the node at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Array,
    Group,
    /// No metadata of a node are there, though there may be other files.
    Nothing,
}

/// A function that returns the contents of a file of metadata, `None` if the file does not exist, or the
/// reason why it cannot be read.
type Get<'a> = &'a dyn Fn(&str) -> Result<Option<Vec<u8>>, String>;

/// The files that make a place a node of Zarr, and the kind that each stands for.
const FILES: [(&str, Option<Kind>); 3] = [
    ("zarr.json", None), // `zarr.json` itself says which kind it is
    (".zarray", Some(Kind::Array)),
    (".zgroup", Some(Kind::Group)),
];

impl Kind {
    /// Returns whether an array or a group is there.
    pub fn is_node(self) -> bool {
        self != Self::Nothing
    }

    /// Returns the kind of the node at the root of the store at `place`.
    ///
    /// # Errors
    /// The store fails; metadata are no JSON, or belong to neither an array nor a group.
    pub fn of(store: &Store, place: &Place) -> Result<Self, Failure> {
        Self::below(store, "", place)
    }

    /// Returns the kind of the node whose keys begin with `prefix` in the store at `place`. `prefix` is empty
    /// or ends with a slash.
    ///
    /// # Errors
    /// The errors of [`of`](Self::of).
    pub fn below(store: &Store, prefix: &str, place: &Place) -> Result<Self, Failure> {
        let get = |name: &str| {
            let key = StoreKey::new(format!("{prefix}{name}")).map_err(StorageError::from);
            let value = key.and_then(|key| store.get(&key));
            value.map(|value| value.map(|value| value.to_vec()))
        };
        let get = |name: &str| get(name).map_err(|error| error.to_string());
        Self::by(&get, &|name| {
            place.join(&format!("{prefix}{name}")).to_string()
        })
    }

    /// Returns the kind of the node in the directory `path`, which need not exist.
    ///
    /// # Errors
    /// The errors of [`of`](Self::of); a file of metadata is a link to a file that does not exist.
    pub fn in_directory(path: &Path) -> Result<Self, Failure> {
        let get = |name: &str| match read_file(&path.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if is_absent(&error) && fs::symlink_metadata(path.join(name)).is_err() => {
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        };
        Self::by(&get, &|name| path.join(name).display().to_string())
    }

    /// Returns the kind, by the files that `get` returns. `shown` returns the path of a file for messages.
    fn by(get: Get<'_>, shown: &dyn Fn(&str) -> String) -> Result<Self, Failure> {
        for (name, kind) in FILES {
            let shown = shown(name);
            let bytes = get(name).map_err(|error| {
                Failure::failed(format!("cannot read {shown}: {error}"))
                    .with_remedy("nothing was written. Run the command again when it can be read")
            })?;
            let Some(bytes) = bytes else {
                continue;
            };
            let metadata = parsed(&bytes, &shown)?;
            if let Some(kind) = kind {
                return Ok(kind);
            }
            return match metadata["node_type"].as_str() {
                Some("array") => Ok(Self::Array),
                Some("group") => Ok(Self::Group),
                _ => Err(unreadable(
                    &shown,
                    &format!(
                        "its member `node_type` is {}, neither \"array\" nor \"group\"",
                        metadata.get("node_type").unwrap_or(&Value::Null)
                    ),
                )),
            };
        }
        Ok(Self::Nothing)
    }
}

/// Returns the metadata in the file `shown` as a JSON object, in which the numbers that JSON does not have
/// are strings.
///
/// # Errors
/// `bytes` are no JSON object. The message has the reason and the line.
pub fn parsed(bytes: &[u8], shown: &str) -> Result<Value, Failure> {
    let wrong = |reason: &str| unreadable(shown, reason);
    if bytes.is_empty() {
        return Err(wrong("it is empty"));
    }
    let text = str::from_utf8(bytes)
        .map_err(|error| wrong(&format!("byte {} is not UTF-8", error.valid_up_to())))?;
    let Plain { text, .. } = plain(text);
    let metadata: Value = serde_json::from_str(&text).map_err(|error| wrong(&error.to_string()))?;
    if !metadata.is_object() {
        return Err(wrong("it is JSON, but no object"));
    }
    Ok(metadata)
}

/// Returns the failure to understand the metadata in the file `shown`.
pub fn unreadable(shown: &str, reason: &str) -> Failure {
    Failure::failed(format!("cannot understand {shown}: {reason}")).with_remedy(
        "it is not taken for nothing, and nothing was written. Repair the file, or move it away if the \
         node is not needed",
    )
}

/// Returns the directories in `path` that are Zarr arrays, sorted.
///
/// # Errors
/// The directory cannot be listed; metadata in it cannot be read.
pub fn arrays_in(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let doing = format!("list the directory {}", path.display());
    let mut arrays = Vec::new();
    for entry in fs::read_dir(path).map_err(Failure::to(&doing))? {
        let path = entry.map_err(Failure::to(&doing))?.path();
        if is_array(&path)? {
            arrays.push(path);
        }
    }
    arrays.sort();
    Ok(arrays)
}

/// Returns whether `path` is a Zarr array, and not a group.
///
/// # Errors
/// The errors of [`Kind::in_directory`].
pub fn is_array(path: &Path) -> Result<bool, Failure> {
    Ok(Kind::in_directory(path)? == Kind::Array)
}

/// Returns whether `path` is a Zarr group.
///
/// # Errors
/// The errors of [`Kind::in_directory`].
pub fn is_group(path: &Path) -> Result<bool, Failure> {
    Ok(Kind::in_directory(path)? == Kind::Group)
}

/// Checks that `what` may be made in the directory `path`: `path` does not exist, or has only entries that
/// `is_ours` accepts.
///
/// # Errors
/// The directory has other entries, of which the error names one, or cannot be listed.
pub fn must_be_free(
    path: &Path,
    what: &str,
    is_ours: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    let cannot = |error: io::Error| {
        Failure::failed(format!(
            "cannot list the directory {}: {error}",
            path.display()
        ))
        .with_remedy("name another OUT")
    };
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(cannot(error)),
    };
    for entry in entries {
        let name = entry.map_err(cannot)?.file_name();
        let name = name.to_string_lossy();
        if !is_ours(&name) && !is_of_writer(&name) {
            return Err(foreign(&path.display().to_string(), &name, what));
        }
    }
    Ok(())
}

/// The directory of the plan and the marks of a run in parts.
pub const RUN: &str = ".zarrs-cuda-run";

/// Returns whether `key` names the plan or a mark of a run in parts, or the directory of both.
pub fn is_of_run(key: &str) -> bool {
    key.split('/').any(|name| name == RUN)
}

/// Returns whether `key`, which may be the name of a file, is a lease, a lock file, or the plan or a mark of a run in
/// parts. A writer makes these beside an array, and they are no part of the array.
pub fn is_of_writer(key: &str) -> bool {
    ArrayLease::is_key(key) || LockFile::is_key(key) || is_of_run(key)
}

/// Returns the failure to make `what` at `shown`, because `entry` is there.
pub(super) fn foreign(shown: &str, entry: &str, what: &str) -> Failure {
    Failure::failed(format!(
        "cannot make {what} in {shown}: it has other files, such as {entry}, and no metadata of Zarr"
    ))
    .with_remedy("name a directory that is empty, or not there yet")
}

/// Returns whether `error` says that a file does not exist, or that its directory does not.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
