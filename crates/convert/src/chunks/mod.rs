//! The stored chunks of an array, found by a listing.
//!
//! A chunk that is not stored is legal, and reads as the fill value. A chunk that lies where no reader looks
//! for it reads as the fill value, too, but is an error: see `elsewhere.rs`.

mod beside;
mod elsewhere;
mod known;
mod sparse;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use zarrs::array::{Array, ArrayMetadata};
use zarrs::metadata::ChunkKeySeparator;

pub use self::elsewhere::Elsewhere;
use self::known::Known;
use crate::failure::Failure;
use crate::open::{self, Opened, Place, Store};
use crate::shapes::volume;
use crate::stored::{Keys, files_of_array};
use crate::words::counted;

/// The stored chunks of an array: their number, and what a listing found beside them.
#[derive(Debug)]
pub struct Chunks {
    place: Place,
    /// The number of chunks of the grid that are stored, or the reason why they cannot be counted.
    stored: Result<u64, String>,
    /// The indices of the stored chunks; `None` if the store was not listed.
    known: Option<Arc<Known>>,
    /// The number of chunks of the grid.
    grid: u64,
    /// The number of stored chunks that are not in the grid.
    outside: u64,
    /// The number of shards beside which subchunks wait in frames.
    waiting: u64,
    /// A directory within the array that is itself an array or a group.
    node_within: Option<String>,
    /// The number of unfinished files, by which a program was about to store a chunk, and one of them.
    unfinished: Option<(u64, String)>,
    /// The separator in the keys of the stored chunks, if it is not the separator of the metadata.
    found: Option<ChunkKeySeparator>,
}

/// The numbers of chunks of an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ChunkCounts {
    /// The number of chunks that are stored; `None` if they cannot be counted.
    pub stored: Option<u64>,
    /// The number of chunks of the grid.
    pub of: u64,
    /// The number of stored chunks that are not in the grid.
    pub outside: u64,
    /// The separator in the keys of the stored chunks, if it is not the separator of the metadata.
    pub found_separator: Option<&'static str>,
}

/// The answer of a run to an array of which no chunk is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Empty {
    /// The run goes on: the user asked for such an array.
    Allowed,
    /// The run goes on, and tells the user: the array is one of many, and may be meant to be empty.
    Told,
    /// The run fails: the place is more likely wrong.
    Refused,
}

impl Chunks {
    /// Lists the chunks of an array. If the keys have the other separator of Zarr v2 than `.zarray` says, it
    /// opens `opened.array` again with that separator. From then on, a read of a listed chunk that is gone is
    /// an error.
    ///
    /// # Errors
    /// - The array cannot be listed as a whole.
    /// - Chunks lie where no reader looks for them.
    pub fn of(opened: &mut Opened) -> Result<Self, Failure> {
        let grid = opened.array.chunk_grid_shape().to_vec();
        let mut chunks = Self {
            place: opened.place.clone(),
            stored: Ok(0),
            known: None,
            grid: volume(&grid),
            outside: 0,
            waiting: 0,
            node_within: None,
            unfinished: None,
            found: None,
        };
        if let Some(reason) = opened.has_no_listing() {
            chunks.stored = Err(reason);
            return Ok(chunks);
        }
        let encoding = opened.array.chunk_key_encoding().clone();
        let keys = Keys::new(&encoding, &grid);
        if !keys.are_known() {
            chunks.stored = Err("the keys of chunks do not spell out their indices".to_string());
            return Ok(chunks);
        }
        let mut elsewhere = Elsewhere::new(&keys);
        let mut known = Known::none_of(&opened.place, &opened.array)?;
        let mut waiting = BTreeSet::new();
        each_key(opened, &keys, |key| match keys.parse(key) {
            Some(chunk) if keys.in_grid(key).is_some() => known.add(&chunk),
            Some(_) => chunks.outside += 1,
            None => match keys.framed(key) {
                Some(shard) => _ = waiting.insert(shard),
                None => elsewhere.look_at(key),
            },
        })?;
        chunks.waiting = waiting.len() as u64;
        chunks.node_within = elsewhere.node_within();
        chunks.unfinished = elsewhere.settle(|indices| {
            let key = opened.array.chunk_key(indices);
            let size = opened.array.storage().size_key(&key);
            size.is_ok_and(|size| size.is_some())
        });
        let is_v2 = matches!(opened.array.metadata(), ArrayMetadata::V2(_));
        let stored = known.len();
        let is_free = is_v2 && stored == 0 && chunks.outside == 0;
        if let Some(separator) = elsewhere.other_separator().filter(|_| is_free) {
            with_separator(opened, separator)?;
            let mut chunks = Self::of(opened)?; // with the other separator, the chunks are found
            chunks.found = Some(separator);
            return Ok(chunks);
        }
        chunks.stored = Ok(stored);
        let known = Arc::new(known);
        let store = known.clone().watched(opened.array.storage(), String::new());
        opened.array = opened.array.with_storage(store);
        chunks.known = Some(known);
        if let Some(found) = elsewhere.told(&chunks.place, is_v2, &chunks.count()) {
            return Err(found);
        }
        Ok(chunks)
    }

    /// Returns the path of an array or group that lies within this array. Arrays have no members.
    pub fn node_within(&self) -> Option<&str> {
        self.node_within.as_deref()
    }

    /// Returns the indices of each stored chunk; `None` if the store was not listed.
    pub fn indices(&self) -> Option<impl Iterator<Item = Vec<u64>>> {
        self.known.as_deref().map(Known::chunks)
    }

