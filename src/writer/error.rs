//! Errors of a writer.

use std::error::Error;
use std::sync::Arc;

use zarrs::array::ElementError;
use zarrs::node::NodePath;
use zarrs_codec::CodecError;
use zarrs_storage::{StorageError, StoreKey};

use crate::shard::error::codec_error;
use zarrs_cuda_engine::contract::EngineError;

/// An error of an [`ArrayWriter`](super::ArrayWriter).
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![0, 64], vec![16, 64], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![4, 16]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/frames")?;
/// # array.store_metadata()?;
/// use zarrs_cuda::writer::{ArrayWriter, WriterError};
///
/// let mut writer = ArrayWriter::builder(&array).build()?;
/// writer.append(&[7_u16; 64 + 36])?; // a slice, and a part of the next one
/// let report = match writer.finish() {
///     // The instrument stopped in the middle of a slice: store what is complete.
///     Err(WriterError::IncompleteSlice { slice, got, expected }) => {
///         println!("slice {slice} has only {got} of {expected} bytes");
///         writer.discard_partial_slice();
///         writer.finish()?
///     }
///     result => result?,
/// };
/// assert_eq!(report.finished_slices, 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum WriterError {
    /// The array cannot be written as a stream of slices, or a call does not fit the writer.
    #[error("the array cannot be written as a stream of slices: {reason}")]
    Unsupported {
        /// The reason, and what the user can do.
        reason: String,
    },
    /// The stream does not start at the border of a shard.
    #[error(
        "a writer starts at the border of a shard: slice {start} is not a multiple of {shard_slices}, the extent of a shard along the first axis. To replace what the array has from slice {before} on, start there; to go on behind its last slice, `with_start(Resume)`"
    )]
    Start {
        /// The first slice that was asked for.
        start: u64,
        /// The number of slices in a shard.
        shard_slices: u64,
        /// The last border of a shard before `start`.
        before: u64,
    },
    /// The smallest buffers do not fit the budget.
    #[error(
        "the smallest buffers for this stream take {needed} bytes of {memory}, and the budget is {budget}: {advice}"
    )]
    Memory {
        /// The name of the kind of memory that is short, such as "host memory".
        memory: &'static str,
        /// The number of bytes that the smallest buffers take.
        needed: usize,
        /// The budget of the [`Options`](crate::Options), in bytes.
        budget: usize,
        /// The changes that would make the buffers fit.
        advice: String,
    },
    /// The array, its codec or its backend cannot be used.
    #[error(transparent)]
    Array(#[from] crate::Error),
    /// The appended elements are not of the array's data type.
    #[error("cannot append these elements: {0}")]
    Element(#[from] ElementError),
    /// The last slice is not complete.
    #[error(
        "slice {slice} has {got} of its {expected} bytes: append the rest, or call `discard_partial_slice`, and finish again"
    )]
    IncompleteSlice {
        /// The index of the slice along the first axis.
        slice: u64,
        /// The number of bytes of the slice that were appended.
        got: usize,
        /// The number of bytes of a whole slice.
        expected: usize,
    },
    /// Some slices could not be encoded.
    #[error(
        "cannot encode slices {first} to {last}: {source}. Slices below {finished_slices} are stored; `flush` and `finish` try the others again"
    )]
    Encode {
        /// The first of the slices that could not be encoded.
        first: u64,
        /// The last of the slices that could not be encoded.
        last: u64,
        /// All slices below this one are stored.
        finished_slices: u64,
        /// The engine's error.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// A store failed. The writer still holds everything that was appended.
    #[error(
        "cannot {doing} {key}: {source}. Slices below {finished_slices} are stored; `flush` and `finish` try the others again"
    )]
    Store {
        /// The operation, such as "store".
        doing: &'static str,
        /// The key of the value or temporary on which the operation failed.
        key: StoreKey,
        /// All slices below this one are stored.
        finished_slices: u64,
        /// The store's error.
        source: Arc<StorageError>,
    },
    /// The writer cannot go on, or belongs to the process that this one was forked from.
    #[error(
        "the writer cannot go on: {reason}. Slices below {finished_slices} are stored, the others have to be appended again, to a new writer"
    )]
    Broken {
        /// The reason why the writer cannot go on.
        reason: String,
        /// All slices below this one are stored.
        finished_slices: u64,
    },
    /// A device failed while it read appended elements.
    #[error("a device failed: {source}")]
    Device {
        /// The engine's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The levels of an image cannot be made as they were asked for.
    #[error("no pyramid of {path}: {reason}")]
    Pyramid {
        /// The path of level 0.
        path: String,
        /// The reason, and what the user can do.
        reason: String,
    },
    /// Stored slices could not be read: those of the last shard of an array, or those of a level from which
    /// the level below is made.
    #[error("cannot read slices {first} to {last} of {path}: {source}")]
    Read {
        /// The path of the array or level.
        path: String,
        /// The first of the slices that could not be read.
        first: u64,
        /// The last of the slices that could not be read.
        last: u64,
        /// The reader's error.
        source: Box<crate::reader::ReaderError>,
    },
    /// An error of a level of a [`MultiscaleWriter`](super::MultiscaleWriter) below level 0.
    #[error("level {level}: {source}")]
    Level {
        /// The number of the level.
        level: usize,
        /// The error of the writer of this level.
        source: Box<WriterError>,
    },
    /// The application has cancelled the work.
    #[error("cancelled: complete shards stay, and another call goes on behind them")]
    Cancelled,
    /// The writer was finished, and takes nothing more.
    #[error("the writer was finished at slice {end}, and takes nothing more")]
    Finished {
        /// The first slice behind the finished stream.
        end: u64,
    },
}

impl WriterError {
    /// Returns whether a device may still read the memory that was given to it: the device failed, or did not
    /// finish in time. The application must not write, reuse or free this memory before the process ends.
    #[must_use]
    pub fn device_may_read(&self) -> bool {
        match self {
            Self::Device { .. } => true,
            Self::Level { source, .. } => source.device_may_read(),
            _ => false,
        }
    }

    /// Returns the error of a store that cannot be written to, or failed, before the array at `path` is
    /// written.
    pub(crate) fn refused(path: &NodePath, error: StorageError) -> Self {
        match error {
            StorageError::Unsupported(reason) => Self::Unsupported { reason },
            error => Self::of_store("prepare the store of", path, error),
        }
    }

    /// Returns the error of a lease of the array at `path` that cannot be taken.
    pub(crate) fn no_lease(path: &NodePath, error: StorageError) -> Self {
        Self::of_store("begin to write", path, error)
    }

    /// Returns the error of a store that failed while the writer was `doing` something to the metadata at
    /// `path`.
    pub(crate) fn of_store(doing: &'static str, path: &NodePath, source: StorageError) -> Self {
        Self::Array(crate::error::Error::Storage {
            doing,
            key: zarrs::node::meta_key_v3(path),
            source,
        })
    }

    /// Returns the error of a thread for `task` that cannot be started.
    pub(crate) fn no_thread(task: &str, error: &std::io::Error) -> Self {
        let reason = format!("no thread to {task}: {error}");
        Self::Array(CodecError::from(std::io::Error::new(error.kind(), reason)).into())
    }

    /// Returns the error of an engine that cannot be used.
    pub(crate) fn of_engine(error: EngineError) -> Self {
        Self::Array(crate::error::Error::Codec(codec_error(error)))
    }
}

/// Returns the error of an array that cannot be written as a stream, for this `reason`.
pub(crate) fn unsupported(reason: impl Into<String>) -> WriterError {
    WriterError::Unsupported {
        reason: reason.into(),
    }
}
