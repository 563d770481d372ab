//! Writes boxes of sharded arrays from memory of the caller.

mod builder;
mod by_zarrs;
mod call;
#[cfg(feature = "dlpack")]
#[allow(unsafe_code)]
mod dlpack;
mod encoded;
mod error;
mod growth;
mod input;
#[cfg(feature = "ndarray")]
mod ndarray;
mod pool;
mod report;
mod request;
mod shared;
mod target;

#[cfg(feature = "async")]
mod awaited;
mod blocking;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use zarrs::array::{Array, ArraySubset, ArraySubsetTraits, Element};
use zarrs_codec::CodecOptions;

pub use builder::BoxWriterBuilder;
pub use error::{BoxWriterError, BoxWriterErrorKind};
pub use input::Input;
pub use report::BoxReport;

use error::BoxWriterErrorKind as Kind;
use growth::Growth;
use request::BoxesInMemory;
use shared::Shared;

use crate::reader::request::{WantedBox, check_inside};
use crate::reader::threads::cores;
use crate::reader::{Cancel, DecodedBy};
use crate::store::file_store::FileStore;
use crate::store::files::Files;
use crate::store::shard_locks::ShardLocks;

/// The way in which a [`BoxWriter`] changes a shard that a box covers in part. The
/// [guide](crate::guide::write) compares them.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::writer::{BoxWriter, ShardUpdate};
///
/// // Small boxes of large shards: writes the changed subchunks only.
/// let writer = BoxWriter::builder(&array).with_update(ShardUpdate::InPlace).build()?;
/// writer.write(&[0..32, 0..32], &[1_u16; 32 * 32])?;
/// writer.write(&[0..8, 0..8], &[2_u16; 8 * 8])?;
/// assert_eq!(array.retrieve_array_subset::<Vec<u16>>(&[7..9, 0..1])?, [2, 1]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardUpdate {
    /// The shard is read, its changed subchunks are encoded, and the whole shard is replaced at once. Other
    /// subchunks are copied as they are. A reader sees the old shard or the new one.
    #[default]
    Rewrite,
    /// The changed subchunks are written into the stored shard, as zarrs' partial encoder with this crate's codec
    /// does. The [`WriteStrategy`](crate::WriteStrategy) says what an interrupted update leaves. Small boxes of a
    /// call are one update of the shard; boxes of more than 65,536 elements together are updates of their own. The
    /// store must write parts of values.
    InPlace,
    /// The changed subchunks are stored beside the shard, as a
    /// [`SparseShardStore`](crate::storage::SparseShardStore) does, also if the box covers the shard. Several
    /// processes may write different subchunks of one shard, and readers of shards see the elements after a
    /// consolidation.
    Shared,
}

