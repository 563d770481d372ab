//! Comparison with another array, bit for bit.

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayBytes, ArrayError, ArrayShardedExt, ArraySubset};

use crate::arguments::shape_text;
use crate::failure::Failure;
use crate::open::{Opened, Store};
use crate::progress::counted;

/// Lines for each shard. JSON has everything.
const LINES: usize = 8;

/// A box of elements that is not equal in both arrays.
pub(super) struct Difference {
    elements: String,
    why: String,
}

/// Returns what differs in the metadata so that elements cannot be compared.
pub(super) fn of_metadata(one: &Opened, other: &Opened) -> Option<String> {
    let (one, other) = (&one.array, &other.array);
    if one.shape() != other.shape() {
        return Some(format!(
            "the shapes are {:?} and {:?}",
            one.shape(),
            other.shape()
        ));
    }
    (one.data_type() != other.data_type()).then(|| {
        format!(
            "the data types are {:?} and {:?}",
            one.data_type(),
            other.data_type()
        )
    })
}

/// The subchunks of the shard with the indices `shard` that differ.
pub(super) fn differences(
    one: &Opened,
    other: &Opened,
    shard: &[u64],
) -> Result<Vec<Difference>, Failure> {
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::failed(format!(
            "cannot compare the shard {}: {error}",
            shape_text(shard)
        ))
    };
    let region = one.array.chunk_subset_bounded(shard);
    let region = region.map_err(|error| cannot(&error))?;
    if let (Ok(a), Ok(b)) = (read(&one.array, &region), read(&other.array, &region))
        && a == b
    {
        return Ok(Vec::new());
    }
    // Which subchunks?
    let subchunk = one.array.subchunk_shape();
    let subchunk: Vec<u64> = match &subchunk {
        Some(subchunk) => subchunk.iter().map(|extent| extent.get()).collect(),
        None => region.shape().to_vec(),
    };
    let counts: Vec<_> = region
        .shape()
        .iter()
        .zip(&subchunk)
        .map(|(extent, subchunk)| extent.div_ceil(*subchunk))
        .collect();
    let mut found = Vec::new();
    for indices in &ArraySubset::new_with_shape(counts).indices() {
        let ranges: Vec<_> = indices
            .iter()
            .zip(&subchunk)
            .zip(region.to_ranges())
            .map(|((&index, &extent), bounds)| {
                let start = bounds.start + index * extent;
                start..start.saturating_add(extent).min(bounds.end)
            })
            .collect();
        let part = ArraySubset::new_with_ranges(&ranges);
        let why = match (read(&one.array, &part), read(&other.array, &part)) {
            (Ok(a), Ok(b)) if a == b => continue,
            (Ok(_), Ok(_)) => "they differ".to_string(),
            (Err(error), _) => format!("{} cannot be read: {error}", one.place),
            (_, Err(error)) => format!("{} cannot be read: {error}", other.place),
        };
        found.push(Difference {
            elements: ranges_text(&ranges),
            why,
        });
    }
    Ok(found)
}

fn read(array: &Array<Store>, region: &ArraySubset) -> Result<ArrayBytes<'static>, ArrayError> {
    array.retrieve_array_subset(region)
}

fn ranges_text(ranges: &[std::ops::Range<u64>]) -> String {
    let ranges: Vec<_> = ranges
        .iter()
        .map(|range| format!("{}..{}", range.start, range.end))
        .collect();
    format!("[{}]", ranges.join(", "))
}

pub(super) fn text(shard: &[u64], differences: &[Difference]) -> String {
    let mut lines = vec![format!(
        "shard {}: {} not equal",
        shape_text(shard),
        counted(differences.len(), "subchunk")
    )];
    lines.extend(
        differences
            .iter()
            .take(LINES)
            .map(|difference| format!("  elements {}: {}", difference.elements, difference.why)),
    );
    if let Some(more @ 1..) = differences.len().checked_sub(LINES) {
        lines.push(format!("  and {more} more, which --json lists"));
    }
    lines.join("\n")
}

pub(super) fn json(shard: &[u64], differences: &[Difference]) -> Value {
    let subchunks: Vec<_> = differences
        .iter()
        .map(|difference| json!({ "elements": difference.elements, "problem": difference.why }))
        .collect();
    json!({ "shard": shard, "subchunks": subchunks })
}
