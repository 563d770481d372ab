//! All arrays of a group, one after the other.

use serde_json::json;
use zarrs::metadata::GroupMetadata;
use zarrs::metadata::v3::GroupMetadataV3;
use zarrs::node::{Node, NodeMetadata};

use super::readable::must_be_readable;
use super::target::Target;
use super::{Args, Job};
use crate::common::Common;
use crate::failure::Failure;
use crate::open::{self, Place, is_group};
use crate::outcome::Outcome;

/// A group of the input, or an array of it.
struct Member {
    /// Relative to the root, without a slash in front.
    path: String,
    /// A group's metadata in Zarr v3.
    group: Option<Vec<u8>>,
}

/// Re-encodes every array. Groups become visible to readers when all of their arrays are, the root last.
pub(super) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    if let Place::Directory(path) = &args.input
        && is_group(path)
    {
        must_be_readable(path)?;
    }
    let members = members(&args.input)?;
    let Some(root_metadata) = members.first().and_then(|root| root.group.clone()) else {
        return Err(
            Failure::usage(format!("{} is an array, not a group", args.input))
                .with_remedy("leave out --recursive"),
        );
    };
    let arrays = members.iter().filter(|member| member.group.is_none());
    let jobs: Vec<_> = arrays
        .map(|member| Job {
            args,
            common,
            input: args.input.join(&member.path),
            output: args.output.join(&member.path),
        })
        .collect();
    for job in &jobs {
        job.counted()?;
    }
    let root = Target::new(&args.output)?;
    let paths: Vec<_> = members.iter().map(|member| &*member.path).collect();
    root.prepare_group(args, &paths, root_metadata)?;
    let mut done = Vec::new();
    for job in &jobs {
        let outcome = job.run()?;
        common.say(outcome.text());
        done.push(outcome.into_json());
    }
    let mut groups = 0;
    for member in members.iter().skip(1).rev() {
        if let Some(metadata) = &member.group {
            root.write_group(&member.path, metadata)?;
            groups += 1;
        }
    }
    root.publish()?;
    let text = format!(
        "{} arrays and {} groups in {}",
        members.len() - groups - 1,
        groups + 1,
        args.output
    );
    let json = json!({
        "input": args.input.to_string(), "output": args.output.to_string(), "groups": groups + 1,
        "arrays": done,
    });
    Ok(Outcome::new(text, json))
}

/// The root and everything below it, the root first.
fn members(input: &Place) -> Result<Vec<Member>, Failure> {
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::failed(format!("cannot list the arrays in {input}: {error}"))
    };
    let store = open::store(input)?;
    input.must_be_listed(
        "find the arrays of",
        "name one array, and leave out --recursive",
    )?;
    let root = Node::open(&store, "/").map_err(|error| cannot(&error))?;
    let mut members = Vec::new();
    let mut nodes = vec![&root];
    while let Some(node) = nodes.pop() {
        let group = match node.metadata() {
            NodeMetadata::Array(_) => None,
            NodeMetadata::Group(metadata) => {
                let metadata = serde_json::to_vec_pretty(&in_v3(metadata));
                Some(metadata.map_err(|error| cannot(&error))?)
            }
        };
        members.push(Member {
            path: node.path().as_str().trim_start_matches('/').to_string(),
            group,
        });
        nodes.extend(node.children());
    }
    members.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(members)
}

/// The group's metadata in Zarr v3. Consolidated metadata are left out: they describe the input.
fn in_v3(metadata: &GroupMetadata) -> GroupMetadataV3 {
    match metadata {
        GroupMetadata::V3(metadata) => {
            let mut metadata = metadata.clone();
            metadata.additional_fields.remove("consolidated_metadata");
            metadata
        }
        GroupMetadata::V2(metadata) => {
            GroupMetadataV3::default().with_attributes(metadata.attributes.clone())
        }
    }
}