/// Writes boxes of an array.
///
/// Each shard of a call is written once. A shard that a box covers is encoded straight from the caller's memory,
/// and stored at once: renamed into its place if the values of the store are files, by one `set` elsewhere. A shard
/// that boxes cover in part is changed as [`ShardUpdate`] says. A shard of nothing but the fill value is erased.
///
/// ```
/// # use std::sync::Arc;
/// # use zarrs::array::{ArrayBuilder, data_type};
/// # use zarrs_cuda::CudaShardingCodecBuilder;
/// use zarrs_cuda::writer::{BoxWriter, Input};
///
/// # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let codec = CudaShardingCodecBuilder::new(vec![8.try_into()?, 8.try_into()?], &data_type::uint16());
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0u16);
/// # builder.array_to_bytes_codec(codec.build_arc()?);
/// # let array = builder.build(store, "/volume")?;
/// let writer = BoxWriter::builder(&array).build()?;
/// writer.write(&[0..64, 10..20], &[7_u16; 64 * 10])?;
///
/// // Every second row of an image of 20 rows and 64 columns.
/// let image = vec![9_u16; 20 * 64];
/// let rows = Input::strided(bytemuck::cast_slice(&image), &[2 * 64 * 2, 2]);
/// writer.write_bytes(&[30..40, 0..64], rows)?;
///
/// // Two boxes of 2 x 2 elements.
/// let report = writer.write_boxes(&[[0, 0], [40, 40]], &[2, 2], &[1_u16, 2, 3, 4, 5, 6, 7, 8])?;
/// assert_eq!(report.stored.len(), 2);
/// # assert_eq!(array.retrieve_array_subset::<Vec<u16>>(&[41..42, 40..43])?, [7, 8, 0]);
/// # assert_eq!(array.retrieve_array_subset::<Vec<u16>>(&[38..41, 11..12])?, [9, 9, 7]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Promises
/// - **Each shard is old or new**, whatever fails, also if the process dies, as far as the store replaces values at
///   once. Files are renamed, so they do. With [`ShardUpdate::InPlace`] and [`ShardUpdate::Shared`] this holds for
///   each subchunk, as these modes say. After an error, the [report](BoxWriterError::report) lists the written
///   shards, and the call can be repeated.
/// - **One process loses nothing.** All writers of boxes of a process take turns on a shard of one store: one
///   value in an `Arc`, or one directory of files. Several threads may write any boxes at once.
/// - Several processes may write different shards. For one shard, see [`ShardUpdate::Shared`] and
///   [`with_locks`](BoxWriterBuilder::with_locks).
/// - Nothing is promised beside other writes on the same shards at the same time: zarrs' own calls, an
///   [`ArrayWriter`](crate::writer::ArrayWriter), compaction, recovery and consolidation.
/// - A shard beside which subchunks are stored is refused, unless the writer stores them there itself.
/// - The elements of a shard behind the end of the array are kept.
///
/// Threads that all readers and writers of boxes share encode several shards at once. A clone shares everything.
pub struct BoxWriter<TStorage: ?Sized>(Arc<Inner<TStorage>>);

struct Inner<TStorage: ?Sized> {
    array: Array<TStorage>,
    /// The same array, with an unlimited first axis if the writer lets the array grow.
    grid: Array<()>,
    encoded_by: DecodedBy,
    settings: Settings,
    place: Place,
    /// The subchunks of the array in the store, once they are needed.
    shared: Shared<TStorage>,
}

/// The place where shards are stored.
enum Place {
    Files(Box<FilesOfArray>),
    /// The store of the array, and the locks of its keys.
    Store(ShardLocks),
}

/// The files of an array.
struct FilesOfArray {
    files: Files,
    array: Array<FileStore>,
    /// The locks of the values of the array's store, and the locks of the files.
    locks: [ShardLocks; 2],
    shared: Shared<FileStore>,
}

/// The settings of a writer.
#[derive(Clone, Debug)]
struct Settings {
    update: ShardUpdate,
    codec_options: CodecOptions,
    /// The largest number of bytes that the shards in flight may take.
    memory: usize,
    /// The largest number of bytes that one shard in flight takes.
    shard_memory: usize,
    /// The largest number of shards that one call stores at once.
    requests: NonZeroUsize,
    /// The largest number of threads of one call; `None` for the default.
    threads: Option<NonZeroUsize>,
    growth: Option<Growth>,
    /// The time for which a call waits for the lock file of a shard; `None` if there are no lock files.
    lock_limit: Option<Duration>,
    cancel: Option<Cancel>,
    on_progress: Option<OnProgress>,
}

/// A function that the application gives to see the progress of calls.
#[derive(Clone)]
struct OnProgress(Arc<dyn Fn(&BoxReport) + Send + Sync>);

impl fmt::Debug for OnProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnProgress")
    }
}

impl Settings {
    fn threads(&self) -> NonZeroUsize {
        let cores = cores();
        self.threads.map_or(cores, |threads| threads.min(cores))
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    /// Returns the number of shards in flight, at most `at_once`, whose memory fits the limit.
    fn shards_at_once(&self, at_once: NonZeroUsize) -> NonZeroUsize {
        let most = self.memory / self.shard_memory.max(1);
        NonZeroUsize::new(most).map_or(NonZeroUsize::MIN, |most| most.min(at_once))
    }
}

impl<TStorage: ?Sized> Clone for BoxWriter<TStorage> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<TStorage: ?Sized> fmt::Debug for BoxWriter<TStorage> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxWriter")
            .field("array", &self.0.array.path())
            .field("settings", &self.0.settings)
            .field("encoded_by", &self.0.encoded_by)
            .finish_non_exhaustive()
    }
}

