//! Reads and writes strings and byte strings: elements of variable length, which Python has as separate
//! objects.

use std::borrow::Cow;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyString};
use zarrs::array::{ArrayBytes, ArrayBytesOffsets, ArraySubset};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};
use zarrs_cuda::storage::SparseShardStore;

use crate::array::{Opened, Shared, shard_format};
use crate::batch::{Batch, Item};
use crate::error::{Error, no_panic};
use crate::files::Files;
use crate::pool::{self, each};
use crate::read::check_keys;
use crate::store::Store;

/// The elements of a box, in C order: their bytes, and the offset of each element, followed by the end of the
/// last one.
#[derive(Debug)]
pub(crate) struct Elements {
    bytes: Vec<u8>,
    offsets: Vec<usize>,
}

impl Elements {
    /// Takes the elements of a list, which are `str`, `bytes` or `bytearray`. `None` and 0 become empty
    /// elements, as in numcodecs, because an object array that was never filled has them.
    pub(crate) fn of(list: &Bound<'_, PyList>) -> PyResult<Self> {
        let (mut bytes, mut offsets) = (Vec::new(), Vec::with_capacity(list.len() + 1));
        offsets.push(0);
        for element in list.iter() {
            if let Ok(text) = element.cast::<PyString>() {
                bytes.extend_from_slice(text.to_str()?.as_bytes());
            } else if let Ok(raw) = element.cast::<PyBytes>() {
                bytes.extend_from_slice(raw.as_bytes());
            } else if let Ok(raw) = element.cast::<PyByteArray>() {
                bytes.extend_from_slice(&raw.to_vec());
            } else if !element.is_none() && !element.eq(0)? {
                return Err(PyTypeError::new_err(format!(
                    "expected a string or bytes, and found {}",
                    element.get_type().name()?
                )));
            }
            offsets.push(bytes.len());
        }
        Ok(Self { bytes, offsets })
    }

    /// Returns the elements as a list of `str`, or of `bytes`.
    ///
    /// # Errors
    /// [`Error::Damaged`] with `key` if an element of text is not valid UTF-8.
    pub(crate) fn into_list<'py>(
        self,
        py: Python<'py>,
        array: &str,
        key: &str,
        is_text: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let elements = self
            .offsets
            .windows(2)
            .map(|ends| &self.bytes[ends[0]..ends[1]]);
        if !is_text {
            return PyList::new(py, elements.map(|element| PyBytes::new(py, element)));
        }
        let texts = elements
            .map(std::str::from_utf8)
            .collect::<Result<Vec<_>, _>>();
        let texts = texts.map_err(|error| {
            let key = key.to_owned();
            let why = format!("an element is no UTF-8: {error}");
            Error::Damaged { key, why }.into_py(py, array)
        })?;
        PyList::new(py, texts.into_iter().map(|text| PyString::new(py, text)))
    }

    fn is_all(&self, fill_value: &[u8]) -> bool {
        let mut ends = self.offsets.windows(2);
        ends.all(|ends| self.bytes[ends[0]..ends[1]] == *fill_value)
    }

    fn as_array_bytes(&self) -> Result<ArrayBytes<'_>, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Value(error.to_string());
        let offsets = ArrayBytesOffsets::new(&*self.offsets).map_err(|error| failed(&error))?;
        ArrayBytes::new_vlen(&*self.bytes, offsets).map_err(|error| failed(&error))
    }
}

