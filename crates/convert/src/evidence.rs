//! Notes about an input when a run begins, so that a later run can tell whether the input is the same.
//!
//! Contents are not read. The evidence is the place of the input, its metadata, and the size and time of each
//! file, or the entity tag of each object. HTTP servers have no listing, so for them the evidence has only
//! the metadata.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use zarrs_storage::StoreKey;
#[cfg(feature = "remote")]
use zarrs_storage::{StorageError, StorePrefix};

use crate::failure::Failure;
use crate::open::{self, Place, Store, canonical, is_of_writer};
use crate::stored;
use crate::words::counted;

/// The files of metadata at the root of an input. The evidence compares their bytes, not their times.
const METADATA: [&str; 4] = ["zarr.json", ".zarray", ".zgroup", ".zattrs"];
/// The file that is a copy of other metadata, and is not a part of the evidence.
const CONSOLIDATED: &str = ".zmetadata";

/// The number of groups of keys, if there are more than twice as many keys. With fewer keys, each key is a
/// group.
const GROUPS: usize = 1 << 11;

/// The state of an input.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    place: String,
    metadata: u64,
    /// The sizes and versions of the files or objects, without the metadata at the root; `None` if the input
    /// cannot be listed.
    versions: Option<Versions>,
}

/// The sizes and versions of keys, in memory that does not grow with the number of keys.
#[derive(Clone, Debug, Default, PartialEq)]
struct Versions {
    /// For each group of keys, the sum of the hashes of the keys' sizes and versions. Each key is a group,
    /// named by the key's hash, until there are too many keys.
    sums: BTreeMap<u64, u64>,
    are_grouped: bool,
}

impl Versions {
    fn add(&mut self, key: u64, version: u64) {
        let group = self.group_of(key);
        let sum = self.sums.entry(group).or_default();
        *sum = sum.wrapping_add(version);
        if self.sums.len() > 2 * GROUPS && !self.are_grouped {
            *self = self.grouped();
        }
    }

    fn group_of(&self, key: u64) -> u64 {
        if self.are_grouped {
            key % GROUPS as u64
        } else {
            key
        }
    }

    fn grouped(&self) -> Self {
        let mut grouped = Self {
            sums: BTreeMap::new(),
            are_grouped: true,
        };
        for (&key, &version) in &self.sums {
            grouped.add(key, version);
        }
        grouped
    }
}

impl Evidence {
    /// Returns the evidence of the array at `place`, which `store` opens.
    pub(crate) fn of(place: &Place, store: &Store) -> Result<Self, Failure> {
        Self::with(place, store, |key| key)
    }

    /// Returns the evidence of the group at `place`, which `store` opens, with the arrays and groups
    /// `members` below it. It tells which member has changed, and not which chunk.
    pub(crate) fn of_group(
        place: &Place,
        store: &Store,
        members: &BTreeSet<&str>,
    ) -> Result<Self, Failure> {
        Self::with(place, store, |key| member_of(key, members))
    }

    /// Returns the evidence in which all keys with the same `name` count as one.
    fn with(place: &Place, store: &Store, name: impl Fn(&str) -> &str) -> Result<Self, Failure> {
        let doing = format!("look at {place}");
        let mut parts: Vec<Vec<u8>> = Vec::new();
        for file in METADATA {
            let key = StoreKey::new(file).map_err(Failure::to(&doing))?;
            let value = store.get(&key).map_err(Failure::to(&doing))?;
            parts.push(value.map_or_else(Vec::new, |value| value.to_vec()));
        }
        let mut versions = Versions::default();
        let add = |key: &str, size: u64, version: &str| {
            if !METADATA.contains(&key) && key != CONSOLIDATED && !is_of_writer(key) {
                let version = hash([key.as_bytes(), &size.to_le_bytes(), version.as_bytes()]);
                versions.add(hash([name(key).as_bytes()]), version);
            }
        };
        let are_listed = match place {
            Place::Directory(path) => files(path, add).map_err(Failure::failed).map(|()| true)?,
            Place::Url(url) if place.is_zip() => {
                open::objects_in_zip(place, url, add)?;
                true
            }
            Place::Url(url) => objects(place, url, add)?,
        };
        Ok(Self {
            place: self::name(place),
            metadata: hash(parts.iter().map(Vec::as_slice)),
            versions: are_listed.then_some(versions),
        })
    }

