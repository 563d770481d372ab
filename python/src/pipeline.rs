//! The native part of `zarrs_cuda.CodecPipeline`.
#![allow(clippy::needless_pass_by_value, reason = "what lists of Python become")]

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use numpy::{PyArray1, PyUntypedArray};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use zarrs::array::codec::ShardingIndexLocation;
use zarrs::metadata::v3::ArrayMetadataV3;
use zarrs_cuda::writer::ShardUpdate;

use crate::array::{Keys, Opener, shard_format};
use crate::batch::{self, Batch};
use crate::device_target::{self, DeviceOutput, InMemory};
use crate::devices::DeviceSettings;
use crate::elements::{self, Elements};
use crate::error::{Error, detached, no_panic, of_python, unsupported};
use crate::given::Given;
use crate::maintain;
use crate::memory::{Buffer, Memory};
use crate::pool;
use crate::read;
use crate::store::{Store, StorePlace};
use crate::value::Value;
use crate::write;

/// Reads and writes the chunks of arrays that have the same metadata and the same store.
#[pyclass(frozen, module = "zarrs_cuda._internal")]
pub(crate) struct Native {
    keys: Keys,
    opener: Opener,
}

#[pymethods]
impl Native {
    /// Makes a pipeline. `metadata` is the text of a `zarr.json`. `place` is the directory of the store, if
    /// its values are files, or its objects. For other stores, calls get and return values. `devices` is `None`
    /// for a pipeline that encodes nothing. If `sync`, files are synced before a call returns.
    #[new]
    #[pyo3(signature = (metadata, place, mode, devices, *, sync))]
    fn new(
        metadata: &[u8],
        place: Option<StorePlace<'_>>,
        mode: &str,
        devices: Option<DeviceSettings>,
        sync: bool,
    ) -> PyResult<Self> {
        let metadata: ArrayMetadataV3 = serde_json::from_slice(metadata).map_err(unsupported)?;
        let keys = Keys::new(&metadata).map_err(unsupported)?;
        let mut codecs = metadata.codecs.iter();
        let has_shards = codecs.any(|codec| codec.name() == "sharding_indexed");
        let mut opener = no_panic(|| Opener::new(metadata, Store::at(place, sync), devices))
            .unwrap_or_else(|| Err("zarrs does not know a parameter of a codec".to_owned()))
            .map_err(unsupported)?;
        let mode = match mode {
            "rewrite" => ShardUpdate::Rewrite,
            "in_place" => ShardUpdate::InPlace,
            "shared" => ShardUpdate::Shared,
            other => return Err(unsupported(format!("there is no mode {other:?}"))),
        };
        if mode != ShardUpdate::Rewrite && has_shards && !opener.is_sharded {
            return Err(unsupported(
                "its shards are encoded by other codecs, too, and have no parts that can be written",
            ));
        }
        // Chunks that are not shards have no parts that could be updated.
        let mode = if has_shards {
            mode
        } else {
            ShardUpdate::Rewrite
        };
        let why = match (mode, &opener.store) {
            (ShardUpdate::Rewrite, _) | (_, Store::Files(_)) => None,
            (ShardUpdate::Shared, Store::Objects(objects)) if objects.are_listed => None,
            (ShardUpdate::InPlace, _) => {
                Some("files alone are updated where they are: use a `zarr.storage.LocalStore`")
            }
            _ => Some(
                "the library itself must list and write the store: use a `zarr.storage.LocalStore`, or a `zarr.storage.ObjectStore` of a store that others can open, too",
            ),
        };
        if let Some(why) = why {
            return Err(unsupported(why));
        }
        opener.update = mode;
        Ok(Self { keys, opener })
    }

    /// Returns whether parts of a chunk can be read and written without the whole chunk.
    #[getter]
    fn is_sharded(&self) -> bool {
        self.opener.is_sharded
    }

