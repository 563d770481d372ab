//! Blosc frames whose blocks are several streams each, as C-Blosc makes them with lz4: decoded on a device, to the
//! host's elements.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use zarrs_cuda_nvcomp_stand_in::StandIn;
use zarrs_cuda_testing::effort;

use super::compression::Content;
use super::decompression::{compress_zstd, decoder};
use super::reading::{Boxes, assert_all_freed, encoded_by_host, read, reads_on};
use super::*;
use crate::contract::{BloscStage, Cname, EncodedShard, Shuffle};
use crate::cuda::compressed_frame_parts::{self, CompressedFrameParts};
use crate::cuda::nvcomp::Format;

/// The blocks of a frame, and what its header says about them.
#[derive(Clone, Debug)]
struct Frame {
    cname: Cname,
    shuffle: Shuffle,
    element: usize,
    /// The number of bytes of a stream of a whole block, if blocks are split.
    step: usize,
    blocks: usize,
    leftover: usize,
    /// Whether the header has the flag "do not split".
    dont_split: bool,
    seed: u64,
}

impl Frame {
    fn block(&self) -> usize {
        self.step * self.element
    }

    fn bytes(&self) -> usize {
        self.block() * self.blocks + self.leftover
    }

    /// Returns whether whole blocks are split, by the rule of C-Blosc's decompressor.
    fn is_split(&self) -> bool {
        !self.dont_split && (2..=16).contains(&self.element) && self.step >= 128
    }

    /// Returns whether a device decodes the frame: each stream begins where the device can write its content, or is
    /// long enough to be decompressed apart.
    fn is_for_device(&self, library: StandIn) -> bool {
        let alignment = if library == StandIn::Coarse { 256 } else { 16 };
        let begins = if self.is_split() {
            self.step
        } else {
            self.block()
        };
        let is_one = self.blocks == 1 && self.leftover == 0 && !self.is_split();
        is_one || begins.is_multiple_of(alignment) || begins >= 128
    }

    /// Returns the frame with the number `number`. Its streams have bytes of several kinds, so that some streams
    /// are stored without compression.
    fn encode(&self, number: u64) -> Vec<u8> {
        let compressor: u8 = match self.cname {
            Cname::Zstd => 4,
            _ => 1,
        };
        let shuffle = match self.shuffle {
            Shuffle::None => 0,
            Shuffle::Byte => 1,
            Shuffle::Bit => 4,
        };
        let flags = compressor << 5 | u8::from(self.dont_split) << 4 | shuffle;
        let word = |number: usize| u32::try_from(number).expect("small").to_le_bytes();
        let whole = if self.is_split() { self.element } else { 1 };
        let mut sizes = vec![vec![self.block() / whole; whole]; self.blocks];
        sizes.extend((self.leftover > 0).then(|| vec![self.leftover]));
        let mut starts = vec![0; sizes.len()];
        let mut streams = Vec::new();
        let seed = self.seed.wrapping_add(number);
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut dice = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as usize
        };
        // Threads of C-Blosc write blocks in any order.
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        let turn = dice() % order.len();
        order.rotate_left(turn);
        for block in order {
            starts[block] = 16 + 4 * sizes.len() + streams.len();
            for &size in &sizes[block] {
                let kind = dice() % 4;
                let content: Vec<u8> = (0..size)
                    .map(|at| match kind {
                        0 => dice() as u8,
                        // Compressed to three quarters, so the stream of a shorter last block takes several slots.
                        3 if at < size / 4 * 3 => dice() as u8,
                        1 => (at / 50) as u8,
                        _ => 9,
                    })
                    .collect();
                let mut stream = match self.cname {
                    Cname::Zstd => compress_zstd(&content, &[]),
                    _ => lz4_flex::block::compress(&content),
                };
                if stream.len() >= size {
                    stream = content;
                }
                streams.extend(word(stream.len()));
                streams.extend(stream);
            }
        }
        let mut frame = vec![2, 1, flags, u8::try_from(self.element).expect("small")];
        let len = 16 + 4 * starts.len() + streams.len();
        for number in [self.bytes(), self.block(), len].into_iter().chain(starts) {
            frame.extend(word(number));
        }
        frame.extend(streams);
        frame
    }

    /// Returns a shard of one axis of the frames `0..count`, and its elements, which the host has decoded.
    fn shard(&self, count: usize) -> (Shard, EncodedShard) {
        self.shard_of(count, |number| Some(self.encode(number)))
    }

    /// Returns such a shard of the frames that `encode` returns; `None` for a subchunk that is absent.
    fn shard_of(
        &self,
        count: usize,
        encode: impl Fn(u64) -> Option<Vec<u8>>,
    ) -> (Shard, EncodedShard) {
        let shard = Shard::of_bytes(self.bytes(), count, Content::Constant);
        let stage = Stage::Blosc(BloscStage {
            cname: self.cname,
            level: 5,
            shuffle: self.shuffle,
            typesize: self.element,
            blocksize: 0,
        });
        let mut encoded = EncodedShard {
            bytes: Vec::new(),
            extents: Vec::new(),
        };
        for number in 0..count {
            let start = encoded.bytes.len();
            let frame = encode(number as u64);
            encoded.bytes.extend(frame.iter().flatten());
            let extent = frame.map(|_| start..encoded.bytes.len());
            encoded.extents.push(extent);
        }
        let mut shard = shard.compressed(0, stage, 0);
        shard.elements = HostEngine
            .decode(&shard.job(), &encoded.bytes, &encoded.extents)
            .expect("C-Blosc reads the frames");
        (shard, encoded)
    }
}

