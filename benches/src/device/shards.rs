//! Whole shards of each kind of data, encoded and decoded by a device and by the host in turns, and the
//! ratios beside those of zstd on the host.

use std::cell::Cell;

use super::compressed::{compression_ratio, engine_for, has_nvcomp};
use super::failure::{Result, require};
use super::report::{Report, Row};
use super::samples::race;
use super::volumes::Volume;
use super::whole::together;
use super::{CudaEngine, Kind, Run, Sizes};
use crate::chains;
use zarrs_cuda_engine::contract::{EncodedShard, Engine};
use zarrs_cuda_engine::host::HostEngine;

/// The chains that are measured.
const CHAINS: [&str; 3] = ["zstd-1", "blosc-lz4", "blosc-zstd-shuffle"];

/// The shards of each kind of data.
const SHARDS: usize = 4;

pub(crate) fn measure(
    engine: &CudaEngine,
    sizes: &Sizes,
    run: &Run<'_>,
    report: &mut Report<'_>,
) -> Result<()> {
    report.section(
        "shards",
        "whole shards of each kind of data, beside the host engine; ratios beside zstd on the host",
    );
    if !has_nvcomp(sizes, report)? {
        return Ok(());
    }
    engine.devices.release_idle();
    let edge = sizes.volume;
    for volume in Volume::ALL {
        report.note(volume.name(), volume.about());
        let elements = match volume.elements([SHARDS * edge, edge, edge]) {
            Ok(elements) => elements,
            Err(failure) => {
                report.failed(volume.name(), Err(failure));
                continue;
            }
        };
        for chain in CHAINS {
            let measured = Subject::new(engine, sizes, volume, chain, &elements)
                .and_then(|subject| subject.measure(report));
            report.failed(&format!("{chain} of {}", volume.name()), measured);
            (run.save)(&report.so_far());
        }
    }
    Ok(())
}

/// Shards of one kind of data, and their chain.
struct Subject<'a> {
    sizes: &'a Sizes,
    volume: Volume,
    chain: &'a str,
    kind: Kind,
    engine: CudaEngine,
    shards: Vec<&'a [u8]>,
    encoded: Vec<EncodedShard>,
    /// The shards of the host to decode, if the frames of the device's compressor are legal and yet not for a
    /// device; or the reason why the device decodes none.
    of_host: std::result::Result<Option<Vec<EncodedShard>>, String>,
    taken: Cell<usize>,
}

impl<'a> Subject<'a> {
    /// Encodes each shard. Fails unless the host decodes it.
    fn new(
        engine: &CudaEngine,
        sizes: &'a Sizes,
        volume: Volume,
        chain: &'a str,
        elements: &'a [u8],
    ) -> Result<Self> {
        let kind = of_chain(sizes, chain)?;
        let engine = engine_for(engine, &kind, sizes, sizes.tuning);
        let shards = kind.shards_of(elements);
        let encode = |shard: &&[u8]| {
            let encoded = engine.encode(&kind.job(1), shard, 0, 0)?;
            decodes(&HostEngine, &kind, &encoded, shard)?;
            Ok(encoded)
        };
        let encoded = shards
            .iter()
            .map(encode)
            .collect::<Result<Vec<EncodedShard>>>()?;
        let mut of_host = Ok(None);
        let decodes_all = |all: &[EncodedShard]| {
            let mut pairs = all.iter().zip(&shards);
            pairs.try_for_each(|(encoded, shard)| decodes(&engine, &kind, encoded, shard))
        };
        if decodes_all(&encoded).is_err() {
            let others = shards.iter().map(|shard| kind.encode_on_host(shard));
            let others = others.collect::<Result<Vec<_>>>()?;
            of_host = match decodes_all(&others) {
                Ok(()) => Ok(Some(others)),
                Err(failure) => Err(failure.0),
            };
        }
        Ok(Self {
            sizes,
            volume,
            chain,
            kind,
            engine,
            shards,
            encoded,
            of_host,
            taken: Cell::new(0),
        })
    }

