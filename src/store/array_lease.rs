//! The leases of an array of files: which of them exclude each other.
//!
//! A lease lies beside the metadata of the array, and its name says what its owner does. Each process makes
//! its own lease first, and looks at the others then. So of two that begin at the same moment at least one
//! sees the other. Both may, and both are refused then.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::lease::Lease;
use zarrs_cuda_engine::process::per_process::PerProcess;

/// How the name of each lease begins.
pub(crate) const LEASE: &str = ".zarrs-cuda-writer";

/// The work of a process on an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// On all of the array: it extends or cuts the array, or compacts or repairs any shard.
    Alone,
    /// On part number `part` of `of` of the blocks of slices of an image.
    Blocks { part: u64, of: u64 },
    /// On part number `part` of `of` of the shards, which it compacts or repairs.
    Shards { part: u64, of: u64 },
}

impl Work {
    fn name(self) -> String {
        match self {
            Self::Alone => LEASE.to_owned(),
            Self::Blocks { part, of } => format!("{LEASE}.blocks-{part}-of-{of}"),
            Self::Shards { part, of } => format!("{LEASE}.shards-{part}-of-{of}"),
        }
    }

    /// The work of the owner of the lease with this name; `None` if this version of the library has no such
    /// lease.
    fn of_name(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(LEASE)?;
        if rest.is_empty() {
            return Some(Self::Alone);
        }
        let (kind, numbers) = rest.strip_prefix('.')?.split_once('-')?;
        let (part, of) = numbers.split_once("-of-")?;
        let (part, of) = (part.parse().ok()?, of.parse().ok()?);
        let work = match kind {
            "blocks" => Self::Blocks { part, of },
            "shards" => Self::Shards { part, of },
            _ => return None,
        };
        (work.name() == name).then_some(work)
    }

    /// Whether both may be done at once: parts of one division that are not the same.
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

/// Whether the last part of `key` is the name of a lease.
pub(crate) fn is_lease(key: &str) -> bool {
    let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
    let rest = name.strip_prefix(LEASE);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Take the lease for `work` on the array in `directory`, which is made.
///
/// # Errors
/// [`ErrorKind::ResourceBusy`] if another process has a lease that excludes this one, or another part of
/// this process has; otherwise the errors of the file system.
pub(crate) fn take(directory: &Path, work: Work) -> io::Result<Lease> {
    let own = work.name();
    let lease = Lease::take(&directory.join(&own))?;
    let mut others = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| is_lease(name) && *name != own) else {
            continue;
        };
        // A lease of a later version excludes every other one.
        if !Work::of_name(name).is_some_and(|other| work.is_beside(other)) {
            others.push(directory.join(name));
        }
    }
    Lease::check_free(&others)?;
    Ok(lease)
}

/// A lease of an array in a directory: while it is there, writers that extend the array, and processes that
/// compact or repair it, are refused.
///
/// [`Shards`](crate::maintenance::Shards) takes one by itself on zarrs' `FilesystemStore`. Programs that
/// compact or repair shards through other stores of files take one. Values of one process for the same work
/// share a lease, which is deleted with the last of them. See
/// [Leases](crate::guide::reference::streaming#leases).
#[derive(Debug)]
#[must_use = "the lease is deleted when this is dropped"]
pub struct ArrayLease {
    /// `None` if the directory can only be read.
    lease: Option<Arc<Lease>>,
}

/// The leases of [`ArrayLease`]s of this process.
static SHARED: PerProcess<Mutex<BTreeMap<PathBuf, Weak<Lease>>>> = PerProcess::new(Mutex::default);

impl ArrayLease {
    /// Takes the lease of the array in `directory`, to compact or repair any of its shards. In a directory
    /// that this process cannot write to there is none.
    ///
    /// It takes ten seconds if a process of another machine has left a lease.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] if another process has a lease of the array, or a writer of this process;
    /// otherwise the errors of the file system.
    pub fn take(directory: &Path) -> io::Result<Self> {
        Self::shared(directory, Work::Alone)
    }

    /// Takes the lease of part number `part` of `parts` of the shards of the array in `directory`. Processes
    /// for other parts of so many may have theirs at the same time.
    ///
    /// # Errors
    /// The errors of [`take`](Self::take).
    pub fn take_part(directory: &Path, part: u64, parts: NonZeroU64) -> io::Result<Self> {
        let of = parts.get();
        Self::shared(directory, Work::Shards { part, of })
    }

    /// Returns whether the key, or the name of a file, is the one of a lease: also of a lease that a writer
    /// has. Listings leave it out.
    #[must_use]
    pub fn is_key(key: &str) -> bool {
        is_lease(key)
    }

    fn shared(directory: &Path, work: Work) -> io::Result<Self> {
        let path = directory.join(work.name());
        let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lease) = shared.get(&path).and_then(Weak::upgrade) {
            return Ok(Self { lease: Some(lease) });
        }
        let lease = match take(directory, work) {
            Ok(lease) => Arc::new(lease),
            // Shards that are intact need no writing; the rest fails for this reason.
            Err(error) if is_read_only(&error) => {
                tracing::debug!(directory = %directory.display(), %error, "no lease");
                return Ok(Self { lease: None });
            }
            Err(error) => return Err(error),
        };
        shared.insert(path, Arc::downgrade(&lease));
        Ok(Self { lease: Some(lease) })
    }
}

impl Drop for ArrayLease {
    fn drop(&mut self) {
        // With the lock: the next value would otherwise find a lease that is about to be deleted.
        let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
        self.lease = None;
        shared.retain(|_, lease| lease.strong_count() > 0);
    }
}

/// Whether nothing can be written at all: also on a full disk, on which a repair may still succeed.
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
    use super::*;

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
            assert_eq!(Work::of_name(&one.name()), Some(one));
            assert!(is_lease(&one.name()) && is_lease(&format!("a/b/{}", one.name())));
            for other in WORKS {
                let directory = tempfile::tempdir().unwrap();
                let first = take(directory.path(), one).unwrap();
                let second = take(directory.path(), other);
                assert_eq!(second.is_ok(), may_both(one, other), "{one:?} {other:?}");
                if let Err(error) = &second {
                    assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
                    assert!(error.to_string().contains(&one.name()), "{error}");
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
            ".zarrs-cuda-writers",
            "zarrs-cuda-writer",
            "a/.zarrs-cuda-writer/c",
        ] {
            assert!(!is_lease(other), "{other}");
        }
    }

    /// Many threads begin at once: of works that exclude each other, never two succeed.
    #[test]
    fn none_slips_in_between_look_and_take() {
        for _ in 0..50 {
            let directory = tempfile::tempdir().unwrap();
            let begin = std::sync::Barrier::new(WORKS.len());
            let taken: Vec<_> = std::thread::scope(|scope| {
                let threads = WORKS.map(|work| {
                    let (begin, directory) = (&begin, directory.path());
                    scope.spawn(move || {
                        begin.wait();
                        Some((work, take(directory, work).ok()?))
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
            fs::write(directory.path().join(work.name()), &ended).unwrap();
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
