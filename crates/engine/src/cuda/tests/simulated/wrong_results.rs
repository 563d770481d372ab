//! Devices that return wrong results and report no error: the faults in `docs/internals/checks.md`.
//!
//! Each case changes the bytes that one operation of the device has written. Without the checks, the wrong bytes
//! are returned. With them, the device is in quarantine, and the host does its work.

use std::borrow::Cow;
use std::collections::HashMap;

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::compression::{Content, blosc, with};
use super::*;
use crate::contract::{Cname, EncodedShard, Shuffle};
use crate::cuda::check_progress::{LaneUses, Subject, Work};
use crate::cuda::driver::{DriverError, Fault};
use crate::cuda::encode;
use crate::cuda::result_checks::CheckedShard;

/// A change of the bytes of a span that an operation has written: the bytes before the operation, and after it.
pub(super) type Change = fn(&[u8], &mut [u8]);

/// An operation of the device: the begin of its name, the number of a span that it writes, the bytes of the span
/// if that matters, and the number of the operation among those that have the same.
pub(super) type Operation = (&'static str, usize, Option<usize>, usize);

/// Changes what `operation` writes, once.
pub(super) fn alter(simulation: &Simulation, operation: Operation, change: Change) {
    let mut seen = HashMap::<&str, usize>::new();
    let (name, span, len, number) = operation;
    simulation.alter(move |of, of_span, before, after| {
        if of.starts_with(name) && of_span == span && len.is_none_or(|len| len == after.len()) {
            let count = seen.entry(name).or_default();
            if *count == number {
                change(before, after);
            }
            *count += 1;
        }
    });
}

/// The operation had no effect.
pub(super) fn lost(before: &[u8], after: &mut [u8]) {
    after.copy_from_slice(before);
}

/// Flips a bit of the byte at this place.
pub(super) fn flip<const AT: usize>(_: &[u8], after: &mut [u8]) {
    after[AT] ^= 0x10;
}

/// Adds `BY` to the little-endian number of 8 bytes with the index `AT`.
fn add<const AT: usize, const BY: i64>(_: &[u8], after: &mut [u8]) {
    let number = after[AT * 8..].first_chunk_mut::<8>().expect("a number");
    *number = i64::from_le_bytes(*number).wrapping_add(BY).to_le_bytes();
}

/// Sets the little-endian number of 4 bytes with the index `AT`.
fn set<const AT: usize, const TO: u32>(_: &[u8], after: &mut [u8]) {
    after[AT * 4..][..4].copy_from_slice(&TO.to_le_bytes());
}

/// Changes a flag of 4 bytes from 0 to 1, or from 1 to 0.
fn turn<const AT: usize>(_: &[u8], after: &mut [u8]) {
    after[AT * 4] ^= 1;
}

/// Exchanges two numbers of 4 bytes.
fn exchange<const A: usize, const B: usize>(_: &[u8], after: &mut [u8]) {
    for byte in 0..4 {
        after.swap(A * 4 + byte, B * 4 + byte);
    }
}

/// Exchanges two numbers of 8 bytes.
fn exchange_long<const A: usize, const B: usize>(_: &[u8], after: &mut [u8]) {
    for byte in 0..8 {
        after.swap(A * 8 + byte, B * 8 + byte);
    }
}

/// Exchanges two elements of 2 bytes of the first subchunk.
fn permute(_: &[u8], after: &mut [u8]) {
    let (first, rest) = after.split_at_mut(2);
    let other = rest.chunks_exact_mut(2).take(50);
    let other = { other }.find(|other| **other != *first).expect("another");
    first.swap_with_slice(other);
}

/// The check that finds a wrong result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The structure of frames, and the checksums behind the compressor: in every batch.
    Frames,
    /// The comparison with the host: in the batches that are due.
    Comparison,
    /// The limits of offsets and sizes: in every batch, with or without the other checks.
    Offsets,
    /// The device itself, which gives the subchunk to the host.
    Device,
}