fn frames() -> impl Strategy<Value = Frame> {
    let elements = proptest::sample::select(vec![1_usize, 2, 3, 4, 8, 16, 17]);
    let shuffles = proptest::sample::select(vec![Shuffle::None, Shuffle::Byte, Shuffle::Bit]);
    let names = proptest::sample::select(vec![Cname::Lz4, Cname::Zstd]);
    // Streams have about the least size of a split. Most of these streams begin where a device can write them.
    let step = prop_oneof![
        4 => (6..14_usize).prop_map(|sixteenths| 16 * sixteenths),
        2 => 120..180_usize,
    ];
    let shape = (step, 1..4_usize, any::<Option<u16>>());
    let flags = (prop::bool::weighted(0.2), any::<u64>());
    (names, shuffles, elements, shape, flags).prop_map(
        |(cname, shuffle, element, (step, blocks, leftover), (dont_split, seed))| Frame {
            cname,
            shuffle,
            element,
            step,
            blocks,
            leftover: leftover.map_or(0, |leftover| usize::from(leftover) % (step * element)),
            dont_split,
            seed,
        },
    )
}

/// Decodes a whole shard, and returns whether the device decoded it.
fn decoded(library: StandIn, schedule: Schedule, shard: &Shard, encoded: &EncodedShard) -> bool {
    let simulation = simulation(schedule);
    let engine = decoder(&simulation, library, &shard.chain);
    let elements = strict(&engine).decode(&shard.job(), &encoded.bytes, &encoded.extents);
    assert!(elements.expect("decodes") == shard.elements);
    let counts = engine.counters().snapshot();
    assert_eq!(counts.shards_decoded == 1, counts.fallbacks.is_empty());
    drop(engine);
    assert_clean(&simulation);
    counts.shards_decoded == 1
}

/// Reads the whole shard into the memory of a device. Returns the number of subchunks that the host decoded.
fn read_on_host(
    library: StandIn,
    schedule: Schedule,
    shard: &Shard,
    encoded: &EncodedShard,
) -> u64 {
    let simulation = simulation(schedule);
    let (engine, reads) = reads_on(&simulation, library, shard, true).expect("reads");
    read(&simulation, &reads, shard, encoded, &Boxes::whole(shard)).expect("reads");
    let counts = engine.counters().snapshot();
    let stored = encoded.extents.iter().flatten().count();
    assert_eq!(counts.subchunks_read, stored as u64);
    drop((engine, reads));
    assert_all_freed(&simulation);
    counts.subchunks_read_on_host
}

