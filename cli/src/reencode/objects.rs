//! The output in an object store, where each value appears at once, as a whole.

use std::collections::BTreeSet;
use std::fmt;

use rayon::prelude::*;
use zarrs::storage::{Bytes, StorageError, StoreKey};

use super::Args;
use super::target::{Found, INCOMPLETE, METADATA, is_part_of_chunk_key, of_another_command};
use crate::failure::Failure;
use crate::open::{Kind, Place, Store};

type Result<T, E = StorageError> = std::result::Result<T, E>;

pub(super) fn get(store: &Store, key: &str) -> Result<Option<Bytes>> {
    store.get(&StoreKey::new(key)?)
}

pub(super) fn set(store: &Store, key: &str, value: Vec<u8>) -> Result<()> {
    store.set(&StoreKey::new(key)?, value.into())
}

fn cannot<'a>(doing: &'a str, place: &'a Place) -> impl Fn(StorageError) -> Failure + 'a {
    move |error| Failure::failed(format!("cannot {doing} {place}: {error}"))
}

/// The keys of all objects. A console of S3 makes objects without a name for its folders: they are none.
fn keys(store: &Store) -> Result<Vec<StoreKey>> {
    let mut keys = store.list()?;
    keys.retain(|key| !key.as_str().is_empty());
    Ok(keys)
}

/// Whether an object belongs to an array, by its key.
fn is_of_array(key: &str) -> bool {
    METADATA.contains(&key) || key.split('/').all(is_part_of_chunk_key)
}

/// Checks that only objects of this run are at `place`, or deletes the array that is to be replaced.
pub(super) fn prepare(
    place: &Place,
    args: &Args,
    store: &Store,
    metadata: Vec<u8>,
) -> Result<(), Failure> {
    let make = cannot("make ready", place);
    let keys = keys(store).map_err(&make)?;
    let marker = get(store, INCOMPLETE).map_err(&make)?;
    let is_array = Kind::of(store, place)? == Kind::Array;
    let found = Found {
        is_empty: keys.is_empty(),
        is_incomplete: marker.is_some(),
        is_foreign: !keys.is_empty() && marker.is_none() && !is_array,
    };
    found.must_be_free(args, place, "array")?;
    if let Some(marker) = marker
        && args.resume
    {
        return if *marker == *metadata {
            Ok(())
        } else {
            Err(of_another_command(place))
        };
    }
    if let Some(foreign) = keys.iter().find(|key| !is_of_array(key.as_str())) {
        return Err(Failure::failed(format!(
            "{foreign} is not a part of the array in {place}: nothing is deleted while it is there"
        ))
        .with_remedy("name another OUT, or move that object away"));
    }
    // A half-deleted array must not look complete. It must be recognised as an incomplete output.
    let empty = cannot("empty", place);
    set(store, INCOMPLETE, Vec::new()).map_err(&empty)?;
    let (chunks, mut others): (Vec<_>, Vec<_>) = keys
        .into_iter()
        .partition(|key| !METADATA.contains(&key.as_str()));
    others.retain(|key| key.as_str() != INCOMPLETE);
    for keys in [others, chunks] {
        let erased = keys.par_iter().map(|key| store.erase(key));
        erased.collect::<Result<()>>().map_err(&empty)?;
    }
    set(store, INCOMPLETE, metadata).map_err(&make)
}

/// Checks that no nodes are at `place` but those with the paths `members`, and hides its root from readers.
pub(super) fn prepare_group(
    place: &Place,
    args: &Args,
    store: &Store,
    members: &[&str],
    metadata: Vec<u8>,
) -> Result<(), Failure> {
    let make = cannot("make ready", place);
    let keys = keys(store).map_err(&make)?;
    let kind = Kind::of(store, place)?;
    let is_incomplete = keys.iter().any(|key| key.as_str() == INCOMPLETE);
    let is_ours = keys.is_empty() || is_incomplete || kind == Kind::Group;
    let found = Found {
        is_empty: keys.is_empty(),
        is_incomplete,
        is_foreign: kind == Kind::Array || !is_ours,
    };
    found.must_be_free(args, place, "group")?;
    let expected: BTreeSet<&str> = members.iter().copied().collect();
    for key in &keys {
        let Some((node, name)) = key.as_str().rsplit_once('/') else {
            continue;
        };
        let is_node = METADATA.contains(&name) || name == ".zgroup";
        if is_node && !expected.contains(node) {
            return Err(Failure::failed(format!(
                "{} is in OUT, but IN has nothing there",
                place.join(node)
            ))
            .with_remedy("name another OUT, or delete it yourself"));
        }
    }
    set(store, INCOMPLETE, metadata).map_err(&make)?;
    for name in ["zarr.json", ".zgroup", ".zattrs", ".zmetadata"] {
        let erased = StoreKey::new(name).map_err(StorageError::from);
        erased.and_then(|key| store.erase(&key)).map_err(&make)?;
    }
    Ok(())
}

/// Makes the array or group at `place` visible to readers.
pub(super) fn publish(place: &Place, store: &Store) -> Result<(), Failure> {
    let finish =
        |error: &dyn fmt::Display| Failure::failed(format!("cannot finish {place}: {error}"));
    let metadata = get(store, INCOMPLETE).map_err(|error| finish(&error))?;
    let metadata = metadata.ok_or_else(|| finish(&format!("there is no {INCOMPLETE}")))?;
    set(store, "zarr.json", metadata.to_vec()).map_err(|error| finish(&error))?;
    let marker = StoreKey::new(INCOMPLETE).map_err(|error| finish(&error))?;
    store.erase(&marker).map_err(|error| finish(&error))
}
