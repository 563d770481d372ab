//! Writers of slices, and readers of boxes, of arrays of files.
#![allow(clippy::needless_pass_by_value, reason = "what lists of Python become")]

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use zarrs::array::{Array, ArraySubset};
use zarrs_cuda::reader::ArrayReader;
use zarrs_cuda::writer::{ArrayWriter, Progress, WriterError};

use crate::error::{Error, detached};
use crate::maintain;
use crate::memory::Memory;
use crate::store::{Place, Store};
use crate::tensor::Tensor;

fn opened(store: &Store, path: &str) -> Result<Array<Store>, Error> {
    let array = Array::open(Arc::new(store.clone()), &format!("/{path}"));
    array.map_err(|error| Error::Value(error.to_string()))
}

fn failed(error: WriterError) -> Error {
    match error {
        WriterError::Store {
            doing,
            ref key,
            ref source,
            ..
        } => match Error::store(doing, key.as_str(), source) {
            Error::Io(_, code) => Error::Io(error.to_string(), code),
            Error::Object(_, class) => Error::Object(error.to_string(), class),
            _ => Error::Other(error.to_string()),
        },
        WriterError::Memory { .. } => Error::Memory(error.to_string()),
        WriterError::Unsupported { .. }
        | WriterError::Start { .. }
        | WriterError::Element(_)
        | WriterError::Array(_)
        | WriterError::IncompleteSlice { .. }
        | WriterError::Finished { .. } => Error::Value(error.to_string()),
        error => Error::Other(error.to_string()),
    }
}

fn progress_of<'py>(py: Python<'py>, progress: &Progress) -> PyResult<Bound<'py, PyDict>> {
    let counts = [
        ("appended_bytes", progress.appended_bytes),
        ("appended_slices", progress.appended_slices),
        ("encoded_bytes", progress.encoded_bytes),
        ("packed_bytes", progress.packed_bytes),
        ("finished_slices", progress.finished_slices),
        ("covered_slices", progress.covered_slices),
        ("shards_stored", progress.shards_stored),
        ("shards_empty", progress.shards_empty),
        ("stored_bytes", progress.stored_bytes),
        ("waits", progress.waits),
    ];
    let dict = PyDict::new(py);
    for (name, count) in counts {
        dict.set_item(name, count)?;
    }
    let times = [
        ("waiting", progress.waiting),
        ("encoding", progress.encoding),
        ("storing", progress.storing),
    ];
    for (name, time) in times {
        dict.set_item(name, time.as_secs_f64())?;
    }
    Ok(dict)
}

