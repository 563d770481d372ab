//! Zstandard frames: frames from the library, and frames that the library does not write.

use super::super::{ZSTD_OVERHEAD, frame_zstd};
use super::*;
use crate::cuda::driver::simulation::Simulation;
use zstd_safe::{CCtx, CParameter};

/// The origin of a frame.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Library {
        level: i32,
        content_size: bool,
        checksum: bool,
        window_log: u32,
    },
    /// Blocks of `block` bytes, raw or of one repeated byte, behind any header.
    ByHand {
        single_segment: bool,
        /// Bytes of the content size: 0, 1, 2, 4 or 8.
        field: usize,
        block: usize,
    },
}

/// The damage to a frame. Every variant but the first makes the frame count as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    None,
    Magic(usize),
    Reserved,
    Dictionary(u8),
    /// So many bytes of its end are missing, but never the first byte.
    Truncated(usize),
    /// So many bytes follow the frame.
    Trailing(usize),
    Twice,
    ReservedBlock,
    /// The header has the size of another content.
    OtherContent,
}

impl Origin {
    /// Returns a frame of `content`. Settings for which there is no such frame are changed.
    fn frame(self, content: &[u8]) -> Vec<u8> {
        match self {
            Self::Library {
                level,
                content_size,
                checksum,
                window_log,
            } => {
                let mut context = CCtx::create();
                for parameter in [
                    CParameter::CompressionLevel(level),
                    CParameter::ContentSizeFlag(content_size),
                    CParameter::ChecksumFlag(checksum),
                    CParameter::WindowLog(window_log),
                ] {
                    context.set_parameter(parameter).expect("a setting");
                }
                let mut frame = vec![0; zstd_safe::compress_bound(content.len())];
                let size = context.compress2(&mut frame[..], content);
                frame.truncate(size.expect("within the bound"));
                frame
            }
            Self::ByHand {
                single_segment,
                field,
                block,
            } => {
                let field = match (field, content.len()) {
                    (0, _) if single_segment => 8,
                    (1, n) if !single_segment || n > 255 => 4,
                    (2, n) if !(256..256 + 65_536).contains(&n) => 4,
                    (field, _) => field,
                };
                let flag = match field {
                    8 => 3,
                    4 => 2,
                    2 => 1,
                    _ => 0,
                };
                let mut frame = 0xfd2f_b528_u32.to_le_bytes().to_vec();
                frame.push(flag << 6 | u8::from(single_segment) << 5);
                if !single_segment {
                    frame.push(0x38); // 128 KiB
                }
                let size = content.len() as u64 - if field == 2 { 256 } else { 0 };
                frame.extend_from_slice(&size.to_le_bytes()[..field]);
                let mut blocks = content.chunks(block).peekable();
                while let Some(block) = blocks.next() {
                    let repeated = block.iter().all(|byte| *byte == block[0]);
                    let last = u32::from(blocks.peek().is_none());
                    let size = u32::try_from(block.len()).expect("small");
                    let header = last | u32::from(repeated) << 1 | size << 3;
                    frame.extend_from_slice(&header.to_le_bytes()[..3]);
                    frame.extend_from_slice(if repeated { &block[..1] } else { block });
                }
                frame
            }
        }
    }
}

