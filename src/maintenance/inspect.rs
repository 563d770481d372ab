//! Inspects a shard: finds its parts, and their places.

use std::fmt;
use std::ops::Range;

use zarrs::array::codec::ShardingIndexLocation;
use zarrs_codec::CodecError;
#[cfg(feature = "async")]
use zarrs_storage::AsyncReadableStorageTraits;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{ReadableStorageTraits, StoreKey};

use super::ShardFormat;
use super::diagnosis::Diagnosis;
use super::format::diagnosis_of;
use super::io::{failed, read, undecided};
use super::picture::Picture;
use super::recover::RecoveryOutcome;
use crate::error::Error;
use crate::shard::error::is_about_stored_bytes;
use crate::shard::sharding::Sharding;
#[cfg(feature = "async")]
use crate::store::Awaited;
use crate::store::ranges::Merged;
use crate::store::{Blocking, Reads, now};
use zarrs_cuda_engine::layout::{Entries, RECORD_LEN, Record};

/// The parts of a shard, and the place of each. All sizes and offsets are in bytes.
///
/// `Display` prints a summary, a picture and a table of subchunks, for people.
///
/// ```
/// # use zarrs::array::{ArrayBuilder, CodecOptions, data_type};
/// # use zarrs_cuda::{CudaShardingCodecBuilder, Options, WriteStrategy};
/// # let codec = CudaShardingCodecBuilder::new(vec![8.try_into()?; 2], &data_type::uint16())
/// #     .options(Options::default().with_write_strategy(WriteStrategy::Append))
/// #     .build_arc()?;
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0_u16);
/// # let array = builder.array_to_bytes_codec(codec).build(store.clone(), "/volume")?;
/// # let options = CodecOptions::default().with_experimental_partial_encoding(true);
/// # for value in 1..=10_u16 {
/// #     array.store_array_subset_opt(&[0..8, 0..8], vec![value; 64], &options)?;
/// # }
/// use zarrs_cuda::maintenance::Shards;
///
/// let inspection = Shards::of(&array)?.inspect(&[0, 0])?.ok_or("no such shard")?;
/// println!("{inspection}"); // a picture, and a table of subchunks
/// assert_eq!((&inspection.grid[..], inspection.decoded_size), (&[4, 4][..], Some(128)));
/// assert_eq!(inspection.subchunks.iter().flatten().count(), 1); // the others are empty
/// println!("{} of {} bytes are unused", inspection.size - inspection.live, inspection.size);
/// # assert!(inspection.live < inspection.size);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Inspection {
    /// The size of the shard.
    pub size: u64,
    /// The configured place of the index: the start or the end.
    pub index_location: ShardingIndexLocation,
    /// The range of the index; `None` if the shard is shorter than its index.
    pub index: Option<Range<u64>>,
    /// The problem of the index, if any: it does not decode, or an extent in it lies outside the shard.
    pub index_problem: Option<String>,
    /// The number of subchunks in a shard along each axis.
    pub grid: Vec<usize>,
    /// The size of a decoded subchunk; `None` for data types of variable length.
    pub decoded_size: Option<u64>,
    /// The stored subchunks, in C order; `None` for an empty subchunk.
    ///
    /// The vector is empty if the index cannot be decoded, or if none of its entries is valid. If only the
    /// checksum of the index is wrong, the vector has the entries of this index.
    pub subchunks: Vec<Option<StoredSubchunk>>,
    /// The records of updates, by ascending offset.
    pub records: Vec<UpdateRecord>,
    /// The outcome that [`recover`](crate::recover) would report.
    pub recovery: RecoveryOutcome,
    /// The number of bytes that the index and subchunks use.
    pub live: u64,
    areas: [Merged; 3],
}

