//! Writes chunks of arrays that this crate does not encode: arrays that are not sharded, or whose shards are
//! encoded once more.

use std::borrow::Cow;
use std::num::NonZeroU64;

use zarrs::array::{Array, ArrayBytes};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};

use super::error::BoxWriterErrorKind as Kind;
use super::request::ShardToWrite;
use crate::maintenance::StoredShard;
use crate::panics::no_panic;
use crate::reader::request::WantedPart;
use zarrs_cuda_engine::layout::strides;
use zarrs_cuda_engine::memory::allocate;

/// Returns the elements of a part of a box, in C order.
type ElementsOf<'e> = dyn Fn(&(usize, WantedPart)) -> Result<ArrayBytes<'e>, Kind> + 'e;

/// Returns the encoded chunk of `array` with new elements, which `elements_of` returns for each part, or `None` if all
/// of them are the fill value.
pub(super) fn encoded(
    array: &Array<()>,
    (shard, shape, stored): (&ShardToWrite, &[NonZeroU64], Option<StoredShard>),
    elements_of: &ElementsOf<'_>,
    options: &CodecOptions,
) -> Result<Option<Vec<u8>>, Kind> {
    let key = &shard.key;
    let extents: Vec<u64> = shape.iter().map(|extent| extent.get()).collect();
    let (data_type, fill_value) = (array.data_type(), array.fill_value());
    let fill = fill_value.as_ne_bytes();
    if data_type.fixed_size() != Some(fill.len()) {
        return Err(Kind::unsupported(format!(
            "the fill value has {} bytes, and elements of {data_type} have others",
            fill.len()
        )));
    }
    let elements = if let Some(covering) = shard.covering(&extents) {
        elements_of(covering)?
    } else {
        let mut elements = match stored {
            Some(stored) => {
                let bytes = stored.into_bytes().map_err(|error| Kind::Store {
                    doing: "read",
                    key: key.clone(),
                    error: error.into(),
                })?;
                let decode = || {
                    let bytes = Cow::Owned(bytes);
                    let decoded = array
                        .codecs()
                        .decode(bytes, shape, data_type, fill_value, options);
                    let decoded = decoded?;
                    decoded.validate(extents.iter().product(), data_type)?;
                    Ok(decoded.into_fixed()?.into_owned())
                };
                no_panic(decode).map_err(Kind::codec("decode", key))?
            }
            None => filled(&extents, fill)?,
        };
        for one in &shard.parts {
            let new = elements_of(one)?;
            let new = new
                .into_fixed()
                .map_err(|error| Kind::unsupported(error.to_string()))?;
            paste(&mut elements, &extents, &one.1, &new, fill.len());
        }
        ArrayBytes::new_flen(elements)
    };
    let elements = elements
        .into_fixed()
        .map_err(|error| Kind::unsupported(error.to_string()))?;
    if !options.store_empty_chunks() && elements.chunks_exact(fill.len()).all(|e| e == fill) {
        return Ok(None);
    }
    let elements = ArrayBytes::new_flen(elements);
    let encode = || {
        array
            .codecs()
            .encode(elements, shape, data_type, fill_value, options)
    };
    let encoded = no_panic(encode).map_err(Kind::codec("encode", key))?;
    Ok(Some(encoded.into_owned()))
}

/// Returns the elements of a chunk that have the fill value.
fn filled(extents: &[u64], fill: &[u8]) -> Result<Vec<u8>, Kind> {
    let len = extents.iter().try_fold(fill.len(), |len, extent| {
        len.checked_mul(usize::try_from(*extent).ok()?)
    });
    let what = "a chunk";
    let no_memory = |bytes| Kind::Memory { what, bytes };
    let len = len.ok_or(no_memory(usize::MAX))?;
    let mut elements = allocate::with_capacity(len, what, true).map_err(|_| no_memory(len))?;
    while elements.len() < len {
        elements.extend_from_slice(fill);
    }
    Ok(elements)
}

/// Copies the elements of a part to their place in a chunk. Both are in C order.
fn paste(chunk: &mut [u8], extents: &[u64], part: &WantedPart, new: &[u8], element_size: usize) {
    // The chunk is in memory, so its extents fit.
    let extents: Vec<usize> = extents
        .iter()
        .map(|e| usize::try_from(*e).unwrap_or(0))
        .collect();
    let strides = strides(&extents, element_size);
    let row = part.shape.last().copied().unwrap_or(1) * element_size;
    if row == 0 {
        return;
    }
    let start = part
        .start
        .iter()
        .zip(&strides)
        .map(|(start, stride)| start * stride);
    let start: usize = start.sum();
    for (number, row_of_part) in new.chunks_exact(row).enumerate() {
        let (mut rest, mut at) = (number, start);
        for axis in (0..part.shape.len().saturating_sub(1)).rev() {
            at += rest % part.shape[axis] * strides[axis];
            rest /= part.shape[axis];
        }
        chunk[at..at + row].copy_from_slice(row_of_part);
    }
}
