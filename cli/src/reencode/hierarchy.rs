//! All arrays of a group, one after the other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use zarrs_storage::{StoreKey, StorePrefix};

use super::run::Run;
use super::target::{Begun, Target};
use super::{Args, Job, Plan};
use crate::common::Common;
use crate::consolidated;
use crate::evidence::{Changes, Evidence};
use crate::failure::Failure;
use crate::open::{self, Place, Store};
use crate::outcome::Outcome;
use crate::stop;

/// A group of the input, or an array of it.
struct Member {
    /// Relative to the root, without a slash in front.
    path: String,
    node: Node,
}

enum Node {
    Array,
    Group {
        /// In Zarr v3, without consolidated metadata: they describe the input.
        metadata: Vec<u8>,
        is_consolidated: bool,
    },
    /// Why it is neither.
    Unreadable(Failure),
}

/// Re-encodes every array. All are planned before the first byte is written. Groups become visible to
/// readers when all of their arrays are, the root last.
pub(super) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let store = open::store(&args.input)?;
    args.input.must_be_listed(
        "find the arrays of",
        "name one array, and leave out --recursive",
    )?;
    let members = members(&args.input, &store)?;
    let metadata = match members.first().map(|root| &root.node) {
        Some(Node::Group { metadata, .. }) => metadata.clone(),
        _ => {
            return Err(
                Failure::usage(format!("{} is an array, not a group", args.input))
                    .with_remedy("leave out --recursive"),
            );
        }
    };
    let evidence = Evidence::of(&args.input, &*store)?;
    let run = Run::of_group(args, evidence, metadata);
    let root = Target::new(&args.output)?;
    let paths: BTreeSet<_> = members.iter().map(|member| &*member.path).collect();
    let changes = root.check_group(args.mode(), &run, &paths)?;
    let (plans, mut failed) = plans(args, common, &members, changes.as_ref());
    if !failed.is_empty() && !args.keep_going {
        let text = format!(
            "nothing was written: {} of {} arrays and groups in {} cannot be re-encoded. --keep-going \
             does the others",
            failed.len(),
            members.len(),
            args.input
        );
        let json = json!({
            "input": args.input.to_string(), "output": args.output.to_string(), "arrays": [],
        });
        return Ok(Outcome::new(text, json).with_errors(failed));
    }

    let begun = root.begin_group(args.mode(), &run)?;
    let mut done = Vec::new();
    for plan in plans {
        match plan.run() {
            Ok(outcome) => {
                common.say(outcome.text());
                done.push(outcome.into_json());
            }
            Err(failure) if args.keep_going && !stop::is_asked() => {
                common.say(format!("failed: {failure}"));
                failed.push(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    let arrays = done.len();
    let groups = write_groups(&root, &begun, &members)?;
    if failed.is_empty() {
        begun.remove_marker()?;
    } else {
        drop(begun); // the marker stays, so that --resume can add what is missing
    }
    let mut text = format!("{arrays} arrays and {groups} groups in {}", args.output);
    let below: Vec<_> = paths
        .iter()
        .filter(|path| !path.is_empty())
        .copied()
        .collect();
    if let Some(note) = consolidated::stale_above(&args.output, &below) {
        text += &format!("\n{note}");
    }
    if !failed.is_empty() {
        text += &format!(
            "\n{} are missing: when the cause is gone, --resume adds them",
            failed.len()
        );
    }
    let json = json!({
        "input": args.input.to_string(), "output": args.output.to_string(), "groups": groups,
        "arrays": done,
    });
    Ok(Outcome::new(text, json).with_errors(failed))
}

/// Plans for all arrays, and why others cannot be done.
fn plans<'a>(
    args: &'a Args,
    common: &'a Common,
    members: &[Member],
    changes: Option<&Changes>,
) -> (Vec<Plan<'a>>, Vec<Failure>) {
    let (mut plans, mut failed) = (Vec::new(), Vec::new());
    for member in members {
        match &member.node {
            Node::Group { .. } => {}
            Node::Unreadable(failure) => failed.push(failure.clone()),
            Node::Array => {
                let job = Job {
                    args,
                    common,
                    input: args.input.join(&member.path),
                    output: args.output.join(&member.path),
                };
                let is_stale = changes.is_some_and(|changes| changes.are_below(&member.path));
                match job.plan(is_stale) {
                    Ok(plan) => plans.push(plan),
                    Err(failure) => failed.push(failure),
                }
            }
        }
    }
    (plans, failed)
}

/// Makes the groups visible, the deepest first. Returns how many there are.
fn write_groups(root: &Target, begun: &Begun<'_>, members: &[Member]) -> Result<usize, Failure> {
    let mut written: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
    let read = |path: &str, text: &[u8]| {
        serde_json::from_slice::<Box<RawValue>>(text).map_err(|error| {
            Failure::failed(format!("cannot understand the metadata of {path}: {error}"))
        })
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
            // An array that failed is not there.
            if let Some(text) = root.metadata(&member.path)? {
                written.insert(&member.path, read(&member.path, &text)?);
            }
        }
    }
    let mut groups = 0;
    for member in members.iter().rev() {
        let Node::Group {
            metadata,
            is_consolidated,
        } = &member.node
        else {
            continue;
        };
        groups += 1;
        let metadata = if *is_consolidated {
            let prefix = match &*member.path {
                "" => String::new(),
                path => format!("{path}/"),
            };
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
        match &*member.path {
            "" => begun.show(&metadata)?,
            path => {
                root.write_group(path, &metadata)?;
                written.insert(path, read(path, &metadata)?);
            }
        }
    }
    Ok(groups)
}

/// The root and everything below it, the root first.
fn members(input: &Place, store: &Store) -> Result<Vec<Member>, Failure> {
    let mut members = Vec::new();
    let mut paths = vec![String::new()];
    while let Some(path) = paths.pop() {
        let Some(node) = node(input, store, &path) else {
            if path.is_empty() {
                return Err(Failure::failed(format!(
                    "{input} is neither a Zarr array nor a group"
                ))
                .with_remedy("name the directory of a Zarr group"));
            }
            continue; // a directory that is no part of the hierarchy
        };
        if path.is_empty()
            && let Node::Unreadable(failure) = node
        {
            return Err(failure);
        }
        if let Node::Group { .. } = node {
            paths.extend(children(input, store, &path)?);
        }
        members.push(Member { path, node });
    }
    members.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(members)
}

/// The paths of the directories in a group.
fn children(input: &Place, store: &Store, path: &str) -> Result<Vec<String>, Failure> {
    let group = if path.is_empty() {
        input.clone()
    } else {
        input.join(path)
    };
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::failed(format!("cannot list the arrays in {group}: {error}"))
    };
    if let Place::Directory(path) = &group {
        // The store takes a directory that it may not read for an empty one.
        std::fs::read_dir(path).map_err(|error| cannot(&error))?;
    }
    let prefix = match path {
        "" => String::new(),
        path => format!("{path}/"),
    };
    let prefix = StorePrefix::new(prefix).map_err(|error| cannot(&error))?;
    let listed = store.list_dir(&prefix).map_err(|error| cannot(&error))?;
    let children = listed.prefixes().iter();
    Ok(children
        .map(|child| child.as_str().trim_end_matches('/').to_string())
        .collect())
}

/// What is at a path of the input; `None` if there are no metadata.
fn node(input: &Place, store: &Store, path: &str) -> Option<Node> {
    let place = if path.is_empty() {
        input.clone()
    } else {
        input.join(path)
    };
    let unreadable = |error: &dyn std::fmt::Display| {
        Failure::failed(format!("cannot read the metadata of {place}: {error}"))
    };
    let get = |name: &str| {
        let key = match path {
            "" => name.to_string(),
            path => format!("{path}/{name}"),
        };
        let key = StoreKey::new(key).map_err(|error| unreadable(&error))?;
        store.get(&key).map_err(|error| unreadable(&error))
    };
    let found = || -> Result<Option<Node>, Failure> {
        if let Some(bytes) = get("zarr.json")? {
            let members: BTreeMap<String, Box<RawValue>> =
                serde_json::from_slice(&bytes).map_err(|error| {
                    unreadable(&format!("its zarr.json is not valid JSON: {error}"))
                })?;
            let kind = members.get("node_type").map(|kind| kind.get());
            return match kind {
                Some("\"array\"") => Ok(Some(Node::Array)),
                Some("\"group\"") => Ok(Some(Node::Group {
                    is_consolidated: consolidated::is_in(&members),
                    metadata: group_of(members, None).map_err(|error| unreadable(&error))?,
                })),
                _ => Err(unreadable(&format!(
                    "its node_type is {}, neither \"array\" nor \"group\"",
                    kind.unwrap_or("missing")
                ))),
            };
        }
        if get(".zarray")?.is_some() {
            return Ok(Some(Node::Array));
        }
        if get(".zgroup")?.is_none() {
            return Ok(None);
        }
        let attributes = get(".zattrs")?.map(|bytes| {
            serde_json::from_slice::<Box<RawValue>>(&bytes)
                .map_err(|error| unreadable(&format!("its .zattrs are not valid JSON: {error}")))
        });
        Ok(Some(Node::Group {
            is_consolidated: get(consolidated::OF_V2)?.is_some(),
            metadata: group_of(BTreeMap::new(), attributes.transpose()?)
                .map_err(|error| unreadable(&error))?,
        }))
    };
    found().unwrap_or_else(|failure| Some(Node::Unreadable(failure)))
}

/// The metadata of a group in Zarr v3. What the input says keeps its text: numbers stay as they were
/// written.
fn group_of(
    mut members: BTreeMap<String, Box<RawValue>>,
    attributes: Option<Box<RawValue>>,
) -> serde_json::Result<Vec<u8>> {
    members.remove(consolidated::OF_V3);
    members.insert("zarr_format".to_string(), to_raw_value(&3)?);
    members.insert("node_type".to_string(), to_raw_value("group")?);
    if let Some(attributes) = attributes
        && serde_json::from_str::<Value>(attributes.get())? != json!({})
    {
        members.insert("attributes".to_string(), attributes);
    }
    serde_json::to_vec_pretty(&members)
}