/// The place of a subchunk in the shard, as the index has it.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # use zarrs::storage::ReadableStorageTraits;
/// use zarrs_cuda::maintenance::Shards;
///
/// array.store_chunk(&[0, 0], vec![7_u16; 32 * 32])?;
/// let inspection = Shards::of(&array)?.inspect(&[0, 0])?.ok_or("no such shard")?;
/// let shard = store.get(&array.chunk_key(&[0, 0]))?.ok_or("no such shard")?;
/// for subchunk in inspection.subchunks.iter().flatten() {
///     let (offset, size) = (usize::try_from(subchunk.offset)?, usize::try_from(subchunk.size)?);
///     let encoded = &shard[offset..][..size];
///     assert_eq!((encoded.len(), subchunk.problem), (128, None));
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredSubchunk {
    /// The first byte of the subchunk in the shard.
    pub offset: u64,
    /// The encoded size of the subchunk, in bytes.
    pub size: u64,
    /// The problem of the subchunk's place, if any.
    pub problem: Option<ExtentProblem>,
}

/// A problem of a subchunk's place.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # use zarrs::storage::WritableStorageTraits;
/// use zarrs_cuda::maintenance::{ExtentProblem, ShardFormat, Shards};
///
/// // A shard whose first two subchunks share 64 bytes.
/// let mut extents = vec![None; 16];
/// (extents[0], extents[1]) = (Some(0..128), Some(64..192));
/// let index = ShardFormat::of(&array, &[0, 0])?.encode_index(&extents)?;
/// store.set(&array.chunk_key(&[0, 0]), [vec![7; 192], index].concat().into())?;
///
/// let inspection = Shards::of(&array)?.inspect(&[0, 0])?.ok_or("no such shard")?;
/// let problem = inspection.subchunks[1].ok_or("an empty subchunk")?.problem;
/// assert_eq!(problem, Some(ExtentProblem::Over(0)));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExtentProblem {
    /// The extent lies outside the shard, at least in part.
    Outside,
    /// The extent overlaps the index.
    OverIndex,
    /// The extent overlaps the extent of the subchunk with this number, which is legal. The entry of that
    /// subchunk has the number of this one, unless it has another problem.
    Over(usize),
}

/// The record of an update.
///
/// ```
/// # use zarrs::array::{ArrayBuilder, CodecOptions, data_type};
/// # use zarrs_cuda::{CudaShardingCodecBuilder, Options, WriteStrategy};
/// # let codec = CudaShardingCodecBuilder::new(vec![8.try_into()?; 2], &data_type::uint16())
/// #     .options(Options::default().with_write_strategy(WriteStrategy::Append))
/// #     .build_arc()?;
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0_u16);
/// # let array = builder.array_to_bytes_codec(codec).build(store.clone(), "/volume")?;
/// # let options = CodecOptions::default().with_experimental_partial_encoding(true);
/// # for value in 1..=10_u16 {
/// #     array.store_array_subset_opt(&[0..8, 0..8], vec![value; 64], &options)?;
/// # }
/// use zarrs_cuda::maintenance::Shards;
///
/// let inspection = Shards::of(&array)?.inspect(&[0, 0])?.ok_or("no such shard")?;
/// for record in &inspection.records {
///     println!("the shard grew from {} to {} bytes", record.old_end, record.new_end);
///     if record.is_pending {
///         println!("this update was interrupted: `recover` the shard");
///     }
/// }
/// # assert!(!inspection.records.is_empty());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpdateRecord {
    /// The first byte of the record in the shard.
    pub offset: u64,
    /// The size of the shard before the update; 0 if the shard did not exist.
    pub old_end: u64,
    /// The size of the shard after the update.
    pub new_end: u64,
    /// Whether the update is not complete, and [`recover`](crate::recover) would undo or complete it.
    pub is_pending: bool,
}

/// Describes the shard at `key`. Returns `None` if the shard does not exist.
///
/// No subchunk is decoded, and nothing is changed. For a shard above 256 KiB only the index is read, and the
/// unused bytes, in which records of updates lie. If these bytes are not enough, the shard is read as a
/// whole: the index has no checksum or is broken, or an update was interrupted. A shard with a broken index
/// is no error: it is described as far as possible.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::inspect;
/// use zarrs_cuda::maintenance::ShardFormat;
///
/// array.store_chunk(&[0, 0], vec![7_u16; 32 * 32])?;
/// let format = ShardFormat::of(&array, &[0, 0])?;
/// let inspection = inspect(&*store, &array.chunk_key(&[0, 0]), &format)?.ok_or("no such shard")?;
/// assert_eq!((inspection.index_problem, inspection.live), (None, inspection.size));
/// assert!(inspect(&*store, &array.chunk_key(&[1, 1]), &format)?.is_none());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - [`Error::Codec`] if the format is invalid.
/// - [`Error::Undecided`] if memory cannot be allocated to decode the index.
/// - [`Error::Storage`] if the store fails.
pub fn inspect<S: ReadableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Inspection>, Error> {
    now(inspect_in(&Blocking::new(store), key, format))
}

