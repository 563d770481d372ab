//! Re-encodes one part of an array or a group, or plans the parts. `shared_run` has the protocol.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use zarrs_cuda::maintenance::Shards;
use zarrs_cuda::storage::Unfinished;
use zarrs_storage::StoreKey;

use super::arrays::OutputArray;
use super::copy::copy;
use super::covered::Covered;
use super::found::{self, prefix_of};
use super::groups::{Member, Node, of_groups};
use super::hierarchy::{checked, must_have_no_parts_in, plans};
use super::nodes::{Hierarchy, hierarchy, not_found};
use super::report::{PartReport, PartState};
use super::resume::Stored;
use super::same_run::arguments_of_group;
use super::target::{Begun, Target};
use super::{Job, Plan, Reencode, Shared, not_begun};
use crate::evidence::{self, hash};
use crate::failure::Failure;
use crate::grid::Grid;
use crate::open::{self, Place, Store, is_of_writer};
use crate::parts::element_bytes;
use crate::shared_run::{
    Division, Joined, Made, Marked, Output, Part, PartStart, PlannedNode, SharedRun, Wanted,
};
use crate::watcher::Watcher;

/// The documents of a node's metadata, in Zarr v2 and v3.
const DOCUMENTS: [&str; 4] = ["zarr.json", ".zarray", ".zgroup", ".zattrs"];

/// The whole run, as each of its processes plans it.
pub(super) struct Whole<'a> {
    output: &'a Place,
    plans: Vec<Plan<'a>>,
    wanted: Wanted,
    failed: Vec<Failure>,
}

/// Checks that a run has not too many parts.
pub(crate) fn must_be_few(parts: NonZeroU64) -> Result<(), Failure> {
    /// The largest number of parts: each process asks for the marks of all.
    const MOST: u64 = 1 << 16;
    if parts.get() <= MOST {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{parts} parts are too many: a run has {MOST} at most"
    )))
}

/// Plans the parts, or makes one of them.
pub(super) fn run(
    settings: &Reencode,
    shared: Shared,
    watcher: &dyn Watcher,
) -> Result<PartReport, Failure> {
    let (parts, part) = (shared.parts(), shared.part());
    must_make_sense(settings, part)?;
    let whole = Whole::of(settings, parts, watcher)?;
    if whole.is_refused(settings) {
        return Ok(whole.report(part, PartState::Refused));
    }
    if watcher.is_stopping() {
        return Err(not_begun());
    }
    let _registration = zarrs_cuda::register(settings.options.clone())?;
    let output = &settings.output;
    let Some(part) = part else {
        if settings.overwrite {
            if whole.replaces_nothing()? {
                Target::new(output)?.forget_parts()?; // the record of an earlier run may be there
            } else if let Some(plan) = whole.plans.first() {
                return whole.replace(plan);
            }
        }
        let state = match SharedRun::join(output, &whole.wanted, true, &whole)? {
            Joined::Run(_) => PartState::Prepared,
            Joined::Done => PartState::WasComplete,
        };
        return Ok(whole.report(None, state));
    };
    let run = match SharedRun::join(output, &whole.wanted, false, &whole)? {
        Joined::Run(run) => run,
        Joined::Done => return Ok(whole.report(Some(part), PartState::WasComplete)),
    };
    let made = run.unless_complete(whole.make(&run, part))?;
    Ok(made.unwrap_or_else(|| whole.report(Some(part), PartState::WasComplete)))
}

/// Checks the settings of a process that makes `part`, or plans the parts.
pub(super) fn must_make_sense(settings: &Reencode, part: Option<Part>) -> Result<(), Failure> {
    if settings.resume {
        return Err(Failure::usage(
            "a part always goes on with what is stored: leave out --resume",
        ));
    }
    if settings.verify {
        return Err(Failure::usage(
            "a part cannot be compared before the output is complete: leave out --verify, and run `zarrs-cuda verify \
             OUT/ARRAY --against IN/ARRAY` for each array when all parts are made",
        ));
    }
    if settings.overwrite && part.is_some() {
        return Err(Failure::usage(
            "a part replaces nothing that is stored: --overwrite is for --prepare, which is run once before all parts",
        ));
    }
    Ok(())
}

