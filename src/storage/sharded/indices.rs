//! Keeps the indices of shards until the shards are written.
//!
//! A read takes the stamp of its shard first, and compares it again at the end. Each write changes the stamp
//! before it begins and after its end. So if the stamp is unchanged, all that was read belongs to one state
//! of the shard.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use zarrs_storage::StoreKey;

use crate::store::key_locks::{STRIPES, stripe};
use zarrs_cuda_engine::layout::Extent;

/// The index of a shard: where its chunks lie.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) extents: Vec<Extent>,
    /// Whether the extents are known to be within the shard.
    pub(super) is_checked: AtomicBool,
}

impl Index {
    /// Returns the approximate size of the index in memory, in bytes.
    fn cost(&self, shard: &StoreKey) -> usize {
        let extents = self.extents.capacity().saturating_mul(size_of::<Extent>());
        // In the worst case the key is stored twice, and each entry of the cache has some links.
        extents
            .saturating_add(2 * shard.as_str().len())
            .saturating_add(256)
    }
}

/// A number that stands for a state of a shard, and changes with each write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShardStamp(u64);

/// The state of the shards that have the same lock, and so share a stamp.
#[derive(Debug, Default)]
struct Stripe {
    stamp: AtomicU64,
    /// The number of writes that are under way.
    writes: AtomicU64,
    /// Whether a write failed, or was dropped: the store may still be doing it.
    is_unsettled: AtomicBool,
}

#[derive(Debug)]
struct IndexCache {
    /// The most bytes that the kept indices may take.
    limit: usize,
    used: usize,
    entries: LruCache<StoreKey, Arc<Index>>,
}

/// The indices that an adapter keeps, and the stamps of their shards.
#[derive(Debug)]
pub(super) struct Indices {
    stripes: [Stripe; STRIPES],
    cache: Mutex<IndexCache>,
}

impl Indices {
    /// Makes a cache that keeps at most `limit` bytes of indices.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            stripes: std::array::from_fn(|_| Stripe::default()),
            cache: Mutex::new(IndexCache {
                limit,
                used: 0,
                entries: LruCache::unbounded(),
            }),
        }
    }

    fn cache(&self) -> MutexGuard<'_, IndexCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stripe(&self, shard: &StoreKey) -> &Stripe {
        &self.stripes[stripe(shard)]
    }

    pub(super) fn set_limit(&self, limit: usize) {
        let mut cache = self.cache();
        cache.limit = limit;
        cache.shrink();
    }

    /// Returns the stamp of a shard; `None` while it is being written.
    pub(super) fn stamp(&self, shard: &StoreKey) -> Option<ShardStamp> {
        let stripe = self.stripe(shard);
        let stamp = stripe.stamp.load(Ordering::SeqCst);
        (stripe.writes.load(Ordering::SeqCst) == 0).then_some(ShardStamp(stamp))
    }

    /// Returns whether the shard is unchanged since it had this stamp.
    pub(super) fn is_current(&self, shard: &StoreKey, stamp: ShardStamp) -> bool {
        self.stripe(shard).stamp.load(Ordering::SeqCst) == stamp.0
    }

    pub(super) fn get(&self, shard: &StoreKey) -> Option<Arc<Index>> {
        self.cache().entries.get(shard).cloned()
    }

    /// Keeps the index of a shard. The index was read while the shard had this stamp.
    pub(super) fn keep(&self, shard: &StoreKey, stamp: ShardStamp, index: Arc<Index>) {
        let cost = index.cost(shard);
        let mut cache = self.cache();
        // A write changes the stamp before it forgets the kept index, so an old index is not kept here.
        let is_settled = !self.stripe(shard).is_unsettled.load(Ordering::SeqCst);
        if cost <= cache.limit && is_settled && self.is_current(shard, stamp) {
            cache.forget(shard);
            cache.used = cache.used.saturating_add(cost);
            cache.entries.put(shard.clone(), index);
            cache.shrink();
        }
    }

    pub(super) fn forget(&self, shard: &StoreKey) {
        self.cache().forget(shard);
    }

    pub(super) fn clear(&self) {
        for stripe in &self.stripes {
            stripe.is_unsettled.store(false, Ordering::SeqCst);
        }
        let mut cache = self.cache();
        cache.entries.clear();
        cache.used = 0;
    }

    /// Notes that `shard` is about to be written. The caller holds the lock of `shard`.
    pub(super) fn write(&self, shard: &StoreKey) -> WriteInProgress<'_> {
        let stripe = stripe(shard);
        let write = WriteInProgress::begin(self, stripe..stripe + 1);
        self.cache().forget(shard);
        write
    }

    /// Notes that any shard may be about to be written. The caller holds all locks.
    pub(super) fn write_all(&self) -> WriteInProgress<'_> {
        let write = WriteInProgress::begin(self, 0..STRIPES);
        let mut cache = self.cache();
        cache.entries.clear();
        cache.used = 0;
        write
    }
}

