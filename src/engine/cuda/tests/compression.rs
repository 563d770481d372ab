//! Shards with a compressor: encoded on a device with a stand-in for nvCOMP, decoded by the host.

use zarrs_cuda_nvcomp_stand_in::{FAILS, StandIn};

use super::*;
use crate::engine::cuda::Compressors;
use crate::engine::{BloscStage, Cname, Shuffle};

pub(super) fn with(library: StandIn) -> Compressors {
    Compressors {
        nvcomp: Some(library.path()),
        ..Compressors::default()
    }
}

pub(super) fn engine_with(
    simulation: &Arc<Simulation>,
    library: StandIn,
    chain: &KnownChain,
) -> CudaEngine {
    engine_on(simulation).for_chain(chain, with(library))
}

pub(super) fn compressors() -> Vec<Stage> {
    let mut stages = vec![Stage::Zstd {
        level: 3,
        checksum: false,
    }];
    stages.extend([1, 4, 9].map(|level| Stage::Gzip { level }));
    for cname in [Cname::Lz4, Cname::Zstd] {
        for shuffle in [Shuffle::None, Shuffle::Byte, Shuffle::Bit] {
            for (typesize, blocksize) in [(2, 0), (2, 32), (1, 16), (4, 64), (3, 48), (300, 0)] {
                stages.push(Stage::Blosc(BloscStage {
                    cname,
                    level: 5,
                    shuffle,
                    typesize,
                    blocksize,
                }));
            }
        }
    }
    stages
}

impl Shard {
    /// The same elements, compressed, with checksums before that and behind it.
    pub(super) fn compressed(mut self, before: usize, stage: Stage, after: usize) -> Self {
        let crc32c = |number| std::iter::repeat_n(Stage::Crc32c, number);
        self.chain.stages = crc32c(before).chain([stage]).chain(crc32c(after)).collect();
        self
    }

    /// Encode on `engine`, and decode on the host.
    fn there_and_back(&self, engine: &CudaEngine) -> Result<(), EngineError> {
        let job = self.job();
        let encoded = engine.encode(&job, &self.elements, 3, 5)?;
        assert!(encoded.bytes.capacity() >= encoded.bytes.len() + 5);
        assert_eq!(encoded.bytes[..3], [0; 3]);
        let host = HostEngine.encode(&job, &self.elements, 3, 5)?;
        let mut end = 3;
        for (device, host) in std::iter::zip(&encoded.extents, &host.extents) {
            assert_eq!(device.is_some(), host.is_some());
            if let Some(extent) = device {
                assert_eq!(extent.start, end);
                end = extent.end;
            }
        }
        assert_eq!(end, encoded.bytes.len());
        for decoded in [
            HostEngine.decode(&job, &encoded.bytes, &encoded.extents)?,
            engine.decode(&job, &encoded.bytes, &encoded.extents)?,
        ] {
            assert!(decoded == self.elements, "decodes to something else");
        }
        Ok(())
    }
}

#[test]
fn every_compressor() {
    for (number, stage) in compressors().into_iter().enumerate() {
        for library in [StandIn::Six, StandIn::Five] {
            let (before, after) = (number % 2, number / 2 % 3);
            let shard = Shard::of_kind(number).compressed(before, stage.clone(), after);
            let simulation = simulation(Schedule::Latest);
            let engine = engine_with(&simulation, library, &shard.chain);
            shard
                .there_and_back(&engine)
                .unwrap_or_else(|error| panic!("{stage} with {library:?}: {error}"));
            assert_eq!(engine.counters().encoded(), 1);
            drop(engine);
            assert_clean(&simulation);
        }
    }
}

#[test]
fn in_any_order() {
    let stages = compressors();
    for seed in 0..150 {
        let kind = usize::try_from(seed).expect("small");
        let stage = stages[kind % stages.len()].clone();
        let shard = Shard::of_kind(kind).compressed(0, stage.clone(), kind % 2);
        let schedule = match seed {
            0..20 => Schedule::Eager,
            _ => Schedule::Priority(seed),
        };
        let simulation = simulation(schedule);
        let engine = engine_with(&simulation, StandIn::Six, &shard.chain);
        shard
            .there_and_back(&engine)
            .unwrap_or_else(|error| panic!("{schedule:?}, {stage}: {error}"));
        drop(engine);
        assert_clean(&simulation);
    }
}

/// Some subchunks of a batch cannot be compressed there: the host compresses them, and they are in
/// their places.
#[test]
fn what_the_device_fails_on_the_host_compresses() {
    for (number, stage) in compressors().into_iter().enumerate() {
        let shard = Shard::of_kind(number).compressed(0, stage.clone(), number % 2);
        let simulation = simulation(Schedule::Latest);
        let engine = engine_with(&simulation, StandIn::Failing, &shard.chain);
        shard
            .there_and_back(&engine)
            .unwrap_or_else(|error| panic!("{stage}: {error}"));
        let empty = shard.elements.chunks(2).all(|e| e == shard.fill_value) && !shard.store_empty;
        let on_host = engine.counters().snapshot().subchunks_on_host;
        assert_eq!(on_host == 0, empty, "{stage}: {on_host}");
        drop(engine);
        assert_clean(&simulation);
    }
}

