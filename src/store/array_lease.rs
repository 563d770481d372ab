//! Says which leases of an array exclude each other.
//!
//! The name of a lease says what its owner does. On files, a lease lies beside the metadata of the array; on
//! objects, in a folder of its own there, which one request lists. Each process makes its own lease first,
//! and then looks at the leases of others. So of two processes that begin at the same moment, at least one
//! sees the other's lease and is refused. Both may be refused.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use zarrs::node::{NodePath, meta_key_v3};
use zarrs_storage::{StorageError, StoreKey, StorePrefix};

use super::conditional::ConditionalStore;
use super::lease::{Held, Lease};
use super::object_lease::ObjectLease;
use zarrs_cuda_engine::process::per_process::PerProcess;

/// The beginning of the name of each lease on files.
const LEASE: &str = ".zarrs-cuda-writer";

/// The name of the folder with the leases on objects, beside the metadata of the array.
const FOLDER: &str = ".zarrs-cuda-writers";

/// The work of a process on an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Work on the whole array: the process extends or cuts the array, or compacts or repairs any shard.
    Alone,
    /// Work on part number `part` of `of` parts of the blocks of slices of an image.
    Blocks { part: u64, of: u64 },
    /// Work on part number `part` of `of` parts of the shards, which the process compacts or repairs.
    Shards { part: u64, of: u64 },
}

impl Work {
    /// Returns the name of the lease on objects for this work.
    fn name(self) -> String {
        match self {
            Self::Alone => "all".to_owned(),
            Self::Blocks { part, of } => format!("blocks-{part}-of-{of}"),
            Self::Shards { part, of } => format!("shards-{part}-of-{of}"),
        }
    }

    /// Returns the work for which a lease with this [`name`](Self::name) is taken; `None` if this version of
    /// the library has no lease of this name.
    fn of_name(name: &str) -> Option<Self> {
        if name == "all" {
            return Some(Self::Alone);
        }
        let (kind, numbers) = name.split_once('-')?;
        let (part, of) = numbers.split_once("-of-")?;
        let (part, of) = (part.parse().ok()?, of.parse().ok()?);
        let work = match kind {
            "blocks" => Self::Blocks { part, of },
            "shards" => Self::Shards { part, of },
            _ => return None,
        };
        (work.name() == name).then_some(work)
    }

    /// Returns the name of the lease on files for this work.
    fn file_name(self) -> String {
        match self {
            Self::Alone => LEASE.to_owned(),
            part => format!("{LEASE}.{}", part.name()),
        }
    }

    /// Returns the work for which a lease with this [`file_name`](Self::file_name) is taken; `None` if this
    /// version of the library has no lease of this name.
    fn of_file_name(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(LEASE)?;
        if rest.is_empty() {
            return Some(Self::Alone);
        }
        let part = Self::of_name(rest.strip_prefix('.')?)?;
        (part != Self::Alone).then_some(part)
    }

    /// Returns whether both works may be done at once: if they are different parts of the same division.
    fn is_beside(self, other: Self) -> bool {
        match (self, other) {
            (
                Self::Blocks { part, of },
                Self::Blocks {
                    part: other,
                    of: all,
                },
            )
            | (
                Self::Shards { part, of },
                Self::Shards {
                    part: other,
                    of: all,
                },
            ) => of == all && part != other,
            _ => false,
        }
    }
}

