//! Writing the boxes of a batch: read, change, encode, replace.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::sync::Arc;

use zarrs::array::{ArrayBytes, ArraySubset};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};

use crate::array::{Opened, Shared};
use crate::batch::{Batch, Item};
use crate::error::Error;
use crate::files::Files;
use crate::memory::Memory;
use crate::pool;
use crate::read::{check_keys, each};
use crate::store::{InMemory, Store};

/// A key, and its new value; `None` if there is to be none.
pub(crate) type Change = (String, Option<Vec<u8>>);

/// Writes the boxes of `batch`, whose elements are in `memory`. Returns the values that the caller is to
/// store: none if they are files.
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
    let changes = pool::run(threads, || {
        each(batch, threads, |item, share| {
            let options = CodecOptions::default()
                .with_store_empty_chunks(batch.store_empty)
                .with_concurrent_target(share);
            if let Store::Files(files) = store {
                check_frame(files, &item.key)?;
            }
            let value = opened.encode(store, item, memory, &options, share)?;
            let Store::Files(files) = store else {
                return Ok(Some((item.key.clone(), value.map(Cow::into_owned))));
            };
            store_file(files, &item.key, value.as_deref())?;
            Ok(None)
        })
    })??;
    Ok(changes.into_iter().flatten().collect())
}

/// Replaces the file of `key`, or removes it.
pub(crate) fn store_file(files: &Files, key: &str, value: Option<&[u8]>) -> Result<(), Error> {
    let (doing, done) = match value {
        Some(value) => ("write", files.replace(key, value)),
        None => ("erase", files.remove(key)),
    };
    done.map_err(|error| Error::store(doing, key, &error.into()))
}

/// As [`write`], by updating shards where they are stored.
pub(crate) fn write_in_place(
    opened: &Opened,
    files: &Arc<Files>,
    batch: &Batch,
    memory: &Memory,
    threads: NonZeroUsize,
) -> Result<(), Error> {
    let array = opened.array.with_storage(files.clone());
    let one = |item: &Item, share: usize| {
        opened.check_key(&item.key, &item.indices)?;
        check_frame(files, &item.key)?;
        let options = options(batch, share).with_experimental_partial_encoding(true);
        let elements = opened.boxed(item, memory, share);
        let subset = in_chunk(item);
        let elements = ArrayBytes::new_flen(elements);
        array
            .store_chunk_subset_opt(&item.indices, &subset, elements, &options)
            .map_err(|error| Error::array(&item.key, &error))
    };
    pool::run(threads, || each(batch, threads, one))??;
    Ok(())
}

/// As [`write`], by storing subchunks beside their shards.
pub(crate) fn write_shared(
    opened: &Opened,
    shared: &Shared,
    batch: &Batch,
    memory: &Memory,
    threads: NonZeroUsize,
) -> Result<(), Error> {
    let one = |item: &Item, share: usize| {
        opened.check_key(&item.key, &item.indices)?;
        let elements = ArrayBytes::new_flen(opened.boxed(item, memory, share));
        let subset = opened.subset(item);
        shared
            .subchunks
            .store_array_subset_opt(&subset, elements, &options(batch, share))
            .map_err(|error| Error::array(&item.key, &error))
    };
    pool::run(threads, || each(batch, threads, one))??;
    Ok(())
}

/// The box of `item`, in elements of its chunk.
pub(crate) fn in_chunk(item: &Item) -> ArraySubset {
    let ranges = item.start.iter().zip(&item.shape);
    ArraySubset::from(ranges.map(|(&start, &len)| start as u64..(start + len) as u64))
}

pub(crate) fn options(batch: &Batch, threads: usize) -> CodecOptions {
    CodecOptions::default()
        .with_store_empty_chunks(batch.store_empty)
        .with_concurrent_target(threads)
}

/// Checks that no subchunks of the shard `key` are stored beside it: they would hide what is written.
pub(crate) fn check_frame(files: &Files, key: &str) -> Result<(), Error> {
    match files.has_frame(key) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Error::Frames(key.to_owned())),
        Err(error) => Err(Error::store(
            "look for subchunks beside",
            key,
            &error.into(),
        )),
    }
}

