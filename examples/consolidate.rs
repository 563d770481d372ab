//! Packs subchunks that were written through `SparseShardStore` into the shards of an array on disk.
//!
//! ```text
//! cargo run --release --example consolidate -- ARRAY [--pending]
//! ```

use std::fmt;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::{ConsolidationProgress, SparseShardStore};

const USAGE: &str = "\
Packs the subchunks that were written one by one into the shards of an array on disk, so that any
Zarr reader finds them. Others may read meanwhile, and write subchunks through SparseShardStore; nobody
else may consolidate, or write whole shards. If it is stopped, at whichever moment, nothing is lost: run
it again.

Usage: consolidate ARRAY [--pending]

  ARRAY      the directory of a Zarr array with the codec sharding_indexed
  --pending  only print which shards there are to pack
  --help     print this

Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// The reasons to stop.
enum Stop {
    Usage(String),
    Failed(String),
}

impl Stop {
    fn failed(error: impl fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The command line.
struct Job {
    array: PathBuf,
    only_pending: bool,
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
    let sparse = open(&job.array)?;
    if job.only_pending {
        let pending = sparse.pending().map_err(Stop::failed)?;
        for shard in &pending {
            let indices: Vec<String> = shard.iter().map(ToString::to_string).collect();
            println!("{}", indices.join(","));
        }
        eprintln!("{} shards to pack", pending.len());
        return Ok(());
    }
    let start = Instant::now();
    let line = Line::new();
    let done = sparse.consolidate_all(&|progress| line.show(progress));
    line.clear();
    let done = done.map_err(Stop::failed)?;
    println!("{done}, in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

impl Job {
    /// Returns `None` if help is requested.
    fn from_arguments() -> Result<Option<Self>, Stop> {
        let usage = |error: lexopt::Error| Stop::Usage(error.to_string());
        let (mut array, mut only_pending) = (None, false);
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next().map_err(usage)? {
            match argument {
                lexopt::Arg::Long("help") | lexopt::Arg::Short('h') => return Ok(None),
                lexopt::Arg::Long("pending") => only_pending = true,
                lexopt::Arg::Value(path) if array.is_none() => array = Some(PathBuf::from(path)),
                other => return Err(usage(other.unexpected())),
            }
        }
        let array = array.ok_or_else(|| Stop::Usage("an ARRAY is needed".to_string()))?;
        Ok(Some(Self {
            array,
            only_pending,
        }))
    }
}

fn open(path: &Path) -> Result<SparseShardStore<FilesystemStore>, Stop> {
    let cannot =
        |error: &dyn fmt::Display| Stop::Failed(format!("cannot open {}: {error}", path.display()));
    // The store would create the directory otherwise.
    fs::read_dir(path).map_err(|error| cannot(&error))?;
    let store = Arc::new(FilesystemStore::new(path).map_err(|error| cannot(&error))?);
    SparseShardStore::on_filesystem(store, "/").map_err(|error| cannot(&error))
}

/// A line that is rewritten, on a terminal only.
struct Line {
    is_shown: bool,
}

impl Line {
    fn new() -> Self {
        Self {
            is_shown: io::stderr().is_terminal(),
        }
    }

    fn show(&self, progress: &ConsolidationProgress) {
        if self.is_shown {
            // Errors of the terminal are ignored.
            let _ = write!(io::stderr(), "\r\x1b[K{progress}");
        }
    }

    fn clear(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
