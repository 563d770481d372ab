//! All levels of an image through `MultiscaleWriter`, compared with level 0 alone through `ArrayWriter`,
//! and with the pyramids of two peers.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, ArrayMetadataOptions, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::ReadableWritableStorageTraits;
use zarrs_cuda::writer::{ArrayWriter, Axis, MultiscaleBuilder, MultiscaleWriter};
use zarrs_cuda::{Backend, CudaShardingCodec, Options};
use zarrs_cuda_benches::Result;
use zarrs_cuda_benches::chains::configuration;
use zarrs_cuda_benches::clock::{Clock, Cost};
use zarrs_cuda_benches::frames::{Frames, SHARD};
use zarrs_cuda_benches::goals::Goals;
use zarrs_cuda_benches::python::{self, Script};
use zarrs_cuda_benches::{median, warm};

use crate::TMP;
use crate::contender::{Sink, new_folder};
use zarrs_cuda_benches::discarding::Discarding;

/// Elements of a subchunk along each axis.
const SUBCHUNK: u64 = 64;

/// The factors along the axes, by name.
pub(crate) const FACTORS: [(&str, [u64; 3]); 2] = [("222", [2, 2, 2]), ("122", [1, 2, 2])];

/// The image, the method and the destination.
pub(crate) struct Case<'a> {
    pub(crate) frames: &'a Frames,
    pub(crate) factors: (&'static str, [u64; 3]),
    pub(crate) chain: &'static str,
    pub(crate) codecs: &'a Value,
    pub(crate) sink: Sink,
    pub(crate) backend: Backend,
    /// The parent of the folders for files.
    pub(crate) folder: &'a Path,
}

/// The peers, which write files alone.
pub(crate) struct Peers {
    scripts: [Script; 2],
    /// The frames, for the peers to read.
    _frames: TempDir,
}

const PEERS: [&str; 2] = ["acquire_zarr", "tensorstore"];

impl Peers {
    pub(crate) fn start(frames: &Frames, folder: &Path) -> Result<Self> {
        let python = python::python(TMP)?;
        let data = TempDir::new_in(folder)?;
        let path = data.path().join("frames");
        fs::write(&path, frames.pool())?;
        let start = |peer: &str| Script::start(&python, &format!("writer/{peer}_levels.py"), &path);
        Ok(Self {
            scripts: [start(PEERS[0])?, start(PEERS[1])?],
            _frames: data,
        })
    }
}

/// The costs of each contender, by round.
#[derive(Default)]
struct Measured {
    alone: Vec<Cost>,
    levels: Vec<Cost>,
    peers: [Vec<Cost>; 2],
}

impl Case<'_> {
    fn array<S: ?Sized>(&self, store: Arc<S>) -> Result<Array<S>> {
        let options = Options::default().with_backend(self.backend);
        let configuration = configuration(self.codecs, SUBCHUNK)?;
        let codec = CudaShardingCodec::new_with_configuration(&configuration, options)?;
        let [_, y, x] = self.frames.shape();
        let mut builder =
            ArrayBuilder::new(vec![0, y, x], vec![SHARD; 3], data_type::uint16(), 0_u16);
        builder.array_to_bytes_codec(Arc::new(codec));
        Ok(builder.build(store, "/image/0")?)
    }

    fn levels<S>(&self, array: &Array<S>) -> MultiscaleBuilder<S>
    where
        S: ReadableWritableStorageTraits + 'static,
    {
        let axes = std::iter::zip(["z", "y", "x"], self.factors.1);
        let axes = axes.map(|(name, factor)| Axis::space(name).with_factor(factor));
        MultiscaleWriter::builder(array).with_axes(axes)
    }

    /// Appends all frames to level 0 alone.
    fn alone(&self) -> Result<Cost> {
        match self.sink {
            Sink::Discarding => {
                let array = self.array(Arc::new(Discarding::default()))?;
                self.append_alone(&ArrayWriter::builder(&array))
            }
            Sink::Filesystem => {
                let folder = new_folder(self.folder)?;
                let store = Arc::new(FilesystemStore::new(folder.path())?);
                let array = self.array(store.clone())?;
                self.append_alone(&ArrayWriter::builder(&array).with_atomic_rename(store))
            }
        }
    }

    fn append_alone<S>(&self, builder: &zarrs_cuda::writer::ArrayWriterBuilder<S>) -> Result<Cost>
    where
        S: ReadableWritableStorageTraits + 'static,
    {
        let clock = Clock::start();
        let mut writer = builder.build()?;
        for frame in self.frames.iter() {
            writer.append_bytes(frame)?;
        }
        writer.finish()?;
        Ok(clock.stop())
    }

    /// Appends all frames, and writes all levels. Returns the number of levels, too.
    fn ours(&self) -> Result<(Cost, usize)> {
        match self.sink {
            Sink::Discarding => {
                let array = self.array(Arc::new(Discarding::default()))?;
                self.append(&self.levels(&array))
            }
            Sink::Filesystem => {
                let folder = new_folder(self.folder)?;
                let store = Arc::new(FilesystemStore::new(folder.path())?);
                let array = self.array(store.clone())?;
                self.append(&self.levels(&array).with_atomic_rename(store))
            }
        }
    }

    fn append<S>(&self, builder: &MultiscaleBuilder<S>) -> Result<(Cost, usize)>
    where
        S: ReadableWritableStorageTraits + 'static,
    {
        let clock = Clock::start();
        let mut writer = builder.build()?;
        for frame in self.frames.iter() {
            writer.append_bytes(frame)?;
        }
        let reports = writer.finish()?;
        let cost = clock.stop();
        if reports[0].raw_bytes != self.frames.bytes() {
            return Err("the writer was given other bytes than it says".into());
        }
        Ok((cost, reports.len()))
    }

    /// Lets a peer write `levels` levels to files.
    fn peer(&self, peer: &mut Script, levels: usize) -> Result<Cost> {
        let folder = new_folder(self.folder)?;
        let array = self.array(Arc::new(Discarding::default()))?;
        let mut array = array.builder().build(array.storage(), "/image/0")?;
        array.set_shape(self.frames.shape().to_vec())?;
        let options = ArrayMetadataOptions::default().with_include_zarrs_metadata(false);
        let answer = peer.ask(&json!({
            "metadata": array.metadata_opt(&options), "path": folder.path(),
            "factors": self.factors.1, "levels": levels, "chain": self.chain,
            "epochs": self.frames.epochs(),
        }))?;
        let seconds = answer["seconds"].as_f64();
        Ok(Cost {
            seconds: seconds.ok_or("a peer answered without a time")?,
            cpu_seconds: answer["cpu_seconds"].as_f64(),
        })
    }

    fn has_peers(&self) -> bool {
        self.sink == Sink::Filesystem
    }
}

