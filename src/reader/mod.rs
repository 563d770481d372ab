//! Reads boxes of sharded arrays into memory of the caller.
//!
//! An [`ArrayReader`] decodes subchunks directly into the output, from several shards at once:
//!
//! ```
//! # use std::sync::Arc;
//! # use zarrs::array::{ArrayBuilder, ArraySubset, data_type};
//! # use zarrs_cuda::CudaShardingCodecBuilder;
//! use zarrs_cuda::reader::ArrayReader;
//!
//! # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
//! # let codec = CudaShardingCodecBuilder::new(vec![8.try_into()?, 8.try_into()?], &data_type::uint16());
//! # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0u16);
//! # builder.array_to_bytes_codec(codec.build_arc()?);
//! # let array = builder.build(store, "/volume")?;
//! # array.store_array_subset(&array.subset_all(), (0..64 * 64).collect::<Vec<u16>>())?;
//! let reader = ArrayReader::builder(&array).build()?;
//! let elements: Vec<u16> = reader.read(&[10..20, 30..40])?;
//! assert_eq!(elements[..3], [670, 671, 672]);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! [`SparseShardStore::reader`](crate::storage::SparseShardStore::reader) is for arrays that several
//! processes write.
//!
//! The [guide](crate::guide::read) shows how to use a reader for files, damaged shards, arrays that grow and
//! asynchronous stores. It also says which changes of shards a reader cannot notice.

#[cfg(feature = "async")]
mod awaited;
mod blocking;
pub(crate) mod builder;
#[allow(unsafe_code)]
mod by_zarrs;
mod cache;
#[allow(unsafe_code)]
mod device;
#[allow(unsafe_code)]
mod device_places;
mod error;
mod metrics;
#[cfg(feature = "ndarray")]
#[allow(unsafe_code)]
mod ndarray;
pub(crate) mod newer_subchunks;
#[allow(unsafe_code)]
mod output;
pub(crate) mod request;
#[allow(unsafe_code)]
mod shard;
mod slices;
mod source;
pub(crate) mod threads;

#[cfg(all(test, target_os = "linux"))]
mod forked;
#[cfg(test)]
mod scheduled;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use zarrs::array::{Array, ArraySubset, ArraySubsetTraits, Element};
use zarrs_codec::CodecOptions;
use zarrs_storage::StoreKey;

pub use builder::ArrayReaderBuilder;
use device::DeviceSink;
pub use device::DeviceTensor;
pub use device_places::DevicePlace;
pub use error::{Damage, ReaderError};
pub use metrics::ReaderMetrics;
pub use output::Output;
pub use slices::{Cancel, Slices, Until};

use crate::codec::CudaShardingCodec;
use crate::store::files::Files;
use cache::Caches;
use metrics::Counters;
use newer_subchunks::ListsNewerSubchunks;
use output::ArrayInMemory;
use request::{WantedBox, WantedShard};
use shard::{ReadCall, ShardToRead};
use source::ShardSource;
use threads::{Each, Task};
use zarrs_cuda_engine::memory::allocate;
use zarrs_cuda_engine::process::per_process::PerProcess;

/// The settings of a reader.
#[derive(Clone, Debug)]
struct Settings {
    codec_options: CodecOptions,
    /// The largest number of bytes of indices to keep.
    index_cache: usize,
    /// The largest number of bytes of decoded subchunks to keep.
    subchunk_cache: usize,
    /// The largest number of bytes of encoded subchunks in memory during one call.
    memory: usize,
    /// The largest number of requests that one call makes at once.
    requests: NonZeroUsize,
    /// The largest number of threads of one call; `None` for the default.
    threads: Option<NonZeroUsize>,
    /// The largest gap, in bytes, between subchunks of a shard that are read as one range; `None` to choose by
    /// the kind of the store.
    gap: Option<u64>,
    /// Whether damaged subchunks and shards become fill values.
    fill_damaged: bool,
    huge_pages: bool,
    /// The number of the CUDA device into whose memory elements are read; `None` for the first usable one.
    device: Option<usize>,
}

