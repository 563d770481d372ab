//! The caches that a reader keeps from one call to the next: indices of shards, and decoded subchunks.

use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use zarrs_storage::StoreKey;

use zarrs_cuda_engine::layout::Entries;

/// The index of a shard, as it is stored and as it was decoded.
#[derive(Debug)]
pub(super) struct Index {
    /// A number that no other index of this process has.
    pub(super) id: u64,
    pub(super) encoded: Vec<u8>,
    pub(super) entries: Entries<'static>,
}

impl Index {
    pub(super) fn new(encoded: Vec<u8>, entries: Entries<'static>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            encoded,
            entries,
        }
    }
}

/// A decoded subchunk: its elements, in the order of axes in which they are stored.
#[derive(Debug)]
pub(super) struct Subchunk {
    /// The `id` of the index with which the subchunk was read. The subchunk is not used with another index.
    pub(super) index: u64,
    pub(super) elements: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Caches {
    pub(super) indices: Cache<StoreKey, Index>,
    /// Decoded subchunks, by shard and number in the shard.
    pub(super) subchunks: Cache<(StoreKey, usize), Subchunk>,
}

/// A value that takes memory.
pub(super) trait Weigh {
    /// Returns the size of the value, in bytes.
    fn bytes(&self) -> usize;
}

impl Weigh for Index {
    fn bytes(&self) -> usize {
        self.encoded.len() + self.entries.bytes().len()
    }
}

impl Weigh for Subchunk {
    fn bytes(&self) -> usize {
        self.elements.len()
    }
}

/// A cache of the values that were used last, with a limit for their total size.
#[derive(Debug)]
pub(super) struct Cache<K: Hash + Eq, V>(Mutex<Values<K, V>>);

#[derive(Debug)]
struct Values<K: Hash + Eq, V> {
    values: LruCache<K, Arc<V>>,
    /// The size of all values together, in bytes.
    bytes: usize,
}

impl<K: Hash + Eq, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self(Mutex::new(Values {
            values: LruCache::unbounded(),
            bytes: 0,
        }))
    }
}

impl<K: Hash + Eq, V: Weigh> Cache<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<Arc<V>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.values.get(key).cloned()
    }

    /// Puts `value` into the cache, and removes old values until the cache has at most `most` bytes.
    pub(super) fn keep(&self, key: K, value: &Arc<V>, most: usize) {
        if value.bytes() > most {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += value.bytes();
        if let Some((_, before)) = kept.values.push(key, value.clone()) {
            kept.bytes -= before.bytes();
        }
        while kept.bytes > most
            && let Some((_, oldest)) = kept.values.pop_lru()
        {
            kept.bytes -= oldest.bytes();
        }
    }

    pub(super) fn forget(&self, key: &K) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = kept.values.pop(key) {
            kept.bytes -= value.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_were_used_last_are_kept() {
        let of = |len: usize| {
            Arc::new(Subchunk {
                index: 0,
                elements: vec![0; len],
            })
        };
        let cache = Cache::default();
        for (key, len) in [(1, 40), (2, 40), (3, 101)] {
            cache.keep(key, &of(len), 100);
        }
        assert!(cache.get(&3).is_none(), "longer than all may be");
        assert!(cache.get(&1).is_some());
        cache.keep(4, &of(40), 100);
        assert!(cache.get(&2).is_none(), "used before 1");
        cache.keep(4, &of(60), 100);
        assert!(cache.get(&1).is_some() && cache.get(&4).is_some());
        cache.forget(&4);
        cache.keep(5, &of(60), 100);
        assert!(cache.get(&1).is_some() && cache.get(&5).is_some());
    }
}
