//! Shards with a compressor: decoded on a device with a stand-in for nvCOMP. The stand-in aborts
//! the process if it gets corrupt data.

use std::panic::{AssertUnwindSafe, catch_unwind};

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::compression::{compressors, with};
use super::*;
use crate::contract::{BloscStage, Cname, EncodedShard, Shuffle};
use crate::cuda::driver::Site;
use crate::cuda::driver::simulation::Inject;
use crate::cuda::{
    Compressors, DeviceMetrics, HighestLevels, check_chain, check_decoding, compressed_frame_parts,
};
use crate::layout::Extent;

fn decoding(library: StandIn) -> Compressors {
    Compressors {
        decode: true,
        ..with(library)
    }
}

pub(super) fn decoder(
    simulation: &Arc<Simulation>,
    library: StandIn,
    chain: &KnownChain,
) -> CudaEngine {
    engine_on(simulation).for_chain(chain, decoding(library))
}

const ZSTD: Stage = Stage::Zstd {
    level: 3,
    checksum: false,
};
const GZIP: Stage = Stage::Gzip { level: 6 };

fn blosc(cname: Cname, shuffle: Shuffle, typesize: usize, blocksize: usize) -> Stage {
    Stage::Blosc(BloscStage {
        cname,
        level: 5,
        shuffle,
        typesize,
        blocksize,
    })
}

impl Shard {
    /// 2 × 2 × 4 subchunks of 4 × 8 × 8 elements of 2 bytes: large enough that C-Blosc compresses
    /// them. Some are empty, among them all of the first batch. The first half of two others is
    /// incompressible.
    pub(super) fn larger() -> Self {
        let grid = SubchunkGrid::new(&[8, 16, 32], &[4, 8, 8], 2).expect("divides");
        let mut noise = 1_u32;
        let elements = (0..8 * 16 * 32)
            .flat_map(|i: usize| {
                let (z, y, x) = (i / 512, i / 32 % 16, i % 32);
                let subchunk = (z / 4 * 2 + y / 8) * 4 + x / 8;
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let [a, b, ..] = noise.to_be_bytes();
                match subchunk {
                    0..=3 | 9 => [7, 0x80],
                    5 | 8 if z % 4 < 2 => [a, b],
                    _ => [(x / 2) as u8, (y / 4) as u8],
                }
            })
            .collect();
        Self {
            grid,
            elements,
            ..Self::new(0)
        }
    }

    /// Returns the elements of each stored subchunk as they are before the first stage.
    fn stored(&self) -> Vec<Option<Vec<u8>>> {
        let chain = KnownChain {
            stages: Vec::new(),
            ..self.chain.clone()
        };
        let job = ShardJob {
            chain: Chain::Known(&chain),
            ..self.job()
        };
        let shard = HostEngine
            .encode(&job, &self.elements, 0, 0)
            .expect("encodes");
        let bytes = |extent: &Extent| extent.clone().map(|extent| shard.bytes[extent].to_vec());
        shard.extents.iter().map(bytes).collect()
    }

    /// A shard whose subchunks `encode` makes from the stored elements.
    fn encoded_by(&self, encode: impl Fn(usize, &[u8]) -> Vec<u8>) -> EncodedShard {
        let mut shard = EncodedShard {
            bytes: b"index".to_vec(),
            extents: Vec::new(),
        };
        for (number, stored) in self.stored().iter().enumerate() {
            shard.extents.push(stored.as_ref().map(|stored| {
                let start = shard.bytes.len();
                shard.bytes.extend(encode(number, stored));
                start..shard.bytes.len()
            }));
        }
        shard
    }

    /// Returns the shard without the content checksums of its zstd frames, which a device does not
    /// accept.
    fn without_zstd_checksums(&self, shard: &EncodedShard) -> EncodedShard {
        let mut stages = self.chain.stages.iter();
        let stage = stages
            .find(|stage| !stage.is_fixed_size())
            .expect("compresses");
        let after = stages.len();
        let mut without = EncodedShard {
            bytes: Vec::new(),
            extents: Vec::new(),
        };
        for extent in &shard.extents {
            without.extents.push(extent.clone().map(|extent| {
                let frame = &shard.bytes[extent.start..extent.end - 4 * after];
                let mut frame = match stage {
                    Stage::Zstd { .. } => without_zstd_checksum(frame),
                    Stage::Blosc(blosc) if blosc.cname == Cname::Zstd => {
                        without_zstd_checksums_within(frame)
                    }
                    _ => frame.to_vec(),
                };
                for _ in 0..after {
                    frame.extend(crc32c::crc32c(&frame).to_le_bytes());
                }
                let start = without.bytes.len();
                without.bytes.extend(frame);
                start..without.bytes.len()
            }));
        }
        without
    }

