//! Locks values that are files for one process at a time, by the lock files of tensorstore.
//!
//! ```text
//! open VALUE.__lock, and make it if it is missing
//! lock all of it, as an open file description           F_OFD_SETLK; the system unlocks it when the process ends
//! is VALUE.__lock still the locked file?                otherwise begin again: the one before has deleted it
//! empty it                                              a killed tensorstore has left bytes in it
//! write VALUE
//! delete VALUE.__lock, then unlock it
//! ```
//!
//! This is the protocol of tensorstore's driver `file` in its default mode, `{"file_io_locking": {"mode": "os"}}`:
//! <https://github.com/google/tensorstore/blob/master/tensorstore/kvstore/file/file_key_value_store.cc> and
//! <https://github.com/google/tensorstore/blob/master/tensorstore/internal/os/file_lock.cc>. Three things follow
//! from what tensorstore does:
//!
//! 1. Only the process that has the lock deletes or renames the lock file. A process that waits, or that gives up,
//!    leaves it.
//! 2. tensorstore writes the new value into the lock file, without truncating it, and renames the lock file to the
//!    value. So nothing is ever written to a lock file here. Bytes that a killed process left there would stand
//!    behind the next value of tensorstore.
//! 3. tensorstore reads a value without a lock. When it has the lock, it writes only if the device, the inode and
//!    the time of the value are still the same. The clock of a file system may stand still for milliseconds, and a
//!    new file may get the inode of a deleted one. So each write here gives the value a later time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::file_turns::is_at;
use super::replace::{Durable, NewFile, make_directories};
use super::temporary_keys::{LOCK_SUFFIX, is_lock_file};

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests;

/// The lock of a file, which at most one process has: this one, another one with this library, or tensorstore. It is
/// released when this value is dropped, and when the process ends, however it ends.
///
/// The lock is an empty file beside the locked file, with `.__lock` behind its name, as in tensorstore. Listings
/// leave out such files ([`is_key`](Self::is_key)). A killed process leaves the lock file, and it locks nothing any
/// more.
///
/// tensorstore must have its default mode of locking, `{"file_io_locking": {"mode": "os"}}`. With the modes
/// `lockfile` and `none`, it does not see this lock.
///
/// A process has one lock at a time: two processes that each have a lock and want the lock of the other refuse each
/// other when their time is over. A forked child has no lock of its parent, but keeps the lock alive if the parent
/// is killed and the child runs on without `exec`.
///
/// ```
/// # if cfg!(not(all(target_os = "linux", target_pointer_width = "64"))) {
/// #     return Ok(());
/// # }
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("c/0/0");
/// use std::io::Write;
/// use std::time::Duration;
/// use zarrs_cuda::storage::{Durable, LockFile, NewFile};
///
/// let mut lock = LockFile::take(&path, Duration::from_secs(5))?;
/// assert!(LockFile::try_take(&path)?.is_none()); // others wait, or do without
/// let new = NewFile::beside(&path)?;
/// new.file().write_all(b"a shard")?;
/// lock.replace(new, Durable::Bytes)?;
/// drop(lock);
/// assert_eq!(std::fs::read(&path)?, b"a shard");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # File systems
/// The lock is an advisory lock of an open file description (`F_OFD_SETLK`), for Linux on 64 bits.
///
/// | file system | locks |
/// |---|---|
/// | ext4, XFS, Btrfs, ZFS, tmpfs, overlayfs | between all processes of the machine |
/// | NFS 4 | between all machines that mount it so |
/// | NFS 3 | between machines if `lockd` runs on both sides; with the option `nolock` or `local_lock=posix` or `all`, only within a machine |
/// | Lustre | with the option `flock` between machines; with `localflock` only within a machine; with `noflock`, an error |
/// | SMB (CIFS) | between machines; with the option `nobrl` only within a machine |
/// | FUSE (sshfs, object stores) | as the program decides; often only within a machine |
///
/// A file system without such locks is an error, never a lock that locks nothing. Whether a lock reaches other
/// machines cannot be seen: look at the options of the mount.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct LockFile {
    value: PathBuf,
    lock: PathBuf,
    file: File,
    /// The process that has the lock.
    process: u32,
    /// The time of the value before the next write; `None` if there is no value.
    before: Option<SystemTime>,
    /// The deepest directory above the value that existed before, if directories were made.
    above_new: Option<PathBuf>,
}

/// The result of trying to lock once.
enum Tried {
    Locked(LockFile),
    /// Another process has the lock.
    Busy,
    /// The lock file was deleted or renamed after it was opened, or its directory was.
    Gone,
}

