//! Streams of frames through `ArrayWriter` and `MultiscaleWriter`, with a device and with the host in turns.
//!
//! The first run of each pair does not count among the others. It has the start-up of the device for this
//! chain, so its time is a result of its own. A run of one epoch is read back with zarrs' own codec.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayBuilder, ArrayBytes, data_type};
use zarrs::storage::ReadableWritableStorageTraits;
use zarrs_cuda::writer::{ArrayWriter, Axis, MultiscaleWriter};
use zarrs_cuda::{Backend, CudaShardingCodec, Options};

use super::failure::{Failure, Result, require};
use super::report::{Report, Row};
use super::samples::{Contestant, Samples, race};
use super::volumes::Volume;
use super::{ELEMENT, Run, Sizes};
use crate::chains;
use crate::discarding::Discarding;
use crate::keeping::Keeping;

const CHAINS: [&str; 3] = ["none", "zstd-1", "blosc-lz4"];

/// The lengths and numbers of streams.
#[derive(Clone, Debug)]
pub(crate) struct Lengths {
    /// Elements of a frame along y and x, and of a shard along each axis.
    pub(crate) frame: usize,
    pub(crate) shard: usize,
    /// The number of shards along the first axis.
    pub(crate) epochs: usize,
    /// Elements of subchunks along each axis. The last one is that of levels.
    pub(crate) subchunks: Vec<usize>,
    pub(crate) rounds: usize,
    /// The time limit of all streams.
    pub(crate) time: Duration,
}

pub(crate) fn measure(device: usize, sizes: &Sizes, run: &Run<'_>, report: &mut Report<'_>) {
    report.section(
        "stream",
        "frames through ArrayWriter, and levels through MultiscaleWriter, to a store that keeps nothing; \
         beside the host engine",
    );
    let lengths = &sizes.stream;
    let begin = Instant::now();
    let mut left_out = Vec::new();
    for volume in Volume::ALL {
        report.note(volume.name(), volume.about());
        let frames = match volume.elements([lengths.shard, lengths.frame, lengths.frame]) {
            Ok(frames) => frames,
            Err(failure) => {
                report.failed(volume.name(), Err(failure));
                continue;
            }
        };
        let last = lengths.subchunks.last().copied().unwrap_or(lengths.shard);
        let streams = CHAINS.into_iter().flat_map(|chain| {
            let subchunks = lengths.subchunks.iter();
            subchunks.map(move |&subchunk| (chain, subchunk, false))
        });
        let levels = CHAINS.into_iter().map(|chain| (chain, last, true));
        for (chain, subchunk, levels) in streams.chain(levels) {
            let what = if levels { "levels" } else { "stream" };
            let name = format!("{}, {chain}, {subchunk}³, {what}", volume.name());
            if begin.elapsed() > lengths.time {
                left_out.push(json!(name));
                continue;
            }
            let case = Case {
                device,
                sizes,
                frames: &frames,
                chain,
                subchunk,
                levels,
            };
            let measured = case.measure(&name, volume, report);
            report.failed(&name, measured);
            (run.save)(&report.so_far());
        }
    }
    report.note("left_out_for_time", left_out);
}

/// The data, and the way.
struct Case<'a> {
    device: usize,
    sizes: &'a Sizes,
    /// The frames of an epoch.
    frames: &'a [u8],
    chain: &'a str,
    subchunk: usize,
    levels: bool,
}

/// The times of a run, in seconds, and the engine and the bytes that a writer reports.
struct Written {
    build: f64,
    all: f64,
    engine: &'static str,
    stored: u64,
}