impl Settings {
    /// Returns the largest number of threads that decode for one call.
    fn threads(&self) -> NonZeroUsize {
        let cores = threads::cores();
        self.threads.map_or(cores, |threads| threads.min(cores))
    }

    /// Returns the largest number of requests that one call makes at once to a store that blocks. Each
    /// request takes a thread.
    fn blocking_requests(&self) -> NonZeroUsize {
        let threads = self.threads.unwrap_or(NonZeroUsize::MAX);
        self.requests.min(threads)
    }
}

/// The decoder of the elements of an array.
#[derive(Clone, Debug)]
pub(crate) enum DecodedBy {
    /// This crate decodes the shards.
    ThisCrate(Arc<CudaShardingCodec>),
    /// zarrs decodes the elements, for the given reason.
    Zarrs(String),
}

/// Reads boxes of an array.
///
/// Any number of threads may read at the same time. All readers share threads, which start when there is
/// work. As many of them decode at once as there are cores. A reader works in a forked child process, too. A
/// clone shares the caches.
///
/// A reader keeps the indices of shards. With the last subchunks of a shard it reads the index again and
/// compares it: if the index changed, the shard is read again. If a shard is replaced or updated during a
/// read and keeps its index, some elements may come from before the change and some from after it. Without a
/// compressor the index is often the same; with a compressor, only if all subchunks are compressed to as many
/// bytes as before.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.store_array_subset(&array.subset_all(), (0..64 * 64).collect::<Vec<u16>>())?;
/// use zarrs_cuda::reader::ArrayReader;
///
/// // One reader for each array, for all threads.
/// let reader = ArrayReader::builder(&array).build()?;
/// println!("{}", reader.explain());
/// let elements: Vec<u16> = reader.read(&[30..34, 30..34])?;
/// assert_eq!(elements[..2], [30 * 64 + 30, 30 * 64 + 31]);
///
/// // Two boxes of 4 × 4 elements, into memory that is used again.
/// let mut boxes = vec![0_u16; 2 * 4 * 4];
/// reader.read_boxes(&[[0, 0], [30, 30]], &[4, 4], &mut boxes)?;
/// assert_eq!(boxes[16..], elements);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct ArrayReader<TStorage: ?Sized>(Arc<Inner<TStorage>>);

struct Inner<TStorage: ?Sized> {
    array: Array<TStorage>,
    settings: Settings,
    decoded_by: DecodedBy,
    files: Option<Files>,
    /// Lists the subchunks that are newer than their shard, in an array that may have them.
    newer_subchunks: Option<Arc<dyn ListsNewerSubchunks>>,
    kept: Arc<KeptByReader>,
}

/// The indices, subchunks and counts that a reader keeps from one call to the next.
#[derive(Debug)]
struct KeptByReader {
    caches: PerProcess<Caches>,
    counters: Counters,
}

impl<TStorage: ?Sized> Clone for ArrayReader<TStorage> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<TStorage: ?Sized> fmt::Debug for ArrayReader<TStorage> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayReader")
            .field("array", &self.0.array.path())
            .field("settings", &self.0.settings)
            .field("decoded_by", &self.0.decoded_by)
            .field("files", &self.0.files)
            .finish_non_exhaustive()
    }
}

/// The report of a call that read elements into an output.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # use zarrs::storage::WritableStorageTraits;
/// use zarrs_cuda::reader::ArrayReader;
///
/// array.store_chunk(&[0, 0], vec![7_u16; 32 * 32])?;
/// # store.set(&array.chunk_key(&[0, 1]), vec![0; 10].into())?; // a damaged shard
/// let reader = ArrayReader::builder(&array).with_damaged_as_fill_value(true).build()?;
/// let mut elements = vec![0_u16; 64 * 64];
/// let report = reader.read_into(&array.subset_all(), &mut elements)?;
/// for damage in &report.damaged {
///     println!("fill values in place of {damage}");
/// }
/// assert_eq!(report.absent.len(), 2); // never stored, or lost
/// # assert_eq!(report.damaged.len(), 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ReadReport {
    /// The subchunks that could not be decoded, and have the fill value in the output. A shard whose index
    /// cannot be decoded is one entry, whose [`subchunk`](Damage::subchunk) is `None`.
    pub damaged: Vec<Damage>,
    /// The shards that the store does not have. Their elements are fill values in the output. A shard is not
    /// listed if newer subchunks are stored beside it. No shard is listed if zarrs reads the array.
    pub absent: Vec<StoreKey>,
}

