//! Reads the boxes of a batch.
#![allow(
    clippy::cast_possible_truncation,
    reason = "`lib.rs` asserts that this is a machine of 64 bits"
)]

use std::borrow::Cow;
use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

use zarrs::array::ArraySubset;
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};
use zarrs_cuda::reader::{ArrayReader, ReadReport};
use zarrs_storage::StoreKey;

use crate::array::{Opened, Shared};
use crate::batch::{Batch, Item};
use crate::error::{Error, no_panic};
use crate::given::Given;
use crate::memory::Memory;
use crate::objects::Objects;
use crate::pool::{self, each};
use crate::store::Store;

/// Reads the boxes of `batch` into `memory`. Returns, for each box, whether its chunk exists.
pub(crate) fn read(
    opened: &Opened,
    store: &Store,
    batch: &Batch,
    memory: &Memory,
    threads: NonZeroUsize,
) -> Result<Vec<bool>, Error> {
    if batch.items.is_empty() {
        return Ok(Vec::new());
    }
    check_keys(opened, batch)?;
    if let Store::Objects(objects) = store {
        return read_objects(opened, objects, batch, memory, threads);
    }
    if let Some(reader) = opened.reader(store, threads.get())? {
        return read_boxes(opened, &reader, batch, memory, threads);
    }
    pool::run(threads, || {
        each(&batch.items, threads, |item, share| {
            decode(opened, store, item, memory, share)
        })
    })?
}

/// Reads the boxes of `batch` from objects, as [`read`] does. An object that is wanted whole takes one
/// request. Several requests are made at once, and the objects are decoded afterwards.
fn read_objects(
    opened: &Opened,
    objects: &Arc<Objects>,
    batch: &Batch,
    memory: &Memory,
    threads: NonZeroUsize,
) -> Result<Vec<bool>, Error> {
    let store = Store::Objects(objects.clone());
    let reader = opened.reader(&store, threads.get())?;
    let is_whole = |item: &Item| reader.is_none() || opened.is_whole(item);
    let numbers = 0..batch.items.len();
    let (whole, parts): (Vec<usize>, Vec<usize>) =
        numbers.partition(|&number| is_whole(&batch.items[number]));
    let some = |numbers: &[usize]| batch.of(numbers.iter().map(|&number| &batch.items[number]));
    let mut found = vec![false; batch.items.len()];
    for numbers in whole.chunks(objects.at_once()) {
        let batch = some(numbers);
        let value = |item: &Item| Ok((item.key.clone(), objects.value(&item.key)?));
        let values = objects.each(&batch.items, value)?;
        let given = Store::Given(Arc::new(Given::new(values.into_iter().collect())));
        let read = read(opened, &given, &batch, memory, threads)?;
        numbers
            .iter()
            .zip(read)
            .for_each(|(&number, is_there)| found[number] = is_there);
    }
    if let Some(reader) = &reader {
        let (parts_of, threads) = (some(&parts), store.waiting(threads));
        let read = read_boxes(opened, reader, &parts_of, memory, threads)?;
        parts
            .iter()
            .zip(read)
            .for_each(|(&number, is_there)| found[number] = is_there);
    }
    Ok(found)
}

/// Reads the boxes of `batch` as [`read`] does, and includes subchunks that are stored beside their shards.
pub(crate) fn read_shared(
    opened: &Opened,
    shared: &Shared,
    batch: &Batch,
    memory: &Memory,
    threads: NonZeroUsize,
) -> Result<Vec<bool>, Error> {
    check_keys(opened, batch)?;
    read_boxes(opened, shared.reader()?, batch, memory, threads)
}

/// Checks that zarrs and zarr-python use the same keys for the chunks of `batch`.
pub(crate) fn check_keys(opened: &Opened, batch: &Batch) -> Result<(), Error> {
    let mut items = batch.items.iter();
    items.try_for_each(|item| opened.check_key(&item.key, &item.indices))
}

