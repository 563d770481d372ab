//! The calls that applications make: with this crate, with zarrs alone, and with other
//! implementations of Zarr, in turns.
//!
//! `cargo bench --package zarrs_cuda_benches --bench array [-- [--in=FOLDER] [--rounds=N] [--alone]
//! [--sync] [--all] [--list] FILTER…]` prints a table, checks the goals, and writes `target/bench/array.json`. The
//! 40 rows of reading in `named.rs` and the 20 rows of writing in `writing.rs` are the default, and take five
//! minutes; the names of the latter begin with `write`. `--sync` measures the writing of whole arrays to a disk,
//! and everybody syncs (`target/bench/array-sync.json`). With `--all`, a
//! filter is parts of a name like `read_into/whole/zstd-1/32/32/files`, with commas between them,
//! all of which must occur: call, case, chain, extent of a subchunk, shard (its size in MiB, or
//! `thin`), sink. All of these rows take hours. `--alone` leaves the
//! peers out, `--list` prints the names. The first run installs the peers in `target/peers`, which
//! needs Python 3.11 or newer, its `venv` and `PyPI`.
//!
//! The array is uint16, 512³, similar to microscopy. `files` are in a temporary folder in FOLDER, or
//! in memory (`/dev/shm`) where there is such a folder, so that no disk hides the difference;
//! `keeping` is a store in memory that keeps values without a copy (the peers use their own);
//! `memory` is zarrs' `MemoryStore`, which copies them.
//!
//! | column | meaning |
//! |---|---|
//! | `ours` | the call with this crate's codec, or of this crate's reader |
//! | `zarrs` | the same call with zarrs' own codec; for `read` and `read_into` zarrs' call of the same kind |
//! | `tensorstore`, `zarr-python` | their call of the same kind. Several boxes are one batch for tensorstore |
//! | `limit` | whole array: the bytes of each shard read into a warm buffer, the compressor's calls, one contiguous copy (`limit.rs`) |
//!
//! Rates count uncompressed bytes, and are medians of the rounds, after one that does not count. In
//! that round the elements are compared. Before each clock starts, as much memory as will be needed is
//! touched and freed (`warm.rs`).

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "made-up data, and rates for people"
)]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs_cuda_benches::arguments::Arguments;
use zarrs_cuda_benches::goals::Goals;
use zarrs_cuda_benches::microscopy::Microscopy;
use zarrs_cuda_benches::{Result, chains, median, python, results, warm};

mod cases;
mod contender;
mod limit;
mod named;
mod peers;
mod ratios;
mod writing;
mod written;

use cases::{Case, EDGE, cases};
use contender::{Call, Codec, Stored};
use peers::Peer;

const CHAINS: [&str; 5] = ["none", "crc32c", "zstd-1", "gzip-1", "blosc-lz4"];
const SUBCHUNKS: [u64; 2] = [32, 64];
/// Shards, by their sizes in MiB. `thin` has 32 MiB, and one subchunk of 64³ along the last axis.
const SHARDS: [(&str, [u64; 3]); 4] = [
    ("8", [128, 128, 256]),
    ("32", [256; 3]),
    ("128", [256, 512, 512]),
    ("thin", [512, 512, 64]),
];
const SINKS: [&str; 3] = ["files", "keeping", "memory"];
/// `target/tmp`.
const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// Ours, zarrs, tensorstore, zarr-python, and the limit.
const CONTENDERS: usize = 5;

/// What is measured, and where.
struct Run {
    /// The folder for files.
    folder: PathBuf,
    rounds: Option<usize>,
    alone: bool,
    list: bool,
    arguments: Arguments,
}

impl Run {
    fn of_process() -> Result<Self> {
        let arguments = Arguments::of_process();
        let shared = "/dev/shm";
        // Where nothing is on a disk, a sync costs nothing.
        let on_disk = arguments.has("--sync");
        let default = if !on_disk && Path::new(shared).is_dir() {
            shared
        } else {
            TMP
        };
        Ok(Self {
            folder: arguments.folder(default),
            rounds: arguments.value("--rounds=").map(str::parse).transpose()?,
            alone: arguments.has("--alone"),
            list: arguments.has("--list"),
            arguments,
        })
    }

