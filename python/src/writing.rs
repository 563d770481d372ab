//! The parts that both writers of slices share: their arguments, their progress, and the way they are closed.

use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use numpy::PyUntypedArray;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use zarrs::array::Array;
use zarrs_cuda::writer::{Appending, Progress, Start, Writer, WriterBuilder, WriterError};

use crate::devices::DeviceSettings;
use crate::error::{Error, detached};
use crate::memory::Memory;
use crate::store::Store;
use crate::tensor::Tensor;

pub(crate) fn opened(store: &Store, path: &str) -> Result<Array<Store>, Error> {
    let array = Array::open(Arc::new(store.clone()), &format!("/{path}"));
    array.map_err(|error| Error::Value(error.to_string()))
}

pub(crate) fn failed(error: WriterError) -> Error {
    let message = error.to_string();
    because_of(error, message)
}

/// Forgets the incomplete slice of `writer`, so that the next call begins with a whole slice, and returns `error` as
/// an error of this package.
fn not_appended<W: Appending>(writer: &mut Writer<W>, error: WriterError) -> Error {
    writer.discard_partial_slice();
    failed(error)
}

/// Returns an error with `message`, of the same kind as its cause.
fn because_of(error: WriterError, message: String) -> Error {
    let as_store = |error| match error {
        Error::Io(_, code) => Error::Io(message.clone(), code),
        Error::Object(_, class) => Error::Object(message.clone(), class),
        Error::Raised(error) => {
            Python::attach(|py| {
                error
                    .value(py)
                    .call_method1("add_note", (&*message,))
                    .map(drop)
            })
            .ok();
            Error::Raised(error)
        }
        _ => Error::Other(message.clone()),
    };
    match error {
        WriterError::Store {
            doing, key, source, ..
        } => as_store(Error::store(doing, key.as_str(), &source)),
        WriterError::Array(zarrs_cuda::Error::Storage { doing, key, source }) => {
            as_store(Error::store(doing, key.as_str(), &source))
        }
        WriterError::Read { source, path, .. } => match Error::from(*source) {
            damaged @ Error::Damaged { .. } => error_of_array(&path, damaged),
            Error::Memory(_) => Error::Memory(message),
            Error::Value(_) => Error::Value(message),
            error => as_store(error),
        },
        WriterError::Level { source, .. } => because_of(*source, message),
        WriterError::Memory { .. } => Error::Memory(message),
        WriterError::Array(zarrs_cuda::Error::BackendUnavailable { .. }) => Error::Backend(message),
        WriterError::Unsupported { .. }
        | WriterError::Start { .. }
        | WriterError::Element(_)
        | WriterError::Array(_)
        | WriterError::Pyramid { .. }
        | WriterError::IncompleteSlice { .. }
        | WriterError::Finished { .. } => Error::Value(message),
        _ => Error::Other(message),
    }
}

/// Returns `error` as an error of the array at `path`, which begins with a slash.
fn error_of_array(path: &str, error: Error) -> Error {
    Error::Elsewhere(path.trim_start_matches('/').to_owned(), Box::new(error))
}

pub(crate) fn progress_of<'py>(
    py: Python<'py>,
    progress: &Progress,
) -> PyResult<Bound<'py, PyDict>> {
    let counts = [
        ("appended_bytes", progress.appended_bytes),
        ("appended_slices", progress.appended_slices),
        ("encoded_bytes", progress.encoded_bytes),
        ("packed_bytes", progress.packed_bytes),
        ("finished_slices", progress.finished_slices),
        ("covered_slices", progress.covered_slices),
        ("at_risk", progress.at_risk),
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
    /// Whether this thread, which belongs to a writer, is calling a function of Python. The writer waits for
    /// the call.
    static TELLING: Cell<bool> = const { Cell::new(false) };

    /// The exception that a signal handler has raised while this thread waited for a writer.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Returns whether a call that waits must end, because a signal handler, such as the one of Ctrl-C, has
/// raised an exception. The call then raises this exception.
fn interrupted() -> bool {
    #[allow(
        clippy::redundant_closure_for_method_calls,
        reason = "the method is one of any lifetime only in a closure"
    )]
    let checked = Python::try_attach(|py| py.check_signals());
    let Some(Err(error)) = checked else {
        return false;
    };
    RAISED.set(Some(error));
    true
}

