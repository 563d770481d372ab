//! Writes an image and its smaller levels.
#![allow(clippy::needless_pass_by_value, reason = "what lists of Python become")]

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use zarrs::array::Array;
use zarrs_cuda::reader::Cancel;
use zarrs_cuda::writer::{
    Axis, MultiscaleBuilder, MultiscaleWriter as Levels, Progress, Reduction, Start, WriterError,
    WriterReport,
};

use crate::devices::DeviceSettings;
use crate::error::{Error, detached, no_panic};
use crate::store::{Store, StorePlace};
use crate::writing::{
    Held, Settings, check_frames, failed, on_store, opened, progress_of, start_of, tell,
    unless_raised,
};

/// The settings of a pyramid: the attributes of `zarrs_cuda._multiscale._Pyramid`.
#[derive(FromPyObject)]
pub(crate) struct Pyramid {
    axes: Option<Vec<OfAxis>>,
    levels: Option<usize>,
    reduction: String,
    /// For some levels: the number of the level, the shape of its subchunks, and the shape of its shards.
    shapes: Vec<(usize, Vec<u64>, Vec<u64>)>,
    name: Option<String>,
    /// The `omero` metadata of the image, in JSON.
    omero: Option<String>,
    #[pyo3(from_py_with = start_of)]
    start: Option<Start>,
}

/// The attributes of `zarrs_cuda.Axis`.
#[derive(FromPyObject)]
struct OfAxis {
    name: String,
    r#type: Option<String>,
    unit: Option<String>,
    scale: f64,
    translation: f64,
    factor: Option<u64>,
}

impl From<OfAxis> for Axis {
    fn from(given: OfAxis) -> Self {
        let name = &given.name;
        let mut axis = match given.r#type.as_deref() {
            Some("space") => Self::space(name),
            Some("time") => Self::time(name),
            Some("channel") => Self::channel(name),
            other => Self::other(name, other),
        };
        if let Some(unit) = &given.unit {
            axis = axis.with_unit(unit);
        }
        if let Some(factor) = given.factor {
            axis = axis.with_factor(factor);
        }
        axis.with_scale(given.scale)
            .with_translation(given.translation)
    }
}

impl Pyramid {
    /// Returns the builder of a writer of the pyramid of `array`, after a check that no subchunks are stored
    /// beside the shards of its levels.
    fn builder(
        self,
        store: &Store,
        array: &Array<Store>,
    ) -> Result<MultiscaleBuilder<Store>, Error> {
        let named = |reduction: &Reduction| reduction.name() == self.reduction;
        let reduction = Reduction::ALL.into_iter().find(named).ok_or_else(|| {
            let names = Reduction::ALL.map(Reduction::name).join(", ");
            Error::Value(format!(
                "`reduction` is {:?}, and must be one of {names}",
                self.reduction
            ))
        })?;
        let builder = Levels::builder(array).with_reduction(reduction);
        let mut builder = on_store(builder, store);
        if let Some(axes) = self.axes {
            builder = builder.with_axes(axes.into_iter().map(Axis::from));
        }
        if let Some(levels) = self.levels {
            builder = builder.with_levels(levels);
        }
        for (level, subchunk, shard) in self.shapes {
            builder = builder.with_level_shapes(level, subchunk, shard);
        }
        if let Some(name) = &self.name {
            builder = builder.with_name(name);
        }
        if let Some(omero) = &self.omero {
            let omero = serde_json::from_str(omero);
            builder = builder.with_omero(omero.map_err(|error| Error::Value(error.to_string()))?);
        }
        if let Some(start) = self.start {
            builder = builder.with_start(start);
        }
        check_frames(store, array, 0)?;
        for level in builder.levels().map_err(failed)?.iter().skip(1) {
            // A level that does not exist yet has no subchunks beside shards.
            if let Ok(level) = Array::open(Arc::new(store.clone()), level.path().as_str()) {
                check_frames(store, &level, 0)?;
            }
        }
        Ok(builder)
    }
}

