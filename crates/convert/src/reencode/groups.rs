//! The metadata of the groups of an output, with consolidated metadata where the input has them.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::found::prefix_of;
use super::hierarchy::{Member, Node};
use crate::consolidated;
use crate::failure::Failure;

/// Returns the path and the metadata of each group of `members`, the deepest first. `array` returns the metadata of the
/// array at a path; `None` for an array that is left out. It is called only if a group needs them.
pub(super) fn of_groups<'m>(
    members: &'m [Member],
    array: impl Fn(&str) -> Result<Option<Vec<u8>>, Failure>,
) -> Result<Vec<(&'m str, Vec<u8>)>, Failure> {
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
