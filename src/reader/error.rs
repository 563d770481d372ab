//! Errors of a reader.

use std::error::Error;

use zarrs::array::{ArrayError, DataType};
use zarrs_codec::CodecError;
use zarrs_storage::{StorageError, StoreKey};

/// An error of an [`ArrayReader`](super::ArrayReader). The output may have been written in part.
///
/// The message of an error includes the messages of its causes. So `source` returns the first cause whose
/// message is not included, or `None`.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # use zarrs::storage::WritableStorageTraits;
/// use zarrs_cuda::reader::{ArrayReader, ReaderError};
///
/// # store.set(&array.chunk_key(&[0, 0]), vec![0; 10].into())?;
/// let reader = ArrayReader::builder(&array).build()?;
/// match reader.read::<u16>(&[0..8, 0..8]) {
///     Ok(elements) => println!("{} elements", elements.len()),
///     // Other shards can still be read, and this one perhaps with fill values.
///     Err(ReaderError::Damaged(damage)) => println!("restore {}: {damage}", damage.key),
///     Err(error) => println!("try again: {error}"),
/// }
/// # assert!(matches!(reader.read::<u16>(&[0..8, 0..8]), Err(ReaderError::Damaged(_))));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// A box has a number of axes other than the array, or leaves the array.
    #[error("{}", out_of_bounds(*number, start, extents, shape))]
    OutOfBounds {
        /// The number of the box, counted from 0, in a call for several boxes.
        number: Option<usize>,
        /// The origin of the box.
        start: Vec<u64>,
        /// The shape of the box.
        extents: Vec<u64>,
        /// The shape of the array.
        shape: Vec<u64>,
    },
    /// The output does not fit the elements to read.
    #[error("{reason}")]
    Output {
        /// The reason, with the numbers of bytes or the strides.
        reason: String,
    },
    /// The Rust type of the output does not fit the array's data type.
    #[error(
        "cannot read elements of {data_type} as `{element}`, which takes {size} bytes: use the type that zarrs has for this data type, or `read_bytes_into`"
    )]
    Element {
        /// The array's data type.
        data_type: DataType,
        /// The Rust type that was asked for.
        element: &'static str,
        /// The size of the Rust type, in bytes.
        size: usize,
    },
    /// There is not enough memory for the call.
    #[error("out of memory: {bytes} bytes for {what}")]
    Memory {
        /// The purpose of the memory that could not be allocated.
        what: &'static str,
        /// The number of bytes that could not be allocated.
        bytes: usize,
    },
    /// The array cannot be read through this reader.
    #[error("cannot read from the array: {reason}")]
    Unsupported {
        /// The reason, and advice.
        reason: String,
    },
    /// Nothing was read into the memory of a device: no device was asked for, or another one than the call names.
    #[error("cannot read into the memory of a device: {reason}")]
    DeviceNotAsked {
        /// The reason, with the devices that were asked for, or advice.
        reason: String,
    },
    /// Nothing was read: places are no memory of the device, or a stream of the caller is being captured into a graph.
    #[error("cannot read into the memory of a device: {reason}")]
    DevicePlace {
        /// The reason, with the address and the number of bytes, or advice.
        reason: String,
    },
    /// A device that was asked for cannot be used, or has too little memory.
    #[error("cannot read into the memory of a device: {reason}")]
    DeviceUnusable {
        /// The reason, and advice.
        reason: String,
    },
    /// A device has failed, or did not finish in time.
    #[error("cannot read into the memory of a device: {reason}")]
    Device {
        /// The reason, and advice.
        reason: String,
        /// Whether the device may still write the places that were given to it: see
        /// [`device_may_write`](Self::device_may_write).
        may_write: bool,
    },
    /// A store failed.
    #[error("cannot read {key}: {error}")]
    Store {
        /// The key of the shard.
        key: StoreKey,
        /// The store's error.
        error: StorageError,
    },
    /// A shard was not decoded, but not because of its bytes, which may be right.
    #[error("cannot decode the shard {key}, whose bytes may be right: {error}")]
    Undecided {
        /// The key of the shard.
        key: StoreKey,
        /// The reason why the shard was not decoded.
        error: CodecError,
    },
    /// A shard, or a subchunk of it, cannot be decoded.
    #[error("cannot decode {}", .0)]
    Damaged(Damage),
    /// A shard was replaced during each attempt to read it.
    #[error(
        "the shard {key} was replaced each of the {attempts} times that it was read: read it again when nothing writes it"
    )]
    Changing {
        /// The key of the shard.
        key: StoreKey,
        /// The number of attempts to read the shard.
        attempts: usize,
    },
    /// zarrs, which reads the arrays that this crate cannot, returned an error.
    #[error("zarrs cannot read the box: {0}")]
    Zarrs(ArrayError),
}

impl ReaderError {
    /// Returns whether a device may still write the places that were given to it: elements were on their way there when
    /// the read failed, and were not there in time. The application must not use or free the places before the process
    /// ends.
    #[must_use]
    pub fn device_may_write(&self) -> bool {
        matches!(self, Self::Device { may_write, .. } if *may_write)
    }
}

impl From<ArrayError> for ReaderError {
    fn from(error: ArrayError) -> Self {
        Self::Zarrs(error)
    }
}

fn out_of_bounds(number: Option<usize>, start: &[u64], extents: &[u64], shape: &[u64]) -> String {
    let at = match number {
        Some(number) => format!("origin {number} (counted from 0), {start:?}"),
        None => format!("{start:?}"),
    };
    let axes = shape.len();
    if start.len() != axes || extents.len() != axes {
        return format!(
            "the box of shape {extents:?} at {at} needs one number for each of the {axes} axes of the array, whose shape is {shape:?}"
        );
    }
    format!(
        "the box of shape {extents:?} at {at} is not inside the array, whose shape is {shape:?}"
    )
}

/// A shard, or a subchunk of it, that cannot be decoded.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # use zarrs::storage::WritableStorageTraits;
/// # store.set(&array.chunk_key(&[0, 0]), vec![0; 10].into())?;
/// # let reader = zarrs_cuda::reader::ArrayReader::builder(&array).with_damaged_as_fill_value(true).build()?;
/// # let mut elements = vec![0_u16; 64 * 64];
/// let report = reader.read_into(&array.subset_all(), &mut elements)?;
/// for damage in &report.damaged {
///     match damage.subchunk {
///         Some(number) => println!("subchunk {number} of {}: {}", damage.key, damage.source),
///         None => println!("nothing of {} can be found: {}", damage.key, damage.source),
///     }
/// }
/// # assert_eq!(report.damaged[0].subchunk, None);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Damage {
    /// The key of the shard.
    pub key: StoreKey,
    /// The number of the subchunk, in C order; `None` if the index of the shard is damaged or missing,
    /// so that none of its subchunks can be found.
    pub subchunk: Option<usize>,
    /// The reason why the shard or the subchunk cannot be decoded.
    pub source: Box<dyn Error + Send + Sync>,
}

impl Damage {
    pub(super) fn new(
        key: StoreKey,
        subchunk: Option<usize>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self {
            key,
            subchunk,
            source: source.into(),
        }
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            key,
            subchunk,
            source,
        } = self;
        match subchunk {
            Some(number) => write!(f, "subchunk {number} of the shard {key}: {source}"),
            None => write!(f, "the index of the shard {key}: {source}"),
        }
    }
}

impl Error for Damage {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The message of this error includes the message of `source`, so the next cause is returned.
        self.source.source()
    }
}
