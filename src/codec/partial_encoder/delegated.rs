//! Encodes updates of elements that have no fixed size or may be missing: zarrs' codecs update their
//! subchunks, one by one.

use std::borrow::Cow;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use zarrs::array::{ArrayBytes, ArrayIndices, ArraySubset, Indexer, update_array_bytes};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecError, CodecOptions};

use super::reads::FetchedRanges;
use super::update::{Changes, TouchedSubchunk, Update, not_read};
use crate::panics::no_panic;
use crate::shard::selection::Selection;
use zarrs_cuda_engine::layout::SubchunkPart;

/// Encodes the subchunks that `update` changes.
pub(super) fn encode(
    update: &Update<'_>,
    fetched: &FetchedRanges<'_>,
    options: &CodecOptions,
) -> Result<Changes, CodecError> {
    let inner = options.with_concurrent_target(1);
    let one = |touched: &TouchedSubchunk| updated(update, touched, fetched, &inner);
    let encoded: Vec<Option<Vec<u8>>> = if options.concurrent_target() == 1 {
        update.touched.iter().map(one).collect::<Result<_, _>>()?
    } else {
        update
            .touched
            .par_iter()
            .map(one)
            .collect::<Result<_, _>>()?
    };
    let mut changes = Changes::new();
    for (touched, encoded) in update.touched.iter().zip(&encoded) {
        changes.push(touched.number, encoded.as_deref());
    }
    Ok(changes)
}

/// Returns a touched subchunk with its changes, encoded. Returns `None` if all of its elements are then the
/// fill value.
fn updated(
    update: &Update<'_>,
    touched: &TouchedSubchunk,
    fetched: &FetchedRanges<'_>,
    options: &CodecOptions,
) -> Result<Option<Vec<u8>>, CodecError> {
    let target = update.target;
    let (data_type, fill_value) = (&target.data_type, &target.fill_value);
    let (codecs, shape) = (&target.codec.inner_codecs, &target.codec.subchunk_shape);
    let num_elements = shape.iter().map(|d| d.get()).product();
    let empty = ArrayBytes::new_fill_value(data_type, num_elements, fill_value)?;
    let old = match &touched.extent {
        Some(extent) if !touched.whole => {
            let encoded = Cow::Borrowed(fetched.get(extent).ok_or_else(not_read)?);
            no_panic(|| codecs.decode(encoded, shape, data_type, fill_value, options))?
        }
        _ => empty.clone(),
    };
    let (indexer, share) = share(update, touched.number)?;
    let shape_u64: Vec<u64> = shape.iter().map(|d| d.get()).collect();
    let new = update_array_bytes(old, &shape_u64, &*indexer, &share, data_type.size())?;
    // zarrs' own test for the fill value looks at the bytes of all elements together, and takes ["aa", ""]
    // for two elements "a".
    if !options.store_empty_chunks() && new == empty {
        return Ok(None);
    }
    let encoded = codecs.encode(new, shape, data_type, fill_value, options)?;
    Ok(Some(encoded.into_owned()))
}

/// Returns the elements that are written to subchunk `number`, and their places in it.
fn share<'u>(
    update: &'u Update<'_>,
    number: usize,
) -> Result<(Box<dyn Indexer>, ArrayBytes<'u>), CodecError> {
    let data_type = &update.target.data_type;
    let to_u64 = |v: &[usize]| v.iter().map(|&n| n as u64).collect::<Vec<_>>();
    let subset = |start: &[usize], shape: &[usize]| {
        ArraySubset::new_with_start_shape(to_u64(start), to_u64(shape)).map_err(CodecError::from)
    };
    match &update.selection {
        Selection::Window { start, shape } => {
            let part = SubchunkPart::new(update.grid, number, start, shape);
            let from = subset(part.start_in_window(), part.shape())?;
            let share = update
                .elements
                .extract_array_subset(&from, &to_u64(shape), data_type)?;
            let to = subset(part.start_in_subchunk(), part.shape())?;
            Ok((Box::new(to), share))
        }
        Selection::Points(points) => {
            let points = points.get(&number).map(Vec::as_slice).unwrap_or_default();
            // Several points may name one element: the last of these points counts.
            let mut last = std::collections::BTreeMap::new();
            for point in points {
                last.insert(&point.within, point.position as u64);
            }
            let from: Vec<ArrayIndices> = last.values().map(|&position| vec![position]).collect();
            let to: Vec<ArrayIndices> = last.keys().map(|&within| within.clone()).collect();
            let all = points_of(&update.selection);
            let share = update
                .elements
                .extract_array_subset(&from, &[all], data_type)?;
            Ok((Box::new(to), share))
        }
    }
}

/// Returns the number of elements of a selection.
fn points_of(selection: &Selection) -> u64 {
    match selection {
        Selection::Points(points) => points.values().map(|points| points.len() as u64).sum(),
        Selection::Window { shape, .. } => shape.iter().map(|&extent| extent as u64).product(),
    }
}
