//! The rule, as a table and as properties.

use proptest::prelude::*;

use super::*;
use crate::plan::rule::EngineRule;

const KIB: usize = 1 << 10;

fn work(codec: Codec, level: i32, subchunks: usize, subchunk_bytes: usize) -> Work {
    Work {
        codec,
        level,
        direction: Direction::Encode,
        subchunks,
        subchunk_bytes,
    }
}

/// Returns whether `work` goes to a device that has all of its chunks in flight.
fn goes_to_device(work: Work, multiprocessors: usize, processors: usize) -> bool {
    let device = DeviceWork {
        multiprocessors,
        chunks: work.subchunks,
    };
    let rule = EngineRule::Faster {
        processors: NonZeroUsize::new(processors).unwrap(),
    };
    let estimates = rule.estimates(&work, Some(device));
    let on_host = rule.on_host(Some(estimates));
    assert_eq!(on_host.is_none(), estimates.prefer_device());
    on_host.is_none()
}

#[test]
fn the_rule_as_a_table() {
    use Codec::{BloscLz4, BloscZstd, Copy, Crc32c, Gzip, Zstd};
    // The codec and its level, subchunks, bytes of a subchunk, multiprocessors, processors; a device?
    for (codec, level, subchunks, bytes, multiprocessors, processors, device) in [
        // Many chunks of a compressor that is slow on the host.
        (Zstd, 1, 4096, 64 * KIB, 132, 4, true),
        (Zstd, 3, 4096, 64 * KIB, 132, 16, true),
        // One chunk leaves the device idle, whatever its size.
        (Zstd, 1, 1, 64 * KIB, 132, 4, false),
        (Zstd, 1, 1, 16_000 * KIB, 132, 4, false),
        // Many tiny chunks are done before a device has begun.
        (Zstd, 1, 64, KIB, 132, 4, false),
        // More processors flip the choice.
        (Zstd, 1, 4096, 64 * KIB, 132, 32, false),
        (Zstd, 3, 4096, 64 * KIB, 132, 128, false),
        // A small device is slower.
        (Zstd, 1, 4096, 64 * KIB, 16, 4, false),
        // lz4 on the host is about as fast as the low end of what is published for devices.
        (BloscLz4, 5, 4096, 64 * KIB, 132, 8, false),
        // Without a compressor, the trip over the bus comes on top of the same copies.
        (Copy, 0, 1 << 20, 64 * KIB, 132, 1, false),
        (Copy, 0, 1 << 20, 64 * KIB, 132, 64, false),
        (Crc32c, 0, 1 << 20, 64 * KIB, 132, 1, false),
        // There is no figure for gzip on a device.
        (Gzip, 9, 4096, 64 * KIB, 132, 1, false),
        // A level that the policy sends to a device only if it is asked for.
        (BloscZstd, 5, 4096, 64 * KIB, 132, 8, true),
    ] {
        let work = work(codec, level, subchunks, bytes);
        assert_eq!(
            goes_to_device(work, multiprocessors, processors),
            device,
            "{work:?}, {multiprocessors} multiprocessors, {processors} processors"
        );
    }
}

#[test]
fn a_device_without_a_figure_has_no_estimate() {
    let host = NonZeroUsize::new(8).unwrap();
    let device = |multiprocessors| DeviceWork {
        multiprocessors,
        chunks: 512,
    };
    let gzip = estimates(
        &work(Codec::Gzip, 1, 512, 64 * KIB),
        host,
        Some(device(132)),
    );
    assert_eq!(gzip.device, None);
    let zstd = work(Codec::Zstd, 1, 512, 64 * KIB);
    assert!(estimates(&zstd, host, Some(device(132))).device.is_some());
    assert_eq!(estimates(&zstd, host, Some(device(0))).device, None);
    assert_eq!(estimates(&zstd, host, None).device, None);
}

