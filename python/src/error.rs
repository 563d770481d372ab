//! Errors, as Python has them.

use std::error::Error as StdError;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use object_store::Error as ObjectError;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use zarrs::array::ArrayError;
use zarrs_codec::CodecError;
use zarrs_cuda::reader::ReaderError;
use zarrs_storage::StorageError;

/// An error of a read or a write, before it is Python's.
#[derive(Debug)]
pub(crate) enum Error {
    /// A shard, or a chunk, cannot be decoded: its key, and why.
    Damaged { key: String, why: String },
    /// A store failed.
    Io(String, Option<i32>),
    /// A store of obstore failed: the class of its exception.
    Object(String, &'static str),
    /// Subchunks are stored beside a shard that is to be written otherwise: its key.
    Frames(String),
    /// Another program has replaced a shard since subchunks were stored beside it: its key, and when.
    Changed { key: String, why: String },
    /// There is no memory.
    Memory(String),
    /// The caller asked for what cannot be done.
    Value(String),
    /// An error of another array than the one that the caller named: its path.
    Elsewhere(String, Box<Self>),
    /// Python raised an exception, or wants to: Ctrl-C.
    Raised(PyErr),
    /// Anything else.
    Other(String),
}

/// The number of the system for a file that others use.
const EBUSY: i32 = 16;

impl Error {
    /// An error while the bytes under `key` were decoded.
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
        Self::Damaged {
            key: key.to_owned(),
            why: error.to_string(),
        }
    }

    /// An error while elements were encoded for `key`.
    pub(crate) fn encoding(key: &str, error: &(dyn StdError + 'static)) -> Self {
        if is_of_memory(error) {
            return Self::Memory(format!("cannot encode {key}: {error}"));
        }
        Self::Other(format!("cannot encode {key}: {error}"))
    }

    /// An error while the shard `key` was changed in part.
    pub(crate) fn changing(key: &str, error: &zarrs_cuda::Error) -> Self {
        match error {
            zarrs_cuda::Error::Codec(error) => Self::decoding(key, error),
            error => Self::encoding(key, error),
        }
    }

    /// An error of a store, which was `doing` something with `key`.
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
            // The library says so of shards.
            let (key, why) = (key.to_owned(), io.to_string());
            return Self::Damaged { key, why };
        }
        if is_of_memory(error) {
            return Self::Memory(format!("cannot {doing} {key}: {error}"));
        }
        Self::of_store(format!("cannot {doing} {key}: {error}"), find_io(error))
    }

    /// The shard `key` was not decoded, and its bytes may be right.
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
            // A store of Python raised it.
            return Self::Raised(Python::attach(|py| raised.clone_ref(py)));
        }
        // The library's message of a request is in words for people.
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

    /// An error of zarrs, while it read or wrote `key`.
    pub(crate) fn array(key: &str, error: &ArrayError) -> Self {
        match error {
            ArrayError::CodecError(error) => Self::decoding(key, error),
            ArrayError::StorageError(error) => Self::store("use", key, error),
            error => Self::Other(format!("cannot use {key}: {error}")),
        }
    }

    /// An error of zarrs, while it wrote a part of `key` where it is.
    pub(crate) fn writing(key: &str, error: &ArrayError) -> Self {
        let ArrayError::CodecError(codec) = error else {
            return Self::array(key, error);
        };
        let message = format!("cannot write {key}: {codec}");
        match (codec, find_io(codec)) {
            (CodecError::IOError(io), _) if io.kind() == io::ErrorKind::ResourceBusy => {
                Self::Io(message, Some(EBUSY))
            }
            (_, Some(io)) => Self::of_store(of_python(&message), Some(io)),
            (_, None) => Self::array(key, error),
        }
    }

    /// The exception for an error with the array at `array`.
    pub(crate) fn into_py(self, py: Python<'_>, array: &str) -> PyErr {
        match self {
            Self::Damaged { key, why } => ours(py, "ShardError", (array, key, of_python(&why))),
            Self::Changed { key, why } => ours(py, "ShardChanged", (array, key, why)),
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

/// An exception of this package.
fn ours<'py>(py: Python<'py>, class: &str, arguments: impl pyo3::call::PyCallArgs<'py>) -> PyErr {
    let made = py
        .import("zarrs_cuda._errors")
        .and_then(|errors| errors.getattr(class))
        .and_then(|class| class.call1(arguments));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// A message of the library, with the names that functions have in Python.
fn of_python(message: &str) -> String {
    message
        .replace("zarrs_cuda::recover", "zarrs_cuda.recover")
        .replace("`with_axes`", "`axes`")
        .replace("`with_start(0)`", "`start=0`")
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
            // The bytes may be right: the machine, or what the store is made of, failed.
            ReaderError::Undecided { key, error } => Self::undecided(key.as_str(), error),
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

/// The exception for an array, or a setting, that this package cannot do: the caller falls back.
pub(crate) fn unsupported(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Runs code of zarrs, some of whose codecs panic on damaged bytes and on parameters that they do not know.
/// `None` if it did.
pub(crate) fn no_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    // Nothing that a panic left half done is used again.
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Whether memory could not be allocated: `error` says so, or one of its causes.
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

/// The error of the system among the causes of `error`.
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
            // An error of the system: the library's own have no number.
            Some(CodecError::IOError(io)) if io.raw_os_error().is_some() => return Some(io),
            _ => {}
        }
        next = error.source();
    }
    None
}

/// Runs `work` for the array at `array` without the GIL. Its error becomes an exception.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    array: &str,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    let done = py.detach(|| no_panic(work));
    let done = done.unwrap_or_else(|| Err(Error::Other("a codec of zarrs panicked".to_owned())));
    done.map_err(|error| error.into_py(py, array))
}

/// The class of obstore's exception for `error`, or of Python's.
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
