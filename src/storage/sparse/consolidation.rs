//! Frames, packed into their shards.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zarrs_storage::{
    Bytes, ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKey, StorePrefix,
    WritableStorageTraits,
};

use super::protocol::ReplacesShards;
use super::{SparseArray, SparseShardStore, frame};
use crate::Error;
use crate::storage::chunk_keys::ChunkKey;
use crate::store::turns::TakesTurns;
use crate::store::{Lists, Reads, Writes, now};

/// What was done to a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consolidation {
    /// How many subchunks were written or erased since the shard was packed last.
    pub subchunks: usize,
    /// How many objects held them, which are deleted now.
    pub versions: usize,
    /// How many objects were not whole, and stay: they are being written, or those who wrote them died.
    pub invalid: usize,
    /// How many names in the frame are not UTF-8, and were passed over: no version has such a name. Which they
    /// are is logged as a warning. They stay, and can be deleted.
    pub not_utf_8: usize,
    /// The size of the shard before, in bytes; 0 if there was none.
    pub before: u64,
    /// Its size now; 0 if there is none, since all of it is empty.
    pub after: u64,
}

/// How far a consolidation is, and what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsolidationProgress {
    /// How many shards had a frame.
    pub shards: usize,
    /// How many of them are done.
    pub done: usize,
    /// The sum over these.
    pub sum: Consolidation,
}

impl fmt::Display for ConsolidationProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shards, done, sum } = self;
        write!(
            f,
            "{done} of {shards} shards, {} subchunks, {} -> {} bytes",
            sum.subchunks, sum.before, sum.after
        )?;
        if sum.invalid > 0 {
            write!(f, ", {} objects that are not whole", sum.invalid)?;
        }
        if sum.not_utf_8 > 0 {
            write!(f, ", {} names that are not UTF-8", sum.not_utf_8)?;
        }
        Ok(())
    }
}

impl ConsolidationProgress {
    fn add(&mut self, one: Consolidation) {
        self.done += 1;
        self.sum.subchunks += one.subchunks;
        self.sum.versions += one.versions;
        self.sum.invalid += one.invalid;
        self.sum.not_utf_8 += one.not_utf_8;
        self.sum.before += one.before;
        self.sum.after += one.after;
    }
}

/// Shards are replaced as the adapter was told to.
struct Replaced<'a, O> {
    array: &'a SparseArray,
    store: &'a O,
}

impl<O: Writes> ReplacesShards for Replaced<'_, O> {
    async fn replace(&self, key: &StoreKey, shard: Option<Bytes>) -> Result<(), StorageError> {
        self.array.replace(self.store, key, shard).await
    }
}

impl SparseArray {
    pub(super) async fn consolidate<O: Reads + Writes + Lists + TakesTurns>(
        &self,
        store: &O,
        shard: &[u64],
    ) -> Result<Option<Consolidation>, Error> {
        if shard.len() != self.grid.counts().len() {
            return Err(Error::NotShards {
                reason: format!(
                    "{shard:?} are not the indices of a shard with {} axes",
                    self.grid.counts().len()
                ),
            });
        }
        let shard = ChunkKey {
            encoding: self.sharding.encoding,
            coordinates: shard.to_vec(),
        };
        let failed = |key: &StoreKey| {
            let key = key.clone();
            move |source| Error::Storage {
                doing: "consolidate",
                key,
                source,
            }
        };
        let key = self.keys.key(&shard).map_err(failed(&self.metadata))?;
        self.check_writable(key.as_str()).map_err(failed(&key))?;
        let replaced = Replaced { array: self, store };
        let done = self.frames.consolidate(store, &replaced, &key).await;
        done.map_err(failed(&key))
    }

