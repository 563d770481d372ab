//! `zarrs-cuda demo`: re-encodes a small MRI volume as a sharded array, and shows it.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, FromArgMatches, Parser};
use serde_json::json;
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::open;

use crate::common::Common;
use crate::outcome::Outcome;
use crate::{inspect, reencode};

/// Re-encode a small MRI volume into a folder, verify it, and look at it
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The folder for both arrays [default: demo in cargo's target directory, or zarrs-cuda-demo here]
    folder: Option<PathBuf>,
}

macro_rules! volume {
    ($($key:literal)*) => {
        &[$(($key, include_bytes!(concat!("../data/bold.zarr/", $key)) as &[u8])),*]
    };
}

/// The keys and the bytes of the files of the array `data/bold.zarr`.
const VOLUME: &[(&str, &[u8])] = volume!(
    "c/0/0/0" "c/0/0/1" "c/0/1/0" "c/0/1/1"
    "c/1/0/0" "c/1/0/1" "c/1/1/0" "c/1/1/1"
    "c/2/0/0" "c/2/0/1" "c/2/1/0" "c/2/1/1"
    "zarr.json"
);

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let folder = args.folder.clone().unwrap_or_else(default_folder);
    open::must_be_local(&folder, "demo works in a directory")?;
    if open::Kind::in_directory(&folder)? != open::Kind::Nothing {
        return Err(Failure::usage(format!(
            "{} is a Zarr array or group, and the demonstration would write into it",
            folder.display()
        ))
        .with_remedy("name another folder: zarrs-cuda demo FOLDER"));
    }
    let (input, output) = (folder.join("bold.zarr"), folder.join("sharded.zarr"));
    unpack(&input)?;
    let [input, output] = [&input, &output].map(|path| path.display().to_string());

    let reencode: reencode::Args = step(
        common,
        "reencode",
        &[
            &input,
            &output,
            "--shard-size",
            "256KiB",
            "--subchunk-size",
            "4KiB",
        ],
        &["--explain", "--verify", "--overwrite"],
    )?;
    let reencoded = reencode::run(&reencode, common)?;
    common.say(reencoded.text());

    let inspect: inspect::Args = step(common, "inspect", &[&output], &[])?;
    let inspected = inspect::run(&inspect, common)?;
    let text = inspected.text().to_string();
    let json = json!({
        "reencode": reencoded.into_json(), "inspect": inspected.into_json(),
    });
    Ok(Outcome::new(text, json))
}

/// Parses the arguments of a subcommand, and prints the command line as a user would type it.
fn step<A: clap::Args + FromArgMatches>(
    common: &Common,
    name: &'static str,
    arguments: &[&str],
    switches: &[&str],
) -> Result<A, Failure> {
    #[derive(Parser)]
    struct Step<A: clap::Args> {
        #[command(flatten)]
        args: A,
    }
    let words = || {
        [name]
            .into_iter()
            .chain(arguments.iter().copied())
            .chain(switches.iter().copied())
    };
    let line: Vec<_> = words().collect();
    common.say(format!("\n+ zarrs-cuda {}", line.join(" ")));
    let matches = Step::<A>::command().try_get_matches_from(words());
    let step = matches.and_then(|matches| Step::<A>::from_arg_matches(&matches));
    step.map(|step| step.args)
        .map_err(Failure::to(format_args!("run {name}")))
}

/// Returns `demo` in cargo's target directory if cargo runs the program TARGET/PROFILE/zarrs-cuda; otherwise
/// `zarrs-cuda-demo`.
fn default_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    match program.ancestors().nth(2) {
        Some(target) if target.join("CACHEDIR.TAG").exists() => target.join("demo"),
        _ => PathBuf::from("zarrs-cuda-demo"),
    }
}

/// Writes the files of the volume to the directory `path`.
fn unpack(path: &Path) -> Result<(), Failure> {
    for (key, bytes) in VOLUME {
        let file = path.join(key);
        let written = match file.parent() {
            Some(folder) => fs::create_dir_all(folder),
            None => Ok(()),
        }
        .and_then(|()| fs::write(&file, bytes));
        written.map_err(|error| {
            Failure::failed(format!("cannot write {}: {error}", file.display()))
                .with_remedy("name another folder: zarrs-cuda demo FOLDER")
        })?;
    }
    Ok(())
}
