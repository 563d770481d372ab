//! A run of several processes, on one machine or many, which make one output together.
//!
//! The processes share nothing but the store of the output. Everything that they must agree on is in the plan,
//! which is created and never replaced. All keys are known, so no listing is needed:
//!
//! | key below the output | content |
//! |---|---|
//! | `.zarrs-cuda-run/plan.json` | the plan |
//! | `.zarrs-cuda-run/part-PLAN-N` | the mark of a part of the run with this plan: all of its shards are durable |
//! | `.zarrs-cuda-run/done.json` | the plan of a run that is complete |
//!
//! ```text
//! read the record of a complete run: there is one, of this run: tidy, end
//! read the plan, and compare; there is none:
//!     check that the output is free: it is not: look for both again, because others may have begun meanwhile
//!     create the plan
//!     look whether a run without parts has begun meanwhile
//! for each shard of the part
//!     look at the plan: it is gone: end
//!     look at the shard: it is there and whole: the next one
//!     make it; look at the plan; create the shard; look at the plan: it is gone, and the run is not complete: take
//!     the shard back
//! look at the plan
//! create the mark of the part, with the number of its shards and a hash of their places and sizes
//! get the marks of all parts: one is missing, and there is no record of a complete run: end
//! list the shards: a part has other shards than its mark says: delete the mark, end
//! create the metadata of arrays, of inner groups, and of the root; look at the plan before each. (An output beside
//! what readers see already is made apart, and moved to its place here: `apart.rs`.)
//! create the record of the complete run
//! tidy: delete the plan, and the marks
//! ```
//!
//! A process may be killed between two steps, and may do a part that another process does or has done. Each step
//! creates a value that all processes create equally, or deletes a value that nobody needs.

mod again;
mod apart;
mod create;
mod division;
mod made;
mod part;
mod plan;
mod status;
#[cfg(test)]
mod tests;
mod unfinished;
mod watch;

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::storage::{Bytes, StorageError, StoreKey};

pub use self::apart::{Apart, PartApart, RunApart, is_in_parts, must_not_be_in_parts};
pub(crate) use self::create::{Creating, CreatingStore};
pub(crate) use self::division::{Division, PartStart};
pub(crate) use self::made::{Made, found};
pub use self::part::Part;
use self::plan::MadeApart;
pub(crate) use self::plan::{PlannedNode, RunPlan, Wanted};
pub use self::status::{MissingPart, RunStatus, status};
pub(crate) use self::unfinished::must_not_be_begun_below;
pub use self::unfinished::{must_not_be_begun, must_not_be_made_above};
use self::watch::Look;
pub(crate) use self::watch::PlanWatch;
use crate::consolidated;
use crate::evidence::hash;
use crate::failure::Failure;
use crate::open::{self, Place, RUN, Store};
use crate::replace::tidied;

fn key(name: &str) -> Result<StoreKey, StorageError> {
    Ok(StoreKey::new(format!("{RUN}/{name}"))?)
}

fn plan_key() -> Result<StoreKey, StorageError> {
    key("plan.json")
}

fn done_key() -> Result<StoreKey, StorageError> {
    key("done.json")
}

/// Returns the key of the mark of a part, which counts from 0, of the run whose plan has this name.
fn mark_key(plan: &str, part: u64) -> Result<StoreKey, StorageError> {
    key(&format!("part-{plan}-{}", part + 1))
}

/// The output of a run in parts, as one process sees it.
pub(crate) struct SharedRun {
    place: Place,
    creating: Creating,
    plan: RunPlan,
    watch: Arc<PlanWatch>,
    /// A name that other plans do not have.
    name: String,
}

/// The state of a run after a part was marked.
pub(crate) struct Marked {
    /// The parts without a mark, which count from 0: none if the run is complete.
    pub(crate) missing: Vec<u64>,
    /// Lines for people about what could not be deleted.
    pub(crate) notes: Vec<String>,
}

/// The state in which a process finds a run.
pub(crate) enum Joined {
    /// The run has a plan, and is not complete.
    Run(Box<SharedRun>),
    /// The run is complete.
    Done,
}

