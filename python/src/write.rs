//! Writes the boxes of a batch: reads a chunk, changes it, encodes it, and replaces the stored value.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use zarrs::array::{ArrayBytes, ArraySubset};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};
use zarrs_cuda::maintenance::RewrittenShard;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_storage::StorageError;

use crate::array::{Opened, Shared, shard_format};
use crate::batch::{Batch, Item};
use crate::error::Error;
use crate::files::Files;
use crate::maintain;
use crate::memory::Memory;
use crate::objects::Objects;
use crate::pool::{self, each};
use crate::read::check_keys;
use crate::store::Store;

/// A key, and its new value, or `None` if the value is to be erased.
pub(crate) type Change = (String, Option<Vec<u8>>);

/// The new value of a chunk.
pub(crate) enum Value<'m> {
    Encoded(Cow<'m, [u8]>),
    Rewritten(RewrittenShard),
}

impl Value<'_> {
    pub(crate) fn write_to(&self, file: &mut File) -> io::Result<()> {
        match self {
            Self::Encoded(bytes) => file.write_all(bytes),
            Self::Rewritten(shard) => shard.write_to(file),
        }
    }

    pub(crate) fn into_bytes(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Encoded(bytes) => Ok(bytes.into_owned()),
            Self::Rewritten(shard) => shard.to_bytes(),
        }
    }
}

/// Writes the boxes of `batch`, whose elements are in `memory`. Returns the values that the caller must
/// store; there are none if the store has files.
pub(crate) fn write(
    opened: &Opened,
    store: &Store,
    batch: &Batch,
    memory: &Memory,
    threads: NonZeroUsize,
) -> Result<Vec<Change>, Error> {
    if batch.items.is_empty() {
        return Ok(Vec::new());
    }
    check_keys(opened, batch)?;
    check_frames(opened, store, batch)?;
    // Several boxes of one chunk, which follow each other in the batch, are one change.
    let chunks: Vec<&[Item]> = batch.items.chunk_by(|a, b| a.key == b.key).collect();
    let changes = pool::run(threads, || {
        each(&chunks, threads, |items, share| {
            let options = options(batch, share);
            let [Item { key, .. }, ..] = *items else {
                return Ok(None);
            };
            let value = opened.encode(store, items, memory, &options, share)?;
            let Store::Files(files) = store else {
                let value = value.map(Value::into_bytes).transpose();
                let value = value.map_err(|error| Error::store("change", key, &error.into()));
                return Ok(Some((key.clone(), value?)));
            };
            store_file(files, key, value.as_ref())?;
            Ok(None)
        })
    })??;
    Ok(changes.into_iter().flatten().collect())
}

/// Writes the boxes of `batch` to objects. Gets the objects that change in part first, several at once, and
/// puts the new values last.
pub(crate) fn write_objects(
    opened: &Opened,
    objects: &Arc<Objects>,
    batch: &Batch,
    memory: &Memory,
    threads: NonZeroUsize,
) -> Result<(), Error> {
    check_keys(opened, batch)?;
    let store = Store::Objects(objects.clone());
    let mut is_checked = false;
    for items in batch.items.chunks(objects.at_once()) {
        let chunks = items.chunk_by(|a, b| a.key == b.key);
        let wanted = chunks.filter_map(|boxes| {
            let first = boxes.first()?;
            let is_complete = boxes.len() == 1 && opened.is_complete(first);
            (!is_complete).then_some(&first.key)
        });
        let wanted: Vec<&String> = wanted.collect();
        let get = || objects.each(&wanted, |key| Ok(((*key).clone(), objects.value(key)?)));
        let values = if is_checked {
            get()?
        } else {
            // For most arrays, one request shows that no subchunks are stored beside shards. It runs while
            // values are requested.
            let both = || rayon::join(|| check_frames(opened, &store, batch), get);
            let (checked, values) = pool::run(objects.requests, both)?;
            checked?;
            values?
        };
        is_checked = true;
        let given = Store::Given(Arc::new(values.into_iter().collect()));
        let some = batch.of(items.iter());
        let changes = write(opened, &given, &some, memory, threads)?.into_iter();
        let changes: Vec<_> = changes
            .map(|(key, value)| (key, value.map(Bytes::from)))
            .collect();
        objects.each(&changes, |(key, value)| objects.change(key, value.clone()))?;
    }
    Ok(())
}

