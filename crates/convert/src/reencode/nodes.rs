//! Finds the arrays and groups of an input that is a group, and chooses those that are re-encoded.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use zarrs_storage::{StoreKey, StorePrefix};

use super::Reencode;
use super::found::{GROUP_METADATA, prefix_of};
use super::groups::{Member, Node};
use super::ome;
use super::readable::unreadable;
use crate::consolidated;
use crate::failure::Failure;
use crate::names;
use crate::open::{self, Kind, Place, Store, is_of_writer};
use crate::pattern::Pattern;
use crate::stored::ends_elsewhere;
use crate::watcher::{Event, Watcher};
use crate::words::counted;

/// The nodes of an input that is a group.
pub(super) struct Hierarchy {
    pub(super) members: Vec<Member>,
    /// The paths of files and directories that are no part of the hierarchy.
    pub(super) left_out: Vec<String>,
    /// The metadata of the root.
    pub(super) metadata: Vec<u8>,
    /// The paths of all nodes of the input, included or not.
    pub(super) paths: BTreeSet<String>,
}

/// Returns the paths of the arrays in the group at `place`, at any depth; of an array, the empty path. Also returns a
/// failure for each member that cannot be read.
///
/// # Errors
/// The store cannot be listed, or its server does not answer.
pub fn arrays_below(place: &Place) -> Result<(Vec<String>, Vec<Failure>), Failure> {
    place.must_be_listed(
        "find the arrays of",
        "name one array, and leave out --recursive",
    )?;
    let stores = open::store(place)?;
    let (members, _) = members(place, &stores.store)?;
    let (mut arrays, mut failures) = (Vec::new(), Vec::new());
    for Member { path, node, .. } in members {
        match node {
            Node::Array => arrays.push(path),
            Node::Group { .. } => {}
            Node::Unreadable(failure) => failures.push(failure),
        }
    }
    Ok((arrays, failures))
}

/// Lists the nodes of `input`, and tells the watcher what is no part of the hierarchy.
pub(super) fn hierarchy(
    settings: &Reencode,
    store: &Store,
    watcher: &dyn Watcher,
) -> Result<Hierarchy, Failure> {
    let Reencode { input, .. } = settings;
    let say = |line: String| watcher.hear(Event::Line(&line));
    input.must_be_listed(
        "find the arrays of",
        "name one array, and leave out --recursive",
    )?;
    let (mut members, left_out) = members(input, store)?;
    let paths = members.iter().map(|member| member.path.clone()).collect();
    if !settings.include.is_empty() {
        say(include(settings, &mut members)?);
    }
    must_be_named(settings, &members)?;
    if settings.consolidate_metadata
        && let Some(Node::Group {
            is_consolidated, ..
        }) = members.first_mut().map(|root| &mut root.node)
    {
        *is_consolidated = true;
    }
    levels_of_images(input, &mut members)
        .into_iter()
        .for_each(say);
    left_out_note(input, &left_out).map(say);
    encoded_names(input, &members).into_iter().for_each(say);
    let Some(Node::Group { metadata, .. }) = members.first().map(|root| &root.node) else {
        return Err(Failure::usage(format!("{input} is an array, not a group"))
            .with_remedy("leave out --recursive"));
    };
    Ok(Hierarchy {
        metadata: metadata.clone(),
        members,
        left_out,
        paths,
    })
}

/// Gives the levels of images the names of their axes. Returns lines for people about the descriptions of images.
fn levels_of_images(input: &Place, members: &mut [Member]) -> Vec<String> {
    let mut notes = Vec::new();
    let mut axes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for member in members.iter() {
        let Node::Group { levels, note, .. } = &member.node else {
            continue;
        };
        let group = input.join(&member.path);
        notes.extend(note.iter().map(|note| format!("note: {group}: {note}")));
        for (level, names) in levels {
            axes.insert(prefix_of(&member.path) + level, names.clone());
        }
    }
    for member in members {
        if let Node::Array = member.node {
            member.axes = axes.remove(&member.path);
        }
    }
    let gone = axes.into_keys().map(|level| {
        format!(
            "note: an image names the level {}, and there is no such array, or it is not included",
            input.join(&level)
        )
    });
    notes.extend(gone);
    notes
}