    /// Returns the number of stored chunks in a box of the grid; of all chunks there if the store was not listed.
    pub fn count_in(&self, bounds: &[Range<u64>]) -> u64 {
        match &self.known {
            Some(known) => known.within(bounds).count() as u64,
            None => volume(&bounds.iter().map(|r| r.end - r.start).collect::<Vec<_>>()),
        }
    }

    /// Returns the store `group`, which has this array at `path`, as a store in which a read of a chunk that
    /// is gone is an error.
    pub fn watched(&self, group: Arc<Store>, path: &str) -> Arc<Store> {
        match &self.known {
            Some(known) => known.clone().watched(group, format!("{path}/")),
            None => group,
        }
    }

    /// Returns a sentence for people on the number of stored chunks.
    ///
    /// # Errors
    /// - No chunk is stored, and `empty` refuses such an array, or chunks lie beside the array.
    /// - Subchunks wait in frames, where readers of shards do not see them.
    pub fn told(&self, opened: &Opened, empty: Empty) -> Result<String, Failure> {
        if self.waiting > 0 {
            return Err(Failure::failed(format!(
                "subchunks of {} of {} wait in frames, and are newer than the shards",
                counted(self.waiting, "shard"),
                self.place
            ))
            .with_remedy(format!(
                "pack them with `zarrs-cuda consolidate {}` first",
                self.place
            )));
        }
        let is_empty = self.stored == Ok(0) && self.grid > 0;
        if !is_empty || empty == Empty::Allowed {
            return Ok(self.to_string());
        }
        let none = format!(
            "no chunk of {} is stored, of {}: every element would be the fill value {}",
            self.place,
            self.grid,
            fill_value(opened)
        );
        if let Some(key) = beside::chunk_like(&self.place, opened) {
            return Err(Failure::failed(format!(
                "{none}. {key} looks like a chunk of it, and lies in the directory above"
            ))
            .with_remedy(
                "move the chunks to where the metadata are; if every element is the fill value, give \
                 --allow-empty",
            ));
        }
        if empty == Empty::Told {
            return Ok(format!("{self}\nwarning: {none}"));
        }
        Err(Failure::failed(none).with_remedy(
            "look whether this is the right place, and its chunks are there; if every element is the \
             fill value, give --allow-empty",
        ))
    }

    fn count(&self) -> String {
        let grid = counted(self.grid, "chunk");
        match &self.stored {
            Ok(stored) => format!("{stored} of {grid} stored"),
            Err(why) => format!("how many of {grid} are stored cannot be counted: {why}"),
        }
    }

    pub fn counts(&self) -> ChunkCounts {
        ChunkCounts {
            stored: self.stored.as_ref().ok().copied(),
            of: self.grid,
            outside: self.outside,
            found_separator: self.found.map(separator_text),
        }
    }
}

impl fmt::Display for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.count())?;
        if let Some(separator) = self.found {
            let separator = separator_text(separator);
            write!(
                f,
                "\nnote: the keys of chunks have the separator {separator}, and .zarray says another: \
                 they are read as they are"
            )?;
        }
        if let Some((count, key)) = &self.unfinished {
            let were = if *count == 1 { "was" } else { "were" };
            write!(
                f,
                "\nnote: {} that {were} about to be stored, as {key}, and never {were}",
                counted(*count, "chunk")
            )?;
        }
        if let Some(node) = &self.node_within {
            write!(
                f,
                "\nnote: {node} in the directory of the array has metadata of its own, and is not looked at"
            )?;
        }
        if self.outside > 0 {
            write!(
                f,
                "\nnote: {} outside of the grid, which no reader sees",
                match self.outside {
                    1 => "1 stored chunk lies".to_string(),
                    many => format!("{many} stored chunks lie"),
                }
            )?;
        }
        Ok(())
    }
}

fn separator_text(separator: ChunkKeySeparator) -> &'static str {
    match separator {
        ChunkKeySeparator::Slash => "/",
        ChunkKeySeparator::Dot => ".",
    }
}

/// Returns the fill value in the form in which the metadata have it.
fn fill_value(opened: &Opened) -> Value {
    let metadata = serde_json::to_value(opened.array.metadata()).unwrap_or_default();
    metadata["fill_value"].clone()
}

/// Calls a function with the key of each stored object of an array.
fn each_key(
    opened: &Opened,
    keys: &Keys<'_>,
    mut look_at: impl FnMut(&str),
) -> Result<(), Failure> {
    let doing = format!("count the chunks of {}", opened.place);
    if let Place::Directory(path) = &opened.place {
        files_of_array(path, keys, look_at).map_err(Failure::to(&doing))?;
        return Ok(());
    }
    if let Some(sizes) = &opened.stores.sizes {
        for (key, _) in sizes().map_err(Failure::to(&doing))? {
            look_at(&key);
        }
    }
    Ok(())
}

/// Opens an array of Zarr v2 again, with `separator` in the keys of its chunks.
fn with_separator(opened: &mut Opened, separator: ChunkKeySeparator) -> Result<(), Failure> {
    let ArrayMetadata::V2(metadata) = opened.array.metadata().clone() else {
        return Ok(());
    };
    let metadata = metadata.with_dimension_separator(separator);
    let array = Array::new_with_metadata(opened.array.storage(), "/", metadata.into());
    let array = array.map_err(Failure::to(format_args!("open {}", opened.place)))?;
    opened.array = open::as_numcodecs_reads(&opened.place, array)?;
    Ok(())
}