/// Returns the reports of all levels as text. `first` is the number of the first level.
fn told(reports: &[WriterReport], first: usize) -> String {
    let lines = reports.iter().zip(first..);
    let lines = lines.map(|(report, level)| format!("level {level}: {report}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Appends slices along the first axis of an image, and writes all levels of the image.
#[pyclass(frozen, module = "zarrs_cuda._internal")]
pub(crate) struct MultiscaleWriter {
    held: Held<Levels>,
    paths: Vec<String>,
}

#[pymethods]
impl MultiscaleWriter {
    #[new]
    #[pyo3(signature = (place, path, pyramid, sync, progress, settings))]
    fn new(
        py: Python<'_>,
        place: StorePlace<'_>,
        path: String,
        pyramid: Pyramid,
        sync: bool,
        progress: Option<Py<PyAny>>,
        settings: Settings,
    ) -> PyResult<Self> {
        let store = Store::at(Some(place), sync);
        let (writer, paths, array) = detached(py, &path, || {
            let array = settings.opened(&store, &path)?;
            let mut builder = settings.apply(pyramid.builder(&store, &array)?)?;
            if let Some(progress) = progress {
                builder = builder.with_progress_callback(move |level, now: &Progress| {
                    tell(&progress, |py| Ok((level, progress_of(py, now)?.unbind())));
                });
            }
            let levels = builder.levels().map_err(failed)?;
            let path = |level: &Array<_>| level.path().as_str()[1..].to_owned();
            let paths = levels.iter().map(path).collect();
            let writer = unless_raised(builder.build().map_err(failed))?;
            Ok((writer, paths, array))
        })?;
        Ok(Self {
            held: Held::new(path, &array, writer),
            paths,
        })
    }

    /// Returns the paths of the arrays of all levels.
    #[getter]
    fn paths(&self) -> Vec<String> {
        self.paths.clone()
    }

    /// Appends the elements of `array`, which is contiguous. If a shard of level 0 took long to fill, returns
    /// a shard length along the first axis with which it would fill in time.
    fn append(&self, py: Python<'_>, array: &Bound<'_, PyUntypedArray>) -> PyResult<Option<u64>> {
        self.held.append(py, array, |writer| {
            writer.progress().first().and_then(|top| top.slow_shard)
        })
    }

    /// Appends the elements of the tensor on a CUDA device that is in `capsule`.
    fn append_tensor(&self, py: Python<'_>, capsule: &Bound<'_, PyAny>) -> PyResult<()> {
        self.held.append_tensor(py, capsule)
    }

    /// Returns the index in its slice of the next element to append, along each axis.
    fn position(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.held.position(py)
    }

    /// Forgets the appended elements of an incomplete slice. Returns their number.
    fn discard_partial_slice(&self, py: Python<'_>) -> PyResult<usize> {
        self.held.discard_partial_slice(py)
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.held.flush(py)
    }

    /// Stores all elements that were appended. Returns a report as text.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        self.held
            .finish(py, |writer| Ok(told(&writer.finish()?, 0)))
    }

    /// Discards the slices that are not stored. Returns the number of stored slices of level 0.
    fn abort(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.held.close(py, Levels::abort)
    }

    /// Stores complete shards, for `limit` seconds at most, and discards other slices. Returns the number of
    /// stored slices of level 0.
    fn stop(&self, py: Python<'_>, limit: f64) -> PyResult<Option<u64>> {
        self.held.stop(py, limit)
    }

    /// Returns, for each level, a text that says what its writer does, and why.
    fn explain(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.held.with(py, |writer| {
            let levels = writer.explain();
            Ok(levels.iter().map(ToString::to_string).collect())
        })
    }

    fn progress<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let now = self.held.with(py, |writer| Ok(writer.progress()))?;
        now.iter().map(|now| progress_of(py, now)).collect()
    }
}

/// Writes the levels below level 0 of an existing array, or a part of these levels. Returns a report as text.
#[pyfunction]
pub(crate) fn write_lower_levels(
    py: Python<'_>,
    place: StorePlace<'_>,
    path: String,
    pyramid: Pyramid,
    sync: bool,
    part: Option<(u64, NonZeroU64)>,
    devices: DeviceSettings,
) -> PyResult<String> {
    let store = Store::at(Some(place), sync);
    detached(py, &path, || {
        let array = devices.on(opened(&store, &path)?);
        let builder = pyramid.builder(&store, &array)?;
        interruptible(|cancel| match part {
            Some((part, parts)) => {
                let blocks = builder.write_part_of_lower_levels(part, parts, cancel)?;
                Ok(format!("{blocks} blocks of all levels were written"))
            }
            None => Ok(match &*builder.write_lower_levels(cancel)? {
                [] => "there is no level below level 0".to_owned(),
                reports => told(reports, 1),
            }),
        })
    })
}

/// Runs `work` on another thread, and cancels it if a signal handler of Python raises, for example for
/// Ctrl-C.
fn interruptible<T: Send>(
    work: impl FnOnce(&Cancel) -> Result<T, WriterError> + Send,
) -> Result<T, Error> {
    /// The longest time that a signal waits before it is handled.
    const TURN: Duration = Duration::from_millis(20);
    let cancel = Cancel::new();
    let (send, done) = sync_channel(1);
    std::thread::scope(|scope| {
        let of_thread = cancel.clone();
        let working = move || send.send(no_panic(|| work(&of_thread)));
        std::thread::Builder::new()
            .name("zarrs_cuda pyramid".to_owned())
            .spawn_scoped(scope, working)
            .map_err(|error| Error::Other(format!("no thread to write levels: {error}")))?;
        let mut raised = None;
        loop {
            match done.recv_timeout(TURN) {
                Ok(Some(result)) => {
                    return match raised {
                        Some(error) => Err(Error::Raised(error)),
                        None => result.map_err(failed),
                    };
                }
                Err(RecvTimeoutError::Timeout) => {
                    #[allow(
                        clippy::redundant_closure_for_method_calls,
                        reason = "the method is one of any lifetime only in a closure"
                    )]
                    let checked = Python::attach(|py| py.check_signals());
                    if let Err(error) = checked {
                        cancel.cancel();
                        raised.get_or_insert(error);
                    }
                }
                Ok(None) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Other("a codec of zarrs panicked".to_owned()));
                }
            }
        }
    })
}
