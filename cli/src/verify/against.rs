//! Compares an array with another one, bit for bit.

use std::io;

use serde_json::{Value, json};
use zarrs::array::{ArrayBytes, ArrayError, ArrayShardedExt, ArraySubset};
use zarrs_codec::{CodecError, CodecOptions};
use zarrs_cuda::maintenance::is_damage;
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::budget::Budget;
use zarrs_cuda_convert::chunks::Chunks;
use zarrs_cuda_convert::open::{Opened, Place};
use zarrs_cuda_convert::parts::{Parts, Sizes, element_bytes, unit};
use zarrs_cuda_convert::shapes::edges;
use zarrs_cuda_convert::words::{counted, shape_text};
use zarrs_storage::StorageError;

use crate::common::Common;

/// The most lines about differences that a shard has in the text. The JSON has all differences.
const LINES: usize = 8;

/// The other array, and the parts in which both are compared.
pub(super) struct Other {
    pub(super) opened: Opened,
    /// The stored chunks of the other array, if they were listed.
    chunks: Option<Chunks>,
    parts: Parts,
    options: CodecOptions,
}

impl Other {
    /// # Errors
    /// The budget does not fit one subchunk of both arrays.
    pub(super) fn new(
        one: &Opened,
        opened: Opened,
        chunks: Option<Chunks>,
        budget: &Budget,
        common: &Common,
    ) -> Result<Self, Failure> {
        let origin = vec![0; one.array.dimensionality()];
        let shard = one.array.chunk_shape(&origin).map(|shard| edges(&shard));
        let subchunk = unit(&one.array);
        let sizes = Sizes {
            shard: &shard.unwrap_or_else(|_| subchunk.clone()), // the array has no elements
            subchunk: &subchunk,
            input_chunk: &unit(&opened.array),
            element: element_bytes(&one.array),
            is_object: false,
        };
        let parts = Parts::choose(&sizes, budget, common.threads())?;
        Ok(Self {
            options: parts.options(),
            opened,
            chunks,
            parts,
        })
    }

    /// Returns the bytes that it takes to compare a shard of `shard` bytes.
    pub(super) fn bytes(&self, shard: u64) -> u64 {
        self.parts.bytes(shard)
    }

    fn read(&self, region: &ArraySubset) -> Result<ArrayBytes<'static>, ArrayError> {
        let array = &self.opened.array;
        match &self.chunks {
            Some(chunks) => chunks.read(array, region, &self.options),
            None => array.retrieve_array_subset_opt(region, &self.options),
        }
    }

    /// Reads elements of the array `one`, which is compared with this one.
    fn read_one(
        &self,
        one: &Opened,
        region: &ArraySubset,
    ) -> Result<ArrayBytes<'static>, ArrayError> {
        one.array.retrieve_array_subset_opt(region, &self.options)
    }

    /// Returns whether all elements of `region` can be read from both arrays, and are equal.
    fn is_equal(&self, one: &Opened, region: &ArraySubset) -> bool {
        self.parts.of(region).all(|part| {
            let read = (self.read_one(one, &part), self.read(&part));
            matches!(read, (Ok(a), Ok(b)) if a == b)
        })
    }
}

/// A box of elements that is not equal in both arrays.
pub(super) struct Difference {
    elements: String,
    why: String,
}

/// Returns the first difference in the metadata that makes a comparison of elements impossible; `None` if
/// there is none.
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

/// Returns the subchunks that differ in the shard with the indices `shard`.
pub(super) fn differences(
    one: &Opened,
    other: &Other,
    shard: &[u64],
) -> Result<Vec<Difference>, Failure> {
    let doing = format!("compare the shard {}", shape_text(shard));
    let region = one.array.chunk_subset_bounded(shard);
    let region = region.map_err(Failure::to(&doing))?;
    if other.is_equal(one, &region) {
        return Ok(Vec::new());
    }
    // Compare each subchunk, to find those that differ.
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
        let why = match (other.read_one(one, &part), other.read(&part)) {
            (Ok(a), Ok(b)) if a == b => continue,
            (Ok(_), Ok(_)) => "they differ".to_string(),
            (Err(error), _) => damage(&one.place, &error)?,
            (_, Err(error)) => damage(&other.opened.place, &error)?,
        };
        found.push(Difference {
            elements: ranges_text(&ranges),
            why,
        });
    }
    Ok(found)
}

/// Returns the reason why elements at `place` cannot be compared, if the reason is that stored bytes are
/// wrong.
///
/// # Errors
/// The elements could not be read or decoded for another reason, so it is not known whether they are damaged.
fn damage(place: &Place, error: &ArrayError) -> Result<String, Failure> {
    // A file that is too short is damaged.
    let is_short = |error: &StorageError| matches!(error, StorageError::IOError(error) if error.kind() == io::ErrorKind::UnexpectedEof);
    let is_damage = match error {
        ArrayError::CodecError(CodecError::StorageError(error)) if is_short(error) => true,
        ArrayError::CodecError(error) => is_damage(error),
        ArrayError::StorageError(error) => is_short(error),
        _ => true,
    };
    let text = format!("{place} cannot be read: {error}");
    if is_damage {
        return Ok(text);
    }
    Err(Failure::failed(text).with_remedy(
        "nothing is known of these elements: when the cause is gone, run the same command again",
    ))
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
