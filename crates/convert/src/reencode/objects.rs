//! The output in an object store, where each value appears at once, as a whole.

use std::collections::BTreeSet;

use rayon::prelude::*;
use zarrs::storage::{Bytes, StorageError, StoreKey};

use super::found::{Found, INCOMPLETE, METADATA, is_part_of_chunk_key};
use crate::failure::Failure;
use crate::open::{Kind, Place, Store, is_of_writer};

type Result<T, E = StorageError> = std::result::Result<T, E>;

pub(super) fn get(store: &Store, key: &str) -> Result<Option<Bytes>> {
    store.get(&StoreKey::new(key)?)
}

pub(super) fn set(store: &Store, key: &str, value: &[u8]) -> Result<()> {
    store.set(&StoreKey::new(key)?, value.to_vec().into())
}

/// Returns the keys of all objects except for leases and lock files, and for the objects without a name that S3 consoles
/// make to represent folders.
fn keys(store: &Store) -> Result<Vec<StoreKey>> {
    let mut keys = store.list()?;
    keys.retain(|key| !key.as_str().is_empty() && !is_of_writer(key.as_str()));
    Ok(keys)
}

/// Returns whether the object with the key `key` belongs to an array.
fn is_of_array(key: &str) -> bool {
    METADATA.contains(&key) || key.split('/').all(is_part_of_chunk_key)
}

/// Returns the state of the output at `place`.
pub(super) fn look(place: &Place, store: &Store) -> Result<Found, Failure> {
    let look = format!("look at {place}");
    let keys = keys(store).map_err(Failure::to(&look))?;
    let marker = get(store, INCOMPLETE).map_err(Failure::to(&look))?;
    let kind = Kind::of(store, place)?;
    let foreign = keys.iter().find(|key| !is_of_array(key.as_str()));
    Ok(Found {
        is_empty: keys.is_empty(),
        marker: marker.map(|marker| marker.to_vec()),
        is_array: kind == Kind::Array,
        is_group: kind == Kind::Group,
        holds_values: keys.iter().any(|key| key.as_str() != INCOMPLETE),
        foreign: foreign.map(ToString::to_string),
    })
}

/// Deletes the array at `place`, and leaves an empty marker.
pub(super) fn delete_array(place: &Place, store: &Store) -> Result<(), Failure> {
    // Write the marker first: a half-deleted array must be recognised as an incomplete output.
    let empty = format!("empty {place}");
    set(store, INCOMPLETE, b"").map_err(Failure::to(&empty))?;
    let mut keys = keys(store).map_err(Failure::to(&empty))?;
    // Delete only objects of an array: another program may have stored something since the state was read.
    keys.retain(|key| is_of_array(key.as_str()));
    let (chunks, mut others): (Vec<_>, Vec<_>) = keys
        .into_iter()
        .partition(|key| !METADATA.contains(&key.as_str()));
    others.retain(|key| key.as_str() != INCOMPLETE);
    for keys in [others, chunks] {
        let erased = keys.par_iter().map(|key| store.erase(key));
        erased
            .collect::<Result<()>>()
            .map_err(Failure::to(&empty))?;
    }
    Ok(())
}

/// Returns the paths of the arrays and groups below the root.
pub(super) fn nodes_in(place: &Place, store: &Store) -> Result<BTreeSet<String>, Failure> {
    let keys = keys(store).map_err(Failure::to(format_args!("look at {place}")))?;
    let nodes = keys.iter().filter_map(|key| {
        let (node, name) = key.as_str().rsplit_once('/')?;
        let is_node = METADATA.contains(&name) || name == ".zgroup";
        is_node.then(|| node.to_string())
    });
    Ok(nodes.collect())
}