/// Reads the boxes of `batch`. Returns, for each box, whether its chunk exists, and the elements of the box.
pub(crate) fn read(
    opened: &Opened,
    shared: Option<&Shared>,
    store: &Store,
    batch: &Batch,
    threads: NonZeroUsize,
) -> Result<Vec<(bool, Elements)>, Error> {
    check_keys(opened, batch)?;
    let array = opened.array.with_storage(Arc::new(store.clone()));
    pool::run(threads, || {
        each(&batch.items, threads, |item, share| {
            let options = CodecOptions::default().with_concurrent_target(share);
            let decode = || {
                if let Some(shared) = shared {
                    let subset = opened.subset(item);
                    let subchunks = &shared.subchunks;
                    if !opened.decodes_whole {
                        return subchunks.retrieve_array_subset_opt(&subset, &options);
                    }
                    let whole = to_borders(
                        &subset,
                        &subchunks.chunk_shape(&vec![0; subset.dimensionality()])?,
                    );
                    let decoded: ArrayBytes<'_> =
                        subchunks.retrieve_array_subset_opt(&whole, &options)?;
                    let part = subset.relative_to(whole.start())?;
                    let part =
                        decoded.extract_array_subset(&part, whole.shape(), array.data_type())?;
                    return Ok(part.into_owned());
                }
                let is_whole = opened.is_whole(item);
                if (is_whole || opened.decodes_whole) && store.has_whole(&item.key) {
                    let decoded: ArrayBytes<'_> =
                        array.retrieve_chunk_opt(&item.indices, &options)?;
                    if is_whole {
                        return Ok(decoded);
                    }
                    let shape: Vec<u64> = opened.chunk.iter().map(|extent| extent.get()).collect();
                    let part = decoded.extract_array_subset(
                        &item.in_chunk(),
                        &shape,
                        array.data_type(),
                    )?;
                    return Ok(part.into_owned());
                }
                let decoder = array.partial_decoder_opt(&item.indices, &options)?;
                let decoded = decoder.partial_decode(&item.in_chunk(), &options)?;
                Ok(decoded.into_owned())
            };
            let damaged = |why: String| Error::Damaged {
                key: item.key.clone(),
                why,
            };
            let decoded =
                no_panic(decode).ok_or_else(|| damaged("its elements are cut off".to_owned()))?;
            let decoded: ArrayBytes<'_> =
                decoded.map_err(|error| Error::array(&item.key, &error))?;
            let decoded = decoded
                .into_variable()
                .map_err(|error| damaged(error.to_string()))?;
            let (bytes, offsets) = decoded.into_parts();
            let elements = Elements {
                bytes: bytes.into_owned(),
                offsets: offsets.to_vec(),
            };
            let may_have_frame = shared.is_some() && matches!(store, Store::Files(_));
            let is_there =
                store.has(&item.key)? || (may_have_frame && store.has_frame(&item.key)?);
            Ok((is_there, elements))
        })
    })?
}

/// Writes `elements` to the boxes of `batch`, which are whole chunks if the array has no shards. If Python writes
/// the store, then `store` keeps the changes.
pub(crate) fn write(
    opened: &Opened,
    store: &Store,
    in_place: bool,
    batch: &Batch,
    elements: &[Elements],
    threads: NonZeroUsize,
) -> Result<(), Error> {
    check_keys(opened, batch)?;
    check_frames(opened, store, batch, store.waiting(threads))?;
    pool::run(threads, || {
        each(&batch.items, threads, |item, share| {
            let options = batch.options(share);
            let elements = of_item(elements, item)?;
            if let Store::Files(files) = store
                && in_place
                && !opened.is_whole(item)
            {
                return change_in_place(opened, files, item, elements, &options);
            }
            let value = encode(opened, store, item, elements, &options)?;
            store.change(&item.key, value.map(Cow::Owned))
        })
    })??;
    Ok(())
}

/// Checks that no subchunks are stored beside the shards of `batch`, before the first shard is written: such
/// subchunks would hide the written elements. For stores that Python uses, Python makes this check.
fn check_frames(
    opened: &Opened,
    store: &Store,
    batch: &Batch,
    threads: NonZeroUsize,
) -> Result<(), Error> {
    let array = format!("/{}", batch.path);
    if !opened.is_sharded
        || !store.is_ours()
        || !SparseShardStore::is_marked(store, &array).map_err(Error::from)?
    {
        return Ok(());
    }
    let check = |item: &Item, _| {
        if store.has_frame(&item.key)? {
            return Err(Error::Frames(item.key.clone()));
        }
        Ok(())
    };
    pool::run(threads, || each(&batch.items, threads, check))??;
    Ok(())
}