/// Keeps the arrays of `members` that are to be included, and the groups that they are in. Returns a line for people.
fn include(settings: &Reencode, members: &mut Vec<Member>) -> Result<String, Failure> {
    let is_group = |member: &Member| matches!(member.node, Node::Group { .. });
    let all = members.iter().filter(|member| !is_group(member)).count();
    for pattern in &settings.include {
        if !members.iter().any(|member| may_be_meant(member, pattern)) {
            return Err(no_array(settings, "--include", pattern));
        }
    }
    let is_included =
        |member: &&Member| (settings.include.iter()).any(|pattern| may_be_meant(member, pattern));
    let included: BTreeSet<String> = members
        .iter()
        .filter(is_included)
        .map(|member| member.path.clone())
        .collect();
    members.retain(|member| {
        if !is_group(member) {
            return included.contains(&member.path);
        }
        let prefix = prefix_of(&member.path);
        member.path.is_empty() || included.iter().any(|path| path.starts_with(&*prefix))
    });
    Ok(format!(
        "{} of {} included",
        included.len(),
        counted(all as u64, "array")
    ))
}

/// Returns whether `pattern` matches the path of an array. An unreadable node may be a group, and have such arrays.
fn may_be_meant(member: &Member, pattern: &Pattern) -> bool {
    match member.node {
        Node::Group { .. } => false,
        Node::Array => pattern.matches(&member.path),
        Node::Unreadable(_) => pattern.matches(&member.path) || pattern.matches_below(&member.path),
    }
}

/// Checks that each pattern of shapes is the path of an array.
fn must_be_named(settings: &Reencode, members: &[Member]) -> Result<(), Failure> {
    let names = |pattern: &Pattern| (members.iter()).any(|member| may_be_meant(member, pattern));
    let mut patterns = settings.shapes.for_paths.iter().map(|one| &one.pattern);
    match patterns.find(|pattern| !names(pattern)) {
        Some(pattern) => Err(no_array(settings, "--shape-for", pattern)),
        None => Ok(()),
    }
}

fn no_array(settings: &Reencode, option: &str, pattern: &Pattern) -> Failure {
    Failure::usage(format!(
        "{option} {pattern} is the path of no array of {}",
        settings.input
    ))
    .with_remedy("a path begins at the group; `*` is any characters but `/`, and `**` any")
}

/// Returns a failure for each node that cannot be listed, or that only the consolidated metadata have.
pub(super) fn not_found(
    input: &Place,
    store: &Store,
    paths: &BTreeSet<String>,
) -> Result<Vec<Failure>, Failure> {
    let mut failures = match input {
        Place::Directory(path) => unreadable(path)?,
        Place::Url(_) => Vec::new(),
    };
    failures.extend(listed_alone(input, store, paths)?);
    Ok(failures)
}

/// Returns a failure for each node that the consolidated metadata of the root list and that does not exist.
/// xarray would read such a node, because it reads no other metadata.
fn listed_alone(
    input: &Place,
    store: &Store,
    paths: &BTreeSet<String>,
) -> Result<Vec<Failure>, Failure> {
    let listed = consolidated::listed(input, store)?;
    let alone = listed.into_iter().filter(|path| !paths.contains(path));
    let failures = alone.map(|path| {
        Failure::failed(format!(
            "the consolidated metadata of {input} list {path}, and there is no such node: readers such as \
             xarray open it from there, and it would be left out"
        ))
        .with_remedy("restore its metadata, or consolidate the metadata of IN again")
    });
    Ok(failures.collect())
}

/// Returns notes about members of an object store whose names look encoded: zarrs and an earlier version of
/// this command encoded some characters.
fn encoded_names(input: &Place, members: &[Member]) -> Vec<String> {
    if let Place::Directory(_) = input {
        return Vec::new();
    }
    let paths = members.iter().map(|member| &member.path);
    let meant = paths.filter_map(|path| Some((path, names::decoded(path)?)));
    let notes = meant.map(|(path, meant)| {
        format!(
            "note: {path} may be meant to be {meant}: zarrs and an earlier version of this command encode \
             such characters in object stores"
        )
    });
    notes.collect()
}

/// Returns a note about the files and directories of the input that are no part of the hierarchy.
fn left_out_note(input: &Place, left_out: &[String]) -> Option<String> {
    let first = left_out.first()?;
    Some(format!(
        "note: {} of {input} not copied, because it is no part of the hierarchy: {first}{}",
        counted(left_out.len(), "path"),
        if left_out.len() > 1 {
            ", and others"
        } else {
            ""
        }
    ))
}