/// Makes shards again that are missing or damaged in the output of a run that is complete, in so many `parts`: its record
/// says which input and arguments it is of.
pub(super) fn mend(
    settings: &Reencode,
    parts: NonZeroU64,
    watcher: &dyn Watcher,
) -> Result<PartReport, Failure> {
    let planned = as_planned(settings, parts);
    let whole = Whole::of(&planned, parts, watcher)?;
    if whole.is_refused(settings) {
        return Ok(whole.report(None, PartState::Refused));
    }
    if watcher.is_stopping() {
        return Err(not_begun());
    }
    SharedRun::must_be_complete(&settings.output, &whole.wanted)?;
    let shards = whole.plans.iter().map(Plan::mend);
    let shards = shards.sum::<Result<u64, Failure>>()?;
    // Temporaries may be left of a process that was killed.
    SharedRun::must_be_complete(&settings.output, &whole.wanted)?;
    let mended = PartState::Mended {
        shards,
        is_decoded: settings.verify,
    };
    Ok(whole.report(None, mended))
}

/// Returns the settings of the run in so many `parts` that has completed the output.
pub(super) fn as_planned(settings: &Reencode, parts: NonZeroU64) -> Reencode {
    Reencode {
        resume: false,
        shared: Some(Shared::Prepare { parts }),
        ..settings.clone()
    }
}

impl<'a> Whole<'a> {
    pub(super) fn of(
        settings: &'a Reencode,
        parts: NonZeroU64,
        watcher: &'a dyn Watcher,
    ) -> Result<Self, Failure> {
        let Reencode { input, .. } = settings;
        must_be_few(parts)?;
        let store = open::store(input)?.store;
        let (members, plans, failed) = if settings.recursive {
            let (hierarchy, changes) = if settings.shared.is_some() {
                // An output that cannot be opened fails once, and not for each array.
                let root = Target::new(&settings.output)?;
                let hierarchy = hierarchy(settings, &store, watcher)?;
                must_have_no_parts_in(&root, &hierarchy.members)?;
                (hierarchy, None)
            } else {
                let checked = checked(settings, &store, watcher)?;
                (checked.hierarchy, checked.changes)
            };
            let Hierarchy { members, paths, .. } = hierarchy;
            let (plans, mut failed) = plans(settings, watcher, &members, changes.as_ref())?;
            failed.extend(not_found(input, &store, &paths)?);
            (members, plans, failed)
        } else {
            let array = Member {
                path: String::new(),
                node: Node::Array,
                axes: None,
            };
            let plan = Job::new(settings, watcher, "").plan(false)?;
            (vec![array], vec![plan], Vec::new())
        };
        let mut arguments = arguments_of_group(settings);
        arguments.insert("--recursive".to_owned(), settings.recursive.into());
        let wanted = Wanted {
            command: "reencode",
            arguments,
            backend: format!("{:?}", settings.options.backend()).to_lowercase(),
            input: evidence::name(input),
            input_metadata: hash_of_metadata(input, &store, &members)?,
            parts,
            nodes: nodes(&members, &plans)?,
            chunks: plans
                .iter()
                .map(|plan| plan.chunks.counts().stored)
                .collect(),
            left_out: left_out(&members, &plans),
            made_apart: None,
        };
        Ok(Self {
            output: &settings.output,
            plans,
            wanted,
            failed,
        })
    }

    /// Checks that a process of this run in parts may write to the output. Writes nothing. Returns whether the output is
    /// complete.
    pub(super) fn may_begin(&self, settings: &Reencode) -> Result<bool, Failure> {
        if settings.overwrite {
            return self.must_be_replaceable().map(|()| false);
        }
        SharedRun::may_join(self.output, &self.wanted, self)
    }