/// The output, as a process sees it that wants to make a plan.
pub(crate) trait Output {
    /// Checks that nothing is stored there.
    fn must_be_free(&self) -> Result<(), Failure>;

    /// Checks, when the plan is there, that no run without parts has begun meanwhile.
    fn must_not_be_claimed(&self) -> Result<(), Failure>;

    /// Divides the shards into parts.
    fn division(&self) -> Result<Division, Failure>;
}

impl SharedRun {
    /// Joins the run that is `wanted` at `place`: reads its plan, or makes one. A run that this process `prepares`
    /// needs no store that creates values.
    ///
    /// # Errors
    /// The output is of another run; or the store creates no values, and this process does not prepare the run.
    pub(crate) fn join(
        place: &Place,
        wanted: &Wanted,
        prepares: bool,
        output: &dyn Output,
    ) -> Result<Joined, Failure> {
        let store = Creating::open(place, false)?.store().clone();
        if Self::was_completed(place, &store, wanted)? {
            return Ok(Joined::Done);
        }
        let found = stored(place, &store, plan_key())?;
        let (bytes, shown) = if let Some(found) = found {
            found
        } else {
            let checked = output.must_be_free();
            // Other processes may have made the plan since the look, and written, and completed the run.
            match (stored(place, &store, plan_key())?, checked) {
                (Some(found), _) => found,
                (None, Ok(())) => {
                    let plan = RunPlan::new(wanted, output.division()?);
                    let made = made(place, plan, prepares)?;
                    // A run without parts looks for the plan after it has claimed the output: one of both withdraws.
                    output.must_not_be_claimed().inspect_err(|_| {
                        let _ = erase_plan(&store, &made.0); // the caller reports the reason
                    })?;
                    made
                }
                (None, Err(failure)) => {
                    if Self::was_completed(place, &store, wanted)? {
                        return Ok(Joined::Done);
                    }
                    return Err(failure);
                }
            }
        };
        let plan = RunPlan::read(&bytes, &shown)?;
        plan.must_be(wanted, &shown)?;
        Ok(Joined::Run(Box::new(Self::of(place, plan, bytes)?)))
    }

    /// Returns the run with `plan` at `place`, which is stored as `bytes`.
    fn of(place: &Place, plan: RunPlan, bytes: Bytes) -> Result<Self, Failure> {
        let creating = Creating::open(place, plan.may_replace)?;
        Ok(Self {
            place: place.clone(),
            plan,
            name: name_of(&bytes),
            watch: Arc::new(PlanWatch::new(place, creating.store(), bytes)),
            creating,
        })
    }

    /// Checks that a process may join the run that is `wanted` at `place`, as [`join`](Self::join) does. Writes and
    /// deletes nothing. Returns whether the run is complete.
    pub(crate) fn may_join(
        place: &Place,
        wanted: &Wanted,
        output: &dyn Output,
    ) -> Result<bool, Failure> {
        let store = open::output(place)?.store;
        if Self::record(place, &store, wanted)?.is_some() {
            return Ok(true);
        }
        match stored(place, &store, plan_key())? {
            Some((bytes, shown)) => RunPlan::read(&bytes, &shown)?.must_be(wanted, &shown)?,
            None => output.must_be_free()?,
        }
        Ok(false)
    }

    /// Returns the plan of the run that is `wanted`, and its bytes, if the run is complete.
    fn record(
        place: &Place,
        store: &Store,
        wanted: &Wanted,
    ) -> Result<Option<(RunPlan, Bytes)>, Failure> {
        let Some((bytes, shown)) = stored(place, store, done_key())? else {
            return Ok(None);
        };
        let plan = RunPlan::read(&bytes, &shown)?;
        plan.must_be(wanted, &shown)?;
        must_be_shown(place, store, &plan)?;
        Ok(Some((plan, bytes)))
    }