/// Replaces the file of `key` by `value`, or removes the file if `value` is `None`.
pub(crate) fn store_file(files: &Files, key: &str, value: Option<&Value<'_>>) -> Result<(), Error> {
    let (doing, done) = match value {
        Some(value) => ("write", files.replace(key, |file| value.write_to(file))),
        None => ("erase", files.remove(key)),
    };
    done.map_err(|error| Error::store(doing, key, &error.into()))
}

/// Writes the boxes of `batch` by updating shards where they are stored.
pub(crate) fn write_in_place(
    opened: &Opened,
    files: &Arc<Files>,
    batch: &Batch,
    memory: &Memory,
    threads: NonZeroUsize,
) -> Result<(), Error> {
    let array = opened.array.with_storage(files.clone());
    check_keys(opened, batch)?;
    check_frames(opened, &Store::Files(files.clone()), batch)?;
    let one = |item: &Item, share: usize| {
        let options = options(batch, share).with_experimental_partial_encoding(true);
        let elements = opened.boxed(item, memory, share)?;
        let subset = in_chunk(item);
        let elements = ArrayBytes::new_flen(elements);
        array
            .store_chunk_subset_opt(&item.indices, &subset, elements, &options)
            .map_err(|error| Error::writing(&item.key, &error))
    };
    pool::run(threads, || each(&batch.items, threads, one))??;
    Ok(())
}

/// Writes the boxes of `batch` by storing subchunks beside their shards. The subchunks of one shard are
/// stored together.
pub(crate) fn write_shared(
    opened: &Opened,
    shared: &Shared,
    batch: &Batch,
    memory: &Memory,
    threads: NonZeroUsize,
) -> Result<(), Error> {
    check_keys(opened, batch)?;
    let subchunk = opened.subchunk.as_deref().unwrap_or_default();
    let subchunk = subchunk
        .iter()
        .try_fold(opened.element_size, |bytes, extent| {
            bytes.checked_mul(usize::try_from(*extent).ok()?)
        });
    let chunks: Vec<&[Item]> = batch.items.chunk_by(|a, b| a.key == b.key).collect();
    let one = |items: &&[Item], share: usize| {
        let kept = Arc::new(shared.store.batch());
        let subchunks = shared.subchunks.with_storage(kept.clone());
        for item in *items {
            let elements = ArrayBytes::new_flen(opened.boxed(item, memory, share)?);
            let subset = opened.subset(item);
            check_memory(&item.key, subchunk)?;
            subchunks
                .store_array_subset_opt(&subset, elements, &options(batch, share))
                .map_err(|error| Error::array(&item.key, &error))?;
        }
        kept.write().map_err(maintain::failed)
    };
    pool::run(threads, || each(&chunks, threads, one))??;
    Ok(())
}

/// Checks that there is memory for a subchunk of `bytes` bytes, and for its object. zarrs allocates both, and
/// would abort the process if it could not.
fn check_memory(key: &str, bytes: Option<usize>) -> Result<(), Error> {
    let mut memory = [Vec::<u8>::new(), Vec::new()];
    let found = bytes.is_some_and(|bytes| {
        let mut each = memory.iter_mut();
        each.all(|one| one.try_reserve_exact(bytes).is_ok())
    });
    // Without this, the compiler may remove allocations that nothing uses, and assume that they succeed.
    std::hint::black_box(&memory);
    if found {
        return Ok(());
    }
    let bytes = bytes.map_or_else(|| "too many".to_owned(), |bytes| bytes.to_string());
    Err(Error::Memory(format!(
        "out of memory: {bytes} bytes for a subchunk of {key}, and as many for the object beside the shard: \
         write in another mode of shards, or make an array with smaller subchunks"
    )))
}