/// Returns `result`, or the exception that a signal handler has raised during the call.
pub(crate) fn unless_raised<T>(result: Result<T, Error>) -> Result<T, Error> {
    match RAISED.take() {
        Some(error) => Err(Error::Raised(error)),
        None => result,
    }
}

/// Returns the start that Python gives to a writer: the number of a slice, `"resume"`, or `None`.
pub(crate) fn start_of(given: &Bound<'_, PyAny>) -> PyResult<Option<Start>> {
    if given.is_none() {
        return Ok(None);
    }
    let Ok(word) = given.cast::<PyString>() else {
        return Ok(Some(Start::Slice(given.extract()?)));
    };
    match word.to_str()? {
        "resume" => Ok(Some(Start::Resume)),
        word => Err(PyValueError::new_err(format!(
            "`start` is {word:?}, and must be the number of a slice, or \"resume\""
        ))),
    }
}

/// The memory and threads of a writer, and the time after which it stores shards.
#[derive(Clone, FromPyObject)]
pub(crate) struct Settings {
    /// The largest number of bytes of host memory for the buffers of all open writers; `None` for the
    /// library's default.
    #[pyo3(item(0))]
    memory: Option<usize>,
    /// The number of threads that encode.
    #[pyo3(item(1))]
    threads: NonZeroUsize,
    /// The number of seconds that a complete shard waits before it is stored; `None` if it waits until its
    /// batch is full.
    #[pyo3(item(2))]
    flush_after: Option<f64>,
    #[pyo3(item(3))]
    devices: DeviceSettings,
}

impl Settings {
    /// Opens the array at `path` with the settings of devices.
    pub(crate) fn opened(&self, store: &Store, path: &str) -> Result<Array<Store>, Error> {
        Ok(self.devices.on(opened(store, path)?))
    }

    /// Gives these settings to `builder`, and makes a waiting call of its writer end when a signal handler
    /// raises.
    pub(crate) fn apply<T>(
        &self,
        builder: WriterBuilder<Store, T>,
    ) -> Result<WriterBuilder<Store, T>, Error> {
        let seconds = |given| {
            Duration::try_from_secs_f64(given).map_err(|_| {
                Error::Value(format!(
                    "`flush_after` is {given}, and must be a number of seconds from 0 on, or None"
                ))
            })
        };
        let options = zarrs::config::global_config().codec_options();
        let builder = builder
            .with_codec_options(options.with_concurrent_target(self.threads.get()))
            .with_flush_after(self.flush_after.map(seconds).transpose()?)
            .with_interrupt(interrupted);
        Ok(match self.memory {
            Some(bytes) => builder.with_host_memory(bytes),
            None => builder,
        })
    }
}

/// Gives a writer the means of its store: to rename files, or to replace objects under conditions.
pub(crate) fn on_store<T>(
    builder: WriterBuilder<Store, T>,
    store: &Store,
) -> WriterBuilder<Store, T> {
    match store {
        Store::Files(files) => {
            let root = files.root().to_owned();
            builder.with_atomic_rename(files.clone()).on_directory(root)
        }
        Store::Objects(objects) => builder.with_conditional_writes(Arc::new(objects.store.clone())),
        Store::Asked(_) | Store::Given(_) => builder,
    }
}

