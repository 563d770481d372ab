//! The errors of this crate's own functions. Encoding and decoding return zarrs' `CodecError`.

use zarrs::plugin::PluginCreateError;
use zarrs_codec::CodecError;
use zarrs_storage::{StorageError, StoreKey};

use crate::Backend;

/// An error.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// [`register`](crate::register) was called while an earlier registration is in force.
    #[error(
        "zarrs_cuda is registered already: drop the earlier `Registration` first, or give options to single arrays through `CodecSpecificOptions`"
    )]
    AlreadyRegistered,
    /// Something else in this process has registered a codec that zarrs finds before this one.
    #[error(
        "another codec is registered as `sharding_indexed` in this process, and zarrs would use that one: unregister it, or register zarrs_cuda before it"
    )]
    NameTaken,
    /// The requested backend cannot be used.
    #[error("the {backend} backend cannot be used: {reason}")]
    BackendUnavailable {
        /// What was requested.
        backend: Backend,
        /// Why it cannot be had, and what to do.
        reason: String,
    },
    /// The array's codec is not this crate's.
    #[error(
        "the array is not encoded by zarrs_cuda: its array-to-bytes codec is `{codec}`. Was the array opened before `register`, or built with `ArrayBuilder::subchunk_shape`?"
    )]
    ForeignCodec {
        /// The name of the codec that the array has.
        codec: String,
    },
    /// The objects that an array stores are not shards.
    #[error("what the array stores are not shards: {reason}")]
    NotShards {
        /// What they are.
        reason: String,
    },
    /// A shard cannot be compacted, because an update of it was torn.
    #[error(
        "cannot compact the shard {key}: {reason}. Put it right with `recover` first, or store it anew"
    )]
    UpdatePending {
        /// Where the shard is stored.
        key: StoreKey,
        /// What is left to do.
        reason: String,
    },
    /// A store failed.
    #[error("cannot {doing} {key}: {source}")]
    Storage {
        /// What was being done.
        doing: &'static str,
        /// To what.
        key: StoreKey,
        /// Why it failed.
        source: StorageError,
    },
    /// The codec cannot be created from its parts.
    #[error(transparent)]
    Create(#[from] PluginCreateError),
    /// The shapes, data type or codecs do not fit each other.
    #[error(transparent)]
    Codec(#[from] CodecError),
}