    /// Returns whether nothing is written, because an array or a group cannot be re-encoded.
    pub(super) fn is_refused(&self, settings: &Reencode) -> bool {
        !self.failed.is_empty() && !settings.keep_going
    }

    pub(super) fn plans(&self) -> &[Plan<'a>] {
        &self.plans
    }

    /// Returns the paths that are left out, and the failures of planning.
    pub(super) fn left(self) -> (Vec<String>, Vec<Failure>) {
        (self.wanted.left_out, self.failed)
    }

    fn report(&self, part: Option<Part>, state: PartState) -> PartReport {
        PartReport {
            part,
            parts: self.wanted.parts,
            input: self.wanted.input.clone(),
            output: self.output.clone(),
            arrays: self.plans.len(),
            bytes: 0,
            time: std::time::Duration::ZERO,
            state,
            left_out: self.wanted.left_out.clone(),
            notes: Vec::new(),
            failures: self.failed.clone(),
        }
    }

    /// Returns the shards of the array number `array` to work on.
    fn covered<'p>(
        &'p self,
        array: usize,
        output: &'p OutputArray,
    ) -> Result<Covered<'p>, Failure> {
        let plan = &self.plans[array];
        Covered::of(&plan.opened, &plan.chunks, &plan.input, output)
    }

    /// Returns the shards of each array to work on.
    pub(super) fn all_covered(&self) -> Result<Vec<Covered<'_>>, Failure> {
        let arrays = self.plans.iter().enumerate();
        arrays
            .map(|(array, plan)| self.covered(array, &plan.output))
            .collect()
    }

    /// Returns the division into parts, if these are the shards of each array.
    pub(super) fn division_of(&self, covered: &[Covered<'_>]) -> Division {
        let shards = covered.iter().zip(&self.plans).enumerate();
        let shards = shards.flat_map(|(array, (covered, plan))| {
            let element = element_bytes(&plan.output);
            covered.sizes().map(move |(shard, elements)| {
                (PartStart { array, shard }, elements.saturating_mul(element))
            })
        });
        Division::of(shards, self.wanted.parts)
    }

    /// Returns whether nothing is stored at the output but what earlier runs leave, also when they were killed.
    fn replaces_nothing(&self) -> Result<bool, Failure> {
        Ok(!Target::new(self.output)?.is_in_parts()? && must_be_free(self.output).is_ok())
    }

    /// Checks that the run may replace what is stored, as a run without parts does. The plan of each array has checked
    /// the files in its directory. Writes nothing.
    fn must_be_replaceable(&self) -> Result<(), Failure> {
        let Some(plan) = self.plans.first() else {
            return Ok(());
        };
        if self.replaces_nothing()? {
            return Ok(());
        }
        let settings = plan.job.settings;
        let target = Target::new(self.output)?;
        if !settings.recursive {
            return target.check(settings.mode(), &plan.run, false).map(drop);
        }
        let paths = self.wanted.nodes.iter().map(|node| &*node.path);
        target.check_group(settings.mode(), &plan.run, &paths.collect())?;
        Ok(())
    }

    /// Deletes the output of an earlier run, and plans this one. `plan` is that of any array.
    fn replace(&self, plan: &Plan<'_>) -> Result<PartReport, Failure> {
        self.must_be_replaceable()?;
        let settings = plan.job.settings;
        let node = if settings.recursive {
            found::Node::Group
        } else {
            found::Node::Array
        };
        let target = Target::new(&settings.output)?;
        let begun = target.begin(settings.mode(), &plan.run, node)?;
        // Deleted arrays leave a marker, which a run would take over.
        for node in &self.wanted.nodes {
            if !node.path.is_empty() {
                let doing = format!("empty {}", settings.output.join(&node.path));
                let marker = StoreKey::new(prefix_of(&node.path) + found::INCOMPLETE);
                let marker = marker.map_err(Failure::to(&doing))?;
                target.store.erase(&marker).map_err(Failure::to(&doing))?;
            }
        }
        if let Place::Directory(root) = &settings.output {
            let mut paths: Vec<&str> = self.wanted.nodes.iter().map(|node| &*node.path).collect();
            paths.sort_unstable();
            for path in paths.iter().rev().filter(|path| !path.is_empty()) {
                let _ = std::fs::remove_dir(root.join(path)); // other files may be there
            }
        }
        // The marker stays until the plan is there. If this process is killed before that, the next one finds an
        // output that it may replace, whatever other files are in it.
        let emptied = Emptied {
            whole: self,
            target: &target,
            begun: RefCell::new(Some(begun)),
        };
        let state = match SharedRun::join(self.output, &self.wanted, true, &emptied)? {
            Joined::Run(_) => PartState::Prepared,
            Joined::Done => PartState::WasComplete,
        };
        Ok(self.report(None, state))
    }

    /// Makes the shards of `part`, and marks it. Completes the run if this was the last part.
    fn make(&self, run: &SharedRun, part: Part) -> Result<PartReport, Failure> {
        let (start, end) = run.plan().bounds(part);
        let clock = std::time::Instant::now();
        let mut bytes = 0;
        let mut made = Made::default();
        for (array, plan) in self.plans.iter().enumerate() {
            let within = within(array, start, end);
            if within.is_empty() {
                continue;
            }
            let job = &plan.job;
            let store: Arc<Store> = Arc::new(run.store_of_array(&job.path)?);
            let output = plan.output.with_storage(store);
            let covered = self.covered(array, &output)?.within(within.clone());
            if covered.len() == 0 {
                continue;
            }
            job.say(&format!("{} -> {}, part {part}", job.input, job.output));
            job.say(&plan.counted);
            let stored = Stored::of_part(job, &plan.input, &output, (run, part))?;
            let copied = copy(
                job,
                &plan.shapes,
                &covered,
                &plan.chunks,
                &plan.input,
                &output,
                &stored,
            )?;
            bytes += copied.bytes_decoded;
            let grid = Grid::of(&output)?;
            for (indices, size) in Shards::of(&output)?.stored()? {
                let shard = grid.position(&indices);
                if let Some(shard) = shard.filter(|shard| within.contains(shard)) {
                    made.add(PartStart { array, shard }, size);
                }
            }
        }
        let Marked { missing, notes } = run.mark(part, made)?;
        Ok(PartReport {
            bytes,
            time: clock.elapsed(),
            notes,
            ..self.report(Some(part), PartState::after(missing))
        })
    }
}

