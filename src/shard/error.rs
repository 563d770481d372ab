//! Converts this crate's errors to zarrs' `CodecError`. Only its variant for I/O has room for a source, so an
//! error of another type becomes that variant, and `std::io::Error::get_ref` finds it. A lack of memory has
//! the kind `OutOfMemory`.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use zarrs_codec::CodecError;
use zarrs_storage::StorageError;

use crate::error::Error;
use zarrs_cuda_engine::contract::EngineError;
use zarrs_cuda_engine::subchunk::NotDecoded;

/// Returns `error` as a [`CodecError`] that keeps its type and its sources.
pub(crate) fn sourced(error: impl StdError + Send + Sync + 'static) -> CodecError {
    of_kind(ErrorKind::Other, error)
}

/// An error with a message of its own, and another error as its source.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Caused {
    message: String,
    source: CodecError,
}

/// Returns an error with `message`, which says what `source` prevented.
pub(crate) fn caused(message: String, source: &CodecError) -> CodecError {
    let source = source.clone();
    let kind = match &source {
        CodecError::IOError(error) if error.kind() == ErrorKind::OutOfMemory => error.kind(),
        _ => ErrorKind::Other,
    };
    of_kind(kind, Caused { message, source })
}

fn of_kind(kind: ErrorKind, error: impl StdError + Send + Sync + 'static) -> CodecError {
    CodecError::IOError(Arc::new(io::Error::new(kind, error)))
}

/// Returns the error that there was no memory for `bytes` bytes of `what`.
pub(crate) fn no_memory(what: &'static str, bytes: usize) -> CodecError {
    of_kind(
        ErrorKind::OutOfMemory,
        EngineError::OutOfMemory { what, bytes },
    )
}

/// Returns an engine's error as the variant of [`CodecError`] that callers of zarrs expect.
pub(crate) fn codec_error(error: EngineError) -> CodecError {
    match error {
        EngineError::Checksum { .. } => CodecError::InvalidChecksum,
        EngineError::OutOfMemory { what, bytes } => no_memory(what, bytes),
        EngineError::Foreign(error) => match error.downcast::<CodecError>() {
            Ok(error) => *error,
            Err(error) => CodecError::IOError(Arc::new(io::Error::other(error))),
        },
        error => sourced(error),
    }
}

/// Returns the error of a codec that did not decode a value. `told` makes a message from the reason, if the
/// bytes are invalid.
pub(crate) fn not_decoded(failed: NotDecoded, told: impl FnOnce(String) -> String) -> CodecError {
    match failed {
        NotDecoded::Invalid(reason) => CodecError::Other(told(reason)),
        NotDecoded::Memory { what, bytes } => no_memory(what, bytes),
    }
}

/// Returns whether `error` says that the decoded bytes are wrong. If not, the machine, a store or a
/// configuration prevented the decoding, and the bytes may be right.
pub(crate) fn is_about_stored_bytes(error: &CodecError) -> bool {
    match error {
        CodecError::IOError(error) => io_is_about_stored_bytes(error),
        CodecError::StorageError(error) => storage_is_about_stored_bytes(error),
        CodecError::UnsupportedDataType(..)
        | CodecError::UnsupportedDataTypeCodec(_)
        | CodecError::IncompatibleIndexer(_)
        | CodecError::DataTypeFillValueError(_) => false,
        _ => true,
    }
}

/// Returns whether `error` says that a stored value is too short, which means that its bytes are wrong.
fn storage_is_about_stored_bytes(error: &StorageError) -> bool {
    matches!(error, StorageError::InvalidByteRangeError(_))
}

fn io_is_about_stored_bytes(error: &io::Error) -> bool {
    // Decoders return these kinds. Errors of the operating system have an error number, and other kinds.
    let may_be = error.raw_os_error().is_none()
        && matches!(
            error.kind(),
            ErrorKind::InvalidData
                | ErrorKind::InvalidInput
                | ErrorKind::UnexpectedEof
                | ErrorKind::WriteZero
                | ErrorKind::Other
        );
    may_be
        && error
            .get_ref()
            .is_none_or(|cause| cause_is_about_stored_bytes(cause))
}

