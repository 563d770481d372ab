//! Gzip members, read by the readers among the dependencies.

use super::super::{CompressedFrames, GZIP_OVERHEAD, Streams, frame_gzip};
use super::*;
use crate::cuda::driver::simulation::Simulation;
use crate::cuda::kernels::crc32::crc32;
use crate::cuda::kernels::spans::Lengths;
use libdeflater::{CompressionLvl, Compressor, Decompressor};
use zarrs::array::codec::GzipCodec; // another reader
use zarrs_codec::{BytesRepresentation, BytesToBytesCodecTraits, CodecOptions};

fn deflate(level: i32, content: &[u8]) -> Vec<u8> {
    let mut compressor = Compressor::new(CompressionLvl::new(level).expect("a level"));
    let mut stream = vec![0; compressor.deflate_compress_bound(content.len())];
    let size = compressor.deflate_compress(content, &mut stream);
    stream.truncate(size.expect("within the bound"));
    stream
}

fn member(stream: &[u8], content: &[u8]) -> Vec<u8> {
    let size = u32::try_from(content.len()).expect("small");
    [
        &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255],
        stream,
        &libdeflater::crc32(content).to_le_bytes(),
        &size.to_le_bytes(),
    ]
    .concat()
}

fn check_readers(member: &[u8], content: &[u8]) {
    let mut back = vec![0; content.len()];
    let read = Decompressor::new().gzip_decompress(member, &mut back);
    assert_eq!(read, Ok(content.len()));
    assert!(back == content);
    let codec = GzipCodec::new(1).expect("a level");
    let size = BytesRepresentation::FixedSize(content.len() as u64);
    let back = codec.decode(member.into(), &size, &CodecOptions::default());
    assert!(back.expect("a member").as_ref() == content);
}

/// Checks contents of `bytes` bytes. The host compresses them, the device computes the checksums
/// and makes the frames. If slots have `less` bytes less than a member needs, members that are too
/// long fail.
fn check_case(
    driver: &dyn Driver,
    (bytes, less): (usize, usize),
    each: &[(u64, i32, StandInReport)],
    stored: Option<Vec<bool>>,
    room: (usize, usize),
) {
    let contents: Vec<_> = each.iter().map(|each| content(each.0, bytes)).collect();
    let compressed = std::iter::zip(each, &contents);
    let compressed =
        compressed.map(|(&(_, level, claim), content)| (deflate(level, content), claim));
    let batch = Batch {
        stored,
        room,
        ..Batch::of(compressed.collect())
    };
    let longest = batch.streams.iter().map(|streams| streams[0].0.len()).max();
    let bound = (longest.unwrap_or(0) + GZIP_OVERHEAD).saturating_sub(less);
    let frame_stride = (bound + room.1).next_multiple_of(16);

    let stride = bytes.next_multiple_of(16);
    let mut slots_and_checksums = vec![0; each.len() * (stride + 4)];
    for (i, content) in contents.iter().enumerate() {
        slots_and_checksums[i * stride..][..bytes].copy_from_slice(content);
    }
    let outcomes = batch.frame(
        driver,
        bound,
        &slots_and_checksums,
        |stream, streams: Streams, stored, frames: CompressedFrames, extra| {
            let inputs = slots(extra, stride, each.len());
            let checksums = DeviceSpan {
                offset: each.len() * stride,
                len: each.len() * 4,
                ..extra
            };
            let lengths = Lengths::All(bytes);
            // SAFETY: the spans cover the buffers.
            unsafe {
                crc32(driver, stream, inputs, lengths, stored, checksums)?;
                frame_gzip(driver, stream, streams, (bytes, checksums), stored, frames)
            }
        },
    );
    for (i, outcome) in outcomes.into_iter().enumerate() {
        let expected = member(&batch.streams[i][0].0, &contents[i]);
        let fits = (expected.len() <= frame_stride).then_some(expected);
        assert!(outcome == batch.outcome(i, fits), "{i} of {bytes} {each:?}");
        if let Outcome::Frame(member) = outcome {
            check_readers(&member, &contents[i]);
        }
    }
}