struct Case {
    what: &'static str,
    chain: Kind,
    operation: Operation,
    change: Change,
    found: Found,
    says: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Zstd,
    ZstdAndChecksum,
    Gzip,
    Lz4,
    /// Incompressible subchunks of one size, compressed with zstd.
    Noise,
}

impl Kind {
    fn shard(self) -> Shard {
        let zstd = Stage::Zstd {
            level: 1,
            checksum: false,
        };
        let plain = Shard::new(1);
        match self {
            Self::Plain => plain,
            Self::Zstd => plain.compressed(0, zstd, 0),
            Self::ZstdAndChecksum => plain.compressed(1, zstd, 1),
            Self::Gzip => plain.compressed(0, Stage::Gzip { level: 4 }, 0),
            Self::Lz4 => plain.compressed(0, blosc(Cname::Lz4, Shuffle::Byte, 2, 32), 0),
            Self::Noise => Shard::of_bytes(100, 36, Content::Noise).compressed(0, zstd, 0),
        }
    }
}

fn engine_for(simulation: &Arc<Simulation>, shard: &Shard) -> CudaEngine {
    engine_on(simulation).for_chain(&shard.chain, with(StandIn::Six))
}

/// Lets a kind of shards pass without comparing one.
fn pass(engine: &CudaEngine, shard: &Shard, work: Work) {
    let kind = engine.kind(&shard.grid, &shard.chain).expect("prepared");
    let uses = LaneUses {
        lane: u64::MAX,
        classes: [vec![3; 64], vec![3; 64], vec![3; 64]],
    };
    let subject = subject(shard, work);
    kind.checks.equal(&subject, 64, &uses);
    assert!(kind.checks.has_passed(&subject));
}

/// Returns what `work` on `shard` is to the progress of its kind, on the first device.
fn subject(shard: &Shard, work: Work) -> Subject<'_> {
    Subject {
        ordinal: 0,
        work,
        fill_value: Cow::Borrowed(&shard.fill_value),
        store_empty: shard.store_empty,
        pads: false,
        reducer: None,
    }
}

/// Returns whether an encoded shard is right, by the host.
fn is_right(shard: &Shard, encoded: &EncodedShard) -> bool {
    let job = shard.job();
    let host = HostEngine
        .encode(&job, &shard.elements, 3, 5)
        .expect("fits");
    let stored =
        |shard: &EncodedShard| -> Vec<bool> { shard.extents.iter().map(Option::is_some).collect() };
    if shard.chain.is_fixed_size() && encoded.bytes != host.bytes {
        return false;
    }
    let decoded = HostEngine.decode(&job, &encoded.bytes, &encoded.extents);
    stored(encoded) == stored(&host) && decoded.is_ok_and(|decoded| decoded == shard.elements)
}

