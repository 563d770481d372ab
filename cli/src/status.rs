//! `zarrs-cuda status`: tells which parts of an output are made.

use serde_json::json;
use zarrs_cuda_convert::words::{counted, is_or_are};
use zarrs_cuda_convert::{Failure, Place, RunStatus, status};

use crate::outcome::Outcome;
use crate::reports::{numbers, without};

/// Tell which parts of an output are made, which --part makes
///
/// Also tells the command that makes a missing part. It has the options that affect OUT, and not those of a machine, such
/// as --memory.
///
/// The exit code is 3 if OUT cannot be read yet.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The OUT of a command with --part
    #[arg(value_name = "OUT")]
    output: Place,
    /// Make OUT readable if all parts are made: the process that made the last part was interrupted before it did
    #[arg(long)]
    finish: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, Failure> {
    let status = status(&args.output, args.finish)?;
    let json = json!({ "output": args.output.to_string(), "status": &status });
    let outcome = Outcome::new(text(args, &status), json);
    Ok(if status.is_complete {
        outcome
    } else {
        outcome.not_well()
    })
}

fn text(args: &Args, status: &RunStatus) -> String {
    let RunStatus {
        command,
        parts,
        missing,
        ..
    } = status;
    let output = &args.output;
    let without = without(&status.left_out);
    let shards = match (status.stored, status.shards) {
        (Some(stored), Some(all)) => format!(", {stored} of {} stored", counted(all, "shard")),
        _ => String::new(),
    };
    let mut lines = vec![format!(
        "{output}: {command} in {parts} parts{shards}{without}"
    )];
    if status.is_complete {
        lines.push(format!("all parts are made, and {output} can be read"));
    } else if missing.is_empty() {
        lines.push(format!(
            "all parts are made, and {output} cannot be read yet: `zarrs-cuda status {output} --finish` makes it readable"
        ));
    } else {
        let numbers: Vec<u64> = missing.iter().map(|part| part.part).collect();
        lines.push(format!(
            "{} {} missing: {}",
            counted(missing.len(), "part"),
            is_or_are(missing.len() as u64),
            self::numbers(&numbers)
        ));
        for part in missing {
            let age = part
                .seconds_since_newest
                .map_or_else(String::new, |seconds| {
                    format!(", the newest {} ago", duration(seconds))
                });
            let stored = match (part.stored, part.shards) {
                (None, _) => continue, // the numbers are in the line above
                (Some(stored), Some(all)) => format!("{stored} of {}", counted(all, "shard")),
                (Some(stored), None) => counted(stored, "shard"),
            };
            lines.push(format!("  {}/{parts}: {stored} stored{age}", part.part));
        }
        let are_ranges = missing.iter().all(|part| part.stored.is_some());
        lines.push(
            if are_ranges {
                "make them again, also one that is only slow: shards that are stored stay"
            } else {
                "make each again as a whole, when no process makes it any more: what is stored of a part is not told"
            }
            .to_owned(),
        );
        lines.push(match &missing[..] {
            [part] => part.again.clone(),
            _ => status.again.clone(),
        });
    }
    lines.extend(status.notes.iter().cloned());
    lines.join("\n")
}

/// Returns a number of seconds as people read it.
fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}