    fn measure(&self, report: &mut Report<'_>) -> Result<()> {
        let of_zstd = |chain| -> Result<f64> {
            let encoded = of_chain(self.sizes, chain)?.encode_on_host(self.shards[0])?;
            Ok(compression_ratio(self.shards[0].len(), encoded.bytes.len()))
        };
        let same = self.kind.encode_on_host(self.shards[0])?;
        let len = self.shards[0].len();
        let ratio = compression_ratio(len, self.encoded[0].bytes.len());
        let on_host = compression_ratio(len, same.bytes.len());
        let (zstd_1, zstd_3) = (of_zstd("zstd-1")?, of_zstd("zstd-3")?);
        for &calls in &self.sizes.volume_calls {
            let before = self.engine.counters().snapshot().subchunks_on_host;
            for (what, decode) in [("encode", false), ("decode", true)] {
                let of = match &self.of_host {
                    Ok(None) => "cuda",
                    Ok(Some(_)) => "host",
                    Err(reason) if decode => {
                        let what = format!("not decoded: {}, {}", self.volume.name(), self.chain);
                        report.note(&what, reason.clone());
                        continue;
                    }
                    Err(_) => "none",
                };
                let [device, host] = race(
                    self.sizes.warm_up,
                    self.sizes.compressed_rounds,
                    [
                        &mut |_| self.seconds(&self.engine, calls, decode),
                        &mut |_| self.seconds(&HostEngine, calls, decode),
                    ],
                )?;
                let bytes = calls * len;
                let name = format!(
                    "{}, {}, {what}, {calls} at once",
                    self.volume.name(),
                    self.chain
                );
                let after = self.engine.counters().snapshot().subchunks_on_host;
                let row = Row::new(name, &device, bytes)
                    .with("data", self.volume.name())
                    .with("chain", self.chain)
                    .with("calls", calls)
                    .with("decoded_frames_of", of)
                    .with("host_gb_per_s", host.rates(bytes))
                    .with("compression_ratio", ratio)
                    .with("host_compression_ratio", on_host)
                    .with("host_zstd_1_ratio", zstd_1)
                    .with("host_zstd_3_ratio", zstd_3)
                    .with("subchunks_on_host", after - before)
                    .ratio("the host engine", device.by(bytes, &host, bytes), None);
                report.row(row);
            }
        }
        report.say(&format!(
            "    compression ratio {ratio:.2}, on the host {on_host:.2}; zstd-1 {zstd_1:.2}, zstd-3 {zstd_3:.2}"
        ));
        Ok(())
    }

    /// Times this many concurrent calls, in seconds.
    fn seconds(&self, engine: &dyn Engine, calls: usize, decode: bool) -> Result<f64> {
        let first = self.taken.replace(self.taken.get() + calls);
        let job = self.kind.job(calls);
        let shards = &self.shards;
        let encoded = match &self.of_host {
            Ok(Some(of_host)) => of_host,
            _ => &self.encoded,
        };
        let call = |i: usize| {
            let number = (first + i) % shards.len();
            if decode {
                let EncodedShard { bytes, extents } = &encoded[number];
                return engine.decode(&job, bytes, extents);
            }
            Ok(engine.encode(&job, shards[number], 0, 0)?.bytes)
        };
        Ok(together(calls, shards[0].len(), call)?.0)
    }
}

/// Fails unless `engine` decodes the shard to `expected`.
fn decodes(
    engine: &dyn Engine,
    kind: &Kind,
    encoded: &EncodedShard,
    expected: &[u8],
) -> Result<()> {
    let decoded = engine.decode(&kind.job(1), &encoded.bytes, &encoded.extents)?;
    require(decoded == expected, || "other elements".to_string())
}

fn of_chain(sizes: &Sizes, chain: &str) -> Result<Kind> {
    let stages = chains::stages(chain).map_err(|e| super::failure::Failure(e.to_string()))?;
    Kind::new(sizes.volume, sizes.subchunk, &[0, 1, 2], &stages)
}
