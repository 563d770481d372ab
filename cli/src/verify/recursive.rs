//! Verifies all arrays of a group.

use std::collections::BTreeSet;
use std::iter;

use serde_json::{Value, json};
use zarrs_cuda_convert::consolidated;
use zarrs_cuda_convert::open::must_answer;
use zarrs_cuda_convert::words::counted;
use zarrs_cuda_convert::{Failure, FailureKind, Place, arrays_below};

use super::{Args, verify};
use crate::common::Common;
use crate::outcome::Outcome;

/// Verifies each array below the place of `args`, one after the other.
pub(super) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let root = &args.shards.array;
    if args.shards.are_named() {
        return Err(Failure::usage(
            "shards are named of one array: leave out --recursive, or the shards",
        ));
    }
    let mut failures = Vec::new();
    let arrays = paths(root, &mut failures)?;
    let of_other = args.against.as_ref();
    let of_other = of_other.map(|other| paths(other, &mut failures));
    let of_other = of_other.transpose()?;
    let mut lines = Vec::new();
    let mut found: Vec<Value> = Vec::new();
    let mut not_well = 0;
    for path in &arrays {
        if !of_other.as_ref().is_none_or(|other| other.contains(path)) {
            continue; // told below
        }
        let one = Args {
            shards: args.shards.of(root.join(path)),
            against: args.against.as_ref().map(|other| other.join(path)),
            recursive: false,
        };
        let lost = match verify(&one, common) {
            Ok(outcome) => {
                let (text, json, is_well, failed) = outcome.taken();
                lines.push(format!(
                    "{}:\n  {}",
                    one.shards.array,
                    text.replace('\n', "\n  ")
                ));
                found.push(json);
                not_well += usize::from(!is_well || !failed.is_empty());
                let lost = lost_after(&failed, args);
                failures.extend(failed);
                lost
            }
            Err(failure) if failure.kind() == FailureKind::Interrupted => return Err(failure),
            Err(failure) => {
                not_well += 1;
                let lost = lost_after(std::slice::from_ref(&failure), args);
                if lost.is_none() {
                    failures.push(failure);
                }
                lost
            }
        };
        if let Some(lost) = lost {
            failures.push(lost.with_note(&format!("the arrays behind {path} were not verified")));
            break;
        }
    }
    let mut missing = Vec::new();
    if let (Some(place), Some(other)) = (&args.against, &of_other) {
        for (paths, has, others, lacks) in
            [(&arrays, root, other, place), (other, place, &arrays, root)]
        {
            for path in paths.difference(others) {
                let array = has.join(path);
                lines.push(format!("{array} is an array, and {lacks} has none there"));
                missing.push(array.to_string());
            }
        }
    }
    let below: Vec<_> = arrays.iter().map(String::as_str).collect();
    let stale = consolidated::differences(root, &below);
    let count = counted(arrays.len(), "array");
    lines.push(match (not_well, missing.len()) {
        (0, 0) if failures.is_empty() && stale.is_empty() => {
            format!("{count} of {root}: all are well")
        }
        (0, 0) if failures.is_empty() => {
            format!("{count} of {root}: all are well, but not the consolidated metadata")
        }
        (0, 0) => format!("{count} of {root}: all are well that can be read"),
        (bad, 0) => format!("{count} of {root}: {bad} not well"),
        (bad, missing) => {
            format!("{count} of {root}: {bad} not well; {missing} of either group only")
        }
    });
    let is_well = not_well == 0 && missing.is_empty() && stale.is_empty();
    let json = json!({
        "group": root.to_string(), "arrays": found, "of_one_group_only": missing,
        "stale_consolidated_metadata": stale,
    });
    lines.extend(stale);
    let outcome = Outcome::new(lines.join("\n"), json);
    let outcome = if is_well { outcome } else { outcome.not_well() };
    Ok(outcome.with_errors(failures))
}

/// Returns the paths of the arrays in a group. Adds a failure to `failures` for each member that cannot be read.
fn paths(place: &Place, failures: &mut Vec<Failure>) -> Result<BTreeSet<String>, Failure> {
    let (arrays, unreadable) = arrays_below(place)?;
    failures.extend(unreadable);
    Ok(arrays.into_iter().collect())
}

/// Returns the failure of a server that does not answer any more, or refuses this process, if that is why an array
/// `failed`: each of the other arrays would fail for the same reason.
fn lost_after(failed: &[Failure], args: &Args) -> Option<Failure> {
    if failed.is_empty() {
        return None;
    }
    must_answer(iter::once(&args.shards.array).chain(&args.against)).err()
}
