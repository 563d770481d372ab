//! The state of an output before a run, and the decision whether the run may write there.

use std::fmt;

use super::Mode;
use super::same_run::{self, GoesOn, Run};
use crate::claim::must_have_ended;
use crate::failure::Failure;

/// The name of the marker, which becomes `zarr.json` when the array or group is complete.
pub(super) const INCOMPLETE: &str = "zarr.json.incomplete";
/// The names of the files of an array's metadata, in Zarr v2 and v3.
pub(super) const METADATA: [&str; 6] = [
    "zarr.json",
    ".zarray",
    ".zattrs",
    ".zmetadata",
    INCOMPLETE,
    zarrs_cuda::storage::FRAMES_MARKER,
];
/// The names of the files of a group's metadata, in Zarr v2 and v3.
pub(super) const GROUP_METADATA: [&str; 4] = ["zarr.json", ".zgroup", ".zattrs", ".zmetadata"];

/// Returns the prefix of the keys of the node with this path. The root has the path "".
pub(super) fn prefix_of(path: &str) -> String {
    match path {
        "" => String::new(),
        path => format!("{path}/"),
    }
}

/// The state of an output.
#[derive(Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts that do not exclude one another"
)]
pub(super) struct Found {
    pub(super) is_empty: bool,
    /// The contents of the marker of an incomplete output.
    pub(super) marker: Option<Vec<u8>>,
    pub(super) is_array: bool,
    pub(super) is_group: bool,
    /// Whether there are files or objects besides the marker and temporaries.
    pub(super) holds_values: bool,
    /// A file or object that does not belong to an array. In a directory, the search for it needs an array or
    /// a marker there.
    pub(super) foreign: Option<String>,
}

/// The kind of the output: an array or a group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    Array,
    Group,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Array => "array",
            Self::Group => "group",
        })
    }
}

/// The way in which a run begins.
pub(super) enum Start {
    /// Nothing is stored at the output, or the run deletes what is stored.
    Anew,
    /// The run continues the output of an interrupted run of the same command.
    GoOn(GoesOn),
}

impl Found {
    /// Checks that `run` may write an array or a group, `node`, to this output. Returns how the run begins.
    pub(super) fn start(
        &self,
        mode: Mode,
        run: &Run,
        shown: &dyn fmt::Display,
        node: Node,
    ) -> Result<Start, Failure> {
        let is_foreign = match node {
            Node::Array => !(self.is_empty || self.marker.is_some() || self.is_array),
            Node::Group => {
                self.is_array || !(self.is_empty || self.marker.is_some() || self.is_group)
            }
        };
        if is_foreign {
            return Err(
                Failure::failed(format!("{shown} is not empty, and not a Zarr {node}"))
                    .with_remedy("name another OUT, or empty it yourself"),
            );
        }
        match &self.marker {
            Some(marker) => {
                must_have_ended(same_run::owner_of(marker).as_ref(), shown)?;
                if mode.resume {
                    // If nothing is stored yet, no shard can be from a different run.
                    if !same_run::is_noted(marker) && !self.holds_values {
                        return Ok(Start::Anew);
                    }
                    return run.goes_on(marker, shown).map(Start::GoOn);
                }
                if !mode.overwrite {
                    return Err(Failure::failed(format!(
                        "{shown} holds the output of an interrupted run"
                    ))
                    .with_remedy("go on with --resume, or start again with --overwrite"));
                }
            }
            None if !self.is_empty && !mode.overwrite => {
                let replaced = match node {
                    Node::Array => "it",
                    Node::Group => "its arrays",
                };
                return Err(
                    Failure::failed(format!("{shown} holds a Zarr {node}")).with_remedy(format!(
                        "name another OUT, or replace {replaced} with --overwrite"
                    )),
                );
            }
            None => {}
        }
        if node == Node::Array
            && let Some(foreign) = &self.foreign
        {
            return Err(Failure::failed(format!(
                "{foreign} is not a part of the array in {shown}: nothing is deleted while it is there"
            ))
            .with_remedy("name another OUT, or move it away"));
        }
        Ok(Start::Anew)
    }
}

/// Returns whether `name` is a part of a chunk's key, for example `c`, `0`, `0.1.2` or `c.0.1`.
pub(super) fn is_part_of_chunk_key(name: &str) -> bool {
    let digits = name.strip_prefix('c').unwrap_or(name);
    !name.is_empty() && digits.bytes().all(|b| b == b'.' || b.is_ascii_digit())
}
