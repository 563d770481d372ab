//! The state of a run in parts: which parts are not made, and how long ago something was stored for them.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;
use zarrs::array::{Array, ArrayMetadata};
use zarrs_cuda::maintenance::Shards;

use super::{PartStart, RunPlan, SharedRun, done_key, plan_key, stored};
use crate::failure::Failure;
use crate::grid::Grid;
use crate::open::{self, Place, Store, Stores};

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
    /// The parts that are not complete.
    pub missing: Vec<MissingPart>,
    /// Whether readers see the output.
    pub is_complete: bool,
}

/// A part that is not complete: it has not begun, is being made, or its process has ended.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct MissingPart {
    /// The number of the part, which counts from 1.
    pub part: u64,
    /// The number of its shards that are stored.
    pub shards: u64,
    /// The seconds since the newest of these shards was stored; `None` if there is none.
    pub seconds_since_newest: Option<u64>,
}

/// Returns the state of the run in parts at `place`. With `finish`, completes a run all of whose parts are made.
///
/// # Errors
/// There is no such run; the errors of the store.
pub fn status(place: &Place, finish: bool) -> Result<RunStatus, Failure> {
    let stores = open::output(place)?;
    let of = |plan: &RunPlan, missing, is_complete| RunStatus {
        command: plan.command().to_owned(),
        input: plan.input().to_owned(),
        parts: plan.parts,
        missing,
        is_complete,
    };
    let store = stores.store.clone();
    let done = stored(place, &store, done_key())?;
    let Some((bytes, shown)) = stored(place, &store, plan_key())? else {
        let Some((bytes, shown)) = done else {
            return Err(
                Failure::failed(format!("{place} is not made in parts: it has no plan"))
                    .with_remedy("name the OUT of a command with --part"),
            );
        };
        return Ok(of(&RunPlan::read(&bytes, &shown)?, Vec::new(), true));
    };
    let run = SharedRun::of(place, RunPlan::read(&bytes, &shown)?)?;
    let missing = if finish {
        run.finish()?.missing
    } else {
        run.missing()?
    };
    let is_complete = run.is_complete()?;
    let missing = if is_complete || missing.is_empty() {
        Vec::new()
    } else {
        of_parts(place, &stores, run.plan(), &missing)?
    };
    Ok(of(run.plan(), missing, is_complete))
}

/// Returns what is stored of the parts `missing`, which count from 0.
fn of_parts(
    place: &Place,
    stores: &Stores,
    plan: &RunPlan,
    missing: &[u64],
) -> Result<Vec<MissingPart>, Failure> {
    let mut found: BTreeMap<u64, (u64, Option<SystemTime>)> = BTreeMap::new();
    let times = times(place, stores)?;
    for (number, array) in arrays(&stores.store, plan)?.into_iter().enumerate() {
        let grid = Grid::of(&array)?;
        let shards = Shards::of(&array).map_err(Failure::from)?;
        for (indices, _) in shards.stored().map_err(Failure::from)? {
            let Some(shard) = grid.position(&indices) else {
                continue;
            };
            let at = PartStart {
                array: number,
                shard,
            };
            let part = plan.starts.partition_point(|start| *start <= at) as u64;
            let entry = found.entry(part.saturating_sub(1)).or_default();
            entry.0 += 1;
            let time = times(array.chunk_key(&indices).as_str())?;
            entry.1 = entry.1.max(time);
        }
    }
    let now = SystemTime::now();
    let parts = missing.iter().map(|&part| {
        let (shards, newest) = found.get(&part).copied().unwrap_or_default();
        let age = newest.map(|time| now.duration_since(time).unwrap_or(Duration::ZERO));
        MissingPart {
            part: part + 1,
            shards,
            seconds_since_newest: age.map(|age| age.as_secs()),
        }
    });
    Ok(parts.collect())
}

/// Returns the arrays of a plan, in their order. They are not visible to readers yet.
fn arrays(store: &Arc<Store>, plan: &RunPlan) -> Result<Vec<Array<Store>>, Failure> {
    let mut arrays = Vec::new();
    for node in &plan.nodes {
        let doing = format!("understand the metadata of {} in the plan", node.path);
        let metadata: Value = serde_json::from_str(&node.metadata).map_err(Failure::to(&doing))?;
        if metadata["node_type"] != "array" {
            continue;
        }
        let metadata: ArrayMetadata =
            serde_json::from_value(metadata).map_err(Failure::to(&doing))?;
        let path = format!("/{}", node.path);
        let array = Array::new_with_metadata(store.clone(), &path, metadata);
        arrays.push(array.map_err(Failure::to(&doing))?);
    }
    Ok(arrays)
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
