//! Writers of slices and readers of boxes, as classes of Python.
#![allow(clippy::needless_pass_by_value, reason = "what lists of Python become")]

use std::borrow::Cow;
use std::num::NonZeroUsize;

use numpy::{PyArrayDescr, PyUntypedArray};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use zarrs::array::ArraySubset;
use zarrs_cuda::reader::{ArrayReader, DeviceTensor};
use zarrs_cuda::writer::{ArrayWriter, Progress, Start};

use crate::device_target::{self, DeviceTarget};
use crate::device_tensor::{ElementType, PyDeviceTensor};
use crate::devices::DeviceSettings;
use crate::error::{Error, detached};
use crate::memory::Memory;
use crate::store::{Store, StorePlace};
use crate::writing::{
    Held, Settings, check_frames, failed, on_store, opened, progress_of, start_of, tell,
    unless_raised,
};

/// Appends slices along the first axis of an array.
#[pyclass(frozen, module = "zarrs_cuda._internal")]
pub(crate) struct Writer(Held<ArrayWriter>);

#[pymethods]
impl Writer {
    #[new]
    #[pyo3(signature = (place, path, start, sync, progress, settings))]
    fn new(
        py: Python<'_>,
        place: StorePlace<'_>,
        path: String,
        #[pyo3(from_py_with = start_of)] start: Option<Start>,
        sync: bool,
        progress: Option<Py<PyAny>>,
        settings: Settings,
    ) -> PyResult<Self> {
        let store = Store::at(Some(place), sync);
        let (writer, array) = detached(py, &path, || {
            let array = settings.opened(&store, &path)?;
            let first = match start {
                Some(Start::Slice(slice)) => slice,
                _ => array.shape().first().copied().unwrap_or(0),
            };
            check_frames(&store, &array, first)?;
            let builder = on_store(ArrayWriter::builder(&array), &store);
            let mut builder = settings.apply(builder)?;
            if let Some(start) = start {
                builder = builder.with_start(start);
            }
            if let Some(progress) = progress {
                builder = builder.with_progress_callback(move |now: &Progress| {
                    tell(&progress, |py| Ok((progress_of(py, now)?.unbind(),)));
                });
            }
            let writer = unless_raised(builder.build().map_err(failed))?;
            Ok((writer, array))
        })?;
        Ok(Self(Held::new(path, &array, writer)))
    }

    /// Appends the elements of `array`, which is contiguous. If a shard took long to fill, returns a shard
    /// length along the first axis with which it would fill in time.
    fn append(&self, py: Python<'_>, array: &Bound<'_, PyUntypedArray>) -> PyResult<Option<u64>> {
        self.0
            .append(py, array, |writer| writer.progress().slow_shard)
    }

    /// Appends the elements of the tensor on a CUDA device that is in `capsule`.
    fn append_tensor(&self, py: Python<'_>, capsule: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.append_tensor(py, capsule)
    }

    /// Returns the index in its slice of the next element to append, along each axis.
    fn position(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.0.position(py)
    }

    /// Forgets the appended elements of an incomplete slice. Returns their number.
    fn discard_partial_slice(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.discard_partial_slice(py)
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.0.flush(py)
    }

    /// Stores all elements that were appended. Returns a report as text.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        self.0.finish(py, |writer| Ok(writer.finish()?.to_string()))
    }

    /// Discards the slices that are not stored. Returns the number of stored slices.
    fn abort(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.0.close(py, ArrayWriter::abort)
    }

    /// Stores complete shards, for `limit` seconds at most, and discards other slices. Returns the number of
    /// stored slices.
    fn stop(&self, py: Python<'_>, limit: f64) -> PyResult<Option<u64>> {
        self.0.stop(py, limit)
    }

    /// Returns a text that says what the writer does, and why.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, |writer| Ok(writer.explain().to_string()))
    }

    fn progress<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let now = self.0.with(py, |writer| Ok(writer.progress()))?;
        progress_of(py, &now)
    }
}

/// Reads boxes of an array.
#[pyclass(frozen, module = "zarrs_cuda._internal")]
pub(crate) struct Reader {
    path: String,
    reader: ArrayReader<Store>,
}