impl Output for Whole<'_> {
    fn must_be_free(&self) -> Result<(), Failure> {
        must_be_free(self.output)
    }

    fn must_not_be_claimed(&self) -> Result<(), Failure> {
        if !Target::new(self.output)?.is_claimed()? {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "another run, without parts, has begun to write {}",
            self.output
        ))
        .with_remedy("wait until that run has ended, or name another OUT"))
    }

    fn division(&self) -> Result<Division, Failure> {
        Ok(self.division_of(&self.all_covered()?))
    }
}

/// An output that this process has emptied, except for files that are no part of an array.
struct Emptied<'a> {
    whole: &'a Whole<'a>,
    target: &'a Target,
    /// The claim on the output, until the plan is made.
    begun: RefCell<Option<Begun<'a>>>,
}

impl Output for Emptied<'_> {
    fn must_be_free(&self) -> Result<(), Failure> {
        let nodes = self.target.nodes()?;
        let found = self.target.look_at()?;
        if nodes.is_empty() && !found.is_array && !found.is_group {
            return Ok(());
        }
        let output = self.whole.output;
        Err(Failure::failed(format!(
            "another program writes to {output} at the same time"
        ))
        .with_remedy("let no other program write there, and run the same command again"))
    }

    fn must_not_be_claimed(&self) -> Result<(), Failure> {
        // No other run has claimed the output, because this one had.
        let begun = self.begun.take();
        begun.map_or(Ok(()), Begun::remove_marker)
    }

    fn division(&self) -> Result<Division, Failure> {
        self.whole.division()
    }
}