#[allow(clippy::too_many_lines, reason = "a table")]
fn cases() -> Vec<Case> {
    use Found::{Comparison, Device, Frames, Offsets};
    use Kind::{Gzip, Lz4, Noise, Plain, Zstd, ZstdAndChecksum};
    let case = |what, chain, operation, change, found, says| Case {
        what,
        chain,
        operation,
        change,
        found,
        says,
    };
    let mut cases = Vec::new();
    // The first copy to the device is that of the fill value.
    for chain in [Plain, Zstd, Gzip, Lz4] {
        cases.extend([
            case(
                "upload: a flipped bit",
                chain,
                ("up", 0, None, 2),
                flip::<8> as Change,
                Comparison,
                "is wrong",
            ),
            case(
                "upload: lost, so stale",
                chain,
                ("up", 0, None, 4),
                lost,
                Comparison,
                "is wrong",
            ),
            case(
                "scatter: permuted",
                chain,
                ("scatter", 0, None, 0),
                permute,
                Comparison,
                "is wrong",
            ),
            case(
                "scatter: lost, so stale",
                chain,
                ("scatter", 0, None, 5),
                lost,
                Comparison,
                "is wrong",
            ),
            case(
                "scatter: empty taken for not empty",
                chain,
                ("scatter", 1, None, 1),
                turn::<1>,
                Comparison,
                "is stored, and all of its elements are the fill value",
            ),
            case(
                "scatter: not empty taken for empty",
                chain,
                ("scatter", 1, None, 3),
                turn::<0>,
                Frames,
                "is not stored, and its elements are not the fill value",
            ),
        ]);
    }
    cases.extend([
        case(
            "upload: a wrong fill value",
            Plain,
            ("up", 0, None, 0),
            flip::<0>,
            Comparison,
            "is wrong",
        ),
        case(
            "checksums: a flipped bit",
            Plain,
            ("crc32c_append", 0, None, 0),
            flip::<121>,
            Comparison,
            "its encoding differ",
        ),
        case(
            "checksums: lost",
            Plain,
            ("crc32c_append", 0, None, 1),
            lost,
            Comparison,
            "its encoding differ",
        ),
        case(
            "checksums before the compressor: a flipped bit",
            ZstdAndChecksum,
            ("crc32c_append", 0, None, 0),
            flip::<121>,
            Comparison,
            "the host cannot decode it",
        ),
        case(
            "checksums behind the compressor: a flipped bit",
            ZstdAndChecksum,
            ("crc32c_append", 0, None, 1),
            flip::<40>,
            Frames,
            "the checksum behind the compressor",
        ),
        case(
            "checksums behind the compressor: lost",
            ZstdAndChecksum,
            ("crc32c_append", 0, None, 1),
            lost,
            Frames,
            "is no legal one",
        ),
        case(
            "compressor: a flipped bit",
            Zstd,
            ("nvCOMP", 2, None, 0),
            flip::<30>,
            Comparison,
            "is wrong",
        ),
        case(
            "compressor: a flipped bit",
            Gzip,
            ("nvCOMP", 2, None, 0),
            flip::<30>,
            Comparison,
            "is wrong",
        ),
        case(
            "compressor: a flipped bit",
            Lz4,
            ("nvCOMP", 2, None, 0),
            flip::<2>,
            Comparison,
            "is wrong",
        ),
        case(
            "compressor: a flipped bit in the header",
            Zstd,
            ("nvCOMP", 2, None, 0),
            flip::<1>,
            Device,
            "",
        ),
        case(
            "compressor: a wrong size",
            Zstd,
            ("nvCOMP", 0, None, 0),
            add::<0, -1>,
            Device,
            "",
        ),
        case(
            "compressor: a wrong size",
            Gzip,
            ("nvCOMP", 0, None, 0),
            add::<0, -1>,
            Comparison,
            "is wrong",
        ),
        case(
            "compressor: a wrong size",
            Lz4,
            ("nvCOMP", 0, None, 0),
            add::<0, -1>,
            Comparison,
            "is wrong",
        ),
        case(
            "compressor: stale, of the batch before",
            Noise,
            ("nvCOMP", 2, None, 1),
            lost,
            Comparison,
            "its elements differ",
        ),
        case(
            "shuffle: lost, so stale",
            Lz4,
            ("shuffle", 0, None, 1),
            lost,
            Comparison,
            "is wrong",
        ),
        case(
            "tables of chunks: those of two subchunks exchanged",
            Zstd,
            ("chunk_tables", 0, None, 0),
            exchange_long::<0, 2>,
            Comparison,
            "its elements differ",
        ),
        case(
            "tables of chunks: those of two blocks exchanged",
            Lz4,
            ("chunk_tables", 0, None, 0),
            exchange_long::<0, 1>,
            Comparison,
            "its elements differ",
        ),
        case(
            "CRC-32 of gzip: a flipped bit",
            Gzip,
            ("crc32", 0, Some(48), 0),
            flip::<0>,
            Comparison,
            "the host cannot decode it",
        ),
        case(
            "frames: a flipped bit in the header",
            Zstd,
            ("frame", 0, None, 0),
            flip::<1>,
            Frames,
            "header of a zstd frame",
        ),
        case(
            "frames: a flipped bit in the header",
            Gzip,
            ("frame", 0, None, 0),
            flip::<1>,
            Frames,
            "header of a gzip member",
        ),
        case(
            "frames: a flipped bit in the header",
            Gzip,
            ("frame", 0, None, 0),
            flip::<3>,
            Frames,
            "header of a gzip member",
        ),
        case(
            "frames: a flipped bit in the header",
            Lz4,
            ("frame", 0, None, 0),
            flip::<3>,
            Frames,
            "header of a Blosc frame",
        ),
        case(
            "frames: a wrong size",
            Zstd,
            ("frame", 1, None, 0),
            add::<0, -1>,
            Frames,
            "zstd frame",
        ),
        case(
            "frames: a wrong size",
            Gzip,
            ("frame", 1, None, 0),
            add::<0, -1>,
            Frames,
            "gzip member",
        ),
        case(
            "frames: a wrong size",
            Lz4,
            ("frame", 1, None, 0),
            add::<0, -1>,
            Frames,
            "Blosc frame",
        ),
        case(
            "frames: lost, so stale",
            Noise,
            ("frame", 0, None, 1),
            lost,
            Frames,
            "is no legal one",
        ),
        case(
            "gather: a frame of another subchunk",
            Plain,
            ("permute", 1, None, 0),
            exchange::<0, 2>,
            Comparison,
            "its encoding differ",
        ),
        case(
            "gather: a frame of another subchunk",
            Noise,
            ("permute", 1, None, 0),
            exchange::<0, 2>,
            Comparison,
            "its elements differ",
        ),
        case(
            "gather: a flipped bit",
            Plain,
            ("gather", 0, None, 0),
            flip::<60>,
            Comparison,
            "its encoding differ",
        ),
        case(
            "gather: a flipped bit",
            ZstdAndChecksum,
            ("gather", 0, None, 0),
            flip::<60>,
            Frames,
            "the checksum behind the compressor",
        ),
        case(
            "gather: lost, so stale",
            Noise,
            ("gather", 0, None, 1),
            lost,
            Frames,
            "is no legal one",
        ),
        case(
            "sizes: too small",
            Plain,
            ("permute", 0, None, 0),
            add::<0, -1>,
            Offsets,
            "where an encoded one has",
        ),
        case(
            "sizes: too small",
            Zstd,
            ("permute", 0, None, 0),
            add::<0, -1>,
            Frames,
            "zstd frame",
        ),
        case(
            "sizes: too large",
            Zstd,
            ("permute", 0, None, 0),
            add::<0, 1000>,
            Frames,
            "zstd frame",
        ),
        case(
            "offsets: one too large",
            Zstd,
            ("scan_whole", 0, None, 0),
            add::<1, 4>,
            Offsets,
            "impossible answer",
        ),
        case(
            "offsets: the last too small",
            Zstd,
            ("scan_whole", 0, None, 0),
            add::<12, -4>,
            Frames,
            "is no legal one",
        ),
        case(
            "download: a flipped bit",
            Plain,
            ("down", 0, Some(384), 0),
            flip::<60>,
            Comparison,
            "its encoding differ",
        ),
        case(
            "download: a flipped bit",
            ZstdAndChecksum,
            ("down", 0, Some(384), 0),
            flip::<60>,
            Frames,
            "the checksum behind the compressor",
        ),
        case(
            "download: lost, so stale",
            Plain,
            ("down", 0, Some(384), 3),
            lost,
            Comparison,
            "its encoding differ",
        ),
        case(
            "download of the offsets: a flipped bit",
            Zstd,
            ("down", 0, Some(104), 0),
            flip::<11>,
            Offsets,
            "impossible answer",
        ),
        case(
            "download of the offsets: lost, so stale",
            ZstdAndChecksum,
            ("down", 0, Some(104), 1),
            lost,
            Offsets,
            "impossible answer",
        ),
        case(
            "download of the offsets: lost, in a buffer that was used before",
            Zstd,
            ("down", 0, Some(104), 2),
            lost,
            Offsets,
            "impossible answer",
        ),
        case(
            "outcomes: a flipped bit",
            Zstd,
            ("frame", 3, None, 0),
            turn::<1>,
            Offsets,
            "has the outcome 5, which none has",
        ),
        case(
            "outcomes: a subchunk with a frame taken for an empty one",
            Zstd,
            ("frame", 3, None, 0),
            set::<0, 4>,
            Offsets,
            "(Empty) has",
        ),
        case(
            "outcomes: an empty subchunk taken for one that failed",
            Zstd,
            ("frame", 3, None, 0),
            set::<1, 2>,
            Device,
            "",
        ),
        case(
            "outcomes: lost, in a buffer that was used before",
            Zstd,
            ("frame", 3, None, 2),
            lost,
            Offsets,
            "has the outcome 4294967295, which none has",
        ),
        case(
            "download of the outcomes: a flipped bit",
            Zstd,
            ("down", 0, Some(48), 0),
            flip::<0>,
            Offsets,
            "has the outcome 17, which none has",
        ),
        case(
            "download of the outcomes: lost, in a buffer that was used before",
            Zstd,
            ("down", 0, Some(48), 2),
            lost,
            Offsets,
            "has the outcome 4294967295, which none has",
        ),
    ]);
    cases
}