impl<TStorage: ?Sized> BoxWriter<TStorage> {
    /// Returns a builder of a writer of `array`.
    pub fn builder(array: &Array<TStorage>) -> BoxWriterBuilder<TStorage> {
        BoxWriterBuilder::new(array)
    }

    /// Returns the array, with the shape that it had when the writer was built.
    #[must_use]
    pub fn array(&self) -> &Array<TStorage> {
        &self.0.array
    }

    /// Returns whether zarrs encodes this array, because this crate does not. [`explain`](Self::explain) gives the
    /// reason.
    #[must_use]
    pub fn is_by_zarrs(&self) -> bool {
        matches!(self.0.encoded_by, DecodedBy::Zarrs(_))
    }

    /// Returns the number of bytes that one call takes at most: the shards in flight, with the bounds of their
    /// compressors, copies of boxes that cover shards in part, and the old shards, where the values of the store are
    /// not files. The caller's memory is not counted, nor some buffers of a subchunk's size for each core.
    #[must_use]
    pub fn memory_estimate(&self) -> usize {
        let settings = &self.0.settings;
        let at_once = settings.shards_at_once(self.at_once());
        at_once.get().saturating_mul(settings.shard_memory)
    }

    /// Returns the number of shards that one call would write at once, if their memory had no limit.
    fn at_once(&self) -> NonZeroUsize {
        let Settings {
            requests, threads, ..
        } = &self.0.settings;
        match self.0.place {
            Place::Files(_) => self.0.settings.threads(),
            Place::Store(_) => threads.map_or(*requests, |threads| threads.min(*requests)),
        }
    }

    /// Describes how the writer writes, and why. The text is for people, and may change in any release.
    #[must_use]
    pub fn explain(&self) -> String {
        let settings = &self.0.settings;
        let encoder = match &self.0.encoded_by {
            DecodedBy::ThisCrate(_) if settings.update == ShardUpdate::Shared => {
                "all boxes are encoded as subchunks".to_owned()
            }
            DecodedBy::ThisCrate(_) => {
                "covered shards are encoded from the caller's memory".to_owned()
            }
            DecodedBy::Zarrs(why) => format!("zarrs encodes this array, chunk after chunk: {why}"),
        };
        let update = match settings.update {
            ShardUpdate::Rewrite => "others are read, changed and replaced",
            ShardUpdate::InPlace => "others are updated where they are stored",
            ShardUpdate::Shared => "they are stored beside their shards",
        };
        let place = match &self.0.place {
            Place::Files(files) => format!(
                "files are renamed into their place{}",
                if files.array.storage().syncs() {
                    ", and synced first"
                } else {
                    ", and not synced"
                }
            ),
            Place::Store(_) => "each shard is stored by one call of the store, which is not known to be one of files: on files, a process that is killed may leave a torn shard (use `on_filesystem`)".to_owned(),
        };
        format!(
            "{encoder}; {update}; {place}; up to {} shards at once, by {} threads",
            settings.shards_at_once(self.at_once()),
            settings.threads(),
        )
    }