/// Levels of zstd: 0 is the default level 3, higher levels are never faster, and negative ones count like a
/// copy.
#[test]
fn a_level_without_a_figure_has_an_upper_bound() {
    let host = |codec, level| rates::host(codec, level, Direction::Encode).to_bits();
    assert_eq!(host(Codec::Zstd, 0), host(Codec::Zstd, 3));
    assert_eq!(host(Codec::Zstd, 2), host(Codec::Zstd, 1));
    assert_eq!(host(Codec::Zstd, 22), host(Codec::Zstd, 3));
    assert_eq!(host(Codec::Zstd, -5), host(Codec::Copy, 0));
    assert_eq!(host(Codec::BloscLz4, 1), host(Codec::Copy, 0));
    assert_eq!(host(Codec::BloscZstd, 2), host(Codec::BloscLz4, 5));
}

fn any_work() -> impl Strategy<Value = Work> {
    let codec = prop_oneof![
        Just(Codec::Copy),
        Just(Codec::Crc32c),
        Just(Codec::Zstd),
        Just(Codec::Gzip),
        Just(Codec::BloscLz4),
        Just(Codec::BloscZstd),
    ];
    let direction = prop_oneof![Just(Direction::Encode), Just(Direction::Decode)];
    let size = 0..34_u32;
    (
        codec,
        -7..23_i32,
        direction,
        size.clone(),
        size,
        any::<u32>(),
    )
        .prop_map(|(codec, level, direction, subchunks, bytes, noise)| Work {
            codec,
            level,
            direction,
            subchunks: (1 << subchunks) + noise as usize % (1 << subchunks),
            subchunk_bytes: (1 << bytes) + noise as usize % (1 << bytes),
        })
}

proptest! {
    /// A job of more subchunks is no worse on a device, compared with the host, than a job of fewer, if
    /// everything else is equal: also the most chunks that a device takes at once.
    #[test]
    fn more_chunks_never_bring_a_job_back_to_the_host(
        work in any_work(),
        more in 1..1_usize << 34,
        at_once in 1..1_usize << 16,
        blocks in 1..100_usize,
        multiprocessors in 1..300_usize,
        processors in 1..1024_usize,
    ) {
        let processors = NonZeroUsize::new(processors).unwrap();
        let ratio = |subchunks: usize| {
            let device = DeviceWork {
                multiprocessors,
                chunks: subchunks.min(at_once) * blocks,
            };
            let work = Work { subchunks, ..work };
            let device = device_seconds(&work, processors, device)?;
            Some(device / host_seconds(&work, processors))
        };
        if let (Some(fewer), Some(more)) = (ratio(work.subchunks), ratio(work.subchunks + more)) {
            prop_assert!(more <= fewer * (1.0 + 1e-9), "{fewer}, then {more}");
        }
    }

    #[test]
    fn estimates_are_finite_and_positive(
        work in any_work(),
        chunks in 0..usize::MAX,
        multiprocessors in 1..300_usize,
        processors in 1..1024_usize,
    ) {
        let processors = NonZeroUsize::new(processors).unwrap();
        let host = host_seconds(&work, processors);
        prop_assert!(host.is_finite() && host > 0.0, "{host}");
        let device = DeviceWork { multiprocessors, chunks };
        let seconds = device_seconds(&work, processors, device);
        prop_assert_eq!(seconds.is_none(), work.codec == Codec::Gzip);
        if let Some(seconds) = seconds {
            prop_assert!(seconds.is_finite() && seconds > 0.0, "{seconds}");
        }
        let estimates = estimates(&work, processors, Some(device));
        prop_assert!(estimates.host > Duration::ZERO && estimates.host < Duration::MAX);
    }

    /// Without a compressor a job never leaves the host.
    #[test]
    fn uncompressed_jobs_stay_on_the_host(
        work in any_work(),
        multiprocessors in 1..300_usize,
        processors in 1..1024_usize,
    ) {
        for codec in [Codec::Copy, Codec::Crc32c] {
            let work = Work { codec, level: 0, ..work };
            prop_assert!(!goes_to_device(work, multiprocessors, processors));
        }
    }
}