/// Frames of every kind: the device decodes those that it can, and the host the others.
#[test]
fn any_blocks() {
    let libraries = vec![StandIn::Six, StandIn::Five, StandIn::Coarse];
    let libraries = proptest::sample::select(libraries);
    let any = (frames(), 1..4_usize, libraries, 0..8_u64);
    effort::property(128, &any, |(frame, count, library, seed)| {
        let (shard, encoded) = frame.shard(count);
        let schedule = schedule_of(seed);
        let is_for_device = frame.is_for_device(library);
        let by_device = decoded(library, schedule, &shard, &encoded);
        prop_assert_eq!(by_device, is_for_device);
        let on_host = read_on_host(library, schedule, &shard, &encoded);
        prop_assert_eq!(on_host, if is_for_device { 0 } else { count as u64 });
        Ok(())
    });
}

/// Streams of shorter last blocks, which take several slots, and those that are stored without compression.
#[test]
fn streams_of_several_slots() {
    let frame = Frame {
        element: 8,
        leftover: 1001,
        ..sample()
    };
    for step in [128, 144, 150] {
        let frame = Frame {
            step,
            ..frame.clone()
        };
        let (shard, encoded) = frame.shard(30);
        let parts = parse(&shard, &encoded).expect("a device takes them");
        let last = (0..30).filter_map(|number| parts.of_subchunk(number).last());
        let last: Vec<_> = last.map(|part| (part.raw, part.len > step)).collect();
        assert!(last.contains(&(false, true)) && last.contains(&(true, true)));
        assert!(decoded(StandIn::Six, Schedule::Latest, &shard, &encoded));
        assert_eq!(
            read_on_host(StandIn::Five, Schedule::Latest, &shard, &encoded),
            0
        );
    }
}

/// Blocks just beyond and just within the limits of splitting.
#[test]
fn limits_of_splitting() {
    for element in [1, 2, 15, 16, 17] {
        for step in [127, 128, 129] {
            for dont_split in [false, true] {
                let frame = Frame {
                    element,
                    step,
                    leftover: 60,
                    dont_split,
                    ..sample()
                };
                let (shard, encoded) = frame.shard(2);
                let is_for_device = frame.is_for_device(StandIn::Six);
                let by_device = decoded(StandIn::Six, Schedule::Latest, &shard, &encoded);
                assert_eq!(by_device, is_for_device, "{frame:?}");
            }
        }
    }
}

/// Subchunks that are absent, or that the host decodes, among those whose chunks are put together, with a shuffle and
/// without.
#[test]
fn other_subchunks_among_chunks_that_are_apart() {
    for (shuffle, schedule) in [
        (Shuffle::None, Schedule::Eager),
        (Shuffle::None, Schedule::Latest),
        (Shuffle::Byte, Schedule::Latest),
        (Shuffle::Bit, Schedule::Priority(3)),
    ] {
        let frame = Frame {
            shuffle,
            step: 133,
            leftover: 211,
            ..sample()
        };
        let encode = |number| match number % 4 {
            1 => None,
            // Content that is not compressed, behind the header.
            3 => {
                let mut stored = frame.encode(number)[..16].to_vec();
                stored[2] |= 2;
                stored.extend((0..frame.bytes()).map(|at| (at * at) as u8));
                let len = u32::try_from(stored.len()).expect("small");
                stored[12..16].copy_from_slice(&len.to_le_bytes());
                Some(stored)
            }
            _ => Some(frame.encode(number)),
        };
        let (shard, encoded) = frame.shard_of(12, encode);
        let on_host = read_on_host(StandIn::Six, schedule, &shard, &encoded);
        assert_eq!(on_host, 3);
        let (shard, encoded) = frame.shard_of(12, |number| encode(number & !2));
        assert!(decoded(StandIn::Six, schedule, &shard, &encoded));
        assert_eq!(read_on_host(StandIn::Six, schedule, &shard, &encoded), 0);
    }
}