/// Returns the box of `item`, in elements of its chunk.
pub(crate) fn in_chunk(item: &Item) -> ArraySubset {
    let ranges = item.start.iter().zip(&item.shape);
    ArraySubset::from(ranges.map(|(&start, &len)| start as u64..(start + len) as u64))
}

pub(crate) fn options(batch: &Batch, threads: usize) -> CodecOptions {
    CodecOptions::default()
        .with_store_empty_chunks(batch.store_empty)
        .with_concurrent_target(threads)
}

/// Checks that no subchunks are stored beside the shards of `batch`, before the first shard is written: such
/// subchunks would hide the written elements. For stores that Python uses, Python makes this check.
pub(crate) fn check_frames(opened: &Opened, store: &Store, batch: &Batch) -> Result<(), Error> {
    let shards: Vec<&[Item]> = batch.items.chunk_by(|a, b| a.key == b.key).collect();
    let check = |items: &&[Item], find: &dyn Fn(&str) -> Result<bool, StorageError>| {
        items
            .first()
            .map_or(Ok(()), |Item { key, .. }| match find(key) {
                Ok(false) => Ok(()),
                Ok(true) => Err(Error::Frames(key.clone())),
                Err(error) => Err(Error::store("look for subchunks beside", key, &error)),
            })
    };
    match store {
        Store::Files(files) => {
            let find = |key: &str| Ok(files.has_frame(key)?);
            shards.iter().try_for_each(|items| check(items, &find))
        }
        Store::Objects(objects) if opened.is_sharded => {
            let array = format!("/{}", batch.path);
            let is_marked = SparseShardStore::is_marked(&objects.store, &array);
            if !is_marked.map_err(maintain::failed)? {
                return Ok(());
            }
            let find = |key: &str| objects.has_frame(key);
            objects.each(&shards, |items| check(items, &find)).map(drop)
        }
        Store::Objects(_) | Store::Asked(_) | Store::Given(_) => Ok(()),
    }
}

