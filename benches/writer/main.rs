//! A stream of frames through `ArrayWriter`, compared with zarrs' own codec and with plain writes.
//! They take turns in one process.
//!
//! `cargo bench --package zarrs_cuda_benches --bench writer [-- [--quick] [--without-peers]
//! [--in=FOLDER] [--backend=BACKEND] FILTER…]` prints tables, checks the goals, and writes
//! `target/bench/writer.json`. A filter is a part of a name like `none/32/discarding` or
//! `levels/222/none/discarding`. The backend is `host` (the default), `cuda` or `auto`. `--quick`
//! writes 512 MiB in one round, as a test of the benchmark, and the file is `writer-quick.json`.
//! The environment variable `ZARRS_CUDA_BENCH_MIB` changes the length of the stream, which is 2
//! GiB.
//!
//! The array is uint16: frames of 1024 × 1024, in shards of 256³. 512 MiB of frames are generated
//! before the clock starts, and written repeatedly. Before each clock starts, as much memory as
//! will be needed is touched and freed (`warm.rs`). Rates count uncompressed bytes. Each is the
//! median of the rounds, after one that does not count.
//!
//! - `ours`: appended frame by frame. The clock starts before the writer is built, and stops when
//!   `finish` returns.
//! - `zarrs`: `store_array_subset` shard by shard, with a prepared box of elements. The time to
//!   collect the frames of a shard is not counted.
//! - `plain`: the bytes of our files, written to as many files by `write_all` and `sync_all`, one
//!   file after the other.
//!
//! The second table is of images with all levels (`pyramid.rs`): `MultiscaleWriter` with the mean of
//! windows of 2 × 2 × 2 or 1 × 2 × 2, in subchunks of 64³, compared with level 0 alone through
//! `ArrayWriter`, with acquire-zarr's own levels, and with tensorstore's `downsample`. The peers write
//! files from Python; they are installed into `target/peers`, unless `--without-peers` leaves them out.
//!
//! `cpu s` and the `zarrs` beside it are the CPU seconds of ours and of zarrs, of all threads in
//! user and kernel mode. `waited` is how long our appends waited. `encoding` and `storing` are the
//! times of our threads for these tasks. The last three are from the last round.
//!
//! There are two sinks. `discarding` is a store that drops each value in its `set`
//! (`benches/src/discarding.rs`). `filesystem` is zarrs' `FilesystemStore`, which syncs every file, in a
//! temporary folder in `target/tmp` or FOLDER; our writer uses `with_atomic_rename` there. In the
//! round that does not count, zarrs must read our files.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "made-up data, and rates for people"
)]

use std::path::PathBuf;

use serde_json::Value;
use zarrs_cuda::Backend;
use zarrs_cuda_benches::arguments::Arguments;
use zarrs_cuda_benches::frames::Frames;
use zarrs_cuda_benches::goals::Goals;
use zarrs_cuda_benches::{Result, chains, results, warm};

mod contender;
mod pyramid;
mod report;

use contender::{Case, Sink};
use report::Measured;

const CHAINS: [&str; 3] = ["none", "zstd-1", "blosc-lz4"];
const SUBCHUNKS: [u64; 2] = [32, 64];
const ROUNDS: usize = 5;
/// `target/tmp`.
const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// What is measured, and where.
struct Run {
    quick: bool,
    /// Without peers.
    alone: bool,
    backend: Backend,
    /// The folder for files.
    folder: PathBuf,
    arguments: Arguments,
}

impl Run {
    fn of_process() -> Result<Self> {
        let arguments = Arguments::of_process();
        Ok(Self {
            quick: arguments.quick(),
            alone: arguments.has("--without-peers"),
            backend: match arguments.value("--backend=") {
                None | Some("host") => Backend::Host,
                Some("cuda") => Backend::Cuda,
                Some("auto") => Backend::Auto,
                Some(other) => return Err(format!("there is no backend {other}").into()),
            },
            folder: arguments.folder(TMP),
            arguments,
        })
    }

    fn wants(&self, case: &str) -> bool {
        self.arguments.wants(case)
    }
}

fn main() -> Result<()> {
    let run = Run::of_process()?;
    let frames = Frames::new(if run.quick { 512 } else { 2048 })?;
    let shards = frames.shards();
    report::print_head();
    let mut rows = Vec::new();
    let mut goals = Goals::default();
    for chain in CHAINS {
        let codecs = chains::codecs(chain)?;
        for (subchunk, sink) in SUBCHUNKS
            .into_iter()
            .flat_map(|subchunk| Sink::ALL.map(|sink| (subchunk, sink)))
            .filter(|(subchunk, sink)| run.wants(&format!("{chain}/{subchunk}/{}", sink.name())))
        {
            let case = Case {
                frames: &frames,
                shards: &shards,
                chain,
                codecs: &codecs,
                subchunk,
                sink,
                backend: run.backend,
                folder: &run.folder,
            };
            rows.extend(race(&case, if run.quick { 1 } else { ROUNDS }, &mut goals)?);
        }
    }
    rows.extend(pyramids(&run, &frames, &mut goals)?);
    goals.print("the writer");
    let name = if run.quick {
        "writer-quick.json"
    } else {
        "writer.json"
    };
    println!(
        "\nwritten to {}",
        results::write(TMP, name, &rows)?.display()
    );
    Ok(())
}

/// The rows of images with all levels.
fn pyramids(run: &Run, frames: &Frames, goals: &mut Goals) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    let mut peers = None;
    for factors in pyramid::FACTORS {
        for (chain, sink) in CHAINS
            .into_iter()
            .flat_map(|chain| Sink::ALL.map(|sink| (chain, sink)))
            .filter(|(chain, sink)| {
                run.wants(&format!("levels/{}/{chain}/{}", factors.0, sink.name()))
            })
        {
            if rows.is_empty() {
                pyramid::print_head();
            }
            if sink == Sink::Filesystem && peers.is_none() && !run.alone {
                peers = Some(pyramid::Peers::start(frames, &run.folder)?);
            }
            let case = pyramid::Case {
                frames,
                factors,
                chain,
                codecs: &chains::codecs(chain)?,
                sink,
                backend: run.backend,
                folder: &run.folder,
            };
            let rounds = if run.quick { 1 } else { ROUNDS };
            rows.extend(pyramid::run(&case, peers.as_mut(), rounds, goals)?);
        }
    }
    Ok(rows)
}

/// Runs all contenders in turns. The times of the first round do not count.
fn race(case: &Case<'_>, rounds: usize, goals: &mut Goals) -> Result<Option<Value>> {
    let mut files = Vec::new();
    let (_, mut report) = case.ours(|folder| {
        files = case.verify(folder)?;
        Ok(())
    })?;
    case.zarrs()?;
    let mut measured = Measured::default();
    for round in 0..rounds {
        // Each contender is first equally often.
        for turn in 0..case.contenders() {
            warm::warm(case.frames.bytes())?;
            match (round + turn) % case.contenders() {
                0 => {
                    let (cost, last) = case.ours(|_| Ok(()))?;
                    measured.ours.push(cost);
                    report = last;
                }
                1 => measured.zarrs.push(case.zarrs()?),
                _ => measured.plain.push(case.plain(&files)?),
            }
        }
    }
    Ok(report::row(case, &measured, &report, goals))
}
