//! Lists the keys of a store of shards as keys of the chunks in them.
//!
//! The sharding storage transformer draft, on `list_dir`: "For all *retrieved prefixes* (not full
//! keys) with partial shard keys, the corresponding original prefixes covering all possible chunks in
//! the shard are listed. For *retrieved full keys* the indices from the underlying store are
//! requested […]. Existing chunks […] are then listed by their original key."

use std::future::Future;

use zarrs_storage::{StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix};

use super::chunk_keys::{ChunkKey, ChunkKeys, Scope};
use super::shard_grid::ShardGrid;
use crate::store::Lists;
use crate::store::array_lease::is_lease;
use crate::store::temporary_keys::is_lock_file;

/// A chunk that is stored in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Present {
    /// The number of the chunk in its shard, in C order.
    pub(super) number: usize,
    /// The encoded size of the chunk, in bytes.
    pub(super) len: u64,
}

/// The way in which a key of the underlying store is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The key is shown as it is.
    Itself,
    /// The key is not shown at all.
    Hidden,
    /// The key is shown as the chunks of this shard.
    Shard(ChunkKey),
}

/// A store of shards that is shown as a store of chunks.
pub(super) trait ShardsSeenAsChunks: Sync {
    fn keys(&self) -> &ChunkKeys;
    fn grid(&self) -> &ShardGrid;

    /// Returns how a key of the underlying store is shown.
    fn seen(&self, key: &StoreKey) -> Seen;

    /// Returns how a prefix of the underlying store that [`list_dir`] found is shown.
    fn seen_prefix(&self, prefix: &StorePrefix) -> Seen {
        let _ = prefix;
        Seen::Itself
    }

    /// Returns the stored chunks of a shard, in ascending order.
    fn present(&self, shard: &ChunkKey)
    -> impl Future<Output = Result<Vec<Present>, StorageError>>;

    /// Returns the size of the value of a key that is shown as it is; `None` if it has no value.
    fn size_of(&self, key: &StoreKey) -> impl Future<Output = Result<Option<u64>, StorageError>>;
}

/// Returns how a key of the underlying store is shown. Leases and lock files are hidden, because they are no
/// part of an array.
fn seen<V: ShardsSeenAsChunks>(view: &V, key: &StoreKey) -> Seen {
    if is_lease(key.as_str()) || is_lock_file(key.as_str()) {
        return Seen::Hidden;
    }
    view.seen(key)
}

/// Returns the keys with `prefix`, in order, and the size of each that is the key of a chunk.
async fn sized<V: ShardsSeenAsChunks, L: Lists>(
    view: &V,
    store: &L,
    prefix: &StorePrefix,
) -> Result<Vec<(StoreKey, Option<u64>)>, StorageError> {
    let scope = view.keys().scope(prefix);
    let (underlying, chunks) = match &scope {
        Scope::Chunks(chunks) => (shards_of(view, chunks)?, Some(chunks)),
        Scope::Everything | Scope::Elsewhere => (prefix.clone(), None),
    };
    // Objects in a frame are shown as the chunks of the frame's shard. If `prefix` leads into a frame, the
    // keys of these chunks do not begin with `prefix`, so they are left out.
    let has_chunks = scope != Scope::Elsewhere;
    let mut shards = Vec::new();
    let mut listed = Vec::new();
    for key in store.list_prefix(&underlying).await? {
        match seen(view, &key) {
            // An entry beside a shard is not shown beside each of its chunks.
            Seen::Itself if key.has_prefix(prefix) => listed.push((key, None)),
            Seen::Shard(shard) if has_chunks => shards.push(shard),
            Seen::Itself | Seen::Hidden | Seen::Shard(_) => {}
        }
    }
    for shard in distinct(shards) {
        for (chunk, len) in chunks_of(view, &shard, chunks).await? {
            listed.push((view.keys().key(&chunk)?, Some(len)));
        }
    }
    listed.sort();
    Ok(listed)
}

/// Returns all keys with `prefix`, in order.
pub(super) async fn list_prefix<V: ShardsSeenAsChunks, L: Lists>(
    view: &V,
    store: &L,
    prefix: &StorePrefix,
) -> Result<StoreKeys, StorageError> {
    let listed = sized(view, store, prefix).await?;
    Ok(listed.into_iter().map(|(key, _)| key).collect())
}

/// Returns the sum of the sizes of all values with `prefix`, in bytes.
pub(super) async fn size_prefix<V: ShardsSeenAsChunks, L: Lists>(
    view: &V,
    store: &L,
    prefix: &StorePrefix,
) -> Result<u64, StorageError> {
    let mut sum = 0_u64;
    for (key, size) in sized(view, store, prefix).await? {
        let size = match size {
            Some(size) => size,
            None => view.size_of(&key).await?.unwrap_or(0),
        };
        sum = sum.saturating_add(size);
    }
    Ok(sum)
}