    fn encoded_on_host(&self) -> EncodedShard {
        HostEngine
            .encode(&self.job(), &self.elements, 3, 5)
            .expect("encodes")
    }

    /// Decodes `shard` on `engine`, and checks the elements. Returns why the host decoded it, if it
    /// did.
    fn decode(&self, engine: &CudaEngine, shard: &EncodedShard) -> Option<String> {
        let before = engine.counters().snapshot();
        let decoded = strict(engine)
            .decode(&self.job(), &shard.bytes, &shard.extents)
            .unwrap_or_else(|error| panic!("{:?}: {error}", self.chain.stages));
        assert!(decoded == self.elements, "{:?}", self.chain.stages);
        let after = engine.counters().snapshot();
        let reason = after
            .fallbacks
            .iter()
            .find(|(reason, count)| before.fallbacks.get(*reason) != Some(count))
            .map(|(reason, _)| reason.clone());
        let on_device = after.shards_decoded - before.shards_decoded;
        assert_eq!(on_device, u64::from(reason.is_none()), "{reason:?}");
        reason
    }
}

/// Removes the content checksum from a zstd frame, if it has one.
fn without_zstd_checksum(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if frame[4] & 4 != 0 {
        frame[4] &= !4;
        frame.truncate(frame.len() - 4);
    }
    frame
}

/// The same for each stream of a Blosc frame whose blocks have `block` bytes.
fn without_zstd_checksums_within(frame: &[u8]) -> Vec<u8> {
    let integer = |at: usize| {
        let bytes = frame[at..].first_chunk().expect("there");
        u32::from_le_bytes(*bytes) as usize
    };
    let (bytes, block) = (integer(4), integer(8));
    let blocks = bytes.div_ceil(block);
    let mut without = frame[..16 + 4 * blocks].to_vec();
    for number in 0..blocks {
        let start = integer(16 + 4 * number);
        let mut stream = frame[start + 4..][..integer(start)].to_vec();
        if stream.len() < block.min(bytes - number * block) {
            stream = without_zstd_checksum(&stream);
        }
        let at = (without.len() as u32).to_le_bytes();
        without[16 + 4 * number..][..4].copy_from_slice(&at);
        without.extend((stream.len() as u32).to_le_bytes());
        without.extend(stream);
    }
    let len = (without.len() as u32).to_le_bytes();
    without[12..16].copy_from_slice(&len);
    without
}

/// Decodes the host's shard and the device's, and returns why each was decoded on the host, if it
/// was. The stand-in gives some zstd frames a content checksum, which nvCOMP never does: these are
/// removed.
fn decode_all(
    shard: &Shard,
    schedule: Schedule,
    library: StandIn,
) -> (Option<String>, Option<String>) {
    let simulation = simulation(schedule);
    let engine = decoder(&simulation, library, &shard.chain);
    let by_host = shard.decode(&engine, &shard.encoded_on_host());
    let encoded = engine.encode(&shard.job(), &shard.elements, 3, 5);
    let encoded = encoded.expect("encodes");
    let mut by_device = shard.decode(&engine, &encoded);
    if by_device
        .as_ref()
        .is_some_and(|reason| reason.contains("content checksum"))
    {
        by_device = shard.decode(&engine, &shard.without_zstd_checksums(&encoded));
    }
    drop(engine);
    assert_clean(&simulation);
    (by_host, by_device)
}

/// Returns whether a device must be able to decode a shard that the host wrote.
pub(super) fn is_for_device(stage: &Stage, library: StandIn) -> bool {
    match stage {
        Stage::Blosc(blosc) => {
            let aligned = blosc.blocksize == 0 || blosc.typesize != 3;
            // C-Blosc does not make smaller blocks.
            let whole = blosc.blocksize == 0 || blosc.blocksize >= 128;
            aligned && whole && library == StandIn::Six
        }
        _ => true,
    }
}