/// Calls `progress` with the arguments that `arguments` returns, on a thread of a writer.
pub(crate) fn tell<A>(progress: &Py<PyAny>, arguments: impl FnOnce(Python<'_>) -> PyResult<A>)
where
    A: for<'py> pyo3::call::PyCallArgs<'py>,
{
    // While the interpreter shuts down, the function is no longer called.
    let _ = Python::try_attach(|py| {
        TELLING.set(true);
        let told = arguments(py).and_then(|with| progress.bind(py).call1(with).map(drop));
        TELLING.set(false);
        if let Err(error) = told {
            error.write_unraisable(py, Some(progress.bind(py)));
        }
    });
}

/// Checks that this thread is not in a function that a writer calls: a writer would wait for itself.
fn check_not_telling() -> Result<(), Error> {
    if !TELLING.get() {
        return Ok(());
    }
    Err(Error::Other(
        "a function for `progress` cannot use a writer, which waits for it: use the dictionary that it is given, and abort in the thread that appends".to_owned(),
    ))
}

/// Checks that no subchunks are stored beside the shards of the slices from `first` on: such subchunks would
/// hide the written elements, and a read of these shards alone would miss them.
pub(crate) fn check_frames(store: &Store, array: &Array<Store>, first: u64) -> Result<(), Error> {
    let pending = store
        .shared(array.path().as_str())
        .and_then(|shared| shared.pending())
        .map_err(Error::from)?;
    let Ok(chunk) = array.chunk_shape(&vec![0; array.dimensionality()]) else {
        // The writer returns the error of the chunk shape.
        return Ok(());
    };
    let first = chunk.first().map_or(0, |extent| first / extent.get());
    let hidden = pending.iter().find(|shard| shard.first() >= Some(&first));
    hidden.map_or(Ok(()), |shard| {
        let frames = Error::Frames(array.chunk_key(shard).as_str().to_owned());
        Err(error_of_array(array.path().as_str(), frames))
    })
}

/// Returns whether elements of `shape` continue a slice of shape `of_slice` in C order, of which `at` elements were
/// appended. Returns `None` if the elements are neither slices nor a part of one.
///
/// A part is some elements of a row, some rows of a plane, and so on: it ends where its plane ends.
fn continues(of_slice: &[usize], shape: &[usize], at: usize) -> Option<bool> {
    let Some((&count, inner)) = shape.split_first() else {
        return of_slice.is_empty().then_some(true);
    };
    // The axes of a slice that the elements do not have, and the axis that `count` counts. Several slices have
    // one axis more.
    let outer = (of_slice.len() + 1).checked_sub(shape.len())?;
    if *inner != of_slice[outer..] {
        return None;
    }
    let step = inner.iter().product::<usize>();
    if count == 0 || step == 0 {
        return Some(true);
    }
    let Some(extent) = outer.checked_sub(1).map(|axis| of_slice[axis]) else {
        return Some(at == 0);
    };
    let left = extent.checked_sub(at / step % extent.max(1))?;
    (count <= extent).then_some(at.is_multiple_of(step) && count <= left)
}

/// A writer to the array at `path`, or `None` after it was closed.
pub(crate) struct Held<W: Send> {
    path: String,
    /// The shape of a slice of the array.
    of_slice: Vec<usize>,
    element_size: usize,
    writer: Mutex<Option<W>>,
}

impl<W: Send> Held<W> {
    /// Holds a writer to `array`, which is at `path`.
    pub(crate) fn new(path: String, array: &Array<Store>, writer: W) -> Self {
        let of_slice = array.shape().iter().skip(1);
        Self {
            path,
            of_slice: of_slice
                .map(|&extent| usize::try_from(extent).unwrap_or(usize::MAX))
                .collect(),
            element_size: array.data_type().fixed_size().unwrap_or(1).max(1),
            writer: Mutex::new(Some(writer)),
        }
    }

    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut W) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        detached(py, &self.path, || {
            check_not_telling()?;
            let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            let writer = writer.as_mut().ok_or_else(|| {
                Error::Value("the writer was closed, and takes nothing more".to_owned())
            })?;
            unless_raised(work(writer))
        })
    }

    /// Closes the writer by calling `end`. Returns `None` if the writer was closed before.
    pub(crate) fn close<T: Send>(
        &self,
        py: Python<'_>,
        end: impl FnOnce(W) -> Result<T, WriterError> + Send,
    ) -> PyResult<Option<T>> {
        detached(py, &self.path, || {
            check_not_telling()?;
            let writer = self
                .writer
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let ended = writer.map(|writer| end(writer).map_err(failed));
            // The exception of a second Ctrl-C has only ended the wait, and is dropped.
            RAISED.take();
            ended.transpose()
        })
    }
}

