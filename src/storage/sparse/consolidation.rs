//! Implements consolidations as callers see them. `protocol/consolidate.rs` merges the frame of one shard.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey, StorePrefix};

use super::protocol::ReplacesShards;
use super::report::{Consolidation, ConsolidationProgress};
use super::{SparseArray, frame};
use crate::error::Error;
use crate::storage::chunk_keys::ChunkKey;
use crate::store::key_locks::LocksKeys;
use crate::store::{Lists, Reads, Writes};

/// Replaces shards in the way in which the adapter replaces values.
struct Replaced<'a, O> {
    array: &'a SparseArray,
    store: &'a O,
}

impl<O: Writes> ReplacesShards for Replaced<'_, O> {
    async fn replace(&self, key: &StoreKey, shard: Option<Bytes>) -> Result<(), StorageError> {
        self.array.replace(self.store, key, shard).await
    }
}

const CONSOLIDATE: &str = "consolidate";
const DISCARD: &str = "discard objects that are not whole beside";

fn failed(doing: &'static str, key: &StoreKey, source: StorageError) -> Error {
    let key = key.clone();
    Error::Storage { doing, key, source }
}

impl SparseArray {
    pub(super) async fn consolidate<O: Reads + Writes + Lists + LocksKeys>(
        &self,
        store: &O,
        shard: &[u64],
    ) -> Result<Option<Consolidation>, Error> {
        let key = self.shard_to_change(shard, CONSOLIDATE)?;
        let replaced = Replaced { array: self, store };
        let frames = &self.frames;
        let done = frames.consolidate(store, &replaced, &key, &self.watch);
        done.await.map_err(|error| error.of(CONSOLIDATE, &key))
    }

    pub(super) async fn discard_invalid<O: Reads + Writes + Lists + LocksKeys>(
        &self,
        store: &O,
        shard: &[u64],
    ) -> Result<usize, Error> {
        let key = self.shard_to_change(shard, DISCARD)?;
        let done = self.frames.discard_invalid(store, &key).await;
        done.map_err(|source| failed(DISCARD, &key, source))
    }

    /// Returns the key of the shard with the indices `shard`, if the adapter may change it.
    fn shard_to_change(&self, shard: &[u64], doing: &'static str) -> Result<StoreKey, Error> {
        if shard.len() != self.grid.counts().len() {
            return Err(Error::NotShards {
                reason: format!(
                    "{shard:?} are not the indices of a shard with {} axes",
                    self.grid.counts().len()
                ),
            });
        }
        let shard = ChunkKey {
            encoding: self.sharded.encoding,
            coordinates: shard.to_vec(),
        };
        let key = self.keys.key(&shard);
        let key = key.map_err(|source| failed(doing, &self.metadata, source))?;
        let writable = self.check_writable(key.as_str());
        writable.map_err(|source| failed(doing, &key, source))?;
        Ok(key)
    }

    /// Returns the indices of the shards that need a consolidation, in order. Their frames have objects with
    /// the names of versions, or receipts of consolidations that were interrupted.
    pub(super) async fn framed<O: Lists>(&self, store: &O) -> Result<Vec<Vec<u64>>, Error> {
        let failed = |source| failed("list the frames beside", &self.metadata, source);
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

    /// Returns how many shards of `shards` can be consolidated at once in the adapter's memory, at most
    /// `threads`. A consolidation has the shard, its frame and the new shard in memory, each of which may
    /// have as many bytes as a shard can have.
    pub(super) fn at_once(&self, threads: usize) -> usize {
        let one = self
            .frames
            .bound()
            .and_then(|bound| usize::try_from(bound).ok()?.checked_mul(3));
        let most = one.map_or(1, |one| self.memory / one.max(1));
        threads.min(most).max(1)
    }
}

/// The number of failed shards after which no other shard begins, because the store itself probably fails.
const FAILURES: usize = 16;

/// The state of a consolidation of all shards: its progress and its errors.
pub(super) struct All<'a> {
    on_progress: &'a (dyn Fn(&ConsolidationProgress) + Sync),
    state: Mutex<(ConsolidationProgress, Vec<Error>)>,
}

impl<'a> All<'a> {
    pub(super) fn new(
        shards: usize,
        on_progress: &'a (dyn Fn(&ConsolidationProgress) + Sync),
    ) -> Self {
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

    pub(super) fn goes_on(&self) -> bool {
        self.state().1.len() < FAILURES
    }

    pub(super) fn add(&self, one: Result<Option<Consolidation>, Error>) {
        let (progress, failures) = &mut *self.state();
        match one {
            Ok(one) => {
                progress.add(one.unwrap_or_default());
                (self.on_progress)(progress);
            }
            Err(error) => failures.push(error),
        }
    }

    pub(super) fn end(self) -> Result<ConsolidationProgress, Error> {
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
            Error::ShardChanged { key, reason } if !others.is_empty() => {
                let (number, others) = (others.len(), others.join("; "));
                let reason = format!("{reason}. So do {number} others: {others}");
                Err(Error::ShardChanged { key, reason })
            }
            first => Err(first),
        }
    }
}
