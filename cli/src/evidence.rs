//! Notes about an input when a run begins, so that a later run can tell whether it is the same.
//!
//! Contents are not read. The evidence is the place of the input, its metadata, and the size and time of
//! each file, or the entity tag of each object. HTTP servers list nothing: only the metadata count there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use zarrs_storage::StoreKey;

use crate::failure::Failure;
use crate::inspect::stored;
use crate::open::{Place, Store};

/// The metadata at the root of an input. They are compared by their bytes, not by their times.
const METADATA: [&str; 4] = ["zarr.json", ".zarray", ".zgroup", ".zattrs"];
/// A copy of other metadata.
const CONSOLIDATED: &str = ".zmetadata";

/// The state of an input.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    place: String,
    metadata: u64,
    /// The files or objects of the input, without the metadata at its root. `None` if they cannot be listed.
    versions: Option<Versions>,
    /// Their keys. An evidence that was noted does not have them.
    keys: Vec<String>,
}

/// The hash of the size and version of each key, by the hash of the key.
type Versions = BTreeMap<u64, u64>;

impl Evidence {
    /// The evidence of the array or group at `place`, which `store` opens.
    pub(crate) fn of(place: &Place, store: &Store) -> Result<Self, Failure> {
        let cannot = |error: &dyn std::fmt::Display| {
            Failure::failed(format!("cannot look at {place}: {error}"))
        };
        let mut parts: Vec<Vec<u8>> = Vec::new();
        for name in METADATA {
            let key = StoreKey::new(name).map_err(|error| cannot(&error))?;
            let value = store.get(&key).map_err(|error| cannot(&error))?;
            parts.push(value.map_or_else(Vec::new, |value| value.to_vec()));
        }
        let objects = match place {
            Place::Directory(path) => Some(files(path).map_err(Failure::failed)?),
            Place::Url(url) => objects(place, url)?,
        };
        let mut keys = Vec::new();
        let versions = objects.map(|objects| {
            let mut versions = Versions::new();
            for (key, size, version) in objects {
                if METADATA.contains(&&*key) || key == CONSOLIDATED {
                    continue;
                }
                let version = hash([&size.to_le_bytes()[..], version.as_bytes()]);
                versions.insert(hash([key.as_bytes()]), version);
                keys.push(key);
            }
            versions
        });
        Ok(Self {
            place: match place {
                Place::Directory(path) => canonical(path).to_string_lossy().into_owned(),
                Place::Url(_) => place.to_string().trim_end_matches('/').to_string(),
            },
            metadata: hash(parts.iter().map(Vec::as_slice)),
            versions,
            keys,
        })
    }

    pub(crate) fn json(&self) -> Value {
        let versions = self.versions.as_ref().map(|versions| {
            let mut text = String::with_capacity(32 * versions.len());
            for (key, version) in versions {
                text += &format!("{key:016x}{version:016x}");
            }
            text
        });
        json!({
            "place": self.place,
            "metadata": format!("{:016x}", self.metadata),
            "versions": versions,
        })
    }

    /// The evidence that [`json`](Self::json) noted.
    pub(crate) fn from_json(noted: &Value) -> Option<Self> {
        let hash = |text: &str| u64::from_str_radix(text, 16).ok();
        let versions = match &noted["versions"] {
            Value::Null => None,
            versions => {
                let text = versions.as_str()?.as_bytes();
                let pairs = text.chunks(32).map(|pair| {
                    let (key, version) = std::str::from_utf8(pair).ok()?.split_at_checked(16)?;
                    Some((hash(key)?, hash(version)?))
                });
                Some(pairs.collect::<Option<Versions>>()?)
            }
        };
        Some(Self {
            place: noted["place"].as_str()?.to_string(),
            metadata: hash(noted["metadata"].as_str()?)?,
            versions,
            keys: Vec::new(),
        })
    }

    /// Why the input `now` is not the one of this evidence; `None` if it is the same, though its chunks
    /// may have been written since.
    pub(crate) fn difference(&self, now: &Self) -> Option<String> {
        if self.place != now.place {
            return Some(format!("IN was {}, and is {}", self.place, now.place));
        }
        if self.metadata != now.metadata {
            return Some(format!("the metadata of {} were changed since", self.place));
        }
        if self.versions.is_some() && now.versions.is_none() {
            return Some(format!(
                "the objects of {} could be listed, and cannot be now, so which of them were written since \
                 is not known",
                self.place
            ));
        }
        None
    }

    /// The keys that were written or deleted in the input since this evidence was noted; `None` if none were, or
    /// if that is not known.
    pub(crate) fn changes(&self, now: &Self) -> Option<Changes> {
        let (Some(was), Some(is)) = (&self.versions, &now.versions) else {
            return None;
        };
        let changed: BTreeSet<u64> = was
            .keys()
            .chain(is.keys())
            .copied()
            .filter(|key| was.get(key) != is.get(key))
            .collect();
        if changed.is_empty() {
            return None;
        }
        let keys = now.keys.iter();
        let written = keys.filter(|key| changed.contains(&hash([key.as_bytes()])));
        Some(Changes {
            written: written.cloned().collect(),
            deleted: was.keys().filter(|key| !is.contains_key(key)).count(),
            changed,
        })
    }
}