/// Does the work of [`inspect`](crate::inspect()) for an asynchronous store.
///
/// ```
/// # futures::executor::block_on(async {
/// # let store = std::sync::Arc::new(zarrs::storage::store::AsyncMemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.async_store_chunk(&[0, 0], vec![7_u16; 32 * 32]).await?;
/// use zarrs_cuda::maintenance::{ShardFormat, async_inspect};
///
/// let format = ShardFormat::of(&array, &[0, 0])?;
/// let key = array.chunk_key(&[0, 0]);
/// let inspection = async_inspect(&*store, &key, &format).await?.ok_or("no such shard")?;
/// assert_eq!(inspection.index_problem, None);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`inspect`](crate::inspect()).
#[cfg(feature = "async")]
pub async fn async_inspect<S: AsyncReadableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Inspection>, Error> {
    inspect_in(&Awaited(store), key, format).await
}

pub(super) async fn inspect_in<O: Reads>(
    store: &O,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Inspection>, Error> {
    let size = store.size(key).await;
    let Some(size) = size.map_err(failed("find the size of", key))? else {
        return Ok(None);
    };
    if size > SMALL
        && let Some(found) = by_index(store, key, size, format.shards()).await?
    {
        return Ok(Some(found));
    }
    let object = read(store, key).await?;
    let found = object.map(|object| Inspection::of(&object, format));
    found.transpose().map_err(undecided(key))
}

/// The largest size in bytes of a shard that is read as a whole, by one request.
const SMALL: u64 = 256 << 10;

/// Returns the inspection of a shard of `size` bytes, from its index and unused bytes. Returns `None` if
/// these bytes are not enough.
pub(super) async fn by_index<O: Reads>(
    store: &O,
    key: &StoreKey,
    size: u64,
    shards: &Sharding,
) -> Result<Option<Inspection>, Error> {
    let index_len = shards.index.len();
    let place = usize::try_from(size).ok();
    let place = place.and_then(|size| shards.index.range_in(size));
    let (true, Some(place)) = (shards.index.has_checksum(), place) else {
        return Ok(None);
    };
    let read = |ranges: Vec<ByteRange>| store.get_ranges(key, ranges);
    let index = read(vec![shards.index.byte_range()]).await;
    let index = index.map_err(failed("read the index of", key))?;
    let Some(index) = index.and_then(|mut parts| parts.pop()) else {
        return Ok(None);
    };
    let Ok(entries) = shards.entries(&index, size) else {
        return Ok(None);
    };
    let used = entries.iter().flatten().chain([place]);
    let used = Merged::of(used.map(|bytes| bytes.start as u64..bytes.end as u64));
    let mut gaps = used.gaps(size);
    gaps.retain(|gap| gap.end - gap.start >= RECORD_LEN as u64);
    let mut records = Vec::new();
    if !gaps.is_empty() {
        let ranges = gaps
            .iter()
            .map(|gap| ByteRange::FromStart(gap.start, Some(gap.end - gap.start)));
        let parts = read(ranges.collect()).await;
        let parts = parts.map_err(failed("read the unused bytes of", key))?;
        let Some(parts) = parts.filter(|parts| parts.len() == gaps.len()) else {
            return Ok(None);
        };
        for (gap, part) in gaps.iter().zip(&parts).rev() {
            // The start is addressable, because the size of the shard is.
            let start = usize::try_from(gap.start).unwrap_or(usize::MAX);
            records.extend(Record::all_at(part, start, index_len));
        }
    }
    if records.first().is_some_and(|last| size < last.new_end) {
        return Ok(None);
    }
    // `Intact` is certain, because the index decodes, and has a checksum.
    let recovery = RecoveryOutcome::Intact;
    let decoded = (Some(entries), None);
    Ok(Some(Inspection::new(
        shards, size, decoded, records, recovery,
    )))
}

impl Inspection {
    /// Returns the inspection of the shard `object`.
    ///
    /// # Errors
    /// A [`CodecError`] if the index was not decoded for a reason other than its bytes.
    pub(super) fn of(object: &[u8], format: &ShardFormat) -> Result<Self, CodecError> {
        let shards = format.shards();
        let recovery = match diagnosis_of(shards, object)? {
            Diagnosis::Intact => RecoveryOutcome::Intact,
            Diagnosis::Undo(_) => RecoveryOutcome::Undone,
            Diagnosis::Complete(_) => RecoveryOutcome::Completed,
            Diagnosis::Erase => RecoveryOutcome::Erased,
            Diagnosis::Unrecoverable(reason) => RecoveryOutcome::Unrecoverable { reason },
        };
        let records = Record::all(object, shards.index.len()).collect();
        let size = object.len() as u64;
        let entries = entries(shards, object)?;
        Ok(Self::new(shards, size, entries, records, recovery))
    }

    /// Returns the inspection of a shard of `size` bytes with these `entries`, or the problem of its index.
    /// `records` are in descending order.
    fn new(
        shards: &Sharding,
        size: u64,
        (entries, index_problem): (Option<Entries<'_>>, Option<String>),
        records: Vec<Record>,
        recovery: RecoveryOutcome,
    ) -> Self {
        let index = usize::try_from(size).ok();
        let index = index.and_then(|size| shards.index.range_in(size));
        let index = index.map(|index| index.start as u64..index.end as u64);
        let mut subchunks = entries.map_or_else(Vec::new, |entries| {
            subchunks(&entries, size, index.as_ref())
        });
        let mut is_outside = subchunks
            .iter()
            .flatten()
            .map(|subchunk| subchunk.problem == Some(ExtentProblem::Outside));
        if index_problem.is_some() && is_outside.all(|outside| outside) {
            // The bytes at the place of the index are something else.
            subchunks.clear();
        }
        let is_pending = matches!(
            recovery,
            RecoveryOutcome::Undone | RecoveryOutcome::Completed | RecoveryOutcome::Erased
        );
        let mut records: Vec<UpdateRecord> = records
            .into_iter()
            .enumerate()
            .map(|(age, record)| UpdateRecord {
                offset: record.offset,
                old_end: record.old_end,
                new_end: record.new_end,
                is_pending: is_pending && age == 0,
            })
            .collect();
        records.reverse();
        let extents = subchunks
            .iter()
            .flatten()
            .filter(|subchunk| subchunk.problem != Some(ExtentProblem::Outside))
            .map(|subchunk| subchunk.offset..subchunk.offset + subchunk.size);
        let live = Merged::of(extents.chain(index.clone()));
        let places = records
            .iter()
            .map(|r| r.offset..r.offset + RECORD_LEN as u64);
        Self {
            size,
            index_location: shards.index.location(),
            index_problem,
            grid: shards.grid.counts().to_vec(),
            decoded_size: shards.decoded_size(),
            live: live.total(),
            areas: [Merged::of(index.clone()), Merged::of(places), live],
            index,
            subchunks,
            records,
            recovery,
        }
    }

    /// Returns the number of unused bytes of the shard.
    #[must_use]
    pub fn unused(&self) -> u64 {
        self.size - self.live
    }

    /// Returns the fraction of the shard that is unused, from 0 to 1.
    #[must_use]
    pub fn unused_fraction(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a fraction for people")]
        let fraction = self.unused() as f64 / self.size.max(1) as f64;
        fraction
    }

    /// Returns the number of stored subchunks.
    #[must_use]
    pub fn num_stored(&self) -> usize {
        self.subchunks.iter().flatten().count()
    }

    /// Returns the text that `Display` shows, without the table of subchunks.
    #[must_use]
    pub fn summary(&self) -> impl fmt::Display {
        Summary(self)
    }

    /// Returns the decoded size of a subchunk divided by its encoded size.
    fn ratio(&self, subchunk: &StoredSubchunk) -> Option<f64> {
        #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
        let ratio = self.decoded_size? as f64 / subchunk.size.max(1) as f64;
        Some(ratio)
    }

    /// Returns the indices of the subchunk `number` in the grid of subchunks.
    fn indices(&self, number: usize) -> String {
        let mut indices: Vec<usize> = Vec::with_capacity(self.grid.len());
        let mut rest = number;
        for &count in self.grid.iter().rev() {
            indices.push(rest % count.max(1));
            rest /= count.max(1);
        }
        let mut text = String::new();
        for index in indices.into_iter().rev() {
            if !text.is_empty() {
                text.push(',');
            }
            push_number(&mut text, index as u64, 0);
        }
        text
    }

    /// Returns the row of the subchunk `number` in the table, with its indices in a column of `width`
    /// characters. `ratio` has the last column of the row before, and the encoded size for which it was
    /// formatted.
    fn row(&self, number: usize, width: usize, ratio: &mut (u64, String)) -> String {
        let mut row = String::with_capacity(80);
        row.push('\n');
        push_number(&mut row, number as u64, 8);
        row.push(' ');
        let indices = self.indices(number);
        row.extend(std::iter::repeat_n(
            ' ',
            width.saturating_sub(indices.len()),
        ));
        row.push_str(&indices);
        row.push(' ');
        let Some(subchunk) = &self.subchunks[number] else {
            row.push_str("         empty");
            return row;
        };
        push_number(&mut row, subchunk.offset, 14);
        row.push(' ');
        push_number(&mut row, subchunk.size, 12);
        // Neighbours often have one size, and formatting a ratio takes longer than the rest of a row.
        if ratio.0 != subchunk.size || ratio.1.is_empty() {
            let text = match self.ratio(subchunk) {
                Some(ratio) => format!(" {ratio:>8.2}"),
                None => format!(" {:>8}", ""),
            };
            *ratio = (subchunk.size, text);
        }
        row.push_str(&ratio.1);
        if let Some(problem) = subchunk.problem {
            row.push_str("  ");
            row.push_str(&problem.to_string());
        }
        row
    }
}

/// Appends `number`, in a column of at least `width` characters. A table may have millions of rows, and this
/// function takes a fraction of the time of `write!`.
fn push_number(text: &mut String, mut number: u64, width: usize) {
    let mut digits = [b' '; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    let shown = &digits[at.min(digits.len().saturating_sub(width))..];
    text.extend(shown.iter().map(|&digit| char::from(digit)));
}

/// Returns the entries of the index of `object`, if it decodes, and the problem of the index, if it has one.
///
/// # Errors
/// The errors of [`Inspection::of`].
fn entries<'b>(
    shards: &Sharding,
    object: &'b [u8],
) -> Result<(Option<Entries<'b>>, Option<String>), CodecError> {
    let index = match shards.index.of(object) {
        Ok(index) => index,
        Err(error) => return Ok((None, Some(error.to_string()))),
    };
    match shards.entries(index, object.len() as u64) {
        Ok(entries) => Ok((Some(entries), None)),
        Err(error) if is_about_stored_bytes(&error) => {
            let entries = shards.entries_unchecked(index).ok();
            Ok((entries, Some(error.to_string())))
        }
        Err(error) => Err(error),
    }
}

fn subchunks(
    entries: &Entries<'_>,
    size: u64,
    index: Option<&Range<u64>>,
) -> Vec<Option<StoredSubchunk>> {
    let mut subchunks: Vec<Option<StoredSubchunk>> = entries
        .words()
        .map(|words| {
            let [offset, len] = words?;
            let end = offset.checked_add(len).filter(|&end| end <= size);
            let problem = match (end, index) {
                (None, _) => Some(ExtentProblem::Outside),
                (Some(end), Some(index)) if offset < index.end && end > index.start && len > 0 => {
                    Some(ExtentProblem::OverIndex)
                }
                _ => None,
            };
            Some(StoredSubchunk {
                offset,
                size: len,
                problem,
            })
        })
        .collect();
    // In the order of their offsets, each subchunk is compared with the one that reaches furthest of those
    // before it. An overlap is noted for both subchunks.
    let mut order: Vec<usize> = (0..subchunks.len()).collect();
    order.sort_by_key(|&number| subchunks[number].map(|subchunk| subchunk.offset));
    let mut furthest: Option<(u64, usize)> = None;
    for number in order {
        let Some(subchunk) = subchunks[number] else {
            continue;
        };
        if subchunk.problem == Some(ExtentProblem::Outside) || subchunk.size == 0 {
            continue;
        }
        let end = subchunk.offset + subchunk.size;
        if let Some((reach, other)) = furthest
            && subchunk.offset < reach
        {
            for (one, over) in [(number, other), (other, number)] {
                if let Some(one) = &mut subchunks[one] {
                    one.problem.get_or_insert(ExtentProblem::Over(over));
                }
            }
        }
        if furthest.is_none_or(|(reach, _)| reach < end) {
            furthest = Some((end, number));
        }
    }
    subchunks
}

impl fmt::Display for ExtentProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside => f.write_str("outside the shard"),
            Self::OverIndex => f.write_str("has bytes of the index"),
            Self::Over(number) => write!(f, "has bytes of subchunk {number}"),
        }
    }
}

