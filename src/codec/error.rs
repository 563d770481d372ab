//! This crate's errors as zarrs' `CodecError`. Of its variants only the one for I/O has room for a source,
//! so an error of another type becomes that, and can be found by `std::io::Error::get_ref`.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use zarrs_codec::CodecError;

use crate::Error;
use crate::engine::EngineError;

/// `error`, which keeps its type and its sources.
pub(crate) fn sourced(error: impl StdError + Send + Sync + 'static) -> CodecError {
    CodecError::IOError(Arc::new(io::Error::other(error)))
}

/// A message about an error, which is its source.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Caused {
    message: String,
    source: CodecError,
}

/// `message`, which says what `source` was in the way of.
pub(crate) fn caused(message: String, source: &CodecError) -> CodecError {
    let source = source.clone();
    sourced(Caused { message, source })
}

/// An engine's error, as zarrs' callers expect it.
pub(crate) fn codec_error(error: EngineError) -> CodecError {
    match error {
        EngineError::Checksum { .. } => CodecError::InvalidChecksum,
        EngineError::Foreign(error) => match error.downcast::<CodecError>() {
            Ok(error) => *error,
            Err(error) => CodecError::IOError(Arc::new(io::Error::other(error))),
        },
        error => sourced(error),
    }
}

/// One of this crate's errors, where zarrs wants its own.
pub(crate) fn other(error: Error) -> CodecError {
    match error {
        Error::Codec(error) => error,
        error => sourced(error),
    }
}
