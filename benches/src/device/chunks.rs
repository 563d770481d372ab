//! nvCOMP alone, by the number and the size of its chunks, beside threads of the host.
//!
//! These times decide which shards are worth a device: nvCOMP is as fast with few chunks as with many until
//! the multiprocessors are busy, and a processor is as fast with one chunk as with many.

use std::time::{Duration, Instant};

use serde_json::json;

use super::compressed::{Alone, engine_for, has_nvcomp};
use super::failure::{Failure, Result};
use super::report::{Report, Row};
use super::samples::{Samples, race};
use super::volumes::Volume;
use super::{ELEMENT, Kind, Sizes};
use zarrs_cuda_engine::contract::{BloscStage, Cname, Engine, KnownChain, Shuffle, Stage};
use zarrs_cuda_engine::cuda::CudaEngine;
use zarrs_cuda_engine::cuda::arena::SLOT_ALIGNMENT;
use zarrs_cuda_engine::cuda::driver::Driver;
use zarrs_cuda_engine::host::HostEngine;
use zarrs_cuda_engine::layout::SubchunkGrid;

/// The most bytes that each thread of the host compresses in a measurement.
const PER_THREAD: usize = 8 << 20;

/// The compressors. A chunk of LZ4 is a frame of Blosc of one block, without a shuffle.
fn stages(bytes: usize) -> [(&'static str, Stage); 2] {
    let zstd = Stage::Zstd {
        level: 1,
        checksum: false,
    };
    let lz4 = Stage::Blosc(BloscStage {
        cname: Cname::Lz4,
        level: 5,
        shuffle: Shuffle::None,
        typesize: ELEMENT,
        blocksize: bytes,
    });
    [("zstd-1", zstd), ("lz4", lz4)]
}

/// Shards of `count` chunks, one after the other.
fn kind(count: usize, bytes: usize, stage: &Stage) -> Result<Kind> {
    let elements = bytes / ELEMENT;
    Ok(Kind {
        grid: SubchunkGrid::new(&[(count * elements) as u64], &[elements as u64], ELEMENT)?,
        chain: KnownChain {
            order: vec![0],
            swap: 1,
            stages: vec![stage.clone()],
        },
    })
}

/// Measures what the time allows: large numbers of small chunks first, which the engine uses most.
pub(crate) fn measure(
    driver: &dyn Driver,
    engine: &CudaEngine,
    sizes: &Sizes,
    report: &mut Report<'_>,
) -> Result<()> {
    report.section(
        "chunks",
        "nvCOMP alone, data on the device, by number and size of chunks; beside threads of the host",
    );
    if !has_nvcomp(sizes, report)? {
        return Ok(());
    }
    // All sizes use the same bytes. The time does not begin before the bytes are made.
    let largest = sizes.chunk_bytes.iter().max().copied().unwrap_or(1);
    let rows = (sizes.chunk_memory / largest).max(1);
    let data = Volume::Microscopy.elements([rows, 1, largest / ELEMENT])?;
    let begin = Instant::now();
    let is_late = || begin.elapsed() > sizes.chunk_time;
    let mut left_out = Vec::new();
    for &bytes in &sizes.chunk_bytes {
        for (name, stage) in stages(bytes) {
            for &count in &sizes.chunk_counts {
                if count * bytes > data.len() {
                    left_out.push(json!([name, bytes, count, "memory"]));
                } else if is_late() {
                    left_out.push(json!([name, bytes, count, "time"]));
                } else {
                    let kind = kind(count, bytes, &stage)?;
                    let data = &data[..count * bytes];
                    match on_device(driver, engine, sizes, &kind, (name, data)) {
                        Ok(row) => report.row(row),
                        // The device may have no room for so many.
                        Err(failure) => {
                            let what = format!("{name}, {count} chunks of {bytes} bytes");
                            report.failed(&what, Err(failure));
                        }
                    }
                }
            }
            for &threads in &sizes.host_threads {
                if is_late() {
                    left_out.push(json!([name, bytes, "host", threads, "time"]));
                    continue;
                }
                let count = (threads * PER_THREAD / bytes).max(threads);
                let count = count.min(data.len() / bytes).max(1);
                let kind = kind(count, bytes, &stage)?;
                report.row(on_host(&kind, threads, (name, &data[..count * bytes]))?);
            }
        }
    }
    report.note("left_out", left_out);
    report.note("data", Volume::Microscopy.about());
    Ok(())
}

fn on_device(
    driver: &dyn Driver,
    engine: &CudaEngine,
    sizes: &Sizes,
    kind: &Kind,
    (name, data): (&str, &[u8]),
) -> Result<Row> {
    let bytes = kind.grid.subchunk_bytes();
    let count = data.len() / bytes;
    let engine = engine_for(engine, kind, sizes, sizes.tuning);
    let on_device = engine.kind_of_batches(&kind.grid, &kind.chain, count)?;
    let prepared = on_device.compressor.as_ref();
    let prepared = prepared.ok_or_else(|| Failure(format!("{name} is no compressor")))?;
    let requirements = prepared.requirements(count).map_err(Failure)?;
    let stride = bytes.next_multiple_of(requirements.alignments.input.max(SLOT_ALIGNMENT));
    let alone = Alone::new(driver, sizes, kind, (prepared, count, stride), data)?;
    let [samples] = race(Duration::ZERO, 3, [&mut |_| alone.seconds()])?;
    Ok(row(name, "nvCOMP", &samples, count, bytes)
        .with("temp_bytes", alone.requirements.temp)
        .unverified())
}

fn on_host(kind: &Kind, threads: usize, (name, data): (&str, &[u8])) -> Result<Row> {
    let bytes = kind.grid.subchunk_bytes();
    let job = kind.job_of_threads(threads);
    let encode = &mut |_| {
        let begin = Instant::now();
        HostEngine.encode(&job, data, 0, 0)?;
        Ok(begin.elapsed().as_secs_f64())
    };
    let [samples] = race(Duration::ZERO, 2, [encode])?;
    let who = format!("{threads} threads");
    Ok(row(name, &who, &samples, data.len() / bytes, bytes)
        .with("threads", threads)
        .unverified())
}

fn row(name: &str, who: &str, samples: &Samples, count: usize, bytes: usize) -> Row {
    let title = format!("{name}, {count} of {} KiB, {who}", bytes >> 10);
    Row::new(title, samples, count * bytes)
        .with("chain", name)
        .with("chunks", count)
        .with("chunk_bytes", bytes)
}
