//! Refusals: errors of partial writes that did not begin. Nothing was written, and the same write may succeed
//! later.

use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use zarrs_codec::CodecError;

use crate::store::codec_queue::NoTurn;

fn refusal(what: String) -> CodecError {
    CodecError::IOError(Arc::new(Error::new(ErrorKind::ResourceBusy, what)))
}

/// Returns whether `error` is a refusal.
pub(super) fn is_refusal(error: &CodecError) -> bool {
    matches!(error, CodecError::IOError(error) if error.kind() == ErrorKind::ResourceBusy)
}

/// Returns the refusal for a shard that another writer has changed since its index was read.
pub(super) fn changed() -> CodecError {
    refusal("the shard changed while a partial write of it was prepared: its index, or a subchunk, is not the one that was read before. Nothing of the shard was written. Write to one shard from one place at a time, or try again".to_owned())
}

/// Returns the refusal for an encoder that got no turn within `limit`.
pub(super) fn no_turn(reason: NoTurn, limit: Duration) -> CodecError {
    refusal(match reason {
        NoTurn::Late => format!(
            "a partial write may wait {limit:?} for other writers of this array in this process, and its turn did not come. Nothing of the shard was written. Try again, write whole shards, or allow more time with zarrs_cuda::Options::with_turn_limit"
        ),
        NoTurn::Nested => "a partial write was begun on a thread that is in the middle of another one, which it would have to wait for: the store runs other work of the application while it writes. Nothing of the shard was written. Try again when that one has ended".to_owned(),
    })
}
