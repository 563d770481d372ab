//! `ArrayWriter`, tensorstore and zarr-python write the same array in turns, to memory and to
//! files.
//!
//! `cargo bench --package zarrs_cuda_benches --bench peers [-- [--quick] [--in=FOLDER] FILTER…]`
//! prints a table, checks the goals, and writes `target/bench/peers.json`. A filter is a part of a
//! name like `none/32/memory`. `--quick` writes 512 MiB in one round, as a test of the benchmark,
//! and the file is `peers-quick.json`. The environment variable `ZARRS_CUDA_BENCH_MIB` changes the
//! size of the array, which is 1 GiB. The first run installs the peers in `target/peers`. That
//! needs Python 3.11, its `venv` and `PyPI`.
//!
//! The array is uint16: frames of 1024 × 1024 in shards of 256³, with one `zarr.json` for all
//! contenders. Each has the elements in memory before the clock starts: ours as frames that are
//! appended one by one, the peers as one `NumPy` array. Starting Python and creating the array are
//! not measured. Before each clock starts, as much memory as will be needed is touched and freed
//! (`warm.rs`). The peers have freed the memory of the previous array by then (`malloc_trim`).
//! Rates count uncompressed bytes. Each is the median of the rounds, after one that does not count.
//!
//! - `ours`: from before the writer is built to the end of `finish`.
//! - `tensorstore`: from the first write until the last is committed, the better of two ways: one
//!   write for each layer of shards (`epochs`), or one write for the array (`whole`).
//! - `zarr-python`: one layer of shards after the other.
//!
//! `…_cpu_s` is the CPU time of all threads in user and kernel mode.
//!
//! In memory, each contender's store keeps the encoded shards without copying them (`keeping.rs`).
//! Files are in a temporary folder in `target/tmp` or FOLDER. Ours and tensorstore sync each file
//! and rename it; zarr-python does not sync. In the round that does not count, each array is read
//! again and compared. zarrs reads the files.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "made-up data, and rates for people"
)]

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;
use zarrs_cuda_benches::arguments::Arguments;
use zarrs_cuda_benches::frames::Frames;
use zarrs_cuda_benches::goals::Goals;
use zarrs_cuda_benches::{Result, chains, median, python, results, warm};

mod contender;
mod worker;

use contender::{Case, Contender};
use worker::{Way, Worker};

const CHAINS: [&str; 3] = ["none", "zstd-1", "blosc-lz4"];
const SUBCHUNKS: [u64; 2] = [32, 64];
const SINKS: [&str; 2] = ["memory", "files"];
const ROUNDS: usize = 5;
/// `target/tmp`.
const TMP: &str = env!("CARGO_TARGET_TMPDIR");