/// Returns whether `key`, which may be a prefix of keys, belongs to a lease.
pub(crate) fn is_lease(key: &str) -> bool {
    let mut names = key.trim_end_matches('/').rsplit('/');
    let is_name = |name: &str| {
        let rest = name.strip_prefix(LEASE);
        name == FOLDER || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    names.next().is_some_and(is_name) || names.next() == Some(FOLDER)
}

/// The place of the leases of an array.
#[derive(Clone)]
pub(crate) enum Leases {
    /// A directory with the metadata of the array. The directory is made if it is missing.
    Files(PathBuf),
    /// A folder of objects, whose keys begin with the prefix.
    Objects(Arc<dyn ConditionalStore>, StorePrefix),
}

impl Leases {
    /// Returns the place of the leases of `array`, whose values are the files below `root`.
    pub(crate) fn of_files(root: &Path, array: &NodePath) -> Self {
        Self::Files(root.join(array.as_str().trim_start_matches('/')))
    }

    /// Returns the place of the leases of `array` in `store`.
    pub(crate) fn of_objects(store: Arc<dyn ConditionalStore>, array: &NodePath) -> Self {
        let array = meta_key_v3(array).parent();
        let folder = StorePrefix::new(format!("{}{FOLDER}/", array.as_str()));
        Self::Objects(store, folder.unwrap_or(array))
    }

    /// Takes the lease for `work`. Returns `None` if the store of objects has no conditional requests, or
    /// ignores the conditions. If the store does not list, only processes that do the same work are refused.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] in a [`StorageError::IOError`] if another process, or another part of this
    /// process, has a lease that excludes this one; otherwise the errors of the store.
    pub(crate) fn take(&self, work: Work) -> Result<Option<Held>, StorageError> {
        Ok(match self {
            Self::Files(directory) => Some(Arc::new(take(directory, work)?)),
            Self::Objects(store, folder) => {
                let lease = take_object(store, folder, work)?;
                lease.map(|lease| -> Held { Arc::new(lease) })
            }
        })
    }
}

/// Takes the leases of several arrays for `work`, from each place that is given. It takes them at the same
/// time, because each may wait to see whether a lease that was left behind changes.
pub(crate) fn take_each(
    arrays: &[Option<Leases>],
    work: Work,
) -> Vec<Result<Option<Held>, StorageError>> {
    let no_panic = |_| Err(StorageError::Other("taking a lease panicked".to_owned()));
    thread::scope(|scope| {
        let take = |leases: &Option<Leases>| {
            let leases = leases.clone();
            let take = move || leases.map_or(Ok(None), |leases| leases.take(work));
            let thread = thread::Builder::new().name("zarrs_cuda leases".to_owned());
            thread.spawn_scoped(scope, take)
        };
        let threads: Vec<_> = arrays.iter().map(take).collect();
        let taken = threads
            .into_iter()
            .map(|thread| thread?.join().unwrap_or_else(no_panic));
        taken.collect()
    })
}

fn take(directory: &Path, work: Work) -> io::Result<Lease> {
    let own = work.file_name();
    let lease = Lease::take(&directory.join(&own))?;
    let mut others = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_other = |name: &&str| is_lease(name) && **name != *own && **name != *FOLDER;
        let Some(name) = name.to_str().filter(is_other) else {
            continue;
        };
        // A lease of a later version of the library excludes every other lease.
        if !Work::of_file_name(name).is_some_and(|other| work.is_beside(other)) {
            others.push(directory.join(name));
        }
    }
    Lease::check_free(&others)?;
    Ok(lease)
}

fn take_object(
    store: &Arc<dyn ConditionalStore>,
    folder: &StorePrefix,
    work: Work,
) -> Result<Option<ObjectLease>, StorageError> {
    let key = |name: &str| StoreKey::new(format!("{}{name}", folder.as_str()));
    let own = key(&work.name())?;
    // Lists the leases that exclude this one; `None` if the store does not list.
    let excluding = || match store.list_prefix(folder) {
        Err(StorageError::Unsupported(_)) => Ok(None),
        Err(error) => Err(error),
        Ok(mut keys) => {
            keys.retain(|other| {
                let name = other.as_str().strip_prefix(folder.as_str());
                let other = name.and_then(Work::of_name);
                // A lease of a later version of the library excludes every other lease.
                !other.is_some_and(|other| work.is_beside(other))
            });
            Ok(Some(keys))
        }
    };
    // All leases that were left behind are waited for at the same time.
    let before = excluding()?;
    let is_listed = before.is_some();
    ObjectLease::check_free(store, before.unwrap_or_default())?;
    let Some(lease) = ObjectLease::take(store.clone(), own.clone())? else {
        return Ok(None);
    };
    if !is_listed {
        tracing::warn!(%folder, "leases cannot be listed: only the same work of other processes is refused");
        return Ok(Some(lease));
    }
    let mut others = excluding()?.unwrap_or_default();
    others.retain(|other| *other != own);
    ObjectLease::check_free(store, others)?;
    Ok(Some(lease))
}

