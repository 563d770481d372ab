//! Takes leases on objects: they work as leases on files do, with conditional requests in place of locks.
//!
//! 1. A process makes the lease only if there is none, and raises the count only if the stored count is the
//!    one that it stored last. So of two processes, only one has the lease.
//! 2. A lease of a process of this machine that has ended is taken over at once. Every other lease must stay
//!    unchanged for [`DURATION`], by the clock of the process that waits.
//! 3. Some servers take conditions and ignore them. Two requests that must fail find these servers out.
//! 4. At the end, the lease is replaced by an empty value, under the condition that it is unchanged, and then
//!    erased. So no process erases a lease that another process has just made. If an erasure comes so late
//!    that another process has taken over the empty value, that process makes its lease again when it raises
//!    the count.
//! 5. A thread of the lease raises the count, and erases the lease at the end. A process that drops the lease
//!    waits for that thread, but not longer than [`ERASURE`]. A forked child leaves the lease to its parent.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::mem;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey};

use super::conditional::{ConditionalStore, ValueVersion};
use super::lease::{BEAT, DURATION, busy, owner_of};
use super::owner::{Life, Owner};
use zarrs_cuda_engine::process::per_process::PerProcess;

/// The number of times that this process tries to make a lease which other processes make and erase.
const ATTEMPTS: usize = 100;

/// The longest time that a process waits for the erasure of its lease.
const ERASURE: Duration = Duration::from_secs(3);

/// The number of times that an erasure is tried, one every [`BEAT`].
const ERASURES: usize = 20;

/// The numbers of the leases on objects that this process has, or is about to make.
static NUMBERS: PerProcess<Mutex<BTreeSet<u64>>> = PerProcess::new(Mutex::default);

fn numbers() -> MutexGuard<'static, BTreeSet<u64>> {
    NUMBERS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lease on an object that this process has.
pub(crate) struct ObjectLease {
    held: Arc<Held>,
    process: u32,
    thread: Option<Beating>,
}

/// The thread that raises the count of a lease, and erases the lease when `end` is dropped.
struct Beating {
    end: Sender<()>,
    /// Closed by the thread when it has erased the lease.
    erased: Mutex<Receiver<()>>,
}

struct Held {
    store: Arc<dyn ConditionalStore>,
    key: StoreKey,
    /// The number that tells the leases of one process apart, because the owner in a lease does not.
    number: u64,
    /// The last count, and the version of the stored value; `None` if another process has taken the lease
    /// over.
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
    /// Takes the lease at `key`. Returns `None` if the store has no conditional requests, or ignores the
    /// conditions.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] in a [`StorageError::IOError`] if another process, or another part of this
    /// process, has the lease; otherwise the errors of the store.
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
        let held = Held {
            store,
            key,
            number: RandomState::new().hash_one(std::process::id()),
            state: Mutex::default(),
        };
        numbers().insert(held.number);
        match held.make(duration) {
            Ok(true) => {}
            Ok(false) | Err(StorageError::Unsupported(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
        let held = Arc::new(held);
        let (end, ends) = channel();
        let (erases, erased) = channel();
        let beating = held.clone();
        let thread = thread::Builder::new()
            .name("zarrs_cuda lease".to_owned())
            .spawn(move || {
                beating.beat_until(&ends);
                beating.erase_at_last();
                drop(erases);
            });
        if let Err(error) = thread {
            held.erase()?;
            return Err(error.into());
        }
        Ok(Some(Self {
            held,
            process: std::process::id(),
            thread: Some(Beating {
                end,
                erased: Mutex::new(erased),
            }),
        }))
    }

    /// Checks that no process has one of the leases at `keys`. Erases leases of processes that have ended.
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
            found.extend(FoundLease::at(&**store, key)?);
        }
        for left in left(&**store, found, duration)? {
            let replaced = store.set_if(&left.key, Bytes::new(), Some(&left.version))?;
            if replaced.is_some() {
                store.erase(&left.key)?;
                continue;
            }
            // If the lease is empty or gone, another process has also found that it was left, and erases it.
            let now = FoundLease::at(&**store, left.key)?;
            if let Some(now) = now.filter(|now| !now.value.is_empty()) {
                return Err(now.busy());
            }
        }
        Ok(())
    }
}

impl Drop for ObjectLease {
    fn drop(&mut self) {
        let Some(Beating { end, erased }) = self.thread.take() else {
            return;
        };
        if self.process != std::process::id() {
            // A thread of the parent may have held the locks of these ends during the fork.
            mem::forget((end, erased));
            return;
        }
        drop(end);
        let erased = erased.into_inner().unwrap_or_else(PoisonError::into_inner);
        if erased.recv_timeout(ERASURE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(key = %self.held.key, "a lease is not erased yet: the store has not answered");
        }
    }
}