    pub(crate) fn json(&self) -> Value {
        let versions = self.versions.as_ref().map(|versions| {
            let mut text = String::with_capacity(32 * versions.sums.len());
            for (group, sum) in &versions.sums {
                text += &format!("{group:016x}{sum:016x}");
            }
            text
        });
        json!({
            "place": self.place,
            "metadata": format!("{:016x}", self.metadata),
            "versions": versions,
            "are_grouped": self.versions.as_ref().is_some_and(|versions| versions.are_grouped),
        })
    }

    /// Returns the evidence from the JSON that [`json`](Self::json) made; `None` if it is not understood.
    pub(crate) fn from_json(noted: &Value) -> Option<Self> {
        let hash = |text: &str| u64::from_str_radix(text, 16).ok();
        let versions = match &noted["versions"] {
            Value::Null => None,
            versions => {
                let text = versions.as_str()?.as_bytes();
                let pairs = text.chunks(32).map(|pair| {
                    let (group, sum) = std::str::from_utf8(pair).ok()?.split_at_checked(16)?;
                    Some((hash(group)?, hash(sum)?))
                });
                Some(Versions {
                    sums: pairs.collect::<Option<_>>()?,
                    are_grouped: noted["are_grouped"].as_bool()?,
                })
            }
        };
        Some(Self {
            place: noted["place"].as_str()?.to_string(),
            metadata: hash(noted["metadata"].as_str()?)?,
            versions,
        })
    }

    /// Returns the reason why `now` is the evidence of another input; `None` if it is the same input, though
    /// its chunks may have been written since.
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

    /// Returns the keys that were written or deleted between this evidence and `now`; `None` if there are
    /// none, or if that is not known.
    pub(crate) fn changes(&self, now: &Self) -> Option<Changes> {
        let (Some(was), Some(is)) = (&self.versions, &now.versions) else {
            return None;
        };
        let both = if was.are_grouped == is.are_grouped {
            [was.clone(), is.clone()]
        } else {
            [was.grouped(), is.grouped()]
        };
        let [was, is] = both.each_ref().map(|versions| &versions.sums);
        let groups = was.keys().chain(is.keys()).copied();
        let changed: BTreeMap<_, _> = groups
            .filter(|group| was.get(group) != is.get(group))
            .map(|group| (group, 0))
            .collect();
        (!changed.is_empty()).then(|| {
            Changes(Versions {
                sums: changed,
                are_grouped: both[0].are_grouped,
            })
        })
    }
}

/// The keys of an input that were written or deleted since a run began.
#[derive(Clone, Debug)]
pub(crate) struct Changes(Versions);

impl Changes {
    /// Returns whether the key or the member `name` was written or deleted. Also returns true if another key
    /// of the same group was.
    pub(crate) fn has(&self, name: &str) -> bool {
        let group = self.0.group_of(hash([name.as_bytes()]));
        self.0.sums.contains_key(&group)
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.sums.len();
        if self.0.are_grouped {
            write!(f, "chunks in {count} of {GROUPS} groups of chunks")
        } else {
            f.write_str(&counted(count as u64, "chunk"))
        }
    }
}

/// Returns the deepest member in which `key` lies.
fn member_of<'a>(key: &'a str, members: &BTreeSet<&str>) -> &'a str {
    let mut path = key;
    while let Some((parent, _)) = path.rsplit_once('/') {
        if members.contains(parent) {
            return parent;
        }
        path = parent;
    }
    ""
}

/// Calls `on_file` with each key in `root`, its size, and its time, which changes with its contents.
fn files(root: &Path, mut on_file: impl FnMut(&str, u64, &str)) -> Result<(), String> {
    let mut failed = None;
    // The evidence leaves out directories that cannot be listed: another check reports them.
    stored::readable_files(root, |key, entry| {
        let found = fs::metadata(entry.path()).and_then(|found| {
            let time = found.modified()?;
            let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok((found.len(), time.as_nanos()))
        });
        match found {
            Ok((size, time)) => on_file(&key, size, &time.to_string()),
            Err(error) => {
                let path = entry.path();
                failed = Some(format!("cannot look at {}: {error}", path.display()));
            }
        }
    });
    failed.map_or(Ok(()), Err)
}