    /// The rounds of a row, except for the named rows.
    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(5)
    }

    /// Whether all parts of a filter occur in `name`.
    fn wants(&self, name: &str) -> bool {
        let matches = |filter: &str| filter.split(',').all(|part| name.contains(part));
        self.arguments.wants_by(matches)
    }
}

/// The parameters of a measured array.
#[derive(Clone, Copy)]
struct Layout {
    chain: &'static str,
    subchunk: u64,
    /// The shard's name, and its shape.
    shard: (&'static str, [u64; 3]),
    sink: &'static str,
}

impl Layout {
    fn all() -> impl Iterator<Item = Self> {
        CHAINS.into_iter().flat_map(|chain| {
            SUBCHUNKS.into_iter().flat_map(move |subchunk| {
                SHARDS.into_iter().flat_map(move |shard| {
                    SINKS.map(move |sink| Self {
                        chain,
                        subchunk,
                        shard,
                        sink,
                    })
                })
            })
        })
    }

    fn name(&self, call: Call, case: &Case) -> String {
        let Self {
            chain,
            subchunk,
            shard: (shard, _),
            sink,
        } = self;
        format!(
            "{}/{}/{chain}/{subchunk}/{shard}/{sink}",
            call.name(),
            case.name,
        )
    }
}

fn main() -> Result<()> {
    let run = Run::of_process()?;
    if !run.arguments.has("--all") && !run.list {
        return named_rows(&run);
    }
    let cases = cases();
    let rows_of = |layout: &Layout| {
        let wanted =
            |call: &Call, case: &Case| call.is_for(case) && run.wants(&layout.name(*call, case));
        let mut rows = Vec::new();
        for case in &cases {
            rows.extend(
                Call::ALL
                    .into_iter()
                    .filter(|c| wanted(c, case))
                    .map(|c| (c, case)),
            );
        }
        rows
    };
    if run.list {
        for layout in Layout::all() {
            for (call, case) in rows_of(&layout) {
                println!("{}", layout.name(call, case));
            }
        }
        return Ok(());
    }
    let mut bench = Bench::new(&run)?;
    println!(
        "{:33} {:7} {:9} {:>3} {:>5} {:8} {:>6} {:>6} {:>11} {:>11} {:>6} {:>7} {:>9}",
        "call",
        "case",
        "chain",
        "sub",
        "shard",
        "sink",
        "ours",
        "zarrs",
        "tensorstore",
        "zarr-python",
        "limit",
        "x zarrs",
        "x tensor."
    );
    for layout in Layout::all() {
        let rows = rows_of(&layout);
        if !rows.is_empty() {
            bench.measure(&layout, &rows)?;
        }
    }
    bench.goals.print("the calls of applications");
    let path = results::write(TMP, "array.json", &bench.rows)?;
    println!("\nwritten to {}", path.display());
    Ok(())
}

/// Measures the rows of `named.rs` and of `writing.rs`.
fn named_rows(run: &Run) -> Result<()> {
    let Bench {
        elements,
        mut peers,
        _scratch,
        ..
    } = Bench::new(run)?;
    let sync = run.arguments.has("--sync");
    let wants = |name: &str| run.wants(name);
    let mut rows = Vec::new();
    if !sync {
        rows = named::measure(&elements, &mut peers, &run.folder, run.rounds, &wants)?;
    }
    let writing = writing::Run {
        elements: &elements,
        peers: &mut peers,
        folder: &run.folder,
        rounds: run.rounds,
        wants: &wants,
    };
    rows.extend(writing.measure(sync)?);
    if rows.is_empty() {
        return Err("no named row has all parts of a filter: `--all` has other names".into());
    }
    let name = if sync {
        "array-sync.json"
    } else {
        "array.json"
    };
    let path = results::write(TMP, name, &rows)?;
    println!("\nwritten to {}", path.display());
    Ok(())
}

struct Bench<'a> {
    run: &'a Run,
    elements: Vec<u16>,
    /// Memory for the elements that was written before.
    warm: Vec<u16>,
    peers: Vec<Peer>,
    rows: Vec<Value>,
    goals: Goals,
    /// Deleted at the end.
    _scratch: TempDir,
}