    /// The shards that have versions of subchunks in their frames, by their names, in order.
    pub(super) async fn framed<O: Lists>(&self, store: &O) -> Result<Vec<Vec<u64>>, Error> {
        let failed = |source| Error::Storage {
            doing: "list the frames beside",
            key: self.metadata.clone(),
            source,
        };
        let prefix = StorePrefix::new(self.keys.prefix());
        let prefix = prefix.map_err(|error| failed(StorageError::Other(error.to_string())))?;
        let listed = store.list_prefix(&prefix).await.map_err(failed)?;
        let shards = listed.iter().filter_map(|key| {
            let shard = frame::shard_with(&self.keys, key.as_str(), self.grid.len())?;
            Some(self.keys.parse(shard)?.coordinates)
        });
        let mut shards: Vec<_> = shards.collect();
        shards.sort();
        shards.dedup();
        Ok(shards)
    }

    /// How many shards of `shards` can be consolidated at once, by at most `threads`: a shard, its
    /// frame, and what they are packed into, each of which has as many bytes as a shard can have.
    pub(super) fn at_once(&self, threads: usize) -> usize {
        let one = self
            .frames
            .bound()
            .and_then(|bound| usize::try_from(bound).ok()?.checked_mul(3));
        let most = one.map_or(1, |one| self.memory / one.max(1));
        threads.min(most).max(1)
    }
}

impl<S> SparseShardStore<S>
where
    S: ReadableStorageTraits + WritableStorageTraits + ListableStorageTraits + ?Sized,
{
    /// The indices of the shards that have subchunks in a frame, which are those to consolidate, in order.
    /// Everything in the array is listed, and nothing is read: so a shard stays among them as long as there
    /// is an object that is not whole ([`Consolidation::invalid`]), however often it is consolidated.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store fails.
    pub fn pending(&self) -> Result<Vec<Vec<u64>>, Error> {
        now(self.array.framed(&self.blocking()))
    }

    /// Pack the shard with the indices `shard` and its frame into one shard, with its subchunks in C
    /// order. `None` if it has no frame.
    ///
    /// Subchunks are copied as they are: nothing is decoded or encoded. The shard, the newest object of
    /// each subchunk in its frame, of whatever size that is, and the new shard are in memory at once. Others
    /// may read and write meanwhile; whatever they write is kept. If the process dies, at whichever moment,
    /// nothing is lost, and another call completes it.
    ///
    /// If the store fails to put the shard, and may do so later nevertheless, see to it that it does not
    /// before the shard is consolidated again: it would put an old shard in place of a newer one.
    ///
    /// # Errors
    /// - [`Error::NotShards`] if there cannot be such a shard.
    /// - [`Error::Storage`] if the store fails, if the shard is invalid, or if somebody else consolidates
    ///   it.
    pub fn consolidate(&self, shard: &[u64]) -> Result<Option<Consolidation>, Error> {
        now(self.array.consolidate(&self.blocking(), shard))
    }

    /// [`consolidate`](Self::consolidate) all shards that have a frame, several at once as
    /// [memory](Self::with_memory) allows. `on_progress` is called after each, by one thread at a time.
    ///
    /// One shard that fails, because it or its frame is damaged for example, does not keep the others from being
    /// packed. After 16 no more are begun, and those that were begun are completed.
    ///
    /// # Errors
    /// As for [`consolidate`](Self::consolidate): of the first shard that fails, with the names of the others.
    pub fn consolidate_all(
        &self,
        on_progress: &(dyn Fn(&ConsolidationProgress) + Sync),
    ) -> Result<ConsolidationProgress, Error> {
        let shards = self.pending()?;
        let all = All::new(shards.len(), on_progress);
        let next = AtomicUsize::new(0);
        let work = || {
            while all.goes_on()
                && let Some(shard) = shards.get(next.fetch_add(1, Ordering::Relaxed))
            {
                all.add(self.consolidate(shard));
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 1..self.array.at_once(threads).min(shards.len()) {
                scope.spawn(work);
            }
            work();
        });
        all.end()
    }
}

/// After how many shards that failed no more are begun: then it is the store that fails.
const FAILURES: usize = 16;

/// A consolidation of all shards.
struct All<'a> {
    on_progress: &'a (dyn Fn(&ConsolidationProgress) + Sync),
    state: Mutex<(ConsolidationProgress, Vec<Error>)>,
}

