//! Reads batches of zarr-python: boxes of chunks, and their places in a numpy array.

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::{PyList, PySlice, PyTuple};
use zarrs::array::ArraySubset;
use zarrs_codec::CodecOptions;

use crate::array::Keys;
use crate::error::unsupported;
use crate::memory::Memory;

/// A box of a chunk, and the box of the numpy array that has its elements.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// The position of the item in the batch.
    pub(crate) position: usize,
    pub(crate) key: String,
    /// The indices of the chunk in the grid of chunks.
    pub(crate) indices: Vec<u64>,
    /// The start of the box, in elements of the chunk.
    pub(crate) start: Vec<usize>,
    pub(crate) shape: Vec<usize>,
    /// The offset of the first element, in bytes from the first element of the numpy array.
    pub(crate) offset: isize,
    /// The strides of the box in the numpy array, in bytes, one for each axis of the chunk.
    pub(crate) strides: Vec<isize>,
    /// Whether the box has all elements of the chunk that are inside the array.
    pub(crate) is_complete: bool,
}

/// A batch of zarr-python, divided into items that are boxes and other items.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The path of the array, without a slash at either end.
    pub(crate) path: String,
    pub(crate) items: Vec<Item>,
    /// The positions of the items that are not boxes.
    pub(crate) others: Vec<usize>,
    pub(crate) store_empty: bool,
}

impl Item {
    /// Returns the box, in elements of the chunk.
    pub(crate) fn in_chunk(&self) -> ArraySubset {
        let ranges = self.start.iter().zip(&self.shape);
        ArraySubset::from(ranges.map(|(&start, &len)| start as u64..(start + len) as u64))
    }
}

impl Batch {
    /// Returns a batch with the given items.
    pub(crate) fn of<'i>(&self, items: impl Iterator<Item = &'i Item>) -> Self {
        Self {
            path: self.path.clone(),
            items: items.cloned().collect(),
            others: Vec::new(),
            store_empty: self.store_empty,
        }
    }

    /// Returns the options of zarrs for a chunk that `threads` threads encode.
    pub(crate) fn options(&self, threads: usize) -> CodecOptions {
        CodecOptions::default()
            .with_store_empty_chunks(self.store_empty)
            .with_concurrent_target(threads)
    }
}

/// The indices that one entry of a selection names along its axis.
#[derive(Clone, Copy, Debug)]
enum Selected {
    One(usize),
    Range { start: usize, len: usize },
}

impl Selected {
    fn start(self) -> usize {
        match self {
            Self::One(start) | Self::Range { start, .. } => start,
        }
    }

    fn len(self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Range { len, .. } => len,
        }
    }
}

/// Returns the selected indices along each axis of an array of `shape`, or `None` if the selection is not a
/// box.
fn selection(selection: &Bound<'_, PyAny>, shape: &[usize]) -> PyResult<Option<Vec<Selected>>> {
    let mut selected = Vec::with_capacity(shape.len());
    if let Ok(entries) = selection.cast::<PyTuple>() {
        if entries.len() > shape.len() {
            return Ok(None);
        }
        for (entry, &extent) in entries.iter_borrowed().zip(shape) {
            match one(&entry, extent)? {
                Some(one) => selected.push(one),
                None => return Ok(None),
            }
        }
    } else {
        let Some(&extent) = shape.first() else {
            return Ok(None);
        };
        match one(selection, extent)? {
            Some(one) => selected.push(one),
            None => return Ok(None),
        }
    }
    let rest = shape[selected.len()..].iter();
    selected.extend(rest.map(|&len| Selected::Range { start: 0, len }));
    Ok(Some(selected))
}

fn one(entry: &Bound<'_, PyAny>, extent: usize) -> PyResult<Option<Selected>> {
    if let Ok(slice) = entry.cast::<PySlice>() {
        let ends = slice.indices(extent.cast_signed())?;
        let start = usize::try_from(ends.start).unwrap_or(0);
        let len = ends.slicelength;
        return Ok((ends.step == 1 || len == 1).then_some(Selected::Range { start, len }));
    }
    if entry.is_instance_of::<PyUntypedArray>() {
        return Ok(None);
    }
    let Ok(number) = entry.extract::<isize>() else {
        return Ok(None);
    };
    let from_end = if number < 0 { extent.cast_signed() } else { 0 };
    let number = usize::try_from(number + from_end).ok();
    Ok(number.filter(|number| *number < extent).map(Selected::One))
}