fn cause_is_about_stored_bytes(cause: &(dyn StdError + 'static)) -> bool {
    if let Some(error) = cause.downcast_ref::<EngineError>() {
        return engine_is_about_stored_bytes(error);
    }
    if let Some(caused) = cause.downcast_ref::<Caused>() {
        return is_about_stored_bytes(&caused.source);
    }
    if let Some(error) = cause.downcast_ref::<CodecError>() {
        return is_about_stored_bytes(error);
    }
    if let Some(error) = cause.downcast_ref::<StorageError>() {
        return storage_is_about_stored_bytes(error);
    }
    if let Some(error) = cause.downcast_ref::<io::Error>() {
        return io_is_about_stored_bytes(error);
    }
    // No `Error` of this crate is caused by the stored bytes.
    cause.downcast_ref::<Error>().is_none()
}

/// Returns the thing for which memory was missing, and its size in bytes. Returns `None` for another error.
pub(crate) fn out_of_memory(error: &CodecError) -> Option<(&'static str, usize)> {
    let CodecError::IOError(error) = error else {
        return None;
    };
    let cause = error.get_ref()?;
    if let Some(caused) = cause.downcast_ref::<Caused>() {
        return out_of_memory(&caused.source);
    }
    match cause.downcast_ref::<EngineError>()? {
        EngineError::OutOfMemory { what, bytes } => Some((what, *bytes)),
        EngineError::Foreign(error) => out_of_memory(error.downcast_ref::<CodecError>()?),
        _ => None,
    }
}

/// Returns whether an engine's error says that the stored bytes are wrong.
pub(crate) fn engine_is_about_stored_bytes(error: &EngineError) -> bool {
    match error {
        EngineError::InputLength { .. }
        | EngineError::Extent { .. }
        | EngineError::Decode { .. }
        | EngineError::DecodedLength { .. }
        | EngineError::Checksum { .. } => true,
        EngineError::Strides { .. }
        | EngineError::OutOfMemory { .. }
        | EngineError::Encode { .. }
        | EngineError::Device(_)
        | EngineError::Unsuitable(_)
        | EngineError::Internal(_) => false,
        EngineError::Foreign(error) => cause_is_about_stored_bytes(&**error),
    }
}

/// Converts an error of this crate to an error of zarrs.
pub(crate) fn other(error: Error) -> CodecError {
    match error {
        Error::Codec(error) => error,
        error => sourced(error),
    }
}

#[cfg(test)]
mod tests {
    use zarrs_storage::StoreKey;
    use zarrs_storage::byte_range::{ByteRange, InvalidByteRangeError};

    use super::*;

    fn memory() -> EngineError {
        EngineError::OutOfMemory {
            what: "a test",
            bytes: 1,
        }
    }

    fn io_error(error: io::Error) -> CodecError {
        CodecError::IOError(Arc::new(error))
    }

    #[test]
    fn trouble_of_the_machine_is_none_of_the_bytes() {
        let storage = || StorageError::Other("403 Forbidden".to_string());
        let own = Error::Storage {
            doing: "read",
            key: StoreKey::new("c/0").unwrap(),
            source: storage(),
        };
        let foreign = |error: CodecError| codec_error(EngineError::Foreign(Box::new(error)));
        for error in [
            sourced(memory()),
            foreign(sourced(memory())),
            caused("cannot decode".to_string(), &sourced(memory())),
            sourced(EngineError::Internal("a test")),
            sourced(EngineError::Unsuitable("a test".to_string())),
            storage().into(),
            foreign(storage().into()),
            caused("cannot read".to_string(), &storage().into()),
            sourced(storage()),
            other(own),
            io_error(io::Error::from_raw_os_error(5)), // EIO
            io_error(io::Error::from_raw_os_error(12)), // ENOMEM
            io_error(io::Error::from_raw_os_error(24)), // EMFILE
            sourced(io::Error::from_raw_os_error(5)),
            io_error(ErrorKind::OutOfMemory.into()),
            io_error(ErrorKind::PermissionDenied.into()),
            io_error(io::Error::new(ErrorKind::ConnectionReset, "cut")),
        ] {
            assert!(!is_about_stored_bytes(&error), "{error:?}");
        }
    }

    #[test]
    fn wrong_bytes_are() {
        let decode = || EngineError::Decode {
            subchunk: 1,
            stage: "zstd",
            reason: "no frame".to_string(),
        };
        let range = InvalidByteRangeError::new(ByteRange::Suffix(4), 3);
        for error in [
            CodecError::InvalidChecksum,
            CodecError::Other("no".to_string()),
            sourced(decode()),
            codec_error(EngineError::Foreign(Box::new(sourced(decode())))),
            codec_error(EngineError::Foreign("no".into())),
            caused("cannot decode".to_string(), &CodecError::InvalidChecksum),
            range.into(),
            StorageError::from(range).into(),
            io_error(io::Error::other("corrupt deflate stream")),
            io_error(ErrorKind::UnexpectedEof.into()),
            io_error(ErrorKind::InvalidData.into()),
        ] {
            assert!(is_about_stored_bytes(&error), "{error:?}");
        }
    }

    #[test]
    fn what_there_was_no_memory_for() {
        for error in [
            codec_error(memory()),
            codec_error(EngineError::Foreign(Box::new(codec_error(memory())))),
            caused("cannot decode".to_string(), &codec_error(memory())),
        ] {
            assert_eq!(out_of_memory(&error), Some(("a test", 1)), "{error:?}");
            let CodecError::IOError(error) = error else {
                panic!("{error:?}");
            };
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        }
        assert_eq!(out_of_memory(&CodecError::InvalidChecksum), None);
    }
}