fn read_boxes(
    opened: &Opened,
    reader: &ArrayReader<Store>,
    batch: &Batch,
    memory: &Memory,
    threads: NonZeroUsize,
) -> Result<Vec<bool>, Error> {
    if batch.items.is_empty() {
        return Ok(Vec::new());
    }
    if let [item] = &*batch.items {
        let report = read_box(reader, &opened.subset(item), item, memory)?;
        return Ok(vec![report.absent.is_empty()]);
    }
    if let Some((subset, first)) = opened.one_box(&batch.items) {
        let report = read_box(reader, &subset, &first, memory)?;
        let absent: HashSet<&str> = report.absent.iter().map(StoreKey::as_str).collect();
        let is_there = |item: &Item| !absent.contains(&*item.key);
        return Ok(batch.items.iter().map(is_there).collect());
    }
    pool::run(threads, || {
        each(&batch.items, threads, |item, _| {
            let report = read_box(reader, &opened.subset(item), item, memory)?;
            Ok(report.absent.is_empty())
        })
    })?
}

/// Subchunks of a chunk: the key of the chunk, its position in the grid of chunks, and the origins of the
/// subchunks in it.
pub(crate) type Subchunks = (String, Vec<u64>, Vec<Vec<usize>>);

/// Reads `subchunks` into `memory`, one after the other along its first axis. Returns, for each chunk,
/// whether it exists.
pub(crate) fn read_subchunks(
    opened: &Opened,
    reader: &ArrayReader<Store>,
    subchunks: &[Subchunks],
    memory: &Memory,
) -> Result<Vec<bool>, Error> {
    let mut origins: Vec<Vec<u64>> = Vec::new();
    for (key, indices, starts) in subchunks {
        opened.check_key(key, indices)?;
        origins.extend(starts.iter().map(|start| {
            let axes = opened.chunk.iter().zip(indices).zip(start);
            axes.map(|((extent, index), &start)| {
                index
                    .saturating_mul(extent.get())
                    .saturating_add(start as u64)
            })
            .collect()
        }));
    }
    let fits = memory.element_size == opened.element_size
        && memory.shape.first() == Some(&origins.len())
        && memory.shape.len() == opened.chunk.len() + 1;
    let output = memory.output(0, &memory.shape, &memory.strides);
    let Some(output) = output.filter(|_| fits) else {
        return Err(Error::Value(format!(
            "{} subchunks do not fit an output of shape {:?} and elements of {} bytes",
            origins.len(),
            memory.shape,
            memory.element_size
        )));
    };
    let shape: Vec<u64> = memory.shape[1..].iter().map(|&len| len as u64).collect();
    let report = reader.read_boxes_bytes_into(&origins, &shape, output)?;
    let absent: HashSet<&str> = report.absent.iter().map(StoreKey::as_str).collect();
    let is_there = |(key, ..): &Subchunks| !absent.contains(&**key);
    Ok(subchunks.iter().map(is_there).collect())
}

fn read_box(
    reader: &ArrayReader<Store>,
    subset: &ArraySubset,
    item: &Item,
    memory: &Memory,
) -> Result<ReadReport, Error> {
    let shape: Vec<usize> = subset
        .shape()
        .iter()
        .map(|&extent| extent as usize)
        .collect();
    let output = memory.output(item.offset, &shape, &item.strides);
    let output =
        output.ok_or_else(|| Error::Value("the output has negative strides".to_owned()))?;
    Ok(reader.read_bytes_into(subset, output)?)
}

/// Decodes a chunk with zarrs, and copies a box of it to `memory`. Returns whether the chunk exists.
fn decode(
    opened: &Opened,
    store: &Store,
    item: &Item,
    memory: &Memory,
    share: usize,
) -> Result<bool, Error> {
    let to = (item.offset, &*item.strides);
    let Some(value) = store.whole(&item.key)? else {
        memory.fill(to, &item.shape, opened.array.fill_value().as_ne_bytes());
        return Ok(false);
    };
    let decoded = opened.decode(&item.key, Cow::Borrowed(&value), share)?;
    let (at, strides) = opened.place(item);
    memory.copy_in(to, &item.shape, &decoded, (at, &strides), share);
    Ok(true)
}

impl Opened {
    /// Returns whether the box of `item` is the whole chunk.
    pub(crate) fn is_whole(&self, item: &Item) -> bool {
        let mut extents = self.chunk.iter().zip(&item.shape);
        extents.all(|(extent, len)| extent.get() == *len as u64)
    }

