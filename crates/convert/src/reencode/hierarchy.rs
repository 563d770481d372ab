//! Re-encodes all arrays of a group, one after the other.

use std::collections::BTreeSet;

use super::found;
use super::groups::{Member, Node, of_groups};
use super::nodes::{Hierarchy, hierarchy, not_found};
use super::report::{GroupReport, WrittenGroup};
use super::same_run::Run;
use super::target::{Begun, Target};
use super::{Job, Plan, Reencode, not_begun};
use crate::consolidated;
use crate::evidence::{Changes, Evidence};
use crate::failure::Failure;
use crate::open::{self, Store, Stores};
use crate::watcher::{Event, Watcher};

/// Re-encodes every array of the group. Plans all arrays before it writes the first byte. Readers see a group
/// only after all arrays in it are complete, and the root last.
pub(super) fn run(settings: &Reencode, watcher: &dyn Watcher) -> Result<GroupReport, Failure> {
    let Reencode { input, output, .. } = settings;
    let say = |line: String| watcher.hear(Event::Line(&line));
    let stores = open::store(input)?;
    let store = &*stores.store;
    let Checked {
        hierarchy,
        root,
        run,
        changes,
    } = checked(settings, store, watcher)?;
    let Hierarchy {
        members,
        left_out,
        paths: all_paths,
        ..
    } = hierarchy;
    let repairs = repairs_of_groups(&stores, &members);
    let paths: BTreeSet<_> = members.iter().map(|member| &*member.path).collect();
    let (plans, mut failed) = plans(settings, watcher, &members, changes.as_ref())?;
    failed.extend(not_found(input, store, &all_paths)?);
    if watcher.is_stopping() {
        return Err(not_begun());
    }
    let report = |written, failures| GroupReport {
        input: input.clone(),
        output: output.clone(),
        members: members.len(),
        written,
        failures,
    };
    if !failed.is_empty() && !settings.keep_going {
        return Ok(report(None, failed));
    }

    for repair in &repairs {
        say(format!("note: {repair}"));
    }
    let begun = root.begin(settings.mode(), &run, found::Node::Group)?;
    let mut arrays = Vec::new();
    for plan in plans {
        match plan.run() {
            Ok(array) => {
                watcher.hear(Event::Array(&array));
                arrays.push(array);
            }
            Err(failure)
                if settings.keep_going
                    && !watcher.is_stopping()
                    && open::must_answer([input, output]).is_ok() =>
            {
                say(format!("failed: {failure}"));
                failed.push(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    let groups = write_groups(&root, &begun, &members)?;
    let mut notes = tidied(&root, &members)?;
    if failed.is_empty() {
        begun.remove_marker()?;
    } else {
        drop(begun); // the marker stays, so that --resume can add the missing arrays
    }
    let below: Vec<_> = paths
        .iter()
        .filter(|path| !path.is_empty())
        .copied()
        .collect();
    notes.extend(consolidated::renew_stale(output, &below));
    let written = WrittenGroup {
        arrays,
        groups,
        notes,
        repaired_metadata: repairs,
        left_out,
    };
    Ok(report(Some(written), failed))
}

/// A run over a group, which may write to the output as a whole. The plans of arrays check their own directories.
pub(super) struct Checked {
    pub(super) hierarchy: Hierarchy,
    root: Target,
    run: Run,
    /// The keys of the input that were written since the run began that this one continues.
    pub(super) changes: Option<Changes>,
}

/// Lists the nodes of the input, and checks that the run may write to the output. Writes nothing.
pub(super) fn checked(
    settings: &Reencode,
    store: &Store,
    watcher: &dyn Watcher,
) -> Result<Checked, Failure> {
    let hierarchy = hierarchy(settings, store, watcher)?;
    let paths = hierarchy.members.iter().map(|member| &*member.path);
    let paths: BTreeSet<_> = paths.collect();
    let evidence = Evidence::of_group(&settings.input, store, &paths)?;
    let run = Run::of_group(settings, evidence, hierarchy.metadata.clone());
    let root = Target::new(&settings.output)?;
    let changes = root.check_group(settings.mode(), &run, &paths)?;
    must_have_no_parts_in(&root, &hierarchy.members)?;
    Ok(Checked {
        hierarchy,
        root,
        run,
        changes,
    })
}

/// Checks that no run in parts makes a group of `members` in the output `root`, as an output of its own.
pub(super) fn must_have_no_parts_in(root: &Target, members: &[Member]) -> Result<(), Failure> {
    let is_group = |member: &&Member| matches!(member.node, Node::Group { .. });
    let groups = members.iter().filter(is_group);
    let paths = groups.map(|group| &*group.path);
    root.must_have_no_parts_in(paths.filter(|path| !path.is_empty()))
}

/// Returns the repairs of the metadata of groups, as lines for people. Each array reports its own.
fn repairs_of_groups(stores: &Stores, members: &[Member]) -> Vec<String> {
    let is_array = |member: &&Member| matches!(member.node, Node::Array);
    let arrays: BTreeSet<_> = members
        .iter()
        .filter(is_array)
        .map(|array| &*array.path)
        .collect();
    stores.repairs_without(|key| arrays.contains(key.rsplit_once('/').map_or("", |(path, _)| path)))
}

/// Deletes the temporaries that killed runs left in the groups. Returns notes about temporaries that could
/// not be deleted.
fn tidied(root: &Target, members: &[Member]) -> Result<Vec<String>, Failure> {
    let mut notes = Vec::new();
    for member in members {
        if let Node::Group { .. } = member.node {
            notes.extend(root.remove_temporaries(Some(&member.path))?.note());
        }
    }
    Ok(notes)
}

/// Returns the plans for all arrays that can be re-encoded, and the failures of the others.
///
/// # Errors
/// The server of the input or of the output does not answer, or refuses this process: no array can be re-encoded.
pub(super) fn plans<'a>(
    settings: &'a Reencode,
    watcher: &'a dyn Watcher,
    members: &[Member],
    changes: Option<&Changes>,
) -> Result<(Vec<Plan<'a>>, Vec<Failure>), Failure> {
    let (mut plans, mut failed) = (Vec::new(), Vec::new());
    for member in members.iter().take_while(|_| !watcher.is_stopping()) {
        match &member.node {
            Node::Group { .. } => {}
            Node::Unreadable(failure) => failed.push(failure.clone()),
            Node::Array => {
                let mut job = Job::new(settings, watcher, &member.path);
                job.axes.clone_from(&member.axes);
                let is_stale = changes.is_some_and(|changes| changes.has(&member.path));
                match job.plan(is_stale) {
                    Ok(plan) => {
                        failed.extend(within_array(&plan));
                        plans.push(plan);
                    }
                    Err(failure) => {
                        open::must_answer([&settings.input, &settings.output])?;
                        failed.push(failure);
                    }
                }
            }
        }
    }
    Ok((plans, failed))
}

/// Returns a failure if there is a node in the directory of an array, because arrays have no members.
fn within_array(plan: &Plan<'_>) -> Option<Failure> {
    let node = plan.chunks.node_within()?;
    let (array, node) = (&plan.job.input, plan.job.input.join(node));
    let failure = Failure::failed(format!(
        "{array} is an array, and {node} in its directory would be left out: an array has no members"
    ));
    Some(failure.with_remedy(format!(
        "move it out of the array, or re-encode {node} by itself"
    )))
}

/// Makes the groups visible to readers, the deepest first. Returns the number of groups.
fn write_groups(root: &Target, begun: &Begun<'_>, members: &[Member]) -> Result<usize, Failure> {
    // An array that failed has no metadata in the output.
    let groups = of_groups(members, |path| root.metadata(path))?;
    for (path, metadata) in &groups {
        match *path {
            "" => begun.show(metadata)?,
            path => root.write_group(path, metadata)?,
        }
    }
    Ok(groups.len())
}
