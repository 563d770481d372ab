//! Makes a new shard of a stored shard and new elements for boxes of it.
//!
//! 1. Read the index. If an update of the shard was interrupted, recover the shard in memory.
//! 2. Patch and encode the subchunks that the boxes meet. All other subchunks stay encoded.
//! 3. Copy the subchunks to the new shard, densely and in C order, with a new index.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use zarrs::array::{ArrayBytes, ArraySubset, Indexer};
use zarrs_codec::{CodecError, CodecOptions};
use zarrs_storage::StoreKey;

use super::ShardFormat;
use super::diagnosis::Diagnosis;
use super::format::diagnosis_of;
use crate::codec::changed::ChangedShard;
use crate::error::Error;
use crate::shard::error::{caused, is_about_stored_bytes, no_memory};
use crate::shard::sharding::Sharding;
use crate::store::ranges::with_parts;
use zarrs_cuda_engine::layout::Extent;

/// The bytes of a stored shard.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # use zarrs::storage::ReadableStorageTraits;
/// # array.store_chunk(&[0, 0], vec![1_u16; 32 * 32])?;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("shard");
/// # std::fs::write(&path, store.get(&array.chunk_key(&[0, 0]))?.ok_or("no such shard")?)?;
/// use std::fs::File;
/// use zarrs::array::{ArrayBytes, ArraySubset};
/// use zarrs_cuda::maintenance::{ShardFormat, StoredShard};
///
/// let format = ShardFormat::of(&array, &[0, 0])?;
/// let corner = (ArraySubset::from(vec![0..2, 0..2]), ArrayBytes::new_flen(vec![0xff; 2 * 2 * 2]));
/// // Unchanged subchunks are copied from file to file.
/// let stored = StoredShard::File(File::open(&path)?);
/// if let Some(shard) = format.rewrite(Some(stored), [corner], &Default::default())? {
///     shard.write_to(&mut File::create(folder.path().join("new"))?)?;
///     assert_eq!(shard.size(), std::fs::metadata(&path)?.len());
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum StoredShard {
    /// A file that is open for reading. Reading moves its position.
    File(File),
    /// All bytes of the shard, in memory.
    Bytes(Bytes),
}

impl StoredShard {
    fn size(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => Ok(file.metadata()?.len()),
            Self::Bytes(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Returns all bytes of the shard.
    ///
    /// # Errors
    /// An error of reading the file, or [`ErrorKind::OutOfMemory`].
    pub(crate) fn into_bytes(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.into()),
            Self::File(_) => {
                let mut all = Vec::new();
                self.source(&(0..self.size()?))?.append_to(&mut all)?;
                Ok(all)
            }
        }
    }

    /// Returns the bytes of `range` as a source to copy.
    fn source<'s>(&'s self, range: &'s Range<u64>) -> io::Result<CopySource<'s>> {
        match self {
            Self::File(file) => Ok(CopySource::File(file, range)),
            Self::Bytes(bytes) => part(bytes, range)
                .map(CopySource::Bytes)
                .ok_or_else(|| ended(range)),
        }
    }

    fn read(&self, range: &Range<u64>) -> Result<Vec<u8>, CodecError> {
        let mut bytes = Vec::new();
        self.source(range)?.append_to(&mut bytes)?;
        Ok(bytes)
    }
}

/// A source of bytes that are copied to a rewritten shard.
enum CopySource<'s> {
    Bytes(&'s [u8]),
    /// A range of bytes of a file. Reading moves the position of the file.
    File(&'s File, &'s Range<u64>),
}

impl CopySource<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, range) => range.end - range.start,
        }
    }

    /// Appends all bytes of the source to `output`.
    fn append_to(&self, output: &mut Vec<u8>) -> io::Result<()> {
        reserve(output, self.len())?;
        match self {
            Self::Bytes(bytes) => {
                output.extend_from_slice(bytes);
                Ok(())
            }
            Self::File(file, range) => copy(file, range, |bytes| {
                bytes.read_to_end(output).map(|n| n as u64)
            }),
        }
    }

    /// Writes all bytes of the source to `file`.
    fn write_to(&self, file: &mut File) -> io::Result<()> {
        match self {
            Self::Bytes(bytes) => file.write_all(bytes),
            // The operating system copies long runs; some file systems let both files share the bytes.
            Self::File(from, range) => copy(from, range, |bytes| io::copy(bytes, file)),
        }
    }
}