impl IndexCache {
    fn forget(&mut self, shard: &StoreKey) {
        if let Some(index) = self.entries.pop(shard) {
            self.used = self.used.saturating_sub(index.cost(shard));
        }
    }

    fn shrink(&mut self) {
        while self.used > self.limit
            && let Some((shard, index)) = self.entries.pop_lru()
        {
            self.used = self.used.saturating_sub(index.cost(&shard));
        }
    }
}

/// A write of a shard, which ends when it is [done](Self::done) or dropped.
#[derive(Debug)]
pub(super) struct WriteInProgress<'a> {
    indices: &'a Indices,
    stripes: Range<usize>,
    is_done: bool,
}

impl<'a> WriteInProgress<'a> {
    fn begin(indices: &'a Indices, stripes: Range<usize>) -> Self {
        let write = Self {
            indices,
            stripes,
            is_done: false,
        };
        for stripe in write.stripes() {
            stripe.writes.fetch_add(1, Ordering::SeqCst);
            stripe.stamp.fetch_add(1, Ordering::SeqCst);
        }
        write
    }

    fn stripes(&self) -> &'a [Stripe] {
        self.indices
            .stripes
            .get(self.stripes.clone())
            .unwrap_or_default()
    }

    /// Notes that the store has done the whole write.
    pub(super) fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for WriteInProgress<'_> {
    fn drop(&mut self) {
        for stripe in self.stripes() {
            if !self.is_done {
                stripe.is_unsettled.store(true, Ordering::SeqCst);
            }
            stripe.stamp.fetch_add(1, Ordering::SeqCst);
            stripe.writes.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> StoreKey {
        StoreKey::new(format!("c/{number}")).unwrap()
    }

    fn index() -> Arc<Index> {
        Arc::new(Index {
            extents: vec![None; 100],
            is_checked: AtomicBool::new(false),
        })
    }

    fn keep(indices: &Indices, shard: &StoreKey) {
        indices.keep(shard, indices.stamp(shard).unwrap(), index());
    }

    #[test]
    fn the_limit_is_kept_and_the_oldest_go_first() {
        let cost = index().cost(&key(0));
        let indices = Indices::new(3 * cost);
        for number in 0..3 {
            keep(&indices, &key(number));
        }
        assert!(indices.get(&key(0)).is_some());
        keep(&indices, &key(3));
        let kept = |number| indices.get(&key(number)).is_some();
        assert_eq!([0, 1, 2, 3].map(kept), [true, false, true, true]);
        keep(&indices, &key(3));
        assert_eq!(indices.cache().used, 3 * cost);
        indices.set_limit(cost);
        assert_eq!(indices.cache().used, cost);
        indices.set_limit(cost - 1);
        keep(&indices, &key(0));
        assert_eq!(indices.cache().used, 0);
        assert!(indices.get(&key(0)).is_none());
    }

    #[test]
    fn writes_change_stamps() {
        let indices = Indices::new(1 << 20);
        let before = indices.stamp(&key(0)).unwrap();
        keep(&indices, &key(0));
        let write = indices.write(&key(0));
        assert!(indices.get(&key(0)).is_none());
        assert_eq!(indices.stamp(&key(0)), None);
        assert!(!indices.is_current(&key(0), before));
        indices.keep(&key(0), before, index());
        assert!(indices.get(&key(0)).is_none());
        write.done();
        let after = indices.stamp(&key(0)).unwrap();
        assert!(indices.is_current(&key(0), after));
        assert!(!indices.is_current(&key(0), before));
        keep(&indices, &key(0));
        assert!(indices.get(&key(0)).is_some());
        indices.write_all().done();
        assert!(indices.get(&key(0)).is_none());
        assert!(!indices.is_current(&key(0), after));
    }

    #[test]
    fn after_a_write_that_was_given_up_nothing_is_kept() {
        let indices = Indices::new(1 << 20);
        drop(indices.write(&key(0)));
        keep(&indices, &key(0));
        assert!(indices.get(&key(0)).is_none());
        indices.clear();
        keep(&indices, &key(0));
        assert!(indices.get(&key(0)).is_some());
    }
}