    /// Returns whether the run that is `wanted` is complete. If it is, deletes its plan and its marks.
    fn was_completed(place: &Place, store: &Store, wanted: &Wanted) -> Result<bool, Failure> {
        let Some((plan, bytes)) = Self::record(place, store, wanted)? else {
            return Ok(false);
        };
        // A process that was killed after the end may have left a mark or a temporary.
        tidy(place, store, &plan, &bytes);
        Ok(true)
    }

    /// Checks that the run that is `wanted` at `place` is complete, and deletes what is left of its processes.
    pub(crate) fn must_be_complete(place: &Place, wanted: &Wanted) -> Result<(), Failure> {
        let store = Creating::open(place, false)?.store().clone();
        if Self::was_completed(place, &store, wanted)? {
            return Ok(());
        }
        Err(
            Failure::failed(format!("{RUN}/done.json in {place} was deleted meanwhile"))
                .with_remedy("let no other run write there, and run the same command again"),
        )
    }

    pub(crate) fn plan(&self) -> &RunPlan {
        &self.plan
    }

    pub(crate) fn watch(&self) -> &Arc<PlanWatch> {
        &self.watch
    }

    /// Returns whether the plan is still there. If it is not, another process has completed the run.
    ///
    /// # Errors
    /// The plan is gone, and the run is not complete; or there is another plan; the errors of the store.
    pub(crate) fn goes_on(&self) -> Result<bool, Failure> {
        let doing = format!("look at the plan of {}", self.place);
        match self.watch.look().map_err(Failure::to(&doing))? {
            Look::There => return Ok(true),
            Look::Complete => return Ok(false),
            Look::Gone => {}
        }
        Err(Failure::failed(self.watch.gone())
            .with_remedy("let all parts of one run end before another run begins there"))
    }

    /// Returns whether the run is complete.
    pub(crate) fn is_complete(&self) -> Result<bool, Failure> {
        let complete = self.watch.is_complete();
        complete.map_err(Failure::to(format_args!("look at {}", self.place)))
    }

    /// Returns what was `made` of a part; `None` if that failed, and the run is complete: another process has made this
    /// part, so it does not matter why this one stopped.
    ///
    /// # Errors
    /// The failure, or the plan was replaced.
    pub(crate) fn unless_complete<T>(
        &self,
        made: Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        match made {
            Ok(made) => Ok(Some(made)),
            Err(_) if self.is_complete().unwrap_or(false) => Ok(None),
            Err(failure) => {
                self.goes_on()?; // a plan that was replaced is the reason, and has another remedy
                let when = failure.condition();
                Err(failure.with_remedy(format!(
                    "{when}run the same command again: shards of {} that are stored stay",
                    self.place
                )))
            }
        }
    }

    /// Opens the store of the array at `path`, in which shards are created.
    pub(crate) fn store_of_array(&self, path: &str) -> Result<CreatingStore, Failure> {
        let creating = Creating::open(&self.place.join(path), self.plan.may_replace)?;
        Ok(CreatingStore::new(creating, self.watch.clone()))
    }

    /// Marks `part`, whose shards are `made` and stored, and completes the run if all parts are marked.
    pub(crate) fn mark(&self, part: Part, made: Made) -> Result<Marked, Failure> {
        let doing = format!("mark part {part} of {}", self.place);
        let sync = || self.creating.sync();
        sync().map_err(Failure::to(&doing))?;
        if self.goes_on()? {
            let mark = json!({ "part": part.to_string(), "made": made });
            let mark = mark.to_string().into_bytes();
            let other = mark_key(&self.name, part.number())
                .and_then(|key| self.creating.agree(&key, &mark));
            // Another process that has done this part has marked the same.
            if let Some(other) = other.map_err(Failure::to(&doing))? {
                self.unmark(part.number())?;
                return Err(Failure::not_well(format!(
                    "part {part} of {} has a mark for other shards than are stored: {}",
                    self.place,
                    String::from_utf8_lossy(&other)
                ))
                .with_remedy("make this part again"));
            }
            sync().map_err(Failure::to(&doing))?;
        }
        self.finish()
    }