    /// Returns the way in which shards are written. For arrays without shards it is always `"rewrite"`.
    #[getter]
    fn mode(&self) -> &'static str {
        match self.opener.update {
            ShardUpdate::InPlace => "in_place",
            ShardUpdate::Shared => "shared",
            _ => "rewrite",
        }
    }

    /// Returns whether calls get and return the values of the store, because the library cannot use the store
    /// itself.
    #[getter]
    fn takes_values(&self) -> bool {
        !self.opener.store.is_ours()
    }

    /// Returns whether calls wait for requests to an object store.
    #[getter]
    fn makes_requests(&self) -> bool {
        matches!(self.opener.store, Store::Objects(_))
    }

    /// Returns whether elements are strings or byte strings of any length.
    #[getter]
    fn is_variable(&self) -> bool {
        self.opener.is_variable
    }

    /// Returns whether reading a part of a chunk decodes the whole chunk.
    #[getter]
    fn decodes_whole(&self) -> bool {
        self.opener.decodes_whole
    }

    /// Returns the bytes of the fill value, as an element has them in memory.
    fn fill_value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let opened = self
            .opener
            .at("", NonZeroUsize::MIN)
            .map_err(|error| error.into_py(py, ""))?;
        Ok(PyBytes::new(py, opened.array.fill_value().as_ne_bytes()))
    }

    /// Returns the place of the index in a shard: whether it is at the end, and its number of bytes.
    fn index_range(&self, py: Python<'_>) -> PyResult<(bool, u64)> {
        let range = self.opener.at("", NonZeroUsize::MIN).and_then(|opened| {
            let format = shard_format(&opened.array);
            let format = format.map_err(|error| Error::Value(error.to_string()))?;
            Ok((format.index_location(), format.index_len()))
        });
        let (location, len) = range.map_err(|error| error.into_py(py, ""))?;
        Ok((matches!(location, ShardingIndexLocation::End), len))
    }

    /// Returns the byte ranges, `(start, end)`, of the subchunks that the boxes of `shape` at `starts` meet,
    /// in the shard `key` with the index `index`. No two ranges touch each other.
    fn ranges(
        &self,
        py: Python<'_>,
        key: &str,
        index: &Bound<'_, PyAny>,
        starts: Vec<Vec<usize>>,
        shape: Vec<usize>,
    ) -> PyResult<Vec<(u64, u64)>> {
        let index = Buffer::of(index)?;
        let path = self.keys.parse(key).map_or("", |(path, _)| path);
        let ranges = self.opener.at("", NonZeroUsize::MIN).and_then(|opened| {
            let ranges = shard_format(&opened.array)
                .and_then(|format| format.ranges_of_boxes(index.as_ref(), &starts, &shape));
            ranges.map_err(|error| Error::Damaged {
                key: key.to_owned(),
                why: error.to_string(),
            })
        });
        let mut ranges = ranges.map_err(|error| error.into_py(py, path))?;
        ranges.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if last.1 >= range.start => last.1 = last.1.max(range.end),
                _ => merged.push((range.start, range.end)),
            }
        }
        Ok(merged)
    }

    /// Returns the path of the array that has a chunk with the key `key`.
    fn path_of<'k>(&self, key: &'k str) -> PyResult<&'k str> {
        Ok(self.parse(key)?.0)
    }

    /// Returns the shape of subchunks, or `None` if the library does not read subchunks by themselves.
    #[getter]
    fn subchunk(&self, py: Python<'_>) -> PyResult<Option<Vec<u64>>> {
        let opened = self.opener.at("", NonZeroUsize::MIN);
        let opened = opened.map_err(|error| error.into_py(py, ""))?;
        Ok(opened.subchunk.clone())
    }

    /// Returns whether a write stores subchunks beside their shards, so that several processes can write one
    /// shard.
    #[getter]
    fn is_shared(&self) -> bool {
        self.opener.update == ShardUpdate::Shared
    }

    /// Reads subchunks of chunks into `out`, one after the other along its first axis. `subchunks` has the
    /// key of each chunk, and the origins of its subchunks. Returns, for each chunk, whether it exists.
    fn read_subchunks(
        &self,
        py: Python<'_>,
        subchunks: Vec<(String, Vec<Vec<usize>>)>,
        out: &Bound<'_, PyUntypedArray>,
        values: Option<&Bound<'_, PyDict>>,
        threads: NonZeroUsize,
    ) -> PyResult<Vec<bool>> {
        let memory = Memory::of(out);
        let mut path = String::new();
        let mut parsed = Vec::with_capacity(subchunks.len());
        for (key, starts) in subchunks {
            let (of_key, indices) = self.parse(&key)?;
            of_key.clone_into(&mut path);
            parsed.push((key, indices, starts));
        }
        let store = self.store(values)?;
        detached(py, &path, || {
            let opened = self.opener.at(&path, threads)?;
            if self.opener.update == ShardUpdate::Shared {
                let shared = self.opener.shared_at(&path, threads)?;
                return read::read_subchunks(&opened, shared.reader()?, &parsed, &memory);
            }
            let reader = opened.reader(&store, threads.get())?;
            let reader = reader.ok_or_else(|| {
                Error::Other("the array has no subchunks that are read by themselves".to_owned())
            })?;
            read::read_subchunks(&opened, &reader, &parsed, &memory)
        })
    }

    /// Returns a text that says how the library reads the array, and why.
    fn explain(&self, py: Python<'_>, path: &str, threads: NonZeroUsize) -> PyResult<String> {
        let opened = self
            .opener
            .at(path, threads)
            .map_err(|error| error.into_py(py, path))?;
        Ok(match zarrs_cuda::explain(&opened.array) {
            Ok(explanation) => of_python(&explanation.to_string()),
            Err(error @ zarrs_cuda::Error::BackendUnavailable { .. }) => format!(
                "writes, and reads of whole shards one by one, are refused: {error}\nother reads: on the host"
            ),
            Err(error) => {
                format!("its chunks are encoded and decoded by zarrs, on the host: {error}")
            }
        })
    }

    /// Reads the items of `batch` that are boxes into `out`. `values` are the values of all keys, unless the
    /// library reads the store itself. Returns, for each item, whether its chunk exists, and the positions of
    /// the items that are not boxes.
    #[pyo3(signature = (batch, out, drop_axes, values, threads, *, boxes))]
    #[allow(clippy::too_many_arguments, reason = "Python's own call has as many")]
    fn read(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyList>,
        out: &Bound<'_, PyUntypedArray>,
        drop_axes: Vec<usize>,
        values: Option<&Bound<'_, PyDict>>,
        threads: NonZeroUsize,
        boxes: bool,
    ) -> PyResult<(Vec<bool>, Vec<usize>)> {
        let memory = Memory::of(out);
        let boxes = boxes && memory.strides.iter().all(|stride| *stride >= 0);
        let parsed = batch::parse(batch, &self.keys, &memory, &drop_axes, boxes)?;
        self.check(&memory, &parsed)?;
        let store = self.store(values)?;
        let found = detached(py, &parsed.path, || {
            let opened = self.opener.at(&parsed.path, threads)?;
            if self.opener.update == ShardUpdate::Shared {
                let shared = self.opener.shared_at(&parsed.path, threads)?;
                let threads = store.waiting(threads);
                return read::read_shared(&opened, &shared, &parsed, &memory, threads);
            }
            read::read(&opened, &store, &parsed, &memory, threads)
        })?;
        let mut is_there = vec![false; batch.len()];
        for (item, found) in parsed.items.iter().zip(found) {
            is_there[item.position] = found;
        }
        Ok((is_there, parsed.others))
    }

    /// Reads the items of `batch` into `out`, an array on a device, behind the work in its stream. Returns whether they
    /// were read, and the reason if the device cannot be used. They are read if all of them are boxes, and if the library
    /// reads the array into the memory of devices. The copies to `out` are enqueued then, and may not be complete.
    fn read_into_device(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyList>,
        out: DeviceOutput,
        threads: NonZeroUsize,
    ) -> PyResult<(bool, Option<String>)> {
        let memory = out.memory();
        let parsed = batch::parse(batch, &self.keys, &memory, &[], true)?;
        if !parsed.others.is_empty() {
            return Ok((false, None));
        }
        self.check(&memory, &parsed)?;
        let store = self.store(None)?;
        let read = detached(py, &parsed.path, || {
            let opened = self.opener.at(&parsed.path, threads)?;
            device_target::read_batch(&opened, &store, &parsed, &out, threads)
        });
        Ok(match read? {
            InMemory::Read => (true, None),
            InMemory::NotAsked => (false, None),
            InMemory::Unusable(why) => (false, Some(why)),
        })
    }

    /// Writes the elements of `value` to the items of `batch` that are boxes. `values` are the values of the
    /// keys of all incomplete chunks, unless the library uses the store itself. Returns the values to store,
    /// by their keys, and the positions of the items that are not boxes.
    #[pyo3(signature = (batch, value, drop_axes, values, threads, *, boxes))]
    #[allow(clippy::too_many_arguments, reason = "Python's own call has as many")]
    fn write<'py>(
        &self,
        py: Python<'py>,
        batch: &Bound<'py, PyList>,
        value: &Bound<'py, PyUntypedArray>,
        drop_axes: Vec<usize>,
        values: Option<&Bound<'py, PyDict>>,
        threads: NonZeroUsize,
        boxes: bool,
    ) -> PyResult<(Bound<'py, PyDict>, Vec<usize>)> {
        let memory = Memory::of(value);
        let parsed = batch::parse(batch, &self.keys, &memory, &drop_axes, boxes)?;
        self.check(&memory, &parsed)?;
        let store = self.store(values)?;
        detached(py, &parsed.path, || {
            write::write(&self.opener, &store, &parsed, &memory, threads)
        })?;
        Ok((to_store(py, &store)?, parsed.others))
    }

    /// Reads the items of `batch`, which are boxes, of elements of variable length. Returns, for each item,
    /// whether its chunk exists, and the elements in C order, which are `str` if `is_text`.
    fn read_elements<'py>(
        &self,
        py: Python<'py>,
        batch: &Bound<'py, PyList>,
        values: Option<&Bound<'py, PyDict>>,
        threads: NonZeroUsize,
        is_text: bool,
    ) -> PyResult<(Vec<bool>, Vec<Bound<'py, PyList>>)> {
        let parsed = self.boxes(batch)?;
        let store = self.store(values)?;
        let read = detached(py, &parsed.path, || {
            let opened = self.opener.at(&parsed.path, threads)?;
            let shared = match self.opener.update {
                ShardUpdate::Shared => Some(self.opener.shared_at(&parsed.path, threads)?),
                _ => None,
            };
            elements::read(&opened, shared.as_deref(), &store, &parsed, threads)
        })?;
        let mut done = (Vec::new(), Vec::new());
        for (item, (is_there, elements)) in parsed.items.iter().zip(read) {
            done.0.push(is_there);
            let list = elements.into_list(py, &parsed.path, &item.key, is_text)?;
            done.1.push(list);
        }
        Ok(done)
    }

    /// Writes lists of elements of variable length to the items of `batch`, which are boxes. The boxes are
    /// whole chunks if the array has no shards. Returns the values to store, by their keys.
    fn write_elements<'py>(
        &self,
        py: Python<'py>,
        batch: &Bound<'py, PyList>,
        elements: Vec<Bound<'py, PyList>>,
        values: Option<&Bound<'py, PyDict>>,
        threads: NonZeroUsize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let parsed = self.boxes(batch)?;
        let elements: Vec<Elements> = elements.iter().map(Elements::of).collect::<PyResult<_>>()?;
        let store = self.store(values)?;
        detached(py, &parsed.path, || {
            let opened = self.opener.at(&parsed.path, threads)?;
            if self.opener.update == ShardUpdate::Shared {
                let shared = self.opener.shared_at(&parsed.path, threads)?;
                return elements::write_shared(&opened, &shared, &parsed, &elements, threads);
            }
            let in_place = self.opener.update == ShardUpdate::InPlace;
            elements::write(&opened, &store, in_place, &parsed, &elements, threads)
        })?;
        to_store(py, &store)
    }

    /// Returns the shards that have subchunks stored beside them.
    fn pending(&self, py: Python<'_>, path: &str) -> PyResult<Vec<Vec<u64>>> {
        detached(py, path, || {
            let shared = self.opener.shared_at(path, NonZeroUsize::MIN)?;
            shared.store.pending().map_err(Error::from)
        })
    }

    /// Packs the subchunks that are stored beside the shards `pending`, if these shards are in part `part[0]`
    /// of `part[1]` parts of the grid of shards, `grid`. Returns `(shards, subchunks, versions, invalid,
    /// erased)`.
    #[pyo3(signature = (path, pending, grid, part, threads, *, discard_invalid, over_changed))]
    #[allow(clippy::too_many_arguments, reason = "one call of Python")]
    fn consolidate(
        &self,
        py: Python<'_>,
        path: &str,
        pending: Vec<Vec<u64>>,
        grid: Vec<u64>,
        part: (u64, u64),
        threads: NonZeroUsize,
        discard_invalid: bool,
        over_changed: bool,
    ) -> PyResult<maintain::Packed> {
        let work = maintain::ConsolidateArguments {
            pending,
            grid,
            part,
            discard_invalid,
            over_changed,
        };
        detached(py, path, || {
            let shared = self.opener.shared_at(path, threads)?;
            let store = &self.opener.store;
            maintain::consolidate(&shared, store, work, store.waiting(threads))
        })
    }

    /// Packs the subchunks that are stored beside the shard `shard`. Returns their number.
    fn consolidate_shard(
        &self,
        py: Python<'_>,
        path: &str,
        shard: Vec<u64>,
        threads: NonZeroUsize,
    ) -> PyResult<usize> {
        detached(py, path, || {
            let shared = self.opener.shared_at(path, threads)?;
            maintain::consolidate_shard(&shared, &shard)
        })
    }

    /// Returns the stored shards within the grid of shards, `grid`, in C order.
    fn stored(&self, py: Python<'_>, path: &str, grid: Vec<u64>) -> PyResult<Vec<Vec<u64>>> {
        detached(py, path, || self.maintained(path)?.stored(&grid))
    }

    /// Returns descriptions of the shard `shard` in JSON and as text, or None if the shard does not exist.
    fn inspect(
        &self,
        py: Python<'_>,
        path: &str,
        shard: Vec<u64>,
    ) -> PyResult<Option<(String, String)>> {
        detached(py, path, || self.maintained(path)?.inspect(&shard))
    }

    /// Takes the lease of the array, to change any of its shards. While it is held, writers cannot extend the
    /// array.
    fn lease(&self, py: Python<'_>, path: &str) -> PyResult<maintain::Lease> {
        detached(py, path, || maintain::Lease::take(&self.opener.store, path))
    }

    /// Stores the shard `shard` again without unused bytes. Returns its size before and after, in bytes, or
    /// None if the shard does not exist.
    fn compact(&self, py: Python<'_>, path: &str, shard: Vec<u64>) -> PyResult<Option<(u64, u64)>> {
        detached(py, path, || self.maintained(path)?.compact(&shard))
    }

    /// Repairs the shard `shard` after an update that was interrupted. Returns the outcome as one word, and
    /// as text.
    fn recover(
        &self,
        py: Python<'_>,
        path: &str,
        shard: Vec<u64>,
        threads: NonZeroUsize,
    ) -> PyResult<(&'static str, String)> {
        detached(py, path, || {
            let maintained = self.maintained(path)?;
            pool::run(threads, || maintained.recover(&shard))?
        })
    }
}