/// A lease of an array. While a process has it, writers that extend the array, and processes that compact or
/// repair its shards, are refused.
///
/// [`Shards`](crate::maintenance::Shards) takes a lease itself on zarrs' `FilesystemStore`. Programs that
/// compact or repair shards through other stores take a lease on files in a directory, or on objects through
/// conditional requests. See [Leases](crate::guide::reference::streaming#leases).
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let directory = folder.path();
/// use zarrs_cuda::maintenance::ArrayLease;
///
/// // The directory of the array, which has its `zarr.json`.
/// let lease = ArrayLease::take(directory)?;
/// if !lease.is_held() {
///     println!("no lease: make sure that nothing else writes the array");
/// }
/// // Compact shards here, by a store of the application.
/// drop(lease);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the lease is deleted when this is dropped"]
pub struct ArrayLease {
    lease: Option<Held>,
    /// Whether other values of this process may have the same lease.
    is_shared: bool,
}

/// The leases on files that [`ArrayLease`]s of this process have, by path.
static SHARED: PerProcess<Mutex<BTreeMap<PathBuf, WeakHeld>>> = PerProcess::new(Mutex::default);

type WeakHeld = Weak<dyn std::fmt::Debug + Send + Sync>;

impl ArrayLease {
    /// Takes the lease of the array in `directory`, to compact or repair any of its shards. There is no lease
    /// in a directory to which this process cannot write. Values of one process for the same work share a
    /// lease on files, which is deleted with the last of these values.
    ///
    /// Taking the lease lasts ten seconds if a process of another machine has left a lease behind.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] if another process, or a writer of this process, has a lease of the array;
    /// otherwise the errors of the file system.
    pub fn take(directory: &Path) -> io::Result<Self> {
        Self::shared(directory, Work::Alone)
    }

    /// Takes the lease of part number `part` of `parts` parts of the shards of the array in `directory`.
    /// Processes that work on other parts of the same division may have their leases at the same time.
    ///
    /// # Errors
    /// The errors of [`take`](Self::take).
    pub fn take_part(directory: &Path, part: u64, parts: NonZeroU64) -> io::Result<Self> {
        let of = parts.get();
        Self::shared(directory, Work::Shards { part, of })
    }

    /// Takes the lease of the `array` in `store`, to compact or repair any of its shards. There is no lease
    /// if `store` takes no conditions or ignores them, or if this process may not write; see
    /// [`is_held`](Self::is_held). If `store` does not list, only processes that do the same work are
    /// refused.
    ///
    /// Taking the lease lasts ten seconds if a process of another machine has left a lease behind.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] in a [`StorageError::IOError`] if another process, or another part of this
    /// process, has a lease of the array; otherwise the errors of `store`.
    pub fn take_in(
        store: Arc<dyn ConditionalStore>,
        array: &NodePath,
    ) -> Result<Self, StorageError> {
        Self::of_objects(store, array, Work::Alone)
    }

    /// Takes the lease of part number `part` of `parts` parts of the shards of the `array` in `store`.
    /// Processes that work on other parts of the same division may have their leases at the same time.
    ///
    /// # Errors
    /// The errors of [`take_in`](Self::take_in).
    pub fn take_part_in(
        store: Arc<dyn ConditionalStore>,
        array: &NodePath,
        part: u64,
        parts: NonZeroU64,
    ) -> Result<Self, StorageError> {
        let of = parts.get();
        Self::of_objects(store, array, Work::Shards { part, of })
    }

    fn of_objects(
        store: Arc<dyn ConditionalStore>,
        array: &NodePath,
        work: Work,
    ) -> Result<Self, StorageError> {
        let lease = match Leases::of_objects(store, array).take(work) {
            // Intact shards need no write. A write to any other shard will return this error.
            Err(StorageError::IOError(error)) if is_read_only(&error) => None,
            taken => taken?,
        };
        Ok(Self {
            lease,
            is_shared: false,
        })
    }

    /// Returns whether this process has the lease. Without one, no other process is refused.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.lease.is_some()
    }

    /// Returns whether `key`, which may be the name of a file, belongs to a lease: of any process, or of the
    /// folder of leases. Listings leave such keys out.
    #[must_use]
    pub fn is_key(key: &str) -> bool {
        is_lease(key)
    }

    fn shared(directory: &Path, work: Work) -> io::Result<Self> {
        let of = |lease| Self {
            lease,
            is_shared: true,
        };
        let path = directory.join(work.file_name());
        let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lease) = shared.get(&path).and_then(Weak::upgrade) {
            return Ok(of(Some(lease)));
        }
        let lease: Held = match take(directory, work) {
            Ok(lease) => Arc::new(lease),
            // Intact shards need no write. A write to any other shard will return this error.
            Err(error) if is_read_only(&error) => {
                tracing::debug!(directory = %directory.display(), %error, "no lease");
                return Ok(of(None));
            }
            Err(error) => return Err(error),
        };
        shared.insert(path, Arc::downgrade(&lease));
        Ok(of(Some(lease)))
    }
}

