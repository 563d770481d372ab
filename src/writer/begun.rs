//! Finds out whether the store has more of an array than its metadata.

use zarrs::array::Array;
use zarrs::node::meta_key_v3;
use zarrs_storage::{
    ListableStorage, ReadableStorageTraits, ReadableWritableStorageTraits, StorageError, StoreKey,
};

use crate::store::temporary_keys::is_lock_file;
use zarrs_cuda_engine::layout::{StreamGrid, c_order};

/// Returns whether the store has a shard of `array`, with the shards of `grid`, or leftovers of a killed
/// writer.
///
/// Asks for some shards of the last and of the first shard epoch. If the store has none of them, `listed`,
/// which has the values of the array, is listed. If `listed` is `None`, shards at other places are not found.
///
/// # Errors
/// The errors of the store.
pub(super) fn is_begun<T>(
    array: &Array<T>,
    grid: &StreamGrid,
    listed: Option<&ListableStorage>,
) -> Result<bool, StorageError>
where
    T: ?Sized + ReadableWritableStorageTraits + 'static,
{
    /// The most shards of an epoch that are asked for.
    const MOST: usize = 64;
    let Some(last) = array.shape()[0].checked_sub(1) else {
        return Ok(false);
    };
    let count = grid.shards_per_epoch();
    let last = last / grid.shard_slices() as u64;
    let mut epochs = vec![last, 0];
    epochs.dedup();
    for epoch in epochs {
        for number in (0..count).step_by(count.div_ceil(MOST).max(1)) {
            let inner = c_order::coordinates(number, &grid.shards());
            let indices = inner.into_iter().map(|at| at as u64);
            let indices: Vec<u64> = std::iter::once(epoch).chain(indices).collect();
            if array
                .storage()
                .size_key(&array.chunk_key(&indices))?
                .is_some()
            {
                return Ok(true);
            }
        }
    }
    let Some(listed) = listed else {
        return Ok(false);
    };
    let metadata = meta_key_v3(array.path());
    let mut left = vec![metadata.parent()];
    while let Some(prefix) = left.pop() {
        let found = listed.list_dir(&prefix)?;
        // A killed writer leaves its lease or a temporary, also if all of its slices were the fill value. A lock
        // file may be that of a process that only asks for a shard.
        let is_value = |key: &StoreKey| *key != metadata && !is_lock_file(key.as_str());
        if found.keys().iter().any(is_value) {
            return Ok(true);
        }
        left.extend(found.prefixes().iter().cloned());
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use zarrs::array::{ArrayBuilder, data_type};
    use zarrs_cuda_engine::layout::SubchunkGrid;

    use super::super::interrupted::{files, put};
    use super::*;
    use crate::store::owner::Owner;

    #[test]
    fn a_lock_file_is_no_beginning() {
        let (_directory, store) = files();
        let array = ArrayBuilder::new(vec![4, 4], vec![2, 2], data_type::uint8(), 0_u8)
            .build(store.inner().clone(), "/a")
            .unwrap();
        let shard = SubchunkGrid::new(&[2, 2], &[2, 2], 1).unwrap();
        let grid = StreamGrid::new(shard, &[4]).unwrap();
        let listed: ListableStorage = store.inner().clone();
        let temporary = format!("a/c/9/0.{}-7.tmp", Owner::this());
        put(&store, "a/zarr.json", "{}");
        for (key, expected) in [
            ("a/zarr.json.__lock", false),
            ("a/c/1/0.__lock", false),
            (&*temporary, true),
        ] {
            put(&store, key, "");
            let found = is_begun(&array, &grid, Some(&listed)).unwrap();
            assert_eq!(found, expected, "{key}");
        }
    }
}
