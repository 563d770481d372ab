//! Eight processes update subchunks of the same shards, on a filesystem: how many updates are lost?
//!
//! ```text
//! cargo run --release --example lost_updates -- DIRECTORY
//! ```
//!
//! The first way is zarrs alone: to write a subchunk, it reads and writes the whole shard. The
//! second way is `SparseShardStore`, while another process packs the shards repeatedly.

mod array;
mod writers;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::SparseShardStore;

use array::{SHARDS, SUBCHUNKS};
use writers::{PROCESSES, Way, Writers};

const USAGE: &str = "\
Lets 8 processes update subchunks of the same shards, first through zarrs alone and then through
SparseShardStore, and counts the updates that are lost.

Usage: lost_updates DIRECTORY

  DIRECTORY  is made, with the arrays ordinary.zarr and sparse.zarr in it
  --help     print this

Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// The reasons to stop.
enum Stop {
    Usage(String),
    Failed(String),
}

type Result<T> = std::result::Result<T, Stop>;

fn failed<E: ToString>(doing: &str) -> impl Fn(E) -> Stop {
    move |error| Stop::Failed(format!("cannot {doing}: {}", error.to_string().trim_end()))
}

enum Job {
    Help,
    Demonstrate(PathBuf),
    /// Run as one of the writing processes.
    Write {
        process: u64,
        way: Way,
        array: PathBuf,
    },
}

fn main() -> ExitCode {
    let done = match Job::from_arguments() {
        Ok(Job::Help) => {
            println!("{USAGE}");
            Ok(())
        }
        Ok(Job::Demonstrate(directory)) => demonstrate(&directory),
        Ok(Job::Write {
            process,
            way,
            array,
        }) => writers::write(process, way, &array),
        Err(stop) => Err(stop),
    };
    let (message, code) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Stop::Usage(message)) => (format!("{message}\n\nTry --help."), 2),
        Err(Stop::Failed(message)) => (message, 1),
    };
    eprintln!("error: {message}");
    ExitCode::from(code)
}

impl Job {
    fn from_arguments() -> Result<Self> {
        use lexopt::ValueExt;
        let usage = |error: lexopt::Error| Stop::Usage(error.to_string());
        let (mut directory, mut writer) = (None, None);
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next().map_err(usage)? {
            match argument {
                lexopt::Arg::Long("help") | lexopt::Arg::Short('h') => return Ok(Self::Help),
                // This program starts itself with this argument.
                lexopt::Arg::Long("writer") => {
                    let process = parser.value().and_then(|value| value.parse());
                    let way = parser.value().and_then(|value| value.parse());
                    writer = Some((process.map_err(usage)?, way.map_err(usage)?));
                }
                lexopt::Arg::Value(path) if directory.is_none() => {
                    directory = Some(PathBuf::from(path));
                }
                other => return Err(usage(other.unexpected())),
            }
        }
        let directory =
            directory.ok_or_else(|| Stop::Usage("a DIRECTORY is needed".to_string()))?;
        Ok(match writer {
            None => Self::Demonstrate(directory),
            Some((process, way)) => Self::Write {
                process,
                way,
                array: directory,
            },
        })
    }
}

fn demonstrate(directory: &Path) -> Result<()> {
    fs::create_dir(directory).map_err(failed(&format!("make {}", directory.display())))?;
    println!(
        "{PROCESSES} processes update {SUBCHUNKS} subchunks of {SHARDS} shards, each every {PROCESSES}th of each shard"
    );
    ordinary(&directory.join("ordinary.zarr"))?;
    sparse(&directory.join("sparse.zarr"))
}

/// Runs the writers with zarrs alone.
fn ordinary(path: &Path) -> Result<()> {
    array::create(path)?;
    let mut writers = Writers::start(Way::Ordinary, path)?;
    while writers.round()? {}
    let refused = writers.finish()?;
    let array = array::open(path)?;
    let lost = array::lost(&array);
    println!(
        "zarrs alone: {lost} of {SUBCHUNKS} lost ({refused} writes found half a shard and failed)"
    );
    Ok(())
}

/// Runs the writers with the adapter, while this process packs.
fn sparse(path: &Path) -> Result<()> {
    array::create(path)?;
    let mut writers = Writers::start(Way::Sparse, path)?;
    let sparse = Arc::new(writers::sparse(path)?);
    let consolidate = |sparse: &SparseShardStore<FilesystemStore>| {
        let done = sparse.consolidate_all(&|_| {});
        done.map_err(failed("consolidate"))
    };
    let mut packed = 0;
    let done = std::thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let packer = scope.spawn(move || -> Result<usize> {
            let mut packed = 0;
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                packed += consolidate(&sparse)?.sum.subchunks;
            }
            Ok(packed)
        });
        let mut write = || -> Result<()> {
            while writers.round()? {}
            Ok(())
        };
        let done = write();
        drop(stop);
        match packer.join() {
            Ok(Ok(subchunks)) => packed = subchunks,
            Ok(Err(stop)) => return Err(stop),
            Err(_) => return Err(Stop::Failed("the thread that packs panicked".to_string())),
        }
        done
    });
    done?;
    let refused = writers.finish()?;

    let adapter = Arc::new(writers::sparse(path)?);
    let subchunks = Array::open(adapter.clone(), "/").map_err(failed("open the adapter"))?;
    let lost = array::lost(&subchunks);
    println!(
        "SparseShardStore: {lost} of {SUBCHUNKS} lost ({refused} writes failed, {packed} packed meanwhile)"
    );
    let done = consolidate(&adapter)?;
    println!("consolidated: {done}");
    let lost = array::lost(&array::open(path)?);
    println!("zarrs alone, then: {lost} of {SUBCHUNKS} lost");
    io::stdout().flush().map_err(failed("print"))
}
