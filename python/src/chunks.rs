//! Writes chunks of arrays without shards: reads a chunk if a part of it is kept, changes it, encodes it, and
//! replaces the stored value.

use std::borrow::Cow;
use std::num::NonZeroUsize;

use zarrs::array::ArrayBytes;
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};

use crate::array::Opened;
use crate::batch::{Batch, Item};
use crate::error::Error;
use crate::memory::Memory;
use crate::pool::{self, each};
use crate::store::Store;

/// Writes the boxes of `batch`, at most one of each chunk.
pub(crate) fn write(
    opened: &Opened,
    store: &Store,
    batch: &Batch,
    memory: &Memory,
    threads: NonZeroUsize,
) -> Result<(), Error> {
    let threads = store.waiting(threads);
    let one = |item: &Item, share: usize| {
        let options = batch.options(share);
        let value = encode(opened, store, item, memory, &options, share)?;
        store.change(&item.key, value)
    };
    pool::run(threads, || each(&batch.items, threads, one))??;
    Ok(())
}

/// Returns the new value of the chunk of `item`, or `None` if all of its elements are the fill value.
fn encode<'m>(
    opened: &Opened,
    store: &Store,
    item: &Item,
    memory: &'m Memory,
    options: &CodecOptions,
    threads: usize,
) -> Result<Option<Cow<'m, [u8]>>, Error> {
    let elements = elements(opened, store, item, memory, threads)?;
    let array = &opened.array;
    let fill_value = array.fill_value().as_ne_bytes();
    if !options.store_empty_chunks() && is_all(&elements, fill_value) {
        return Ok(None);
    }
    let encoded = array.codecs().encode(
        ArrayBytes::new_flen(elements),
        &opened.chunk,
        array.data_type(),
        array.fill_value(),
        options,
    );
    encoded
        .map(Some)
        .map_err(|error| Error::encoding(&item.key, &error))
}

/// Returns the elements of the chunk of `item` after the write. No old element is kept if the box has all
/// elements inside the array, as in zarr-python.
fn elements<'m>(
    opened: &Opened,
    store: &Store,
    item: &Item,
    memory: &'m Memory,
    threads: usize,
) -> Result<Cow<'m, [u8]>, Error> {
    let from = (item.offset, &*item.strides);
    let is_whole = opened.is_whole(item);
    if is_whole && let Some(elements) = memory.contiguous(item.offset, &item.shape, from.1) {
        return Ok(Cow::Borrowed(elements));
    }
    let before = if is_whole || item.is_complete {
        None
    } else {
        store.whole(&item.key)?
    };
    let mut elements = if let Some(before) = before {
        let decoded = opened.decode(&item.key, Cow::Borrowed(&before), threads)?;
        decoded.into_owned()
    } else {
        let mut elements = zeros(opened.chunk_bytes, &item.key)?;
        if !is_whole {
            let fill_value = opened.array.fill_value().as_ne_bytes();
            elements
                .chunks_exact_mut(opened.element_size)
                .for_each(|e| e.copy_from_slice(fill_value));
        }
        elements
    };
    let (at, strides) = opened.place(item);
    memory.copy_out(from, &item.shape, &mut elements, (at, &strides), threads);
    Ok(Cow::Owned(elements))
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