/// The frames of C-Blosc itself, with the default of numcodecs among them: no subchunk of elements of 2 bytes is
/// decoded by the host, also where the last block is shorter.
#[test]
fn frames_of_c_blosc() {
    let of = |cname, level, shuffle, typesize| BloscStage {
        cname,
        level,
        shuffle,
        typesize,
        blocksize: 0,
    };
    // Level 1 makes blocks of 64 KiB, or 128 KiB for elements of 8 bytes.
    for (stage, bytes) in [
        (of(Cname::Lz4, 5, Shuffle::Byte, 2), 512),
        (of(Cname::Lz4, 5, Shuffle::Byte, 2), 32 << 10),
        (of(Cname::Lz4, 1, Shuffle::Byte, 2), 80_002),
        (of(Cname::Lz4, 1, Shuffle::None, 4), 131_072),
        (of(Cname::Lz4, 1, Shuffle::Bit, 4), 101_000),
        (of(Cname::Lz4Hc, 1, Shuffle::Byte, 2), 70_000),
        (of(Cname::Lz4, 1, Shuffle::Byte, 8), 140_000),
        (of(Cname::Lz4, 5, Shuffle::Byte, 16), 16 << 10),
        (of(Cname::Lz4, 5, Shuffle::Byte, 17), 17 << 10),
        (of(Cname::Lz4, 5, Shuffle::Byte, 1), 10_001),
        (of(Cname::Lz4, 5, Shuffle::Byte, 3), 48 << 8),
        (of(Cname::Zstd, 1, Shuffle::Byte, 2), 10_000),
        // The second stream begins at byte 1001, or 21845.
        (of(Cname::Lz4, 5, Shuffle::Byte, 2), 2002),
        (of(Cname::Lz4, 1, Shuffle::Bit, 3), 100_003),
    ] {
        let mut shard = Shard::of_bytes(bytes, 2, Content::Text);
        // Elements whose first bytes are noise, which C-Blosc stores without compression in a stream of its own.
        let noise = Shard::of_bytes(bytes, 2, Content::Noise).elements;
        let is_split = stage.typesize > 1 && stage.shuffle != Shuffle::None;
        for (at, noise) in noise.into_iter().enumerate().filter(|_| is_split) {
            if at % stage.typesize == 0 {
                shard.elements[at] = noise;
            }
        }
        let shard = shard.compressed(0, Stage::Blosc(stage.clone()), 0);
        let encoded = encoded_by_host(&shard);
        let what = format!("{stage:?} of {bytes} bytes");
        let by_device = decoded(StandIn::Six, Schedule::Latest, &shard, &encoded);
        assert!(by_device, "{what}");
        let on_host = read_on_host(StandIn::Six, Schedule::Eager, &shard, &encoded);
        assert_eq!(on_host, 0, "{what}");
    }
}

/// Frames that are split, and frames that are not, in one shard: each layout gets a lane of its own, and the host
/// decodes the shard as a whole.
#[test]
fn split_frames_among_others() {
    let split = Frame {
        cname: Cname::Lz4,
        shuffle: Shuffle::Byte,
        element: 2,
        step: 144,
        blocks: 2,
        leftover: 100,
        dont_split: false,
        seed: 1,
    };
    let whole = Frame {
        dont_split: true,
        ..split.clone()
    };
    let (mut shard, _) = split.shard(9);
    let mut mixed = EncodedShard {
        bytes: Vec::new(),
        extents: Vec::new(),
    };
    for number in 0..9 {
        let frame = if number / 2 % 2 == 0 { &split } else { &whole };
        let start = mixed.bytes.len();
        mixed.bytes.extend(frame.encode(number));
        mixed.extents.push(Some(start..mixed.bytes.len()));
    }
    let elements = HostEngine.decode(&shard.job(), &mixed.bytes, &mixed.extents);
    shard.elements = elements.expect("decodes");
    let on_host = read_on_host(StandIn::Six, Schedule::Latest, &shard, &mixed);
    assert_eq!(on_host, 0);
    assert!(!decoded(StandIn::Six, Schedule::Latest, &shard, &mixed));
}