    /// Deletes the mark of a part, which counts from 0, because a shard of the part is missing or not whole.
    pub(crate) fn unmark(&self, part: u64) -> Result<(), Failure> {
        let erased = mark_key(&self.name, part).and_then(|key| self.creating.store().erase(&key));
        erased.map_err(Failure::to(format_args!("delete a mark of {}", self.place)))
    }

    /// Completes the run if all parts are marked.
    pub(crate) fn finish(&self) -> Result<Marked, Failure> {
        let marks = self.marks()?;
        let store = self.creating.store();
        let is_missing = |(_, mark): &(u64, &Option<Made>)| mark.is_none();
        let mut missing: Vec<u64> = (0..)
            .zip(&marks)
            .filter(is_missing)
            .map(|(n, _)| n)
            .collect();
        let mut notes = Vec::new();
        if self.is_complete()? {
            missing = Vec::new();
            notes = tidy(&self.place, store, &self.plan, self.watch.bytes());
        } else if missing.is_empty() {
            self.must_be_stored(&marks)?;
            notes = self.complete()?;
            notes.extend(self.renew_stale());
        }
        Ok(Marked { missing, notes })
    }

    /// Renews the consolidated metadata of groups above the output. Returns a note if that failed.
    fn renew_stale(&self) -> Option<String> {
        let nodes = self.plan.nodes.iter().map(|node| &*node.path);
        let apart = self.plan.made_apart.iter().flat_map(MadeApart::nodes);
        let below: Vec<&str> = nodes.chain(apart).filter(|path| !path.is_empty()).collect();
        consolidated::renew_stale(&self.place, &below)
    }

    /// Returns the mark of each part.
    fn marks(&self) -> Result<Vec<Option<Made>>, Failure> {
        (0..self.plan.parts.get())
            .map(|part| self.mark_of(part))
            .collect()
    }

    /// Returns the mark of a part, which counts from 0; `None` if there is none that can be read.
    fn mark_of(&self, part: u64) -> Result<Option<Made>, Failure> {
        let key = mark_key(&self.name, part);
        let mark = stored(&self.place, self.creating.store(), key)?;
        Ok(mark.and_then(|(mark, _)| {
            let mark: Value = serde_json::from_slice(&mark).ok()?;
            serde_json::from_value(mark["made"].clone()).ok()
        }))
    }

    /// Checks that all shards are stored which the marks of the parts say. Deletes the mark of a part whose shards are
    /// not.
    fn must_be_stored(&self, marks: &[Option<Made>]) -> Result<(), Failure> {
        let found = found(self.creating.store(), &self.plan)?;
        let parts = (0_u64..).zip(marks);
        let wrong = parts.filter(|(part, mark)| {
            let found = found.get(part).copied().unwrap_or_default();
            mark.is_some_and(|mark| mark != found)
        });
        let wrong: Vec<u64> = wrong.map(|(part, _)| part).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        for part in &wrong {
            self.unmark(*part)?;
        }
        let parts: Vec<String> = wrong.iter().map(|part| (part + 1).to_string()).collect();
        Err(Failure::not_well(format!(
            "shards of {} were deleted or changed after they were made: of the parts {}",
            self.place,
            parts.join(",")
        ))
        .with_remedy("make these parts again"))
    }

    /// Lets readers see the output, and deletes the plan and the marks. Returns lines for people about what could not
    /// be deleted.
    fn complete(&self) -> Result<Vec<String>, Failure> {
        let agree = |key: Result<StoreKey, StorageError>, value: &[u8], what: &dyn fmt::Display| {
            let other = key.and_then(|key| self.creating.agree(&key, value));
            let other = other.map_err(Failure::to(format_args!("finish {what}")))?;
            if other.is_none() {
                return Ok(());
            }
            Err(Failure::failed(format!(
                "cannot finish {what}: another program has stored other metadata there"
            ))
            .with_remedy("move them away, and run `zarrs-cuda status OUT --finish`"))
        };
        if let Some(apart) = &self.plan.made_apart {
            if !self.goes_on()? {
                return Ok(Vec::new());
            }
            apart.publish(&self.place, &self.name)?;
        }
        for PlannedNode { path, metadata } in &self.plan.nodes {
            // This process may have been away: another one has completed the run, or another run has begun.
            if !self.goes_on()? {
                return Ok(Vec::new());
            }
            let key = metadata_key(path);
            agree(key, metadata.as_bytes(), &self.place.join(path))?;
        }
        let sync = || {
            let synced = self.creating.sync();
            synced.map_err(Failure::to(format_args!("finish {}", self.place)))
        };
        sync()?;
        if !self.goes_on()? {
            return Ok(Vec::new());
        }
        agree(done_key(), self.watch.bytes(), &self.place)?;
        sync()?;
        let store = self.creating.store();
        Ok(tidy(&self.place, store, &self.plan, self.watch.bytes()))
    }
}

