//! Locks shards: all writers of a process that write one value of one store do so one after the other.
//!
//! The locks of adapters (`key_locks.rs`) belong to one adapter. These locks belong to the process: two writers
//! share the lock of a value if both reach the value through the same store, or the value is a file at the same
//! real path.
//!
//! 1. Each value has a lock of its own, so writers of other values never wait. A lock that nobody has or wants
//!    takes no memory.
//! 2. Blocking and awaited writers wait in one line for each value, the first come first.
//! 3. Nobody waits with a limit, so a writer has at most one lock at a time. Two writers that each have a lock and
//!    wait for the lock of the other would wait for ever.
//! 4. A thread of rayon must not wait for another task of rayon while it has a lock: rayon could give the thread a
//!    task that waits for the same lock.
//! 5. A forked child has locks of its own: the threads that had locks are not there. Other processes are kept away
//!    by lock files (`lock_files.rs`).

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;

use zarrs_cuda_engine::process::per_process::PerProcess;
use zarrs_storage::StoreKey;

use super::codec_queue::Unpark;

#[cfg(test)]
mod tests;

/// The locks of the values of one store, which all writers of the process share. Clones have the same locks.
#[derive(Clone)]
pub(crate) struct ShardLocks(Store);

/// The identity of a store.
#[derive(Clone)]
enum Store {
    /// The directory of a store of files.
    Files(PathBuf),
    /// The address of any other store. The second field is a weak pointer to the store, so that no later store
    /// gets the same address.
    Address(
        usize,
        #[allow(dead_code, reason = "while it lives, no other store gets the address")]
        Arc<dyn Send + Sync>,
    ),
}

/// A value that is locked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Value {
    /// The path of a file. Its directory has no links.
    File(PathBuf),
    /// A key of the store at an address.
    Key(usize, StoreKey),
}

/// The writer that has the lock of a value, and the writers that wait for this lock.
struct Line {
    /// The ticket of the writer that has the lock.
    has_lock: u64,
    waiting: VecDeque<(u64, Waker)>,
}

#[derive(Default)]
struct Lines {
    /// The lines of all values that are locked.
    of_values: HashMap<Value, Line>,
    next_ticket: u64,
}

impl Lines {
    /// Gives the lock of `value` back. Returns the waker of the writer that has the lock now.
    #[must_use]
    fn release(&mut self, value: &Value) -> Option<Waker> {
        let line = self.of_values.get_mut(value)?;
        let Some((next, waker)) = line.waiting.pop_front() else {
            self.of_values.remove(value);
            return None;
        };
        line.has_lock = next;
        Some(waker)
    }
}

/// The locks of one process.
struct Process {
    id: u32,
    lines: Mutex<Lines>,
}

impl Process {
    /// Returns the locks of this process. A forked child does not use the locks of its parent.
    fn this() -> &'static Self {
        static THIS: PerProcess<Process> = PerProcess::new(|| Process {
            id: std::process::id(),
            lines: Mutex::default(),
        });
        THIS.get()
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_this(&self) -> bool {
        self.id == std::process::id()
    }

    fn release(&self, value: &Value) {
        // A waker is the application's code, so it is called without the lock of the lines.
        let next = self.lines().release(value);
        if let Some(next) = next {
            next.wake();
        }
    }
}

/// The lock of a shard, which is released when this value is dropped, on any thread. Its writer takes no other
/// lock meanwhile.
#[must_use = "the lock is released when this is dropped"]
pub(crate) struct ShardLock {
    process: &'static Process,
    value: Value,
    /// The store, which keeps its address.
    _store: Store,
}

impl Drop for ShardLock {
    fn drop(&mut self) {
        // A forked child must not touch the locks of its parent when it drops a lock of its parent.
        if self.process.is_this() {
            self.process.release(&self.value);
        }
    }
}

/// The wait for a lock. When it is dropped, its writer leaves the line.
struct Taking {
    process: &'static Process,
    value: Value,
    store: Store,
    ticket: Option<u64>,
}

