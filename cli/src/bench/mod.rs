//! `zarrs-cuda bench`: measures this library against zarrs on this machine.

mod page;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::reader::ArrayReader;
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::SubchunkCodec;
use zarrs_cuda_convert::Unit;
use zarrs_cuda_convert::open;
use zarrs_cuda_convert::words::bytes_text;

use crate::arguments::{Count, Size};
use crate::common::Common;
use crate::doctor;
use crate::outcome::{Outcome, write_page};
use crate::progress::Progress;
use crate::stop;

/// Compare this library with zarrs on this machine, as a table and as an HTML page
///
/// Arrays of made-up microscopy are written and read by both in turns. Medians count.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A directory for the arrays, which are deleted afterwards [default: the one for temporaries]
    folder: Option<PathBuf>,
    /// About how large an array is
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    size: Size,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value = "3")]
    rounds: Count,
    /// Write a page with plots, which needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The remedy of an error that the directory causes.
const ROOM: &str = "name a directory with room for the arrays: zarrs-cuda bench FOLDER";
/// The chains of codecs that are measured.
const CODECS: [&str; 3] = ["none", "zstd:1", "blosc-lz4:5:shuffle"];
/// The extent of a shard along each axis, in elements. `SUBCHUNK` is that of a subchunk.
const SHARD: u64 = 256;
const SUBCHUNK: u64 = 32;

/// A kind of work with one codec, and the time that each implementation takes for it.
pub(crate) struct Case {
    work: &'static str,
    codec: &'static str,
    /// For each implementation: its name, and the median of its times, in seconds.
    by: Vec<(&'static str, f64)>,
}

impl Case {
    fn rate(seconds: f64, bytes: u64) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "rounded for people")]
        let bytes = bytes as f64;
        bytes / seconds.max(1e-9) / 1e9
    }
}

/// The machine and the settings of the measurement.
pub(crate) struct Circumstances {
    machine: String,
    threads: usize,
    bytes: u64,
    rounds: usize,
    folder: String,
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    for path in args.folder.iter().chain(&args.html) {
        open::must_be_local(path, "bench works in a directory")?;
    }
    let _listening = stop::wait_for_me();
    let parent = args.folder.clone().unwrap_or_else(std::env::temp_dir);
    must_fit(args, common)?;
    let scratch = Scratch::new(&parent)?;
    let shards = (args.size.bytes() as u64 / (2 * SHARD.pow(3))).max(1);
    let small = args.size.bytes() as u64 / 2;
    // If the array is smaller than a shard, its only shard is as large as the array.
    let shard = if small < SHARD.pow(3) {
        (small / SHARD.pow(2)).max(SUBCHUNK) / SUBCHUNK * SUBCHUNK
    } else {
        SHARD
    };
    let shape = [shards * shard, SHARD, SHARD];
    let elements = microscopy(shape.iter().product());
    let circumstances = Circumstances {
        machine: doctor::system(),
        threads: common.threads(),
        bytes: elements.len() as u64 * 2,
        rounds: args.rounds.get(),
        folder: parent.display().to_string(),
    };
    let mut cases = Vec::new();
    let progress = Progress::new(
        "measuring",
        Unit::Things("rounds"),
        (CODECS.len() * args.rounds.get()) as u64,
    );
    for codec in CODECS {
        cases.extend(measure(
            common, &scratch.0, codec, shape, shard, &elements, args, &progress,
        )?);
    }
    progress.finish();
    let text = table(&circumstances, &cases);
    let peers = peers_of_python();
    if let Some(html) = &args.html {
        write_page(html, &page::page(&circumstances, &cases))?;
    }
    let mut lines = vec![text];
    if let Some(peers) = &peers {
        lines.push(format!(
            "\nthe Python package, by `python3 -m zarrs_cuda.bench`:\n{peers}"
        ));
    }
    if let Some(html) = &args.html {
        lines.push(format!("\nplots: {}", html.display()));
    }
    let json = json!({
        "machine": circumstances.machine,
        "threads": circumstances.threads,
        "bytes": circumstances.bytes,
        "rounds": circumstances.rounds,
        "version": env!("CARGO_PKG_VERSION"),
        "commit": env!("ZARRS_CUDA_COMMIT"),
        "cases": cases.iter().map(|case| json!({
            "work": case.work, "codec": case.codec,
            "seconds": case.by.iter().map(|(who, seconds)| ((*who).to_string(), json!(seconds)))
                .collect::<serde_json::Map<String, Value>>(),
        })).collect::<Vec<_>>(),
        "python": peers,
        "html": args.html,
    });
    Ok(Outcome::new(lines.join("\n"), json))
}

/// Checks that the budget fits the buffers: the elements, the elements that are read again, first as bytes;
/// and for each thread a decoded shard, a copy of it, and an encoded one.
fn must_fit(args: &Args, common: &Common) -> Result<(), Failure> {
    let of_threads = (3 * 2 * SHARD.pow(3)).saturating_mul(common.threads() as u64);
    let size = args.size.bytes() as u64;
    let (budget, shards) = (common.budget(), of_threads.min(size.saturating_mul(3)));
    let needed = size.saturating_mul(3).saturating_add(shards);
    if needed <= budget.bytes() {
        return Ok(());
    }
    let or = format!(", or --size {}B", (budget.bytes() / 6).max(1));
    let doing = format!("measure arrays of {}", bytes_text(size));
    Err(budget.refusal(doing, needed, &or))
}