/// A stored lease, as it was read.
struct FoundLease {
    key: StoreKey,
    value: Bytes,
    version: ValueVersion,
}

impl FoundLease {
    /// Returns the lease at `key`; `None` if there is none.
    fn at(store: &dyn ConditionalStore, key: StoreKey) -> Result<Option<Self>, StorageError> {
        let found = store.get_with_version(&key)?;
        Ok(found.map(|(value, version)| Self {
            key,
            value,
            version,
        }))
    }

    /// Returns whether the process that stored the lease still has it.
    fn life(&self) -> Life {
        let value = String::from_utf8_lossy(&self.value);
        match owner_of(&value) {
            None => Life::Unknown,
            Some(owner) if owner == *Owner::this() => {
                let number = value.lines().nth(2).and_then(|number| number.parse().ok());
                if number.is_some_and(|number| numbers().contains(&number)) {
                    Life::Runs
                } else {
                    Life::Unknown
                }
            }
            Some(owner) => owner.life(),
        }
    }

    fn busy(&self) -> StorageError {
        busy(&self.key, &String::from_utf8_lossy(&self.value)).into()
    }
}

/// Returns the leases of `found` whose processes have ended, or that stay unchanged for `duration`. Leases
/// that are erased meanwhile are left out.
///
/// # Errors
/// [`ErrorKind::ResourceBusy`] if a process has one of the leases; otherwise the errors of the store.
fn left(
    store: &dyn ConditionalStore,
    found: Vec<FoundLease>,
    duration: Duration,
) -> Result<Vec<FoundLease>, StorageError> {
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
    // All leases are waited for at the same time: there may be one for each part of an image.
    while !doubtful.is_empty() && since.elapsed() < duration {
        thread::sleep((duration / 20).min(duration.saturating_sub(since.elapsed())));
        let mut still = Vec::new();
        for found in doubtful {
            let Some(now) = FoundLease::at(store, found.key)? else {
                continue;
            };
            let is_other = now.value != found.value || now.version != found.version;
            // A lease that has become empty is about to be erased.
            if is_other && !now.value.is_empty() {
                return Err(now.busy());
            }
            still.push(now);
        }
        doubtful = still;
    }
    ended.append(&mut doubtful);
    Ok(ended)
}

impl Drop for Held {
    fn drop(&mut self) {
        numbers().remove(&self.number);
    }
}

impl Held {
    /// Returns the value that is stored for the lease with this count.
    fn value(&self, count: u64) -> String {
        format!("{}\n{count:020}\n{}\n", Owner::this(), self.number)
    }

    /// Returns whether `value` was stored for this lease.
    fn is_ours(&self, value: &[u8]) -> bool {
        let mut lines = value.split(|byte| *byte == b'\n');
        lines.next() == Some(Owner::this().to_string().as_bytes())
            && lines.nth(1) == Some(self.number.to_string().as_bytes())
    }