/// The host decodes the subchunks of split frames on which the device fails.
#[test]
fn streams_that_fail() {
    let (shard, encoded) = sample().shard(6);
    let on_host = read_on_host(StandIn::Failing, Schedule::Latest, &shard, &encoded);
    assert!(on_host > 0, "{on_host}");
    assert!(!decoded(
        StandIn::Failing,
        Schedule::Latest,
        &shard,
        &encoded
    ));
}

/// At most 16 bytes come back for each stream, and 16 for each subchunk.
#[test]
fn few_bytes_come_back() {
    let frame = sample();
    let (shard, encoded) = frame.shard(5);
    let parts = parse(&shard, &encoded).expect("a device takes them");
    let streams = (0..5).flat_map(|subchunk| parts.of_subchunk(subchunk));
    let streams = streams.filter(|part| !part.raw).count() as u64;
    let simulation = simulation(Schedule::Latest);
    let engine = decoder(&simulation, StandIn::Six, &shard.chain).without_checks();
    let reads = engine.clone().reads(0, &shard.grid, &shard.chain);
    let reads = reads.expect("reads");
    read(&simulation, &reads, &shard, &encoded, &Boxes::whole(&shard)).expect("reads");
    let down = engine.counters().snapshot().bytes_from_device;
    assert!(
        (12 * streams..=16 * (streams + 5)).contains(&down),
        "{down} for {streams}"
    );
    drop((engine, reads));
    assert_all_freed(&simulation);
}

/// A frame of two whole blocks and a shorter one.
fn sample() -> Frame {
    Frame {
        cname: Cname::Lz4,
        shuffle: Shuffle::None,
        element: 4,
        step: 128,
        blocks: 2,
        leftover: 300,
        dont_split: false,
        seed: 7,
    }
}

fn parse(shard: &Shard, encoded: &EncodedShard) -> Result<CompressedFrameParts, &'static str> {
    let (job, chain) = (shard.job(), &shard.chain);
    compressed_frame_parts::parse(&job, chain, &encoded.bytes, &encoded.extents)
}

/// Decompresses the parts of the subchunk in `encoded`, one stream after the other. `None` if a stream is corrupt.
fn naive(parts: &CompressedFrameParts, encoded: &[u8]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    for (number, part) in parts.of_subchunk(0).iter().enumerate() {
        let chunk = parts.layout.chunking.chunk(number);
        assert_eq!(chunk.start, content.len());
        let stream = &encoded[part.start..part.start + part.len];
        let mut bytes = vec![0; chunk.len()];
        let len = match parts.layout.format {
            _ if part.raw => {
                bytes.copy_from_slice(stream);
                chunk.len()
            }
            Format::Zstd => zstd_safe::decompress(&mut bytes[..], stream).ok()?,
            _ => lz4_flex::block::decompress_into(stream, &mut bytes).ok()?,
        };
        if len != bytes.len() {
            return None;
        }
        content.extend(bytes);
    }
    assert_eq!(content.len(), parts.layout.chunking.bytes);
    Some(content)
}

/// Checks that the parser does not panic on `bytes`, and that a device gets no other elements than the host. The
/// device gets no corrupt stream, which it would trust. Returns whether a device takes the bytes.
fn check_hostile(shard: &Shard, encoded: &EncodedShard) -> bool {
    let parsed = catch_unwind(AssertUnwindSafe(|| parse(shard, encoded)));
    let Ok(parts) = parsed.expect("no panic") else {
        return false;
    };
    if naive(&parts, &encoded.bytes).is_none() {
        return true;
    }
    let simulation = simulation(Schedule::Eager);
    let engine = decoder(&simulation, StandIn::Six, &shard.chain);
    let job = shard.job();
    let host = HostEngine.decode(&job, &encoded.bytes, &encoded.extents);
    let device = strict(&engine).decode(&job, &encoded.bytes, &encoded.extents);
    assert_eq!(
        device.expect("a device decodes it"),
        host.expect("the host decodes what a device decodes")
    );
    assert_eq!(engine.counters().snapshot().shards_decoded, 1);
    drop(engine);
    assert_clean(&simulation);
    true
}