/// Returns all nodes of the input, the root first, and the paths of files and directories that are no part of
/// the hierarchy.
fn members(input: &Place, store: &Store) -> Result<(Vec<Member>, Vec<String>), Failure> {
    let (mut members, mut left_out) = (Vec::new(), Vec::new());
    let mut paths = vec![String::new()];
    while let Some(path) = paths.pop() {
        let Some(node) = node(input, store, &path) else {
            if path.is_empty() {
                return Err(Failure::failed(format!(
                    "{input} is neither a Zarr array nor a group"
                ))
                .with_remedy("name the directory of a Zarr group"));
            }
            // The directory has no metadata. It is no part of the hierarchy, unless there is a node below it.
            match node_below(input, store, &path)? {
                Some(below) => members.push(Member {
                    node: Node::Unreadable(without_metadata(input, store, &path, &below)),
                    path,
                    axes: None,
                }),
                None => left_out.push(path),
            }
            continue;
        };
        if let Node::Unreadable(failure) = &node {
            if path.is_empty() {
                return Err(failure.clone());
            }
            // Otherwise each of the other nodes would fail for the same reason.
            open::must_answer([input])?;
        }
        if let Node::Group { .. } = node {
            let (children, files) = children(input, store, &path)?;
            paths.extend(children);
            left_out.extend(files);
        }
        members.push(Member {
            path,
            node,
            axes: None,
        });
    }
    members.sort_by(|a, b| a.path.cmp(&b.path));
    left_out.sort();
    Ok((members, left_out))
}

/// The attributes of a group of v2 in Zarr v3, the levels of its images, and a line for people.
type DescribedGroup = (
    Option<Box<RawValue>>,
    Vec<(String, Vec<String>)>,
    Option<String>,
);

/// Returns the name of the group at `path` in `input`, which may itself be a group in an image.
fn name_of(input: &Place, path: &str) -> String {
    match path.rsplit('/').next() {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => input.above().map_or_else(String::new, |(_, name)| name),
    }
}

/// Returns the `attributes` of the group `name` of Zarr v2 with a description of images in OME-Zarr 0.5.
fn described(name: &str, attributes: Box<RawValue>) -> DescribedGroup {
    match ome::in_v05(name, &attributes) {
        Ok(None) => (Some(attributes), Vec::new(), None),
        Ok(Some(found)) => {
            let note = found.problem.map(|problem| {
                format!(
                    "its description becomes OME-Zarr 0.5, and readers may refuse it: {problem}"
                )
            });
            (Some(found.attributes), found.levels, note)
        }
        Err(reason) => {
            let note = format!(
                "its description of OME-Zarr stays as it is, and no reader of OME-Zarr 0.5 finds it: {reason}"
            );
            (Some(attributes), Vec::new(), Some(note))
        }
    }
}

/// Returns the path of a node below `path`, a directory without metadata; `None` if there is no node.
fn node_below(input: &Place, store: &Store, path: &str) -> Result<Option<String>, Failure> {
    let (mut paths, _) = children(input, store, path)?;
    while let Some(path) = paths.pop() {
        if path
            .rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with('.'))
        {
            continue; // hidden directories are no members of a group, as in `readable.rs`
        }
        match Kind::below(store, &prefix_of(&path), input) {
            Ok(Kind::Nothing) => paths.extend(children(input, store, &path)?.0),
            // A node with unreadable metadata is a node, too.
            Ok(_) | Err(_) => return Ok(Some(path)),
        }
    }
    Ok(None)
}

/// Returns the failure for the directory `path` without metadata, in which there is a node, `below`.
fn without_metadata(input: &Place, store: &Store, path: &str, below: &str) -> Failure {
    let failure = Failure::failed(format!(
        "{} has no metadata of a group, and {} below it would be left out",
        input.join(path),
        input.join(below)
    ));
    let encoded = names::encoded(path);
    let is_there =
        |path: &str| Kind::below(store, &prefix_of(path), input).is_ok_and(Kind::is_node);
    if encoded != path && is_there(&encoded) {
        return failure.with_remedy(format!(
            "move the objects of {encoded}/ to {path}/: zarrs and an earlier version of this command stored \
             the metadata of {path} there"
        ));
    }
    failure.with_remedy(format!(
        "make {path} a group, as by `zarr.open_group`, or re-encode {} by itself",
        input.join(below)
    ))
}