/// Returns the length of the content size, which may be 0, and of the header, as in RFC 8878.
fn header(frame: &[u8]) -> (usize, usize) {
    let descriptor = frame[4];
    let single_segment = descriptor & 0x20 != 0;
    assert_eq!(descriptor & 3, 0);
    let field = match descriptor >> 6 {
        0 => usize::from(single_segment),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    (field, 5 + usize::from(!single_segment) + field)
}

/// Returns the expected frame: `frame` with the content size in its header.
fn with_content_size(frame: &[u8], bytes: u64) -> Vec<u8> {
    if header(frame).0 != 0 {
        return frame.to_vec();
    }
    let checksum = frame[4] & 4;
    let (flag, size) = match bytes {
        256..=65_791 => (1, (bytes - 256).to_le_bytes()[..2].to_vec()),
        0..=0xffff_ffff => (2, bytes.to_le_bytes()[..4].to_vec()),
        _ => (3, bytes.to_le_bytes().to_vec()),
    };
    [
        &frame[..4],
        &[flag << 6 | checksum, frame[5]],
        &size,
        &frame[6..],
    ]
    .concat()
}

impl Damage {
    /// Returns the frame of `content`, damaged.
    fn apply(self, origin: Origin, content: &[u8]) -> Vec<u8> {
        let mut frame = origin.frame(content);
        let (_, first_block) = header(&frame);
        match self {
            Self::None => {}
            Self::Magic(bit) => frame[bit / 8] ^= 1 << (bit % 8),
            Self::Reserved => frame[4] |= 8,
            Self::Dictionary(flag) => frame[4] |= flag,
            Self::Truncated(bytes) => frame.truncate(frame.len().saturating_sub(bytes).max(1)),
            Self::Trailing(bytes) => frame.extend(noise(8, bytes)),
            Self::Twice => frame.extend_from_within(..),
            Self::ReservedBlock => frame[first_block] |= 6,
            Self::OtherContent => {
                let other = [content, b"!"].concat();
                frame = Origin::ByHand {
                    single_segment: false,
                    field: 8,
                    block: 1000,
                }
                .frame(&other);
            }
        }
        frame
    }
}

fn origins() -> impl Strategy<Value = Origin> {
    let library = (1..6i32, any::<(bool, bool)>(), 10..20u32);
    let library =
        library.prop_map(
            |(level, (content_size, checksum), window_log)| Origin::Library {
                level,
                content_size,
                checksum,
                window_log,
            },
        );
    let fields = proptest::sample::select(vec![0, 1, 2, 4, 8]);
    let by_hand = (any::<bool>(), fields, 100..3000usize);
    let by_hand = by_hand.prop_map(|(single_segment, field, block)| Origin::ByHand {
        single_segment,
        field,
        block,
    });
    prop_oneof![2 => library, 1 => by_hand]
}

fn damages() -> impl Strategy<Value = Damage> {
    prop_oneof![
        16 => Just(Damage::None),
        1 => (0..32usize).prop_map(Damage::Magic),
        1 => Just(Damage::Reserved),
        1 => (1..4u8).prop_map(Damage::Dictionary),
        2 => (1..40usize).prop_map(Damage::Truncated),
        1 => (1..40usize).prop_map(Damage::Trailing),
        1 => Just(Damage::Twice),
        1 => Just(Damage::ReservedBlock),
        1 => Just(Damage::OtherContent),
    ]
}

type Each = (u64, Origin, Damage, StandInReport);

/// Checks contents of `bytes` bytes, some of which fail on the way. If slots have `less` bytes less
/// than a frame may need, frames that are too long fail.
fn check_case(
    driver: &dyn Driver,
    (bytes, less): (usize, usize),
    each: &[Each],
    stored: Option<Vec<bool>>,
    room: (usize, usize),
) {
    let contents: Vec<_> = each.iter().map(|each| content(each.0, bytes)).collect();
    let streams = std::iter::zip(each, &contents);
    let streams = streams
        .map(|(&(_, origin, damage, claim), content)| (damage.apply(origin, content), claim));
    let batch = Batch {
        stored,
        room,
        ..Batch::of(streams.collect())
    };
    let longest = batch.streams.iter().map(|streams| streams[0].0.len()).max();
    let bound = (longest.unwrap_or(0) + ZSTD_OVERHEAD).saturating_sub(less);
    let frame_stride = (bound + room.1).next_multiple_of(16);
    let outcomes = batch.frame(
        driver,
        bound,
        &[],
        // SAFETY: the spans cover the buffers.
        |stream, streams, stored, frames, _| unsafe {
            frame_zstd(driver, stream, streams, bytes, stored, frames)
        },
    );
    for (i, outcome) in outcomes.into_iter().enumerate() {
        let expected = (each[i].2 == Damage::None)
            .then(|| with_content_size(&batch.streams[i][0].0, bytes as u64))
            .filter(|frame| frame.len() <= frame_stride);
        assert!(
            outcome == batch.outcome(i, expected),
            "{i} of {bytes} bytes: {:?}",
            each[i]
        );
        if let Outcome::Frame(frame) = outcome {
            let size = zstd_safe::get_frame_content_size(&frame);
            assert_eq!(size.ok().flatten(), Some(bytes as u64));
            let mut back = vec![0; bytes];
            assert_eq!(zstd_safe::decompress(&mut back[..], &frame), Ok(bytes));
            assert!(back == contents[i]);
        }
    }
}

pub(crate) fn check_zstd(driver: &dyn Driver, tries: u32) {
    let limits = [1, 2, 255, 256, 257, 511, 512, 1024];
    let bytes = prop_oneof![
        proptest::sample::select(limits.to_vec()),
        1..600usize,
        1..5000usize,
        20_000..40_000usize,
    ];
    let each = (any::<u64>(), origins(), damages(), claims());
    let each = proptest::collection::vec(each, 0..10);
    let stored = proptest::option::of(proptest::collection::vec(any::<bool>(), 10));
    let less = prop_oneof![4 => Just(0), 1 => 0..60usize];
    let strategy = ((bytes, less), each, stored, (0..40usize, 0..40usize));
    zarrs_cuda_testing::effort::property(tries, &strategy, |(bytes, each, stored, room)| {
        let stored = stored.map(|stored| stored[..each.len()].to_vec());
        check_case(driver, bytes, &each, stored, room);
        Ok(())
    });
    // Sizes around the limits of a content size of 2 bytes, and around the limit of a block.
    for bytes in [
        65_535, 65_536, 65_791, 65_792, 65_793, 131_072, 131_073, 300_001,
    ] {
        let each: Vec<_> = (0..4)
            .flat_map(|n| {
                let library = |window_log| Origin::Library {
                    level: 1,
                    content_size: n % 2 == 0,
                    checksum: n / 2 == 0,
                    window_log,
                };
                let by_hand = Origin::ByHand {
                    single_segment: n % 2 == 0,
                    field: [4, 8, 2, 0][n],
                    block: 100_000,
                };
                [library(12), library(19), by_hand]
            })
            .zip(0..)
            .map(|(origin, seed)| (seed, origin, Damage::None, StandInReport::Done))
            .collect();
        check_case(driver, (bytes, 0), &each, None, (0, 0));
    }
    let library = Origin::Library {
        level: 1,
        content_size: false,
        checksum: false,
        window_log: 10,
    };
    let many = vec![(3, library, Damage::None, StandInReport::Done); 1000];
    check_case(driver, (9, 0), &many, None, (0, 0));
}

#[test]
fn frames_get_their_content_size() {
    check_zstd(&Simulation::eager(), 96);
}

#[test]
fn very_many_streams() {
    let driver = Simulation::eager();
    let by_hand = Origin::ByHand {
        single_segment: false,
        field: 0,
        block: 1,
    };
    let stream = by_hand.frame(b"1");
    let expected = Outcome::Frame(with_content_size(&stream, 1));
    let batch = Batch::of(vec![(stream, StandInReport::Done); 100_000]);
    // SAFETY: the spans cover the buffers.
    let outcomes = batch.frame(
        &driver,
        20,
        &[],
        |stream, streams, stored, frames, _| unsafe {
            frame_zstd(&driver, stream, streams, 1, stored, frames)
        },
    );
    assert_eq!(outcomes.len(), 100_000);
    assert!(outcomes.iter().all(|outcome| *outcome == expected));
    // A batch without frames.
    let none = Batch::default();
    // SAFETY: as above.
    let outcomes = none.frame(
        &driver,
        20,
        &[],
        |stream, streams, stored, frames, _| unsafe {
            frame_zstd(&driver, stream, streams, 1, stored, frames)
        },
    );
    assert_eq!(outcomes, []);
}

/// Frames of contents that no memory could hold: an empty block behind any header.
#[test]
fn contents_may_be_longer_than_four_gibibytes() {
    let driver = Simulation::eager();
    let four = 1u64 << 32;
    let contents = [
        1,
        255,
        256,
        257,
        65_535,
        65_536,
        65_791,
        65_792,
        four - 1,
        four,
        four + 255,
        four + 256,
        0x0102_0304_0506_0708,
        u64::MAX,
    ];
    for content in contents {
        // Headers without the content size, and with it in every field that can hold it.
        let (mut streams, mut expected) = (Vec::new(), Vec::new());
        for checksum in [0u8, 4] {
            let magic = 0xfd2f_b528_u32.to_le_bytes();
            let mut rest = vec![1, 0, 0];
            rest.resize(3 + usize::from(checksum), 0xdd);
            let bare = [&magic[..], &[checksum, 0x51], &rest].concat();
            expected.push(Some(with_content_size(&bare, content)));
            streams.push(bare);
            for single_segment in [false, true] {
                for (flag, width, first) in [(0u8, 1, 0), (1, 2, 256), (2, 4, 0), (3, 8, 0)] {
                    let in_range =
                        content >= first && (width == 8 || (content - first) >> (8 * width) == 0);
                    if !in_range || (flag == 0 && !single_segment) {
                        continue;
                    }
                    let descriptor = flag << 6 | u8::from(single_segment) << 5 | checksum;
                    let mut header = [&magic[..], &[descriptor]].concat();
                    if !single_segment {
                        header.push(0x51);
                    }
                    header.extend_from_slice(&(content - first).to_le_bytes()[..width]);
                    let stream = [header, rest.clone()].concat();
                    expected.push(Some(stream.clone()));
                    streams.push(stream);
                }
            }
        }
        let streams = streams
            .into_iter()
            .map(|stream| (stream, StandInReport::Done));
        let batch = Batch::of(streams.collect());
        // Also as frames of a content that is one byte longer: those with a size are other frames.
        for asked in [content, content.wrapping_add(1)] {
            let Ok(bytes @ 1..) = usize::try_from(asked) else {
                continue;
            };
            let outcomes = batch.frame(&driver, 32, &[], |stream, streams, stored, frames, _| {
                // SAFETY: the spans cover the buffers.
                unsafe { frame_zstd(&driver, stream, streams, bytes, stored, frames) }
            });
            for (i, outcome) in outcomes.into_iter().enumerate() {
                let stream = &batch.streams[i][0].0;
                let frame = match &expected[i] {
                    frame if asked == content => frame.clone(),
                    Some(frame) if frame != stream => Some(with_content_size(stream, asked)),
                    _ => None,
                };
                assert_eq!(outcome, batch.outcome(i, frame), "{stream:x?} of {asked}");
            }
        }
    }
}

#[test]
fn wrong_geometry_is_an_error() {
    let driver = Simulation::eager();
    let fits = (32, 32, 3, 9, (0, 24), 0);
    for (stream_stride, frame_stride, streams, bytes, sizes, frames_at) in [
        (24, 32, 3, 9, (0, 24), 0),  // strides
        (32, 24, 3, 9, (0, 24), 0),  //
        (0, 32, 3, 9, (0, 24), 0),   //
        (64, 32, 3, 9, (0, 24), 0),  // beyond the end
        (32, 32, 2, 9, (0, 24), 0),  // too few streams
        (32, 32, 3, 0, (0, 24), 0),  // no content
        (32, 32, 3, 9, (0, 16), 0),  // short sizes
        (32, 32, 3, 9, (4, 24), 0),  // misaligned sizes
        (32, 32, 3, 9, (0, 24), 96), // overlap
        (32, 32, 3, 9, (0, 24), 8),  // misaligned frames
        fits,
    ] {
        let mut memory = vec![0; 512];
        let result = on(&driver, &mut [&mut memory], |stream, spans| {
            let part = |offset, len| DeviceSpan {
                offset,
                len,
                ..spans[0]
            };
            let streams = Streams {
                slots: slots(part(128, 96), stream_stride, streams),
                most: stream_stride,
                sizes: part(256, 24),
                statuses: part(288, 12),
            };
            let frames = CompressedFrames {
                slots: slots(part(frames_at, 96), frame_stride, 3),
                sizes: part(320 + sizes.0, sizes.1),
                framed: part(352, 12),
                outcomes: part(384, 12),
            };
            // SAFETY: spans that do not fit are refused, which is what is tested.
            unsafe { frame_zstd(&driver, stream, streams, bytes, Some(part(448, 12)), frames) }
        });
        let all = (
            stream_stride,
            frame_stride,
            streams,
            bytes,
            sizes,
            frames_at,
        );
        assert_eq!(result.is_ok(), all == fits, "{all:?}: {result:?}");
    }
}

#[test]
fn long_streams_are_moved_once() {
    let driver = counting();
    // One frame is copied unchanged, the other gets a new header.
    for (field, most) in [(8, 102), (0, 115)] {
        let by_hand = Origin::ByHand {
            single_segment: false,
            field,
            block: 100_000,
        };
        let bytes = 16_384;
        let stream = by_hand.frame(&noise(4, bytes));
        let batch = Batch::of(vec![(stream, StandInReport::Done); 64]);
        // SAFETY: the spans cover the buffers.
        batch.frame(
            &driver,
            16_500,
            &[],
            |stream, streams, stored, frames, _| unsafe {
                frame_zstd(&driver, stream, streams, bytes, stored, frames)
            },
        );
        let percent = percent_moved(&driver, 64 * bytes);
        assert!((100..=most).contains(&percent), "{percent} % with {field}");
    }
}