/// Calls `on_object` with each key at `place`, its size and its version. Returns whether the store can be
/// listed.
#[cfg(feature = "remote")]
fn objects(
    place: &Place,
    url: &str,
    mut on_object: impl FnMut(&str, u64, &str),
) -> Result<bool, Failure> {
    if place.is_http() {
        return Ok(false);
    }
    let remote = crate::remote::open(place, url)?;
    let listed = remote.for_each_object(&StorePrefix::root(), |object| {
        // If the server gives no entity tag, the time of the last change is the version.
        let time = || object.last_modified.to_rfc3339();
        let version = object.e_tag.clone().unwrap_or_else(time);
        on_object(object.location.as_ref(), object.size, &version);
    });
    match listed {
        Ok(()) => Ok(true),
        Err(StorageError::Unsupported(_)) => Ok(false),
        Err(error) => Err(Failure::failed(format!(
            "cannot list the objects of {place}: {error}"
        ))),
    }
}

#[cfg(not(feature = "remote"))]
#[allow(clippy::unnecessary_wraps, reason = "as with the feature")]
fn objects(
    _place: &Place,
    _url: &str,
    _on_object: impl FnMut(&str, u64, &str),
) -> Result<bool, Failure> {
    Ok(false)
}

/// Returns the name of a place that is the same wherever the process runs on a machine.
pub(crate) fn name(place: &Place) -> String {
    match place {
        Place::Directory(path) => canonical(path).to_string_lossy().into_owned(),
        Place::Url(_) => place.to_string().trim_end_matches('/').to_string(),
    }
}

/// Returns the FNV-1a hash of `parts` and their sizes. Markers have this hash, so every version of the
/// program must return the same one.
pub(crate) fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    parts.into_iter().fold(BASIS, |hash, part| {
        let size = (part.len() as u64).to_le_bytes();
        part.iter().fold(size.iter().fold(hash, step), step)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use super::{Evidence, GROUPS, Versions, hash};
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
        fs::write(array.join("c/0/0.__lock"), "").unwrap();
        let changes = before.changes(&of(&array)).unwrap();
        assert!(changes.has("c/0/0") && !changes.has("c/0/2"));
        assert_eq!(changes.to_string(), "1 chunk");
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

    /// Each change of many keys is seen, and few other keys are taken for changed.
    #[test]
    fn many_keys_take_no_more_memory() {
        let of = |count: u64, changed: Option<u64>| {
            let mut versions = Versions::default();
            for number in 0..count {
                let key = hash([number.to_string().as_bytes()]);
                let version = u64::from(Some(number) == changed);
                versions.add(key, hash([&key.to_le_bytes()[..], &version.to_le_bytes()]));
            }
            assert!(versions.sums.len() <= 2 * GROUPS);
            Evidence {
                place: String::new(),
                metadata: 0,
                versions: Some(versions),
            }
        };
        let many = 4 * GROUPS as u64;
        let before = Evidence::from_json(&of(many, None).json()).unwrap();
        assert!(before.changes(&of(many, None)).is_none());
        for now in [of(many, Some(5)), of(many + 1, None), of(3, None)] {
            assert!(before.changes(&now).is_some() && now.changes(&before).is_some());
        }
        let changes = before.changes(&of(many, Some(5))).unwrap();
        let taken = (0..many).filter(|number| changes.has(&number.to_string()));
        let taken: Vec<_> = taken.collect();
        assert!(taken.contains(&5) && taken.len() < 30, "{taken:?}");
    }

    #[test]
    fn members_of_a_group_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let members = ["", "a", "g", "g/b"].into_iter().collect();
        for member in ["a", "g/b"] {
            fs::create_dir_all(folder.path().join(member).join("c")).unwrap();
            fs::write(folder.path().join(member).join("c/0"), member).unwrap();
        }
        let place = Place::Directory(folder.path().to_path_buf());
        let store = open::store(&place).unwrap().store;
        let now = || Evidence::of_group(&place, &*store, &members).unwrap();
        let before = now();
        assert!(before.changes(&now()).is_none());
        fs::remove_file(folder.path().join("g/b/c/0")).unwrap();
        let changes = before.changes(&now()).unwrap();
        assert!(changes.has("g/b") && !changes.has("a") && !changes.has("g"));
    }
}