pub(crate) fn check_gzip(driver: &dyn Driver, tries: u32) {
    let bytes = prop_oneof![1..40usize, 1..5000usize, 20_000..40_000usize];
    let level = proptest::sample::select(vec![0, 1, 6, 12]);
    let each = proptest::collection::vec((any::<u64>(), level, claims()), 0..10);
    let stored = proptest::option::of(proptest::collection::vec(any::<bool>(), 10));
    let less = prop_oneof![4 => Just(0), 1 => 0..60usize];
    let strategy = ((bytes, less), each, stored, (0..40usize, 0..40usize));
    zarrs_cuda_testing::effort::property(tries, &strategy, |(bytes, each, stored, room)| {
        let stored = stored.map(|stored| stored[..each.len()].to_vec());
        check_case(driver, bytes, &each, stored, room);
        Ok(())
    });
    let many: Vec<_> = (0..1000)
        .map(|seed| (seed, 1, StandInReport::Done))
        .collect();
    check_case(driver, (9, 0), &many, None, (0, 0));
    check_case(
        driver,
        (300_001, 0),
        &[(4, 1, StandInReport::Done)],
        None,
        (0, 0),
    );
    check_case(driver, (0, 0), &[(0, 1, StandInReport::Done)], None, (0, 0));
}

#[test]
fn members_are_read_by_every_reader() {
    check_gzip(&Simulation::eager(), 64);
}

#[test]
fn very_many_streams() {
    let driver = Simulation::eager();
    let stream = deflate(1, b"");
    let batch = Batch::of(vec![(stream.clone(), StandInReport::Done); 100_000]);
    let expected = Outcome::Frame(member(&stream, b""));
    let checksums = vec![0; 400_000];
    let outcomes = batch.frame(
        &driver,
        expected_len(&expected),
        &checksums,
        // SAFETY: the spans cover the buffers.
        |stream, streams, stored, frames, checksums| unsafe {
            frame_gzip(&driver, stream, streams, (0, checksums), stored, frames)
        },
    );
    assert_eq!(outcomes.len(), 100_000);
    assert!(outcomes.iter().all(|outcome| *outcome == expected));
}

fn expected_len(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Frame(frame) => frame.len(),
        Outcome::Elided | Outcome::Failed => 0,
    }
}

/// The trailer has the size modulo 2³².
#[test]
fn contents_may_be_longer_than_four_gibibytes() {
    let driver = Simulation::eager();
    let batch = Batch::of(vec![(vec![5; 20], StandInReport::Done)]);
    let bytes = usize::try_from((7u64 << 32) + 0x0102_0304).expect("64 bits");
    let outcomes = batch.frame(
        &driver,
        38,
        &[0xdd, 0xcc, 0xbb, 0xaa],
        // SAFETY: the spans cover the buffers.
        |stream, streams, stored, frames, checksums| unsafe {
            frame_gzip(&driver, stream, streams, (bytes, checksums), stored, frames)
        },
    );
    let [Outcome::Frame(member)] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(member[30..], [0xdd, 0xcc, 0xbb, 0xaa, 4, 3, 2, 1]);
}

#[test]
fn long_streams_are_moved_once() {
    let driver = counting();
    for size in [16_384, 16_389] {
        let batch = Batch::of(vec![(noise(3, size), StandInReport::Done); 64]);
        let checksums = vec![0; 4 * 64];
        batch.frame(
            &driver,
            size + GZIP_OVERHEAD,
            &checksums,
            // SAFETY: the spans cover the buffers.
            |stream, streams, stored, frames, checksums| unsafe {
                frame_gzip(&driver, stream, streams, (size, checksums), stored, frames)
            },
        );
        let percent = percent_moved(&driver, 64 * size);
        assert!((100..=115).contains(&percent), "{percent} % of {size}");
    }
}