impl Case<'_> {
    fn options(&self, backend: Backend) -> Options {
        let options = Options::default().with_backend(backend);
        if backend == Backend::Host {
            return options;
        }
        let options = options.with_devices([self.device]);
        match &self.sizes.nvcomp {
            Some(file) => options.with_nvcomp(file),
            None => options,
        }
    }

    fn array<S: ?Sized>(&self, store: Arc<S>, backend: Backend) -> crate::Result<Array<S>> {
        let Lengths { frame, shard, .. } = self.sizes.stream;
        let configuration =
            chains::configuration(&chains::codecs(self.chain)?, self.subchunk as u64)?;
        let codec =
            CudaShardingCodec::new_with_configuration(&configuration, self.options(backend))?;
        let shape = vec![0, frame as u64, frame as u64];
        let mut builder =
            ArrayBuilder::new(shape, vec![shard as u64; 3], data_type::uint16(), 0_u16);
        builder.array_to_bytes_codec(Arc::new(codec));
        Ok(builder.build(store, "/image/0")?)
    }

    /// Writes `epochs` epochs.
    fn write<S>(&self, store: Arc<S>, backend: Backend, epochs: usize) -> crate::Result<Written>
    where
        S: ReadableWritableStorageTraits + 'static,
    {
        let array = self.array(store, backend)?;
        let frame = self.sizes.stream.frame.pow(2) * ELEMENT;
        let begin = Instant::now();
        let (build, engine, stored);
        if self.levels {
            let axes = ["z", "y", "x"].map(|name| Axis::space(name).with_factor(2));
            let mut writer = MultiscaleWriter::builder(&array).with_axes(axes).build()?;
            build = begin.elapsed();
            for _ in 0..epochs {
                for frame in self.frames.chunks_exact(frame) {
                    writer.append_bytes(frame)?;
                }
            }
            let levels = writer.finish()?;
            engine = levels.first().ok_or("an image has levels")?.engine;
            stored = levels.iter().map(|level| level.stored_bytes).sum();
        } else {
            array.store_metadata()?;
            let mut writer = ArrayWriter::builder(&array).build()?;
            build = begin.elapsed();
            for _ in 0..epochs {
                for frame in self.frames.chunks_exact(frame) {
                    writer.append_bytes(frame)?;
                }
            }
            let report = writer.finish()?;
            engine = report.engine;
            stored = report.stored_bytes;
        }
        Ok(Written {
            build: build.as_secs_f64(),
            all: begin.elapsed().as_secs_f64(),
            engine,
            stored,
        })
    }

    /// Fails unless zarrs' own codec reads what the device wrote.
    fn verify(&self) -> crate::Result<()> {
        let store = Arc::new(Keeping::default());
        self.write(store.clone(), Backend::Cuda, 1)?;
        // No codec is registered, so this is zarrs' own.
        let array = Array::open(store, "/image/0")?;
        let stored: ArrayBytes = array.retrieve_array_subset(&array.subset_all())?;
        if *stored.into_fixed()? != *self.frames {
            return Err("zarrs reads other elements".into());
        }
        Ok(())
    }

    fn measure(&self, name: &str, volume: Volume, report: &mut Report<'_>) -> Result<()> {
        let of_text = |error: Box<dyn std::error::Error>| Failure(error.to_string());
        let lengths = &self.sizes.stream;
        let write = |backend| {
            let store = Arc::new(Discarding::default());
            self.write(store, backend, lengths.epochs).map_err(of_text)
        };
        let first = write(Backend::Cuda)?;
        require(first.engine == "cuda", || {
            format!("the engine of the writer is {}", first.engine)
        })?;
        self.verify().map_err(of_text)?;
        let mut stored = [0, 0];
        let mut builds = Vec::new();
        let [device, host] = {
            let [stored_by_device, stored_by_host] = &mut stored;
            let by_device: Contestant<'_> = &mut |_| {
                let written = write(Backend::Cuda)?;
                *stored_by_device = written.stored;
                builds.push(written.build);
                Ok(written.all)
            };
            let by_host: Contestant<'_> = &mut |_| {
                let written = write(Backend::Host)?;
                *stored_by_host = written.stored;
                Ok(written.all)
            };
            race(Duration::ZERO, lengths.rounds, [by_device, by_host])?
        };
        let bytes = self.frames.len() * lengths.epochs;
        let start: Value = json!({
            "build_seconds": first.build,
            "all_seconds": first.all,
            "later_build_seconds": Samples::new(builds).median(),
        });
        report.row(
            Row::new(name, &device, bytes)
                .with("data", volume.name())
                .with("chain", self.chain)
                .with("subchunk", self.subchunk)
                .with("levels", self.levels)
                .with("first_run", start)
                .with("stored_bytes", stored[0])
                .with("host_stored_bytes", stored[1])
                .with("host_gb_per_s", host.rates(bytes))
                .ratio("the host engine", device.by(bytes, &host, bytes), None),
        );
        Ok(())
    }
}