impl Drop for ArrayLease {
    fn drop(&mut self) {
        if !self.is_shared {
            return;
        }
        // The lease is dropped under the lock. Otherwise the next value would find a lease that is about to
        // be deleted.
        let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
        self.lease = None;
        shared.retain(|_, lease| lease.strong_count() > 0);
    }
}

/// Returns whether nothing can be written at all. A full disk counts, though a repair may still succeed on
/// it.
fn is_read_only(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
    )
}

#[cfg(test)]
mod tests {
    use zarrs_storage::ListableStorageTraits;

    use super::*;
    use crate::store::conditional::in_memory::{Conditions, Objects};

    const WORKS: [Work; 7] = [
        Work::Alone,
        Work::Blocks { part: 0, of: 2 },
        Work::Blocks { part: 1, of: 2 },
        Work::Blocks { part: 0, of: 3 },
        Work::Shards { part: 0, of: 2 },
        Work::Shards { part: 1, of: 2 },
        Work::Shards { part: 2, of: 3 },
    ];

    /// Two parts of a range, spelled out: no element is in both.
    fn may_both(one: Work, other: Work) -> bool {
        let elements = |work: Work| -> (&str, Vec<u64>) {
            let of_part = |part, of| (0..6).filter(|i| i % of == part).collect();
            match work {
                Work::Alone => ("", Vec::new()),
                Work::Blocks { part, of } => ("blocks", of_part(part, of)),
                Work::Shards { part, of } => ("shards", of_part(part, of)),
            }
        };
        let ((kind, some), (other_kind, others)) = (elements(one), elements(other));
        !kind.is_empty() && kind == other_kind && some.iter().all(|i| !others.contains(i))
    }

    #[test]
    fn parts_of_one_division_alone_run_beside_each_other() {
        for one in WORKS {
            let file = one.file_name();
            assert_eq!(Work::of_name(&one.name()), Some(one));
            assert_eq!(Work::of_file_name(&file), Some(one));
            assert!(is_lease(&file) && is_lease(&format!("a/b/{file}")));
            assert!(is_lease(&format!("a/{FOLDER}/{}", one.name())));
            for other in WORKS {
                let directory = tempfile::tempdir().unwrap();
                let first = take(directory.path(), one).unwrap();
                let second = take(directory.path(), other);
                assert_eq!(second.is_ok(), may_both(one, other), "{one:?} {other:?}");
                if let Err(error) = &second {
                    assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
                    assert!(error.to_string().contains(&file), "{error}");
                }
                drop(second);
                // The second has left nothing, and the first goes on.
                let left = fs::read_dir(directory.path()).unwrap().count();
                assert_eq!(left, 1);
                assert!(take(directory.path(), one).is_err());
                drop(first);
                drop(take(directory.path(), other).unwrap());
                assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
            }
        }
        for other in [
            "",
            ".zarrs-cuda-writerss",
            "zarrs-cuda-writer",
            "a/.zarrs-cuda-writer/c",
            "a/.zarrs-cuda-writers/b/c",
        ] {
            assert!(!is_lease(other), "{other}");
        }
        assert!(is_lease(".zarrs-cuda-writers/") && is_lease("a/.zarrs-cuda-writers"));
        assert_eq!(Work::of_file_name(".zarrs-cuda-writer.all"), None);
    }

    fn objects(conditions: Conditions) -> (Arc<Objects>, Leases) {
        let store = Objects::new(conditions);
        let array = NodePath::new("/a/b").unwrap();
        let leases = Leases::of_objects(store.clone(), &array);
        (store, leases)
    }

