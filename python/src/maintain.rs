//! Maintains shards: packs, compacts, repairs and describes them.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use serde_json::json;
use zarrs::array::Array;
use zarrs::node::NodePath;
use zarrs_cuda::maintenance::{ArrayLease, Shards};
use zarrs_cuda::storage::{SparseShardStore, Unfinished};
use zarrs_storage::{StorageError, StorePrefix, WritableStorageTraits};

use crate::array::Shared;
use crate::error::{Error, detached};
use crate::files::frame_directory;
use crate::store::{Store, StorePlace};

/// The counts of a consolidation: shards packed, subchunks in them, objects that had these subchunks, invalid
/// objects, and shards outside of the array whose frames were erased.
pub(crate) type Packed = (usize, usize, usize, usize, usize);

/// The arguments of [`consolidate`].
pub(crate) struct ConsolidateArguments {
    /// The shards that have frames.
    pub(crate) pending: Vec<Vec<u64>>,
    /// The shape of the grid of shards. It was read after the listing, because a listed shard may be new.
    pub(crate) grid: Vec<u64>,
    /// The part of the shards to pack: part `part.0` of `part.1` parts.
    pub(crate) part: (u64, u64),
    /// Whether to erase objects that are not complete.
    pub(crate) discard_invalid: bool,
    /// Whether to pack also shards that another program has replaced after subchunks were stored beside them.
    pub(crate) over_changed: bool,
}

/// Packs the frames of the shards of one part: their number in the grid, modulo the number of parts, is the
/// number of the part. Part 0 also erases the frames of shards outside of the grid.
pub(crate) fn consolidate(
    shared: &Shared,
    store: &Store,
    work: ConsolidateArguments,
    threads: NonZeroUsize,
) -> Result<Packed, Error> {
    let (part, parts) = work.part;
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for shard in work.pending {
        match number(&shard, &work.grid) {
            Some(number) if number % u128::from(parts.max(1)) == u128::from(part) => {
                inside.push(shard);
            }
            None if part == 0 => outside.push(shard),
            _ => {}
        }
    }
    for shard in &outside {
        let key = shared.shards.array.chunk_key(shard);
        let frame = StorePrefix::new(frame_directory(key.as_str()) + "/");
        let erased = frame
            .map_err(Into::into)
            .and_then(|frame| store.erase_prefix(&frame));
        erased.map_err(|error| Error::store("erase the frame of", key.as_str(), &error))?;
    }
    if work.discard_invalid {
        for shard in &inside {
            shared.store.discard_invalid(shard).map_err(Error::from)?;
        }
    }
    let mut sparse = SparseShardStore::clone(&shared.store);
    if work.over_changed {
        sparse = sparse.over_changed_shards();
    }
    let packed = sparse.consolidate_shards(&inside, threads, &|_| ());
    let packed = packed.map_err(Error::from)?;
    let sum = packed.sum;
    Ok((
        packed.done,
        sum.subchunks,
        sum.versions,
        sum.invalid,
        outside.len(),
    ))
}

/// Packs the frame of one shard. Returns the number of subchunks in the frame.
pub(crate) fn consolidate_shard(shared: &Shared, shard: &[u64]) -> Result<usize, Error> {
    let packed = shared.store.consolidate(shard).map_err(Error::from)?;
    Ok(packed.map_or(0, |packed| packed.subchunks))
}

/// Returns the number of shards of the array at `path` that have subchunks beside them, which readers of
/// shards do not see. For an array that was never shared, this takes one request.
#[pyfunction]
pub(crate) fn frames(py: Python<'_>, place: StorePlace<'_>, path: &str) -> PyResult<usize> {
    let store = Store::at(Some(place), false);
    detached(py, path, || {
        if matches!(&store, Store::Objects(objects) if !objects.are_listed) {
            return Ok(0);
        }
        let node = format!("/{path}");
        if !SparseShardStore::is_marked(&store, &node).map_err(Error::from)? {
            return Ok(0);
        }
        match store.shared(&node).and_then(|shared| shared.pending()) {
            Ok(pending) => Ok(pending.len()),
            // The array was created again without shards after subchunks were stored beside shards.
            Err(zarrs_cuda::Error::NotShards { .. } | zarrs_cuda::Error::Create(_)) => Ok(0),
            Err(error) => Err(error.into()),
        }
    })
}

/// Returns whether the file with this name is left from a process of this package that ended while it wrote
/// the file.
#[pyfunction]
pub(crate) fn is_left(name: &str) -> bool {
    Unfinished::of(name).is_some_and(|unfinished| unfinished.is_left())
}