/// The keys of an input that were written or deleted since a run began.
#[derive(Clone, Debug)]
pub(crate) struct Changes {
    /// Their hashes.
    changed: BTreeSet<u64>,
    /// The changed keys that are there.
    written: Vec<String>,
    deleted: usize,
}

impl Changes {
    /// Whether this key was written or deleted.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.changed.contains(&hash([key.as_bytes()]))
    }

    /// Whether a key below `path` was written, or may have been deleted.
    pub(crate) fn are_below(&self, path: &str) -> bool {
        let below = |key: &String| {
            key.strip_prefix(path)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        self.deleted > 0 || self.written.iter().any(below)
    }

    /// How many keys were written or deleted.
    pub(crate) fn len(&self) -> usize {
        self.changed.len()
    }
}

/// Keys, with their sizes and what changes with their contents.
type Objects = Vec<(String, u64, String)>;

fn files(root: &Path) -> Result<Objects, String> {
    let mut objects = Objects::new();
    let mut failed = None;
    // A directory that cannot be listed has no versions: another check says so.
    stored::readable_files(root, |key, entry| {
        let found = fs::metadata(entry.path()).and_then(|found| {
            let time = found.modified()?;
            let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok((found.len(), time.as_nanos()))
        });
        match found {
            Ok((size, time)) => objects.push((key, size, time.to_string())),
            Err(error) => {
                let path = entry.path();
                failed = Some(format!("cannot look at {}: {error}", path.display()));
            }
        }
    });
    failed.map_or(Ok(objects), Err)
}

#[cfg(feature = "remote")]
fn objects(place: &Place, url: &str) -> Result<Option<Objects>, Failure> {
    if place.is_http() {
        return Ok(None);
    }
    let remote = crate::remote::Remote::open(place, url)?;
    match remote.versions() {
        Ok(versions) => Ok(Some(versions)),
        Err(zarrs_storage::StorageError::Unsupported(_)) => Ok(None),
        Err(error) => Err(Failure::failed(format!(
            "cannot list the objects of {place}: {error}"
        ))),
    }
}

#[cfg(not(feature = "remote"))]
#[allow(clippy::unnecessary_wraps, reason = "as with the feature")]
fn objects(_place: &Place, _url: &str) -> Result<Option<Objects>, Failure> {
    Ok(None)
}

/// The FNV-1a hash of `parts` and their sizes. It stays the same from version to version.
pub(crate) fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    parts.into_iter().fold(BASIS, |hash, part| {
        let size = (part.len() as u64).to_le_bytes();
        part.iter().fold(size.iter().fold(hash, step), step)
    })
}

/// The path without `..` and symbolic links, whether it exists or not.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(path), _, _) => path,
        (Err(_), Some(parent), Some(name)) => canonical(parent).join(name),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use super::Evidence;
    use crate::open::{self, Place};

    fn of(path: &Path) -> Evidence {
        let place = Place::Directory(path.to_path_buf());
        Evidence::of(&place, &*open::store(&place).unwrap().store).unwrap()
    }

    #[test]
    fn every_change_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let [array, other] = ["array", "other"].map(|name| folder.path().join(name));
        fs::create_dir_all(array.join("c/0")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(array.join("zarr.json"), "{}").unwrap();
        let chunk = array.join("c/0/0");
        fs::write(&chunk, "1234").unwrap();
        fs::write(array.join("c/0/2"), "1234").unwrap();
        let before = Evidence::from_json(&of(&array).json()).unwrap();
        assert_eq!(before.difference(&of(&array.join("../array"))), None);
        fs::write(array.join("zarr.json"), "{}").unwrap();
        fs::write(array.join(".zmetadata"), "{}").unwrap();
        assert!(before.changes(&of(&array)).is_none());
        let moved = before.difference(&of(&other)).unwrap();
        assert!(
            moved.contains("and is") && moved.contains("other"),
            "{moved}"
        );

        let time = fs::metadata(&chunk).unwrap().modified().unwrap();
        let set = |time: SystemTime| {
            let file = fs::File::options().write(true).open(&chunk).unwrap();
            file.set_modified(time).unwrap();
        };
        fs::write(&chunk, "4321").unwrap();
        set(time + Duration::from_millis(1));
        let changes = before.changes(&of(&array)).unwrap();
        assert!(changes.has("c/0/0") && !changes.has("c/0/2") && changes.len() == 1);
        assert!(changes.are_below("c/0") && !changes.are_below("c/1"));
        set(time);
        assert!(before.changes(&of(&array)).is_none());
        fs::write(array.join("c/0/1"), "").unwrap();
        fs::remove_file(&chunk).unwrap();
        let changes = before.changes(&of(&array)).unwrap();
        assert!(changes.has("c/0/0") && changes.has("c/0/1") && !changes.has("c/0/2"));
        assert_eq!(before.difference(&of(&array)), None);
        fs::write(array.join("zarr.json"), "{ }").unwrap();
        let difference = before.difference(&of(&array)).unwrap();
        assert!(difference.contains("metadata"), "{difference}");
    }
}
