//! `zarrs-cuda recover`: repairs shards whose last update was interrupted.

use std::sync::Arc;

use serde_json::json;
use zarrs_cuda::maintenance::{Recovery, RecoveryOutcome, SubchunkState};

use crate::arguments::shape_text;
use crate::checks::Checks;
use crate::common::Common;
use crate::failure::Failure;
use crate::open;
use crate::outcome::Outcome;
use crate::progress::counted;
use crate::work::{Grid, ShardArgs, on_each};

/// Repair shards whose last update was interrupted
///
/// Nothing else may write the array meanwhile. Data must come from software that you trust.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    shards: ShardArgs,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// The subchunks that cannot be read: their numbers, and why.
fn unreadable(subchunks: &[SubchunkState]) -> Vec<(usize, Arc<str>)> {
    let subchunks = subchunks.iter().enumerate();
    let unreadable = subchunks.filter_map(|(number, state)| match state {
        SubchunkState::Unreadable { reason } => Some((number, reason.clone())),
        _ => None,
    });
    unreadable.collect()
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let _registration = zarrs_cuda::register(common.options())?;
    let opened = open::array(&args.shards.array)?;
    if !args.dry_run {
        opened.place.must_be_written("recover")?;
    }
    let shards = open::shards(&opened)?;
    let grid = Grid::of(&opened.array);
    let positions = args.shards.positions(&grid)?;
    let checks = Checks::new(&opened, &shards, common)?;
    let done = on_each(
        ["recovering", "shards that were repaired stay so"],
        &grid,
        &positions,
        common.threads(), // each waits for its memory
        |shard| {
            let Some(found) = checks.verify(shard)?? else {
                return Ok(None);
            };
            let (outcome, size) = (found.inspection.recovery, found.inspection.size);
            if args.dry_run || outcome == RecoveryOutcome::Intact {
                return Ok(Some((outcome, found.subchunks)));
            }
            // The shard as it is stored, and repaired.
            let _taken = checks.take("recover", shard, size.saturating_mul(2))?;
            let Recovery {
                outcome, subchunks, ..
            } = shards.recover(shard)?;
            Ok(Some((outcome, subchunks))
                .filter(|(outcome, _)| *outcome != RecoveryOutcome::Absent))
        },
    )?;

    let mut lines = Vec::new();
    let mut rows = Vec::new();
    let (mut intact, mut repaired, mut not_well) = (0_u64, 0_u64, 0_u64);
    for (shard, (outcome, subchunks)) in &done.results {
        let unreadable = unreadable(subchunks);
        let is_unrecoverable = matches!(outcome, RecoveryOutcome::Unrecoverable { .. });
        // What a dry run decoded is the state before the repair.
        let would_be_repaired =
            args.dry_run && !is_unrecoverable && *outcome != RecoveryOutcome::Intact;
        let is_well = !is_unrecoverable && (unreadable.is_empty() || would_be_repaired);
        match outcome {
            RecoveryOutcome::Intact => intact += 1,
            _ if is_unrecoverable => {}
            _ => repaired += 1,
        }
        not_well += u64::from(!is_well);
        if *outcome == RecoveryOutcome::Intact && is_well {
            continue;
        }
        let mut line = format!(
            "shard {}: {}",
            shape_text(shard),
            in_words(outcome, args.dry_run)
        );
        if !is_well && !unreadable.is_empty() {
            line += &format!("; {} unreadable", counted(unreadable.len(), "subchunk"));
        }
        lines.push(line);
        rows.push(json!({
            "shard": shard,
            "outcome": outcome.name(),
            "reason": match outcome {
                RecoveryOutcome::Unrecoverable { reason } => Some(reason),
                _ => None,
            },
            "unreadable": unreadable.iter()
                .map(|(number, reason)| json!({ "subchunk": number, "problem": &**reason }))
                .collect::<Vec<_>>(),
        }));
    }
    let verb = if args.dry_run {
        "to repair"
    } else {
        "repaired"
    };
    lines.push(format!(
        "{}, {} stored: {intact} intact, {repaired} {verb}, {not_well} damaged otherwise",
        counted(positions.len(), "shard"),
        done.results.len(),
    ));
    let json = json!({
        "array": opened.place.to_string(),
        "dry_run": args.dry_run,
        "shards": positions.len(),
        "stored": done.results.len(),
        "intact": intact,
        "repaired": repaired,
        "not_well": not_well,
        "not_intact": rows,
    });
    let outcome = Outcome::new(lines.join("\n"), json);
    let outcome = if not_well > 0 {
        outcome.not_well()
    } else {
        outcome
    };
    Ok(outcome.with_errors(done.failures))
}

fn in_words(outcome: &RecoveryOutcome, is_dry: bool) -> String {
    match outcome {
        RecoveryOutcome::Undone if is_dry => "a torn update is to be undone".to_string(),
        RecoveryOutcome::Completed if is_dry => "a torn update is to be completed".to_string(),
        RecoveryOutcome::Erased if is_dry => {
            "it was never complete, and is to be erased".to_string()
        }
        outcome => outcome.to_string(),
    }
}
