//! Shows the content and layout of the shards of an array on disk.
//!
//! ```text
//! cargo run --example inspect -- ARRAY [SHARD] [--summary]
//! ```
//!
//! Without SHARD it prints a line for each stored shard. It changes nothing.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use lexopt::ValueExt;
use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::Error;
use zarrs_cuda::maintenance::Shards;

const USAGE: &str = "\
Shows what is in the shards of an array on disk, and where. Nothing is changed.

Usage: inspect ARRAY            a line for each stored shard, and what they add up to
       inspect ARRAY SHARD      a shard: its index, its subchunks, and what lies where

  ARRAY      the directory of a sharded Zarr array
  SHARD      the indices of a shard in the grid of shards: 0,1,0 or 0/1/0
  --summary  do not list the subchunks of SHARD
  --help     print this

Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// The reasons to stop.
enum Stop {
    Usage(String),
    Failed(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The command line.
struct Job {
    array: PathBuf,
    shard: Option<Vec<u64>>,
    summary: bool,
}

fn main() -> ExitCode {
    let (message, code) = match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Stop::Usage(message)) => (format!("{message}\n\nTry --help."), 2),
        Err(Stop::Failed(message)) => (message, 1),
    };
    eprintln!("error: {message}");
    ExitCode::from(code)
}

fn run() -> Result<(), Stop> {
    let Some(job) = Job::from_arguments()? else {
        println!("{USAGE}");
        return Ok(());
    };
    let array = open(&job.array)?;
    let shards = Shards::of(&array)?;
    match &job.shard {
        Some(shard) => one(&array, &shards, shard, job.summary),
        None => all(&shards),
    }
}

impl Job {
    /// Returns `None` if help is requested.
    fn from_arguments() -> Result<Option<Self>, Stop> {
        let usage = |error: lexopt::Error| Stop::Usage(error.to_string());
        let (mut array, mut shard, mut summary) = (None, None, false);
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next().map_err(usage)? {
            match argument {
                lexopt::Arg::Long("help") | lexopt::Arg::Short('h') => return Ok(None),
                lexopt::Arg::Long("summary") => summary = true,
                lexopt::Arg::Value(path) if array.is_none() => array = Some(PathBuf::from(path)),
                lexopt::Arg::Value(indices) if shard.is_none() => {
                    shard = Some(shard_indices(&indices.string().map_err(usage)?)?);
                }
                other => return Err(usage(other.unexpected())),
            }
        }
        let array = array.ok_or_else(|| Stop::Usage("an ARRAY is needed".to_string()))?;
        Ok(Some(Self {
            array,
            shard,
            summary,
        }))
    }
}

/// Parses `0,1,0` or `0/1/0`.
fn shard_indices(text: &str) -> Result<Vec<u64>, Stop> {
    let wrong = || {
        Stop::Usage(format!(
            "`{text}` is no shard: give its indices, as 0,1,0 or 0/1/0"
        ))
    };
    text.split([',', '/'])
        .map(|index| index.trim().parse().map_err(|_| wrong()))
        .collect()
}

fn open(path: &Path) -> Result<Array<FilesystemStore>, Stop> {
    let cannot = |error: &dyn fmt::Display| {
        let hint = if path.join("zarr.json").is_file() || path.join(".zarray").is_file() {
            ""
        } else {
            ". An array is a directory with a zarr.json in it"
        };
        let error = error.to_string();
        Stop::Failed(format!(
            "cannot open {} as a Zarr array: {}{hint}",
            path.display(),
            error.trim_end()
        ))
    };
    // The store would create the directory otherwise.
    fs::read_dir(path).map_err(|error| cannot(&error))?;
    let store = FilesystemStore::new(path).map_err(|error| cannot(&error))?;
    Array::open(Arc::new(store), "/").map_err(|error| cannot(&error))
}

fn one(
    array: &Array<FilesystemStore>,
    shards: &Shards<'_, FilesystemStore>,
    shard: &[u64],
    summary: bool,
) -> Result<(), Stop> {
    let key = array.chunk_key(shard);
    match shards.inspect(shard)? {
        None => println!("{key}: not stored, so every element has the fill value"),
        Some(found) if summary => println!("{key}\n{}", found.summary()),
        Some(found) => println!("{key}\n{found}"),
    }
    Ok(())
}

fn all(shards: &Shards<'_, FilesystemStore>) -> Result<(), Stop> {
    println!(
        "{:<16} {:>14} {:>18} {:>10}",
        "shard", "bytes", "subchunks stored", "unused %"
    );
    let (mut count, mut size, mut unused, mut noted) = (0_u64, 0, 0, 0_u64);
    for (shard, _) in shards.stored()? {
        let Some(found) = shards.inspect(&shard)? else {
            continue;
        };
        let indices: Vec<String> = shard.iter().map(ToString::to_string).collect();
        let pending = found.records.iter().filter(|record| record.is_pending);
        let note = match (&found.index_problem, pending.count()) {
            (None, 0) => String::new(),
            (_, 1..) => "  an update is pending: see `recover`".to_string(),
            (Some(problem), 0) => format!("  {problem}"),
        };
        println!(
            "{:<16} {:>14} {:>8} of {:>6} {:>10.1}{note}",
            indices.join(","),
            found.size,
            found.num_stored(),
            found.grid.iter().product::<usize>(),
            100.0 * found.unused_fraction()
        );
        count += 1;
        size += found.size;
        unused += found.unused();
        noted += u64::from(!note.is_empty());
    }
    println!("{count} shards, {size} bytes, {unused} of them unused; {noted} shards are not well");
    Ok(())
}