    #[test]
    fn objects_have_the_same_leases() {
        for one in WORKS {
            for other in WORKS {
                let (store, leases) = objects(Conditions::Obeyed);
                let first = leases.take(one).unwrap().unwrap();
                let second = leases.take(other);
                assert_eq!(second.is_ok(), may_both(one, other), "{one:?} {other:?}");
                if let Err(error) = &second {
                    let key = format!("a/b/{FOLDER}/{}", one.name());
                    assert!(error.to_string().contains(&key), "{error}");
                }
                drop(second);
                assert_eq!(store.list().unwrap().len(), 1);
                assert!(leases.take(one).is_err());
                drop(first);
                drop(leases.take(other).unwrap().unwrap());
                assert_eq!(store.list().unwrap(), []);
            }
        }
        for conditions in Conditions::UNUSABLE {
            let (store, leases) = objects(conditions);
            assert!(leases.take(Work::Alone).unwrap().is_none());
            assert_eq!(store.list().unwrap(), [], "{conditions:?}");
        }
        let (_store, leases) = objects(Conditions::ObeyedUnlisted);
        let lease = leases.take(Work::Alone).unwrap().unwrap();
        assert!(leases.take(Work::Alone).is_err());
        drop(lease);
        let (store, array) = (Objects::new(Conditions::Obeyed), NodePath::root());
        let one = NonZeroU64::MIN;
        let part = ArrayLease::take_part_in(store.clone(), &array, 0, one).unwrap();
        assert!(part.is_held() && ArrayLease::take_in(store.clone(), &array).is_err());
        let key = StoreKey::new(format!("{FOLDER}/shards-0-of-1")).unwrap();
        assert_eq!(store.list().unwrap(), [key]);
    }

    /// Many threads begin at once: of works that exclude each other, never two succeed.
    #[test]
    fn none_slips_in_between_look_and_take() {
        for round in 0..50 {
            let directory = tempfile::tempdir().unwrap();
            let leases = match round % 2 {
                0 => Leases::Files(directory.path().to_path_buf()),
                _ => objects(Conditions::Obeyed).1,
            };
            let begin = std::sync::Barrier::new(WORKS.len());
            let taken: Vec<_> = std::thread::scope(|scope| {
                let threads = WORKS.map(|work| {
                    let (begin, leases) = (&begin, &leases);
                    scope.spawn(move || {
                        begin.wait();
                        Some((work, leases.take(work).ok()??))
                    })
                });
                let ended = threads.map(|thread| thread.join().unwrap());
                ended.into_iter().flatten().collect()
            });
            for (number, (one, _)) in taken.iter().enumerate() {
                for (other, _) in &taken[..number] {
                    assert!(may_both(*one, *other), "{one:?} {other:?}");
                }
            }
        }
    }

    #[test]
    fn leases_that_were_left_are_deleted() {
        let directory = tempfile::tempdir().unwrap();
        // A process that has ended, and one that was killed before it wrote its name.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let this = crate::store::owner::Owner::this().to_string();
        let machine = this.split('-').next().unwrap();
        let ended = format!("{machine}-{}-1\n{:020}\n", child.id(), 7);
        child.wait().unwrap();
        for work in WORKS {
            fs::write(directory.path().join(work.file_name()), &ended).unwrap();
        }
        fs::write(directory.path().join(".zarrs-cuda-writer.later"), "").unwrap();
        let lease = take(directory.path(), Work::Blocks { part: 0, of: 2 }).unwrap();
        let mut names: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                ".zarrs-cuda-writer.blocks-0-of-2",
                ".zarrs-cuda-writer.blocks-1-of-2"
            ]
        );
        drop(lease);
        drop(take(directory.path(), Work::Alone).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn values_of_one_process_share_a_lease() {
        let directory = tempfile::tempdir().unwrap();
        let array = directory.path().join("array");
        let (one, two) = (
            ArrayLease::take(&array).unwrap(),
            ArrayLease::take(&array).unwrap(),
        );
        assert!(take(&array, Work::Alone).is_err());
        assert!(ArrayLease::take_part(&array, 0, NonZeroU64::MIN).is_err());
        drop(one);
        assert!(take(&array, Work::Alone).is_err());
        drop(two);
        assert!(!array.exists(), "the directory was made for the lease");
        drop(take(&array, Work::Alone).unwrap());
    }

    /// Not even the superuser makes files in `/sys`.
    #[cfg(target_os = "linux")]
    #[test]
    fn directories_that_are_read_only_have_none() {
        let taken = ArrayLease::take(Path::new("/sys")).unwrap();
        assert!(taken.lease.is_none());
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(ArrayLease::take(&file).is_err(), "it is no directory");
    }
}
