//! Finds out whether the store has more of an array than its metadata.

use zarrs::array::Array;
use zarrs::node::meta_key_v3;
use zarrs_storage::{
    ListableStorage, ReadableStorageTraits, ReadableWritableStorageTraits, StorageError,
};

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
        // A killed writer leaves its lease or a temporary, also if all of its slices were the fill value.
        if found.keys().iter().any(|key| *key != metadata) {
            return Ok(true);
        }
        left.extend(found.prefixes().iter().cloned());
    }
    Ok(false)
}
