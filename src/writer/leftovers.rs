//! Erases the leftovers of a killed writer.

use zarrs::array::Array;
use zarrs::node::meta_key_v3;
use zarrs_storage::{
    ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StorePrefix,
    WritableStorageTraits,
};

use crate::store::temporary_keys::temporary_key;

/// Erases the temporaries of the metadata of `array`, and of its shards from index `first` on along the
/// first axis. Returns how many there were.
///
/// No other writer may be writing to these shards. Complete shards stay. Chunk keys usually have a directory
/// for each index along the first axis; then no directory below `first` is listed. If a chunk key encoding
/// does not spell out the indices in decimal digits, no temporary is found. A temporary that was not found is
/// cut off when its shard is written again.
///
/// # Errors
/// The errors of the store. Another call erases the temporaries that are left.
pub(super) fn clean<T, S>(array: &Array<T>, store: &S, first: u64) -> Result<usize, StorageError>
where
    T: ?Sized,
    S: ?Sized + ReadableStorageTraits + WritableStorageTraits + ListableStorageTraits,
{
    let metadata = temporary_key(&meta_key_v3(array.path()))?;
    let is_there = store.size_key(&metadata)?.is_some();
    let shards = candidates(array, store, first)?;
    let shards = shards
        .into_iter()
        .filter(|key| is_temporary(array, key, first));
    let mut erased = 0;
    for key in is_there.then_some(metadata).into_iter().chain(shards) {
        store.erase(&key)?;
        erased += 1;
    }
    Ok(erased)
}

/// Lists keys of the array. All shards from index `first` on, and their temporaries, are among them.
fn candidates<T, S>(array: &Array<T>, store: &S, first: u64) -> Result<StoreKeys, StorageError>
where
    T: ?Sized,
    S: ?Sized + ListableStorageTraits,
{
    // Find the component of a key that contains the index along the first axis.
    let [here, beside, next] = [(first, 0), (first, 1), (first.wrapping_add(1), 0)]
        .map(|(outer, inner)| key_of(array, outer, inner));
    let [here, beside, next] = [&here, &beside, &next].map(|key| parts(key.as_str()));
    let same = std::iter::zip(&here, &next).take_while(|(a, b)| a == b);
    let depth = same.count();
    let parent = prefix(&here[..depth.min(here.len() - 1)])?;
    let has_directory = depth + 1 < here.len() && depth + 1 < next.len();
    if has_directory && beside.get(..=depth) == Some(&here[..=depth]) {
        let mut keys = StoreKeys::new();
        for directory in store.list_dir(&parent)?.prefixes() {
            let is_of = |outer: u64| {
                let key = key_of(array, outer, 0);
                let parts = parts(key.as_str());
                let parts = parts.get(..=depth).unwrap_or(&parts);
                prefix(parts).is_ok_and(|prefix| prefix == *directory)
            };
            let name = &directory.as_str()[parent.as_str().len()..];
            if numbers(name).into_iter().any(|i| i >= first && is_of(i)) {
                keys.extend(store.list_prefix(directory)?);
            }
        }
        return Ok(keys);
    }
    let is_file = depth + 1 == here.len() && beside.len() == here.len();
    if is_file && beside[..depth] == here[..depth] {
        return Ok(store.list_dir(&parent)?.keys().clone());
    }
    store.list_prefix(&prefix(&parts(array.path().as_str()))?)
}

/// Returns whether `key` is the temporary of a shard of `array` whose index along the first axis is `first`
/// or more.
fn is_temporary<T: ?Sized>(array: &Array<T>, key: &StoreKey, first: u64) -> bool {
    let path = array.path().as_str().trim_start_matches('/');
    let Some(within) = key.as_str().strip_prefix(path) else {
        return false;
    };
    let grid = array.chunk_grid_shape();
    // An array without axes has no index along the first axis, and `windows` panics for 0.
    numbers(within).windows(grid.len().max(1)).any(|indices| {
        indices[0] >= first
            && indices.len() == grid.len()
            && std::iter::zip(indices, grid).skip(1).all(|(i, n)| i < n)
            && temporary_key(&array.chunk_key(indices)).is_ok_and(|temporary| temporary == *key)
    })
}

/// Returns the key of the shard at index `outer` along the first axis, and at `inner` along the others.
fn key_of<T: ?Sized>(array: &Array<T>, outer: u64, inner: u64) -> StoreKey {
    let mut indices = vec![inner; array.dimensionality()];
    if let Some(index) = indices.first_mut() {
        *index = outer;
    }
    array.chunk_key(&indices)
}

fn parts(key: &str) -> Vec<&str> {
    key.trim_start_matches('/').split('/').collect()
}

/// Returns the prefix of the keys in the nested directories `parts`.
fn prefix(parts: &[&str]) -> Result<StorePrefix, StorageError> {
    let path: String = parts
        .iter()
        .filter(|part| !part.is_empty())
        .flat_map(|part| [part, "/"])
        .collect();
    Ok(StorePrefix::new(path)?)
}