    fn state(&self) -> MutexGuard<'_, Option<(u64, ValueVersion)>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the value with this count in the place of `version`. Returns the new version; `None` if another
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
        // If the request was sent twice because its first answer was lost, the first one has stored the
        // value.
        let now = self.store.get_with_version(&self.key)?;
        let ours = now.filter(|(value, _)| self.is_ours(value));
        Ok(ours.map(|(_, version)| version))
    }

    /// Makes the lease. Returns whether the store obeys conditions. If it does not, no lease is left in the
    /// store.
    fn make(&self, duration: Duration) -> Result<bool, StorageError> {
        for _ in 0..ATTEMPTS {
            let before = match FoundLease::at(&*self.store, self.key.clone())? {
                None => None,
                Some(found) => {
                    let Some(left) = left(&*self.store, vec![found], duration)?.pop() else {
                        continue; // it was erased meanwhile
                    };
                    Some(left.version)
                }
            };
            let first = match self.store(0, before.as_ref()) {
                Ok(None) => continue, // another process was first
                Ok(Some(first)) => first,
                Err(error) => {
                    // The value may be stored. It is erased, because no process can have a lease in a store
                    // without conditions.
                    if matches!(error, StorageError::Unsupported(_)) && before.is_none() {
                        self.store.erase(&self.key)?;
                    }
                    return Err(error);
                }
            };
            match self.obeyed(&first) {
                Ok(Obeyed::Yes(version)) => {
                    *self.state() = Some((1, version));
                    return Ok(true);
                }
                Ok(Obeyed::Lost) => {}
                Ok(Obeyed::No) => {
                    self.store.erase(&self.key)?;
                    return Ok(false);
                }
                Err(error) => {
                    let _ = self.store.erase(&self.key); // the first error is the one that is returned
                    return Err(error);
                }
            }
        }
        let what = format!(
            "other processes have made and erased the lease {} {ATTEMPTS} times: try again when they have ended",
            self.key
        );
        Err(io::Error::new(ErrorKind::ResourceBusy, what).into())
    }

    /// Raises the count for the first time, under the condition that the stored version is `first`. Finds out
    /// whether the store obeys conditions.
    fn obeyed(&self, first: &ValueVersion) -> Result<Obeyed, StorageError> {
        // The store has a value, so this request must fail.
        if self
            .store
            .set_if(&self.key, self.value(0).into(), None)?
            .is_some()
        {
            return Ok(Obeyed::No);
        }
        let Some(next) = self.store(1, Some(first))? else {
            return Ok(Obeyed::Lost);
        };
        // The stored version is no longer `first`, so this request must fail.
        let again = self
            .store
            .set_if(&self.key, self.value(2).into(), Some(first))?;
        Ok(match again {
            None => Obeyed::Yes(next),
            Some(_) => Obeyed::No,
        })
    }

    /// Raises the count until `ends` is closed.
    fn beat_until(&self, ends: &Receiver<()>) {
        let mut next = Instant::now() + BEAT;
        while ends.recv_timeout(next.saturating_duration_since(Instant::now()))
            == Err(RecvTimeoutError::Timeout)
        {
            self.beat();
            // After a slow request, the next one comes no later than usual.
            next = (next + BEAT).max(Instant::now());
        }
    }

    /// Raises the count once.
    fn beat(&self) {
        let mut state = self.state();
        let Some((count, version)) = &*state else {
            return;
        };
        let count = count + 1;
        let stored = match self.store(count, Some(version)) {
            // The lease may be gone because another process has erased it late, when it was left by its
            // former owner.
            Ok(None) => self.store(count, None),
            stored => stored,
        };
        match stored {
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

    /// Erases the lease. If the erasure fails, it is tried again.
    fn erase_at_last(&self) {
        for attempt in 1..=ERASURES {
            match self.erase() {
                Ok(()) => return,
                Err(error) if attempt < ERASURES => {
                    tracing::debug!(key = %self.key, %error, "a lease was not erased: trying again");
                    thread::sleep(BEAT);
                }
                Err(error) => {
                    tracing::warn!(key = %self.key, %error, "a lease was left behind");
                }
            }
        }
    }

    /// Erases the lease if the stored value is still of this lease.
    fn erase(&self) -> Result<(), StorageError> {
        let mut state = self.state();
        let Some((_, version)) = &*state else {
            return Ok(());
        };
        if self
            .store
            .set_if(&self.key, Bytes::new(), Some(version))?
            .is_none()
        {
            match self.store.get_with_version(&self.key)? {
                // The request was sent twice, because the answer to the first one was lost.
                Some((value, version)) if self.is_ours(&value) => {
                    *state = state.take().map(|(count, _)| (count, version));
                    let again = io::Error::new(ErrorKind::Interrupted, "it has changed meanwhile");
                    return Err(again.into());
                }
                Some((value, _)) if value.is_empty() => {}
                _ => {
                    *state = None; // another process has the lease, or it is erased
                    return Ok(());
                }
            }
        }
        self.store.erase(&self.key)?;
        *state = None;
        Ok(())
    }
}

/// The answer to whether a store obeys conditions.
enum Obeyed {
    /// The store obeys conditions. The lease now has this version.
    Yes(ValueVersion),
    No,
    /// Another process has taken the lease meanwhile, so there is no answer.
    Lost,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

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
        for conditions in Conditions::UNUSABLE {
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
        // This process could not erase it, or another one with the same owner.
        let left = format!("{}\n{:020}\n{}\n", Owner::this(), 1, u64::MAX);
        store.set(&key(), left.into()).unwrap();
        let since = Instant::now();
        assert!(!is_busy(&check()));
        assert!(since.elapsed() >= SHORT);
        assert_eq!(stored(&store), None);
        // One that is about to be erased.
        store.set(&key(), Bytes::new()).unwrap();
        assert!(!is_busy(&check()));
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

    /// Another process erases the lease that it found left before this process took it over.
    #[test]
    fn a_lease_that_is_erased_late_is_made_again() {
        let store = Objects::new(Conditions::Obeyed);
        let lease = take(&store).unwrap().unwrap();
        store.erase(&key()).unwrap();
        lease.held.beat();
        assert!(stored(&store).is_some());
        assert!(is_busy(&take(&store)));
        drop(lease);
        assert_eq!(stored(&store), None);
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