thread_local! {
    /// Whether this thread, of a writer, calls a function of Python. The writer waits for it.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Checks that a function that a writer calls does not use a writer: it would wait for itself.
fn check_not_telling() -> Result<(), Error> {
    if !TELLING.get() {
        return Ok(());
    }
    Err(Error::Other(
        "a function for `progress` cannot use a writer, which waits for it: use the dictionary that it is given, and abort in the thread that appends".to_owned(),
    ))
}

/// Checks that no subchunks are stored beside shards that slices from `start` on are in: they would hide what is
/// written.
fn check_frames(store: &Store, array: &Array<Store>, start: Option<u64>) -> Result<(), Error> {
    let pending = store
        .shared(array.path().as_str())
        .and_then(|shared| shared.pending())
        .map_err(maintain::failed)?;
    let chunk = array.chunk_shape(&vec![0; array.dimensionality()]);
    let (Some(&end), Ok(chunk)) = (array.shape().first(), chunk) else {
        // The writer says what is wrong.
        return Ok(());
    };
    let first = chunk
        .first()
        .map_or(0, |extent| start.unwrap_or(end) / extent.get());
    let hidden = pending.iter().find(|shard| shard.first() >= Some(&first));
    hidden.map_or(Ok(()), |shard| {
        Err(Error::Frames(array.chunk_key(shard).as_str().to_owned()))
    })
}

/// Appends slices along the first axis of an array.
#[pyclass(frozen, module = "zarrs_cuda._internal")]
pub(crate) struct Writer {
    path: String,
    writer: Mutex<Option<ArrayWriter>>,
}

#[pymethods]
impl Writer {
    #[new]
    #[pyo3(signature = (place, path, start, sync, progress))]
    fn new(
        py: Python<'_>,
        place: Place<'_>,
        path: String,
        start: Option<u64>,
        sync: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let store = Store::at(Some(place), sync);
        let writer = detached(py, &path, || {
            let array = opened(&store, &path)?;
            check_frames(&store, &array, start)?;
            let mut builder = ArrayWriter::builder(&array);
            if let Store::Files(files) = store {
                builder = builder.with_atomic_rename(files);
            }
            if let Some(start) = start {
                builder = builder.with_start(start);
            }
            if let Some(progress) = progress {
                builder = builder.with_progress_callback(move |now: &Progress| {
                    // When the interpreter ends, the function is not called any more.
                    let _ = Python::try_attach(|py| {
                        TELLING.set(true);
                        let told = progress_of(py, now)
                            .and_then(|now| progress.bind(py).call1((now,)).map(drop));
                        TELLING.set(false);
                        if let Err(error) = told {
                            error.write_unraisable(py, Some(progress.bind(py)));
                        }
                    });
                });
            }
            builder.build().map_err(failed)
        })?;
        let writer = Mutex::new(Some(writer));
        Ok(Self { path, writer })
    }

    /// Appends the elements of `array`, which is contiguous.
    fn append(&self, py: Python<'_>, array: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
        let memory = Memory::of(array);
        self.with(py, |writer| {
            let bytes = memory.contiguous(0, &memory.shape, &memory.strides);
            let bytes =
                bytes.ok_or_else(|| Error::Value("the elements are not contiguous".to_owned()))?;
            writer.append_bytes(bytes).map_err(failed)
        })
    }

    /// Appends the elements of the tensor on a CUDA device that is in `capsule`; slices have the shape `of_slice`.
    fn append_tensor(
        &self,
        py: Python<'_>,
        capsule: &Bound<'_, PyAny>,
        of_slice: Vec<i64>,
    ) -> PyResult<()> {
        let tensor = Tensor::take(capsule)?;
        self.with(py, |writer| {
            let shape = tensor.shape();
            let is_one = shape == of_slice;
            let is_several = shape
                .split_first()
                .is_some_and(|(_, rest)| rest == of_slice);
            if !is_one && !is_several {
                return Err(Error::Value(format!(
                    "slices have the shape {of_slice:?}, and this tensor {shape:?}"
                )));
            }
            tensor.append_to(writer).map_err(failed)
        })
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |writer| writer.flush().map_err(failed))
    }

    /// Stores everything that was appended. Returns what was done, in words.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |writer| {
            Ok(writer.finish().map_err(failed)?.to_string())
        })
    }

    /// Forgets what is not stored. Returns how many slices are.
    fn abort(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        detached(py, &self.path, || {
            check_not_telling()?;
            let writer = self
                .writer
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            writer
                .map(|writer| writer.abort().map_err(failed))
                .transpose()
        })
    }

    fn progress<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut now = Progress::default();
        self.with(py, |writer| {
            now = writer.progress();
            Ok(())
        })?;
        progress_of(py, &now)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let writer = self
            .writer
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // Its threads may be about to call Python, and are waited for.
        Python::attach(|py| py.detach(|| drop(writer)));
    }
}

impl Writer {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut ArrayWriter) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        detached(py, &self.path, || {
            check_not_telling()?;
            let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            let writer = writer.as_mut().ok_or_else(|| {
                Error::Value("the writer was closed, and takes nothing more".to_owned())
            })?;
            work(writer)
        })
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
    #[pyo3(signature = (place, path, threads, *, shared))]
    fn new(
        py: Python<'_>,
        place: Place<'_>,
        path: String,
        threads: NonZeroUsize,
        shared: bool,
    ) -> PyResult<Self> {
        let store = Store::at(Some(place), false);
        let reader = detached(py, &path, || {
            let array = opened(&store, &path)?;
            let builder = if shared {
                let shared = store.shared(&format!("/{path}"));
                let shared = shared.map_err(|error| Error::Value(error.to_string()))?;
                store.limit(shared.reader_of(&array), threads.get())
            } else {
                store.read_by(ArrayReader::builder(&array), threads.get())
            };
            Ok(builder.build()?)
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

    /// Reads the box of the shape of `out` that begins at `start`.
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

    /// Reads the boxes that begin at `origins` to `out`, which has an axis for them, the first.
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

/// The counts of this process.
#[pyfunction]
pub(crate) fn metrics(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let now = zarrs_cuda::metrics();
    let dict = PyDict::new(py);
    for (name, count) in [
        ("shards_encoded_on_a_device", now.shards_encoded),
        ("shards_decoded_on_a_device", now.shards_decoded),
        ("batches_encoded_on_a_device", now.batches_encoded),
        ("bytes_to_device", now.bytes_to_device),
        ("bytes_from_device", now.bytes_from_device),
        ("partial_writes", now.partial_writes),
        ("compaction_requests", now.compaction_requests),
        ("compactions", now.compactions),
        ("writer_waits", now.writer_waits),
    ] {
        dict.set_item(name, count)?;
    }
    dict.set_item("writer_wait", now.writer_wait.as_secs_f64())?;
    dict.set_item("device_fallbacks", now.fallbacks)?;
    Ok(dict)
}
