//! Writing the boxes of a batch: read, change, encode, replace.

use std::borrow::Cow;
use std::num::NonZeroUsize;

use zarrs::array::ArrayBytes;
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};

use crate::array::Opened;
use crate::batch::{Batch, Item};
use crate::error::Error;
use crate::memory::Memory;
use crate::pool;
use crate::read::each;
use crate::store::Store;

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
    for item in &batch.items {
        opened.check_key(&item.key, &item.indices)?;
    }
    let changes = pool::run(threads, || {
        each(batch, threads, |item, share| {
            let options = CodecOptions::default()
                .with_store_empty_chunks(batch.store_empty)
                .with_concurrent_target(share);
            let value = opened.encode(store, item, memory, &options, share)?;
            let Store::Files(files) = store else {
                return Ok(Some((item.key.clone(), value.map(Cow::into_owned))));
            };
            let (doing, done) = match &value {
                Some(value) => ("write", files.replace(&item.key, value)),
                None => ("erase", files.remove(&item.key)),
            };
            done.map_err(|error| Error::store(doing, &item.key, &error.into()))?;
            Ok(None)
        })
    })??;
    Ok(changes.into_iter().flatten().collect())
}

impl Opened {
    /// The new value of the chunk of `item`; `None` if all of it is the fill value.
    fn encode<'m>(
        &self,
        store: &Store,
        item: &Item,
        memory: &'m Memory,
        options: &CodecOptions,
        threads: usize,
    ) -> Result<Option<Cow<'m, [u8]>>, Error> {
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

    /// The elements of the chunk of `item` after the write.
    fn elements<'m>(
        &self,
        store: &Store,
        item: &Item,
        memory: &'m Memory,
        threads: usize,
    ) -> Result<Cow<'m, [u8]>, Error> {
        let from = (item.offset, &*item.strides);
        let extents = self.chunk.iter().zip(&item.shape);
        let is_whole = extents
            .into_iter()
            .all(|(extent, len)| extent.get() == *len as u64);
        if is_whole && let Some(elements) = memory.contiguous(item.offset, &item.shape, from.1) {
            return Ok(Cow::Borrowed(elements));
        }
        let before = if is_whole || item.is_complete {
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
