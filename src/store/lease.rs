//! Takes leases on files. A lease says which process does some work, and whether the process still runs.
//!
//! A lease is a file with the [`Owner`] and a count that the owner raises every few seconds. A process looks
//! for the leases of others before it changes anything; the lease does not keep others from writing.
//! `array_lease.rs` says which leases of an array exclude each other.
//!
//! 1. The owner has an advisory lock on the file. The system takes the lock away when the process ends,
//!    however it ends. So a lease without a lock is taken over at once, if its owner is of this machine.
//! 2. Where locks say nothing (another machine, a file system without locks), the process asks whether the
//!    owner [runs](Owner::life). If that is not known, the lease must stay unchanged for [`DURATION`], by the
//!    clock of the process that waits.
//! 3. The file is deleted when the lease is dropped, and so are directories that were made for it and are
//!    empty. A forked child leaves the lease to its parent.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::file_turns::is_at;
use super::owner::{Life, Owner};
use zarrs_cuda_engine::process::per_process::PerProcess;

/// The time for which a lease must stay unchanged until another process may take it over.
pub(super) const DURATION: Duration = Duration::from_secs(10);

/// The time between two raises of the count of a lease.
pub(super) const BEAT: Duration = Duration::from_secs(3);

/// The time within which the process that has the lock of a lease has written its name, or has only looked.
const NAMING: Duration = Duration::from_secs(1);

/// The number of times that a lease is made again because its directory was removed.
const ATTEMPTS: usize = 100;

/// A lease on files or on objects, which is deleted when its last holder drops it.
pub(crate) type Held = Arc<dyn fmt::Debug + Send + Sync>;

/// A lease on a file that this process has.
#[derive(Debug)]
pub(crate) struct Lease {
    file: Arc<File>,
    path: PathBuf,
    /// The directories that were made for the file, the deepest first.
    made: Vec<PathBuf>,
    process: u32,
}

/// A lease of another process, which may have ended without deleting it.
struct Doubtful {
    path: PathBuf,
    file: File,
    content: String,
}

/// The state of a lease of another process.
enum LeaseState {
    /// No process has the lease.
    Free,
    /// The owner of the lease may still run.
    Unknown,
}

impl Lease {
    /// Takes the lease at `path`, and makes the directories above it.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] if another process, or another part of this process, has the lease;
    /// otherwise the errors of the file system.
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        Self::take_within(path, DURATION)
    }

    fn take_within(path: &Path, duration: Duration) -> io::Result<Self> {
        let (mut made, mut attempts) = (Vec::new(), 0);
        let since = Instant::now();
        let (file, is_new) = loop {
            // Another process may have removed the directory with its lease.
            if let Some(directory) = path.parent() {
                make(directory, &mut made)?;
            }
            let (file, is_new) = match open(path) {
                // Some file systems return this error wherever no file can be made.
                Err(error) if error.kind() == ErrorKind::NotFound && attempts < ATTEMPTS => {
                    attempts += 1;
                    continue;
                }
                opened => opened?,
            };
            let has_lock = match file.try_lock() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock) => {
                    await_owner(path, &file, since)?;
                    continue;
                }
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {
                    continue;
                }
                Err(TryLockError::Error(_)) => false,
            };
            // The process that had the lease may have deleted the file before this process locked it.
            if !is_at(&file, path) {
                continue;
            }
            if !is_new && matches!(look(path, &file, has_lock)?, LeaseState::Unknown) {
                let before = content(&file)?;
                tracing::info!(path = %path.display(), "a lease may be another machine's: waiting whether it changes");
                thread::sleep(duration);
                if content(&file)? != before {
                    return Err(busy(&path.display(), &before));
                }
                if !is_at(&file, path) {
                    continue;
                }
            }
            break (file, is_new);
        };
        // From here on the file is deleted after an error, too, when `lease` is dropped.
        let lease = Self {
            file: Arc::new(file),
            path: path.to_path_buf(),
            made,
            process: std::process::id(),
        };
        if !is_new {
            lease.file.set_len(0)?;
        }
        beat(&lease.file, 0)?;
        keep(&lease.file)?;
        Ok(lease)
    }

    /// Checks that no process has one of the leases at `paths`. Deletes leases of processes that have ended.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] if a process has one of the leases; otherwise the errors of the file
    /// system.
    pub(crate) fn check_free(paths: &[PathBuf]) -> io::Result<()> {
        Self::check_free_within(paths, DURATION)
    }

    fn check_free_within(paths: &[PathBuf], duration: Duration) -> io::Result<()> {
        let mut left = paths.to_vec();
        loop {
            let mut doubtful = Vec::new();
            for path in &left {
                doubtful.extend(doubt(path)?);
            }
            if doubtful.is_empty() {
                return Ok(());
            }
            tracing::info!(leases = doubtful.len(), path = %doubtful[0].path.display(), "leases may be another machine's: waiting whether they change");
            // All leases are waited for at the same time: there may be one for each part of an image.
            thread::sleep(duration);
            left.clear();
            for Doubtful {
                path,
                file,
                content: before,
            } in doubtful
            {
                if content(&file)? != before {
                    return Err(busy(&path.display(), &before));
                }
                if is_at(&file, &path) {
                    delete(&path)?;
                } else {
                    left.push(path);
                }
            }
        }
    }
}