/// Encodes with frames alone, without any check, and with all checks. Returns what is not as `case` says.
fn check(case: &Case) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut require = |is: bool, what: String| {
        if !is {
            wrong.push(format!("{}, {:?}: {what}", case.what, case.chain));
        }
    };
    let shard = case.chain.shard();
    let job = shard.job();
    let device = || {
        let simulation = simulation(Schedule::Eager);
        alter(&simulation, case.operation, case.change);
        simulation
    };
    let mut warm_up_off = Vec::new();
    // With frames alone, as when a kind has passed.
    {
        let simulation = device();
        let engine = engine_for(&simulation, &shard).with_check_every(std::num::NonZeroU32::MAX);
        pass(&engine, &shard, Work::Encode);
        let encoded = engine.encode(&job, &shard.elements, 3, 5);
        let found =
            matches!(&encoded, Err(EngineError::Device(error)) if error.fault == Fault::Wrong);
        require(
            found == matches!(case.found, Found::Frames | Found::Offsets),
            format!("after the warm-up: {:?}", encoded.as_ref().map(|_| ())),
        );
        warm_up_off.extend(encoded.ok());
    }
    for encoded in &warm_up_off {
        require(
            is_right(&shard, encoded) == (case.found == Found::Device),
            "is a wrong result at all".to_string(),
        );
    }
    // Without any check, the result is wrong.
    let engine = engine_for(&device(), &shard).without_checks();
    match engine.encode(&job, &shard.elements, 3, 5) {
        Ok(encoded) => require(
            is_right(&shard, &encoded) == (case.found == Found::Device),
            "is wrong without checks".to_string(),
        ),
        Err(error) => require(
            case.found == Found::Offsets,
            format!("without checks: {error}"),
        ),
    }
    // With all checks.
    let engine = engine_for(&device(), &shard);
    let encoded = engine.encode(&job, &shard.elements, 3, 5);
    let metrics = engine.counters().snapshot();
    if case.found == Found::Device {
        require(
            encoded.is_ok_and(|encoded| is_right(&shard, &encoded)),
            "the host has it".to_string(),
        );
        require(
            (metrics.subchunks_on_host, metrics.mismatches) == (1, 0),
            format!("{metrics:?}"),
        );
        return wrong;
    }
    require(
        metrics.mismatches == 1,
        format!("{} mismatches", metrics.mismatches),
    );
    match encoded {
        Err(EngineError::Device(error)) => {
            let text = error.to_string();
            require(
                error.fault == Fault::Wrong && text.contains(case.says),
                text.clone(),
            );
            require(text.contains("nothing of this kind"), text);
        }
        other => require(false, format!("{:?}", other.map(|_| ()))),
    }
    let again = engine.encode(&job, &shard.elements, 3, 5);
    let text = again.map(|_| ()).map_err(|error| error.to_string());
    require(
        matches!(&text, Err(text) if text.contains("since it returned wrong data")),
        format!("again: {text:?}"),
    );
    // The host does the work of the device.
    let engine = WithFallback::new(engine_for(&device(), &shard));
    let encoded = engine.encode(&job, &shard.elements, 3, 5);
    require(
        encoded.is_ok_and(|encoded| is_right(&shard, &encoded)),
        "the host has it".to_string(),
    );
    require(
        engine.device.counters().snapshot().fallbacks.len() == 1,
        "it is counted".to_string(),
    );
    wrong
}

