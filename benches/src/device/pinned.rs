//! The engine without its copies on the host: from pinned memory to pinned memory.
//!
//! This is the ordinary encoder in a lane of the pool, with threads that skip every copy. It
//! uploads the bytes that the staging memory still holds from an earlier shard, and its result is
//! never read. The number of bytes that came back is checked; their values cannot be.

use super::bus::Bus;
use super::failure::{Result, require};
use super::report::{Report, Row};
use super::samples::race;
use super::whole::{Stages, together, verified_together};
use super::{Kind, Sizes};
use zarrs_cuda_engine::contract::{EngineError, Stage};
use zarrs_cuda_engine::cuda::copiers::Copiers;
use zarrs_cuda_engine::cuda::session::{FreeEvents, Session};
use zarrs_cuda_engine::cuda::{CudaEngine, encode};

/// The goal, as a part of copies in both directions at once.
const GOAL: f64 = 0.85;

pub(crate) fn measure(
    engine: &CudaEngine,
    bus: &Bus<'_, '_>,
    sizes: &Sizes,
    data: &[u8],
    report: &mut Report<'_>,
) -> Result<()> {
    report.section(
        "pinned_to_pinned",
        "encode without copies on the host; decoded bytes. Results are not compared",
    );
    let Some(&edge) = sizes.shards.last() else {
        return Ok(());
    };
    // SAFETY: the results of the encodings below are dropped unread.
    let none = unsafe { Copiers::that_copy_nothing(0) };
    for (name, stages) in [("none", vec![]), ("crc32c", vec![Stage::Crc32c])] {
        let kind = Kind::new(edge, sizes.subchunk, &[0, 1, 2], &stages)?;
        let shards = kind.shards_of(data);
        let (len, expected) = (kind.grid.shard_bytes(), kind.grid.num_subchunks());
        let most = sizes.calls.iter().copied().max().unwrap_or(1);
        let on_host: Vec<_> = shards
            .iter()
            .take(most)
            .map(|shard| kind.encode_on_host(shard))
            .collect::<Result<_>>()?;
        for &calls in &sizes.calls {
            let job = kind.job(calls);
            // Creates lanes for all calls, and fills their pinned memory with shards.
            verified_together(engine, &job, &shards[..on_host.len()], &on_host, calls)?;
            let of_device = engine.kind(&kind.grid, &kind.chain)?;
            let encode = |times: bool| -> std::result::Result<usize, EngineError> {
                let shard = shards[0];
                let encoded = engine.in_lane(&of_device, |session| {
                    let session = Session {
                        lane: session.lane,
                        sizing: session.sizing,
                        events: FreeEvents::new(session.lane),
                        copiers: &none,
                        counters: session.counters,
                        times,
                    };
                    encode::encode(&session, &job, &of_device, shard, (0, 0))
                })?;
                Ok(encoded.shard.extents.iter().flatten().count())
            };
            let samples = race(
                sizes.warm_up,
                sizes.rounds,
                [&mut |_| bus.seconds_of_both(), &mut |_| {
                    let (seconds, stored) = together(calls, 0, |_| encode(false))?;
                    require(stored.iter().all(|&stored| stored == expected), || {
                        "subchunks did not come back".to_string()
                    })?;
                    Ok(seconds)
                }],
            )?;
            let [both, samples] = samples;
            // Taking times is work for the device, so it has a round of its own.
            let before = engine.counters().snapshot();
            encode(true)?;
            let bytes = calls * len;
            let ratio = samples.by(bytes, &both, bus.len());
            let row = Row::new(format!("{edge}³, {name}, {calls} at once"), &samples, bytes)
                .unverified()
                .with("calls", calls)
                .with("chain", name)
                .with("both_gb_per_s", both.rate(bus.len()))
                .with(
                    "stages_gb_per_s",
                    Stages::since(&before, engine, len).rates(),
                );
            report.row(row.ratio("both directions at once", ratio, Some(GOAL)));
        }
    }
    Ok(())
}