impl Taking {
    fn poll(&mut self, waker: &Waker) -> Poll<ShardLock> {
        if !self.process.is_this() {
            // A forked child waits in the line of its own process.
            self.process = Process::this();
            self.ticket = None;
        }
        // An old waker is dropped after the lock of the lines is released, because a waker is the application's
        // code.
        let _old;
        let mut lines = self.process.lines();
        let ticket = *self.ticket.get_or_insert_with(|| {
            let ticket = lines.next_ticket;
            lines.next_ticket += 1;
            ticket
        });
        if let Some(line) = lines.of_values.get_mut(&self.value) {
            if line.has_lock != ticket {
                let place = line.waiting.iter_mut().find(|(other, _)| *other == ticket);
                if let Some((_, waiting)) = place {
                    _old = std::mem::replace(waiting, waker.clone());
                } else {
                    line.waiting.push_back((ticket, waker.clone()));
                }
                return Poll::Pending;
            }
        } else {
            let line = Line {
                has_lock: ticket,
                waiting: VecDeque::new(),
            };
            lines.of_values.insert(self.value.clone(), line);
        }
        self.ticket = None;
        Poll::Ready(ShardLock {
            process: self.process,
            value: self.value.clone(),
            _store: self.store.clone(),
        })
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.filter(|_| self.process.is_this()) else {
            return;
        };
        let mut removed = None;
        let mut lines = self.process.lines();
        let Some(line) = lines.of_values.get_mut(&self.value) else {
            return;
        };
        if line.has_lock == ticket {
            // The writer has got the lock, and has not noticed it.
            drop(lines);
            self.process.release(&self.value);
        } else if let Some(place) = line.waiting.iter().position(|(other, _)| *other == ticket) {
            removed = line.waiting.remove(place);
            drop(lines);
        }
        drop(removed);
    }
}

impl ShardLocks {
    /// Returns the locks of the values of `store`, which is known by its address: writers share locks if they share
    /// the `Arc`.
    pub(crate) fn of<S: ?Sized + Send + Sync + 'static>(store: &Arc<S>) -> Self {
        let address = Arc::as_ptr(store).cast::<()>().addr();
        Self(Store::Address(address, Arc::new(Arc::downgrade(store))))
    }

    /// Returns the locks of the files in `directory`, which may not exist yet.
    pub(crate) fn of_files(directory: &Path) -> Self {
        Self(Store::Files(directory.to_path_buf()))
    }

    /// Blocks until the value at `key` is locked. The caller has no other lock.
    ///
    /// # Errors
    /// The error of a directory whose links cannot be followed.
    pub(crate) fn lock(&self, key: &StoreKey) -> io::Result<ShardLock> {
        let mut taking = self.taking(key)?;
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            if let Poll::Ready(lock) = taking.poll(&waker) {
                return Ok(lock);
            }
            thread::park();
        }
    }

    /// Waits until the value at `key` is locked. The caller has no other lock. A caller that drops the future
    /// leaves the line.
    ///
    /// # Errors
    /// The error of a directory whose links cannot be followed.
    #[cfg(feature = "async")]
    pub(crate) async fn async_lock(&self, key: &StoreKey) -> io::Result<ShardLock> {
        let mut taking = self.taking(key)?;
        Ok(std::future::poll_fn(|context| taking.poll(context.waker())).await)
    }

    fn taking(&self, key: &StoreKey) -> io::Result<Taking> {
        let value = match &self.0 {
            Store::Files(directory) => Value::File(real_name(&directory.join(key.as_str()))?),
            Store::Address(address, _) => Value::Key(*address, key.clone()),
        };
        Ok(Taking {
            process: Process::this(),
            value,
            store: self.0.clone(),
            ticket: None,
        })
    }
}

/// Returns `path` with the real path of its directory. The name stays as it is, also if it is the name of a link:
/// a writer that replaces the file replaces the link.
///
/// # Errors
/// The error of a directory whose links cannot be followed.
fn real_name(path: &Path) -> io::Result<PathBuf> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return real_directory(path);
    };
    Ok(real_directory(directory)?.join(name))
}

/// Returns the real path of a directory, whose last parts may be missing.
fn real_directory(directory: &Path) -> io::Result<PathBuf> {
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    let real = |path: &Path| match fs::canonicalize(path) {
        Ok(real) => Ok(Some(real)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!(
                "cannot follow the links in {}, in which a shard is locked: {error}; see to it that this process may read its directories",
                path.display()
            ),
        )),
    };
    if let Some(found) = real(directory)? {
        return Ok(found);
    }
    let mut found = PathBuf::new();
    for part in std::path::absolute(directory)?.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(found.pop()),
            part => {
                found.push(part);
                if let Some(real) = real(&found)? {
                    found = real;
                }
            }
        }
    }
    Ok(found)
}