/// Returns the paths of the directories in a group, and of its files that are no metadata.
fn children(
    input: &Place,
    store: &Store,
    path: &str,
) -> Result<(Vec<String>, Vec<String>), Failure> {
    let group = input.join(path);
    let doing = format!("list the arrays in {group}");
    let prefix = StorePrefix::new(prefix_of(path)).map_err(Failure::to(&doing))?;
    let listed = store.list_dir(&prefix).map_err(Failure::to(&doing))?;
    let mut children = Vec::new();
    for child in listed.prefixes() {
        let child = child.as_str().trim_end_matches('/');
        if is_of_writer(child) {
            continue;
        }
        if let Place::Directory(root) = input {
            ends_elsewhere(&root.join(child)).map_err(Failure::to(&doing))?;
        }
        children.push(child.to_string());
    }
    let is_metadata = |key: &&str| GROUP_METADATA.contains(&key.rsplit('/').next().unwrap_or(key));
    let files = listed.keys().iter().map(StoreKey::as_str);
    let files = files.filter(|key| !key.is_empty() && !is_metadata(key) && !is_of_writer(key));
    Ok((children, files.map(str::to_string).collect()))
}

/// Returns the node at a path of the input; `None` if it has no metadata.
fn node(input: &Place, store: &Store, path: &str) -> Option<Node> {
    let file = |name: &str| input.join(path).join(name).to_string();
    let wrong = |name: &str, error: &dyn std::fmt::Display| {
        open::unreadable(&file(name), &error.to_string())
    };
    let cannot = |name: &str, error: &dyn std::fmt::Display| {
        Failure::failed(format!("cannot read {}: {error}", file(name)))
    };
    let get = |name: &str| {
        let key = StoreKey::new(prefix_of(path) + name).map_err(|error| cannot(name, &error))?;
        store.get(&key).map_err(|error| cannot(name, &error))
    };
    let found = || -> Result<Option<Node>, Failure> {
        let kind = Kind::below(store, &prefix_of(path), input)?;
        let (attributes, members) = match kind {
            Kind::Nothing => return Ok(None),
            Kind::Array => return Ok(Some(Node::Array)),
            Kind::Group => (get(".zattrs")?, get("zarr.json")?),
        };
        let (is_consolidated, members, attributes) = if let Some(text) = members {
            let members =
                serde_json::from_slice(&text).map_err(|error| wrong("zarr.json", &error))?;
            if let Some(member) = not_understood(&members) {
                return Err(wrong(
                    "zarr.json",
                    &format!("nothing is known of its member `{member}`, which must be understood"),
                ));
            }
            (consolidated::is_in(&members), members, None)
        } else {
            let attributes = attributes.map(|text| serde_json::from_slice(&text));
            let attributes = attributes
                .transpose()
                .map_err(|error| wrong(".zattrs", &error))?;
            let is_consolidated = get(consolidated::OF_V2)?.is_some();
            (is_consolidated, BTreeMap::new(), attributes)
        };
        let (attributes, levels, note) = match attributes {
            Some(attributes) => described(&name_of(input, path), attributes),
            None => (None, Vec::new(), None),
        };
        Ok(Some(Node::Group {
            is_consolidated,
            levels,
            note,
            metadata: group_of(members, attributes).map_err(|error| wrong("zarr.json", &error))?,
        }))
    };
    found().unwrap_or_else(|failure| Some(Node::Unreadable(failure)))
}

/// Returns the name of a member of a group's metadata that Zarr v3 does not have, and that a reader must
/// understand.
fn not_understood(members: &BTreeMap<String, Box<RawValue>>) -> Option<&str> {
    const KNOWN: [&str; 4] = [
        "zarr_format",
        "node_type",
        "attributes",
        consolidated::OF_V3,
    ];
    let mut members = members.iter();
    let found = members.find(|(name, value)| {
        let value: Value = serde_json::from_str(value.get()).unwrap_or_default();
        !KNOWN.contains(&name.as_str()) && value["must_understand"] != Value::Bool(false)
    });
    found.map(|(name, _)| name.as_str())
}

/// Returns the metadata of a group in Zarr v3. Members of the input keep their text, so that numbers stay as
/// they were written.
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