impl LockFile {
    /// Locks the file at `value`, which may not exist. Waits while another process has the lock, for at most
    /// `limit`. Makes the missing directories above the file.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] if another process had the lock all the time; [`ErrorKind::Unsupported`] if the
    /// file system or the operating system has no such locks; otherwise the error of the file system.
    pub fn take(value: &Path, limit: Duration) -> io::Result<Self> {
        const LONGEST: Duration = Duration::from_millis(4);
        let since = Instant::now();
        let mut pause = Duration::from_micros(50);
        let mut above_new = None;
        loop {
            let tried = Self::try_once(value, &mut above_new)?;
            if let Tried::Locked(lock) = tried {
                return Ok(lock);
            }
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(busy(value, since.elapsed()));
            }
            thread::sleep(pause.min(left));
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Locks the file at `value` without waiting, as [`take`](Self::take) does; `None` if another process has the
    /// lock, or has just released it.
    ///
    /// # Errors
    /// The errors of [`take`](Self::take), except [`ErrorKind::ResourceBusy`].
    pub fn try_take(value: &Path) -> io::Result<Option<Self>> {
        Ok(match Self::try_once(value, &mut None)? {
            Tried::Locked(lock) => Some(lock),
            Tried::Busy | Tried::Gone => None,
        })
    }

    /// Returns whether `key`, which may be the name of a file, is that of a lock file. Listings leave such keys out,
    /// and so does tensorstore.
    #[must_use]
    pub fn is_key(key: &str) -> bool {
        is_lock_file(key)
    }

    fn try_once(value: &Path, above_new: &mut Option<PathBuf>) -> io::Result<Tried> {
        let mut lock = value.as_os_str().to_owned();
        lock.push(LOCK_SUFFIX);
        let lock = PathBuf::from(lock);
        let cannot = |doing: &str, error: &io::Error| {
            let what = format!(
                "cannot {doing} the lock file {}: {error}. Nothing was written. See to it that this process may make files in its directory",
                lock.display()
            );
            io::Error::new(error.kind(), what)
        };
        let file = match open(&lock) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = make_directories(value);
                let made = made.map_err(|error| cannot("make the directory of", &error))?;
                if above_new.is_none() {
                    *above_new = made;
                }
                match open(&lock) {
                    // Another process has deleted the directory meanwhile.
                    Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Tried::Gone),
                    opened => opened,
                }
            }
            opened => opened,
        };
        let file = file.map_err(|error| cannot("open", &error))?;
        let looked = file.metadata();
        let looked = looked.map_err(|error| cannot("look at", &error))?;
        if !looked.is_file() {
            let error = io::Error::new(ErrorKind::InvalidInput, "it is not a file");
            return Err(cannot("take", &error));
        }
        match locks::lock(&file) {
            Ok(true) => {}
            Ok(false) => return Ok(Tried::Busy),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Err(unsupported(&lock, &error));
            }
            Err(error) => return Err(cannot("lock", &error)),
        }
        // From here on, `drop` deletes the lock file and unlocks it.
        let mut taken = Self {
            value: value.to_path_buf(),
            file,
            process: std::process::id(),
            before: None,
            above_new: None,
            lock: PathBuf::new(),
        };
        if !is_at(&taken.file, &lock) {
            // The lock file that has the name now belongs to others, and `drop` finds no name to delete.
            return Ok(Tried::Gone);
        }
        taken.lock.clone_from(&lock);
        taken.above_new = above_new.take();
        // The length is read again: the process before may have written, and then been killed.
        let emptied = taken
            .file
            .metadata()
            .and_then(|metadata| match metadata.len() {
                0 => Ok(()),
                _ => taken.file.set_len(0),
            });
        emptied.map_err(|error| cannot("empty", &error))?;
        taken.before = match fs::metadata(value) {
            Ok(metadata) => Some(metadata.modified()?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                let what = format!("cannot look at {}: {error}", value.display());
                return Err(io::Error::new(error.kind(), what));
            }
        };
        Ok(Tried::Locked(taken))
    }

    /// Checks that this process still has the lock: that no one has deleted the lock file.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] if the lock file is gone, or another file has its name.
    pub fn check(&self) -> io::Result<()> {
        if self.process == std::process::id() && is_at(&self.file, &self.lock) {
            return Ok(());
        }
        let what = format!(
            "the lock file {} was deleted while this process had the lock, so another process may write {}. Nothing was written: try again, and do not delete lock files of processes that run",
            self.lock.display(),
            self.value.display()
        );
        Err(io::Error::new(ErrorKind::ResourceBusy, what))
    }

    /// Replaces the locked file by `new`, which was made beside it, and gives it a later time. So other processes
    /// notice the change. The names of directories that were made for the lock are synced, too.
    ///
    /// # Errors
    /// Those of [`check`](Self::check) and of [`NewFile::rename_to`].
    pub fn replace(&mut self, mut new: NewFile, durable: Durable<'_>) -> io::Result<()> {
        self.check()?;
        let time = later(new.file(), self.before)?;
        if let Some(there) = &self.above_new {
            new.set_new_below(there);
        }
        new.rename_to(&self.value, durable)?;
        self.before = Some(time);
        Ok(())
    }

    /// Gives the locked file a later time after this process has written parts of it in place. So other processes
    /// notice the change, also if they have read the file while it was written.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn wrote_in_place(&mut self) -> io::Result<()> {
        let file = match OpenOptions::new().write(true).open(&self.value) {
            // The update has erased the file, or has not made one.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.before = None;
                return Ok(());
            }
            opened => opened?,
        };
        let now = file.metadata()?.modified()?;
        let before = self.before.map_or(now, |before| before.max(now));
        self.before = Some(later(&file, Some(before))?);
        Ok(())
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // A forked child has the same open file: if it unlocked it, the parent would not have the lock any more.
        if self.process != std::process::id() {
            return;
        }
        if !self.lock.as_os_str().is_empty() && is_at(&self.file, &self.lock) {
            // A lock file that stays locks nothing.
            let _ = fs::remove_file(&self.lock);
        }
        // The file is unlocked explicitly: if a forked child has the same open file, closing it does not unlock it.
        let _ = locks::unlock(&self.file); // the lock ends with the process at the latest
    }
}