impl ReadReport {
    /// Logs the damaged subchunks, for calls that do not return the report.
    fn log(&self) {
        for damage in &self.damaged {
            tracing::warn!(%damage, "damaged data became fill values");
        }
    }
}

impl<TStorage: ?Sized> ArrayReader<TStorage> {
    /// Returns a builder of a reader of `array`.
    pub fn builder(array: &Array<TStorage>) -> ArrayReaderBuilder<TStorage> {
        ArrayReaderBuilder::new(array)
    }

    /// Returns the array.
    #[must_use]
    pub fn array(&self) -> &Array<TStorage> {
        &self.0.array
    }

    /// Returns the counts of the work that this reader and its clones have done. They stay 0 if [zarrs reads
    /// the array](Self::is_by_zarrs).
    #[must_use]
    pub fn metrics(&self) -> ReaderMetrics {
        self.0.kept.counters.now()
    }

    /// Describes how the reader reads, and why. The text is for people, and may change in any release.
    #[must_use]
    pub fn explain(&self) -> String {
        let Inner {
            settings,
            decoded_by,
            files,
            newer_subchunks,
            ..
        } = &*self.0;
        // The kind of the store is known by the name of its type only.
        let is_filesystem = std::any::type_name::<TStorage>().ends_with("::FilesystemStore");
        match decoded_by {
            DecodedBy::Zarrs(why) => format!("zarrs reads this array, box after box: {why}"),
            DecodedBy::ThisCrate(codec) => format!(
                "subchunks are decoded to their place by {} threads; {}; {}; up to {} bytes of indices and {} bytes of decoded subchunks are kept{}{}{}",
                settings.threads(),
                match files {
                    Some(_) => "shards are read as files".to_string(),
                    None => format!(
                        "up to {} requests to the store at once{}",
                        settings.requests,
                        if is_filesystem && newer_subchunks.is_none() {
                            ", which is a filesystem: shards can be read faster with `on_filesystem` (feature `filesystem`)"
                        } else {
                            ""
                        },
                    ),
                },
                match settings.gap {
                    Some(gap) =>
                        format!("subchunks and rows up to {gap} bytes apart are one range"),
                    None => "near subchunks and rows are one range where this takes less time"
                        .to_string(),
                },
                settings.index_cache,
                settings.subchunk_cache,
                match newer_subchunks {
                    Some(_) =>
                        "; each call lists the frame of a shard first, and takes newer subchunks from there",
                    None => "",
                },
                allocate::why_no_huge_pages(settings.huge_pages).map_or(String::new(), |why| {
                    format!("; new memory is not on huge pages, because {why}")
                }),
                self.explain_device(codec)
                    .map_or(String::new(), |reads| format!("; {reads}")),
            ),
        }
    }

    /// Returns whether zarrs reads this array, because this crate cannot read it faster.
    /// [`explain`](Self::explain) gives the reason.
    #[must_use]
    pub fn is_by_zarrs(&self) -> bool {
        matches!(self.0.decoded_by, DecodedBy::Zarrs(_))
    }

    /// Checks that the store of the newer subchunks, if there are any, blocks exactly if `blocks` is true.
    fn check_newer_subchunks(&self, blocks: bool) -> Result<(), ReaderError> {
        match &self.0.newer_subchunks {
            Some(newer_subchunks) if newer_subchunks.blocks() != blocks => {
                Err(ReaderError::Unsupported {
                    reason: if blocks {
                        "its frames are read by asynchronous calls: use those, or `SparseShardStore::reader`".to_string()
                    } else {
                        "its frames are read by blocking calls: use those, or `SparseShardStore::async_reader`".to_string()
                    },
                })
            }
            _ => Ok(()),
        }
    }