/// Returns the entries directly under `prefix`, in order.
pub(super) async fn list_dir<V: ShardsSeenAsChunks, L: Lists>(
    view: &V,
    store: &L,
    prefix: &StorePrefix,
) -> Result<StoreKeysPrefixes, StorageError> {
    let scope = view.keys().scope(prefix);
    let (underlying, chunks) = match &scope {
        Scope::Chunks(chunks) => (shards_of(view, chunks)?, Some(chunks)),
        Scope::Everything | Scope::Elsewhere => (prefix.clone(), None),
    };
    // Objects in a frame are shown as the chunks of the frame's shard. If `prefix` leads into a frame, the
    // keys of these chunks do not begin with `prefix`, so they are left out.
    let has_chunks = scope != Scope::Elsewhere;
    let below = store.list_dir(&underlying).await?;
    let (mut keys, mut prefixes, mut shards) = (Vec::new(), Vec::new(), Vec::new());
    for key in below.keys() {
        match seen(view, key) {
            Seen::Itself if key.has_prefix(prefix) => keys.push(key.clone()),
            Seen::Shard(shard) if has_chunks => shards.push(shard),
            Seen::Itself | Seen::Hidden | Seen::Shard(_) => {}
        }
    }
    for below in below.prefixes() {
        if is_lease(below.as_str()) {
            continue;
        }
        let shard_prefix = match view.seen_prefix(below) {
            Seen::Itself => view.keys().scope(below),
            Seen::Shard(shard) if has_chunks => {
                shards.push(shard);
                continue;
            }
            Seen::Hidden | Seen::Shard(_) => continue,
        };
        match shard_prefix {
            Scope::Chunks(shards) if !shards.coordinates.is_empty() => {
                for chunks in prefixes_of(view, &shards, chunks) {
                    prefixes.push(view.keys().prefix_of(&chunks)?);
                }
            }
            _ if below.as_str().starts_with(prefix.as_str()) => prefixes.push(below.clone()),
            // An entry beside a shard is not shown beside each of its chunks.
            _ => {}
        }
    }
    for shard in distinct(shards) {
        for (chunk, _) in chunks_of(view, &shard, chunks).await? {
            keys.push(view.keys().key(&chunk)?);
        }
    }
    keys.sort();
    keys.dedup();
    prefixes.sort();
    prefixes.dedup();
    Ok(StoreKeysPrefixes::new(keys, prefixes))
}

fn distinct(mut shards: Vec<ChunkKey>) -> Vec<ChunkKey> {
    shards.sort_by(|a, b| a.coordinates.cmp(&b.coordinates));
    shards.dedup();
    shards
}

/// Returns the prefix of the shards of `chunks`, of which only the first coordinates are known.
fn shards_of<V: ShardsSeenAsChunks>(
    view: &V,
    chunks: &ChunkKey,
) -> Result<StorePrefix, StorageError> {
    let (shards, _) = view.grid().shard_of(chunks);
    view.keys().prefix_of(&shards)
}

/// Returns the chunks of `shard` whose coordinates begin with the coordinates of `only`, and their sizes.
async fn chunks_of<V: ShardsSeenAsChunks>(
    view: &V,
    shard: &ChunkKey,
    only: Option<&ChunkKey>,
) -> Result<Vec<(ChunkKey, u64)>, StorageError> {
    let present = view.present(shard).await?;
    let chunks = present.into_iter().filter_map(|present| {
        let chunk = view.grid().chunk(shard, present.number)?;
        let is_one = only.is_none_or(|only| chunk.coordinates.starts_with(&only.coordinates));
        is_one.then_some((chunk, present.len))
    });
    Ok(chunks.collect())
}

/// Returns the prefixes of all chunks that could be in shards with the first coordinates of `shards`. Each
/// prefix has one coordinate more than `only`.
fn prefixes_of<V: ShardsSeenAsChunks>(
    view: &V,
    shards: &ChunkKey,
    only: Option<&ChunkKey>,
) -> Vec<ChunkKey> {
    let Some((&last, before)) = shards.coordinates.split_last() else {
        return Vec::new();
    };
    let before = only.map_or(before, |only| &only.coordinates);
    let count = view
        .grid()
        .counts()
        .get(before.len())
        .map_or(1, |&count| count as u64);
    let Some(first) = last.checked_mul(count) else {
        return Vec::new();
    };
    let all = first..first.saturating_add(count);
    let chunk = |at| ChunkKey {
        encoding: shards.encoding,
        coordinates: [before, &[at]].concat(),
    };
    all.map(chunk).collect()
}
