//! Leases on objects: as on files, without locks, and with requests that have conditions.
//!
//! 1. The lease is made only if there is none, and its count is raised only if it is the one that this process
//!    stored last. So of two processes one has it.
//! 2. A lease of a process of this machine that has ended is taken over at once. Every other one must stay as
//!    it is for [`DURATION`], by the clock of the process that waits.
//! 3. Some servers take conditions and ignore them. They are found out by a request that must fail.
//! 4. The lease is erased when it is dropped. A forked child leaves it to its parent.

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey};

use super::conditional::{ConditionalStore, ValueVersion};
use super::lease::{BEAT, DURATION, busy, owner_of};
use super::owner::{Life, Owner};

/// How often a lease is made anew that other processes make and erase.
const ATTEMPTS: usize = 100;

/// A lease of this process.
pub(crate) struct ObjectLease {
    held: Arc<Held>,
    process: u32,
    /// Its end ends the thread that raises the count.
    _raises: Sender<()>,
}

struct Held {
    store: Arc<dyn ConditionalStore>,
    key: StoreKey,
    /// Tells apart the leases of one process.
    number: u64,
    /// The count, and the stored version; `None` if another process has taken the lease over.
    state: Mutex<Option<(u64, ValueVersion)>>,
}

impl fmt::Debug for ObjectLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectLease")
            .field("key", &self.held.key)
            .finish_non_exhaustive()
    }
}

impl ObjectLease {
    /// Take the lease at `key`. `None` if the store has no conditional requests, or ignores the conditions.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] in a [`StorageError::IOError`] if another process has the lease, or another
    /// part of this process; otherwise the store's.
    pub(crate) fn take(
        store: Arc<dyn ConditionalStore>,
        key: StoreKey,
    ) -> Result<Option<Self>, StorageError> {
        Self::take_within(store, key, DURATION)
    }

    fn take_within(
        store: Arc<dyn ConditionalStore>,
        key: StoreKey,
        duration: Duration,
    ) -> Result<Option<Self>, StorageError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let held = Held {
            store,
            key,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            state: Mutex::default(),
        };
        let made = held.make(duration);
        if made.is_err() {
            let _ = held.erase(); // the first error is the one to tell
        }
        match made {
            Ok(true) => {}
            Ok(false) | Err(StorageError::Unsupported(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
        let held = Arc::new(held);
        let (raises, ended) = channel();
        let lease = Self {
            held: held.clone(),
            process: std::process::id(),
            _raises: raises,
        };
        thread::Builder::new()
            .name("zarrs_cuda lease".to_owned())
            .spawn(move || {
                while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                    held.beat();
                }
            })?;
        Ok(Some(lease))
    }
}

impl Drop for ObjectLease {
    fn drop(&mut self) {
        // In a forked child a thread of the parent may hold the lock.
        if self.process == std::process::id()
            && let Err(error) = self.held.erase()
        {
            tracing::warn!(key = %self.held.key, %error, "a lease was left behind");
        }
    }
}

impl Held {
    /// The value of the lease with this count.
    fn value(&self, count: u64) -> String {
        format!("{}\n{count:020}\n{}\n", Owner::this(), self.number)
    }

    /// Whether `value` is one of this lease.
    fn is_ours(&self, value: &[u8]) -> bool {
        let mut lines = value.split(|byte| *byte == b'\n');
        lines.next() == Some(Owner::this().to_string().as_bytes())
            && lines.nth(1) == Some(self.number.to_string().as_bytes())
    }

    /// Store the value with this count in the place of `version`. Returns its version; `None` if another
    /// process has the lease.
    fn store(
        &self,
        count: u64,
        version: Option<&ValueVersion>,
    ) -> Result<Option<ValueVersion>, StorageError> {
        let stored = self
            .store
            .set_if(&self.key, self.value(count).into(), version)?;
        if stored.is_some() {
            return Ok(stored);
        }
        // A request may have been sent twice, because its answer was lost.
        let now = self.store.get_with_version(&self.key)?;
        let ours = now.filter(|(value, _)| self.is_ours(value));
        Ok(ours.map(|(_, version)| version))
    }

