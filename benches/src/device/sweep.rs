//! Varies the parameters of [`Tuning`], and measures the rate of encoding one shard.

use std::time::{Duration, Instant};

use serde_json::json;

use super::failure::{Result, require};
use super::report::Report;
use super::samples::{Samples, race};
use super::whole::together;
use super::{CudaEngine, Kind, Sizes, Tuning, cores};
use zarrs_cuda_engine::contract::Engine;

/// One choice of parameters.
#[derive(Clone, Copy, Debug)]
struct Point {
    tuning: Tuning,
    threads: usize,
}

/// All choices, in an order in which neighbours are far apart. If time runs out, the remaining ones
/// are spread.
fn points(sizes: &Sizes) -> Vec<Point> {
    let mut points = Vec::new();
    for &slab in &sizes.slabs {
        for &ring in &sizes.rings {
            // A batch has at least two slabs.
            for &batch in sizes.batches.iter().filter(|&&batch| batch >= 2 * slab) {
                for &batches in &sizes.in_flight {
                    let tuning = Tuning {
                        slab,
                        long_slab: slab,
                        ring,
                        batch,
                        batches,
                        ..Tuning::DEFAULT
                    };
                    let threads = sizes.threads.iter();
                    points.extend(
                        threads
                            .filter(|&&threads| threads <= cores().get())
                            .map(|&threads| Point { tuning, threads }),
                    );
                }
            }
        }
    }
    let mixed = super::on_device::mixed(points.len());
    mixed.into_iter().map(|i| points[i as usize]).collect()
}

pub(crate) fn measure(
    engine: &CudaEngine,
    sizes: &Sizes,
    data: &[u8],
    report: &mut Report<'_>,
) -> Result<()> {
    report.section(
        "sweep",
        "encode of one shard without a codec; slab × ring, batch × batches on their way, threads that copy",
    );
    let Some(&edge) = sizes.shards.last() else {
        return Ok(());
    };
    let kind = Kind::new(edge, sizes.subchunk, &[0, 1, 2], &[])?;
    let shards = kind.shards_of(data);
    let expected = kind.encode_on_host(shards[0])?.bytes;
    let (points, begin) = (points(sizes), Instant::now());
    let mut measured: Vec<(Point, Samples)> = Vec::new();
    for point in &points {
        if begin.elapsed() > sizes.sweep_time {
            break;
        }
        engine.devices.release_idle();
        let tuned = CudaEngine::new(engine.devices.clone(), engine.limits.clone(), point.tuning);
        let job = kind.job_of_threads(point.threads);
        let [samples] = race(
            Duration::ZERO,
            sizes.sweep_rounds,
            [&mut |round| {
                let shard = shards[round % shards.len()];
                let (seconds, encoded) =
                    together(1, shard.len(), |_| tuned.encode(&job, shard, 0, 0))?;
                require(round > 0 || encoded[0].bytes == expected, || {
                    format!("{point:?}: wrong bytes")
                })?;
                Ok(seconds)
            }],
        )?;
        measured.push((*point, samples));
    }
    engine.devices.release_idle();
    let len = kind.grid.shard_bytes();
    measured.sort_by(|a, b| a.1.median().total_cmp(&b.1.median()));
    for (place, (point, samples)) in measured.iter().enumerate() {
        let Tuning {
            slab,
            ring,
            batch,
            batches,
            ..
        } = point.tuning;
        let name = format!(
            "{} KiB × {ring}, {} KiB × {batches}, {}",
            slab >> 10,
            batch >> 10,
            point.threads
        );
        let row = super::report::Row::new(name, samples, len)
            .with("slab", slab)
            .with("ring", ring)
            .with("batch", batch)
            .with("batches", batches)
            .with("threads", point.threads);
        // Prints only the best; the document has all.
        report.row_if(place < 8, row);
    }
    let left_out = points.len() - measured.len();
    report.note("left_out_for_time", left_out);
    report.note("shard_bytes", json!(len));
    report.say(&format!(
        "  {} measured, {left_out} left out for time",
        measured.len()
    ));
    Ok(())
}
