//! `zarrs-cuda recover`: repairs shards whose last update was interrupted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use zarrs_cuda::maintenance::{ArrayLease, Recovery, RecoveryOutcome, Shards, SubchunkState};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::grid::Grid;
use zarrs_cuda_convert::open;
use zarrs_cuda_convert::words::{counted, shape_text};

use crate::checks::Checks;
use crate::chosen::{ShardArgs, with_other_damage};
use crate::common::Common;
use crate::outcome::Outcome;
use crate::replacing::ReplacedShards;
use crate::work::on_each;

/// Repair shards whose last update was interrupted
///
/// Nothing else may write the array meanwhile: a writer that extends it is refused. Data must come from software that you trust.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    shards: ShardArgs,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// The state of a stored shard.
struct Found {
    outcome: RecoveryOutcome,
    unreadable: Vec<(usize, Arc<str>)>,
    /// The number of hard links that the shard's file had, if the repair replaced the file because there were
    /// several.
    names: Option<u64>,
}

/// Returns the index of each subchunk that cannot be read, and the reason.
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
    let lease = if args.dry_run {
        None
    } else {
        opened.place.must_be_written("recover")?;
        opened.must_be_plain("recover")?;
        Some(args.shards.lease(&opened, "recover")?)
    };
    let shards = open::shards(&opened)?;
    let replacing = ReplacedShards::of(&opened)?;
    let grid = Grid::of(&opened.array)?;
    let mut chosen = args.shards.chosen(&opened, &grid)?;
    let [stored, intact] = [AtomicU64::new(0), AtomicU64::new(0)];
    let checks = Checks::new(&opened, &shards, common)?;
    let mut done = on_each(
        ["recovering", "shards that were repaired stay so"],
        &grid,
        &chosen,
        common.threads(), // each thread waits for its memory
        |shard| {
            let Some(found) = recovered(args.dry_run, &shards, &checks, &replacing, shard)? else {
                return Ok(None);
            };
            stored.fetch_add(1, Ordering::Relaxed);
            let is_intact = found.outcome == RecoveryOutcome::Intact;
            intact.fetch_add(u64::from(is_intact), Ordering::Relaxed);
            Ok((!is_intact || !found.unreadable.is_empty()).then_some(found))
        },
    )?;
    let [stored, intact] = [stored.into_inner(), intact.into_inner()];

    let mut lines = Vec::new();
    let mut rows = Vec::new();
    let (mut repaired, mut not_well) = (0_u64, 0_u64);
    for (shard, found) in &done.results {
        let Found {
            outcome,
            unreadable,
            names,
        } = found;
        let is_unrecoverable = matches!(outcome, RecoveryOutcome::Unrecoverable { .. });
        // A dry run decodes the subchunks of the shard before the repair, which may be unreadable.
        let is_repaired = !is_unrecoverable && *outcome != RecoveryOutcome::Intact;
        let would_be_repaired = args.dry_run && is_repaired;
        let is_well = !is_unrecoverable && (unreadable.is_empty() || would_be_repaired);
        repaired += u64::from(is_repaired);
        not_well += u64::from(!is_well);
        let mut line = format!(
            "shard {}: {}",
            shape_text(shard),
            in_words(outcome, args.dry_run)
        );
        if !is_well && !unreadable.is_empty() {
            line += &format!("; {} unreadable", counted(unreadable.len(), "subchunk"));
        }
        if let Some(names) = names {
            line += &format!(
                "; it is a new file, because the old one has {names} names (hard links): the others keep the torn shard"
            );
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
            "hard_links": names,
        }));
    }
    let verb = ["repaired", "to repair"][usize::from(args.dry_run)];
    lines.push(format!(
        "{}, {stored} stored: {intact} intact, {repaired} {verb}, {not_well} damaged otherwise",
        counted(chosen.looked_at(), "shard"),
    ));
    lines.extend(chosen.outside_text());
    lines.extend(ShardArgs::lease_text(lease.as_ref()));
    let json = json!({
        "array": opened.place.to_string(),
        "dry_run": args.dry_run,
        "lease": lease.as_ref().map(ArrayLease::is_held),
        "shards": chosen.looked_at_json(),
        "stored": stored,
        "outside_of_grid": chosen.outside(),
        "intact": intact,
        "repaired": repaired,
        "not_well": not_well,
        "not_intact": rows,
    });
    let outcome = Outcome::new(lines.join("\n"), json);
    let outcome = if not_well > 0 {
        with_other_damage(outcome)
    } else {
        outcome
    };
    done.failures.extend(chosen.take_failures());
    Ok(args.shards.named_in(outcome).with_errors(done.failures))
}

/// Recovers a shard or, if `dry_run`, finds out what a repair would do. Returns `None` if the shard is not
/// stored.
fn recovered(
    dry_run: bool,
    shards: &Shards<'_, open::Store>,
    checks: &Checks<'_>,
    replacing: &ReplacedShards<'_>,
    shard: &[u64],
) -> Result<Option<Found>, Failure> {
    let Some(verified) = checks.verify(shard)?? else {
        return Ok(None);
    };
    let (outcome, size) = (verified.inspection.recovery, verified.inspection.size);
    if dry_run || outcome == RecoveryOutcome::Intact {
        return Ok(Some(Found {
            outcome,
            unreadable: unreadable(&verified.subchunks),
            names: None,
        }));
    }
    // Memory for the stored shard and the repaired one.
    let _taken = checks.take("recover", shard, size.saturating_mul(2))?;
    // A repair writes into the file. If the file has several hard links, another name may be somebody's copy.
    let several = Some(replacing.names(shard)).filter(|names| *names > 1);
    let Recovery {
        outcome, subchunks, ..
    } = match several {
        Some(_) => replacing.recover(shard)?,
        None => shards.recover(shard)?,
    };
    if outcome == RecoveryOutcome::Absent {
        return Ok(None);
    }
    Ok(Some(Found {
        names: several.filter(|_| is_written(&outcome)),
        unreadable: unreadable(&subchunks),
        outcome,
    }))
}

/// Returns whether the repair wrote bytes of the shard.
fn is_written(outcome: &RecoveryOutcome) -> bool {
    matches!(
        outcome,
        RecoveryOutcome::Undone | RecoveryOutcome::Completed
    )
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
