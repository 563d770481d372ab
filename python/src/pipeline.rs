//! The native half of `zarrs_cuda.CodecPipeline`.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use numpy::{PyArray1, PyUntypedArray};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use zarrs::metadata::v3::ArrayMetadataV3;

use crate::array::{Keys, Opener};
use crate::batch::{self, Batch};
use crate::error::unsupported;
use crate::memory::{Buffer, Memory};
use crate::read;
use crate::store::Store;
use crate::write;

/// Reads and writes the chunks of arrays that have the same metadata and the same store.
#[pyclass(frozen, module = "zarrs_cuda._internal")]
pub(crate) struct Native {
    keys: Keys,
    opener: Opener,
}

#[pymethods]
impl Native {
    /// `metadata` is the text of a `zarr.json`; `root` is the directory of the store, if its values are files.
    #[new]
    #[pyo3(signature = (metadata, root))]
    fn new(metadata: &[u8], root: Option<PathBuf>) -> PyResult<Self> {
        let metadata: ArrayMetadataV3 = serde_json::from_slice(metadata).map_err(unsupported)?;
        Ok(Self {
            keys: Keys::new(&metadata).map_err(unsupported)?,
            opener: Opener::new(metadata, root).map_err(unsupported)?,
        })
    }

    /// The bytes of the fill value, as elements have them in memory.
    fn fill_value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let opened = self
            .opener
            .at("", NonZeroUsize::MIN)
            .map_err(|error| error.into_py(py, ""))?;
        Ok(PyBytes::new(py, opened.array.fill_value().as_ne_bytes()))
    }

    /// How the library reads the array, and why.
    fn explain(&self, py: Python<'_>, path: &str, threads: NonZeroUsize) -> PyResult<String> {
        let opened = self
            .opener
            .at(path, threads)
            .map_err(|error| error.into_py(py, path))?;
        Ok(match zarrs_cuda::explain(&opened.array) {
            Ok(explanation) => explanation.to_string(),
            Err(error) => {
                format!("its chunks are encoded and decoded by zarrs, on the host: {error}")
            }
        })
    }

    /// Reads the items of `batch` that are boxes to `out`. `values` are the values of all keys, unless they
    /// are files. Returns, for each item, whether its chunk is there; and the positions of the other items.
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
        let done = py.detach(|| {
            let opened = self.opener.at(&parsed.path, threads)?;
            read::read(&opened, &store, &parsed, &memory, threads)
        });
        let found = done.map_err(|error| error.into_py(py, &parsed.path))?;
        let mut is_there = vec![false; batch.len()];
        for (item, found) in parsed.items.iter().zip(found) {
            is_there[item.position] = found;
        }
        Ok((is_there, parsed.others))
    }

    /// Writes the items of `batch` that are boxes, with the elements of `value`. `values` are the values of
    /// all keys of incomplete chunks, unless they are files. Returns the values to store, by their keys, and
    /// the positions of the other items.
    #[pyo3(signature = (batch, value, drop_axes, values, threads, *, boxes, sync))]
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
        sync: bool,
    ) -> PyResult<(Bound<'py, PyDict>, Vec<usize>)> {
        let memory = Memory::of(value);
        let parsed = batch::parse(batch, &self.keys, &memory, &drop_axes, boxes)?;
        self.check(&memory, &parsed)?;
        let store = self.store(values)?;
        if let Store::Files(files) = &store {
            files.set_sync(sync);
        }
        let done = py.detach(|| {
            let opened = self.opener.at(&parsed.path, threads)?;
            write::write(&opened, &store, &parsed, &memory, threads)
        });
        let changes = PyDict::new(py);
        for (key, value) in done.map_err(|error| error.into_py(py, &parsed.path))? {
            changes.set_item(key, value.map(|value| PyArray1::from_vec(py, value)))?;
        }
        Ok((changes, parsed.others))
    }
}

impl Native {
    /// Checks that elements have the same size in numpy as in zarrs.
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
        if let Some(files) = &self.opener.files {
            return Ok(Store::Files(files.clone()));
        }
        let mut given = HashMap::new();
        for (key, value) in values.into_iter().flatten() {
            let value = if value.is_none() {
                None
            } else {
                Some(Bytes::from_owner(Buffer::of(&value)?))
            };
            given.insert(key.extract()?, value);
        }
        Ok(Store::Given(Arc::new(given)))
    }
}
