//! Leases on objects: as on files, without locks, and with requests that have conditions.
//!
//! 1. The lease is made only if there is none, and its count is raised only if it is the one that this process
//!    stored last. So of two processes one has it.
//! 2. A lease of a process of this machine that has ended is taken over at once. Every other one must stay as
//!    it is for [`DURATION`], by the clock of the process that waits.
//! 3. Some servers take conditions and ignore them. They are found out by a request that must fail.
//! 4. The lease is erased when it is dropped. A forked child leaves it to its parent.
//! 5. A lease that was left is replaced under the condition that it is still the same, and erased then. So no
//!    lease is erased that another process has just made.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey};

use super::conditional::{ConditionalStore, ValueVersion};
use super::lease::{BEAT, DURATION, busy, owner_of};
use super::owner::{Life, Owner};
use zarrs_cuda_engine::process::per_process::PerProcess;

/// How often a lease is made anew that other processes make and erase.
const ATTEMPTS: usize = 100;

/// The numbers of the leases that this process has, or is about to make.
static NUMBERS: PerProcess<Mutex<BTreeSet<u64>>> = PerProcess::new(Mutex::default);

fn numbers() -> MutexGuard<'static, BTreeSet<u64>> {
    NUMBERS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

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
        numbers().insert(held.number);
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

    /// Checks that no process has one of the leases at `keys`. Leases of processes that have ended are erased.
    ///
    /// # Errors
    /// The errors of [`take`](Self::take).
    pub(crate) fn check_free(
        store: &Arc<dyn ConditionalStore>,
        keys: Vec<StoreKey>,
    ) -> Result<(), StorageError> {
        Self::check_free_within(store, keys, DURATION)
    }

    fn check_free_within(
        store: &Arc<dyn ConditionalStore>,
        keys: Vec<StoreKey>,
        duration: Duration,
    ) -> Result<(), StorageError> {
        let mut found = Vec::new();
        for key in keys {
            if let Some((value, version)) = store.get_with_version(&key)? {
                found.push(Found {
                    key,
                    value,
                    version,
                });
            }
        }
        for left in left(&**store, found, duration)? {
            let replaced = store.set_if(&left.key, Bytes::new(), Some(&left.version))?;
            if replaced.is_none() {
                return Err(left.busy());
            }
            store.erase(&left.key)?;
        }
        Ok(())
    }
}

/// A stored lease, as it was read.
struct Found {
    key: StoreKey,
    value: Bytes,
    version: ValueVersion,
}

impl Found {
    /// Whether the process that stored the lease still has it.
    fn life(&self) -> Life {
        let value = String::from_utf8_lossy(&self.value);
        match owner_of(&value) {
            None => Life::Unknown,
            Some(owner) if owner == *Owner::this() => {
                let number = value.lines().nth(2).and_then(|number| number.parse().ok());
                if number.is_some_and(|number| numbers().contains(&number)) {
                    Life::Runs
                } else {
                    Life::Ended
                }
            }
            Some(owner) => owner.life(),
        }
    }

    fn busy(&self) -> StorageError {
        busy(&self.key, &String::from_utf8_lossy(&self.value)).into()
    }
}

/// The leases of `found` whose processes have ended, or that stay as they are for `duration`. Leases that are
/// erased meanwhile are not among them.
///
/// # Errors
/// [`ErrorKind::ResourceBusy`] if a process has one of the leases; otherwise the store's.
fn left(
    store: &dyn ConditionalStore,
    found: Vec<Found>,
    duration: Duration,
) -> Result<Vec<Found>, StorageError> {
    let (mut ended, mut doubtful) = (Vec::new(), Vec::new());
    for found in found {
        match found.life() {
            Life::Ended => ended.push(found),
            Life::Runs => return Err(found.busy()),
            Life::Unknown => doubtful.push(found),
        }
    }
    if let [first, ..] = &doubtful[..] {
        tracing::info!(leases = doubtful.len(), key = %first.key, "leases may be another machine's: waiting whether they change");
    }
    let since = Instant::now();
    // All of them at once: there may be one for each part of an image.
    while !doubtful.is_empty() && since.elapsed() < duration {
        thread::sleep((duration / 10).min(duration.saturating_sub(since.elapsed())));
        let mut unchanged = Vec::new();
        for found in doubtful {
            match store.get_with_version(&found.key)? {
                None => {}
                Some((value, version)) if value == found.value && version == found.version => {
                    unchanged.push(found);
                }
                Some((value, version)) => {
                    return Err(Found {
                        key: found.key,
                        value,
                        version,
                    }
                    .busy());
                }
            }
        }
        doubtful = unchanged;
    }
    ended.append(&mut doubtful);
    Ok(ended)
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

impl Drop for Held {
    fn drop(&mut self) {
        numbers().remove(&self.number);
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

    /// Make the lease, and find out whether the store obeys conditions.
    fn make(&self, duration: Duration) -> Result<bool, StorageError> {
        for _ in 0..ATTEMPTS {
            let found = self.store.get_with_version(&self.key)?;
            let before = match found {
                None => None,
                Some((value, version)) => {
                    let key = self.key.clone();
                    let found = Found {
                        key,
                        value,
                        version,
                    };
                    let Some(left) = left(&*self.store, vec![found], duration)?.pop() else {
                        continue; // it was erased meanwhile
                    };
                    Some(left.version)
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

    #[test]
    fn leases_of_others_are_looked_at() {
        let store = Objects::new(Conditions::Obeyed);
        let check = || {
            let store: Arc<dyn ConditionalStore> = store.clone();
            let keys = [key(), StoreKey::new("a/other").unwrap()].to_vec();
            ObjectLease::check_free_within(&store, keys, SHORT).map(|()| None)
        };
        assert!(!is_busy(&check()));
        let lease = take(&store).unwrap().unwrap();
        assert!(is_busy(&check()));
        // A process that runs has the lease, though it has not raised the count.
        assert!(stored(&store).is_some());
        drop(lease);
        // This process could not erase it.
        let this = Owner::this();
        let left = format!("{this}\n{:020}\n{}\n", 1, u64::MAX);
        store.set(&key(), left.into()).unwrap();
        let since = Instant::now();
        assert!(!is_busy(&check()));
        assert!(since.elapsed() < SHORT);
        assert_eq!(stored(&store), None);
        // Another machine's: it stays as it is, or does not.
        let theirs = |count| format!("00000000000000ff-2-3\n{count:020}\n0\n");
        for raises in [false, true] {
            store.set(&key(), theirs(1).into()).unwrap();
            let checked = thread::scope(|scope| {
                let checked = scope.spawn(check);
                for count in 2..100 {
                    if raises && !checked.is_finished() {
                        store.set(&key(), theirs(count).into()).unwrap();
                    }
                    thread::sleep(SHORT / 50);
                }
                checked.join().unwrap()
            });
            assert_eq!(is_busy(&checked), raises);
            assert_eq!(stored(&store).is_some(), raises);
        }
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