/// Returns the number of a shard in C order, or `None` if the shard is not in the grid.
fn number(shard: &[u64], grid: &[u64]) -> Option<u128> {
    let mut axes = shard.iter().zip(grid);
    axes.try_fold(0_u128, |number, (&index, &count)| {
        (index < count).then(|| {
            // The number wraps around in a huge grid. Each shard still belongs to exactly one part.
            let number = number.wrapping_mul(u128::from(count));
            number.wrapping_add(u128::from(index))
        })
    })
}

/// A lease of an array, which is held until it is closed.
#[pyclass(frozen, module = "zarrs_cuda._internal")]
pub(crate) struct Lease(Mutex<Option<ArrayLease>>);

impl Lease {
    /// Takes the lease of the array at `path`, to change any of its shards. In a store that Python reads and
    /// writes, there is no lease.
    pub(crate) fn take(store: &Store, path: &str) -> Result<Self, Error> {
        let failed = |error: &StorageError| Error::store("change the shards of", path, error);
        let lease = match store {
            Store::Files(files) => {
                let lease = ArrayLease::take(&files.root().join(path));
                Some(lease.map_err(|error| failed(&error.into()))?)
            }
            Store::Objects(objects) => {
                let array = NodePath::new(&format!("/{path}"));
                let array =
                    array.map_err(|error| failed(&StorageError::Other(error.to_string())))?;
                let lease = ArrayLease::take_in(Arc::new(objects.store.clone()), &array);
                Some(lease.map_err(|error| failed(&error))?)
            }
            _ => None,
        };
        Ok(Self(Mutex::new(lease)))
    }
}

/// Closes the lease if an exception has prevented Python from closing it.
impl Drop for Lease {
    fn drop(&mut self) {
        let lease = self
            .0
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(lease) = lease {
            // The GIL is released, because dropping the lease waits for the store.
            Python::attach(|py| py.detach(|| drop(lease)));
        }
    }
}

#[pymethods]
impl Lease {
    /// Returns whether the lease was taken and is not closed.
    #[getter]
    fn is_held(&self) -> bool {
        let lease = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lease.as_ref().is_some_and(ArrayLease::is_held)
    }

    fn close(&self, py: Python<'_>) {
        let lease = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(lease));
    }
}

/// An array whose shards are maintained.
pub(crate) struct Maintained(pub(crate) Array<Store>);

impl Maintained {
    fn shards(&self) -> Result<Shards<'_, Store>, Error> {
        Shards::of(&self.0).map_err(Error::from)
    }

    /// Returns the stored shards within `grid`, in C order, by a listing. The shape of the array itself is
    /// unbounded.
    pub(crate) fn stored(&self, grid: &[u64]) -> Result<Vec<Vec<u64>>, Error> {
        let stored = self.shards()?.stored().map_err(Error::from)?;
        let shards = stored.into_iter().map(|(shard, _)| shard);
        let is_within = |shard: &Vec<u64>| number(shard, grid).is_some();
        Ok(shards.filter(is_within).collect())
    }

    pub(crate) fn inspect(&self, shard: &[u64]) -> Result<Option<(String, String)>, Error> {
        let found = self.shards()?.inspect(shard).map_err(Error::from)?;
        Ok(found.map(|found| {
            let subchunks = found.subchunks.iter();
            let subchunks = subchunks
                .map(|subchunk| subchunk.map(|subchunk| json!([subchunk.offset, subchunk.size])));
            let index = found
                .index
                .as_ref()
                .map(|index| json!([index.start, index.end]));
            let described = json!({
                "size": found.size,
                "live": found.live,
                "grid": found.grid,
                "decoded_size": found.decoded_size,
                "index": index,
                "problem": found.index_problem,
                "subchunks": subchunks.collect::<Vec<_>>(),
                "state": found.recovery.name(),
            });
            (described.to_string(), found.to_string())
        }))
    }

    pub(crate) fn compact(&self, shard: &[u64]) -> Result<Option<(u64, u64)>, Error> {
        let compacted = self.shards()?.compact(shard).map_err(Error::from)?;
        Ok(compacted.map(|compacted| (compacted.before, compacted.after)))
    }

    pub(crate) fn recover(&self, shard: &[u64]) -> Result<(&'static str, String), Error> {
        let recovered = self.shards()?.recover(shard).map_err(Error::from)?;
        Ok((recovered.outcome.name(), recovered.to_string()))
    }
}