/// Writes `elements` to the boxes of `batch` as [`write`] does, but stores subchunks beside their shards.
pub(crate) fn write_shared(
    opened: &Opened,
    shared: &Shared,
    batch: &Batch,
    elements: &[Elements],
    threads: NonZeroUsize,
) -> Result<(), Error> {
    check_keys(opened, batch)?;
    pool::run(threads, || {
        each(&batch.items, threads, |item, share| {
            let elements = of_item(elements, item)?.as_array_bytes()?;
            // zarrs takes the elements ["aa", ""] for two fill values "a", and would not store them.
            let options = batch.options(share).with_store_empty_chunks(true);
            let kept = Arc::new(shared.store.batch());
            let subchunks = shared.subchunks.with_storage(kept.clone());
            subchunks
                .store_array_subset_opt(&opened.subset(item), elements, &options)
                .map_err(|error| Error::array(&item.key, &error))?;
            kept.write().map_err(Error::from)
        })
    })??;
    Ok(())
}

/// Returns the smallest box of whole chunks that contains `subset`. `chunk` is the shape of a chunk.
fn to_borders(subset: &ArraySubset, chunk: &[NonZeroU64]) -> ArraySubset {
    let axes = subset.start().iter().zip(subset.shape()).zip(chunk);
    let ranges = axes.map(|((&start, &len), size)| {
        let size = size.get();
        let end = start
            .saturating_add(len)
            .div_ceil(size)
            .saturating_mul(size);
        start / size * size..end
    });
    ArraySubset::from(ranges)
}

fn of_item<'e>(elements: &'e [Elements], item: &Item) -> Result<&'e Elements, Error> {
    let found = elements.get(item.position);
    let wanted = item.shape.iter().product::<usize>();
    found
        .filter(|found| found.offsets.len() == wanted + 1)
        .ok_or_else(|| Error::Value(format!("{} is not given {wanted} elements", item.key)))
}

fn change_in_place(
    opened: &Opened,
    files: &Arc<Files>,
    item: &Item,
    elements: &Elements,
    options: &CodecOptions,
) -> Result<(), Error> {
    let options = options.with_experimental_partial_encoding(true);
    let elements = elements.as_array_bytes()?;
    let array = opened.array.with_storage(files.clone());
    array
        .store_chunk_subset_opt(&item.indices, &item.in_chunk(), elements, &options)
        .map_err(|error| Error::writing(&item.key, &error))
}

/// Returns the new value of the chunk of `item`, or `None` if all of its elements are the fill value. Subchunks of a
/// shard that the box does not meet are copied in encoded form.
fn encode(
    opened: &Opened,
    store: &Store,
    item: &Item,
    elements: &Elements,
    options: &CodecOptions,
) -> Result<Option<Vec<u8>>, Error> {
    let (array, key) = (&opened.array, &item.key);
    if !opened.is_whole(item) {
        let boxes = [(item.in_chunk(), elements.as_array_bytes()?)];
        let stored = store.stored(key)?;
        let rewritten = shard_format(array).and_then(|f| f.rewrite(stored, boxes, options));
        let rewritten = rewritten.map_err(|error| Error::changing(key, &error))?;
        let bytes = rewritten.map(|shard| shard.to_bytes()).transpose();
        return bytes.map_err(|error| Error::store("change", key, &error.into()));
    }
    if !options.store_empty_chunks() && elements.is_all(array.fill_value().as_ne_bytes()) {
        return Ok(None);
    }
    let encoded = array.codecs().encode(
        elements.as_array_bytes()?,
        &opened.chunk,
        array.data_type(),
        array.fill_value(),
        options,
    );
    encoded
        .map(|value| Some(value.into_owned()))
        .map_err(|error| Error::encoding(key, &error))
}