/// Returns elements like those of a microscope: a dark, noisy background with a few bright spots.
fn microscopy(len: u64) -> Vec<u16> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..len)
        .map(|at| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let noise = (state >> 60) as u16;
            let spot = if at / 64 % 23 == 0 { 900 } else { 100 };
            spot + noise
        })
        .collect()
}

#[allow(clippy::too_many_arguments, reason = "the parts of one measurement")]
fn measure(
    common: &Common,
    folder: &Path,
    codec: &'static str,
    shape: [u64; 3],
    shard: u64,
    elements: &[u16],
    args: &Args,
    progress: &Progress,
) -> Result<[Case; 2], Failure> {
    let doing = format!("measure {codec}");
    let chain: SubchunkCodec = codec.parse().map_err(Failure::to::<String>(&doing))?;
    let subchunk = std::num::NonZeroU64::new(SUBCHUNK)
        .into_iter()
        .cycle()
        .take(3)
        .collect();
    let sharding = CudaShardingCodecBuilder::new(subchunk, &data_type::uint16())
        .bytes_to_bytes_codecs(chain.for_elements(&data_type::uint16())?)
        .build_arc()
        .map_err(Failure::to(&doing))?;
    let metadata = ArrayBuilder::new(
        shape.to_vec(),
        vec![shard, SHARD, SHARD],
        data_type::uint16(),
        0_u16,
    )
    .array_to_bytes_codec(sharding)
    .build_metadata()
    .map_err(Failure::to(&doing))?;
    let mut times: [Vec<(&'static str, Vec<f64>)>; 2] = [
        vec![("ours", Vec::new()), ("zarrs", Vec::new())],
        vec![
            ("ours, ArrayReader", Vec::new()),
            ("ours, through zarrs", Vec::new()),
            ("zarrs", Vec::new()),
        ],
    ];
    for round in 0..args.rounds.get() {
        // The implementation that begins a round finds the machine in another state: so each begins in turn.
        let begins = round % 2 == 0;
        for is_ours in [begins, !begins] {
            if stop::is_asked() {
                return Err(Failure::interrupted("measuring stopped")
                    .with_remedy("its files are deleted: run it again"));
            }
            let registration = is_ours
                .then(|| zarrs_cuda::register(common.options()))
                .transpose()?;
            let path = folder.join("array");
            let _ = fs::remove_dir_all(&path);
            let store = FilesystemStore::new(&path).map_err(Failure::to(&doing))?;
            let store = Arc::new(store);
            let array = Array::new_with_metadata(store.clone(), "/", metadata.clone().into());
            let array = array.map_err(Failure::to(&doing))?;
            array.store_metadata().map_err(Failure::to(&doing))?;
            let all = array.subset_all();
            let (written, seconds) = timed(|| array.store_array_subset(&all, elements));
            written.map_err(Failure::to(&doing))?;
            times[0][usize::from(!is_ours)].1.push(seconds);
            let (read, seconds) = timed(|| array.retrieve_array_subset::<Vec<u16>>(&all));
            if read.map_err(Failure::to(&doing))? != elements {
                return Err(Failure::not_well(format!(
                    "{codec}: what was read is not what was written"
                ))
                .with_remedy("please report this"));
            }
            times[1][if is_ours { 1 } else { 2 }].1.push(seconds);
            if is_ours {
                let reader = ArrayReader::builder(&array).on_filesystem(&store).build();
                let reader = reader.map_err(Failure::to(&doing))?;
                let region: Vec<_> = shape.iter().map(|extent| 0..*extent).collect();
                let (read, seconds) = timed(|| reader.read::<u16>(&region));
                read.map_err(Failure::to(&doing))?;
                times[1][0].1.push(seconds);
            }
            drop(registration);
        }
        progress.add(1);
    }
    let medians = |times: &[(&'static str, Vec<f64>)]| {
        times
            .iter()
            .map(|(who, seconds)| (*who, median(seconds)))
            .collect()
    };
    Ok([
        Case {
            work: "write an array to files",
            codec,
            by: medians(&times[0]),
        },
        Case {
            work: "read an array from files",
            codec,
            by: medians(&times[1]),
        },
    ])
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}

fn median(seconds: &[f64]) -> f64 {
    let mut seconds = seconds.to_vec();
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or_default()
}

fn table(circumstances: &Circumstances, cases: &[Case]) -> String {
    let mut lines = vec![
        circumstances.machine.clone(),
        format!(
            "{} threads, {} in {}, median of {}; zarrs-cuda {} ({})",
            circumstances.threads,
            bytes_text(circumstances.bytes),
            circumstances.folder,
            circumstances.rounds,
            env!("CARGO_PKG_VERSION"),
            env!("ZARRS_CUDA_COMMIT"),
        ),
        format!(
            "\n{:<26} {:<20} {:<20} {:>8}",
            "work", "codec", "by", "GB/s"
        ),
    ];
    for case in cases {
        for (who, seconds) in &case.by {
            lines.push(format!(
                "{:<26} {:<20} {who:<20} {:>8.2}",
                case.work,
                case.codec,
                Case::rate(*seconds, circumstances.bytes)
            ));
        }
    }
    lines.join("\n")
}

/// Returns the table of the Python package's benchmark; `None` if the package is not installed.
fn peers_of_python() -> Option<String> {
    let is_there = Command::new("python3")
        .args(["-c", "import zarrs_cuda.bench"])
        .output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let output = Command::new("python3")
        .args(["-m", "zarrs_cuda.bench"])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_string();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// A folder that is deleted when this value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path) -> Result<Self, Failure> {
        let folder = parent.join(format!("zarrs-cuda-bench-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| {
            Failure::failed(format!("cannot make {}: {error}", folder.display())).with_remedy(ROOM)
        })?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