#[test]
fn every_compressor() {
    let mut stages = compressors();
    for cname in [Cname::Lz4, Cname::Zstd] {
        for shuffle in [Shuffle::None, Shuffle::Byte, Shuffle::Bit] {
            for (typesize, blocksize) in [(2, 128), (1, 256), (4, 320)] {
                stages.push(blosc(cname, shuffle, typesize, blocksize));
            }
        }
    }
    let (mut on_device, mut on_host) = (0, 0);
    for (number, stage) in stages.into_iter().enumerate() {
        for library in [StandIn::Six, StandIn::Five] {
            for schedule in [Schedule::Eager, Schedule::Latest] {
                let (before, after) = (number % 2, number / 2 % 3);
                for shard in [Shard::of_kind(number), Shard::larger()] {
                    let is_larger = shard.grid.subchunk_bytes() == 512;
                    let shard = shard.compressed(before, stage.clone(), after);
                    let is_empty = shard.encoded_on_host().extents.iter().all(Option::is_none);
                    let (by_host, by_device) = decode_all(&shard, schedule, library);
                    if is_empty {
                        let reason = Some("no subchunk is stored".to_string());
                        assert_eq!((&by_host, &by_device), (&reason, &reason));
                        continue;
                    }
                    assert_eq!(by_device, None, "{stage} {before} {after}");
                    let is_blosc = matches!(stage, Stage::Blosc(_));
                    if !is_blosc || is_larger && before == 0 && is_for_device(&stage, library) {
                        assert_eq!(by_host, None, "{stage:?} {before} {after} {library:?}");
                    }
                    match by_host {
                        None => on_device += 1,
                        Some(reason) => {
                            assert!(reason.contains("Blosc"), "{reason}");
                            on_host += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(on_device > 100 && on_host > 50, "{on_device}, {on_host}");
}

#[test]
fn in_any_order() {
    let stages = compressors();
    for seed in zarrs_cuda_testing::effort::seeds(75) {
        let kind = usize::try_from(seed).expect("small");
        let stage = stages[kind % stages.len()].clone();
        let shard = match seed % 3 {
            0 => Shard::larger(),
            _ => Shard::of_kind(kind),
        };
        let shard = shard.compressed(kind % 3, stage, kind % 2);
        decode_all(&shard, Schedule::Priority(seed), StandIn::Six);
    }
}

/// Decodes `shard`, which the host encoded, on `simulation`. Returns the first failure of any kind.
fn run(simulation: &Arc<Simulation>, shard: &Shard, streams: usize) -> Result<(), String> {
    let encoded = shard.encoded_on_host();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let engine = decoder(simulation, StandIn::Six, &shard.chain).with_times(true);
        let engine = with_streams(engine, streams);
        let decoded = strict(&engine).decode(&shard.job(), &encoded.bytes, &encoded.extents);
        let counts = engine.counters().snapshot();
        drop(engine);
        let decoded = decoded.map_err(|error| error.to_string())?;
        match counts.fallbacks.keys().next() {
            Some(reason) => Err(format!("on the host: {reason}")),
            None if decoded != shard.elements => Err("the shard is wrong".to_string()),
            None => Ok(()),
        }
    }));
    if let Some(violation) = simulation.violations().first() {
        return Err(violation.message.clone());
    }
    outcome.unwrap_or_else(|_| Err("it panics".to_string()))
}

/// A launch is rejected in the middle of a shard, while its streams are full.
fn run_into_fault(
    simulation: &Arc<Simulation>,
    shard: &Shard,
    streams: usize,
) -> Result<(), String> {
    simulation.inject(Inject::Refused { launch: 12 });
    let outcome = run(simulation, shard, streams);
    if let Some(violation) = simulation.violations().first() {
        return Err(violation.message.clone());
    }
    match outcome {
        Err(refused) if refused.contains("refused") => Ok(()),
        other => Err(format!("{other:?}, where a launch was refused")),
    }
}

/// Removes each wait, record and synchronisation in turn. Every removal fails the first run.
#[test]
fn without_any_one_wait_record_or_synchronisation_the_first_run_fails() {
    for streams in [1, 3] {
        without_any_one_the_first_run_fails(streams);
    }
}

fn without_any_one_the_first_run_fails(streams: usize) {
    let with_removed = |removed: Option<Site>| {
        Arc::new(Simulation::new(Config {
            schedule: Schedule::Latest,
            removed,
            ..Config::default()
        }))
    };
    let shards = [
        Shard::new(0).compressed(1, GZIP, 1),
        Shard::larger().compressed(0, blosc(Cname::Zstd, Shuffle::Byte, 2, 128), 0),
    ];
    let run_all = |removed| {
        shards.iter().try_for_each(|shard| {
            run(&with_removed(removed), shard, streams)?;
            run_into_fault(&with_removed(removed), shard, streams)
        })
    };
    run_all(None).expect("the engine as it is");
    let all = with_removed(None);
    run(&all, &shards[0], streams).expect("as it is");
    assert!(all.sites().len() >= 10, "{:?}", all.sites());
    for site in all.sites() {
        match run_all(Some(site)) {
            Ok(()) => panic!("the engine does not need \"{}\"", site.0),
            Err(what) => println!("without \"{}\": {what}", site.0),
        }
    }
}

#[test]
fn it_has_to_be_asked_for() {
    let shard = Shard::new(0).compressed(0, ZSTD, 0);
    let simulation = simulation(Schedule::Eager);
    let engine = engine_on(&simulation).for_chain(&shard.chain, with(StandIn::Six));
    assert!(!engine.decodes_whole_shards());
    let encoded = shard.encoded_on_host();
    let decoded = strict(&engine).decode(&shard.job(), &encoded.bytes, &encoded.extents);
    assert!(decoded.expect("decodes") == shard.elements);
    assert_eq!(engine.counters().snapshot(), DeviceMetrics::default());

    let engine = decoder(&simulation, StandIn::Six, &shard.chain);
    assert!(engine.decodes_whole_shards());
    for stage in [
        blosc(Cname::Snappy, Shuffle::None, 1, 0),
        Stage::Zstd {
            level: 1,
            checksum: true,
        },
    ] {
        let shard = Shard::new(0).compressed(0, stage, 0);
        assert!(!decoder(&simulation, StandIn::Six, &shard.chain).decodes_whole_shards());
    }
}

/// The host decodes chunks that nvCOMP cannot decompress, or says that it cannot.
#[test]
fn where_a_chunk_fails_the_host_decodes_the_shard() {
    let small = || Shard::with(0, Empty::EachThird, false);
    for shard in [
        small().compressed(1, ZSTD, 0),
        small().compressed(0, GZIP, 1),
        Shard::larger().compressed(0, blosc(Cname::Zstd, Shuffle::Bit, 2, 128), 0),
    ] {
        let simulation = simulation(Schedule::Latest);
        let engine = decoder(&simulation, StandIn::Failing, &shard.chain);
        for _ in 0..2 {
            let reason = shard.decode(&engine, &shard.encoded_on_host());
            assert_eq!(
                reason.as_deref(),
                Some("nvCOMP could not decompress a chunk")
            );
        }
        drop(engine);
        assert_clean(&simulation);
    }
}

/// If the library cannot decompress a format, the host decodes it.
#[test]
fn without_a_decompressor_the_host_decodes() {
    let shard = Shard::new(0).compressed(0, GZIP, 0);
    let simulation = simulation(Schedule::Latest);
    let engine = decoder(&simulation, StandIn::Incomplete, &shard.chain);
    let reason = shard.decode(&engine, &shard.encoded_on_host());
    let reason = reason.expect("on the host");
    assert!(reason.contains("Deflate"), "{reason}");
}

/// A device fault is an error, except for engines that fall back.
#[test]
fn a_fault_of_the_device_is_no_reason_for_the_host() {
    let shard = Shard::larger().compressed(0, ZSTD, 1);
    let encoded = shard.encoded_on_host();
    let refusing = || {
        let simulation = simulation(Schedule::Latest);
        simulation.inject(Inject::Refused { launch: 3 });
        simulation
    };
    let first = refusing();
    let engine = decoder(&first, StandIn::Six, &shard.chain);
    let refused = strict(&engine).decode(&shard.job(), &encoded.bytes, &encoded.extents);
    assert!(
        matches!(refused, Err(EngineError::Device(_))),
        "{refused:?}"
    );
    assert_eq!(shard.decode(&engine, &encoded), None);

    let encoding = simulation(Schedule::Latest);
    let encoder = decoder(&encoding, StandIn::Six, &shard.chain);
    encoding.inject(Inject::Refused { launch: 0 });
    let refused = strict(&encoder).encode(&shard.job(), &shard.elements, 0, 0);
    assert!(matches!(refused, Err(EngineError::Device(_))));
    drop(engine);
    assert_clean(&first);

    let second = refusing();
    let engine = WithFallback::new(decoder(&second, StandIn::Six, &shard.chain));
    let decoded = engine.decode(&shard.job(), &encoded.bytes, &encoded.extents);
    assert!(decoded.expect("the host has it") == shard.elements);
    drop(engine);
    assert_clean(&second);
}

pub(super) fn compress_zstd(content: &[u8], parameters: &[zstd_safe::CParameter]) -> Vec<u8> {
    let mut context = zstd_safe::CCtx::create();
    for parameter in parameters {
        context.set_parameter(*parameter).expect("a parameter");
    }
    let mut frame = vec![0; zstd_safe::compress_bound(content.len())];
    let len = context
        .compress2(&mut frame[..], content)
        .expect("compresses");
    frame.truncate(len);
    frame
}

fn compress_gzip(content: &[u8]) -> Vec<u8> {
    let mut compressor = libdeflater::Compressor::new(libdeflater::CompressionLvl::default());
    let mut member = vec![0; compressor.gzip_compress_bound(content.len())];
    let len = compressor
        .gzip_compress(content, &mut member)
        .expect("fits");
    member.truncate(len);
    member
}

/// Returns a gzip member with all of its optional fields.
fn with_all_fields(member: &[u8]) -> Vec<u8> {
    let mut with = member[..10].to_vec();
    with[3] = 0b1_1111;
    with.extend(b"\x06\x00ab\x02\x00xyname\0comment\0");
    let mut checksum = libdeflater::Crc::new();
    checksum.update(&with);
    with.extend(&checksum.sum().to_le_bytes()[..2]);
    with.extend(&member[10..]);
    with
}

/// Valid frames of other encoders, and whether the device decodes them.
#[test]
fn other_encoders_frames() {
    use zstd_safe::CParameter::{ChecksumFlag, ContentSizeFlag};
    let whole_frame = |stored: &[u8]| compress_zstd(stored, &[]);
    let skippable =
        |stored: &[u8]| [b"\x50\x2a\x4d\x18\x02\0\0\0..", &whole_frame(stored)[..]].concat();
    let two = |stored: &[u8]| {
        let (first, second) = stored.split_at(stored.len() / 2);
        [compress_zstd(first, &[]), compress_zstd(second, &[])].concat()
    };
    let one_of = |frame: &dyn Fn(&[u8]) -> Vec<u8>, whole: &dyn Fn(&[u8]) -> Vec<u8>| {
        let shard = Shard::larger();
        shard.encoded_by(|number, stored| match number {
            7 => frame(stored),
            _ => whole(stored),
        })
    };
    let followed =
        |stored: &[u8]| [&whole_frame(stored)[..], b"\x50\x2a\x4d\x18\x02\0\0\0.."].concat();
    let zstd = |frame: &dyn Fn(&[u8]) -> Vec<u8>| (ZSTD, one_of(frame, &whole_frame));
    let gzip = |frame: &dyn Fn(&[u8]) -> Vec<u8>| (GZIP, one_of(frame, &compress_gzip));
    let cases = [
        (zstd(&whole_frame), None),
        (
            zstd(&|stored| compress_zstd(stored, &[ContentSizeFlag(false)])),
            Some("does not tell the size"),
        ),
        (
            zstd(&|stored| compress_zstd(stored, &[ChecksumFlag(true)])),
            Some("content checksum"),
        ),
        (zstd(&skippable), Some("header of a zstd frame")),
        (zstd(&followed), Some("bytes behind a zstd frame")),
        (zstd(&two), Some("not of the size of a subchunk")),
        (gzip(&compress_gzip), None),
        (
            gzip(&|stored| with_all_fields(&compress_gzip(stored))),
            None,
        ),
        (
            // The host decodes the first member and ignores the bytes after it.
            gzip(&|stored| [compress_gzip(stored), compress_gzip(stored)].concat()),
            Some("several members"),
        ),
        (
            gzip(&|stored| [compress_gzip(stored), compress_gzip(b"more")].concat()),
            Some("gzip member is not of the size"),
        ),
    ];
    for ((stage, encoded), expected) in cases {
        let shard = Shard::larger().compressed(0, stage.clone(), 0);
        let simulation = simulation(Schedule::Latest);
        let engine = decoder(&simulation, StandIn::Six, &shard.chain);
        let reason = shard.decode(&engine, &encoded);
        match (&reason, expected) {
            (None, None) => {}
            (Some(reason), Some(expected)) if reason.contains(expected) => {}
            _ => panic!("{stage}: {reason:?}, not {expected:?}"),
        }
        drop(engine);
        assert_clean(&simulation);
    }
    for (stage, expected) in [
        (blosc(Cname::Zlib, Shuffle::Byte, 2, 0), "compressor"),
        (blosc(Cname::Lz4, Shuffle::Byte, 2, 0), "is not compressed"),
    ] {
        // Encodes with the other encoder's configuration. The chain under test is another one.
        let mut shard = Shard::larger().compressed(0, stage, 0);
        if expected.contains("not compressed") {
            shard = Shard {
                chain: shard.chain,
                ..Shard::new(0)
            };
        }
        let encoded = shard.encoded_on_host();
        shard.chain.stages = vec![blosc(Cname::Lz4, Shuffle::Byte, 2, 0)];
        let simulation = simulation(Schedule::Latest);
        let engine = decoder(&simulation, StandIn::Six, &shard.chain);
        let reason = shard.decode(&engine, &encoded).expect("on the host");
        assert!(reason.contains(expected), "{reason}, not {expected}");
    }
}

/// C-Blosc's threads may write blocks in any order: here the last block is first.
#[test]
fn blosc_blocks_in_any_order() {
    let shard = Shard::larger().compressed(0, blosc(Cname::Zstd, Shuffle::Byte, 2, 128), 0);
    let mut reversed = shard.encoded_on_host();
    for extent in reversed.extents.iter().flatten() {
        let frame = &mut reversed.bytes[extent.clone()];
        let place = |number: usize| 16 + 4 * number..20 + 4 * number;
        let integer =
            |bytes: &[u8]| u32::from_le_bytes(*bytes.first_chunk().expect("four")) as usize;
        let mut starts: Vec<usize> = (0..4).map(|block| integer(&frame[place(block)])).collect();
        starts.push(frame.len());
        let mut blocks = Vec::new();
        for block in (0..4).rev() {
            let at = 32 + blocks.len();
            blocks.extend_from_slice(&frame[starts[block]..starts[block + 1]]);
            frame[place(block)].copy_from_slice(&(at as u32).to_le_bytes());
        }
        frame[32..].copy_from_slice(&blocks);
    }
    let simulation = simulation(Schedule::Latest);
    let engine = decoder(&simulation, StandIn::Six, &shard.chain);
    assert_eq!(shard.decode(&engine, &reversed), None);
}

/// Checks that the device returns the host's result for `bytes`.
fn check_as_host(engine: &CudaEngine, shard: &Shard, bytes: &[u8], extents: &[Extent], what: &str) {
    let job = shard.job();
    let host = HostEngine.decode(&job, bytes, extents);
    let device = strict(engine).decode(&job, bytes, extents);
    match (host, device) {
        (Ok(host), Ok(device)) => assert!(host == device, "{what}: other elements"),
        (Err(host), Err(device)) => assert_eq!(host.to_string(), device.to_string(), "{what}"),
        (host, device) => panic!(
            "{what}: {:?} by the host, {:?} by the device",
            host.map(|_| "elements"),
            device.map(|_| "elements")
        ),
    }
}

/// Small shards of all formats, encoded by the device and by the host. The host's are without
/// Blosc, which does not compress subchunks this small.
fn small_shards(after: usize) -> Vec<(Shard, EncodedShard)> {
    let mut shards = Vec::new();
    for stage in [
        ZSTD,
        GZIP,
        Stage::Gzip { level: 1 },
        blosc(Cname::Lz4, Shuffle::Byte, 2, 32),
        blosc(Cname::Zstd, Shuffle::Bit, 2, 0),
        blosc(Cname::Zstd, Shuffle::None, 1, 64),
    ] {
        // Two subchunks are stored.
        for empty in [Empty::Within(1, SUBCHUNKS - 1), Empty::First(SUBCHUNKS - 1)] {
            let shard = Shard::with(0, empty, false).compressed(0, stage.clone(), after);
            let simulation = simulation(Schedule::Eager);
            let engine = decoder(&simulation, StandIn::Six, &shard.chain);
            let by_device = engine.encode(&shard.job(), &shard.elements, 0, 0);
            let by_device = shard.without_zstd_checksums(&by_device.expect("encodes"));
            if !matches!(stage, Stage::Blosc(_)) {
                let by_host = shard.encoded_on_host();
                let shard = Shard::with(0, empty, false).compressed(0, stage.clone(), after);
                shards.push((shard, by_host));
            }
            shards.push((shard, by_device));
        }
    }
    shards
}

/// A truncated shard or subchunk never reaches the device.
#[test]
fn every_truncation_is_for_the_host() {
    for after in [0, 1] {
        for (shard, encoded) in small_shards(after) {
            let simulation = simulation(Schedule::Eager);
            let engine = decoder(&simulation, StandIn::Six, &shard.chain);
            for len in 0..encoded.bytes.len() {
                let what = format!("{:?}, shard of {len} bytes", shard.chain.stages);
                let bytes = &encoded.bytes[..len];
                check_as_host(&engine, &shard, bytes, &encoded.extents, &what);
            }
            for subchunk in 0..SUBCHUNKS {
                let Some(extent) = encoded.extents[subchunk].clone() else {
                    continue;
                };
                for end in extent.clone() {
                    let mut extents = encoded.extents.clone();
                    extents[subchunk] = Some(extent.start..end);
                    let what = format!(
                        "{:?}, subchunk of {} bytes",
                        shard.chain.stages,
                        end - extent.start
                    );
                    let parts = compressed_frame_parts::parse(
                        &shard.job(),
                        &shard.chain,
                        &encoded.bytes,
                        &extents,
                    );
                    assert!(parts.is_err(), "{what} is for a device");
                    check_as_host(&engine, &shard, &encoded.bytes, &extents, &what);
                }
            }
            assert_eq!(engine.counters().snapshot().shards_decoded, 0);
        }
    }
}

/// Returns whether this byte lies outside of the compressed streams, which a wrong bit here does
/// not change.
fn is_beside_streams(stage: &Stage, at: usize, len: usize) -> bool {
    match stage {
        Stage::Gzip { .. } => at < 10 || at >= len - 8,
        Stage::Blosc(_) => at < 4,
        _ => false,
    }
}

/// Flips each bit. If a checksum follows the compressor, the flip never reaches the device.
/// Otherwise it does where it breaks no structure. Flips inside of streams are skipped then: the
/// caller trusts those.
#[test]
fn every_wrong_bit_is_for_the_host_or_harmless() {
    for after in [0, 1] {
        for (shard, encoded) in small_shards(after) {
            let stage = &shard.chain.stages[0];
            let simulation = simulation(Schedule::Eager);
            let engine = decoder(&simulation, StandIn::Six, &shard.chain);
            let (mut caught, mut passed) = (0, 0);
            let parts = compressed_frame_parts::parse(
                &shard.job(),
                &shard.chain,
                &encoded.bytes,
                &encoded.extents,
            );
            assert!(parts.is_ok(), "{stage}: {parts:?}");
            for extent in encoded.extents.iter().flatten() {
                for (at, bit) in extent
                    .clone()
                    .flat_map(|at| (0..8).map(move |bit| (at, bit)))
                {
                    let mut bytes = encoded.bytes.clone();
                    bytes[at] ^= 1 << bit;
                    let parts = compressed_frame_parts::parse(
                        &shard.job(),
                        &shard.chain,
                        &bytes,
                        &encoded.extents,
                    );
                    let at = at - extent.start;
                    if parts.is_ok() {
                        passed += 1;
                        assert_eq!(
                            after, 0,
                            "{stage}, bit {bit} of byte {at} gets by a checksum"
                        );
                        if !is_beside_streams(stage, at, extent.len()) {
                            continue;
                        }
                    } else {
                        caught += 1;
                    }
                    let what = format!("{stage}, bit {bit} of byte {at} of {extent:?}");
                    check_as_host(&engine, &shard, &bytes, &encoded.extents, &what);
                }
            }
            assert!(
                caught > 40 && (passed > 0) == (after == 0),
                "{stage}: {caught}, {passed}"
            );
            drop(engine);
            assert_clean(&simulation);
        }
    }
}

/// Without validation checksums are dropped; the elements are the same.
#[test]
fn checksums_that_are_not_validated() {
    let shard = Shard::new(0).compressed(1, ZSTD, 1);
    let mut encoded = shard.encoded_on_host();
    let last = encoded.extents.iter().flatten().last().expect("stored").end - 1;
    encoded.bytes[last] ^= 1;
    let simulation = simulation(Schedule::Latest);
    let engine = decoder(&simulation, StandIn::Six, &shard.chain);
    let mut job = shard.job();
    let invalid = strict(&engine).decode(&job, &encoded.bytes, &encoded.extents);
    assert!(matches!(invalid, Err(EngineError::Checksum { .. })));
    assert_eq!(engine.counters().snapshot().shards_decoded, 0);
    job.validate_checksums = false;
    let decoded = strict(&engine).decode(&job, &encoded.bytes, &encoded.extents);
    assert!(decoded.expect("not validated") == shard.elements);
    assert_eq!(engine.counters().snapshot().shards_decoded, 1);
}

/// The device compares a checksum that precedes the compressor. The host reports the error.
#[test]
fn a_wrong_checksum_in_front_of_the_compressor() {
    let shard = Shard::larger().compressed(1, ZSTD, 0);
    let encoded = shard.encoded_by(|number, stored| {
        let checksum = crc32c::crc32c(stored) ^ u32::from(number == 6);
        compress_zstd(&[stored, &checksum.to_le_bytes()].concat(), &[])
    });
    let simulation = simulation(Schedule::Latest);
    let engine = decoder(&simulation, StandIn::Six, &shard.chain);
    check_as_host(
        &engine,
        &shard,
        &encoded.bytes,
        &encoded.extents,
        "as it is",
    );
    let invalid = strict(&engine).decode(&shard.job(), &encoded.bytes, &encoded.extents);
    assert!(matches!(
        invalid,
        Err(EngineError::Checksum { subchunk: 6 })
    ));
    let reasons = engine.counters().snapshot().fallbacks;
    assert!(reasons.contains_key("a checksum in front of the compressor is invalid"));
    drop(engine);
    assert_clean(&simulation);
}

/// Levels limit encoding alone. A device decodes shards of every level, and of an encoder that it does not
/// have, by an engine that is prepared only to decode.
#[test]
fn every_level_is_decoded() {
    let blosc = |cname, level| {
        Stage::Blosc(BloscStage {
            cname,
            level,
            shuffle: Shuffle::Byte,
            typesize: 1,
            blocksize: 128,
        })
    };
    let zstd = Stage::Zstd {
        level: 19,
        checksum: false,
    };
    for stage in [
        zstd,
        Stage::Gzip { level: 0 },
        blosc(Cname::Zstd, 9),
        blosc(Cname::Lz4, 9),
        blosc(Cname::Lz4Hc, 5),
    ] {
        let shard = Shard::larger().compressed(0, stage.clone(), 0);
        let encoded = shard.encoded_on_host();
        let simulation = simulation(Schedule::Latest);
        let compressors = Compressors {
            levels: HighestLevels {
                zstd: i32::MIN,
                gzip: 0,
                blosc_lz4: 0,
                blosc_zstd: 0,
            },
            ..decoding(StandIn::Six)
        };
        let engine = engine_on(&simulation).for_chain(&shard.chain, compressors);
        let levels = HighestLevels::default();
        assert!(
            check_chain(&shard.grid, &shard.chain, levels).is_err(),
            "{stage}"
        );
        check_decoding(&shard.grid, &shard.chain).expect("suits");
        let decoder = engine
            .clone()
            .decoder(&shard.grid, &shard.chain)
            .expect("suits");
        let takes = decoder.memory_estimate().expect("fits");
        assert!(takes.device > 0, "{stage}: {takes}");
        let decoded = decoder.decode(&shard.job(), &encoded.bytes, &encoded.extents);
        assert!(decoded.expect("decodes") == shard.elements, "{stage}");
        assert_eq!(engine.counters().snapshot().shards_decoded, 1, "{stage}");
        let refused = decoder.encode(&shard.job(), &shard.elements, 0, 0);
        assert!(
            matches!(&refused, Err(EngineError::Unsuitable(why)) if why.contains("only to decode")),
            "{stage}: {refused:?}"
        );
        // The host encodes in place of an engine that only decodes.
        let encoded = WithFallback::new(decoder).encode(&shard.job(), &shard.elements, 3, 5);
        assert_eq!(
            encoded.expect("encodes").bytes,
            shard.encoded_on_host().bytes
        );
        drop(engine);
        assert_clean(&simulation);
    }
}

/// The estimate for both directions is enough for both.
#[test]
fn a_lane_takes_what_was_estimated() {
    for stage in [ZSTD, GZIP, blosc(Cname::Zstd, Shuffle::Byte, 2, 128)] {
        let shard = Shard::larger().compressed(0, stage, 1);
        let simulation = simulation(Schedule::Latest);
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let engine = |device_memory, decode| {
            let limits = DeviceLimits {
                device_memory: Some(device_memory),
                ..limits()
            };
            let compressors = Compressors {
                decode,
                ..with(StandIn::Six)
            };
            CudaEngine::new(devices.clone(), limits, Tuning::TINY)
                .for_chain(&shard.chain, compressors)
        };
        let estimate = |decode| {
            let engine = engine(1 << 24, decode);
            engine
                .memory_estimate(&shard.grid, &shard.chain)
                .expect("fits")
        };
        let (without, both) = (estimate(false), estimate(true));
        assert!(
            both.device >= without.device && both.pinned > without.pinned,
            "{both}"
        );
        let engine = engine(both.device, true);
        assert_eq!(shard.decode(&engine, &shard.encoded_on_host()), None);
        engine
            .encode(&shard.job(), &shard.elements, 0, 0)
            .expect("encodes");
        drop((engine, devices));
        assert_clean(&simulation);
    }
}

/// C-Blosc splits the blocks, and each stream is a chunk.
#[test]
fn a_lane_for_split_blocks_takes_what_was_estimated() {
    for (element, block) in [(2, 256), (2, 512), (4, 512)] {
        let stage = blosc(Cname::Lz4, Shuffle::Byte, element, block);
        let shard = Shard::larger().compressed(0, stage, 1);
        let estimate = |only_decodes: bool| {
            let simulation = simulation(Schedule::Latest);
            let engine = engine_on(&simulation).for_chain(&shard.chain, decoding(StandIn::Six));
            let takes = if only_decodes {
                let decoder = engine.clone().decoder(&shard.grid, &shard.chain);
                decoder.and_then(|decoder| decoder.memory_estimate())
            } else {
                engine.memory_estimate(&shard.grid, &shard.chain)
            };
            let takes = takes.expect("fits");
            assert_eq!(shard.decode(&engine, &shard.encoded_on_host()), None);
            let used = engine.devices.used();
            assert!(
                used.device <= takes.device && used.pinned <= takes.pinned,
                "{used} of {takes} for blocks of {block} bytes"
            );
            drop(engine);
            assert_clean(&simulation);
            used
        };
        assert_eq!(estimate(true), estimate(false));
    }
}

/// A lane never exceeds its budget, however small. The host decodes shards that do not fit.
#[test]
fn a_smaller_budget_makes_smaller_batches() {
    let shard = Shard::larger().compressed(0, blosc(Cname::Zstd, Shuffle::Byte, 2, 128), 0);
    let encoded = shard.encoded_on_host();
    let (mut on_device, mut on_host) = (0, 0);
    for memory in (1..120).map(|half| half << 9) {
        let simulation = simulation(Schedule::Latest);
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let limits = DeviceLimits {
            device_memory: Some(memory),
            ..limits()
        };
        let engine = CudaEngine::new(devices, limits, Tuning::TINY)
            .for_chain(&shard.chain, decoding(StandIn::Six));
        let reason = shard.decode(&engine, &encoded);
        match reason {
            None => on_device += 1,
            Some(_) => on_host += 1,
        }
        drop(engine);
        assert_clean(&simulation);
    }
    assert!(on_device > 10 && on_host > 10, "{on_device}, {on_host}");
}