fn main() -> Result<()> {
    let arguments = Arguments::of_process();
    let (quick, folder) = (arguments.quick(), arguments.folder(TMP));
    let interpreter = python::python(TMP)?;
    let frames = Frames::new(if quick { 512 } else { 1024 })?;
    let shards = frames.shards();
    let scratch = TempDir::new_in(python::root(TMP)?)?;
    let data = scratch.path().join("data.raw");
    write_elements(&data, &frames)?;
    let mut contenders = [
        Contender::Ours,
        Contender::Peer(
            Worker::start(&interpreter, "tensor_store.py", &data)?,
            &[Way::Epochs, Way::Whole],
        ),
        Contender::Peer(
            Worker::start(&interpreter, "zarr_python.py", &data)?,
            &[Way::Epochs],
        ),
    ];

    println!(
        "{:10} {:>8} {:7} {:>9} {:>11} {:>8} {:>11} {:>9} {:>9}",
        "chain",
        "subchunk",
        "sink",
        "ours GB/s",
        "tensorstore",
        "way",
        "zarr-python",
        "x tensor.",
        "x zarr-p."
    );
    let mut rows = Vec::new();
    let mut goals = Goals::default();
    for chain in CHAINS {
        let codecs = chains::codecs(chain)?;
        for (subchunk, sink) in SUBCHUNKS
            .into_iter()
            .flat_map(|subchunk| SINKS.map(|sink| (subchunk, sink)))
            .filter(|(subchunk, sink)| arguments.wants(&format!("{chain}/{subchunk}/{sink}")))
        {
            let case = Case {
                frames: &frames,
                shards: &shards,
                configuration: chains::configuration(&codecs, subchunk)?,
                folder: (sink == "files").then_some(&*folder),
            };
            let rounds = if quick { 1 } else { ROUNDS };
            let measured = race(&case, &mut contenders, rounds)?;
            let [ours, tensorstore, zarr_python] =
                measured.map(|best| frames.bytes() as f64 / 1e9 / best.seconds);
            let [ours_cpu, tensorstore_cpu, zarr_python_cpu] =
                measured.map(|best| best.cpu_seconds);
            let way = measured[1].way.unwrap_or("-");
            let (ratio, of_zarr_python) = (ours / tensorstore, ours / zarr_python);
            println!(
                "{chain:10} {subchunk:8} {sink:7} {ours:9.2} {tensorstore:11.2} {way:>8} \
                 {zarr_python:11.2} {ratio:9.2} {of_zarr_python:9.2}"
            );
            let what = format!("{chain}/{subchunk}/{sink}, rate over tensorstore's");
            goals.at_least(&what, ratio, 1.0);
            rows.push(json!({
                "chain": chain, "subchunk": subchunk, "sink": sink,
                "ours_gbps": ours,
                "tensorstore_gbps": tensorstore, "tensorstore_way": way,
                "zarr_python_gbps": zarr_python,
                "ratio": ratio, "ratio_zarr_python": of_zarr_python,
                "ours_cpu_s": ours_cpu, "tensorstore_cpu_s": tensorstore_cpu,
                "zarr_python_cpu_s": zarr_python_cpu,
                "bytes": frames.bytes(), "rounds": rounds,
            }));
        }
    }
    drop(contenders);
    goals.print("the writer among its peers");
    let name = if quick {
        "peers-quick.json"
    } else {
        "peers.json"
    };
    println!(
        "\nwritten to {}",
        results::write(TMP, name, &rows)?.display()
    );
    Ok(())
}

/// Writes the elements of the array to a file for the peers.
fn write_elements(path: &Path, frames: &Frames) -> Result<()> {
    let mut file = File::create(path)?;
    for frame in frames.iter() {
        file.write_all(frame)?;
    }
    // Syncs now, so that the disk is idle during the measurements.
    Ok(file.sync_all()?)
}

/// The medians of one way to write.
#[derive(Clone, Copy)]
struct Best {
    seconds: f64,
    cpu_seconds: Option<f64>,
    way: Option<&'static str>,
}

/// Measures each contender by the better of its ways. They take turns.
fn race<const N: usize>(
    case: &Case<'_>,
    contenders: &mut [Contender; N],
    rounds: usize,
) -> Result<[Best; N]> {
    let mut costs = contenders
        .each_ref()
        .map(|contender| vec![Vec::new(); contender.ways()]);
    for round in 0..=rounds {
        for turn in 0..N {
            let who = (round + turn) % N;
            for (way, costs) in costs[who].iter_mut().enumerate() {
                warm::warm(case.frames.bytes())?;
                let cost = contenders[who].write(case, way, round == 0)?;
                if round > 0 {
                    costs.push(cost);
                }
            }
        }
    }
    let mut best = [Best {
        seconds: f64::INFINITY,
        cpu_seconds: None,
        way: None,
    }; N];
    for ((best, costs), contender) in best.iter_mut().zip(costs).zip(contenders) {
        for (way, costs) in costs.iter().enumerate() {
            let seconds = median(costs.iter().map(|cost| cost.seconds));
            if let Some(seconds) = seconds.filter(|&seconds| seconds < best.seconds) {
                *best = Best {
                    seconds,
                    cpu_seconds: median(costs.iter().filter_map(|cost| cost.cpu_seconds)),
                    way: contender.way(way),
                };
            }
        }
    }
    Ok(best)
}