/// Each wrong bit of a frame's header, offsets and sizes, and each truncation.
#[test]
fn wrong_bits_and_truncations() {
    for frame in [
        sample(),
        Frame {
            cname: Cname::Zstd,
            element: 2,
            leftover: 190,
            ..sample()
        },
    ] {
        let (shard, mut encoded) = frame.shard(1);
        let parts = parse(&shard, &encoded).expect("a device takes it");
        let in_streams = parts.of_subchunk(0).iter();
        let in_streams: Vec<_> = in_streams
            .map(|part| part.start..part.start + part.len)
            .collect();
        let (mut refused, mut accepted) = (0, 0);
        for at in 0..encoded.bytes.len() {
            if in_streams.iter().any(|stream| stream.contains(&at)) {
                continue;
            }
            for bit in 0..8 {
                encoded.bytes[at] ^= 1 << bit;
                let is_accepted = check_hostile(&shard, &encoded);
                encoded.bytes[at] ^= 1 << bit;
                if is_accepted {
                    accepted += 1;
                } else {
                    refused += 1;
                }
            }
        }
        assert!(refused > 100 && accepted < refused, "{refused}, {accepted}");
        for len in 0..encoded.bytes.len() {
            let short = EncodedShard {
                bytes: encoded.bytes[..len].to_vec(),
                extents: vec![Some(0..len)],
            };
            assert!(!check_hostile(&shard, &short), "{len}");
        }
    }
}

/// Frames in which some integers or bytes are anything.
#[test]
fn any_mutation() {
    let number = prop_oneof![
        2 => 0..2000_u32,
        1 => any::<u32>(),
        1 => proptest::sample::select(vec![0, 1, u32::MAX, 1 << 31, i32::MAX as u32]),
    ];
    // Integers lie at multiples of 4 in front of the streams, and anywhere among them.
    let at = prop_oneof![(0..12_usize).prop_map(|word| 4 * word), any::<usize>()];
    let mutations = proptest::collection::vec((at, number, any::<bool>()), 1..4);
    effort::property(512, &(frames(), mutations), |(frame, mutations)| {
        let (shard, mut encoded) = frame.shard(1);
        let bytes = &mut encoded.bytes;
        for (at, number, is_byte) in mutations {
            let at = at % (bytes.len() - 4);
            let len = if is_byte { 1 } else { 4 };
            bytes[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
        }
        check_hostile(&shard, &encoded);
        Ok(())
    });
}

/// Headers, offsets and sizes that cannot be right.
#[test]
fn numbers_that_are_wrong() {
    let frame = sample();
    let (shard, encoded) = frame.shard(1);
    let word = |at: usize| {
        let bytes = encoded.bytes[at..].first_chunk().expect("there");
        u32::from_le_bytes(*bytes)
    };
    let len = encoded.bytes.len();
    let starts = [16, 20, 24];
    let first_stream = 28;
    let at_first = starts.into_iter().find(|at| word(*at) == first_stream);
    let at_first = u32::try_from(at_first.expect("a block is first")).expect("small");
    let last_block = word(24) as usize;
    let mut wrong = vec![
        (3, 0),           // elements of no bytes
        (4, word(4) + 1), // another size than the subchunk's
        (8, 0),           // blocks of no bytes
        (8, word(4) + 4), // longer than all
        (8, 514),         // no whole elements
        (8, 64),          // too many blocks for the frame
        (12, u32::try_from(len).expect("small") + 1),
        (24, at_first), // a stream among the offsets
        (20, u32::try_from(len).expect("small") - 3),
        (24, u32::MAX),
        (last_block, 0),
        (last_block, frame.leftover as u32 + 1), // a stream longer than its chunk
    ];
    for size in [0, 129, u32::MAX, i32::MAX as u32] {
        wrong.push((first_stream as usize, size));
    }
    for (at, number) in wrong {
        let mut bytes = encoded.bytes.clone();
        if at == 3 {
            bytes[at] = 0;
        } else {
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        let extents = encoded.extents.clone();
        let is_for_device = check_hostile(&shard, &EncodedShard { bytes, extents });
        assert!(!is_for_device, "{number} at {at}");
    }
}