/// Returns the lease at `path`, if its owner may still run. Deletes the lease if the owner has ended.
fn doubt(path: &Path) -> io::Result<Option<Doubtful>> {
    let since = Instant::now();
    let (file, has_lock) = loop {
        must_be_plain(path)?;
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        // The lock is shared: processes that look at one lease at the same time must not take each other for
        // its owner.
        match file.try_lock_shared() {
            Ok(()) => break (file, true),
            Err(TryLockError::WouldBlock) => await_owner(path, &file, since)?,
            Err(TryLockError::Error(_)) => break (file, false),
        }
    };
    if let LeaseState::Unknown = look(path, &file, has_lock)? {
        let content = content(&file)?;
        let _ = file.unlock(); // the lease was looked at
        let path = path.to_path_buf();
        return Ok(Some(Doubtful {
            path,
            file,
            content,
        }));
    }
    // Now no other thread looks at the lease, or begins to own it.
    if (!has_lock || file.try_lock().is_ok()) && is_at(&file, path) {
        delete(path)?;
    }
    Ok(None)
}

/// Waits for a moment, because another process has the lock of the lease at `path`, and `file` may not name
/// it yet: the process has just taken the lock, or only looks.
///
/// # Errors
/// [`ErrorKind::ResourceBusy`] if `file` names a process that may run, or names none for [`NAMING`].
fn await_owner(path: &Path, file: &File, since: Instant) -> io::Result<()> {
    let content = content(file)?;
    let is_named = owner_of(&content).is_some_and(|owner| owner.life() != Life::Ended);
    if is_named || since.elapsed() >= NAMING {
        return Err(busy(&path.display(), &content));
    }
    thread::sleep(Duration::from_millis(2));
    Ok(())
}

fn delete(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        deleted => deleted,
    }
}

/// Makes `directory` and the directories above it. Adds those that were missing to `made`, the deepest first.
fn make(directory: &Path, made: &mut Vec<PathBuf>) -> io::Result<()> {
    let above = directory.ancestors();
    let missing = above.take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let missing: Vec<_> = missing.map(Path::to_path_buf).collect();
    if made.is_empty() {
        *made = missing;
    }
    fs::create_dir_all(directory)
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        if is_at(&self.file, &self.path)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "a lease was left behind");
        }
        // The first directory that is not empty, or is gone, ends the loop.
        let _ = self.made.iter().try_for_each(fs::remove_dir);
        // The file is unlocked explicitly: if a forked child has the same open file, closing it does not
        // unlock it.
        let _ = self.file.unlock(); // the lock ends with the process at the latest
    }
}

