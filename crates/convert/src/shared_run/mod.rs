//! A run of several processes, on one machine or many, which make one output together.
//!
//! The processes share nothing but the store of the output. Everything that they must agree on is in the plan,
//! which is created and never replaced. All keys are known, so no listing is needed:
//!
//! | key below the output | content |
//! |---|---|
//! | `.zarrs-cuda-run/plan.json` | the plan |
//! | `.zarrs-cuda-run/part-N` | the mark of a part: all of its shards are durable |
//! | `.zarrs-cuda-run/done.json` | the plan of a run that is complete |
//!
//! ```text
//! read the record of a complete run: there is one, of this run: tidy, end
//! read the plan, and compare; there is none:
//!     check that the output is free: it is not: look for both again, because others may have begun meanwhile
//!     create the plan
//! for each shard of the part
//!     look at the plan: it is gone: end
//!     look at the shard: it is there and whole: the next one
//!     make it, and create it
//! create the mark of the part
//! get the marks of all parts: one is missing, and there is no record of a complete run: end
//! create the metadata of arrays, of inner groups, and of the root
//! create the record of the complete run
//! tidy: delete the plan, and the marks
//! ```
//!
//! A process may be killed between two steps, and may do a part that another process does or has done. Each step
//! creates a value that all processes create equally, or deletes a value that nobody needs.

mod create;
mod division;
mod plan;
mod status;
#[cfg(test)]
mod tests;

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde_json::{Value, json};
use zarrs::storage::{StorageError, StoreKey};

pub(crate) use self::create::{Creating, CreatingStore};
pub(crate) use self::division::starts;
pub(crate) use self::plan::{PartStart, PlannedNode, RunPlan, Wanted};
pub use self::status::{MissingPart, RunStatus, status};
use crate::failure::Failure;
use crate::open::{Place, RUN, Store};
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

fn mark_key(part: u64) -> Result<StoreKey, StorageError> {
    key(&format!("part-{}", part + 1))
}

/// One part of a run: `3/16` is the third of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Counts from 0.
    number: u64,
    of: NonZeroU64,
}

impl Part {
    /// Returns part `number`, which counts from 1, of a run in `of` parts.
    ///
    /// # Errors
    /// There is no such part.
    pub fn new(number: u64, of: u64) -> Result<Self, Failure> {
        match (number.checked_sub(1), NonZeroU64::new(of)) {
            (Some(number), Some(of)) if number < of.get() => Ok(Self { number, of }),
            _ => Err(Failure::usage(format!(
                "there is no part {number} of {of}: parts count from 1"
            ))),
        }
    }

    /// Returns the number of this part, which counts from 0.
    pub(crate) fn number(self) -> u64 {
        self.number
    }

    /// Returns the number of parts.
    pub fn of(self) -> NonZeroU64 {
        self.of
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number + 1, self.of)
    }
}

impl FromStr for Part {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let numbers = text.split_once('/');
        let numbers =
            numbers.and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        let (number, of) = numbers.ok_or_else(|| {
            Failure::usage(format!("{text} is no part: write 3/16 for the third of 16"))
        })?;
        Self::new(number, of)
    }
}

/// The output of a run in parts, as one process sees it.
pub(crate) struct SharedRun {
    place: Place,
    creating: Creating,
    plan: RunPlan,
}

/// The state of a run after a part was marked.
pub(crate) struct Marked {
    /// The parts without a mark, which count from 0: none if the run is complete.
    pub(crate) missing: Vec<u64>,
    /// A line for people about temporaries that could not be deleted.
    pub(crate) note: Option<String>,
}

/// The state in which a process finds a run.
pub(crate) enum Joined {
    /// The run has a plan, and is not complete.
    Run(Box<SharedRun>),
    /// The run is complete.
    Done,
}