    fn busy(&self, value: &[u8]) -> StorageError {
        let value = String::from_utf8_lossy(value);
        busy(&self.key, &value).into()
    }

    /// Make the lease, and find out whether the store obeys conditions.
    fn make(&self, duration: Duration) -> Result<bool, StorageError> {
        for _ in 0..ATTEMPTS {
            let found = self.store.get_with_version(&self.key)?;
            let before = match found {
                None => None,
                Some((value, version)) => {
                    if !self.is_left(&value, &version, duration)? {
                        continue;
                    }
                    Some(version)
                }
            };
            let Some(version) = self.store(0, before.as_ref())? else {
                continue; // another process was first
            };
            let Some(next) = self.store(1, Some(&version))? else {
                continue;
            };
            // This version is no longer there.
            let value = self.value(2).into();
            let obeys = self.store.set_if(&self.key, value, Some(&version))?;
            if obeys.is_some() {
                self.store.erase(&self.key)?;
                return Ok(false);
            }
            *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Some((1, next));
            return Ok(true);
        }
        let what = format!(
            "other processes have made and erased the lease {} {ATTEMPTS} times: try again when they have ended",
            self.key
        );
        Err(io::Error::new(ErrorKind::ResourceBusy, what).into())
    }

    /// Whether the process that stored `value` has ended, or does not raise its count. It may be that the
    /// lease is gone meanwhile: then this is false.
    fn is_left(
        &self,
        value: &Bytes,
        version: &ValueVersion,
        duration: Duration,
    ) -> Result<bool, StorageError> {
        let owner = owner_of(&String::from_utf8_lossy(value));
        match owner.as_ref().map(Owner::life) {
            Some(Life::Ended) => return Ok(true),
            Some(Life::Runs) if owner.as_ref() != Some(Owner::this()) => {
                return Err(self.busy(value));
            }
            _ => {}
        }
        tracing::info!(key = %self.key, "a lease may be another machine's: waiting whether it changes");
        let since = Instant::now();
        while since.elapsed() < duration {
            thread::sleep((duration / 10).min(duration.saturating_sub(since.elapsed())));
            match self.store.get_with_version(&self.key)? {
                None => return Ok(false),
                Some((now, as_now)) if now != *value || as_now != *version => {
                    return Err(self.busy(&now));
                }
                Some(_) => {}
            }
        }
        Ok(true)
    }

    /// Raise the count.
    fn beat(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((count, version)) = &*state else {
            return;
        };
        let count = count + 1;
        match self.store(count, Some(version)) {
            Ok(Some(version)) => *state = Some((count, version)),
            Ok(None) => {
                tracing::warn!(key = %self.key, "another process has taken over the lease of this one, which did not raise its count in time");
                *state = None;
            }
            Err(error) => {
                tracing::warn!(key = %self.key, %error, "the count of a lease was not raised");
            }
        }
    }

