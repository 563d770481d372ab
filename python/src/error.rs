//! Errors of this package, and the exceptions of Python that they become.

use std::error::Error as StdError;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use object_store::Error as ObjectError;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use zarrs::array::ArrayError;
use zarrs_codec::CodecError;
use zarrs_cuda::maintenance::is_damage;
use zarrs_cuda::reader::ReaderError;
use zarrs_cuda::writer::BoxWriterErrorKind as Kind;
use zarrs_storage::StorageError;

/// An error of a read or a write, before it becomes an exception of Python.
#[derive(Debug)]
pub(crate) enum Error {
    /// A shard or a chunk, with this key, cannot be decoded, for the reason `why`.
    Damaged { key: String, why: String },
    /// A store failed, with this message and the error number of the operating system, if there is one.
    Io(String, Option<i32>),
    /// A store of obstore failed, with this message and the name of its exception class.
    Object(String, &'static str),
    /// The shard with this key must not be written as a whole, because subchunks are stored beside it.
    Frames(String),
    /// Another program has replaced the shard `key` after subchunks were stored beside it; `why` has the
    /// times.
    Changed { key: String, why: String },
    /// A device was asked for, and none can be used; the message says why.
    Backend(String),
    /// Nothing was read into the memory of a device; the message says why.
    Device(String),
    /// Memory could not be allocated; the message says for what.
    Memory(String),
    /// The caller asked for something that is not possible; the message says why.
    Value(String),
    /// An error of the array at this path, which is not the array that the caller named.
    Elsewhere(String, Box<Self>),
    /// Python raised this exception, for example `KeyboardInterrupt` for Ctrl-C.
    Raised(PyErr),
    /// Any other error, with its message.
    Other(String),
}

/// The remedy where nothing can be read into the memory of a device.
const INTO_HOST: &str = "Without `device`, and with an `out` of the host, the elements are read into the memory of the host";

/// The error number of the operating system for a file that other processes use.
const EBUSY: i32 = 16;

impl Error {
    /// Returns the error of decoding the bytes under `key`.
    pub(crate) fn decoding(key: &str, error: &CodecError) -> Self {
        if let Some(io) = find_io(error) {
            if io.kind() == io::ErrorKind::OutOfMemory || is_of_memory(error) {
                return Self::Memory(format!("cannot decode {key}: {error}"));
            }
            return Self::of_store(format!("cannot read {key}: {io}"), Some(io));
        }
        if is_of_memory(error) {
            return Self::Memory(format!("cannot decode {key}: {error}"));
        }
        if is_of_backend(error) {
            return Self::Backend(format!("cannot read or change {key}: {error}"));
        }
        if !is_damage(error) {
            return Self::Other(format!("cannot read or change {key}: {error}"));
        }
        Self::Damaged {
            key: key.to_owned(),
            why: error.to_string(),
        }
    }