impl<'a> Bench<'a> {
    fn new(run: &'a Run) -> Result<Self> {
        let data = Microscopy::new().volume([0; 3], [EDGE; 3], 5);
        let scratch = TempDir::new_in(TMP)?;
        let path = scratch.path().join("data.raw");
        let mut peers = Vec::new();
        if !run.alone {
            std::fs::write(&path, &data)?;
            let python = python::python(TMP)?;
            for script in ["tensor_store.py", "zarr_python.py"] {
                peers.push(Peer::start(&python, script, &path)?);
            }
        }
        let elements: Vec<u16> = data
            .chunks_exact(2)
            .map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
            .collect();
        Ok(Self {
            run,
            warm: vec![1; elements.len()],
            elements,
            peers,
            rows: Vec::new(),
            goals: Goals::default(),
            _scratch: scratch,
        })
    }

    /// Measures `rows` of the array `layout`.
    fn measure(&mut self, layout: &Layout, rows: &[(Call, &Case)]) -> Result<()> {
        let configuration = chains::configuration(&chains::codecs(layout.chain)?, layout.subchunk)?;
        let new = |codec, folder: &PathBuf| {
            Stored::new(layout.sink, folder, layout.shard.1, &configuration, codec)
        };
        // Stored once even if storing is not measured: what is read was written.
        let rounds = match rows.first() {
            Some((Call::Store, _)) => self.run.rounds(),
            _ => 0,
        };
        let bytes = self.elements.len() as u64 * 2;
        let mut seconds = [const { Vec::new() }; CONTENDERS];
        let mut stored = Vec::new();
        for round in 0..=rounds {
            // Those of the round before are deleted first.
            stored.clear();
            for (codec, seconds) in [Codec::Ours, Codec::Zarrs].into_iter().zip(&mut seconds) {
                let array = new(codec, &self.run.folder)?;
                warm::warm(bytes)?;
                let cost = array.store(&self.elements)?;
                if round > 0 {
                    seconds.push(cost);
                }
                stored.push(array);
            }
            let metadata = stored[0].metadata()?;
            for (peer, seconds) in self.peers.iter_mut().zip(&mut seconds[2..]) {
                let files = (layout.sink == "files").then_some(&self.run.folder);
                peer.open(&metadata, files, true)?;
                warm::warm(bytes)?;
                let cost = peer.store()?;
                if round > 0 {
                    seconds.push(cost);
                }
            }
        }
        for (call, case) in rows {
            if *call != Call::Store {
                seconds = self.read(layout, *call, case, &stored)?;
            }
            self.report(layout, *call, case, std::mem::take(&mut seconds));
        }
        Ok(())
    }

    /// Measures a call that reads.
    fn read(
        &mut self,
        layout: &Layout,
        call: Call,
        case: &Case,
        stored: &[Stored],
    ) -> Result<[Vec<f64>; CONTENDERS]> {
        let mut seconds = [const { Vec::new() }; CONTENDERS];
        let bytes = case.num_elements() * 2;
        // Peers read several boxes into new memory: tensorstore has a batch for that alone.
        let into = call.output() == Some("warm") && call != Call::ReadBoxes;
        let mut expected = None;
        for round in 0..=self.run.rounds() {
            for turn in 0..CONTENDERS {
                let who = (round + turn) % CONTENDERS;
                warm::warm(self.elements.len() as u64 * 2)?;
                let warm = &mut self.warm[..bytes as usize / 2];
                let (cost, crc) = match who {
                    0 | 1 => {
                        let (cost, read) = stored[who].read(case, call, warm)?;
                        let crc = (round == 0).then(|| crc32(&read));
                        (Some(cost), crc)
                    }
                    2 | 3 => match self.peers.get_mut(who - 2) {
                        Some(peer) => match peer.read(case, into, round == 0)? {
                            Some((cost, crc)) => (Some(cost), crc),
                            None => (None, None),
                        },
                        None => (None, None),
                    },
                    _ if case.name == "whole" => {
                        let warm = bytemuck::cast_slice_mut(warm);
                        let cost = stored[0].limit(layout, warm)?;
                        (Some(cost), None)
                    }
                    _ => (None, None),
                };
                if let Some(crc) = crc
                    && *expected.get_or_insert(crc) != crc
                {
                    let name = layout.name(call, case);
                    return Err(format!("{name}: contender {who} reads other elements").into());
                }
                if round > 0 {
                    seconds[who].extend(cost);
                }
            }
        }
        Ok(seconds)
    }