/// Each of the ways in which a chunk can fail, alone in its shard, at its begin, within, at its end.
#[test]
fn each_way_to_fail() {
    let zstd = Stage::Zstd {
        level: 1,
        checksum: false,
    };
    for way in 0..zarrs_cuda_nvcomp_stand_in::FAILURES {
        for subchunk in [0, 17, SUBCHUNKS - 1] {
            let mut shard = Shard::with(0, Empty::First(0), false).compressed(0, zstd.clone(), 1);
            shard.chain.order = vec![0, 1, 2];
            shard.chain.swap = 1;
            let marker = format!("{FAILS}{way}");
            let origin = shard.grid.origin(subchunk);
            let mut rest = marker.as_bytes();
            for y in 0..5 {
                let row = ((origin[0] * 20 + origin[1] + y) * 18 + origin[2]) * 2;
                let (now, later) = rest.split_at(rest.len().min(12));
                shard.elements[row..row + now.len()].copy_from_slice(now);
                rest = later;
            }
            let simulation = simulation(Schedule::Latest);
            let engine = engine_with(&simulation, StandIn::Six, &shard.chain);
            shard.there_and_back(&engine).expect("the host helps");
            assert_eq!(engine.counters().snapshot().subchunks_on_host, 1);
        }
    }
}

#[test]
fn why_a_chain_stays_on_the_host() {
    let blosc = |cname, level, blocksize| {
        Stage::Blosc(BloscStage {
            cname,
            level,
            shuffle: Shuffle::Byte,
            typesize: 2,
            blocksize,
        })
    };
    let zstd = |level, checksum| Stage::Zstd { level, checksum };
    for (stage, library, reason) in [
        (zstd(4, false), StandIn::Six, "zstd level 4"),
        (zstd(1, true), StandIn::Six, "content checksum"),
        (Stage::Gzip { level: 0 }, StandIn::Six, "gzip level 0"),
        (blosc(Cname::Lz4Hc, 5, 0), StandIn::Six, "blosc with lz4hc"),
        (
            blosc(Cname::BloscLz, 5, 0),
            StandIn::Six,
            "blosc with blosclz",
        ),
        (blosc(Cname::Lz4, 0, 0), StandIn::Six, "blosc level 0"),
        (blosc(Cname::Zstd, 6, 0), StandIn::Six, "blosc level 6"),
        (
            blosc(Cname::Zstd, 5, 20),
            StandIn::Six,
            "blocks of 20 bytes",
        ),
        (blosc(Cname::Lz4, 5, 0), StandIn::Incomplete, "lz4"),
        (zstd(1, false), StandIn::NoDevice, "temporary memory"),
        (zstd(1, false), StandIn::Four, "4.2"),
    ] {
        let shard = Shard::new(0).compressed(0, stage.clone(), 0);
        let simulation = simulation(Schedule::Eager);
        let engine = engine_with(&simulation, library, &shard.chain);
        match engine.encode(&shard.job(), &shard.elements, 0, 0) {
            Err(EngineError::Unsuitable(why)) => assert!(
                why.to_lowercase().contains(reason),
                "{stage}: {why}, not {reason}"
            ),
            other => panic!("{stage} with {library:?}: {other:?}"),
        }
    }
    let two = Shard::new(0).compressed(0, zstd(1, false), 0);
    let mut chain = two.chain.clone();
    chain.stages.push(Stage::Gzip { level: 1 });
    let reason = crate::engine::cuda::check_chain(&two.grid, &chain, Default::default());
    assert!(reason.is_err_and(|reason| reason.contains("one compressor")));
}

/// A lane has what was estimated, also for what a compressor asks for.
#[test]
fn a_smaller_budget_makes_smaller_batches() {
    let shard = Shard::new(0).compressed(0, compressors()[0].clone(), 0);
    let simulation = simulation(Schedule::Latest);
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let mut memory = 1 << 24;
    let mut estimates = Vec::new();
    loop {
        let limits = Limits {
            device_memory: Some(memory),
            ..limits()
        };
        let engine = CudaEngine::new(devices.clone(), limits, TINY)
            .for_chain(&shard.chain, with(StandIn::Six));
        let Ok(estimate) = engine.memory_estimate(&shard.grid, &shard.chain) else {
            break;
        };
        shard.there_and_back(&engine).expect("fits");
        devices.release_idle();
        estimates.push(estimate.device);
        memory = estimate.device - 1;
    }
    assert!(estimates.len() > 3, "{estimates:?}");
    assert!(estimates.is_sorted_by(|a, b| a > b));
    drop(devices);
    assert_clean(&simulation);
}
