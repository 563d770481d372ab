//! The peers: Python processes that make the same calls.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::ArraySubset;
use zarrs_cuda_benches::Result;
use zarrs_cuda_benches::python::Script;

use crate::cases::Case;

/// A peer with an array of its own.
pub(crate) struct Peer {
    script: Script,
    folder: Option<TempDir>,
}

impl Peer {
    /// Starts `script`, a file beside this one, which stores the elements in the file `data`.
    pub(crate) fn start(python: &Path, script: &str, data: &Path) -> Result<Self> {
        Ok(Self {
            script: Script::start(python, &format!("array/{script}"), data)?,
            folder: None,
        })
    }

    /// Creates an array, in a new folder in `parent` or in memory. Files are synced if `sync` is true, by a peer
    /// that can.
    pub(crate) fn open(
        &mut self,
        metadata: &Value,
        parent: Option<&PathBuf>,
        sync: bool,
    ) -> Result<()> {
        self.folder = parent.map(TempDir::new_in).transpose()?;
        let path = self.folder();
        let request = json!({ "call": "open", "metadata": metadata, "path": path, "sync": sync });
        self.script.ask(&request).map(drop)
    }

    /// The folder of the array, unless it is in memory.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(TempDir::path)
    }

    /// Stores the whole array, and returns the seconds.
    pub(crate) fn store(&mut self) -> Result<f64> {
        let answer = self.script.ask(&json!({ "call": "store" }))?;
        Ok(answer["seconds"]
            .as_f64()
            .ok_or("a peer answered without a time")?)
    }

    /// Makes the call for at least `turn`, at one of `places` after the other: the seconds of a call, unless the
    /// peer has no such call.
    pub(crate) fn read_places(
        &mut self,
        places: &[Vec<ArraySubset>],
        into: bool,
        turn: Duration,
    ) -> Result<Option<f64>> {
        let places: Vec<_> = places.iter().map(|boxes| ranges(boxes)).collect();
        let call = if into { "read_into" } else { "read" };
        let request = json!({
            "call": "places", "of": call, "places": places, "turn": turn.as_secs_f64(),
        });
        Ok(self.script.ask(&request)?["seconds"].as_f64())
    }

    /// Writes one of `places` after the other for at least `turn`, and at least `least` times: the seconds of a call.
    pub(crate) fn write_places(
        &mut self,
        places: &[ArraySubset],
        turn: Duration,
        least: usize,
    ) -> Result<Option<f64>> {
        let places: Vec<_> = places
            .iter()
            .map(|one| ranges(std::slice::from_ref(one)))
            .collect();
        let request = json!({
            "call": "write_places", "places": places, "turn": turn.as_secs_f64(), "least": least,
        });
        Ok(self.script.ask(&request)?["seconds"].as_f64())
    }

    /// Reads the boxes of `case`, into new memory or into memory that was written before: the
    /// seconds, unless the peer has no such call, and with `check` the CRC-32 of the elements.
    pub(crate) fn read(
        &mut self,
        case: &Case,
        into: bool,
        check: bool,
    ) -> Result<Option<(f64, Option<u32>)>> {
        let boxes = ranges(&case.boxes);
        let call = if into { "read_into" } else { "read" };
        let request = json!({ "call": call, "boxes": boxes, "check": check });
        let answer = self.script.ask(&request)?;
        let crc = answer["crc32"].as_u64().map(u32::try_from).transpose()?;
        Ok(answer["seconds"].as_f64().map(|seconds| (seconds, crc)))
    }
}

/// Returns the start and the end of each box along each axis.
fn ranges(boxes: &[ArraySubset]) -> Vec<Vec<[u64; 2]>> {
    let of_box = |subset: &ArraySubset| {
        let ranges = subset.to_ranges().into_iter();
        ranges.map(|range| [range.start, range.end]).collect()
    };
    boxes.iter().map(of_box).collect()
}