    /// Returns the error of encoding elements for `key`.
    pub(crate) fn encoding(key: &str, error: &(dyn StdError + 'static)) -> Self {
        if is_of_memory(error) {
            return Self::Memory(format!("cannot encode {key}: {error}"));
        }
        let message = format!("cannot encode {key}: {error}");
        if is_of_backend(error) {
            return Self::Backend(message);
        }
        Self::Other(message)
    }

    /// Returns the error of changing part of the shard `key`.
    pub(crate) fn changing(key: &str, error: &zarrs_cuda::Error) -> Self {
        match error {
            zarrs_cuda::Error::Codec(error) => Self::decoding(key, error),
            error => Self::encoding(key, error),
        }
    }

    /// Returns the error of a store that failed while it was `doing` something with `key`.
    pub(crate) fn store(doing: &str, key: &str, error: &StorageError) -> Self {
        if matches!(error, StorageError::InvalidByteRangeError(_)) {
            return Self::Damaged {
                key: key.to_owned(),
                why: format!("it is too short: {error}"),
            };
        }
        if let Some(io) = find_io(error)
            && io.kind() == io::ErrorKind::InvalidData
        {
            // The library uses this kind of error for damaged shards.
            let (key, why) = (key.to_owned(), io.to_string());
            return Self::Damaged { key, why };
        }
        if is_of_memory(error) {
            return Self::Memory(format!("cannot {doing} {key}: {error}"));
        }
        Self::of_store(format!("cannot {doing} {key}: {error}"), find_io(error))
    }

    /// Returns the error for the shard `key`, which was not decoded although its bytes may be right.
    pub(crate) fn undecided(key: &str, error: &CodecError) -> Self {
        let message = format!("cannot decode {key}, whose bytes may be right: {error}");
        if is_of_memory(error) {
            return Self::Memory(message);
        }
        Self::of_store(message, find_io(error))
    }

    fn of_store(message: String, error: Option<&io::Error>) -> Self {
        let object = error.and_then(io::Error::get_ref);
        if let Some(raised) = object.and_then(|object| object.downcast_ref::<PyErr>()) {
            // A store of Python raised this exception.
            return Self::Raised(Python::attach(|py| raised.clone_ref(py)));
        }
        // The message of a request is for people; the object store's own error is its source.
        let request = object.and_then(|request| request.source());
        let Some(object) = request.and_then(|cause| cause.downcast_ref::<ObjectError>()) else {
            let code = error.and_then(|error| match error.kind() {
                io::ErrorKind::ResourceBusy => Some(EBUSY),
                _ => error.raw_os_error(),
            });
            return Self::Io(message, code);
        };
        Self::Object(message, class_of(object))
    }

    /// Returns the error of zarrs when it read or wrote `key`.
    pub(crate) fn array(key: &str, error: &ArrayError) -> Self {
        match error {
            ArrayError::CodecError(error) => Self::decoding(key, error),
            ArrayError::StorageError(error) => Self::store("use", key, error),
            error => Self::Other(format!("cannot use {key}: {error}")),
        }
    }

    /// Returns the error of zarrs when it updated part of the shard `key` where it is stored.
    pub(crate) fn writing(key: &str, error: &ArrayError) -> Self {
        match error {
            ArrayError::CodecError(codec) => Self::updating(key, codec),
            error => Self::array(key, error),
        }
    }

    /// Returns the error of the codec when it updated part of the shard `key` where it is stored.
    fn updating(key: &str, codec: &CodecError) -> Self {
        let message = format!("cannot write {key}: {codec}");
        match (codec, find_io(codec)) {
            (CodecError::IOError(io), _) if io.kind() == io::ErrorKind::ResourceBusy => {
                Self::Io(message, Some(EBUSY))
            }
            (_, Some(io)) => Self::of_store(of_python(&message), Some(io)),
            (_, None) => Self::decoding(key, codec),
        }
    }

    /// Returns the exception for this error of the array at `array`.
    pub(crate) fn into_py(self, py: Python<'_>, array: &str) -> PyErr {
        match self {
            Self::Damaged { key, why } => ours(py, "ShardError", (array, key, of_python(&why))),
            Self::Changed { key, why } => ours(py, "ShardChanged", (array, key, why)),
            Self::Backend(message) => ours(py, "BackendUnavailable", (of_python(&message),)),
            Self::Device(message) => {
                ours(py, "BackendUnavailable", (of_python(&message), INTO_HOST))
            }
            Self::Frames(key) => ours(py, "FramesPending", (array, key)),
            Self::Object(message, class) => {
                let made = py
                    .import("obstore.exceptions")
                    .and_then(|exceptions| exceptions.getattr(class))
                    .or_else(|_| py.import("builtins")?.getattr(class))
                    .and_then(|class| class.call1((&message,)));
                made.map_or_else(|_| PyOSError::new_err(message), PyErr::from_value)
            }
            Self::Io(message, Some(code)) => PyOSError::new_err((code, message)),
            Self::Io(message, None) => PyOSError::new_err(message),
            Self::Elsewhere(array, error) => error.into_py(py, &array),
            Self::Raised(error) => error,
            Self::Memory(message) => PyMemoryError::new_err(message),
            Self::Value(message) => PyValueError::new_err(of_python(&message)),
            Self::Other(message) => PyRuntimeError::new_err(of_python(&message)),
        }
    }
}

/// Returns an exception of this package, of the class `class`.
fn ours<'py>(py: Python<'py>, class: &str, arguments: impl pyo3::call::PyCallArgs<'py>) -> PyErr {
    let made = py
        .import("zarrs_cuda._errors")
        .and_then(|errors| errors.getattr(class))
        .and_then(|class| class.call1(arguments));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Replaces the names of functions in a message of the library by their names in Python.
pub(crate) fn of_python(message: &str) -> String {
    let mut parts = message.split("`with_start(");
    let mut told = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(")`") {
            Some(("Resume", rest)) => told.extend(["`start=\"resume\"`", rest]),
            Some((slice, rest)) => told.extend(["`start=", slice, "`", rest]),
            None => told.extend(["`with_start(", part]),
        }
    }
    told.replace(
        "nvCOMP, which the options named",
        "nvCOMP, which `zarrs_cuda.nvcomp` or a package of this Python named",
    )
    .replace("zarrs_cuda::recover", "zarrs_cuda.recover")
    .replace("`with_axes`", "`axes`")
}

impl From<ReaderError> for Error {
    fn from(error: ReaderError) -> Self {
        match &error {
            ReaderError::Damaged(damage) => Self::Damaged {
                key: damage.key.to_string(),
                why: error.to_string(),
            },
            ReaderError::Store { key, error } => Self::store("read", key.as_str(), error),
            ReaderError::Memory { .. } => Self::Memory(error.to_string()),
            ReaderError::Device { .. }
            | ReaderError::DeviceUnusable { .. }
            | ReaderError::DeviceNotAsked { .. } => Self::Device(error.to_string()),
            // The bytes may be right: the machine or the store failed.
            ReaderError::Undecided { key, error } => Self::undecided(key.as_str(), error),
            ReaderError::Zarrs(of_zarrs) if is_of_backend(of_zarrs) => {
                Self::Backend(error.to_string())
            }
            ReaderError::Zarrs(of_zarrs) => match find_io(of_zarrs) {
                Some(io) if !is_of_memory(of_zarrs) => Self::of_store(error.to_string(), Some(io)),
                None if !is_of_memory(of_zarrs) => Self::Other(error.to_string()),
                _ => Self::Memory(error.to_string()),
            },
            ReaderError::Changing { .. } => Self::Other(error.to_string()),
            _ => Self::Value(error.to_string()),
        }
    }
}

impl From<zarrs_cuda::Error> for Error {
    fn from(error: zarrs_cuda::Error) -> Self {
        match error {
            zarrs_cuda::Error::Storage { doing, key, source } => {
                Self::store(doing, key.as_str(), &source)
            }
            zarrs_cuda::Error::Undecided { key, source } => Self::undecided(key.as_str(), &source),
            zarrs_cuda::Error::ShardChanged { key, reason } => Self::Changed {
                key: key.to_string(),
                why: reason,
            },
            zarrs_cuda::Error::NotShards { .. } => Self::Value(error.to_string()),
            error => Self::Other(error.to_string()),
        }
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::FramesPending { key, .. } => Self::Frames(key.to_string()),
            Kind::Backend { .. } => Self::Backend(kind.to_string()),
            Kind::Memory { .. } => Self::Memory(kind.to_string()),
            Kind::Store { doing, key, error } => Self::store(doing, key.as_str(), &error),
            Kind::Zarrs { key, error } => Self::array(key.as_str(), &error),
            Kind::Shard { doing, key, error } => match (doing, *error) {
                ("update", zarrs_cuda::Error::Codec(codec)) => Self::updating(key.as_str(), &codec),
                ("encode", error) => Self::encoding(key.as_str(), &error),
                (_, error @ zarrs_cuda::Error::Codec(_)) => Self::changing(key.as_str(), &error),
                (_, error) => error.into(),
            },
            _ => Self::Value(kind.to_string()),
        }
    }
}

