//! Describes the levels before they are made, for people and as JSON.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayShardedExt};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::writer::{ArrayWriter, Reduction, WriterError};
use zarrs_cuda_convert::open::Store;
use zarrs_cuda_convert::shapes::{edges, volume};
use zarrs_cuda_convert::words::{bytes_text, shape_text};

use super::axes::AxisArg;

/// The levels as they will be made.
pub(super) struct Plan {
    pub(super) levels: Vec<Level>,
    axes: Vec<(String, u64)>,
    reduction: Reduction,
}

/// A level of the image.
pub(super) struct Level {
    /// The name of the level's array in the group.
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
    shard: Vec<u64>,
    subchunk: Vec<u64>,
    /// The number of slices that the level has according to its metadata.
    pub(super) stored: u64,
    element: u64,
}

impl Level {
    /// Returns the bytes of one slice.
    pub(super) fn slice(&self) -> u64 {
        volume(&self.shape[1..]).saturating_mul(self.element)
    }

    /// Returns the number of slices in whole shards. Slices behind them lie in a shard that is not full.
    pub(super) fn whole(&self) -> u64 {
        let shard = self.shard[0].max(1);
        self.stored / shard * shard
    }
}

impl Plan {
    /// Returns the plan for the arrays `levels`, which may be stored already.
    pub(super) fn of(
        levels: &[Array<Store>],
        axes: &[AxisArg],
        reduction: Reduction,
        top: &Array<Store>,
    ) -> Self {
        let factor = axes.first().map_or(1, AxisArg::factor);
        let mut length = top.shape().first().copied().unwrap_or(0);
        let mut planned: Vec<Level> = Vec::new();
        for array in levels {
            if !planned.is_empty() {
                length = length.div_ceil(factor);
            }
            let mut shape = array.shape().to_vec();
            let stored = std::mem::replace(&mut shape[0], length);
            let shard = array.chunk_shape(&vec![0; shape.len()]);
            planned.push(Level {
                name: array.path().as_str().trim_start_matches('/').to_string(),
                shape,
                shard: shard.map(|shard| edges(&shard)).unwrap_or_default(),
                subchunk: array
                    .subchunk_shape()
                    .map(|shape| edges(&shape))
                    .unwrap_or_default(),
                stored,
                element: array.data_type().fixed_size().unwrap_or(1) as u64,
            });
        }
        Self {
            levels: planned,
            axes: axes
                .iter()
                .map(|axis| (axis.name.clone(), axis.factor()))
                .collect(),
            reduction,
        }
    }

    /// Returns the levels below level 0.
    pub(super) fn below(&self) -> &[Level] {
        self.levels.get(1..).unwrap_or_default()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.levels.iter().map(|level| level.name.clone()).collect()
    }

    pub(super) fn json(&self, image: &str) -> Value {
        let levels: Vec<_> = self
            .levels
            .iter()
            .map(|level| {
                json!({
                    "array": level.name,
                    "shape": level.shape,
                    "shard": level.shard,
                    "subchunk": level.subchunk,
                    "slices_before": level.stored,
                })
            })
            .collect();
        let axes = self
            .axes
            .iter()
            .map(|(name, factor)| json!({ "name": name, "factor": factor }));
        json!({
            "image": image,
            "reduction": self.reduction.name(),
            "axes": axes.collect::<Value>(),
            "levels": levels,
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let halved: Vec<_> = self
            .axes
            .iter()
            .filter(|(_, factor)| *factor > 1)
            .map(|(name, _)| name.as_str())
            .collect();
        let halved = match &halved[..] {
            [] => "no axis is halved".to_string(),
            axes => format!("halved along {}", axes.join(", ")),
        };
        let count = self.levels.len();
        write!(f, "{count} levels by {}, {halved}", self.reduction.name())?;
        let heads = ["array", "elements", "shard", "subchunk"].map(str::to_string);
        let rows = self.levels.iter().map(|level| {
            [
                level.name.clone(),
                shape_text(&level.shape),
                shape_text(&level.shard),
                shape_text(&level.subchunk),
            ]
        });
        let rows: Vec<_> = std::iter::once(heads).chain(rows).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths = [0, 1, 2].map(|column| width(column).unwrap_or(0));
        for [name, elements, shard, subchunk] in &rows {
            let [a, b, c] = widths;
            write!(f, "\n  {name:a$}  {elements:b$}  {shard:c$}  {subchunk}")?;
        }
        Ok(())
    }
}

/// Returns the bytes of a slice along the first axis.
fn slice(array: &Array<Store>) -> u64 {
    let element = array.data_type().fixed_size().unwrap_or(1) as u64;
    let edges = array.shape().get(1..).unwrap_or_default();
    volume(edges).saturating_mul(element)
}

/// Returns the bytes that it takes to read a level: for four blocks of slices, of which one is read, one
/// waits, one is reduced, and one is encoded. A block is as deep as a subchunk.
pub(super) fn reading(array: &Array<Store>) -> u64 {
    let subchunk = array.subchunk_shape();
    let slices = subchunk.and_then(|shape| shape.first().map(|extent| extent.get()));
    slice(array)
        .saturating_mul(slices.unwrap_or(1))
        .saturating_mul(4)
}

/// Returns the bytes of this machine's memory that buffers take at most while the levels are made.
pub(super) fn memory(
    levels: &[Array<Store>],
    store: &Arc<FilesystemStore>,
) -> Result<u64, WriterError> {
    let mut bytes = levels.first().map_or(0, reading);
    for pair in levels.windows(2) {
        let writer = ArrayWriter::builder(&pair[1])
            .with_atomic_rename(store.clone())
            .with_start(0)
            .memory_estimate()?;
        let of_writer = (writer.host + writer.pinned) as u64;
        // The writer of a lower level keeps the first slice of a window, and the slice that the window
        // becomes.
        bytes += of_writer + slice(&pair[0]) + slice(&pair[1]);
    }
    Ok(bytes)
}

pub(super) fn memory_text(bytes: u64) -> String {
    format!("up to {} of memory", bytes_text(bytes))
}