/// Opens the file at `path`. Returns the file, and whether it was made.
fn open(path: &Path) -> io::Result<(File, bool)> {
    must_be_plain(path)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok((options.open(path)?, false)),
        made => Ok((made?, true)),
    }
}

/// Checks that `path` is not a link: the file that it leads to must not be written.
fn must_be_plain(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        let what = format!("{} is not a plain file: delete it", path.display());
        return Err(io::Error::new(ErrorKind::AlreadyExists, what));
    }
    Ok(())
}

/// Finds out whether a process may still have the lease in `file`.
fn look(path: &Path, file: &File, has_lock: bool) -> io::Result<LeaseState> {
    let content = content(file)?;
    let Some(owner) = owner_of(&content) else {
        // The owner died before it wrote its name, or is about to write it.
        return Ok(if has_lock {
            LeaseState::Free
        } else {
            LeaseState::Unknown
        });
    };
    if has_lock && owner.is_of_this_machine() {
        return Ok(LeaseState::Free);
    }
    match owner.life() {
        Life::Ended => Ok(LeaseState::Free),
        Life::Runs => Err(busy(&path.display(), &content)),
        Life::Unknown => Ok(LeaseState::Unknown),
    }
}

fn content(mut file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(200).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the process that has stored `content`; `None` if `content` does not name one.
pub(super) fn owner_of(content: &str) -> Option<Owner> {
    content.lines().next()?.parse().ok()
}

/// Returns the error of a lease at `place` that another process has.
pub(super) fn busy(place: &dyn fmt::Display, content: &str) -> io::Error {
    let who = match owner_of(content) {
        Some(owner) if owner == *Owner::this() => "another part of this process".to_owned(),
        Some(owner) if owner.life() == Life::Ended => "a new process".to_owned(),
        Some(owner) if owner.is_of_this_machine() => format!("process {}", owner.process()),
        Some(_) => "a process of another machine or container".to_owned(),
        None => "a process that has just begun".to_owned(),
    };
    let what = format!(
        "{who} writes, compacts or repairs this array now, and has the lease {place}. Let it finish, or end it, and try again"
    );
    io::Error::new(ErrorKind::ResourceBusy, what)
}

/// Writes the owner and a count to a lease.
fn beat(mut file: &File, count: u64) -> io::Result<()> {
    file.rewind()?;
    file.write_all(format!("{}\n{count:020}\n", Owner::this()).as_bytes())
}

/// The leases whose counts are raised, and whether a thread raises them.
#[derive(Default)]
struct Beating {
    files: Vec<Weak<File>>,
    runs: bool,
}

static BEATING: PerProcess<Mutex<Beating>> = PerProcess::new(Mutex::default);

/// Lets a thread raise the count of a lease until the lease is dropped.
fn keep(file: &Arc<File>) -> io::Result<()> {
    let mut beating = BEATING.get().lock().unwrap_or_else(PoisonError::into_inner);
    beating.files.push(Arc::downgrade(file));
    if !beating.runs {
        let thread = thread::Builder::new().name("zarrs_cuda leases".to_owned());
        thread.spawn(raise_counts)?;
        beating.runs = true;
    }
    Ok(())
}

/// Raises the counts of all leases, until there is no lease. A thread runs this function.
fn raise_counts() {
    for count in 1.. {
        thread::sleep(BEAT);
        let mut beating = BEATING.get().lock().unwrap_or_else(PoisonError::into_inner);
        beating.files.retain(|file| file.strong_count() > 0);
        if beating.files.is_empty() {
            beating.runs = false;
            return;
        }
        let files: Vec<_> = beating.files.iter().filter_map(Weak::upgrade).collect();
        drop(beating);
        for file in files {
            if let Err(error) = beat(&file, count) {
                tracing::warn!(%error, "the count of a lease was not raised");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn is_busy(path: &Path) -> bool {
        match Lease::take_within(path, SHORT) {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
                true
            }
        }
    }

    #[test]
    fn one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/lease");
        for _ in 0..2 {
            let lease = Lease::take(&path).unwrap();
            assert!(is_busy(&path) && is_busy(&path));
            drop(lease);
            assert!(!path.exists());
        }
    }

    /// A killed process leaves such a file, also if it was killed before it had written its name.
    #[test]
    fn a_dead_lease_is_taken_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lease");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = child.id();
        child.wait().unwrap();
        let this = Owner::this().to_string();
        let machine = this.split('-').next().unwrap();
        for left in [
            format!("{machine}-{id}-1\n00000000000000000007\n"),
            this.clone(),
            String::new(),
            "?".to_owned(),
        ] {
            fs::write(&path, left).unwrap();
            let since = std::time::Instant::now();
            let lease = Lease::take(&path).unwrap();
            assert!(since.elapsed() < BEAT);
            assert!(fs::read_to_string(&path).unwrap().starts_with(&this));
            drop(lease);
        }
    }

    /// A process takes over the lease of one that has ended: first the lock, then its name.
    #[test]
    fn an_owner_has_time_to_write_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lease");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let (this, id) = (Owner::this().to_string(), child.id());
        child.wait().unwrap();
        let dead = format!("{}-{id}-1\n{:020}\n", this.split('-').next().unwrap(), 7);
        // It only looks, it writes its name, or it stands still.
        for (looks, who) in [
            (true, ""),
            (false, "another part of this process"),
            (false, "a new process"),
        ] {
            fs::write(&path, &dead).unwrap();
            let (locked, is_locked) = std::sync::mpsc::channel();
            let (done, is_done) = std::sync::mpsc::channel::<()>();
            thread::scope(|scope| {
                let path = &path;
                scope.spawn(move || {
                    let file = OpenOptions::new().read(true).write(true).open(path);
                    let file = file.unwrap();
                    file.lock().unwrap();
                    locked.send(()).unwrap();
                    thread::sleep(SHORT);
                    if who.starts_with("another part") {
                        beat(&file, 0).unwrap();
                    }
                    if !looks {
                        is_done.recv().unwrap_err();
                    }
                });
                is_locked.recv().unwrap();
                let checked = Lease::check_free(std::slice::from_ref(path));
                assert_eq!(checked.is_ok(), looks);
                if let Err(error) = checked {
                    let again = Lease::take(path).unwrap_err();
                    assert!(error.to_string().starts_with(who), "{error}");
                    assert_eq!(error.to_string(), again.to_string());
                }
                drop(done);
            });
        }
    }

    #[test]
    fn another_machine_has_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lease");
        let theirs = |count: u64| format!("00000000000000ff-2-3\n{count:020}\n");
        fs::write(&path, theirs(1)).unwrap();
        let since = std::time::Instant::now();
        drop(Lease::take_within(&path, SHORT).unwrap());
        assert!(since.elapsed() >= SHORT);
        fs::write(&path, theirs(1)).unwrap();
        let long = Duration::from_millis(500);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(long / 5);
                fs::write(&path, theirs(2)).unwrap();
            });
            let error = Lease::take_within(&path, long).unwrap_err();
            assert!(error.to_string().contains("another machine"), "{error}");
        });
        assert_eq!(fs::read_to_string(&path).unwrap(), theirs(2));
    }

    #[test]
    fn no_foreign_file_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let (path, foreign) = (
            directory.path().join("lease"),
            directory.path().join("foreign"),
        );
        fs::write(&foreign, "theirs").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(&foreign, &path).unwrap();
        #[cfg(not(unix))]
        fs::create_dir(&path).unwrap();
        assert!(Lease::take(&path).is_err());
        assert_eq!(fs::read_to_string(&foreign).unwrap(), "theirs");
        // A file that has taken the name of the lease is not deleted.
        fs::remove_file(&path).unwrap();
        let lease = Lease::take(&path).unwrap();
        fs::rename(&foreign, &path).unwrap();
        drop(lease);
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    }
}
