//! Gives processes turns on files: they compare and write a shard that is a file one after the other.
//!
//! A codec takes a turn among the encoders of its process (`codec_queue.rs`), and does not know whether its
//! shard is a file. A store of files knows it. So the turn of a thread opens a [`Scope`], and the store
//! [holds](hold) each file that it is asked for during the turn. The locks end with the turn.
//!
//! 1. A lock is an advisory lock of the open file. The system takes it away when the process ends,
//!    however it ends.
//! 2. Another process may replace the file while this one waits for its lock. So the name is compared
//!    after the file was locked.
//! 3. If the file does not exist, its directory is locked.
//! 4. No turn waits longer than its limit. Then the turn is refused with [`ErrorKind::ResourceBusy`].
//! 5. Some file systems have no locks. On such a file system, nothing is locked.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

thread_local! {
    /// The files that each turn of this thread holds. The innermost turn is the last.
    static SCOPES: RefCell<Vec<Files>> = const { RefCell::new(Vec::new()) };
}

/// The files that one turn holds.
struct Files {
    /// The time at which the turn stops waiting; `None` if it waits without limit.
    until: Option<Instant>,
    held: Vec<Held>,
}

/// A locked file or, if the file does not exist, its locked directory.
struct Held {
    path: PathBuf,
    locked: File,
}

impl Drop for Held {
    fn drop(&mut self) {
        // The file is unlocked explicitly: if a forked child has the same open file, closing it does not
        // unlock it.
        let _ = self.locked.unlock(); // the lock ends with the process at the latest
    }
}

/// The scope of a thread's turn. Files that its store holds in the scope are unlocked when the scope is
/// dropped.
pub(super) struct Scope(PhantomData<*const ()>);

impl Scope {
    /// Opens a scope. Its files are waited for until `limit` after `since`.
    pub(super) fn new(since: Instant, limit: Duration) -> Self {
        let until = since.checked_add(limit);
        let held = Vec::new();
        SCOPES.with_borrow_mut(|scopes| scopes.push(Files { until, held }));
        Self(PhantomData)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        drop(SCOPES.with_borrow_mut(Vec::pop));
    }
}

/// Holds the file at `path` until the turn of this thread ends. Without a turn, it does nothing.
///
/// ```
/// # use std::path::Path;
/// use zarrs_cuda::storage::in_place;
///
/// /// Reads a file for a store, before a partial encoder writes parts of it.
/// fn read(path: &Path) -> std::io::Result<Vec<u8>> {
///     in_place::hold(path)?; // until the encoder has written
///     std::fs::read(path)
/// }
/// # let file = tempfile::NamedTempFile::new()?;
/// # assert_eq!(read(file.path())?, b"");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ErrorKind::ResourceBusy`] if another process holds the file for longer than the turn may wait, or if an
/// outer turn of this thread holds it.
pub fn hold(path: &Path) -> io::Result<()> {
    let known = SCOPES.with_borrow(|scopes| {
        let (inner, outer) = scopes.split_last()?;
        let has = |files: &Files| files.held.iter().any(|held| held.path == path);
        Some((inner.until, has(inner), outer.iter().any(has)))
    });
    match known {
        None | Some((_, true, _)) => Ok(()),
        Some((_, false, true)) => Err(busy(path, "an outer partial write of this thread")),
        Some((until, false, false)) => {
            if let Some(locked) = lock(path, until)? {
                keep(path, locked);
            }
            Ok(())
        }
    }
}

/// Lets the turn of this thread hold `file`, which this process has made and will give the name `path`.
///
/// # Errors
/// [`ErrorKind::ResourceBusy`] if another process has locked the file.
pub(super) fn hold_new(path: &Path, file: &File) -> io::Result<()> {
    if SCOPES.with_borrow(Vec::is_empty) {
        return Ok(());
    }
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(busy(path, "another process")),
        Err(TryLockError::Error(_)) => Ok(()),
        Ok(()) => {
            keep(path, file.try_clone()?);
            Ok(())
        }
    }
}

fn keep(path: &Path, locked: File) {
    SCOPES.with_borrow_mut(|scopes| {
        if let Some(files) = scopes.last_mut() {
            let path = path.to_path_buf();
            files.held.push(Held { path, locked });
        }
    });
}

fn busy(path: &Path, who: &str) -> io::Error {
    let what = format!(
        "{} is locked by {who}, and the turn of a partial write did not come. Nothing of the shard was written. Try again, or allow more time with zarrs_cuda::Options::with_turn_limit",
        path.display()
    );
    io::Error::new(ErrorKind::ResourceBusy, what)
}

/// Returns the locked file at `path` or, if there is no file, its locked directory; `None` if nothing can be
/// locked.
fn lock(path: &Path, until: Option<Instant>) -> io::Result<Option<File>> {
    loop {
        let mut options = OpenOptions::new();
        let directory = path.parent().unwrap_or(Path::new(""));
        let (file, place) = match options.read(true).write(true).open(path) {
            Ok(file) => (file, path),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let opened = fs::create_dir_all(directory).and_then(|()| File::open(directory));
                match opened {
                    Ok(file) => (file, directory),
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    Err(_) => return Ok(None),
                }
            }
            // The store gets the same error when it opens the file, and reports it.
            Err(_) => return Ok(None),
        };
        if !waited(&file, path, until)? {
            return Ok(None);
        }
        let is_new = place != path && fs::metadata(path).is_ok();
        if !is_new && is_at(&file, place) {
            return Ok(Some(file));
        }
        let _ = file.unlock(); // the file is closed in any case
    }
}

/// Waits for the lock of `file`. Returns whether the file system has locks.
fn waited(file: &File, path: &Path, until: Option<Instant>) -> io::Result<bool> {
    const LONGEST: Duration = Duration::from_millis(4);
    let mut pause = Duration::from_micros(50);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {}
            Err(TryLockError::Error(_)) => return Ok(false),
            Err(TryLockError::WouldBlock) => {
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Err(busy(path, "another process"));
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST);
            }
        }
    }
}

/// Returns whether `path` is a name of the open file.
#[cfg(unix)]
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => id(open) == id(named),
        _ => false,
    }
}

/// Returns whether a file has the name `path`. On this system, it is taken for the open file.
#[cfg(not(unix))]
pub(super) fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}
