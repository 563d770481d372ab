//! All arrays of a group, one after the other.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use zarrs::metadata::GroupMetadata;
use zarrs::metadata::v3::GroupMetadataV3;
use zarrs::node::{Node, NodeMetadata};

use super::directory::{INCOMPLETE, publish};
use super::{Args, Job};
use crate::common::Common;
use crate::failure::Failure;
use crate::open::{self, Place};
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
    let members = members(&args.input)?;
    let root = &args.output;
    let Some(root_metadata) = members.first().and_then(|root| root.group.clone()) else {
        return Err(
            Failure::usage(format!("{} is an array, not a group", args.input))
                .with_remedy("leave out --recursive"),
        );
    };
    prepare(args, &members, &root_metadata)?;
    let mut done = Vec::new();
    for member in members.iter().filter(|member| member.group.is_none()) {
        let job = Job {
            args,
            common,
            input: args.input.join(&member.path),
            output: root.join(&member.path),
        };
        let outcome = job.run()?;
        common.say(outcome.text());
        done.push(outcome.into_json());
    }
    let cannot = |path: &Path| {
        let path = path.to_path_buf();
        move |error: std::io::Error| {
            Failure::failed(format!(
                "cannot write the group {}: {error}",
                path.display()
            ))
            .with_remedy("run the same command with --resume to go on")
        }
    };
    let mut groups = 0;
    for member in members.iter().skip(1).rev() {
        let Some(metadata) = &member.group else {
            continue;
        };
        let group = root.join(&member.path);
        fs::create_dir_all(&group).map_err(cannot(&group))?;
        fs::write(group.join(INCOMPLETE), metadata).map_err(cannot(&group))?;
        publish(&group)?;
        groups += 1;
    }
    publish(root)?;
    let text = format!(
        "{} arrays and {} groups in {}",
        members.len() - groups - 1,
        groups + 1,
        root.display()
    );
    let json = json!({
        "input": args.input.to_string(), "output": root, "groups": groups + 1, "arrays": done,
    });
    Ok(Outcome::new(text, json))
}

/// The root and everything below it, the root first.
fn members(input: &Place) -> Result<Vec<Member>, Failure> {
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::failed(format!("cannot list the arrays in {input}: {error}"))
    };
    let store = open::store(input)?;
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

/// Checks that the output has nothing that the input has not, and hides its root from readers.
fn prepare(args: &Args, members: &[Member], root_metadata: &[u8]) -> Result<(), Failure> {
    let root = &args.output;
    let shown = root.display();
    let cannot =
        |error: std::io::Error| Failure::failed(format!("cannot make {shown} ready: {error}"));
    fs::create_dir_all(root).map_err(cannot)?;
    let marker = root.join(INCOMPLETE);
    let is_incomplete = marker.is_file();
    let is_empty = fs::read_dir(root).map_err(cannot)?.next().is_none();
    if open::is_array(root) || !(is_empty || is_incomplete || open::is_group(root)) {
        return Err(
            Failure::failed(format!("{shown} is not empty, and not a Zarr group"))
                .with_remedy("name another OUT, or empty it yourself"),
        );
    }
    if is_incomplete && !args.resume && !args.overwrite {
        return Err(
            Failure::failed(format!("{shown} holds the output of an interrupted run"))
                .with_remedy("go on with --resume, or start again with --overwrite"),
        );
    }
    if !is_empty && !is_incomplete && !args.overwrite {
        return Err(Failure::failed(format!("{shown} holds a Zarr group"))
            .with_remedy("name another OUT, or replace its arrays with --overwrite"));
    }
    let expected: BTreeSet<_> = members
        .iter()
        .map(|member| root.join(&member.path))
        .collect();
    if let Some(foreign) = nodes_in(root)
        .into_iter()
        .find(|node| !expected.contains(node))
    {
        return Err(Failure::failed(format!(
            "{} is in OUT, but IN has nothing there",
            foreign.display()
        ))
        .with_remedy("name another OUT, or delete it yourself"));
    }
    fs::write(&marker, root_metadata).map_err(cannot)?;
    for metadata in ["zarr.json", ".zgroup", ".zattrs", ".zmetadata"] {
        match fs::remove_file(root.join(metadata)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(cannot(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The arrays and groups below `root`.
fn nodes_in(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if open::is_array(&path) || path.join(INCOMPLETE).is_file() && path != root {
                found.push(path);
            } else if path.is_dir() {
                if open::is_group(&path) {
                    found.push(path.clone());
                }
                directories.push(path);
            }
        }
    }
    found
}