/// Calls `copy` with the bytes of `range` of `file`. Returns an error if `copy` takes fewer bytes.
fn copy(
    mut file: &File,
    range: &Range<u64>,
    copy: impl FnOnce(&mut io::Take<&File>) -> io::Result<u64>,
) -> io::Result<()> {
    let len = range.end - range.start;
    file.seek(SeekFrom::Start(range.start))?;
    if copy(&mut file.take(len))? == len {
        Ok(())
    } else {
        Err(ended(range))
    }
}

/// Makes room in `output` for `len` more bytes.
fn reserve(output: &mut Vec<u8>, len: u64) -> io::Result<()> {
    let reserved = usize::try_from(len).ok();
    let reserved = reserved.filter(|len| output.try_reserve(*len).is_ok());
    reserved
        .map(drop)
        .ok_or_else(|| ErrorKind::OutOfMemory.into())
}

/// Returns the bytes of `range`, or `None` if some of them are not in `bytes`.
fn part<'b>(bytes: &'b [u8], range: &Range<u64>) -> Option<&'b [u8]> {
    bytes.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

fn ended(Range { start, end }: &Range<u64>) -> io::Error {
    let what = format!("bytes {start}..{end} of the stored shard are not there any more");
    io::Error::new(ErrorKind::UnexpectedEof, what)
}

/// A run of bytes of a rewritten shard, which has one or several encoded subchunks.
#[derive(Debug)]
enum Run {
    /// A range of bytes of the stored shard.
    Stored(Range<u64>),
    /// A range of bytes of `RewrittenShard::new`, which has the changed subchunks.
    New(Range<usize>),
}

/// A shard that [`ShardFormat::rewrite`] returns. It has its changed subchunks in memory, and all subchunks
/// if the stored shard had to be recovered. When it is written, it copies all other subchunks from the stored
/// shard.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # use zarrs::storage::WritableStorageTraits;
/// use zarrs::array::{ArrayBytes, ArraySubset};
/// use zarrs_cuda::maintenance::ShardFormat;
///
/// // There is no stored shard: all other elements are the fill value.
/// let format = ShardFormat::of(&array, &[0, 0])?;
/// let row = (ArraySubset::from(vec![0..1, 0..32]), ArrayBytes::new_flen(vec![0xff; 32 * 2]));
/// let shard = format.rewrite(None, [row], &Default::default())?.ok_or("an empty shard")?;
/// let bytes = shard.to_bytes()?;
/// assert_eq!(bytes.len() as u64, shard.size());
/// store.set(&array.chunk_key(&[0, 0]), bytes.into())?;
/// assert_eq!(array.retrieve_array_subset::<Vec<u16>>(&[0..2, 31..32])?, [0xffff, 0]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RewrittenShard {
    stored: Option<StoredShard>,
    /// The file of the stored shard, if the shard was read into memory and recovered there.
    recovered_from: Option<File>,
    /// A lock that is held while the position of the stored file is in use.
    reading: Mutex<()>,
    new: Vec<u8>,
    /// The runs of encoded subchunks, in C order.
    runs: Vec<Run>,
    index: Vec<u8>,
    is_index_first: bool,
    size: u64,
}