impl SharedRun {
    /// Joins the run that is `wanted` at `place`: reads its plan, or makes one whose parts begin at `starts`. `check`
    /// checks that nothing else is at `place`, before a plan is made. A run that this process `prepares` needs no store
    /// that creates values.
    ///
    /// # Errors
    /// The output is of another run; or the store creates no values, and this process does not prepare the run.
    pub(crate) fn join(
        place: &Place,
        wanted: &Wanted,
        prepares: bool,
        check: impl Fn() -> Result<(), Failure>,
        starts: impl Fn() -> Result<Vec<PartStart>, Failure>,
    ) -> Result<Joined, Failure> {
        let store = Creating::open(place, false)?.store().clone();
        if Self::was_completed(place, &store, wanted)? {
            return Ok(Joined::Done);
        }
        let found = stored(place, &store, plan_key())?;
        let (bytes, shown) = if let Some(found) = found {
            found
        } else {
            let checked = check();
            // Other processes may have made the plan since the look, and written, and completed the run.
            match (stored(place, &store, plan_key())?, checked) {
                (Some(found), _) => found,
                (None, Ok(())) => made(place, RunPlan::new(wanted, starts()?), prepares)?,
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
        Ok(Joined::Run(Box::new(Self::of(place, plan)?)))
    }

    /// Returns the run with `plan` at `place`.
    fn of(place: &Place, plan: RunPlan) -> Result<Self, Failure> {
        let creating = Creating::open(place, plan.may_replace)?;
        Ok(Self {
            place: place.clone(),
            creating,
            plan,
        })
    }

    /// Returns whether the run that is `wanted` is complete. If it is, deletes its plan and its marks.
    fn was_completed(place: &Place, store: &Store, wanted: &Wanted) -> Result<bool, Failure> {
        let Some((bytes, shown)) = stored(place, store, done_key())? else {
            return Ok(false);
        };
        let plan = RunPlan::read(&bytes, &shown)?;
        plan.must_be(wanted, &shown)?;
        tidy(place, store, &plan)?;
        Ok(true)
    }

    pub(crate) fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// Returns whether the plan is still there. If it is not, another process has completed the run.
    ///
    /// # Errors
    /// The plan is gone, and the run is not complete; or there is another plan; the errors of the store.
    pub(crate) fn goes_on(&self) -> Result<bool, Failure> {
        let store = &**self.creating.store();
        let bytes = self.plan.bytes();
        let found = stored(&self.place, store, plan_key())?;
        if found.is_some_and(|(found, _)| *found == *bytes) {
            return Ok(true);
        }
        if self.is_complete()? {
            return Ok(false);
        }
        Err(Failure::failed(format!(
            "the plan of {} was deleted or replaced while this part was made",
            self.place
        ))
        .with_remedy("let all parts of one run end before another run begins there"))
    }

    /// Returns whether the run is complete.
    pub(crate) fn is_complete(&self) -> Result<bool, Failure> {
        let done = stored(&self.place, self.creating.store(), done_key())?;
        Ok(done.is_some_and(|(done, _)| *done == *self.plan.bytes()))
    }

    /// Opens the store of the array at `path`, in which shards are created.
    pub(crate) fn store_of_array(&self, path: &str) -> Result<CreatingStore, Failure> {
        let creating = Creating::open(&self.place.join(path), self.plan.may_replace)?;
        Ok(CreatingStore::new(creating))
    }

    /// Marks `part`, all of whose shards are durable, and completes the run if all parts are marked. `notes` are facts
    /// about the part.
    pub(crate) fn mark(&self, part: Part, notes: &Value) -> Result<Marked, Failure> {
        let mark = json!({ "plan": self.plan.name(), "part": part.to_string(), "notes": notes });
        let doing = format!("mark part {part} of {}", self.place);
        let marked = self.creating.sync().and_then(|()| {
            // Another process that has done this part may have noted other facts.
            let mark = mark.to_string().into_bytes();
            self.creating.create(&mark_key(part.number)?, mark.into())
        });
        marked.map_err(Failure::to(&doing))?;
        self.finish()
    }

    /// Completes the run if all parts are marked.
    pub(crate) fn finish(&self) -> Result<Marked, Failure> {
        let mut missing = self.missing()?;
        let mut note = None;
        if self.is_complete()? {
            missing = Vec::new();
            note = tidy(&self.place, self.creating.store(), &self.plan)?;
        } else if missing.is_empty() {
            note = self.complete()?;
        }
        Ok(Marked { missing, note })
    }

    /// Returns the parts without a mark, which count from 0.
    fn missing(&self) -> Result<Vec<u64>, Failure> {
        let mut missing = Vec::new();
        let name = self.plan.name();
        for part in 0..self.plan.parts.get() {
            let mark = stored(&self.place, self.creating.store(), mark_key(part))?;
            let is_marked = mark.is_some_and(|(mark, _)| {
                serde_json::from_slice::<Value>(&mark).is_ok_and(|mark| mark["plan"] == *name)
            });
            if !is_marked {
                missing.push(part);
            }
        }
        Ok(missing)
    }

    /// Lets readers see the output, and deletes the plan and the marks.
    fn complete(&self) -> Result<Option<String>, Failure> {
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
        for PlannedNode { path, metadata } in &self.plan.nodes {
            let key = match &**path {
                "" => "zarr.json".to_owned(),
                path => format!("{path}/zarr.json"),
            };
            let key = StoreKey::new(key).map_err(StorageError::from);
            agree(key, metadata.as_bytes(), &self.place.join(path))?;
        }
        let sync = || {
            self.creating
                .sync()
                .map_err(Failure::to(format_args!("finish {}", self.place)))
        };
        sync()?;
        agree(done_key(), &self.plan.bytes(), &self.place)?;
        sync()?;
        tidy(&self.place, self.creating.store(), &self.plan)
    }
}

/// Creates the plan, and returns its bytes and the name of the object. Returns the plan of another process that was
/// created before.
fn made(
    place: &Place,
    mut plan: RunPlan,
    prepares: bool,
) -> Result<(zarrs_storage::Bytes, String), Failure> {
    let create = |plan: &RunPlan| -> Result<(zarrs_storage::Bytes, StoreKey), StorageError> {
        let creating = Creating::open(place, plan.may_replace)
            .map_err(|failure| StorageError::Other(failure.to_string()))?;
        let (key, bytes) = (plan_key()?, plan.bytes());
        if let Some(other) = creating.agree(&key, &bytes)? {
            return Ok((other, key));
        }
        creating.must_obey(&key, &bytes)?;
        Ok((bytes.into(), key))
    };
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
) -> Result<Option<(zarrs_storage::Bytes, String)>, Failure> {
    let key = key.map_err(Failure::to(format_args!("look at {place}")))?;
    let shown = place.join(key.as_str()).to_string();
    let value = store
        .get(&key)
        .map_err(Failure::to(format_args!("read {shown}")))?;
    Ok(value.map(|value| (value, shown)))
}

/// Deletes the plan and the marks of a run that is complete, and the temporaries of processes that have ended. Returns
/// a line for people about other temporaries.
fn tidy(place: &Place, store: &Store, plan: &RunPlan) -> Result<Option<String>, Failure> {
    let doing = format!("tidy {place}");
    // The plan goes first: a process that looks at it stops.
    let marks = (0..plan.parts.get()).map(mark_key);
    for key in std::iter::once(plan_key()).chain(marks) {
        let erased = key.and_then(|key| store.erase(&key));
        erased.map_err(Failure::to(&doing))?;
    }
    match place {
        Place::Directory(path) => Ok(tidied(path).map_err(Failure::to(&doing))?.note()),
        Place::Url(_) => Ok(None), // an upload that is not complete makes no object
    }
}

/// Returns whether there is the plan of a run that is not complete.
pub(crate) fn is_begun(place: &Place, store: &Store) -> Result<bool, Failure> {
    Ok(stored(place, store, plan_key())?.is_some())
}

/// Deletes all traces of runs in parts at `place`, before another run replaces its output.
pub(crate) fn forget(place: &Place, store: &Store) -> Result<(), Failure> {
    for key in [plan_key(), done_key()] {
        if let Some((bytes, shown)) = stored(place, store, key)? {
            // Marks have the name of their plan, so those of a plan that cannot be read do no harm.
            if let Ok(plan) = RunPlan::read(&bytes, &shown) {
                tidy(place, store, &plan)?;
            }
        }
    }
    for key in [plan_key(), done_key()] {
        let erased = key.and_then(|key| store.erase(&key));
        erased.map_err(Failure::to(format_args!("empty {place}")))?;
    }
    Ok(())
}