#[test]
fn each_wrong_result_of_encoding_is_found() {
    let wrong: Vec<_> = cases().iter().flat_map(check).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Decodes `kind` on a device that `operation` fails on. Returns the result with all checks, the result without
/// any, and the result of a device that is allowed to fall back.
fn decode_wrong(
    shard: &Shard,
    operation: Operation,
    change: Change,
) -> (Result<Vec<u8>, EngineError>, Option<bool>, bool) {
    let job = shard.job();
    // Some frames of either side are not for a device.
    let encoder = engine_for(&simulation(Schedule::Eager), shard);
    let encoder: &dyn Engine = if shard.chain.stages == Kind::Zstd.shard().chain.stages {
        &HostEngine
    } else {
        &encoder
    };
    let encoded = encoder.encode(&job, &shard.elements, 0, 0).expect("right");
    let decoder = || {
        let simulation = simulation(Schedule::Eager);
        alter(&simulation, operation, change);
        let compressors = crate::cuda::Compressors {
            decode: true,
            ..with(StandIn::Six)
        };
        engine_on(&simulation).for_chain(&shard.chain, compressors)
    };
    let decode = |engine: &dyn Engine| engine.decode(&job, &encoded.bytes, &encoded.extents);
    let checked = decode(&decoder());
    let unchecked = decode(&decoder().without_checks());
    let fallen = decode(&WithFallback::new(decoder())).expect("the host has it");
    (
        checked,
        unchecked.ok().map(|decoded| decoded == shard.elements),
        fallen == shard.elements,
    )
}

#[test]
fn each_wrong_result_of_decoding_is_found() {
    let bare = || Shard::new(0);
    let zstd = || Kind::Zstd.shard();
    let lz4 = || Kind::Lz4.shard();
    let cases: [(&str, Shard, Operation, Change); 9] = [
        ("upload", bare(), ("up", 0, Some(384), 0), flip::<60>),
        ("split", bare(), ("split", 0, None, 1), lost),
        ("unscatter", bare(), ("unscatter", 0, None, 0), flip::<8>),
        ("unscatter, lost", bare(), ("unscatter", 0, None, 1), lost),
        ("download", bare(), ("down", 0, None, 2), flip::<0>),
        ("decompressor", zstd(), ("nvCOMP", 2, None, 0), flip::<9>),
        ("decompressor, lost", zstd(), ("nvCOMP", 2, None, 1), lost),
        ("shuffle", lz4(), ("unshuffle", 0, None, 0), flip::<9>),
        ("unscatter", zstd(), ("unscatter", 0, None, 0), permute),
    ];
    for (what, shard, operation, change) in cases {
        let (checked, unchecked, fallen) = decode_wrong(&shard, operation, change);
        assert_eq!(unchecked, Some(false), "{what} is wrong without checks");
        match checked {
            Err(EngineError::Device(error)) => {
                let text = error.to_string();
                assert_eq!(error.fault, Fault::Wrong, "{what}: {text}");
                assert!(text.contains("checking a decoded shard"), "{what}: {text}");
            }
            other => panic!("{what}: {:?}", other.map(|_| ())),
        }
        assert!(fallen, "{what}: by the host");
    }
}

/// The device finds a wrong checksum, or has no result, and the host finds the checksum right. This is an error of
/// the device, also without the checks.
#[test]
fn wrong_results_of_comparing_checksums_are_found() {
    let refuted = "the host found it right";
    let cases: [(&str, Operation, Change, &str); 8] = [
        ("upload", ("up", 0, Some(384), 0), flip::<60>, refuted),
        (
            "result",
            ("crc32c_verify", 0, None, 0),
            set::<0, 2>,
            refuted,
        ),
        (
            "result, of an empty subchunk",
            ("crc32c_verify", 0, None, 0),
            set::<1, 1>,
            "which is not stored",
        ),
        (
            "result, absent",
            ("crc32c_verify", 0, None, 0),
            set::<0, 4>,
            "which is stored",
        ),
        (
            "result, impossible",
            ("crc32c_verify", 0, None, 0),
            set::<1, 6>,
            "returned 6",
        ),
        (
            "result, lost",
            ("crc32c_verify", 0, None, 2),
            lost,
            "returned 4294967295",
        ),
        (
            "download",
            ("down", 0, Some(24), 0),
            flip::<0>,
            "returned 17",
        ),
        (
            "download, lost",
            ("down", 0, Some(24), 2),
            lost,
            "returned 4294967295",
        ),
    ];
    let shard = Kind::Plain.shard();
    for (what, operation, change, says) in cases {
        let (checked, unchecked, fallen) = decode_wrong(&shard, operation, change);
        match checked {
            Err(EngineError::Device(error)) => {
                assert_eq!(error.fault, Fault::Wrong, "{what}: {error}");
                assert!(error.to_string().contains(says), "{what}: {error}");
            }
            other => panic!("{what}: {:?}", other.map(|_| ())),
        }
        assert_eq!(unchecked, None, "{what}: an error, too");
        assert!(fallen, "{what}: by the host");
    }
}

/// A decompressor's results that are wrong or lost: the host decodes the shard.
#[test]
fn wrong_results_of_decompressing_go_to_the_host() {
    let cases: [(&str, Operation, Change); 4] = [
        ("a size", ("nvCOMP", 0, None, 0), add::<0, -1>),
        ("a status", ("nvCOMP", 1, None, 0), turn::<0>),
        ("all, lost", ("nvCOMP", 1, None, 2), lost),
        ("download, lost", ("down", 0, Some(96), 2), lost),
    ];
    let shard = Kind::Zstd.shard();
    for (what, operation, change) in cases {
        let (checked, unchecked, fallen) = decode_wrong(&shard, operation, change);
        assert!(
            matches!(&checked, Err(EngineError::Unsuitable(why)) if why.contains("nvCOMP")),
            "{what}: {:?}",
            checked.map(|_| ())
        );
        assert_eq!(unchecked, None, "{what}: for the host, too");
        assert!(fallen, "{what}: by the host");
    }
}

/// A shard is damaged, and the device finds it right.
#[test]
fn a_checksum_that_a_device_finds_right_is_compared_on_the_host() {
    let shard = Kind::Plain.shard();
    let job = shard.job();
    let mut encoded = HostEngine
        .encode(&job, &shard.elements, 0, 0)
        .expect("fits");
    encoded.bytes[60] ^= 0x10;
    let simulation = simulation(Schedule::Eager);
    alter(&simulation, ("crc32c_verify", 0, None, 0), set::<0, 1>);
    let engine = engine_for(&simulation, &shard);
    let decoded = engine.decode(&job, &encoded.bytes, &encoded.extents);
    assert!(
        matches!(decoded, Err(EngineError::Checksum { subchunk: 0 })),
        "of the shard"
    );
    assert_eq!(
        engine.counters().snapshot().mismatches,
        1,
        "and of the device"
    );
    let again = engine.encode(&job, &shard.elements, 0, 0).map(|_| ());
    let text = again.expect_err("the device is in quarantine").to_string();
    assert!(
        text.contains("found a checksum right that is wrong"),
        "{text}"
    );
}

/// A damaged shard is the shard's fault, not the device's.
#[test]
fn a_damaged_shard_is_no_fault_of_the_device() {
    let shard = Kind::Plain.shard();
    let job = shard.job();
    let mut encoded = HostEngine
        .encode(&job, &shard.elements, 0, 0)
        .expect("fits");
    encoded.bytes[60] ^= 0x10;
    let decode = |engine: &CudaEngine| {
        engine
            .decode(&job, &encoded.bytes, &encoded.extents)
            .map(|_| ())
    };
    let engine = engine_for(&simulation(Schedule::Eager), &shard);
    for _ in 0..2 {
        let decoded = decode(&engine);
        assert!(
            matches!(decoded, Err(EngineError::Checksum { .. })),
            "{decoded:?}"
        );
    }
    assert_eq!(engine.counters().snapshot().mismatches, 0);
}

/// A kind is compared until it has passed, and then once in so many batches. Its results without a comparison are
/// named when one is wrong.
#[test]
fn a_kind_passes_and_is_compared_now_and_then() {
    let shard = Kind::Zstd.shard();
    let simulation = simulation(Schedule::Eager);
    let every = std::num::NonZeroU32::new(5).expect("positive");
    let engine = engine_for(&simulation, &shard).with_check_every(every);
    let kind = engine.kind(&shard.grid, &shard.chain).expect("prepared");
    let compared = || engine.counters().snapshot().batches_checked;
    let encode = || {
        engine
            .encode(&shard.job(), &shard.elements, 3, 5)
            .map(|_| ())
    };
    // Three batches in two buffers. Two of three subchunks are not empty: 24 of 36.
    let mut shards = 0;
    while !kind.checks.has_passed(&subject(&shard, Work::Encode)) {
        encode().expect("right");
        shards += 1;
        assert_eq!(compared(), 3 * shards, "every batch");
    }
    assert_eq!(shards, 3, "64 subchunks, and 3 uses of each buffer");
    for _ in 0..5 {
        encode().expect("right");
    }
    assert_eq!(compared(), 3 * shards + 3, "15 batches, one of five");
    for _ in 0..1 {
        encode().expect("right");
    }
    // The next batch that is compared is the second of the next shard.
    alter(&simulation, ("up", 0, None, 5), flip::<8>);
    let error = encode().expect_err("wrong").to_string();
    // The two batches before the last comparison were of the same shard.
    let counted = "batches of this kind: 5, whole shards: 1";
    assert!(error.contains(counted), "{error}");
    assert_eq!(engine.counters().snapshot().mismatches, 1);
}

/// With every batch compared, a kind that has passed is compared as before.
#[test]
fn all_batches_are_compared_on_request() {
    let shard = Kind::Plain.shard();
    let simulation = simulation(Schedule::Eager);
    let engine = engine_for(&simulation, &shard).with_check_every(std::num::NonZeroU32::MIN);
    pass(&engine, &shard, Work::Encode);
    let batches = shard.grid.num_subchunks().div_ceil(9) as u64;
    for number in 1..5 {
        engine
            .encode(&shard.job(), &shard.elements, 0, 0)
            .expect("right");
        let compared = engine.counters().snapshot().batches_checked;
        assert!(
            compared >= number && compared.is_multiple_of(number),
            "{compared} of {batches}"
        );
    }
}

/// Another thread found the device wrong after this shard was encoded, and before it is returned.
#[test]
fn nothing_is_returned_from_a_device_in_quarantine() {
    let shard = Kind::Plain.shard();
    let job = shard.job();
    let engine = engine_for(&simulation(Schedule::Eager), &shard);
    let kind = engine.kind(&shard.grid, &shard.chain).expect("prepared");
    let (encoded, device) = engine
        .in_lane_of_device(&kind, None, |session| {
            encode::encode(session, &job, &kind, &shard.elements, (0, 0))
        })
        .expect("right");
    let checked = CheckedShard {
        decoded: &shard.elements,
        encoded: &encoded.shard.bytes,
        extents: &encoded.shard.extents,
        on_host: &[],
        batch: encoded.batch,
        uses: &encoded.uses,
    };
    let check = || {
        engine
            .checks(&device, &kind, &job)
            .check_encoded(&job, &checked)
    };
    check().expect("right");
    let wrong = DriverError {
        operation: "checking an encoded shard".to_string(),
        device: Some(0),
        fault: Fault::Wrong,
        reason: "of another thread".to_string(),
    };
    let _ = device.watch::<()>(Err(wrong));
    let error = check()
        .expect_err("the device is in quarantine")
        .to_string();
    assert!(error.contains("since it returned wrong data"), "{error}");
}