/// Returns the changes that Python must store as a dictionary, by their keys; it is empty if the library has stored
/// them.
fn to_store<'py>(py: Python<'py>, store: &Store) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    if let Store::Given(given) = store {
        for (key, value) in given.take_changes() {
            dict.set_item(key, value.map(|value| PyArray1::from_vec(py, value.into())))?;
        }
    }
    Ok(dict)
}

impl Native {
    fn parse<'k>(&self, key: &'k str) -> PyResult<(&'k str, Vec<u64>)> {
        let parsed = self.keys.parse(key);
        parsed.ok_or_else(|| unsupported(format!("{key} is not the key of a chunk of this array")))
    }

    fn maintained(&self, path: &str) -> Result<maintain::Maintained, Error> {
        let opened = self.opener.at(path, NonZeroUsize::MIN)?;
        let array = &opened.array;
        Ok(maintain::Maintained(array.with_storage(array.storage())))
    }

    /// Reads a batch whose items must all be boxes, and whose elements are in no numpy array.
    fn boxes(&self, batch: &Bound<'_, PyList>) -> PyResult<Batch> {
        let parsed = batch::parse(batch, &self.keys, &Memory::none(), &[], true)?;
        if parsed.others.is_empty() {
            return Ok(parsed);
        }
        Err(unsupported(format!(
            "{} of {} selections are no boxes",
            parsed.others.len(),
            batch.len()
        )))
    }

    /// Checks that an element takes as many bytes in numpy as in zarrs.
    fn check(&self, memory: &Memory, batch: &Batch) -> PyResult<()> {
        let opened = self.opener.at(&batch.path, NonZeroUsize::MIN);
        let opened = opened.map_err(|error| unsupported(format!("{error:?}")))?;
        if batch.items.is_empty() || memory.element_size == opened.element_size {
            return Ok(());
        }
        Err(unsupported(format!(
            "elements of the numpy array take {} bytes, and those of the array {}",
            memory.element_size, opened.element_size
        )))
    }

    fn store(&self, values: Option<&Bound<'_, PyDict>>) -> PyResult<Store> {
        if self.opener.store.is_ours() {
            return Ok(self.opener.store.clone());
        }
        let mut given = HashMap::new();
        for (key, value) in values.into_iter().flatten() {
            let bytes =
                |object: &Bound<'_, PyAny>| Ok::<_, PyErr>(Bytes::from_owner(Buffer::of(object)?));
            let value = if value.is_none() {
                None
            } else if let Ok(parts) = value.cast::<PyList>() {
                let parts = parts.iter().map(|part| {
                    let (start, part): (Option<u64>, Bound<'_, PyAny>) = part.extract()?;
                    Ok((start, bytes(&part)?))
                });
                Some(Value::Parts(parts.collect::<PyResult<_>>()?))
            } else {
                Some(Value::Whole(bytes(&value)?))
            };
            given.insert(key.extract()?, value);
        }
        Ok(Store::Given(Arc::new(Given::new(given))))
    }
}