/// Returns the exception for an array, or a setting, that this package does not support. The caller then uses
/// zarr-python's own code.
pub(crate) fn unsupported(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Runs code of zarrs, some of whose codecs panic on damaged bytes and on unknown parameters. Returns `None`
/// if the code panicked.
pub(crate) fn no_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    // Values that a panic left half changed are not used again.
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Returns whether `error`, or one of its causes, says that memory could not be allocated.
fn is_of_memory(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let codec = error.downcast_ref::<CodecError>();
        let storage = match (error.downcast_ref::<StorageError>(), codec) {
            (Some(error), _) | (None, Some(CodecError::StorageError(error))) => Some(error),
            _ => None,
        };
        let io = match (error.downcast_ref::<io::Error>(), codec, storage) {
            (Some(io), ..) => Some(io),
            (None, Some(CodecError::IOError(io)), _)
            | (None, _, Some(StorageError::IOError(io))) => Some(&**io),
            _ => None,
        };
        if io.is_some_and(|io| io.kind() == io::ErrorKind::OutOfMemory) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Returns whether `error`, or one of its causes, says that a device was asked for and none can be used.
fn is_of_backend(error: &(dyn StdError + 'static)) -> bool {
    // Errors of zarrs that are transparent leave out one of their causes, so these types are asked first.
    let inside: Option<&(dyn StdError + 'static)> = match (
        error.downcast_ref::<ArrayError>(),
        error.downcast_ref::<CodecError>(),
        error.downcast_ref::<zarrs_cuda::Error>(),
    ) {
        (_, _, Some(zarrs_cuda::Error::BackendUnavailable { .. })) => return true,
        (_, _, Some(zarrs_cuda::Error::Codec(codec)))
        | (Some(ArrayError::CodecError(codec)), ..) => Some(codec),
        (_, Some(CodecError::IOError(io)), _) => Some(&**io),
        _ => match error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            Some(inside) => Some(inside),
            None => error.source(),
        },
    };
    inside.is_some_and(is_of_backend)
}

/// Returns the I/O error among `error` and its causes, if there is one.
fn find_io<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io);
        }
        if let Some(StorageError::IOError(io)) = error.downcast_ref::<StorageError>() {
            return Some(io);
        }
        match error.downcast_ref::<CodecError>() {
            Some(CodecError::StorageError(StorageError::IOError(io))) => return Some(io),
            // An error of the operating system has a number. The library's own errors have none.
            Some(CodecError::IOError(io)) if io.raw_os_error().is_some() => return Some(io),
            _ => {}
        }
        next = error.source();
    }
    None
}

