//! Errors of a writer of boxes.

use std::fmt;

use zarrs::array::{ArrayError, DataType};
use zarrs_codec::CodecError;
use zarrs_storage::{StorageError, StoreKey};

use super::report::BoxReport;
use crate::reader::ReaderError;

/// An error of a [`BoxWriter`](super::BoxWriter), and the shards of the call that are stored.
///
/// Each other shard of the call is old or new, so the call can be repeated.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::reader::Cancel;
/// use zarrs_cuda::writer::BoxWriter;
///
/// let cancel = Cancel::new();
/// let writer = BoxWriter::builder(&array).with_cancel(cancel.clone()).build()?;
/// cancel.cancel(); // as from another thread
/// if let Err(error) = writer.write(&[0..64, 0..64], &[7_u16; 64 * 64]) {
///     println!("{}; {} shards are written", error.kind, error.report.stored.len());
///     // The call may be repeated: it writes all shards again.
/// }
/// # assert!(writer.write(&[0..64, 0..64], &[7_u16; 64 * 64]).is_err());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct BoxWriterError {
    /// The reason.
    pub kind: Box<BoxWriterErrorKind>,
    /// The shards that the call has stored or erased before the error.
    pub report: Box<BoxReport>,
}

impl BoxWriterError {
    pub(super) fn new(kind: BoxWriterErrorKind, report: BoxReport) -> Self {
        Self {
            kind: Box::new(kind),
            report: Box::new(report),
        }
    }
}

impl From<BoxWriterErrorKind> for BoxWriterError {
    fn from(kind: BoxWriterErrorKind) -> Self {
        Self::new(kind, BoxReport::default())
    }
}

impl fmt::Display for BoxWriterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BoxReport { wanted, .. } = *self.report;
        write!(f, "{}", self.kind)?;
        if wanted == 0 {
            return Ok(());
        }
        let done = self.report.done();
        let advice = match &*self.kind {
            BoxWriterErrorKind::Store { .. } | BoxWriterErrorKind::Cancelled => ": repeat the call",
            _ => "",
        };
        write!(
            f,
            "; {done} of {wanted} shards of the call are written, and each other one is old or new{advice}"
        )
    }
}

impl std::error::Error for BoxWriterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The message of this error includes the message of its kind.
        std::error::Error::source(&*self.kind)
    }
}