    /// Decodes `value`, the value of the chunk `key`.
    pub(crate) fn decode<'v>(
        &self,
        key: &str,
        value: Cow<'v, [u8]>,
        threads: usize,
    ) -> Result<Cow<'v, [u8]>, Error> {
        let array = &self.array;
        let options = CodecOptions::default().with_concurrent_target(threads);
        let decode = || {
            array.codecs().decode(
                value,
                &self.chunk,
                array.data_type(),
                array.fill_value(),
                &options,
            )
        };
        let decoded = no_panic(decode).ok_or_else(|| Error::Damaged {
            key: key.to_owned(),
            why: "its codecs panicked".to_owned(),
        })?;
        let decoded = decoded.map_err(|error| Error::decoding(key, &error))?;
        let decoded = decoded
            .into_fixed()
            .map_err(|error| Error::decoding(key, &error.into()))?;
        if decoded.len() == self.chunk_bytes {
            return Ok(decoded);
        }
        Err(Error::Damaged {
            key: key.to_owned(),
            why: format!(
                "it has {} bytes of elements, and should have {}",
                decoded.len(),
                self.chunk_bytes
            ),
        })
    }

    /// Returns the place of the box of `item` in the elements of its chunk: the offset of its first byte, and
    /// the strides.
    pub(crate) fn place(&self, item: &Item) -> (usize, Vec<isize>) {
        let mut strides = vec![0; self.chunk.len()];
        let (mut at, mut step) = (0, self.element_size);
        for axis in (0..self.chunk.len()).rev() {
            strides[axis] = step.cast_signed();
            at += item.start[axis] * step;
            step *= self.chunk[axis].get() as usize;
        }
        (at, strides)
    }

    /// Returns the box of `item`, in elements of the array.
    pub(crate) fn subset(&self, item: &Item) -> ArraySubset {
        let axes = self
            .chunk
            .iter()
            .zip(&item.indices)
            .zip(item.start.iter().zip(&item.shape));
        let ranges = axes.map(|((extent, index), (&start, &len))| {
            let start = index
                .saturating_mul(extent.get())
                .saturating_add(start as u64);
            start..start.saturating_add(len as u64)
        });
        ArraySubset::from(ranges)
    }

    /// Joins the boxes of `items` to one box, with an item that has its place in memory. Returns `None`
    /// unless they form one box both in the array and in memory.
    pub(crate) fn one_box(&self, items: &[Item]) -> Option<(ArraySubset, Item)> {
        let subsets: Vec<ArraySubset> = items.iter().map(|item| self.subset(item)).collect();
        let axes = self.chunk.len();
        let (mut start, mut end) = (vec![u64::MAX; axes], vec![0; axes]);
        let mut elements = 0_u64;
        for subset in &subsets {
            for axis in 0..axes {
                start[axis] = start[axis].min(subset.start()[axis]);
                end[axis] = end[axis].max(subset.start()[axis] + subset.shape()[axis]);
            }
            elements = elements.checked_add(subset.num_elements())?;
        }
        let all = ArraySubset::from(start.iter().zip(&end).map(|(&start, &end)| start..end));
        // No two items of zarr-python have the same chunk, so they do not overlap.
        if all.num_elements() != elements {
            return None;
        }
        let first = items.first()?;
        let strides = first.strides.clone();
        // Returns the distance from the first element of `all` to the first element of `subset`, in bytes.
        let from_first = |subset: &ArraySubset| {
            let steps = strides.iter().zip(subset.start().iter().zip(&start));
            steps
                .map(|(stride, (at, start))| stride * (at - start).cast_signed() as isize)
                .sum::<isize>()
        };
        let offset = first.offset - from_first(subsets.first()?);
        let mut pairs = items.iter().zip(&subsets);
        let is_one = pairs.all(|(item, subset)| {
            item.strides == strides && item.offset == offset + from_first(subset)
        });
        is_one.then(|| {
            let first = Item {
                position: 0,
                key: String::new(),
                indices: Vec::new(),
                start: Vec::new(),
                shape: Vec::new(),
                offset,
                strides,
                is_complete: false,
            };
            (all, first)
        })
    }
}