impl<'a> All<'a> {
    fn new(shards: usize, on_progress: &'a (dyn Fn(&ConsolidationProgress) + Sync)) -> Self {
        let progress = ConsolidationProgress {
            shards,
            ..ConsolidationProgress::default()
        };
        Self {
            on_progress,
            state: Mutex::new((progress, Vec::new())),
        }
    }

    fn state(&self) -> MutexGuard<'_, (ConsolidationProgress, Vec<Error>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn goes_on(&self) -> bool {
        self.state().1.len() < FAILURES
    }

    fn add(&self, one: Result<Option<Consolidation>, Error>) {
        let (progress, failures) = &mut *self.state();
        match one {
            Ok(one) => {
                progress.add(one.unwrap_or_default());
                (self.on_progress)(progress);
            }
            Err(error) => failures.push(error),
        }
    }

    fn end(self) -> Result<ConsolidationProgress, Error> {
        let state = self.state.into_inner();
        let (progress, failures) = state.unwrap_or_else(PoisonError::into_inner);
        let mut failures = failures.into_iter();
        let Some(first) = failures.next() else {
            return Ok(progress);
        };
        let others: Vec<_> = failures.map(|error| error.to_string()).collect();
        match first {
            Error::Storage { doing, key, source } if !others.is_empty() => {
                let (number, others) = (others.len(), others.join("; "));
                Err(Error::Storage {
                    doing,
                    key,
                    source: StorageError::Other(format!(
                        "{source}. So do {number} others: {others}"
                    )),
                })
            }
            first => Err(first),
        }
    }
}

#[cfg(feature = "async")]
mod asynchronous {
    use zarrs_storage::{
        AsyncListableStorageTraits, AsyncReadableStorageTraits, AsyncWritableStorageTraits,
    };

    use super::{All, Consolidation, ConsolidationProgress, Error, SparseShardStore};
    use crate::store::{Awaited, all};

    /// How many shards are consolidated at once at most: requests wait for a server, not a processor.
    const AT_ONCE: usize = 8;

    impl<S> SparseShardStore<S>
    where
        S: AsyncReadableStorageTraits
            + AsyncWritableStorageTraits
            + AsyncListableStorageTraits
            + ?Sized,
    {
        /// [`pending`](Self::pending), in an asynchronous store.
        ///
        /// # Errors
        /// As for [`pending`](Self::pending).
        pub async fn async_pending(&self) -> Result<Vec<Vec<u64>>, Error> {
            self.array.framed(&Awaited(&*self.store)).await
        }

        /// [`consolidate`](Self::consolidate), in an asynchronous store.
        ///
        /// If the future is dropped, what was asked of the store last may yet be done, on stores that do
        /// it on other threads for example. See to it that it is, before the shard is consolidated again:
        /// an old shard could be put in place of a newer one.
        ///
        /// # Errors
        /// As for [`consolidate`](Self::consolidate).
        pub async fn async_consolidate(
            &self,
            shard: &[u64],
        ) -> Result<Option<Consolidation>, Error> {
            let store = Awaited(&*self.store);
            self.array.consolidate(&store, shard).await
        }

        /// [`consolidate_all`](Self::consolidate_all), in an asynchronous store. A future that is dropped
        /// leaves of each shard what [`async_consolidate`](Self::async_consolidate) leaves.
        ///
        /// # Errors
        /// As for [`consolidate_all`](Self::consolidate_all).
        pub async fn async_consolidate_all(
            &self,
            on_progress: &(dyn Fn(&ConsolidationProgress) + Sync),
        ) -> Result<ConsolidationProgress, Error> {
            let shards = self.async_pending().await?;
            let all_shards = All::new(shards.len(), on_progress);
            let each = shards.iter().take_while(|_| all_shards.goes_on());
            let each = each.map(|shard| async {
                all_shards.add(self.async_consolidate(shard).await);
                Ok::<_, Error>(())
            });
            all(each, self.array.at_once(AT_ONCE), drop).await?;
            all_shards.end()
        }
    }
}