impl Opened {
    /// Returns the elements of the box of `item`, in C order.
    fn boxed<'m>(
        &self,
        item: &Item,
        memory: &'m Memory,
        threads: usize,
    ) -> Result<Cow<'m, [u8]>, Error> {
        if let Some(elements) = memory.contiguous(item.offset, &item.shape, &item.strides) {
            return Ok(Cow::Borrowed(elements));
        }
        let mut step = self.element_size;
        let mut strides = vec![0; item.shape.len()];
        for (stride, extent) in strides.iter_mut().zip(&item.shape).rev() {
            *stride = step.cast_signed();
            step *= extent;
        }
        let mut elements = zeros(step, &item.key)?;
        let from = (item.offset, &*item.strides);
        memory.copy_out(from, &item.shape, &mut elements, (0, &strides), threads);
        Ok(Cow::Owned(elements))
    }

    /// Returns the new value of the chunk of `items`, or `None` if all of its elements are the fill value.
    /// Only a shard may have several items.
    fn encode<'m>(
        &self,
        store: &Store,
        items: &[Item],
        memory: &'m Memory,
        options: &CodecOptions,
        threads: usize,
    ) -> Result<Option<Value<'m>>, Error> {
        let item = match items {
            [item] if !self.is_sharded || self.is_whole(item) => item,
            _ => {
                let boxes = items.iter().map(|item| -> Result<_, Error> {
                    let elements = self.boxed(item, memory, threads)?;
                    Ok((item, ArrayBytes::new_flen(elements)))
                });
                let key = items.first().map_or("", |item| &*item.key);
                return self.change(store, key, boxes, options);
            }
        };
        let elements = self.elements(store, item, memory, threads)?;
        let array = &self.array;
        let fill_value = array.fill_value().as_ne_bytes();
        if !options.store_empty_chunks() && is_all(&elements, fill_value) {
            return Ok(None);
        }
        let encoded = array.codecs().encode(
            ArrayBytes::new_flen(elements),
            &self.chunk,
            array.data_type(),
            array.fill_value(),
            options,
        );
        encoded
            .map(|encoded| Some(Value::Encoded(encoded)))
            .map_err(|error| Error::encoding(&item.key, &error))
    }

    /// Returns the shard `key` with the elements of `boxes`. Subchunks that no box meets are copied in
    /// encoded form. Returns `None` if all elements are the fill value.
    pub(crate) fn change<'e>(
        &self,
        store: &Store,
        key: &str,
        boxes: impl Iterator<Item = Result<(&'e Item, ArrayBytes<'e>), Error>>,
        options: &CodecOptions,
    ) -> Result<Option<Value<'static>>, Error> {
        let mut failed = None;
        let boxes = boxes.map_while(|one| match one {
            Ok((item, elements)) => Some((in_chunk(item), elements)),
            Err(error) => {
                failed = Some(error);
                None
            }
        });
        let stored = store.stored(key)?;
        let rewritten =
            shard_format(&self.array).and_then(|format| format.rewrite(stored, boxes, options));
        if let Some(error) = failed {
            return Err(error);
        }
        let rewritten = rewritten.map_err(|error| Error::changing(key, &error))?;
        Ok(rewritten.map(Value::Rewritten))
    }

    pub(crate) fn is_whole(&self, item: &Item) -> bool {
        let mut extents = self.chunk.iter().zip(&item.shape);
        extents.all(|(extent, len)| extent.get() == *len as u64)
    }

    /// Returns whether no old element of the chunk of `item` is kept. The elements of a shard behind the end
    /// of the array are kept.
    fn is_complete(&self, item: &Item) -> bool {
        self.is_whole(item) || (item.is_complete && !self.is_sharded)
    }

    /// Returns the elements of the chunk of `item` after the write.
    fn elements<'m>(
        &self,
        store: &Store,
        item: &Item,
        memory: &'m Memory,
        threads: usize,
    ) -> Result<Cow<'m, [u8]>, Error> {
        let from = (item.offset, &*item.strides);
        let is_whole = self.is_whole(item);
        if is_whole && let Some(elements) = memory.contiguous(item.offset, &item.shape, from.1) {
            return Ok(Cow::Borrowed(elements));
        }
        let before = if self.is_complete(item) {
            None
        } else {
            store.whole(&item.key)?
        };
        let mut elements = match before {
            Some(before) => self
                .decode(&item.key, Cow::Borrowed(&before), threads)?
                .into_owned(),
            None if is_whole => zeros(self.chunk_bytes, &item.key)?,
            None => {
                let mut elements = zeros(self.chunk_bytes, &item.key)?;
                let fill_value = self.array.fill_value().as_ne_bytes();
                elements
                    .chunks_exact_mut(self.element_size)
                    .for_each(|e| e.copy_from_slice(fill_value));
                elements
            }
        };
        let (at, strides) = self.place(item);
        memory.copy_out(from, &item.shape, &mut elements, (at, &strides), threads);
        Ok(Cow::Owned(elements))
    }
}

/// Allocates `bytes` zero bytes for elements of the chunk `key`.
fn zeros(bytes: usize, key: &str) -> Result<Vec<u8>, Error> {
    zarrs_cuda_engine::memory::allocate::zeros(bytes, true)
        .ok_or_else(|| Error::Memory(format!("out of memory: {bytes} bytes for {key}")))
}

/// Returns whether each element of `elements` is bitwise equal to `element`.
fn is_all(elements: &[u8], element: &[u8]) -> bool {
    elements.starts_with(element)
        && elements[element.len()..] == elements[..elements.len() - element.len()]
}