/// Sees to it that the time of `file` is later than `before`. Returns the time of `file`.
fn later(file: &File, before: Option<SystemTime>) -> io::Result<SystemTime> {
    let time = file.metadata()?.modified()?;
    let Some(before) = before.filter(|before| *before >= time) else {
        return Ok(time);
    };
    // Some file systems keep times in steps of microseconds or seconds.
    for step in [
        Duration::from_nanos(1),
        Duration::from_micros(1),
        Duration::from_millis(1),
        Duration::from_secs(1),
        Duration::from_secs(2),
    ] {
        if let Some(time) = before.checked_add(step) {
            file.set_modified(time)?;
        }
        let time = file.metadata()?.modified()?;
        if time > before {
            return Ok(time);
        }
    }
    let what = "the file system did not take a later time of a shard, so tensorstore may not notice the write";
    Err(io::Error::new(ErrorKind::Unsupported, what))
}

fn busy(value: &Path, waited: Duration) -> io::Error {
    let what = format!(
        "other processes had the lock file {}{LOCK_SUFFIX} for {:.1} s, longer than this process waits. The file was not written. Try again, or allow more time",
        value.display(),
        waited.as_secs_f64()
    );
    io::Error::new(ErrorKind::ResourceBusy, what)
}

fn unsupported(lock: &Path, error: &io::Error) -> io::Error {
    let what = format!(
        "cannot lock {}: {error}. Nothing was written. Mount the file system with locks between processes (Lustre: the option flock; NFS 3: lockd), or write with one process and without lock files",
        lock.display()
    );
    io::Error::new(ErrorKind::Unsupported, what)
}

/// Opens a lock file, and makes it if it is missing.
#[cfg(unix)]
fn open(lock: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    // A link would be opened at its end, and renamed at its name. Opening a pipe would wait.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    options.custom_flags(flags).open(lock)
}

#[cfg(not(unix))]
fn open(lock: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    options.open(lock)
}

/// Locks of open file descriptions.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[allow(unsafe_code, reason = "no safe function has these locks")]
mod locks {
    use std::fs::File;
    use std::io::{self, ErrorKind};
    use std::os::fd::AsRawFd;

    /// Locks all of `file`. Returns whether it is locked now; `false` if another process has locked it.
    pub(super) fn lock(file: &File) -> io::Result<bool> {
        match set(file, libc::F_WRLCK) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => Ok(false),
                Some(libc::ENOLCK | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS) => {
                    let what = format!("the file system has no locks of open files ({error})");
                    Err(io::Error::new(ErrorKind::Unsupported, what))
                }
                _ => Err(error),
            },
        }
    }

    pub(super) fn unlock(file: &File) -> io::Result<()> {
        set(file, libc::F_UNLCK)
    }

    fn set(file: &File, kind: i32) -> io::Result<()> {
        // The range begins at byte 0, and a length of 0 reaches to the end of any file. The system demands the
        // process 0.
        let range = libc::flock {
            l_type: i16::try_from(kind).map_err(io::Error::other)?,
            l_whence: i16::try_from(libc::SEEK_SET).map_err(io::Error::other)?,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        loop {
            // SAFETY: the file is open, and the call only reads `range`, which lives long enough.
            let done =
                unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
            if done == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// No locks: this system has other ones, and nobody has tested them with tensorstore.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
mod locks {
    use std::fs::File;
    use std::io::{self, ErrorKind};

    pub(super) fn lock(_file: &File) -> io::Result<bool> {
        let what = "lock files are for Linux on 64 bits";
        Err(io::Error::new(ErrorKind::Unsupported, what))
    }

    pub(super) fn unlock(_file: &File) -> io::Result<()> {
        Ok(())
    }
}