/// Returns the name of the plan with these bytes, which other plans do not have.
fn name_of(bytes: &[u8]) -> String {
    format!("{:016x}", hash([bytes]))
}

fn metadata_key(path: &str) -> Result<StoreKey, StorageError> {
    let key = match path {
        "" => "zarr.json".to_owned(),
        path => format!("{path}/zarr.json"),
    };
    Ok(StoreKey::new(key)?)
}

/// Checks that readers see the output of a run that is recorded as complete.
fn must_be_shown(place: &Place, store: &Store, plan: &RunPlan) -> Result<(), Failure> {
    if let Some(apart) = &plan.made_apart {
        return apart.must_be_shown(place);
    }
    let Some(root) = plan.nodes.last() else {
        return Ok(());
    };
    let shown = stored(place, store, metadata_key(&root.path))?;
    if shown.is_some() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{place} was completed in parts, as {RUN}/done.json in it says, and its zarr.json is gone"
    ))
    .with_remedy("delete OUT as a whole, with this record in it, and begin again"))
}

/// Creates the plan, and returns its bytes and the name of the object. Returns the plan of another process that was
/// created before.
fn made(place: &Place, mut plan: RunPlan, prepares: bool) -> Result<(Bytes, String), Failure> {
    let create = |plan: &RunPlan| -> Result<(Bytes, StoreKey), StorageError> {
        let creating = Creating::open(place, plan.may_replace)
            .map_err(|failure| StorageError::Other(failure.to_string()))?;
        creating.must_create()?;
        let (key, bytes) = (plan_key()?, plan.bytes().map_err(StorageError::Other)?);
        let other = creating.agree(&key, &bytes)?;
        Ok((other.unwrap_or_else(|| bytes.into()), key))
    };
    if prepares {
        plan = plan.with_name();
    }
    let mut created = create(&plan);
    if prepares && matches!(created, Err(StorageError::Unsupported(_))) {
        plan.may_replace = true;
        created = create(&plan);
    }
    let (bytes, key) = created.map_err(|error| {
        let failure = Failure::failed(format!("cannot make the plan of {place}: {error}"));
        if let StorageError::Unsupported(_) = error {
            return failure.with_remedy(
                "run the same command once with --prepare, and the parts when it has ended",
            );
        }
        failure
    })?;
    Ok((bytes, place.join(key.as_str()).to_string()))
}

/// Returns the value of a key and the name of its object; `None` if there is none.
fn stored(
    place: &Place,
    store: &Store,
    key: Result<StoreKey, StorageError>,
) -> Result<Option<(Bytes, String)>, Failure> {
    let key = key.map_err(Failure::to(format_args!("look at {place}")))?;
    let shown = place.join(key.as_str()).to_string();
    let value = store
        .get(&key)
        .map_err(Failure::to(format_args!("read {shown}")))?;
    Ok(value.map(|value| (value, shown)))
}