pub(crate) fn print_head() {
    println!(
        "\n{:7} {:10} {:10} {:>6} {:>10} {:>10} {:>12} {:>11} {:>7} {:>9} {:>13}",
        "factors",
        "chain",
        "sink",
        "levels",
        "alone GB/s",
        "ours GB/s",
        "acquire GB/s",
        "tensor GB/s",
        "x alone",
        "x acquire",
        "x tensorstore"
    );
}

/// Runs all contenders in turns, prints a row of medians, and returns it. The first round does not
/// count.
pub(crate) fn run(
    case: &Case<'_>,
    peers: Option<&mut Peers>,
    rounds: usize,
    goals: &mut Goals,
) -> Result<Option<Value>> {
    case.alone()?;
    let (_, levels) = case.ours()?;
    let mut peers = peers.filter(|_| case.has_peers());
    let mut measured = Measured::default();
    let contenders = if peers.is_some() { 4 } else { 2 };
    for round in 0..rounds {
        for turn in 0..contenders {
            warm::warm(case.frames.bytes())?;
            match ((round + turn) % contenders, &mut peers) {
                (0, _) => measured.alone.push(case.alone()?),
                (1, _) => measured.levels.push(case.ours()?.0),
                (number, Some(peers)) => {
                    let cost = case.peer(&mut peers.scripts[number - 2], levels)?;
                    measured.peers[number - 2].push(cost);
                }
                _ => {}
            }
        }
    }
    Ok(row(case, levels, &measured, goals))
}

fn row(case: &Case<'_>, levels: usize, measured: &Measured, goals: &mut Goals) -> Option<Value> {
    let gigabytes = case.frames.bytes() as f64 / 1e9;
    let rate = |costs: &[Cost]| Some(gigabytes / median(costs.iter().map(|cost| cost.seconds))?);
    let (alone, ours) = (rate(&measured.alone)?, rate(&measured.levels)?);
    let peers = measured.peers.each_ref().map(|costs| rate(costs));
    let over = |peer: Option<f64>| peer.map(|peer| ours / peer);
    let text = |value: Option<f64>| value.map_or("-".to_string(), |value| format!("{value:.2}"));
    let (factors, chain, sink) = (case.factors.0, case.chain, case.sink.name());
    println!(
        "{factors:7} {chain:10} {sink:10} {levels:6} {alone:10.2} {ours:10.2} {:>12} {:>11} {:7.2} {:>9} {:>13}",
        text(peers[0]),
        text(peers[1]),
        ours / alone,
        text(over(peers[0])),
        text(over(peers[1])),
    );
    let what = |over: &str| format!("levels/{factors}/{chain}/{sink}, rate over {over}");
    let goal = match (chain, case.sink, factors) {
        ("none", Sink::Discarding, _) => 0.5,
        (_, _, "222") => 0.75,
        _ => 0.65,
    };
    goals.at_least(&what("level 0 alone"), ours / alone, goal);
    if let Some(over) = over(peers[0]) {
        goals.at_least(&what("acquire-zarr's"), over, 1.0);
    }
    Some(json!({
        "factors": case.factors.1, "chain": chain, "sink": sink, "levels": levels,
        "alone_gbps": alone, "ours_gbps": ours,
        "acquire_zarr_gbps": peers[0], "tensorstore_gbps": peers[1],
        "of_alone": ours / alone, "bytes": case.frames.bytes(), "rounds": measured.levels.len(),
        "alone_cpu_s": median(measured.alone.iter().filter_map(|cost| cost.cpu_seconds)),
        "ours_cpu_s": median(measured.levels.iter().filter_map(|cost| cost.cpu_seconds)),
    }))
}