/// The reason of a [`BoxWriterError`].
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::writer::{BoxWriter, BoxWriterErrorKind};
///
/// let writer = BoxWriter::builder(&array).build()?;
/// // Two boxes of 2 × 2 elements, which have one element in common.
/// let (origins, elements) = ([[0, 0], [1, 1]], [7_u16; 8]);
/// match writer.write_boxes(&origins, &[2, 2], &elements).map_err(|error| *error.kind) {
///     Ok(report) => println!("{report}"),
///     // The last box is to win: writes one after the other.
///     Err(BoxWriterErrorKind::Overlap { .. }) => {
///         for (&[row, column], elements) in origins.iter().zip(elements.chunks(4)) {
///             writer.write(&[row..row + 2, column..column + 2], elements)?;
///         }
///     }
///     Err(error) => return Err(error.into()),
/// }
/// # assert_eq!(array.retrieve_array_subset::<Vec<u16>>(&[2..3, 0..3])?, [0, 7, 7]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BoxWriterErrorKind {
    /// A box has a number of axes other than the array, or leaves the array.
    #[error("{error}{advice}")]
    OutOfBounds {
        /// The box, and the shape of the array.
        error: Box<ReaderError>,
        /// The advice, if the array could grow; otherwise empty.
        advice: &'static str,
    },
    /// Two boxes of one call have elements in common.
    #[error(
        "two boxes of one call overlap in the shard {key}: one begins at {one:?}, the other at {other:?} of the shard. Write them by two calls"
    )]
    Overlap {
        /// The key of the shard.
        key: StoreKey,
        /// The start of one box, in elements of the shard.
        one: Vec<usize>,
        /// The start of the other box, in elements of the shard.
        other: Vec<usize>,
    },
    /// The memory with the elements does not fit the boxes.
    #[error("{reason}")]
    Input {
        /// The reason, with the numbers of bytes or the strides.
        reason: String,
    },
    /// The Rust type of the elements does not fit the array's data type.
    #[error(
        "cannot write `{element}` to an array of {data_type}: use the type that zarrs has for this data type, or `write_bytes`"
    )]
    Element {
        /// The array's data type.
        data_type: DataType,
        /// The Rust type of the elements.
        element: &'static str,
    },
    /// The array cannot be written by this writer.
    #[error("cannot write boxes to the array: {reason}")]
    Unsupported {
        /// The reason, and advice.
        reason: String,
    },
    /// The options of the array ask for a device, and none is usable.
    #[error("cannot write boxes to the array: {error}")]
    Backend {
        /// The reason.
        error: Box<crate::Error>,
    },
    /// Subchunks are stored beside a shard, and would hide what is written to the shard.
    #[error(
        "subchunks are stored beside the shard {key}, {when} this call wrote the shard, and hide its elements: consolidate the array (`SparseShardStore::consolidate_all`, `zarrs-cuda consolidate`), or write with `ShardUpdate::Shared`"
    )]
    FramesPending {
        /// The key of the shard.
        key: StoreKey,
        /// `before` or `after`: whether the subchunks were found before or after the call wrote the shard.
        when: &'static str,
    },
    /// There is not enough memory for the call.
    #[error("out of memory: {bytes} bytes for {what}")]
    Memory {
        /// The purpose of the memory that could not be allocated.
        what: &'static str,
        /// The number of bytes that could not be allocated.
        bytes: usize,
    },
    /// A shard was not encoded, or the stored shard could not be changed.
    #[error("cannot {doing} the shard {key}: {error}")]
    Shard {
        /// The operation that failed, such as "encode".
        doing: &'static str,
        /// The key of the shard.
        key: StoreKey,
        /// The reason.
        error: Box<crate::Error>,
    },
    /// A store failed.
    #[error("cannot {doing} {key}: {error}")]
    Store {
        /// The operation that failed, such as "store".
        doing: &'static str,
        /// The key of the value.
        key: StoreKey,
        /// The store's error.
        error: StorageError,
    },
    /// zarrs returned an error.
    #[error("cannot write {key}: {error}")]
    Zarrs {
        /// The key of the shard.
        key: StoreKey,
        /// The error of zarrs.
        error: Box<ArrayError>,
    },
    /// The application cancelled the call.
    #[error("cancelled")]
    Cancelled,
}

impl BoxWriterErrorKind {
    pub(super) fn store(doing: &'static str, key: &StoreKey) -> impl Fn(StorageError) -> Self {
        move |error| Self::Store {
            doing,
            key: key.clone(),
            error,
        }
    }

    pub(super) fn codec(doing: &'static str, key: &StoreKey) -> impl Fn(CodecError) -> Self {
        move |error| Self::Shard {
            doing,
            key: key.clone(),
            error: Box::new(error.into()),
        }
    }

    pub(super) fn unsupported(reason: impl Into<String>) -> Self {
        Self::Unsupported {
            reason: reason.into(),
        }
    }
}

impl From<ReaderError> for BoxWriterErrorKind {
    fn from(error: ReaderError) -> Self {
        match error {
            ReaderError::Unsupported { reason } => Self::Unsupported { reason },
            ReaderError::Memory { what, bytes } => Self::Memory { what, bytes },
            ReaderError::OutOfBounds { .. } => Self::OutOfBounds {
                error: Box::new(error),
                advice: "",
            },
            error => Self::Unsupported {
                reason: error.to_string(),
            },
        }
    }
}
