//! Finds out where a writer begins, and whether the store has more of the array than its metadata.

use zarrs::array::Array;
use zarrs::node::meta_key_v3;
use zarrs_storage::{
    ListableStorage, ReadableStorageTraits, ReadableWritableStorageTraits, StorageError, StoreKey,
};

use super::builder::ArrayWriterBuilder;
use super::error::{WriterError, unsupported};
use super::start::Start;
use crate::store::temporary_keys::is_lock_file;
use zarrs_cuda_engine::layout::{StreamGrid, c_order};

/// The first slices of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    /// The first slice of the stream, at the border of a shard.
    pub(crate) border: u64,
    /// The number of stored slices from `border` on that the stream takes again before the caller's slices.
    pub(crate) read_back: u64,
}

impl<TStorage> ArrayWriterBuilder<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    /// Returns where the stream begins.
    ///
    /// # Errors
    /// [`WriterError::Start`] if a slice was given, or the array ends, within a shard;
    /// [`WriterError::Unsupported`] if too few numbers of slices are left.
    pub(crate) fn begin(&self, grid: &StreamGrid) -> Result<Begin, WriterError> {
        let end = self.array.shape().first().copied().unwrap_or(0);
        let (first, may_read_back) = match self.settings.start {
            Some(Start::Slice(slice)) => (slice, false),
            Some(Start::Resume) => (end, true),
            None => (end, false),
        };
        let shard_slices = grid.shard_slices() as u64;
        // The numbers of all slices that can be appended from `first` on must not overflow.
        let numbers = first
            .checked_add(i64::MAX as u64)
            .and_then(|end| end.checked_add(shard_slices));
        if numbers.is_none() {
            return Err(WriterError::Unsupported {
                reason: format!("slice {first} is at the end of all numbers"),
            });
        }
        let within = first % shard_slices;
        if within > 0 && !may_read_back {
            return Err(WriterError::Start {
                start: first,
                shard_slices,
                before: first - within,
            });
        }
        let read_back = within.max(self.target.level.read_back);
        Ok(Begin {
            border: first - within,
            read_back,
        })
    }

    /// Checks that the slices before the first appended slice are stored. An array that was made with its
    /// final shape has no stored slices, and readers would not expect appended slices behind them.
    ///
    /// # Errors
    /// [`WriterError::Unsupported`] if [no shard](is_begun) is stored; the errors of the store.
    pub(crate) fn check_begun(&self) -> Result<(), WriterError> {
        let slices = self.array.shape().first().copied().unwrap_or(0);
        let (_, grid) = self.stream()?;
        let renaming = self.settings.renaming.as_ref();
        let listed = renaming.map(|renaming| renaming.listed());
        let is_begun = is_begun(&self.array, &grid, listed.as_ref());
        if slices == 0
            || is_begun.map_err(|error| WriterError::refused(self.array.path(), error))?
        {
            return Ok(());
        }
        let border = slices / grid.shard_slices() as u64 * grid.shard_slices() as u64;
        let first = if border < slices {
            format!(" and append slices {border} to {} first", slices - 1)
        } else {
            String::new()
        };
        Err(unsupported(format!(
            "it has {slices} slices, and none of them is stored: to write these slices begin `with_start(0)`, and to append behind them `with_start({border})`{first}"
        )))
    }
}

/// Returns whether the store has a shard of `array`, with the shards of `grid`, or leftovers of a killed
/// writer.
///
/// Asks for some shards of the last and of the first shard epoch. If the store has none of them, `listed`,
/// which has the values of the array, is listed. If `listed` is `None`, shards at other places are not found.
///
/// # Errors
/// The errors of the store.
fn is_begun<T>(
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