#[pymethods]
impl Reader {
    #[new]
    #[pyo3(signature = (place, path, threads, devices, *, shared, subchunk_cache))]
    fn new(
        py: Python<'_>,
        place: StorePlace<'_>,
        path: String,
        threads: NonZeroUsize,
        devices: DeviceSettings,
        shared: bool,
        subchunk_cache: usize,
    ) -> PyResult<Self> {
        let store = Store::at(Some(place), false);
        let reader = detached(py, &path, || {
            let array = devices.on(opened(&store, &path)?);
            let builder = if shared {
                let shared = store.shared(&format!("/{path}"));
                let shared = shared.map_err(|error| Error::Value(error.to_string()))?;
                store.limit(shared.reader_of(&array), threads.get())
            } else {
                store.read_by(ArrayReader::builder(&array), threads.get())
            };
            Ok(builder.with_subchunk_cache(subchunk_cache).build()?)
        })?;
        Ok(Self { path, reader })
    }

    #[getter]
    fn shape(&self) -> Vec<u64> {
        self.reader.array().shape().to_vec()
    }

    fn explain(&self) -> String {
        self.reader.explain()
    }

    /// Reads the box that begins at `start` into `out`, whose shape is the shape of the box.
    fn read_into(
        &self,
        py: Python<'_>,
        start: Vec<u64>,
        out: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<()> {
        let memory = Memory::of(out);
        detached(py, &self.path, || {
            if start.len() != memory.shape.len() {
                return Err(Error::Value(format!(
                    "a box of {} axes in an array of {}",
                    memory.shape.len(),
                    start.len()
                )));
            }
            let ranges = start.iter().zip(&memory.shape);
            let ranges = ranges.map(|(&start, &len)| start..start.saturating_add(len as u64));
            let subset = ArraySubset::from(ranges);
            let output = self.output(&memory)?;
            self.reader.read_bytes_into(&subset, output)?;
            Ok(())
        })
    }

    /// Reads the boxes that begin at `origins` into `out`, whose first axis counts the boxes.
    fn read_boxes_into(
        &self,
        py: Python<'_>,
        origins: Vec<Vec<u64>>,
        out: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<()> {
        let memory = Memory::of(out);
        detached(py, &self.path, || {
            let shape = memory.shape.split_first().map(|(_, shape)| shape.to_vec());
            let shape =
                shape.ok_or_else(|| Error::Value("the output has no axis for boxes".to_owned()))?;
            let shape: Vec<u64> = shape.into_iter().map(|extent| extent as u64).collect();
            let output = self.output(&memory)?;
            self.reader
                .read_boxes_bytes_into(&origins, &shape, output)?;
            Ok(())
        })
    }

    /// Reads the box of `shape` that begins at `start` into the memory of the device with the number `device`; by
    /// default of the first one that was asked for. `dtype` is numpy's type of the elements.
    fn read_device(
        &self,
        py: Python<'_>,
        start: Vec<u64>,
        shape: Vec<u64>,
        device: Option<usize>,
        dtype: &Bound<'_, PyArrayDescr>,
    ) -> PyResult<PyDeviceTensor> {
        self.tensor(py, device, dtype, |reader| {
            let subset = ArraySubset::new_with_start_shape(start, shape)
                .map_err(|error| Error::Value(error.to_string()))?;
            Ok(reader.read_device(&subset)?)
        })
    }

    /// Reads the boxes of `shape` that begin at `origins` into the memory of a device, as [`Self::read_device`] does.
    fn read_boxes_device(
        &self,
        py: Python<'_>,
        origins: Vec<Vec<u64>>,
        shape: Vec<u64>,
        device: Option<usize>,
        dtype: &Bound<'_, PyArrayDescr>,
    ) -> PyResult<PyDeviceTensor> {
        self.tensor(py, device, dtype, |reader| {
            Ok(reader.read_boxes_device(&origins, &shape)?)
        })
    }

    /// Reads the boxes of `shape` that begin at `origins` into `target`, memory of a device that Python holds.
    fn read_into_device(
        &self,
        py: Python<'_>,
        origins: Vec<Vec<u64>>,
        shape: Vec<u64>,
        target: DeviceTarget,
    ) -> PyResult<()> {
        detached(py, &self.path, || {
            device_target::read(&self.reader, origins, &shape, &target)
        })
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let now = self.reader.metrics();
        let dict = PyDict::new(py);
        for (name, count) in [
            ("bytes_wanted", now.bytes_wanted),
            ("bytes_read", now.bytes_read),
            ("requests", now.requests),
            ("ranges", now.ranges),
            ("subchunks_read", now.subchunks_read),
            ("index_hits", now.index_hits),
            ("replaced", now.replaced),
            ("damaged", now.damaged),
        ] {
            dict.set_item(name, count)?;
        }
        dict.set_item("waiting", now.waiting.as_secs_f64())?;
        Ok(dict)
    }
}

impl Reader {
    /// Returns the tensor that `read` reads, by the reader for the device with the number `device`.
    fn tensor(
        &self,
        py: Python<'_>,
        device: Option<usize>,
        dtype: &Bound<'_, PyArrayDescr>,
        read: impl FnOnce(&ArrayReader<Store>) -> Result<DeviceTensor, Error> + Send,
    ) -> PyResult<PyDeviceTensor> {
        let element_type = ElementType::of(dtype)?;
        let tensor = detached(py, &self.path, || read(&self.on(device)))?;
        Ok(PyDeviceTensor::new(tensor, element_type))
    }

    /// Returns the reader for the device with the number `device`.
    fn on(&self, device: Option<usize>) -> Cow<'_, ArrayReader<Store>> {
        device.map_or(Cow::Borrowed(&self.reader), |number| {
            Cow::Owned(self.reader.with_device(number))
        })
    }

    fn output<'m>(&self, memory: &'m Memory) -> Result<zarrs_cuda::reader::Output<'m>, Error> {
        let expected = self.reader.array().data_type().fixed_size();
        if expected != Some(memory.element_size) {
            return Err(Error::Value(format!(
                "elements of the output take {} bytes, and those of the array {expected:?}",
                memory.element_size
            )));
        }
        let output = memory.output(0, &memory.shape, &memory.strides);
        output.ok_or_else(|| Error::Value("the output has negative strides".to_owned()))
    }
}

