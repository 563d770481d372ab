//! Shards with a compressor: a device with a stand-in for nvCOMP encodes them, the host decodes
//! them.

use zarrs_cuda_nvcomp_stand_in::{FAILS, FAILURES, SILENT, StandIn};

use super::*;
use crate::contract::{BloscStage, Cname, EncodedShard, Shuffle};
use crate::cuda::Compressors;
use crate::cuda::HighestLevels;
use crate::cuda::nvcomp::TEMP_SIZE_CALLS;

/// Returns the compressors of `library`, at every level.
pub(super) fn with(library: StandIn) -> Compressors {
    Compressors {
        levels: HighestLevels::ALL,
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
                stages.push(blosc(cname, shuffle, typesize, blocksize));
            }
        }
    }
    stages
}

impl Shard {
    /// Returns the same elements with a compressor, and with `before` and `after` checksums around
    /// it.
    pub(super) fn compressed(mut self, before: usize, stage: Stage, after: usize) -> Self {
        let crc32c = |number| std::iter::repeat_n(Stage::Crc32c, number);
        self.chain.stages = crc32c(before).chain([stage]).chain(crc32c(after)).collect();
        self
    }

    /// Encodes on `engine`, and decodes the result on the host and on `engine`.
    pub(super) fn there_and_back(
        &self,
        engine: &(impl Engine + Clone),
    ) -> Result<EncodedShard, EngineError> {
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
            strict(engine).decode(&job, &encoded.bytes, &encoded.extents)?,
        ] {
            assert!(decoded == self.elements, "decodes to something else");
        }
        Ok(encoded)
    }

    /// Returns a shard of one axis of `count` subchunks with `bytes` bytes each. The fill value is 0.
    pub(super) fn of_bytes(bytes: usize, count: usize, content: Content) -> Self {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut noise = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        let elements = (0..bytes * count).map(|i| match content {
            Content::Noise => noise(),
            Content::Constant => 7,
            Content::Text => b"to and fro "[i * 7 / 5 % 11],
            Content::SomeEmpty if i / bytes % 3 == 1 => 0,
            Content::SomeEmpty => noise() % 4 + 1,
        });
        Self {
            grid: SubchunkGrid::new(&[bytes as u64 * count as u64], &[bytes as u64], 1)
                .expect("divides"),
            chain: KnownChain {
                order: vec![0],
                swap: 1,
                stages: vec![],
            },
            elements: elements.collect(),
            fill_value: vec![0],
            store_empty: false,
        }
    }

    /// Returns a shard without empty subchunks whose elements lie in memory in the order of
    /// compression.
    fn markable(before: usize, stage: Stage, after: usize) -> Self {
        let mut shard = Self::with(0, Empty::First(0), false).compressed(before, stage, after);
        shard.chain.order = vec![0, 1, 2];
        shard.chain.swap = 1;
        shard
    }

    /// Makes the compression of a subchunk fail in one of the [`FAILURES`] ways.
    fn mark(&mut self, subchunk: usize, way: u8) {
        let marker = format!("{FAILS}{way}");
        let origin = self.grid.origin(subchunk);
        let mut rest = marker.as_bytes();
        for y in 0..5 {
            let row = ((origin[0] * 20 + origin[1] + y) * 18 + origin[2]) * 2;
            let (now, later) = rest.split_at(rest.len().min(12));
            self.elements[row..row + now.len()].copy_from_slice(now);
            rest = later;
        }
    }
}

/// The content of a shard.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    Noise,
    Constant,
    Text,
    SomeEmpty,
}

fn zstd() -> Stage {
    Stage::Zstd {
        level: 1,
        checksum: false,
    }
}

