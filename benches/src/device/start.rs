//! The first times of a process that uses a device: its context, its kernels, and its first shards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::compressed::engine_for;
use super::failure::Result;
use super::report::Report;
use super::volumes::Volume;
use super::{CudaEngine, Devices, Driver, Kind, Sizes};
use crate::chains;
use zarrs_cuda_engine::contract::Engine;

/// Measures a process that has taken `opened` for the driver's library and its devices, and has done nothing
/// else there.
pub(crate) fn measure(
    driver: &Arc<dyn Driver>,
    opened: Duration,
    sizes: &Sizes,
    report: &mut Report<'_>,
) -> Result<()> {
    report.section("start", "the first times of a process, in seconds");
    let mut times = Vec::new();
    let mut note = |report: &mut Report<'_>, what: &str, time: Duration| {
        report.say(&format!("  {what:44} {:9.4} s", time.as_secs_f64()));
        times.push(json!({ "what": what, "seconds": time.as_secs_f64() }));
        report.note("times", times.clone());
    };
    note(report, "load the driver, find the devices", opened);

    let begin = Instant::now();
    driver.enter()?;
    note(report, "make the context", begin.elapsed());
    let files = driver.uncompiled();
    let begin = Instant::now();
    let compiled = driver.compile();
    note(report, "compile all kernels", begin.elapsed());
    driver.leave()?;
    compiled?;
    report.note("kernel_files", files);

    let mut limits = sizes.limits.clone();
    limits.devices = Some(vec![driver.device().ordinal]);
    let engine = CudaEngine::new(Devices::new(vec![driver.clone()]), limits, sizes.tuning);
    let elements = Volume::Microscopy.elements([sizes.volume; 3])?;
    report.note("shard_bytes", elements.len());
    for chain in ["none", "zstd-1", "blosc-lz4"] {
        let stages = chains::stages(chain).map_err(|e| super::failure::Failure(e.to_string()))?;
        let kind = Kind::new(sizes.volume, sizes.subchunk, &[0, 1, 2], &stages)?;
        let engine = engine_for(&engine, &kind, sizes, sizes.tuning);
        for number in ["first", "second", "third"] {
            let begin = Instant::now();
            let encoded = engine.encode(&kind.job(1), &elements, 0, 0);
            let time = begin.elapsed();
            // Without nvCOMP the times before are a result.
            if let Err(error) = encoded {
                report.failed(&format!("the start with {chain}"), Err(error.into()));
                break;
            }
            note(report, &format!("{number} shard, {chain}"), time);
        }
    }
    Ok(())
}