/// Runs `work` for the array at `array` without the GIL. An error of `work` becomes an exception.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    array: &str,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    let done = py.detach(|| no_panic(work));
    let done = done.unwrap_or_else(|| Err(Error::Other("a codec of zarrs panicked".to_owned())));
    done.map_err(|error| error.into_py(py, array))
}

/// Returns the name of the exception class of obstore, or of Python, for `error`.
fn class_of(error: &ObjectError) -> &'static str {
    match error {
        ObjectError::NotFound { .. } => "FileNotFoundError",
        ObjectError::NotImplemented { .. } => "NotImplementedError",
        ObjectError::InvalidPath { .. } => "InvalidPathError",
        ObjectError::JoinError { .. } => "JoinError",
        ObjectError::NotSupported { .. } => "NotSupportedError",
        ObjectError::AlreadyExists { .. } => "AlreadyExistsError",
        ObjectError::Precondition { .. } => "PreconditionError",
        ObjectError::NotModified { .. } => "NotModifiedError",
        ObjectError::PermissionDenied { .. } => "PermissionDeniedError",
        ObjectError::Unauthenticated { .. } => "UnauthenticatedError",
        ObjectError::UnknownConfigurationKey { .. } => "UnknownConfigurationKeyError",
        _ => "GenericError",
    }
}
