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

/// How many chunks of an array are stored.
#[derive(Debug)]
pub struct Chunks {
    place: Place,
    /// The chunks of the grid that are stored, or why they cannot be counted.
    stored: Result<u64, String>,
    /// These chunks, if there was a listing.
    known: Option<Arc<Known>>,
    /// The chunks of the grid.
    grid: u64,
    /// Stored chunks that are not in the grid.
    outside: u64,
    /// Shards beside which subchunks wait in frames.
    waiting: u64,
    /// A directory in the array that is an array or a group itself.
    node_within: Option<String>,
    /// Files beside chunks that are not stored, by which a program was about to store them: how many, and one.
    unfinished: Option<(u64, String)>,
    /// Under which separator of keys the chunks were found, where the metadata say another one.
    found: Option<ChunkKeySeparator>,
}

/// The numbers of chunks of an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ChunkCounts {
    /// The chunks that are stored; `None` if they cannot be counted.
    pub stored: Option<u64>,
    /// The chunks of the grid.
    pub of: u64,
    /// Stored chunks that are not in the grid.
    pub outside: u64,
    /// The separator in the keys of chunks, where the metadata say another one.
    pub found_separator: Option<&'static str>,
}

/// The answer of a run to an array without a stored chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Empty {
    /// Such an array is what the user asked for.
    Allowed,
    /// Such an array is one of many, and may be meant.
    Told,
    /// Such an array is more likely a wrong place.
    Refused,
}

impl Chunks {
    /// Lists the chunks of an array. Opens `opened.array` again if its keys have the other separator of
    /// Zarr v2 than `.zarray` says. From then on, it is an error to read a chunk from it that was listed and is gone.
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
            let mut chunks = Self::of(opened)?; // now they are found
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

    /// The path of an array or group within the array, which has no members.
    pub fn node_within(&self) -> Option<&str> {
        self.node_within.as_deref()
    }

    /// The chunks that are stored, by their indices; `None` if there was no listing.
    pub fn indices(&self) -> Option<impl Iterator<Item = Vec<u64>>> {
        self.known.as_deref().map(Known::chunks)
    }

    /// The store of a group that has this array at `path`, where it is an error to read a chunk that is gone.
    pub fn watched(&self, group: Arc<Store>, path: &str) -> Arc<Store> {
        match &self.known {
            Some(known) => known.clone().watched(group, format!("{path}/")),
            None => group,
        }
    }

    /// How many chunks are stored, for people.
    ///
    /// # Errors
    /// - No chunk is stored, and such an array is refused, or chunks lie beside it.
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

/// The fill value as its metadata say it.
fn fill_value(opened: &Opened) -> Value {
    let metadata = serde_json::to_value(opened.array.metadata()).unwrap_or_default();
    metadata["fill_value"].clone()
}

/// Hands on the key of each stored object of an array.
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

/// Opens an array of Zarr v2 again, with another separator of its keys.
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