pub(super) fn blosc(cname: Cname, shuffle: Shuffle, typesize: usize, blocksize: usize) -> Stage {
    Stage::Blosc(BloscStage {
        cname,
        level: 5,
        shuffle,
        typesize,
        blocksize,
    })
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

/// The device fails to compress some subchunks of a batch. The host compresses them, and they are
/// in their places.
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

/// Each way in which a chunk can fail, alone in its shard: at its start, inside, and at its end.
#[test]
fn each_way_to_fail() {
    for way in 0..=SILENT {
        for subchunk in [0, 17, SUBCHUNKS - 1] {
            let mut shard = Shard::markable(0, zstd(), 1);
            shard.mark(subchunk, way);
            let simulation = simulation(Schedule::Latest);
            let engine = engine_with(&simulation, StandIn::Six, &shard.chain);
            shard.there_and_back(&engine).expect("the host helps");
            assert_eq!(engine.counters().snapshot().subchunks_on_host, 1);
        }
    }
}

/// All subchunks of a shard fail, or all of a batch, which then has nothing to copy back; the first
/// and the last of batches; all but one. The result is the host engine's.
#[test]
fn wherever_chunks_fail() {
    let stages = [
        zstd(),
        Stage::Gzip { level: 4 },
        blosc(Cname::Zstd, Shuffle::None, 2, 0),
        blosc(Cname::Lz4, Shuffle::Byte, 1, 32),
    ];
    let batch = crate::layout::batches(&Shard::new(0).grid, Tuning::TINY.compressed_batch / 120);
    assert_eq!(batch.len(), 3, "batches of twelve");
    let places: [fn(usize) -> bool; 10] = [
        |_| true,
        |subchunk| subchunk == 0,
        |subchunk| subchunk == SUBCHUNKS - 1,
        |subchunk| subchunk % 12 == 0,
        |subchunk| subchunk % 12 == 11,
        |subchunk| subchunk < 12,
        |subchunk| (12..24).contains(&subchunk),
        |subchunk| subchunk >= 24,
        |subchunk| subchunk % 2 == 1,
        |subchunk| subchunk != 13,
    ];
    for (number, stage) in stages.iter().enumerate() {
        for (place, fails) in places.iter().enumerate() {
            for after in 0..3 {
                let mut shard = Shard::markable((number + place) % 2, stage.clone(), after);
                let failing: Vec<usize> = (0..SUBCHUNKS).filter(|&i| fails(i)).collect();
                for &subchunk in &failing {
                    shard.mark(subchunk, (subchunk % usize::from(FAILURES)) as u8);
                }
                let schedule = [Schedule::Latest, Schedule::Eager][place % 2];
                let simulation = simulation(schedule);
                let engine = engine_with(&simulation, StandIn::Six, &shard.chain);
                let encoded = shard
                    .there_and_back(&engine)
                    .unwrap_or_else(|error| panic!("{stage}, place {place}: {error}"));
                let on_host = engine.counters().snapshot().subchunks_on_host;
                assert_eq!(on_host, failing.len() as u64, "{stage}, place {place}");
                let host = HostEngine
                    .encode(&shard.job(), &shard.elements, 0, 0)
                    .expect("the host encodes");
                for subchunk in failing {
                    let here = encoded.extents[subchunk].clone().expect("stored");
                    let there = host.extents[subchunk].clone().expect("stored");
                    assert!(
                        encoded.bytes[here] == host.bytes[there],
                        "{stage}, subchunk {subchunk}"
                    );
                }
                drop(engine);
                assert_clean(&simulation);
            }
        }
    }
}

/// Subchunks from one byte on, at the sizes where headers and launches change. Some contents are
/// incompressible or overflow the space for their frame, and the host compresses some subchunks.
#[test]
fn subchunks_of_any_size_and_content() {
    let stages = [
        zstd(),
        Stage::Gzip { level: 1 },
        blosc(Cname::Lz4, Shuffle::Byte, 4, 0),
        blosc(Cname::Zstd, Shuffle::Bit, 2, 256),
    ];
    let contents = [
        Content::Noise,
        Content::Constant,
        Content::Text,
        Content::SomeEmpty,
    ];
    let sizes = [
        1, 2, 3, 8, 15, 16, 17, 127, 128, 255, 256, 257, 4092, 4096, 4100,
    ];
    for (number, stage) in stages.iter().enumerate() {
        for (size, bytes) in sizes.into_iter().enumerate() {
            for content in contents {
                let library = [StandIn::Six, StandIn::Failing][(number + size) % 2];
                let mut shard = Shard::of_bytes(bytes, 7, content);
                shard.store_empty = size % 3 == 0;
                let shard = shard.compressed(size / 2 % 2, stage.clone(), size / 4 % 2);
                let simulation = simulation(Schedule::Latest);
                let engine = engine_with(&simulation, library, &shard.chain);
                shard.there_and_back(&engine).unwrap_or_else(|error| {
                    panic!("{stage}, {bytes} bytes of {content:?}, {library:?}: {error}")
                });
                drop(engine);
                assert_clean(&simulation);
            }
        }
    }
}

/// nvCOMP's limit for deflate is small enough to test. Checksums before the compressor count too.
#[test]
fn the_largest_subchunks_of_deflate() {
    for (before, bytes, fits) in [
        (0, 65_535, true),
        (0, 65_536, true),
        (0, 65_537, false),
        (1, 65_532, true),
        (1, 65_533, false),
    ] {
        for content in [Content::Noise, Content::SomeEmpty] {
            let stage = Stage::Gzip { level: 1 };
            let shard = Shard::of_bytes(bytes, 3, content).compressed(before, stage, 1);
            let simulation = simulation(Schedule::Latest);
            let engine = engine_with(&simulation, StandIn::Six, &shard.chain);
            match shard.there_and_back(&engine) {
                Ok(_) => assert!(fits, "{bytes} bytes, {before} checksums"),
                Err(EngineError::Unsuitable(why)) if !fits => {
                    assert!(why.contains("at most 65536 bytes"), "{why}");
                }
                Err(error) => panic!("{bytes} bytes, {before} checksums: {error}"),
            }
            drop(engine);
            assert_clean(&simulation);
        }
    }
}

/// The largest chunks that nvCOMP's headers allow, and one byte more; and Blosc's limits.
#[test]
fn the_largest_chunks_of_a_plan() {
    let blosc = |cname, blocksize| blosc(cname, Shuffle::None, 1, blocksize);
    let gib = 1 << 30;
    for (stage, before, bytes, refused) in [
        (zstd(), 0, 16_000_000, None),
        (zstd(), 0, 16_000_001, Some("at most 16000000")),
        (zstd(), 1, 15_999_996, None),
        (zstd(), 1, 15_999_997, Some("at most 16000000")),
        (Stage::Gzip { level: 9 }, 0, 65_536, None),
        (
            Stage::Gzip { level: 9 },
            0,
            65_537,
            Some("at most 65536 bytes"),
        ),
        (blosc(Cname::Lz4, 0), 0, gib, None),
        (blosc(Cname::Lz4, 1 << 24), 0, gib, None),
        (
            blosc(Cname::Lz4, (1 << 24) + 16),
            0,
            gib,
            Some("at most 16777216"),
        ),
        // Blocks are no larger than the content.
        (blosc(Cname::Lz4, (1 << 24) + 16), 0, 1 << 24, None),
        (blosc(Cname::Lz4, gib), 0, (1 << 24) + 1, Some("at most")),
        (blosc(Cname::Zstd, 16_000_000), 0, gib, None),
        (
            blosc(Cname::Zstd, 16_000_016),
            0,
            gib,
            Some("at most 16000000"),
        ),
        (blosc(Cname::Zstd, 0), 0, 2_147_000_000, None),
        (
            blosc(Cname::Zstd, 0),
            0,
            2_147_400_000,
            Some("Blosc has no frames"),
        ),
    ] {
        let shape = [bytes as u64];
        let grid = SubchunkGrid::new(&shape, &shape, 1).expect("divides");
        let shard = Shard::new(0).compressed(before, stage.clone(), 0);
        let planned = crate::cuda::check_chain(&grid, &shard.chain, HighestLevels::ALL);
        match (planned, refused) {
            (Ok(()), None) => {}
            (Err(why), Some(part)) => assert!(why.contains(part), "{stage}, {bytes}: {why}"),
            (other, _) => panic!("{stage}, {before} checksums, {bytes} bytes: {other:?}"),
        }
    }
}

/// A library that requires the coarsest alignments, with slots of any length.
#[test]
fn the_alignments_that_a_library_asks_for() {
    let stages = [
        zstd(),
        Stage::Gzip { level: 1 },
        blosc(Cname::Lz4, Shuffle::Byte, 2, 0),
        blosc(Cname::Zstd, Shuffle::Bit, 4, 512),
    ];
    for stage in stages {
        for bytes in [1, 17, 256, 4095, 4096, 4224, 5000] {
            let shard = Shard::of_bytes(bytes, 5, Content::Text).compressed(0, stage.clone(), 1);
            let simulation = simulation(Schedule::Latest);
            let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
            let engine = CudaEngine::new(devices, limits(), Tuning::DEFAULT)
                .for_chain(&shard.chain, with(StandIn::Coarse));
            shard
                .there_and_back(&engine)
                .unwrap_or_else(|error| panic!("{stage}, {bytes} bytes: {error}"));
            drop(engine);
            assert_clean(&simulation);
        }
    }
    let shard = Shard::new(0).compressed(0, blosc(Cname::Lz4, Shuffle::None, 2, 32), 0);
    let simulation = simulation(Schedule::Latest);
    let engine = engine_with(&simulation, StandIn::Coarse, &shard.chain);
    let error = engine.encode(&shard.job(), &shard.elements, 0, 0);
    let error = error.expect_err("blocks of 32 bytes").to_string();
    assert!(error.contains("multiples of 256"), "{error}");
}

/// Encodes the same bytes again: from another lane, with other threads, in any order of the device.
#[test]
fn the_same_shard_again() {
    for (number, stage) in compressors().into_iter().enumerate() {
        let library = [StandIn::Six, StandIn::Failing][number % 2];
        let shard = Shard::of_kind(number).compressed(0, stage.clone(), number % 2);
        let mut first: Option<EncodedShard> = None;
        for (schedule, threads) in [
            (Schedule::Eager, 1),
            (Schedule::Latest, 4),
            (Schedule::Priority(number as u64), 16),
        ] {
            let simulation = simulation(schedule);
            let engine = engine_with(&simulation, library, &shard.chain);
            let job = ShardJob {
                threads: NonZeroUsize::new(threads).expect("positive"),
                ..shard.job()
            };
            for _ in 0..2 {
                let again = engine
                    .encode(&job, &shard.elements, 3, 5)
                    .expect("no fault");
                if let Some(first) = &first {
                    assert!(first.bytes == again.bytes, "{stage}, {schedule:?}");
                    assert_eq!(first.extents, again.extents);
                }
                first = Some(again);
                engine.devices.release_idle();
            }
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
        (
            blosc(Cname::Lz4, 6, 0),
            StandIn::Six,
            "blosc with lz4 of level 6",
        ),
        (
            blosc(Cname::Zstd, 3, 0),
            StandIn::Six,
            "blosc with zstd of level 3",
        ),
        (
            blosc(Cname::Zstd, 2, 20),
            StandIn::Six,
            "blocks of 20 bytes",
        ),
        (blosc(Cname::Lz4, 5, 0), StandIn::Incomplete, "lz4"),
        (zstd(1, false), StandIn::NoDevice, "temporary memory"),
        (zstd(1, false), StandIn::Four, "4.2"),
    ] {
        let shard = Shard::new(0).compressed(0, stage.clone(), 0);
        let simulation = simulation(Schedule::Eager);
        let compressors = Compressors {
            levels: HighestLevels::default(),
            ..with(library)
        };
        let engine = engine_on(&simulation).for_chain(&shard.chain, compressors);
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
    let reason = crate::cuda::check_chain(&two.grid, &chain, HighestLevels::default());
    assert!(reason.is_err_and(|reason| reason.contains("one compressor")));
}

/// A lane allocates as much as was estimated, including the compressor's requirements. Less memory
/// makes more batches, and too little makes an error.
#[test]
fn a_smaller_budget_makes_smaller_batches_and_then_a_reason() {
    for stage in [
        zstd(),
        Stage::Gzip { level: 1 },
        blosc(Cname::Lz4, Shuffle::Bit, 2, 32),
    ] {
        let shard = Shard::new(0).compressed(0, stage.clone(), 0);
        let simulation = simulation(Schedule::Latest);
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let mut memory = 1 << 24;
        let (mut estimates, mut launches) = (Vec::new(), Vec::new());
        let error = loop {
            let limits = DeviceLimits {
                device_memory: Some(memory),
                ..limits()
            };
            let engine = CudaEngine::new(devices.clone(), limits, Tuning::TINY)
                .for_chain(&shard.chain, with(StandIn::Six));
            match engine.memory_estimate(&shard.grid, &shard.chain) {
                Ok(estimate) => {
                    let before = simulation.counts().launches;
                    shard.there_and_back(&engine).expect("fits");
                    launches.push(simulation.counts().launches - before);
                    assert_eq!(devices.used().device, estimate.device);
                    devices.release_idle();
                    estimates.push(estimate.device);
                    memory = estimate.device - 1;
                }
                Err(error) => {
                    let encoded = engine.encode(&shard.job(), &shard.elements, 0, 0);
                    assert!(matches!(encoded, Err(EngineError::Unsuitable(_))));
                    break error;
                }
            }
        };
        assert!(estimates.len() > 3, "{estimates:?}");
        assert!(estimates.is_sorted_by(|a, b| a > b));
        assert!(launches.is_sorted(), "{launches:?}");
        assert!(
            launches[0] * 5 < launches[launches.len() - 1],
            "{launches:?}"
        );
        let text = error.to_string();
        let names_it = text.contains("with_device_memory") && text.contains(&memory.to_string());
        assert!(names_it, "{stage}: {text}");
        drop(devices);
        assert_clean(&simulation);
    }
}

/// The host decodes shards with a compressor. If it cannot, that is not a fault of the device.
#[test]
fn corrupt_shards_are_no_fallbacks() {
    let shard = Shard::new(0).compressed(0, zstd(), 0);
    let simulation = simulation(Schedule::Eager);
    let engine = WithFallback::new(engine_with(&simulation, StandIn::Six, &shard.chain));
    let mut encoded = shard.there_and_back(&engine).expect("no fault");
    encoded.bytes[3..].fill(0);
    let decoded = engine.decode(&shard.job(), &encoded.bytes, &encoded.extents);
    assert!(
        matches!(decoded, Err(EngineError::Decode { .. })),
        "{decoded:?}"
    );
    let fallbacks = engine.device.counters().snapshot().fallbacks;
    assert!(fallbacks.is_empty(), "{fallbacks:?}");
}

/// The library's call itself fails, so no chunk is to blame. A library that reports this at once,
/// as in the eager simulation, leaves nothing behind. Otherwise its stream is not known to be
/// empty, and the stream's memory is leaked.
#[test]
fn a_library_that_refuses_a_batch() {
    let shard = Shard::new(0).compressed(0, blosc(Cname::Lz4, Shuffle::Byte, 2, 32), 1);
    for schedule in [Schedule::Eager, Schedule::Latest, Schedule::Priority(5)] {
        let simulation = simulation(schedule);
        let engine = engine_with(&simulation, StandIn::Refusing, &shard.chain);
        for _ in 0..2 {
            let refused = shard.there_and_back(&engine);
            let error = refused.expect_err("the library refuses");
            assert!(matches!(error, EngineError::Device(_)), "{error}");
            assert!(error.to_string().contains("nvCOMP 6.0"), "{error}");
        }
        let other = CudaEngine::new(engine.devices.clone(), limits(), Tuning::TINY)
            .for_chain(&shard.chain, with(StandIn::Six));
        shard.there_and_back(&other).expect("another library");
        drop(other);
        let engine = WithFallback::new(engine);
        shard.there_and_back(&engine).expect("the host has it");
        let fallbacks = engine.device.counters().snapshot().fallbacks;
        assert_eq!(fallbacks.values().sum::<u64>(), 1, "{fallbacks:?}");
        drop(engine);
        if schedule == Schedule::Eager {
            assert_clean(&simulation);
        }
        assert!(simulation.violations().is_empty());
        assert_eq!(simulation.live().entered, 0);
    }
}

/// Only the first shard of a kind asks nvCOMP how much temporary memory a batch needs.
#[test]
fn only_the_first_shard_asks_for_temporary_memory() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::new(0).compressed(0, compressors().remove(0), 1);
    let engine = engine_with(&simulation, StandIn::Six, &shard.chain);
    let encode = || engine.encode(&shard.job(), &shard.elements, 3, 5).unwrap();
    let before = TEMP_SIZE_CALLS.get();
    encode();
    let first = TEMP_SIZE_CALLS.get();
    assert!(first > before);
    for _ in 0..3 {
        encode();
    }
    assert_eq!(TEMP_SIZE_CALLS.get(), first);
    drop(engine);
    assert_clean(&simulation);
}