    fn check_type<T: Element>(&self) -> Result<(), ReaderError> {
        let data_type = self.array().data_type();
        T::validate_data_type(data_type).map_err(|_| ReaderError::Element {
            data_type: data_type.clone(),
            element: std::any::type_name::<T>(),
            size: size_of::<T>(),
        })
    }

    fn element_size(&self) -> Result<usize, ReaderError> {
        let data_type = self.array().data_type();
        data_type
            .fixed_size()
            .ok_or_else(|| ReaderError::Unsupported {
                reason: format!("elements of {data_type} have no fixed size: use zarrs' own calls"),
            })
    }

    /// Allocates memory for the elements of `subset`.
    fn new_elements<T: Element + bytemuck::Pod>(
        &self,
        subset: &dyn ArraySubsetTraits,
    ) -> Result<Vec<T>, ReaderError> {
        let subset = subset.to_array_subset();
        request::check_inside(self.array(), None, subset.start(), subset.shape())?;
        self.check_type::<T>()?;
        self.zeros(&subset, 1)
    }

    /// Allocates `each` zeros for each element of `subset`.
    fn zeros<T: bytemuck::Pod>(
        &self,
        subset: &ArraySubset,
        each: usize,
    ) -> Result<Vec<T>, ReaderError> {
        let extents = extents(subset.shape())?;
        let len = extents
            .iter()
            .try_fold(each, |len, extent| len.checked_mul(*extent));
        let zeros = len.and_then(|len| allocate::zeros(len, self.0.settings.huge_pages));
        zeros.ok_or_else(|| {
            let each = each * size_of::<T>();
            let multiply = |len: usize, extent: &usize| len.saturating_mul(*extent);
            no_memory_for_box(extents.iter().fold(each, multiply))
        })
    }

    /// Returns the box `subset`, and the place for its elements in `output`.
    fn one_box<'o>(
        &self,
        subset: &dyn ArraySubsetTraits,
        output: &'o mut Output<'_>,
    ) -> Result<([WantedBox; 1], ArrayInMemory<'o>), ReaderError> {
        let subset = subset.to_array_subset();
        request::check_inside(self.array(), None, subset.start(), subset.shape())?;
        let place = output.place(&extents(subset.shape())?, self.element_size()?)?;
        Ok(([WantedBox { subset, offset: 0 }], place))
    }

    /// Returns the boxes of `shape` at `origins`, and the place for their elements in `output`. The output
    /// has one axis more than the array, which counts the boxes.
    fn several_boxes<'o>(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
        output: &'o mut Output<'_>,
    ) -> Result<(Vec<WantedBox>, ArrayInMemory<'o>), ReaderError> {
        let subsets = self.subsets(origins, shape)?;
        let mut shape_of_all = vec![origins.len()];
        shape_of_all.extend(extents(shape)?);
        let mut place = output.place(&shape_of_all, self.element_size()?)?;
        let step = place.strides.remove(0);
        Ok((WantedBox::in_steps(subsets, step), place))
    }

    /// Returns the boxes of `shape` at `origins`, which are inside the array.
    fn subsets(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
    ) -> Result<Vec<ArraySubset>, ReaderError> {
        let each = origins.iter().enumerate();
        let subsets = each.map(|(number, origin)| {
            let origin = origin.as_ref();
            request::check_inside(self.array(), Some(number), origin, shape)?;
            let ranges = std::iter::zip(origin, shape);
            let ranges = ranges.map(|(start, extent)| *start..start + extent);
            Ok(ArraySubset::from(ranges))
        });
        subsets.collect()
    }
}