/// Returns the positions of the shards of the array number `array` between `start` and `end`.
fn within(array: usize, start: PartStart, end: Option<PartStart>) -> Range<u128> {
    let first = match array.cmp(&start.array) {
        std::cmp::Ordering::Less => u128::MAX,
        std::cmp::Ordering::Equal => start.shard,
        std::cmp::Ordering::Greater => 0,
    };
    let last = match end {
        Some(end) if array == end.array => end.shard,
        Some(end) if array > end.array => 0,
        _ => u128::MAX,
    };
    first..last
}

/// Returns the nodes of the output, in the order in which readers may see them.
fn nodes(members: &[Member], plans: &[Plan<'_>]) -> Result<Vec<PlannedNode>, Failure> {
    let text = |path: &str| {
        let plan = plans.iter().find(|plan| plan.job.path == path);
        plan.map(|plan| plan.run.metadata().to_vec())
    };
    let arrays = members
        .iter()
        .filter_map(|member| Some((&*member.path, text(&member.path)?)));
    let mut nodes: Vec<(&str, Vec<u8>)> = arrays.collect();
    nodes.extend(of_groups(members, |path| Ok(text(path)))?);
    let nodes = nodes.into_iter().map(|(path, metadata)| {
        let metadata = String::from_utf8(metadata);
        Ok(PlannedNode {
            path: path.to_owned(),
            metadata: metadata
                .map_err(Failure::to(format_args!("write the metadata of {path}")))?,
        })
    });
    nodes.collect()
}

/// Returns the paths of the members that are no nodes of the output.
fn left_out(members: &[Member], plans: &[Plan<'_>]) -> Vec<String> {
    let is_left_out = |member: &&Member| match member.node {
        Node::Group { .. } => false,
        Node::Array => plans.iter().all(|plan| plan.job.path != member.path),
        Node::Unreadable(_) => true,
    };
    let left_out = members.iter().filter(is_left_out);
    left_out.map(|member| member.path.clone()).collect()
}

/// Returns a hash of the metadata of all `members`.
fn hash_of_metadata(input: &Place, store: &Store, members: &[Member]) -> Result<u64, Failure> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for member in members {
        parts.push(member.path.clone().into_bytes());
        for document in DOCUMENTS {
            let doing = format!("read {document} of {}", input.join(&member.path));
            let key = StoreKey::new(prefix_of(&member.path) + document);
            let key = key.map_err(Failure::to(&doing))?;
            let value = store.get(&key).map_err(Failure::to(&doing))?;
            parts.push(value.map_or_else(Vec::new, |value| value.to_vec()));
        }
    }
    Ok(hash(parts.iter().map(Vec::as_slice)))
}

/// Checks that nothing is stored at `output` yet.
fn must_be_free(output: &Place) -> Result<(), Failure> {
    let target = Target::new(output)?;
    let found = target.look_at()?;
    if found.is_empty {
        return Ok(());
    }
    let is_node = found.is_array || found.is_group || found.marker.is_some();
    // Empty directories may be left of what was replaced.
    if !is_node {
        let stored = target.store.list();
        let stored = stored.map_err(Failure::to(format_args!("look at {output}")))?;
        let is_left = |key: &StoreKey| {
            let name = key.as_str().rsplit('/').next().unwrap_or_default();
            is_of_writer(key.as_str()) || Unfinished::of(name).is_some()
        };
        if stored.iter().all(is_left) {
            return Ok(());
        }
    }
    let what = if found.is_array || found.is_group {
        "holds a Zarr array or group"
    } else if found.marker.is_some() {
        "holds the output of a run without parts, which was interrupted or still runs"
    } else {
        "is not empty"
    };
    Err(Failure::failed(format!("{output} {what}")).with_remedy(
        "name another OUT, or delete OUT as a whole; arrays are replaced by --prepare with --overwrite, once before all \
         parts",
    ))
}
