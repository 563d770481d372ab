//! Encodes the changes of an update: by the engines (`batch.rs`), or by zarrs' codecs (`delegated.rs`).
//! Subchunks that are themselves shards are updated one by one (`nested.rs`), without decoding their other
//! subchunks.

use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use zarrs::array::{ArrayBytes, Indexer};
use zarrs_codec::{CodecError, CodecOptions};

use super::nested::{Inner, share, splice};
use super::reads::FetchedRanges;
use super::update::{Changes, TouchedSubchunk, Update, not_read};
use super::{batch, delegated};
use crate::shard::error::other;
use crate::shard::sharding::Sharding;

/// Encodes the subchunks that `update` changes. Leaves out a subchunk whose encoded bytes were read and stay
/// the same.
pub(super) fn encode(
    update: &Update<'_>,
    fetched: &FetchedRanges<'_>,
    options: &CodecOptions,
) -> Result<Changes, CodecError> {
    let mut changes = if let ArrayBytes::Fixed(elements) = update.elements
        && update.target.delegated().is_none()
    {
        if let Some(inner) = update.target.nested()? {
            encode_shards(update, &inner, elements, fetched, options)?
        } else {
            batch::encode(update, elements, fetched, options)?
        }
    } else {
        delegated::encode(update, fetched, options)?
    };
    if update.target.has_closed_shards() {
        let straddled = update.straddled().map(|touched| touched.number);
        changes.fragile = straddled.collect();
    }
    let bytes = &changes.bytes;
    let mut touched = update.touched.iter();
    changes.subchunks.retain(|(_, new)| {
        let Some(touched) = touched.next() else {
            return true;
        };
        match (&touched.extent, new) {
            (None, None) => false,
            (Some(old), Some(new)) if !touched.whole => fetched.get(old) != bytes.get(new.clone()),
            _ => true,
        }
    });
    Ok(changes)
}

/// Encodes the changed subchunks of `update`, which are themselves shards of `target`.
fn encode_shards(
    update: &Update<'_>,
    target: &Sharding,
    elements: &[u8],
    fetched: &FetchedRanges<'_>,
    options: &CodecOptions,
) -> Result<Changes, CodecError> {
    // A backend that cannot encode whole shards of this array is refused for parts of them, too.
    update.target.choose_engine().map_err(other)?;
    let one = |touched: &TouchedSubchunk| {
        let old = match &touched.extent {
            Some(extent) if !touched.whole => Some(fetched.get(extent).ok_or_else(not_read)?),
            _ => None,
        };
        let (indexer, part) = share(update, touched.number, elements)?;
        updated(target, old, &*indexer, &ArrayBytes::new_flen(part), options)
    };
    let encoded: Vec<Option<Inner>> = if options.concurrent_target() == 1 {
        update.touched.iter().map(one).collect::<Result<_, _>>()?
    } else {
        update
            .touched
            .par_iter()
            .with_max_len(1)
            .map(one)
            .collect::<Result<_, _>>()?
    };
    let mut changes = Changes::new();
    for (touched, encoded) in update.touched.iter().zip(&encoded) {
        changes.push(
            touched.number,
            encoded.as_ref().map(|inner| inner.shard.as_slice()),
        );
        if !touched.whole && encoded.as_ref().is_some_and(|inner| inner.fragile) {
            changes.fragile.push(touched.number);
        }
    }
    Ok(changes)
}

/// Returns the shard `old` with `elements` written to `indexer`. Returns `None` if all of its subchunks are
/// then empty.
///
/// # Errors
/// A [`CodecError`] if `old` is broken, or a subchunk cannot be decoded or encoded.
fn updated(
    target: &Sharding,
    old: Option<&[u8]>,
    indexer: &dyn Indexer,
    elements: &ArrayBytes<'_>,
    options: &CodecOptions,
) -> Result<Option<Inner>, CodecError> {
    let index = &target.index;
    let (old, entries) = match old {
        None => (&[][..], index.empty()),
        Some(bytes) => (bytes, index.decode_in(bytes, options)?),
    };
    let update = Update::new(target, Some(&entries), indexer, elements)?;
    update.reads()?;
    let changes = encode(&update, &FetchedRanges::all(old), options)?;
    splice(target, (old, &entries), &changes, options)
}
