//! Errors of this crate's own functions. Encoding and decoding return zarrs' `CodecError`.

use zarrs::plugin::PluginCreateError;
use zarrs_codec::CodecError;
use zarrs_storage::{StorageError, StoreKey};

use crate::options::Backend;

/// An error of this crate's own functions.
///
/// Encoding and decoding through zarrs return zarrs' [`CodecError`]. An
/// [`ArrayWriter`](crate::writer::ArrayWriter) returns a
/// [`WriterError`](crate::writer::WriterError).
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::Error;
/// use zarrs_cuda::maintenance::Shards;
///
/// array.store_chunk(&[0, 0], vec![7_u16; 32 * 32])?;
/// let shards = Shards::of(&array)?;
/// match shards.compact(&[0, 0]) {
///     // An update was interrupted: undo or complete it first.
///     Err(Error::UpdatePending { .. }) => println!("{}", shards.recover(&[0, 0])?),
///     Err(Error::Undecided { key, .. }) => println!("{key} may be right: try again with more memory"),
///     compaction => println!("{:?}", compaction?),
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// [`register`](crate::register) was called during an earlier registration.
    #[error(
        "zarrs_cuda is registered already: drop the earlier `Registration` first, or give options to single arrays through `CodecSpecificOptions`"
    )]
    AlreadyRegistered,
    /// Another library has registered a codec for the name, which zarrs finds before this crate's codec.
    #[error(
        "another codec is registered as `sharding_indexed` in this process, and zarrs would use that one: unregister it, or register zarrs_cuda before it"
    )]
    NameTaken,
    /// The requested backend cannot be used.
    #[error("the {backend} backend cannot be used: {reason}")]
    BackendUnavailable {
        /// The requested backend.
        backend: Backend,
        /// The reason why the backend cannot be used, and advice.
        reason: String,
    },
    /// The array's codec is not this crate's.
    #[error("{}", foreign_codec(codec))]
    ForeignCodec {
        /// The name of the array's codec.
        codec: String,
    },
    /// The array does not store plain shards.
    #[error("what the array stores are not shards: {reason}")]
    NotShards {
        /// The reason: the content that the array stores instead.
        reason: String,
    },
    /// A shard cannot be compacted, because an update of it was interrupted.
    #[error(
        "cannot compact the shard {key}: {reason}. Put it right with `recover` first, or store it anew"
    )]
    UpdatePending {
        /// The key of the shard.
        key: StoreKey,
        /// The state of the shard, and advice.
        reason: String,
    },
    /// A shard was not consolidated, because another program has replaced it after subchunks were stored
    /// beside it.
    #[error("cannot consolidate the shard {key}: {reason}")]
    ShardChanged {
        /// The key of the shard.
        key: StoreKey,
        /// The times at which the shard and the subchunk were stored, and advice.
        reason: String,
    },
    /// A shard was not decoded for a reason other than its bytes, for example because memory was short. The
    /// bytes may be right.
    #[error("cannot decode the shard {key}, whose bytes may be right: {source}")]
    Undecided {
        /// The key of the shard.
        key: StoreKey,
        /// The reason why the shard was not decoded.
        source: CodecError,
    },
    /// A store failed.
    #[error("cannot {doing} {key}: {source}")]
    Storage {
        /// The operation that failed, such as "read".
        doing: &'static str,
        /// The key of the object of the operation.
        key: StoreKey,
        /// The store's error.
        source: StorageError,
    },
    /// The codec, or the adapter, cannot be created from its parts.
    #[error(transparent)]
    Create(#[from] PluginCreateError),
    /// The shapes, data type or codecs do not fit each other, or a shard is invalid.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

fn foreign_codec(codec: &str) -> String {
    if codec == "sharding_indexed" {
        return "the array is sharded, but its codec is zarrs' own `sharding_indexed`: open the array after `register`, and do not build it with `ArrayBuilder::subchunk_shape`".to_string();
    }
    format!(
        "the array is not sharded: its array-to-bytes codec is `{codec}`, and zarrs_cuda encodes arrays of `sharding_indexed`"
    )
}