    /// Checks that each box is inside the array, and returns the boxes and their memory.
    fn memory<'a>(
        &self,
        boxes: Vec<ArraySubset>,
        shape: &[usize],
        input: Input<'a>,
    ) -> Result<BoxesInMemory<'a>, Kind> {
        let is_one = boxes.len() == 1;
        for (number, subset) in boxes.iter().enumerate() {
            let number = (!is_one).then_some(number);
            self.check_inside(number, subset.start(), subset.shape())?;
        }
        let mut source = input.source(shape, self.element_size()?)?;
        // The first axis of the memory counts the boxes, if it has one axis more than the array.
        let step = if shape.len() > self.0.grid.dimensionality() {
            source.strides.remove(0)
        } else {
            0
        };
        let boxes = boxes.into_iter().enumerate();
        let boxes = boxes.map(|(number, subset)| WantedBox {
            subset,
            // A box without elements may have an offset beyond all memory.
            offset: number.saturating_mul(step),
        });
        Ok(BoxesInMemory {
            boxes: boxes.collect(),
            source,
        })
    }

    /// Returns the box `subset` and its memory.
    fn one_box<'a>(
        &self,
        subset: &dyn ArraySubsetTraits,
        input: Input<'a>,
    ) -> Result<BoxesInMemory<'a>, Kind> {
        let subset = subset.to_array_subset();
        let shape = extents(subset.shape())?;
        self.memory(vec![subset], &shape, input)
    }

    /// Returns the boxes of `shape` at `origins`, and their memory, whose first axis counts the boxes.
    fn several_boxes<'a>(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
        input: Input<'a>,
    ) -> Result<BoxesInMemory<'a>, Kind> {
        let each = origins.iter().enumerate();
        let boxes = each.map(|(number, origin)| {
            let origin = origin.as_ref();
            self.check_inside(Some(number), origin, shape)?;
            let ranges = std::iter::zip(origin, shape);
            let ranges = ranges.map(|(start, extent)| *start..start + extent);
            Ok(ArraySubset::from(ranges))
        });
        let boxes = boxes.collect::<Result<Vec<_>, Kind>>()?;
        let mut shape_of_all = vec![origins.len()];
        shape_of_all.extend(extents(shape)?);
        self.memory(boxes, &shape_of_all, input)
    }

    /// Checks that a box is inside the array, or behind its end if the array may grow.
    fn check_inside(
        &self,
        number: Option<usize>,
        start: &[u64],
        extents: &[u64],
    ) -> Result<(), Kind> {
        if check_inside(&self.0.grid, number, start, extents).is_ok() {
            return Ok(());
        }
        // The error shows the shape of the array.
        let Err(error) = check_inside(&self.0.array, number, start, extents) else {
            return Ok(());
        };
        let mut wider = self.0.array.shape().to_vec();
        if let Some(first) = wider.first_mut() {
            *first = u64::MAX;
        }
        let ends = std::iter::zip(start, extents).map(|(start, len)| start.checked_add(*len));
        let fits = start.len() == wider.len()
            && std::iter::zip(ends, &wider).all(|(end, most)| end.is_some_and(|end| end <= *most));
        let advice = if fits && self.0.settings.growth.is_none() {
            "; to let the array grow along its first axis, build the writer `with_growth`"
        } else {
            ""
        };
        let error = Box::new(error);
        Err(Kind::OutOfBounds { error, advice })
    }

    fn element_size(&self) -> Result<usize, Kind> {
        let data_type = self.0.grid.data_type();
        let size = data_type.fixed_size().filter(|size| *size > 0);
        size.filter(|_| !data_type.is_optional()).ok_or_else(|| {
            Kind::unsupported(format!(
                "elements of {data_type} have no fixed size, or may be missing: use zarrs' own calls"
            ))
        })
    }

    /// Returns `elements` as bytes in the byte order of this machine.
    fn bytes<'e, T: Element>(&self, elements: &'e [T]) -> Result<std::borrow::Cow<'e, [u8]>, Kind> {
        let data_type = self.0.grid.data_type();
        self.element_size()?;
        let wrong = || Kind::Element {
            data_type: data_type.clone(),
            element: std::any::type_name::<T>(),
        };
        let bytes = T::to_array_bytes(data_type, elements).map_err(|_| wrong())?;
        bytes.into_fixed().map_err(|_| wrong())
    }
}

/// Converts `shape` to the integers of this machine.
fn extents(shape: &[u64]) -> Result<Vec<usize>, Kind> {
    let extents = shape.iter().map(|&extent| usize::try_from(extent));
    extents
        .collect::<Result<_, _>>()
        .map_err(|_| input::no_memory(usize::MAX))
}