impl fmt::Display for UpdateRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            offset,
            old_end,
            new_end,
            is_pending,
        } = self;
        write!(f, "at {offset}: ")?;
        match old_end {
            0 => write!(f, "a new shard of {new_end} bytes")?,
            _ if old_end == new_end => f.write_str("an index rewritten where it is")?,
            _ => write!(f, "from {old_end} to {new_end} bytes")?,
        }
        f.write_str(if *is_pending { ", PENDING" } else { ", done" })
    }
}

struct Summary<'a>(&'a Inspection);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shard = self.0;
        let grid: Vec<String> = shard.grid.iter().map(ToString::to_string).collect();
        writeln!(f, "size      {} bytes", shard.size)?;
        let place = match shard.index_location {
            ShardingIndexLocation::Start => "start",
            ShardingIndexLocation::End => "end",
        };
        match &shard.index {
            Some(index) => write!(
                f,
                "index     {} bytes at the {place}",
                index.end - index.start
            )?,
            None => write!(f, "index     at the {place}")?,
        }
        match &shard.index_problem {
            None => writeln!(f, ", valid")?,
            Some(problem) => writeln!(f, ", INVALID: {problem}")?,
        }
        write!(f, "subchunks {}", grid.join(" × "))?;
        if shard.subchunks.is_empty() {
            writeln!(f, ": it is not known where")?;
        } else {
            let stored = shard.num_stored();
            let empty = shard.subchunks.len() - stored;
            writeln!(f, ": {stored} stored, {empty} empty")?;
        }
        let problems = shard.subchunks.iter().flatten().filter_map(|s| s.problem);
        let count = problems.count();
        if count > 0 {
            writeln!(
                f,
                "          {count} of them overlap, or are outside the shard"
            )?;
        }
        writeln!(
            f,
            "bytes     {} live, {} unused ({:.1} %)",
            shard.live,
            shard.unused(),
            100.0 * shard.unused_fraction()
        )?;
        if shard.records.is_empty() {
            writeln!(f, "records   none")?;
        }
        for (number, record) in shard.records.iter().enumerate() {
            let title = if number == 0 { "records" } else { "" };
            writeln!(f, "{title:<9} {record}")?;
        }
        let recovery = match &shard.recovery {
            RecoveryOutcome::Undone => "a torn update would be undone".to_string(),
            RecoveryOutcome::Completed => "a torn update would be completed".to_string(),
            RecoveryOutcome::Erased => {
                "the shard was never complete, and would be erased".to_string()
            }
            RecoveryOutcome::Unrecoverable { reason } => format!("impossible: {reason}"),
            RecoveryOutcome::Intact | RecoveryOutcome::Absent => "nothing to do".to_string(),
        };
        writeln!(f, "recovery  {recovery}\n")?;
        let [index, records, live] = &shard.areas;
        let picture = Picture {
            size: shard.size,
            index,
            records,
            live,
        };
        write!(f, "{picture}")
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.summary())?;
        if self.subchunks.is_empty() {
            return Ok(());
        }
        let width = self.indices(self.subchunks.len() - 1).len().max(8);
        write!(
            f,
            "\n\n{:>8} {:>width$} {:>14} {:>12} {:>8}",
            "subchunk", "indices", "offset", "size", "ratio"
        )?;
        let mut ratio = (0, String::new());
        for number in 0..self.subchunks.len() {
            f.write_str(&self.row(number, width, &mut ratio))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use zarrs::metadata::v3::MetadataV3;
    use zarrs::storage::store::MemoryStore;
    use zarrs_cuda_testing::index::IndexLayout;
    use zarrs_storage::WritableStorageTraits;

    use super::*;

    /// An inspection by the index and the unused bytes finds the same as an inspection of the whole shard.
    #[test]
    fn by_index_or_as_a_whole() {
        let key = StoreKey::new("c/0").unwrap();
        for (location, checksum, torn) in [
            (ShardingIndexLocation::End, true, false),
            (ShardingIndexLocation::Start, true, false),
            (ShardingIndexLocation::End, false, false),
            (ShardingIndexLocation::End, true, true),
        ] {
            let layout = IndexLayout {
                location,
                checksum,
                ..IndexLayout::default()
            };
            let codecs: Vec<MetadataV3> = layout
                .codecs()
                .into_iter()
                .map(|codec| serde_json::from_value(codec).unwrap())
                .collect();
            let counts = [2, 2].map(|count| NonZeroU64::new(count).unwrap());
            let format = ShardFormat::of_encoded_subchunks(&counts, &codecs, location).unwrap();
            // The third subchunk has room for a record before it.
            let subchunks = [
                (0, Some(vec![1; 100])),
                (3, None),
                (90, Some(vec![2; 150])),
                (0, Some(vec![])),
            ];
            let mut object = layout.shard(&subchunks);
            let offset = usize::try_from(layout.entries(&object, 4)[2][0]).unwrap() - 80;
            let size = object.len() as u64;
            let index = format.shards().index.of(&object).unwrap();
            let print = zarrs_cuda_engine::layout::fingerprint(index);
            let record = Record {
                offset: offset as u64,
                old_end: 7,
                old_index: 0,
                index_len: format.index_len(),
                new_end: size + u64::from(torn),
                new_index: print,
            };
            object[offset..offset + RECORD_LEN].copy_from_slice(&record.to_bytes());

            let extents = format.decode_index(format.shards().index.of(&object).unwrap(), size);
            let extents = extents.unwrap();
            let places = layout.entries(&object, 4).into_iter();
            let places = places.map(|[at, len]| (len != u64::MAX).then(|| at..at + len));
            assert!(places.eq(extents.iter().cloned()));
            let encoded = format.encode_index(&extents).unwrap();
            assert_eq!(encoded, format.shards().index.of(&object).unwrap());
            assert!(format.encode_index(&extents[1..]).is_err());
            assert!(format.decode_index(&encoded, 90).is_err());

            let store = MemoryStore::new();
            store.set(&key, object.clone().into()).unwrap();
            let found = now(by_index(
                &Blocking::new(&store),
                &key,
                size,
                format.shards(),
            ));
            let whole = Inspection::of(&object, &format).unwrap();
            assert_eq!(whole.records.len(), 1);
            match found.unwrap() {
                Some(found) => assert_eq!(found, whole),
                None => assert!(torn || !checksum),
            }
            assert_eq!(inspect(&store, &key, &format).unwrap(), Some(whole));
        }
    }

    #[test]
    fn numbers_in_columns() {
        for number in [0, 7, 10, 99, 12_345, u64::MAX] {
            for width in [0, 1, 2, 8, 20] {
                let mut text = String::new();
                push_number(&mut text, number, width);
                assert_eq!(text, format!("{number:>width$}"));
            }
        }
    }
}
