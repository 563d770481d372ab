//! The keys of the shards of an array, and the shards that a store lists.

use zarrs::array::{Array, ChunkKeyEncoding};
use zarrs_storage::{StorageError, StoreKey, StorePrefix};

use crate::store::Lists;

/// Reads chunk indices from the keys of the shards of one array, in any encoding that writes indices in
/// decimal digits.
#[derive(Debug)]
pub(super) struct ShardKeys<'a> {
    encoding: &'a ChunkKeyEncoding,
    /// The number of shards along each axis.
    grid: &'a [u64],
    /// The prefix of all keys of the array.
    prefix: StorePrefix,
    /// The number of directories between the array and a shard; `None` if indices cannot be read from keys.
    depth: Option<usize>,
}

impl<'a> ShardKeys<'a> {
    /// Returns the keys of the shards of `array`.
    ///
    /// # Errors
    /// [`StorageError::Other`] if the path of the array is not a prefix, which cannot happen.
    pub(super) fn of<S: ?Sized>(array: &'a Array<S>) -> Result<Self, StorageError> {
        let path = array.path().as_str().trim_matches('/');
        let prefix = if path.is_empty() {
            StorePrefix::root()
        } else {
            StorePrefix::new(format!("{path}/"))
                .map_err(|error| StorageError::Other(error.to_string()))?
        };
        let mut keys = Self {
            encoding: array.chunk_key_encoding(),
            grid: array.chunk_grid_shape(),
            prefix,
            depth: None,
        };
        keys.depth = keys.find_depth();
        Ok(keys)
    }

    /// Returns the number of directories above a shard. Returns `None` unless indices can be read from two
    /// keys that differ in all digits, and both keys have as many directories.
    fn find_depth(&self) -> Option<usize> {
        let rank = self.grid.len() as u64;
        let depth = |first: u64| {
            let indices: Vec<u64> = (first..first + rank).collect();
            let key = self.encoding.encode(&indices);
            (self.parse(key.as_str())? == indices).then(|| key.as_str().matches('/').count())
        };
        let short = depth(0)?;
        (depth(1_234_567)? == short).then_some(short)
    }

    /// Returns whether a listing shows which shards are stored.
    pub(super) fn are_known(&self) -> bool {
        self.depth.is_some()
    }

    /// Returns the indices of the shard whose key, without the prefix of the array, is `key`.
    fn parse(&self, key: &str) -> Option<Vec<u64>> {
        let rank = self.grid.len();
        let numbers: Vec<u64> = key
            .split(|c: char| !c.is_ascii_digit())
            .filter(|digits| !digits.is_empty())
            .map(|digits| digits.parse().ok())
            .collect::<Option<_>>()?;
        // Other parts of the key may have digits, too.
        let mut candidates =
            (0..=numbers.len().checked_sub(rank)?).filter_map(|at| numbers.get(at..at + rank));
        let found = candidates.find(|indices| self.encoding.encode(indices).as_str() == key)?;
        Some(found.to_vec())
    }

    /// Returns the indices of the shard with this key, or `None` if it is not a shard of the grid.
    fn in_grid(&self, key: &StoreKey) -> Option<Vec<u64>> {
        let within = key.as_str().strip_prefix(self.prefix.as_str())?;
        let indices = self.parse(within)?;
        let is_there = indices.iter().zip(self.grid).all(|(i, n)| i < n);
        is_there.then_some(indices)
    }

    /// Returns the indices of the shards of the grid that `store` lists, in C order.
    ///
    /// Directories are listed one by one, only as deep as shards lie. Without this limit, some stores of
    /// files find nothing behind a link to a directory, and a link to a parent directory would never end.
    ///
    /// # Errors
    /// The errors of the store.
    pub(super) async fn listed<O: Lists>(&self, store: &O) -> Result<Vec<Vec<u64>>, StorageError> {
        let mut found = Vec::new();
        let mut left = vec![(self.prefix.clone(), self.depth.unwrap_or(0))];
        while let Some((prefix, below)) = left.pop() {
            let listed = store.list_dir(&prefix).await?;
            if below == 0 {
                found.extend(listed.keys().iter().filter_map(|key| self.in_grid(key)));
            } else {
                let prefixes = listed.prefixes().iter();
                left.extend(prefixes.map(|prefix| (prefix.clone(), below - 1)));
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zarrs::array::chunk_key_encoding::{
        DefaultChunkKeyEncoding, DefaultSuffixChunkKeyEncoding, V2ChunkKeyEncoding,
    };
    use zarrs::array::{ArrayBuilder, data_type};
    use zarrs::metadata::ChunkKeySeparator::{Dot, Slash};
    use zarrs::storage::store::MemoryStore;
    use zarrs_storage::WritableStorageTraits;

    use super::*;
    use crate::store::owner::Owner;
    use crate::store::{Blocking, now};

    #[test]
    fn shards_of_every_encoding_are_listed() {
        let encodings: [ChunkKeyEncoding; 6] = [
            DefaultChunkKeyEncoding::new_slash().into(),
            DefaultChunkKeyEncoding::new_dot().into(),
            V2ChunkKeyEncoding::new_slash().into(),
            V2ChunkKeyEncoding::new_dot().into(),
            DefaultSuffixChunkKeyEncoding::new(Slash, ".2.shard".to_owned()).into(),
            DefaultSuffixChunkKeyEncoding::new(Dot, ".7".to_owned()).into(),
        ];
        for encoding in encodings {
            for path in ["/", "/a", "/group 7/a.3"] {
                for rank in 0..=3_usize {
                    let store = Arc::new(MemoryStore::new());
                    let array = ArrayBuilder::new(
                        vec![1 << 40; rank],
                        vec![1; rank],
                        data_type::uint8(),
                        0_u8,
                    )
                    .chunk_key_encoding(encoding.clone())
                    .build(store.clone(), path)
                    .unwrap();
                    array.store_metadata().unwrap();
                    let keys = ShardKeys::of(&array).unwrap();
                    let case = format!("{path} {rank} {encoding:?}");
                    assert!(keys.are_known(), "{case}");
                    let mut expected = Vec::new();
                    // The last one lies outside of the grid, unless there is no axis.
                    for first in [12, 3, (1 << 40) - 4, 0, 1 << 40] {
                        let indices: Vec<u64> = (first..first + rank as u64).collect();
                        let key = array.chunk_key(&indices);
                        store.set(&key, vec![1].into()).unwrap();
                        for other in [
                            format!("{key}.tmp"),
                            format!("{key}.{}-7.tmp", Owner::this()),
                            format!("{key}.__lock"),
                            format!("{key}.frame/1.chunk"),
                        ] {
                            let other = StoreKey::new(other).unwrap();
                            store.set(&other, vec![1].into()).unwrap();
                        }
                        if first < 1 << 40 {
                            expected.push(indices);
                        }
                    }
                    expected.sort();
                    expected.dedup();
                    let listed = now(keys.listed(&Blocking::new(&*store))).unwrap();
                    assert_eq!(listed, expected, "{case}");
                }
            }
        }
    }
}