/// Returns the counts of the work of this process.
#[pyfunction]
pub(crate) fn metrics(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let now = zarrs_cuda::metrics();
    let dict = PyDict::new(py);
    for (name, count) in [
        ("shards_encoded_on_a_device", now.shards_encoded),
        ("shards_decoded_on_a_device", now.shards_decoded),
        ("batches_encoded_on_a_device", now.batches_encoded),
        ("subchunks_read_to_devices", now.subchunks_read_to_devices),
        ("subchunks_read_by_host", now.subchunks_read_by_host),
        ("read_bytes_copied", now.read_bytes_copied),
        ("bytes_to_device", now.bytes_to_device),
        ("bytes_from_device", now.bytes_from_device),
        ("host_encode_bytes_in", now.host_encode_bytes_in),
        ("host_encode_bytes_out", now.host_encode_bytes_out),
        ("host_decode_bytes_in", now.host_decode_bytes_in),
        ("host_decode_bytes_out", now.host_decode_bytes_out),
        ("device_encode_bytes_in", now.device_encode_bytes_in),
        ("device_encode_bytes_out", now.device_encode_bytes_out),
        ("device_decode_bytes_in", now.device_decode_bytes_in),
        ("device_decode_bytes_out", now.device_decode_bytes_out),
        ("batches_compared", now.batches_checked),
        ("wrong_results_of_devices", now.mismatches),
        ("partial_writes", now.partial_writes),
        ("compaction_requests", now.compaction_requests),
        ("compactions", now.compactions),
        ("writer_waits", now.writer_waits),
    ] {
        dict.set_item(name, count)?;
    }
    dict.set_item("writer_wait", now.writer_wait.as_secs_f64())?;
    dict.set_item("named_devices_missing", now.missing_devices.len())?;
    dict.set_item("device_fallbacks", now.fallbacks)?;
    Ok(dict)
}
