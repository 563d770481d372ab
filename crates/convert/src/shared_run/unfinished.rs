//! Refuses to write where a run in parts is not finished.

use std::fs;
use std::path::Path;

use zarrs_storage::{Bytes, StoreKey};

use super::status::found;
use super::{RunPlan, RunStatus, is_begun, plan_key, stored};
use crate::failure::Failure;
use crate::open::{self, Place, RUN, Store, is_missing};
use crate::words::{counted, is_or_are, quoted};

/// Checks that no run in parts makes the output at `place`. A run that is complete does not count, unless its plan is left.
///
/// # Errors
/// There is such a run. The message says how much of it is made, and the remedy has the command that finishes it. Nothing
/// tells whether its processes are still at work.
pub fn must_not_be_begun(place: &Place) -> Result<(), Failure> {
    let store = open::output(place)?.store;
    if !is_begun(place, &store)? {
        return Ok(());
    }
    match found(place, false)? {
        Some(status) => Err(refusal(place, &status)),
        None => Ok(()), // it was deleted meanwhile
    }
}

/// Checks that no run in parts makes the member at `path` of the output at `root`, which `store` opens, as an output of
/// its own.
///
/// # Errors
/// The errors of [`must_not_be_begun`].
pub(crate) fn must_not_be_begun_below(
    root: &Place,
    store: &Store,
    path: &str,
) -> Result<(), Failure> {
    let doing = format!("look at {}", root.join(path));
    let key = StoreKey::new(format!("{path}/{RUN}/plan.json")).map_err(Failure::to(&doing))?;
    match store.get(&key).map_err(Failure::to(&doing))? {
        Some(_) => must_not_be_begun(&root.join(path)),
        None => Ok(()),
    }
}

/// Checks that no run in parts makes `place` as a member of an output above it.
///
/// # Errors
/// There is such a run; a plan above `place` cannot be read.
pub fn must_not_be_made_above(place: &Place) -> Result<(), Failure> {
    for (above, path) in place.itself_and_above().skip(1) {
        let plan = match &above {
            Place::Directory(directory) => plan_in(directory)?,
            // A user who may write the objects may not be allowed to read there.
            Place::Url(_) => {
                let stores = open::output(&above);
                let plan = stores.and_then(|stores| stored(&above, &stores.store, plan_key()));
                let Ok(plan) = plan else { return Ok(()) };
                plan
            }
        };
        if let Some((bytes, shown)) = plan {
            let within = |failure: Failure| failure.about(format_args!("{place} lies in {above}"));
            if RunPlan::read(&bytes, &shown).map_err(within)?.makes(&path) {
                must_not_be_begun(&above).map_err(within)?;
            }
        }
    }
    Ok(())
}

/// Returns the bytes of the plan in `directory`, and its path; `None` if there is none.
fn plan_in(directory: &Path) -> Result<Option<(Bytes, String)>, Failure> {
    let path = directory.join(RUN).join("plan.json");
    let shown = path.display().to_string();
    match fs::read(&path) {
        Ok(bytes) => Ok(Some((bytes.into(), shown))),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(Failure::to(format_args!("read {shown}"))(error)),
    }
}

/// Returns the failure of a run that would write where the run with this `status` is not finished.
fn refusal(place: &Place, status: &RunStatus) -> Failure {
    let RunStatus { parts, missing, .. } = status;
    let made = parts.get().saturating_sub(missing.len() as u64);
    let are = is_or_are(made);
    let shards = match (status.stored, status.shards) {
        (Some(stored), Some(all)) => format!(", and {stored} of {} stored", counted(all, "shard")),
        (Some(stored), None) => format!(", and {} stored", counted(stored, "shard")),
        _ => String::new(),
    };
    let message = format!(
        "{place} holds an unfinished run in {parts} parts: {} {are} made{shards}",
        counted(made, "part")
    );
    let finish = match &missing[..] {
        [] => format!(
            "`zarrs-cuda status {} --finish`",
            quoted(&place.to_string())
        ),
        [part] => format!("`{}`", part.again),
        parts => format!(
            "`{}`, with I of {}",
            status.again,
            numbers(parts.iter().map(|part| part.part))
        ),
    };
    // Nothing is known of the shards of levels, which are made beside what readers see.
    let delete = match status.stored {
        Some(_) => format!("{place} as a whole"),
        None => format!("{RUN} in {place}"),
    };
    Failure::failed(message).with_remedy(format!(
        "finish it by {finish}; or delete {delete}, when no part runs"
    ))
}

/// Returns the first of `numbers`, with commas between them.
fn numbers(numbers: impl Iterator<Item = u64>) -> String {
    const SHOWN: usize = 8;
    let mut texts: Vec<String> = numbers
        .take(SHOWN + 1)
        .map(|number| number.to_string())
        .collect();
    if let Some(last) = texts.get_mut(SHOWN) {
        "…".clone_into(last);
    }
    texts.join(",")
}
