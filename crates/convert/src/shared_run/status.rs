//! The state of a run in parts: which parts are not made, and how long ago something was stored for them.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::made::for_each_shard;
use super::{Marked, RunPlan, SharedRun, done_key, must_be_shown, plan_key, stored};
use crate::failure::Failure;
use crate::open::{self, Place, Stores};

/// The state of a run in parts.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RunStatus {
    /// The command that makes the output, such as `reencode`.
    pub command: String,
    /// The place of the input.
    pub input: String,
    /// The number of parts.
    pub parts: NonZeroU64,
    /// The number of shards of all parts; `None` if it is not known. A shard that has only the fill value counts, and
    /// is not stored.
    pub shards: Option<u64>,
    /// The number of shards that are stored; `None` if readers see the output, or if the shards are not known.
    pub stored: Option<u64>,
    /// The command that makes a part of the output again, as a line of a shell, with `I` for the number of the part.
    pub again: String,
    /// The parts that are not complete.
    pub missing: Vec<MissingPart>,
    /// The paths of arrays and groups that cannot be made, and are left out.
    pub left_out: Vec<String>,
    /// Whether readers see the output.
    pub is_complete: bool,
    /// Lines for people about what could not be deleted.
    pub notes: Vec<String>,
}

/// A part that is not complete: it has not begun, is being made, or its process has ended.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct MissingPart {
    /// The number of the part, which counts from 1.
    pub part: u64,
    /// The number of its shards; `None` if it is not known. A shard that has only the fill value counts, and is not
    /// stored.
    pub shards: Option<u64>,
    /// The number of its shards that are stored; `None` if the shards of a part are not known.
    pub stored: Option<u64>,
    /// The seconds since the newest of these shards was stored; `None` if there is none.
    pub seconds_since_newest: Option<u64>,
    /// The command that makes the part again, as a line of a shell.
    pub again: String,
}

/// Returns the state of the run in parts at `place`. With `finish`, completes a run all of whose parts are made.
///
/// # Errors
/// There is no such run; the errors of the store.
pub fn status(place: &Place, finish: bool) -> Result<RunStatus, Failure> {
    found(place, finish)?.ok_or_else(|| {
        Failure::failed(format!("{place} is not made in parts: it has no plan")).with_remedy(
            "name the OUT of a command with --part; `zarrs-cuda inspect` tells what is there",
        )
    })
}

/// Returns the state of the run in parts at `place`; `None` if there is none. With `finish`, completes a run all of whose
/// parts are made.
pub(super) fn found(place: &Place, finish: bool) -> Result<Option<RunStatus>, Failure> {
    let stores = open::output(place)?;
    let of = |plan: &RunPlan| RunStatus {
        command: plan.command().to_owned(),
        input: plan.input().to_owned(),
        parts: plan.parts,
        shards: plan.all_shards(),
        stored: None,
        again: plan.command_line(place, &format!("I/{}", plan.parts)),
        missing: Vec::new(),
        left_out: plan.left_out.clone(),
        is_complete: true,
        notes: Vec::new(),
    };
    let store = &*stores.store;
    let done = stored(place, store, done_key())?;
    let Some((bytes, shown)) = stored(place, store, plan_key())? else {
        let Some((bytes, shown)) = done else {
            return Ok(None);
        };
        let plan = RunPlan::read(&bytes, &shown)?;
        must_be_shown(place, store, &plan)?;
        return Ok(Some(of(&plan)));
    };
    let run = SharedRun::of(place, RunPlan::read(&bytes, &shown)?, bytes)?;
    let plan = run.plan();
    let (missing, notes) = if finish {
        let Marked { missing, notes } = run.finish()?;
        (missing, notes)
    } else {
        let marks = run.marks()?;
        let missing = (0..).zip(&marks).filter(|(_, mark)| mark.is_none());
        (missing.map(|(part, _)| part).collect(), Vec::new())
    };
    let status = RunStatus { notes, ..of(plan) };
    if run.is_complete()? {
        return Ok(Some(status));
    }
    let shards = Found::of(place, &stores, plan)?;
    Ok(Some(RunStatus {
        stored: plan.made_apart.is_none().then(|| shards.all()),
        missing: shards.of_parts(place, plan, &missing),
        is_complete: false,
        ..status
    }))
}

/// The stored shards of each part, which counts from 0: their number, and the time of the newest.
struct Found(BTreeMap<u64, (u64, Option<SystemTime>)>);

impl Found {
    fn of(place: &Place, stores: &Stores, plan: &RunPlan) -> Result<Self, Failure> {
        let mut found: BTreeMap<u64, (u64, Option<SystemTime>)> = BTreeMap::new();
        let times = times(place, stores)?;
        for_each_shard(&stores.store, plan, |part, _, _, array, indices| {
            let (shards, newest) = found.entry(part).or_default();
            *shards += 1;
            *newest = (*newest).max(times(array.chunk_key(indices).as_str())?);
            Ok(())
        })?;
        Ok(Self(found))
    }

    /// Returns the number of all stored shards.
    fn all(&self) -> u64 {
        self.0.values().map(|(shards, _)| shards).sum()
    }

    /// Returns what is stored of the parts `missing`, which count from 0.
    fn of_parts(&self, place: &Place, plan: &RunPlan, missing: &[u64]) -> Vec<MissingPart> {
        let now = SystemTime::now();
        let parts = missing.iter().map(|&part| {
            let (stored, newest) = self.0.get(&part).copied().unwrap_or_default();
            let age = newest.map(|time| now.duration_since(time).unwrap_or(Duration::ZERO));
            let number = usize::try_from(part).unwrap_or(usize::MAX);
            MissingPart {
                part: part + 1,
                shards: plan.shards.get(number).copied(),
                stored: plan.made_apart.is_none().then_some(stored),
                seconds_since_newest: age.map(|age| age.as_secs()),
                again: plan.command_line(place, &format!("{}/{}", part + 1, plan.parts)),
            }
        });
        parts.collect()
    }
}

/// A function that returns the time at which the value of a key was stored, if that is known.
type Times<'a> = Box<dyn Fn(&str) -> Result<Option<SystemTime>, Failure> + 'a>;

fn times<'a>(place: &'a Place, stores: &Stores) -> Result<Times<'a>, Failure> {
    if let Place::Directory(root) = place {
        return Ok(Box::new(move |key| {
            let path = root.join(key);
            match std::fs::metadata(&path).and_then(|found| found.modified()) {
                Ok(time) => Ok(Some(time)),
                // The file may have been deleted since the listing.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(Failure::to(format_args!("look at {}", path.display()))(
                    error,
                )),
            }
        }));
    }
    let Some(times) = &stores.times else {
        return Ok(Box::new(|_| Ok(None)));
    };
    let times = times().map_err(Failure::to(format_args!("list {place}")))?;
    let times: BTreeMap<String, SystemTime> = times.into_iter().collect();
    Ok(Box::new(move |key| Ok(times.get(key).copied())))
}
