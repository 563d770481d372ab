//! Makes the errors of reading a shard.

use zarrs_codec::CodecError;
use zarrs_storage::StorageError;

use super::ShardToRead;
use crate::reader::ReaderError;
use crate::reader::error::Damage;
use crate::shard::error::{
    codec_error, engine_is_about_stored_bytes, is_about_stored_bytes, out_of_memory,
};
use zarrs_cuda_engine::contract::EngineError;

pub(super) fn damage(
    shard: &ShardToRead<'_>,
    subchunk: Option<usize>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> ReaderError {
    ReaderError::Damaged(Damage::new(shard.key.clone(), subchunk, source))
}

/// Returns the error for a subchunk that was not decoded. The subchunk may be intact, if memory was short.
pub(super) fn failed(
    shard: &ShardToRead<'_>,
    subchunk: Option<usize>,
    error: EngineError,
) -> ReaderError {
    match error {
        EngineError::OutOfMemory { what, bytes } => ReaderError::Memory { what, bytes },
        error if engine_is_about_stored_bytes(&error) => damage(shard, subchunk, error),
        error => undecided(shard, codec_error(error)),
    }
}

/// Returns the error for an index, or for a subchunk, that codecs did not decode.
pub(super) fn not_decoded(
    shard: &ShardToRead<'_>,
    subchunk: Option<usize>,
    error: CodecError,
) -> ReaderError {
    if is_about_stored_bytes(&error) {
        return damage(shard, subchunk, error);
    }
    undecided(shard, error)
}

/// Returns the error for bytes that were not decoded, but may be right.
fn undecided(shard: &ShardToRead<'_>, error: CodecError) -> ReaderError {
    if let Some((what, bytes)) = out_of_memory(&error) {
        return ReaderError::Memory { what, bytes };
    }
    match error {
        CodecError::StorageError(error) => store_error(shard, error),
        error => ReaderError::Undecided {
            key: shard.key.clone(),
            error,
        },
    }
}

/// Returns the error for a store that returned `got` bytes, although it has the `wanted` bytes.
pub(super) fn other_bytes(got: u64, wanted: u64) -> StorageError {
    StorageError::Other(format!("the store returned {got} bytes of {wanted}"))
}

/// Returns whether a store could not be reached. Another request would wait as long, and tell nothing about
/// the shard.
pub(super) fn got_no_answer(error: &StorageError) -> bool {
    use std::io::ErrorKind;
    let StorageError::IOError(error) = error else {
        return false;
    };
    matches!(
        error.kind(),
        ErrorKind::TimedOut
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::NotConnected
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    )
}

pub(super) fn store_error(shard: &ShardToRead<'_>, error: StorageError) -> ReaderError {
    ReaderError::Store {
        key: shard.key.clone(),
        error,
    }
}
