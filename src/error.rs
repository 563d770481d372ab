//! The errors of this crate's own functions. Encoding and decoding return zarrs' `CodecError`.

use zarrs::plugin::PluginCreateError;
use zarrs_codec::CodecError;

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
    /// The codec cannot be created from its parts.
    #[error(transparent)]
    Create(#[from] PluginCreateError),
    /// The shapes, data type or codecs do not fit each other.
    #[error(transparent)]
    Codec(#[from] CodecError),
}