    fn report(
        &mut self,
        layout: &Layout,
        call: Call,
        case: &Case,
        seconds: [Vec<f64>; CONTENDERS],
    ) {
        let gigabytes = case.num_elements() as f64 * 2.0 / 1e9;
        let rates = seconds.map(|seconds| median(seconds).map(|seconds| gigabytes / seconds));
        let [ours, zarrs, tensorstore, zarr_python, limit] = rates;
        let ratio = |other: Option<f64>| Some(ours? / other?);
        let show = |rate: Option<f64>| rate.map_or("-".to_string(), |rate| format!("{rate:.2}"));
        let Layout {
            chain,
            subchunk,
            shard: (shard, shape),
            sink,
        } = layout;
        println!(
            "{:33} {:7} {chain:9} {subchunk:3} {shard:>5} {sink:8} {:>6} {:>6} {:>11} {:>11} {:>6} {:>7} {:>9}",
            call.name(),
            case.name,
            show(ours),
            show(zarrs),
            show(tensorstore),
            show(zarr_python),
            show(limit),
            show(ratio(zarrs)),
            show(ratio(tensorstore)),
        );
        self.rows.push(json!({
            "call": call.name(), "case": case.name, "chain": chain, "subchunk": subchunk,
            "shard": shape, "sink": sink, "output": call.output(),
            "ours_gbps": ours, "zarrs_gbps": zarrs, "tensorstore_gbps": tensorstore,
            "zarr_python_gbps": zarr_python, "limit_gbps": limit,
        }));
        self.check(
            layout,
            call,
            case,
            [ratio(zarrs), ratio(tensorstore), ratio(limit)],
        );
    }

    /// Compares a row with its goals. `ratios` are our rate over the rates of zarrs, of tensorstore and
    /// of the limit.
    fn check(&mut self, layout: &Layout, call: Call, case: &Case, ratios: [Option<f64>; 3]) {
        let [zarrs, tensorstore, limit] = ratios;
        let has_compressor = !matches!(layout.chain, "none" | "crc32c");
        let name = layout.name(call, case);
        let mut at_least = |over: &str, ratio: Option<f64>, goal: f64| {
            if let Some(ratio) = ratio {
                self.goals
                    .at_least(&format!("{name}, rate over {over}"), ratio, goal);
            }
        };
        match (call, case.name, layout.sink) {
            (Call::Store, _, "files") => {
                let goal = match (has_compressor, layout.subchunk) {
                    (true, _) => 1.25,
                    (false, 32) => 1.9,
                    (false, _) => 1.6,
                };
                at_least("zarrs'", zarrs, goal);
                at_least("tensorstore's", tensorstore, 0.95);
            }
            // Where a row of elements has one subchunk, zarrs' view gains nothing.
            (Call::Bytes | Call::Elements | Call::Into, "whole", "files")
                if layout.shard.0 != "thin" =>
            {
                at_least(
                    "zarrs'",
                    zarrs,
                    if layout.subchunk == 32 { 1.2 } else { 1.05 },
                );
            }
            (Call::Read | Call::ReadInto, "whole", "files") => {
                at_least("tensorstore's", tensorstore, 1.0);
                if has_compressor {
                    at_least("the limit", limit, 0.8);
                } else {
                    at_least("zarrs'", zarrs, 2.0);
                }
            }
            (Call::ReadBoxes, _, "files") => at_least("tensorstore's", tensorstore, 1.0),
            _ => {}
        }
    }
}

/// The CRC-32 of zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = libdeflater::Crc::new();
    crc.update(bytes);
    crc.sum()
}