impl Opened {
    /// The elements of the box of `item`, in C order.
    fn boxed<'m>(&self, item: &Item, memory: &'m Memory, threads: usize) -> Cow<'m, [u8]> {
        if let Some(elements) = memory.contiguous(item.offset, &item.shape, &item.strides) {
            return Cow::Borrowed(elements);
        }
        let mut step = self.element_size;
        let mut strides = vec![0; item.shape.len()];
        for (stride, extent) in strides.iter_mut().zip(&item.shape).rev() {
            *stride = step.cast_signed();
            step *= extent;
        }
        let mut elements = vec![0; step];
        let from = (item.offset, &*item.strides);
        memory.copy_out(from, &item.shape, &mut elements, (0, &strides), threads);
        Cow::Owned(elements)
    }

    /// The new value of the chunk of `item`; `None` if all of it is the fill value.
    fn encode<'m>(
        &self,
        store: &Store,
        item: &Item,
        memory: &'m Memory,
        options: &CodecOptions,
        threads: usize,
    ) -> Result<Option<Cow<'m, [u8]>>, Error> {
        if self.is_sharded
            && !self.is_whole(item)
            && let Some(before) = store.copy(&item.key)?
        {
            let elements = ArrayBytes::new_flen(self.boxed(item, memory, threads));
            return Ok(self
                .change(Some(before), item, elements, options)?
                .map(Cow::Owned));
        }
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
            .map(Some)
            .map_err(|error| Error::encoding(&item.key, &error))
    }

    /// The shard `before` with `elements` in the box of `item`: other subchunks are copied as they are.
    /// `None` if all of it is the fill value.
    pub(crate) fn change(
        &self,
        before: Option<Vec<u8>>,
        item: &Item,
        elements: ArrayBytes<'_>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<u8>>, Error> {
        let shard = Arc::new(before.map_or_else(InMemory::default, InMemory::new));
        let array = self.in_memory.with_storage(shard.clone());
        let options = options.with_experimental_partial_encoding(true);
        array
            .store_chunk_subset_opt(&item.indices, &in_chunk(item), elements, &options)
            .map_err(|error| Error::array(&item.key, &error))?;
        let Some(changed) = shard.take() else {
            return Ok(None);
        };
        let compacted = array.codecs().array_to_bytes_codec().compact(
            Cow::Borrowed(&changed),
            &self.chunk,
            array.data_type(),
            array.fill_value(),
            &options,
        );
        let compacted = compacted.map_err(|error| Error::encoding(&item.key, &error))?;
        let compacted = compacted.map(Cow::into_owned);
        Ok(Some(compacted.unwrap_or(changed)))
    }

    pub(crate) fn is_whole(&self, item: &Item) -> bool {
        let mut extents = self.chunk.iter().zip(&item.shape);
        extents.all(|(extent, len)| extent.get() == *len as u64)
    }

    /// The elements of the chunk of `item` after the write.
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
        let is_complete = is_whole || (item.is_complete && !self.is_sharded);
        let before = if is_complete {
            None
        } else {
            store.whole(&item.key)?
        };
        let mut elements = match before {
            Some(before) => self
                .decode(&item.key, Cow::Borrowed(&before), threads)?
                .into_owned(),
            None if is_whole => self.memory()?,
            None => {
                let mut elements = self.memory()?;
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

    /// New memory for the elements of a chunk.
    fn memory(&self) -> Result<Vec<u8>, Error> {
        zarrs_cuda::internals::host::memory::zeros(self.chunk_bytes, true).ok_or_else(|| {
            Error::Memory(format!(
                "out of memory: {} bytes for a chunk",
                self.chunk_bytes
            ))
        })
    }
}

/// Whether `elements` are all bitwise equal to `element`.
fn is_all(elements: &[u8], element: &[u8]) -> bool {
    elements.starts_with(element)
        && elements[element.len()..] == elements[..elements.len() - element.len()]
}