impl<TStorage: ?Sized + Send + Sync> ArrayReader<TStorage> {
    /// Reads the shards of `boxes` from `source`. `each` makes the requests, at most `requests` of them at
    /// once.
    async fn read_shards<S: ShardSource>(
        &self,
        codec: &CudaShardingCodec,
        boxes: &[WantedBox],
        (source, requests, each): (&S, NonZeroUsize, Each<ReaderError>),
        place: OutputPlace<'_>,
    ) -> Result<ReadReport, ReaderError> {
        let array = self.array();
        let shards = request::shards(array, boxes, place.strides())?;
        let at_once = match place {
            OutputPlace::Host(_) => requests,
            // The subchunks of a shard are held until the shard was read.
            OutputPlace::Device(_) => {
                let most = shards.iter().map(WantedShard::elements).max().unwrap_or(0);
                let most = most.saturating_mul(self.element_size()?).max(1);
                let room = NonZeroUsize::new(self.0.settings.memory / most);
                room.unwrap_or(NonZeroUsize::MIN).min(requests)
            }
        };
        let (damaged, absent) = (Mutex::default(), Mutex::default());
        let call = ReadCall {
            source,
            newer_subchunks: self.0.newer_subchunks.as_deref(),
            settings: &self.0.settings,
            caches: self.0.kept.caches.get(),
            counters: &self.0.kept.counters,
            place,
            damaged: &damaged,
            absent: &absent,
            each,
            requests,
            requests_of_shard: requests_of_shard(requests, shards.len().min(at_once.get())),
        };
        // If a box is not empty, the output has room for it, so its number of elements is a `usize`.
        let wanted = boxes.iter().filter(|wanted| !wanted.subset.is_empty());
        let elements = wanted.map(|wanted| wanted.subset.num_elements_usize());
        let bytes = elements.sum::<usize>() * self.element_size()?;
        metrics::add(&call.counters.bytes_wanted, bytes);
        let (call, shards) = (&call, &*shards);
        let read = |number: usize| -> Task<'_, ReaderError> {
            Box::pin(async move {
                let wanted: &WantedShard = &shards[number];
                let shape = array.chunk_shape(&wanted.indices)?;
                let sharding = codec
                    .sharding(&shape, array.data_type(), array.fill_value())
                    .and_then(|sharding| sharding.codec.check_trusted().map(|()| sharding));
                let shard = ShardToRead {
                    key: array.chunk_key(&wanted.indices),
                    sharding: sharding.map_err(|error| ReaderError::Unsupported {
                        reason: error.to_string(),
                    })?,
                    wanted,
                };
                call.read(&shard).await
            })
        };
        each(shards.len(), at_once, &read).await?;
        Ok(ReadReport {
            damaged: damaged.into_inner().unwrap_or_else(PoisonError::into_inner),
            absent: absent.into_inner().unwrap_or_else(PoisonError::into_inner),
        })
    }
}

/// The place of the elements of a call.
#[derive(Clone, Copy)]
enum OutputPlace<'a> {
    Host(&'a ArrayInMemory<'a>),
    Device(&'a DeviceSink<'a>),
}

impl OutputPlace<'_> {
    /// Returns the distance from one element to the next along each axis of a box, in bytes.
    fn strides(&self) -> &[usize] {
        match self {
            Self::Host(place) => &place.strides,
            Self::Device(sink) => sink.strides,
        }
    }
}

/// Returns the number of requests that each of `shards` shards may make at once, if all of them together make
/// `at_once`.
fn requests_of_shard(at_once: NonZeroUsize, shards: usize) -> NonZeroUsize {
    let each = at_once.get() / shards.clamp(1, at_once.get());
    NonZeroUsize::new(each).unwrap_or(NonZeroUsize::MIN)
}

/// Converts `shape` to the integers of this machine.
fn extents(shape: &[u64]) -> Result<Vec<usize>, ReaderError> {
    let extents = shape.iter().map(|&extent| usize::try_from(extent));
    extents
        .collect::<Result<_, _>>()
        .map_err(|_| no_memory_for_box(usize::MAX))
}

fn no_memory_for_box(bytes: usize) -> ReaderError {
    ReaderError::Memory {
        what: "the elements of a box",
        bytes,
    }
}
