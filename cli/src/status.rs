//! `zarrs-cuda status`: tells which parts of an output are made.

use serde_json::json;
use zarrs_cuda_convert::words::counted;
use zarrs_cuda_convert::{Failure, Place, RunStatus, status};

use crate::outcome::Outcome;
use crate::reports::is_or_are;

/// Tell which parts of an output are made, which --part makes
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
    Ok(Outcome::new(text(args, &status), json))
}

fn text(args: &Args, status: &RunStatus) -> String {
    let RunStatus {
        command,
        parts,
        missing,
        ..
    } = status;
    let output = &args.output;
    let mut lines = vec![format!("{output}: {command} in {parts} parts")];
    if status.is_complete {
        lines.push(format!("all parts are made, and {output} can be read"));
        return lines.join("\n");
    }
    if missing.is_empty() {
        lines.push(format!(
            "all parts are made, and {output} cannot be read yet: `zarrs-cuda status {output} --finish` makes it readable"
        ));
        return lines.join("\n");
    }
    lines.push(format!(
        "{} {} missing:",
        counted(missing.len(), "part"),
        is_or_are(missing.len())
    ));
    for part in missing {
        let stored = match part.seconds_since_newest {
            Some(seconds) => format!(
                "{} stored, the newest {} ago",
                counted(part.shards, "shard"),
                duration(seconds)
            ),
            None => "nothing stored".to_owned(),
        };
        lines.push(format!("  {}/{parts}: {stored}", part.part));
    }
    lines.push(
        "it is safe to make a part again, also one that is only slow: shards that are stored stay"
            .to_owned(),
    );
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
