//! Leases: one process at a time does what two must not do to one array.
//!
//! A lease is a file with the [`Owner`] and a count that the owner raises every few seconds. It permits
//! nothing. It finds out that another process does the same, before either has changed anything.
//!
//! 1. The owner has an advisory lock on the file. The system takes the lock away when the process ends,
//!    however it ends. So a lease without a lock is taken over at once, if its owner is of this machine.
//! 2. Where locks say nothing (another machine, a file system without locks), the owner is asked for
//!    whether it [runs](Owner::life). If that is not known, the lease must stay as it is for [`DURATION`],
//!    by the clock of the process that waits.
//! 3. The file is deleted when the lease is dropped. A forked child leaves the lease to its parent.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::file_turns::is_at;
use super::owner::{Life, Owner};
use crate::per_process::PerProcess;

/// How long a lease must stay as it is until another process may take it over.
const DURATION: Duration = Duration::from_secs(10);

/// How often the count of a lease is raised.
const BEAT: Duration = Duration::from_secs(3);

/// A lease of this process.
#[derive(Debug)]
pub(crate) struct Lease {
    file: Arc<File>,
    path: PathBuf,
    process: u32,
}

/// The state of a lease that another process has made.
enum Found {
    /// No process has it.
    Free,
    /// Its owner may run.
    Unknown,
}

impl Lease {
    /// Take the lease at `path`, whose directories are made.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] if another process has it, or another part of this process; otherwise
    /// the errors of the file system.
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        Self::take_within(path, DURATION)
    }

    fn take_within(path: &Path, duration: Duration) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        loop {
            let (file, is_new) = match open(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let has_lock = match file.try_lock() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock) => return Err(busy(path, &content(&file)?)),
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {
                    continue;
                }
                Err(TryLockError::Error(_)) => false,
            };
            // The process that had the lease may have deleted it in between.
            if !is_at(&file, path) {
                continue;
            }
            if !is_new && matches!(look(path, &file, has_lock)?, Found::Unknown) {
                let before = content(&file)?;
                tracing::info!(path = %path.display(), "a lease may be another machine's: waiting whether it changes");
                thread::sleep(duration);
                if content(&file)? != before {
                    return Err(busy(path, &before));
                }
                if !is_at(&file, path) {
                    continue;
                }
            }
            file.set_len(0)?;
            beat(&file, 0)?;
            let lease = Self {
                file: Arc::new(file),
                path: path.to_path_buf(),
                process: std::process::id(),
            };
            keep(&lease.file)?;
            return Ok(lease);
        }
    }
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
        // A forked child may have the open file, too: closing it would not unlock it.
        let _ = self.file.unlock(); // the lock ends with the process at the latest
    }
}

/// The file at `path`, and whether it was made.
fn open(path: &Path) -> io::Result<(File, bool)> {
    // No link is followed: the file of somebody else must not be written.
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        let what = format!("{} is not a plain file: delete it", path.display());
        return Err(io::Error::new(ErrorKind::AlreadyExists, what));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok((options.open(path)?, false)),
        made => Ok((made?, true)),
    }
}

/// Find out whether the lease in `file` is somebody's.
fn look(path: &Path, file: &File, has_lock: bool) -> io::Result<Found> {
    let content = content(file)?;
    let owner = content.lines().next();
    let Some(owner) = owner.and_then(|owner| owner.parse::<Owner>().ok()) else {
        // A process died before it wrote its name, or is about to write it.
        return Ok(if has_lock {
            Found::Free
        } else {
            Found::Unknown
        });
    };
    if has_lock && owner.is_of_this_machine() {
        return Ok(Found::Free);
    }
    match owner.life() {
        Life::Ended => Ok(Found::Free),
        Life::Runs => Err(busy(path, &content)),
        Life::Unknown => Ok(Found::Unknown),
    }
}

fn content(mut file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(200).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn busy(path: &Path, content: &str) -> io::Error {
    let owner = content.lines().next();
    let owner = owner.and_then(|owner| owner.parse::<Owner>().ok());
    let who = match owner {
        Some(owner) if owner == *Owner::this() => "another writer of this process".to_owned(),
        Some(owner) if owner.is_of_this_machine() => format!("process {}", owner.process()),
        _ => "a process of another machine or container".to_owned(),
    };
    let what = format!(
        "{who} extends or cuts this array now, and has the lease {}. Let it finish, or end it, and try again",
        path.display()
    );
    io::Error::new(ErrorKind::ResourceBusy, what)
}

/// Write the owner and a count to a lease.
fn beat(mut file: &File, count: u64) -> io::Result<()> {
    file.rewind()?;
    file.write_all(format!("{}\n{count:020}\n", Owner::this()).as_bytes())
}

/// The leases whose counts are raised, and whether a thread does that.
#[derive(Default)]
struct Beating {
    files: Vec<Weak<File>>,
    runs: bool,
}

static BEATING: PerProcess<Mutex<Beating>> = PerProcess::new(Mutex::default);

/// Raise the count of a lease until it is dropped.
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

/// Runs in a thread, and ends when there is no lease.
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

    /// What a process leaves that is killed, also before it has written its name.
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