/// Deletes the plan and the marks of a run that is complete, and the temporaries of processes that have ended. Returns
/// lines for people about what could not be deleted: the output is complete anyway.
fn tidy(place: &Place, store: &Store, plan: &RunPlan, bytes: &[u8]) -> Vec<String> {
    // The plan goes first: a process that looks at it stops.
    let erased = erase_plan(store, bytes).and_then(|()| erase_marks(store, plan, bytes));
    let erased = erased.and_then(|()| match plan.made_apart {
        Some(_) => Ok(MadeApart::tidy(place, &name_of(bytes))?),
        None => Ok(()),
    });
    let mut notes = Vec::new();
    if let Err(error) = erased {
        notes.push(format!("note: {RUN} in {place} is left: {error}"));
    }
    if let Place::Directory(path) = place {
        match tidied(path) {
            Ok(left) => notes.extend(left.note()),
            Err(error) => notes.push(format!("note: temporary files may be left: {error}")),
        }
    }
    notes
}

/// Deletes the plan, if it is still the one with these bytes.
fn erase_plan(store: &Store, bytes: &[u8]) -> Result<(), StorageError> {
    let key = plan_key()?;
    match store.get(&key)? {
        Some(found) if *found == *bytes => store.erase(&key),
        _ => Ok(()),
    }
}

/// Deletes the marks of the run whose plan has these bytes.
fn erase_marks(store: &Store, plan: &RunPlan, bytes: &[u8]) -> Result<(), StorageError> {
    let name = name_of(bytes);
    let mut marks = (0..plan.parts.get()).map(|part| mark_key(&name, part));
    marks.try_for_each(|key| store.erase(&key?))
}

/// Returns the nodes of the run in parts at `place` that is not complete: their paths, and whether each is an array;
/// `None` if there is none.
pub(crate) fn nodes(place: &Place, store: &Store) -> Result<Option<Vec<(String, bool)>>, Failure> {
    let Some((bytes, shown)) = stored(place, store, plan_key())? else {
        return Ok(None);
    };
    let plan = RunPlan::read(&bytes, &shown)?;
    let nodes = plan.nodes.iter();
    Ok(Some(
        nodes
            .map(|node| (node.path.clone(), node.is_array()))
            .collect(),
    ))
}

/// Returns the number of parts of the run that has completed the output at `place`; `None` if there is no record of one.
pub(crate) fn completed(place: &Place) -> Result<Option<NonZeroU64>, Failure> {
    let store = open::output(place)?.store;
    if is_begun(place, &store)? {
        return Ok(None);
    }
    let Some((bytes, shown)) = stored(place, &store, done_key())? else {
        return Ok(None);
    };
    Ok(Some(RunPlan::read(&bytes, &shown)?.parts))
}

/// Returns whether there is the plan of a run that is not complete.
pub(crate) fn is_begun(place: &Place, store: &Store) -> Result<bool, Failure> {
    Ok(stored(place, store, plan_key())?.is_some())
}

/// Makes what a run in parts has stored the output of an interrupted run, whose arrays and root have the marker
/// `marker`, and deletes all traces of runs in parts. Another run may replace the output then.
pub(crate) fn give_up(place: &Place, store: &Store, marker: &str) -> Result<(), Failure> {
    let doing = format!("empty {place}");
    if let Some((bytes, shown)) = stored(place, store, plan_key())? {
        let plan = RunPlan::read(&bytes, &shown)?;
        let mark = |path: &str| {
            let key = match path {
                "" => marker.to_owned(),
                path => format!("{path}/{marker}"),
            };
            let key = StoreKey::new(key).map_err(StorageError::from);
            let marked = key.and_then(|key| store.set(&key, Bytes::new()));
            marked.map_err(Failure::to(&doing))
        };
        mark("")?;
        for node in plan.nodes.iter().filter(|node| node.is_array()) {
            mark(&node.path)?;
        }
        tidy(place, store, &plan, &bytes);
    }
    if let Some((bytes, shown)) = stored(place, store, done_key())?
        && let Ok(plan) = RunPlan::read(&bytes, &shown)
    {
        erase_marks(store, &plan, &bytes).map_err(Failure::to(&doing))?;
    }
    for key in [plan_key(), done_key()] {
        let erased = key.and_then(|key| store.erase(&key));
        erased.map_err(Failure::to(&doing))?;
    }
    Ok(())
}