impl ShardFormat {
    /// Returns the shard `stored` with new elements for `boxes`. Each box is given with its elements, and
    /// counts in elements from the origin of the shard. A later box overwrites the boxes before it. Without
    /// `stored`, all other elements are the fill value. If the array has array-to-array codecs, a box and its
    /// elements are already encoded by these codecs.
    ///
    /// Subchunks that no box meets are copied in encoded form. The new shard has its subchunks densely and in
    /// C order. Subchunks that share bytes in the stored shard still share them. Returns `None` if all
    /// subchunks are empty: erase the shard.
    ///
    /// If an update of `stored` was interrupted, this call does in memory what [`recover`](crate::recover)
    /// does, and logs a warning through `tracing`. Records of updates can be forged, so the shard must come
    /// from trusted software. A file that another process is updating is refused. Nothing else may write to
    /// `stored` until the new shard is written.
    ///
    /// ```
    /// # use zarrs::array::{ArrayBuilder, ArrayBytes, ArraySubset, data_type};
    /// # use zarrs::storage::{ReadableStorageTraits, WritableStorageTraits, store::MemoryStore};
    /// # use zarrs_cuda::maintenance::{ShardFormat, StoredShard};
    /// # let store = std::sync::Arc::new(MemoryStore::new());
    /// # let mut builder = ArrayBuilder::new(vec![8, 8], vec![8, 8], data_type::uint8(), 0_u8);
    /// # builder.subchunk_shape(vec![4, 4]);
    /// # let array = builder.build(store.clone(), "/a")?;
    /// array.store_chunk(&[0, 0], vec![1_u8; 64])?;
    /// let (key, format) = (array.chunk_key(&[0, 0]), ShardFormat::of(&array, &[0, 0])?);
    /// let stored = store.get(&key)?.map(StoredShard::Bytes);
    /// let row = (ArraySubset::from(vec![2..3, 0..8]), ArrayBytes::new_flen(vec![7; 8]));
    /// match format.rewrite(stored, [row], &Default::default())? {
    ///     Some(shard) => store.set(&key, shard.to_bytes()?.into())?,
    ///     None => store.erase(&key)?,
    /// }
    /// assert_eq!(array.retrieve_array_subset::<Vec<u8>>(&[2..4, 0..2])?, [7, 7, 1, 1]);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Codec`] if `stored` cannot be read, or another process updates it (an [`std::io::Error`] of the kind
    /// `ResourceBusy`); if its index is invalid, and no interrupted update explains that; if subchunks overlap in
    /// part; if a box does not fit the shard or its elements; if a subchunk that a box meets in part cannot be
    /// decoded; if memory cannot be had; or if the options ask for a backend that cannot be used.
    pub fn rewrite<'e>(
        &self,
        stored: Option<StoredShard>,
        boxes: impl IntoIterator<Item = (ArraySubset, ArrayBytes<'e>)>,
        options: &CodecOptions,
    ) -> Result<Option<RewrittenShard>, Error> {
        let boxes = boxes.into_iter();
        let boxes =
            boxes.map(|(subset, elements)| (Box::new(subset) as Box<dyn Indexer>, elements));
        self.rewrite_indexed(stored, boxes, options)
    }

    /// Does the same as [`rewrite`](Self::rewrite) for elements at any places.
    ///
    /// # Errors
    /// The errors of [`rewrite`](Self::rewrite).
    pub(crate) fn rewrite_indexed<'e>(
        &self,
        stored: Option<StoredShard>,
        changes: impl IntoIterator<Item = (Box<dyn Indexer>, ArrayBytes<'e>)>,
        options: &CodecOptions,
    ) -> Result<Option<RewrittenShard>, Error> {
        let shards = &**self.shards();
        shards.codec.check_trusted()?;
        let opened = stored.map(|stored| opened(shards, stored, options));
        let opened = opened.transpose()?.unwrap_or_default();
        let mut changed = match opened.shard {
            Some(shard) => shard,
            None => ChangedShard::empty(shards)?,
        };
        let stored = opened.stored;
        let read = |range: Range<u64>| match &stored {
            Some(stored) => stored.read(&range),
            None => Err(ended(&range).into()),
        };
        for (indexer, elements) in changes {
            changed.change((&*indexer, &elements), &read, options)?;
        }
        let rewritten = rewritten(shards, stored, changed, options)?;
        Ok(rewritten.map(|shard| RewrittenShard {
            recovered_from: opened.recovered_from,
            ..shard
        }))
    }
}

/// A stored shard that was opened for a rewrite.
#[derive(Default)]
struct Opened<'s> {
    stored: Option<StoredShard>,
    /// The shard without changes, or `None` if the shard was never complete.
    shard: Option<ChangedShard<'s>>,
    recovered_from: Option<File>,
}

