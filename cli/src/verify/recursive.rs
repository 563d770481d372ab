//! Verifies all arrays of a group.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use zarrs_cuda_convert::consolidated;
use zarrs_cuda_convert::words::counted;
use zarrs_cuda_convert::{Failure, Place, arrays_below};

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
    let arrays = paths(root)?;
    let of_other = args.against.as_ref().map(paths).transpose()?;
    let (mut lines, mut failures) = (Vec::new(), Vec::new());
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
        match verify(&one, common) {
            Ok(outcome) => {
                let (text, json, is_well, failed) = outcome.taken();
                lines.push(format!(
                    "{}:\n  {}",
                    one.shards.array,
                    text.replace('\n', "\n  ")
                ));
                found.push(json);
                not_well += usize::from(!is_well);
                failures.extend(failed);
            }
            Err(failure) => {
                not_well += 1;
                failures.push(failure);
            }
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
        (0, 0) => format!("{count} of {root}: all are well"),
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

/// Returns the paths of the arrays in a group.
fn paths(place: &Place) -> Result<BTreeSet<String>, Failure> {
    Ok(arrays_below(place)?.into_iter().collect())
}