/// The selection of a chunk, the offset of its first element in the numpy array, and the strides in this
/// array. The offset and the strides are in bytes.
type Boxed = (Vec<Selected>, isize, Vec<isize>);

/// Returns the box of an item, or `None` if the item is not a box.
fn item(
    entry: &Bound<'_, PyTuple>,
    chunk: &[usize],
    memory: &Memory,
    drop_axes: &[usize],
) -> PyResult<Option<Boxed>> {
    let Some(of_chunk) = selection(&entry.get_item(2)?, chunk)? else {
        return Ok(None);
    };
    let mut strides = vec![0; chunk.len()];
    // The value is one number, which is written to all elements.
    if memory.shape.is_empty() && !chunk.is_empty() {
        return Ok(Some((of_chunk, 0, strides)));
    }
    let Some(of_array) = selection(&entry.get_item(3)?, &memory.shape)? else {
        return Ok(None);
    };
    let mut offset = 0;
    let mut kept = of_chunk.iter().enumerate().filter(|(axis, selected)| {
        matches!(selected, Selected::Range { .. }) && !drop_axes.contains(axis)
    });
    for (selected, &stride) in of_array.iter().zip(&memory.strides) {
        offset += selected.start().cast_signed() * stride;
        if matches!(selected, Selected::One(_)) {
            continue;
        }
        match kept.next() {
            Some((axis, of_chunk)) if of_chunk.len() == selected.len() => strides[axis] = stride,
            _ => return Ok(None),
        }
    }
    if kept.next().is_some() {
        return Ok(None);
    }
    drop(kept);
    // The box is refused unless each axis that numpy drops has one element.
    let dropped = drop_axes
        .iter()
        .all(|&axis| of_chunk.get(axis).is_some_and(|s| s.len() == 1));
    Ok(dropped.then_some((of_chunk, offset, strides)))
}

/// Reads a batch of zarr-python, which has `(StorePath, ArraySpec, chunk_selection, out_selection,
/// is_complete)` for each chunk. If `boxes` is false, every item counts as not a box.
pub(crate) fn parse(
    batch: &Bound<'_, PyList>,
    keys: &Keys,
    memory: &Memory,
    drop_axes: &[usize],
    boxes: bool,
) -> PyResult<Batch> {
    let py = batch.py();
    let mut parsed = Batch {
        path: String::new(),
        items: Vec::with_capacity(batch.len()),
        others: Vec::new(),
        store_empty: false,
    };
    for (position, entry) in batch.iter().enumerate() {
        let entry = entry.cast_into::<PyTuple>()?;
        let path = entry
            .get_borrowed_item(0)?
            .getattr(pyo3::intern!(py, "path"))?;
        let key: String = path.extract()?;
        let (prefix, indices) = keys
            .parse(&key)
            .ok_or_else(|| unsupported(format!("{key} is not the key of a chunk of this array")))?;
        if position == 0 {
            prefix.clone_into(&mut parsed.path);
            let spec = entry.get_borrowed_item(1)?;
            let config = spec.getattr(pyo3::intern!(py, "config"))?;
            let store_empty = config.getattr(pyo3::intern!(py, "write_empty_chunks"))?;
            parsed.store_empty = store_empty.is_truthy()?;
        } else if prefix != parsed.path {
            return Err(unsupported(format!(
                "{key} is of another array than {}",
                parsed.path
            )));
        }
        let found = if boxes {
            item(&entry, keys.chunk(), memory, drop_axes)?
        } else {
            None
        };
        match found {
            None => parsed.others.push(position),
            Some((selected, offset, strides)) => parsed.items.push(Item {
                position,
                indices,
                start: selected.iter().map(|selected| selected.start()).collect(),
                shape: selected.iter().map(|selected| selected.len()).collect(),
                offset,
                strides,
                is_complete: entry.get_borrowed_item(4)?.is_truthy()?,
                key,
            }),
        }
    }
    Ok(parsed)
}