/// Opens a stored shard. If an update of it was interrupted, the update is undone or completed in memory.
fn opened<'s>(
    shards: &'s Sharding,
    stored: StoredShard,
    options: &CodecOptions,
) -> Result<Opened<'s>, CodecError> {
    let open = |stored: &StoredShard| {
        let read = |range: Range<u64>| stored.read(&range);
        ChangedShard::new(shards, stored.size()?, &read, options)
    };
    let whole = |stored, shard| Opened {
        stored: Some(stored),
        shard: Some(shard),
        recovered_from: None,
    };
    let error = match open(&stored) {
        Ok(shard) => return Ok(whole(stored, shard)),
        Err(error) if !is_about_stored_bytes(&error) => return Err(error),
        Err(error) => error,
    };
    let (object, file): (Bytes, _) = match stored {
        StoredShard::Bytes(bytes) => (bytes, None),
        StoredShard::File(file) => {
            // Another process may be in the middle of the update: it would hold the lock.
            if let Err(TryLockError::WouldBlock) = file.try_lock() {
                let what = "another process is updating the shard. Nothing was written: try again";
                return Err(io::Error::new(ErrorKind::ResourceBusy, what).into());
            }
            let stored = StoredShard::File(file);
            if let Ok(shard) = open(&stored) {
                return Ok(whole(stored, shard));
            }
            let object = stored.read(&(0..stored.size()?))?.into();
            let StoredShard::File(file) = stored else {
                return Err(error);
            };
            (object, Some(file))
        }
    };
    let parts = match diagnosis_of(shards, &object)? {
        Diagnosis::Intact => return Err(error),
        Diagnosis::Unrecoverable(reason) => {
            return Err(caused(
                format!("{error}. Recovery is not possible: {reason}"),
                &error,
            ));
        }
        Diagnosis::Erase => {
            tracing::warn!("a shard that was never complete is written anew");
            return Ok(Opened {
                recovered_from: file,
                ..Opened::default()
            });
        }
        Diagnosis::Undo(parts) => {
            tracing::warn!(
                "an interrupted update of a shard is undone while the shard is written anew"
            );
            parts
        }
        Diagnosis::Complete(parts) => {
            tracing::warn!(
                "an interrupted update of a shard is completed while the shard is written anew"
            );
            parts
        }
    };
    let parts = parts.into_iter().map(|(at, bytes)| (at, bytes.into()));
    let parts: Vec<(u64, Bytes)> = parts.collect();
    let len = object.len();
    let object = with_parts(&StoreKey::root(), object, &parts);
    let object = object.map_err(|_| no_memory("a shard that is recovered", len))?;
    let stored = StoredShard::Bytes(object);
    let shard = open(&stored)?;
    Ok(Opened {
        recovered_from: file,
        ..whole(stored, shard)
    })
}

/// Places the subchunks of `changed` in a new shard, one after the other.
fn rewritten(
    shards: &Sharding,
    stored: Option<StoredShard>,
    changed: ChangedShard<'_>,
    options: &CodecOptions,
) -> Result<Option<RewrittenShard>, CodecError> {
    let behind = changed.stored();
    let index = &shards.index;
    let mut end = Some(index.room().0);
    let mut runs: Vec<Run> = Vec::new();
    let mut place = |extent: &Range<usize>| {
        let start = end?;
        end = start.checked_add(extent.len());
        match (runs.last_mut(), extent.start.checked_sub(behind)) {
            _ if extent.is_empty() => {}
            (Some(Run::Stored(last)), None) if last.end == extent.start as u64 => {
                last.end = extent.end as u64;
            }
            (_, None) => runs.push(Run::Stored(extent.start as u64..extent.end as u64)),
            (_, Some(from)) => runs.push(Run::New(from..from + extent.len())),
        }
        Some(start..end?)
    };
    let extents: Vec<Extent> = if changed.overlaps() {
        let mut places = HashMap::new();
        let extents = changed.extents().map(|extent| {
            let extent = extent?;
            let key = (extent.start, extent.end);
            places.entry(key).or_insert_with(|| place(&extent)).clone()
        });
        let extents = extents.collect();
        check_overlaps(places.into_keys().collect())?;
        extents
    } else {
        changed.extents().map(|extent| place(&extent?)).collect()
    };
    if extents.iter().all(Option::is_none) {
        return Ok(None);
    }
    let size = end.and_then(|end| end.checked_add(index.room().1));
    let size = size.ok_or_else(|| {
        CodecError::Other("the new shard would have more bytes than memory".to_string())
    })?;
    Ok(Some(RewrittenShard {
        index: index.encode(&extents, options)?,
        is_index_first: !index.is_at_end(),
        new: changed.into_new(),
        recovered_from: None,
        reading: Mutex::default(),
        stored,
        runs,
        size: size as u64,
    }))
}

