//! The members of a group that is re-encoded, and the metadata of its groups in the output: with consolidated metadata
//! where the input has them.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::found::prefix_of;
use crate::consolidated;
use crate::failure::Failure;

/// A group or an array of the input.
pub(super) struct Member {
    /// The path relative to the root, without a slash in front.
    pub(super) path: String,
    pub(super) node: Node,
    /// The names of the axes of the image of which this array is a level.
    pub(super) axes: Option<Vec<String>>,
}

pub(super) enum Node {
    Array,
    Group {
        /// The metadata in Zarr v3, without consolidated metadata, which describe the input.
        metadata: Vec<u8>,
        is_consolidated: bool,
        /// The levels of the images of the group, if it is of OME-Zarr 0.4: their paths in it, and the names of the
        /// axes.
        levels: Vec<(String, Vec<String>)>,
        /// A line for people about the description of images.
        note: Option<String>,
    },
    /// The node is neither an array nor a group, for this reason.
    Unreadable(Failure),
}

/// Returns the path and the metadata of each group of `members`, the deepest first. `array` returns the metadata of the
/// array at a path; `None` for an array that is left out. It is called only if a group needs them.
pub(super) fn of_groups(
    members: &[Member],
    array: impl Fn(&str) -> Result<Option<Vec<u8>>, Failure>,
) -> Result<Vec<(&str, Vec<u8>)>, Failure> {
    let mut written: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
    let read = |path: &str, text: &[u8]| {
        serde_json::from_slice::<Box<RawValue>>(text).map_err(Failure::to(format_args!(
            "understand the metadata of {path}"
        )))
    };
    let consolidates = members.iter().any(|member| {
        matches!(
            member.node,
            Node::Group {
                is_consolidated: true,
                ..
            }
        )
    });
    if consolidates {
        for member in members
            .iter()
            .filter(|member| matches!(member.node, Node::Array))
        {
            if let Some(text) = array(&member.path)? {
                written.insert(&member.path, read(&member.path, &text)?);
            }
        }
    }
    let mut groups = Vec::new();
    for member in members.iter().rev() {
        let Node::Group {
            metadata,
            is_consolidated,
            ..
        } = &member.node
        else {
            continue;
        };
        let metadata = if *is_consolidated {
            let prefix = prefix_of(&member.path);
            let below = written
                .iter()
                .filter_map(|(path, text)| Some((path.strip_prefix(&*prefix)?, &**text)));
            consolidated::with(metadata, below).map_err(|error| {
                let path = &member.path;
                Failure::failed(format!(
                    "cannot consolidate the metadata of {path}: {error}"
                ))
            })?
        } else {
            metadata.clone()
        };
        if !member.path.is_empty() {
            written.insert(&member.path, read(&member.path, &metadata)?);
        }
        groups.push((&*member.path, metadata));
    }
    Ok(groups)
}