/// Returns the runs of decimal digits in `text` that are numbers of 64 bits.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zarrs::array::chunk_key_encoding::{
        DefaultChunkKeyEncoding, DefaultSuffixChunkKeyEncoding, V2ChunkKeyEncoding,
    };
    use zarrs::array::{ArrayBuilder, ChunkKeyEncoding, data_type};
    use zarrs::filesystem::FilesystemStore;
    use zarrs::metadata::ChunkKeySeparator;

    use super::super::interrupted::{Files, files, interrupted, put, snapshot};
    use super::*;
    use crate::store::owner::Owner;
    use zarrs_cuda_testing::stores::faulty::Operation;

    /// Three shards along each axis but the first.
    fn array(
        store: &Arc<Files>,
        path: &str,
        rank: usize,
        encoding: ChunkKeyEncoding,
    ) -> Array<FilesystemStore> {
        let mut shape = vec![6; rank];
        shape[0] = 4;
        ArrayBuilder::new(shape, vec![2; rank], data_type::uint8(), 0u8)
            .chunk_key_encoding(encoding)
            .build(store.inner().clone(), path)
            .unwrap()
    }

    fn encodings() -> [(ChunkKeyEncoding, bool); 5] {
        [
            (DefaultChunkKeyEncoding::new_slash().into(), true),
            (V2ChunkKeyEncoding::new_slash().into(), true),
            (DefaultChunkKeyEncoding::new_dot().into(), false),
            (V2ChunkKeyEncoding::new_dot().into(), false),
            (
                DefaultSuffixChunkKeyEncoding::new(ChunkKeySeparator::Slash, ".v2".to_owned())
                    .into(),
                true,
            ),
        ]
    }

    /// Whether `clean` from index 2 on should erase the temporary of a shard.
    fn is_left(indices: &[u64]) -> bool {
        indices[0] >= 2 && indices[1..].iter().all(|&i| i < 3)
    }

    /// Shards and their temporaries everywhere, and some more that is called `.tmp`.
    fn fill(store: &Arc<Files>, array: &Array<FilesystemStore>) -> Vec<String> {
        let rank = array.dimensionality();
        let mut left = Vec::new();
        for outer in [0, 1, 2, 3, 9, 12, 1000] {
            for inner in [0, 2, 3] {
                let mut indices = vec![inner; rank];
                indices[0] = outer;
                let key = array.chunk_key(&indices);
                let temporary = format!("{key}.tmp");
                put(store, key.as_str(), "whole");
                put(store, &temporary, "part");
                // Locks and temporaries of other writers, which may run.
                put(store, &format!("{key}.__lock"), "");
                put(store, &format!("{key}.{}-7.tmp", Owner::this()), "part");
                if is_left(&indices) {
                    left.push(temporary);
                }
            }
        }
        let path = array.path().as_str().trim_start_matches('/');
        let of = |name: &str| match path {
            "" => name.to_owned(),
            path => format!("{path}/{name}"),
        };
        put(store, &of("zarr.json"), "{}");
        put(store, &of("zarr.json.tmp"), "{");
        left.push(of("zarr.json.tmp"));
        for other in [
            "d/5/1/1.tmp",
            "5.tmp.tmp",
            "notes 7.tmp",
            "c.tmp",
            "other/c/5/1/1.tmp",
        ] {
            put(store, &of(other), "somebody's");
        }
        left.sort();
        left.dedup();
        left
    }

    #[test]
    fn temporaries_from_an_index_on_are_erased_and_nothing_else() {
        for path in ["/", "/a", "/group 7/a.3"] {
            for rank in 1..=3 {
                for (encoding, has_directories) in encodings() {
                    let (_directory, store) = files();
                    let array = array(&store, path, rank, encoding.clone());
                    let left = fill(&store, &array);
                    let mut expected = snapshot(&store);
                    expected.retain(|key, _| !left.contains(key));
                    store.work();
                    let case = format!("{path} {rank} {encoding:?}");
                    assert_eq!(clean(&array, &*store, 2).unwrap(), left.len(), "{case}");
                    assert_eq!(snapshot(&store), expected, "{case}");
                    // The directories of earlier indices were not listed.
                    let lists = store.requests().into_iter();
                    let lists = lists.filter(|request| request.operation == Operation::List);
                    let lists: Vec<String> = lists.map(|request| request.key).collect();
                    let directories = if has_directories && rank > 1 { 5 } else { 0 };
                    assert_eq!(lists.len(), 1 + directories, "{case}: {lists:?}");
                    assert_eq!(clean(&array, &*store, 2).unwrap(), 0, "{case}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_there() {
        for (encoding, _) in encodings() {
            let (_directory, store) = files();
            let array = array(&store, "/a", 2, encoding);
            assert_eq!(clean(&array, &*store, 0).unwrap(), 0);
        }
    }

    #[test]
    fn interrupted_anywhere() {
        let make = |store: &Arc<Files>| {
            let encoding = DefaultChunkKeyEncoding::new_slash().into();
            (array(store, "/a", 2, encoding), store.clone())
        };
        let prepare = |store: &Files| {
            for name in ["c/1/0", "c/2/1", "c/2/2.tmp", "c/3/0.tmp", "zarr.json.tmp"] {
                put(store, &format!("a/{name}"), name);
            }
        };
        let end = interrupted(
            prepare,
            make,
            &[&|(array, store)| clean(array, &**store, 1).map(drop)],
            |_| {},
        );
        assert_eq!(end.into_keys().collect::<Vec<_>>(), ["a/c/1/0", "a/c/2/1"]);
    }
}