/// Checks that no two of the `extents` share a byte. No two of them are equal.
fn check_overlaps(mut extents: Vec<(usize, usize)>) -> Result<(), CodecError> {
    extents.retain(|(start, end)| start < end);
    extents.sort_unstable();
    let mut pairs = extents.windows(2);
    match pairs.find_map(|pair| match pair {
        [(a, b), (c, d)] if c < b => Some((a..b, c..d)),
        _ => None,
    }) {
        None => Ok(()),
        Some((one, other)) => Err(CodecError::Other(format!(
            "subchunks overlap in the stored shard, at bytes {one:?} and {other:?}: it is corrupted"
        ))),
    }
}

impl RewrittenShard {
    /// Returns the size of the shard, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the shard in memory.
    ///
    /// # Errors
    /// An error of reading the stored shard, or [`ErrorKind::OutOfMemory`].
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let mut shard = Vec::new();
        reserve(&mut shard, self.size)?;
        self.each(|source| source.append_to(&mut shard))?;
        Ok(shard)
    }

    /// Writes the shard to `file`, from the current position of the file on. The file should end with the
    /// shard, because a reader finds an index at the end of the file. The operating system copies long runs
    /// of subchunks from a stored file.
    ///
    /// # Errors
    /// An error of reading the stored shard or of writing `file`. On Unix [`ErrorKind::InvalidInput`] if `file` is the
    /// stored file.
    pub fn write_to(&self, file: &mut File) -> io::Result<()> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = match &self.stored {
            Some(StoredShard::File(stored)) => Some(stored),
            Some(StoredShard::Bytes(_)) | None => self.recovered_from.as_ref(),
        };
        if let Some(stored) = stored
            && is_same(stored, file)?
        {
            let what = "a shard cannot be written over itself: its subchunks are copied from there";
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        let mut short = Vec::new();
        self.each(|source| {
            let is_short = source.len() < SHORT;
            if is_short {
                source.append_to(&mut short)?;
            }
            if !is_short || short.len() as u64 >= SHORT {
                file.write_all(&short)?;
                short.clear();
            }
            if is_short {
                Ok(())
            } else {
                source.write_to(file)
            }
        })?;
        file.write_all(&short)
    }

    /// Calls `copy` with each run of bytes of the shard, in order.
    fn each(&self, mut copy: impl FnMut(CopySource<'_>) -> io::Result<()>) -> io::Result<()> {
        if self.is_index_first {
            copy(CopySource::Bytes(&self.index))?;
        }
        for run in &self.runs {
            match (run, &self.stored) {
                (Run::New(range), _) => {
                    let new = self.new.get(range.clone());
                    copy(CopySource::Bytes(new.ok_or(ErrorKind::UnexpectedEof)?))?;
                }
                (Run::Stored(range), Some(stored)) => copy(stored.source(range)?)?,
                (Run::Stored(range), None) => return Err(ended(range)),
            }
        }
        if self.is_index_first {
            return Ok(());
        }
        copy(CopySource::Bytes(&self.index))
    }
}

/// The number of bytes below which runs are collected and written together: a system call takes longer than a
/// copy.
const SHORT: u64 = 64 << 10;

#[cfg(unix)]
fn is_same(one: &File, other: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

#[cfg(not(unix))]
fn is_same(_: &File, _: &File) -> io::Result<bool> {
    Ok(false)
}