impl<W: Appending> Held<Writer<W>>
where
    Writer<W>: Send,
{
    /// Appends the elements of `array`, which is contiguous, and then calls `also`.
    pub(crate) fn append<T: Send>(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyUntypedArray>,
        also: impl FnOnce(&Writer<W>) -> T + Send,
    ) -> PyResult<T> {
        let memory = Memory::of(array);
        self.with(py, |writer| {
            self.check_shape(writer, &memory.shape)?;
            let appended = writer.append_bytes(memory.bytes()?);
            appended.map_err(|error| not_appended(writer, error))?;
            Ok(also(writer))
        })
    }

    /// Appends the elements of the tensor on a CUDA device that is in `capsule`.
    pub(crate) fn append_tensor(&self, py: Python<'_>, capsule: &Bound<'_, PyAny>) -> PyResult<()> {
        let tensor = Tensor::take(capsule)?;
        let mut may_be_read = false;
        let appended = self.with(py, |writer| {
            self.check_shape(writer, &tensor.shape())?;
            let appended = tensor.append_to(writer);
            may_be_read = matches!(&appended, Err(error) if error.device_may_read());
            appended.map_err(|error| not_appended(writer, error))
        });
        if may_be_read {
            // Freeing the tensor would let its library give the memory to other tensors.
            std::mem::forget(tensor);
        }
        appended
    }

    /// Returns the number of elements of an incomplete slice that were appended.
    fn appended(&self, writer: &Writer<W>) -> usize {
        writer.partial_slice() / self.element_size
    }

    /// Checks that elements of `shape` continue the slice in C order.
    ///
    /// # Errors
    /// [`Error::Value`] with the shapes, and the number of elements that the slice lacks.
    fn check_shape(&self, writer: &Writer<W>, shape: &[usize]) -> Result<(), Error> {
        let (of_slice, at) = (&self.of_slice, self.appended(writer));
        match continues(of_slice, shape, at) {
            Some(true) => Ok(()),
            Some(false) => {
                let all: usize = of_slice.iter().product();
                let position = self.position_of(at);
                Err(Error::Value(format!(
                    "elements of the shape {shape:?} do not continue the incomplete slice of shape {of_slice:?}, whose next element is at {position:?}: {} of its {all} elements are missing; append those first, or call `discard_partial_slice`",
                    all - at
                )))
            }
            None => Err(Error::Value(format!(
                "slices have the shape {of_slice:?}, and these elements {shape:?}: append slices, or planes and rows of one, or a part of a row"
            ))),
        }
    }

    /// Returns the index in a slice of the element behind `at` elements, along each axis.
    fn position_of(&self, mut at: usize) -> Vec<usize> {
        let mut position = vec![0; self.of_slice.len()];
        for (index, &extent) in position.iter_mut().zip(&self.of_slice).rev() {
            *index = at % extent.max(1);
            at /= extent.max(1);
        }
        position
    }

    /// Returns the index in its slice of the next element to append, along each axis.
    pub(crate) fn position(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.with(py, |writer| Ok(self.position_of(self.appended(writer))))
    }

    /// Forgets the appended elements of an incomplete slice, and returns their number.
    pub(crate) fn discard_partial_slice(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |writer| {
            Ok(writer.discard_partial_slice() / self.element_size)
        })
    }

    /// Calls `finish`, which stores all elements.
    pub(crate) fn finish<T: Send>(
        &self,
        py: Python<'_>,
        finish: impl FnOnce(&mut Writer<W>) -> Result<T, WriterError> + Send,
    ) -> PyResult<T> {
        self.with(py, |writer| {
            let at = self.appended(writer);
            finish(writer).map_err(|error| match error {
                WriterError::IncompleteSlice { slice, .. } => Error::Value(format!(
                    "slice {slice} has {at} of its {} elements, and the next one is at {:?} of the slice: append the rest, or call `discard_partial_slice`, and finish again",
                    self.of_slice.iter().product::<usize>(),
                    self.position_of(at)
                )),
                error => failed(error),
            })
        })
    }

    /// Stores all complete shards.
    pub(crate) fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |writer| writer.flush().map_err(failed))
    }

    /// Stores complete shards, for `limit` seconds at most, and discards other slices. Returns the number of
    /// stored slices.
    pub(crate) fn stop(&self, py: Python<'_>, limit: f64) -> PyResult<Option<u64>> {
        // A number that is not a duration, such as NaN, counts as 0 seconds. More than 10⁹ seconds are
        // limited to 10⁹, because an `Instant` can still be so far away.
        let limit = Duration::try_from_secs_f64(limit.min(1e9)).unwrap_or_default();
        self.close(py, |writer| writer.stop(limit))
    }
}

impl<W: Send> Drop for Held<W> {
    fn drop(&mut self) {
        let writer = self
            .writer
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // The GIL is released: the drop waits for threads of the writer, which may be about to call Python.
        Python::attach(|py| py.detach(|| drop(writer)));
    }
}