    /// Erase the lease if it is this one.
    fn erase(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = None;
        match self.store.get_with_version(&self.key)? {
            Some((value, _)) if self.is_ours(&value) => self.store.erase(&self.key),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use zarrs_storage::{ReadableStorageTraits, WritableStorageTraits};

    use super::*;
    use crate::store::conditional::in_memory::{Conditions, Objects};

    const SHORT: Duration = Duration::from_millis(60);

    fn key() -> StoreKey {
        StoreKey::new("a/lease").unwrap()
    }

    fn stored(store: &Objects) -> Option<String> {
        let value = store.get(&key()).unwrap();
        value.map(|value| String::from_utf8(value.to_vec()).unwrap())
    }

    fn take(store: &Arc<Objects>) -> Result<Option<ObjectLease>, StorageError> {
        ObjectLease::take_within(store.clone(), key(), SHORT)
    }

    fn is_busy(taken: &Result<Option<ObjectLease>, StorageError>) -> bool {
        matches!(taken, Err(StorageError::IOError(error)) if error.kind() == ErrorKind::ResourceBusy)
    }

    /// A process that waits so long ends at the first change that it sees.
    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn one_at_a_time() {
        let store = Objects::new(Conditions::Obeyed);
        let take = || ObjectLease::take_within(store.clone(), key(), LONG);
        for _ in 0..2 {
            let lease = take().unwrap().unwrap();
            // The owner raises its count while the other one looks.
            let second = thread::scope(|scope| {
                let second = scope.spawn(take);
                while !second.is_finished() {
                    lease.held.beat();
                    thread::sleep(BEAT / 1000);
                }
                second.join().unwrap()
            });
            assert!(is_busy(&second));
            drop(lease);
            assert_eq!(stored(&store), None);
        }
    }

    #[test]
    fn one_of_several_that_begin_at_once() {
        let store = Objects::new(Conditions::Obeyed);
        let ended = AtomicU64::new(0);
        let of_thread = || {
            let taken = ObjectLease::take_within(store.clone(), key(), LONG);
            ended.fetch_add(1, Ordering::SeqCst);
            if let Ok(Some(lease)) = &taken {
                while ended.load(Ordering::SeqCst) < 4 {
                    lease.held.beat();
                    thread::sleep(BEAT / 1000);
                }
            }
            taken
        };
        let taken = thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(of_thread));
            threads.map(|thread| thread.join().unwrap())
        });
        let leases = taken.iter().filter(|taken| matches!(taken, Ok(Some(_))));
        assert_eq!(leases.count(), 1);
        assert_eq!(taken.iter().filter(|taken| is_busy(taken)).count(), 3);
    }

    #[test]
    fn stores_without_conditions_have_none() {
        for conditions in [Conditions::Refused, Conditions::Ignored] {
            let store = Objects::new(conditions);
            assert!(take(&store).unwrap().is_none());
            assert_eq!(stored(&store), None);
        }
    }

    #[test]
    fn leases_that_were_left() {
        let store = Objects::new(Conditions::Obeyed);
        let theirs = format!("00000000000000ff-2-3\n{:020}\n0\n", 1);
        store.set(&key(), theirs.into()).unwrap();
        let since = Instant::now();
        drop(take(&store).unwrap().unwrap());
        assert!(since.elapsed() >= SHORT);
        // A process of this machine that has ended.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = child.id();
        child.wait().unwrap();
        let this = Owner::this().to_string();
        let machine = this.split('-').next().unwrap();
        let ended = format!("{machine}-{id}-1\n{:020}\n0\n", 1);
        store.set(&key(), ended.into()).unwrap();
        let lease = ObjectLease::take(store.clone(), key()).unwrap().unwrap();
        // Another process takes it over, and it is that process's then.
        let theirs = format!("00000000000000ff-2-3\n{:020}\n0\n", 2);
        store.set(&key(), theirs.clone().into()).unwrap();
        lease.held.beat();
        drop(lease);
        assert_eq!(stored(&store), Some(theirs));
    }

    /// The answer of a request is lost, and the store says of the second one that the value is another one.
    #[test]
    fn a_request_that_was_sent_twice() {
        let store = Objects::new(Conditions::Obeyed);
        let lease = take(&store).unwrap().unwrap();
        store.set(&key(), lease.held.value(9).into()).unwrap();
        lease.held.beat();
        lease.held.beat();
        let count = |value: String| value.lines().nth(1).unwrap().parse::<u64>().unwrap();
        assert!(count(stored(&store).unwrap()) > 1);
        assert!(lease.held.state.lock().unwrap().is_some());
        drop(lease);
        assert_eq!(stored(&store), None);
    }
}
