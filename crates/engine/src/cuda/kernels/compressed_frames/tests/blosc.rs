//! Blosc frames, read by C-Blosc.

use super::super::{BloscFormat, StreamFormat, blosc_bound, frame_blosc};
use super::*;
use crate::cuda::driver::simulation::Simulation;
use crate::cuda::kernels::shuffle::{BloscBlocks, Shuffle, shuffle};
use blosc_src::{blosc_cbuffer_validate, blosc_decompress_ctx, blosc_getitem};
use std::ffi::c_int;

const SHUFFLES: [Option<Shuffle>; 3] = [None, Some(Shuffle::Bytes), Some(Shuffle::Bits)];
const STREAMS: [StreamFormat; 2] = [StreamFormat::Lz4, StreamFormat::Zstd];

// The compressor that C-Blosc calls.
unsafe extern "C" {
    fn LZ4_compress_default(from: *const u8, to: *mut u8, size: c_int, room: c_int) -> c_int;
}

fn compress(streams: StreamFormat, block: &[u8]) -> Vec<u8> {
    let mut stream = vec![0; block.len() + block.len() / 100 + 100];
    let size = match streams {
        StreamFormat::Lz4 => {
            let [size, room] = [block.len(), stream.len()].map(|n| n.try_into().expect("small"));
            // SAFETY: the sizes are the buffers' sizes.
            let size =
                unsafe { LZ4_compress_default(block.as_ptr(), stream.as_mut_ptr(), size, room) };
            usize::try_from(size).expect("not negative")
        }
        StreamFormat::Zstd => {
            zstd_safe::compress(&mut stream[..], block, 1).expect("within the bound")
        }
    };
    assert!(size > 0);
    stream.truncate(size);
    stream
}

/// Returns slots with the contents of subchunks, shuffled on the device if the format says so.
fn shuffled(driver: &dyn Driver, format: BloscFormat, contents: &[Vec<u8>]) -> Vec<u8> {
    let stride = format.blocks.bytes.next_multiple_of(16);
    let mut plain = vec![0; contents.len() * stride];
    for (slot, content) in plain.chunks_mut(stride).zip(contents) {
        slot[..content.len()].copy_from_slice(content);
    }
    let Some(what) = format.shuffle else {
        return plain;
    };
    let mut to = vec![0; plain.len()];
    on(driver, &mut [&mut plain, &mut to], |stream, spans| {
        let [from, to] = [0, 1].map(|n| slots(spans[n], stride, contents.len()));
        // SAFETY: the spans cover the buffers.
        unsafe { shuffle(driver, stream, what, from, to, format.blocks) }
    })
    .expect("launches");
    to
}

/// Returns the frame of these blocks and their streams, as in C-Blosc's `README_HEADER.rst`.
fn naive(format: BloscFormat, blocks: &[&[u8]], streams: &[(Vec<u8>, StandInReport)]) -> Vec<u8> {
    let BloscBlocks {
        bytes,
        block,
        element,
    } = format.blocks;
    let number = |n: usize| u32::try_from(n).expect("small").to_le_bytes();
    let shuffle = match format.shuffle {
        None => 0b0000_0000,
        Some(Shuffle::Bytes) => 0b0000_0001,
        Some(Shuffle::Bits) => 0b0000_0100,
    };
    let compressor = match format.streams {
        StreamFormat::Lz4 => 0b0010_0000,
        StreamFormat::Zstd => 0b1000_0000,
    };
    let (mut starts, mut behind) = (Vec::new(), Vec::new());
    for (block, (stream, _)) in blocks.iter().zip(streams) {
        starts.extend(number(16 + 4 * blocks.len() + behind.len()));
        let stored = if stream.len() < block.len() {
            stream
        } else {
            *block
        };
        behind.extend(number(stored.len()));
        behind.extend(stored);
    }
    let element = u8::try_from(element).expect("at most 255");
    [
        &[2, 1, 0b0001_0000 | shuffle | compressor, element],
        &number(bytes)[..],
        &number(block),
        &number(16 + starts.len() + behind.len()),
        &starts,
        &behind,
    ]
    .concat()
}

fn check_reader(format: BloscFormat, frame: &[u8], content: &[u8]) {
    let (mut size, mut back) = (0, vec![0; content.len()]);
    // SAFETY: the pointers and lengths are the buffers' own.
    unsafe {
        let valid = blosc_cbuffer_validate(frame.as_ptr().cast(), frame.len(), &raw mut size);
        assert_eq!((valid, size), (0, content.len()));
        let to = back.as_mut_ptr().cast();
        let read = blosc_decompress_ctx(frame.as_ptr().cast(), to, back.len(), 1);
        assert_eq!(usize::try_from(read), Ok(content.len()), "{format:?}");
    }
    assert!(back == content, "{format:?}");
    // Reads whole elements, as partial readers do. They need blocks of whole elements.
    let BloscBlocks { block, element, .. } = format.blocks;
    if block.is_multiple_of(element) {
        let items = content.len() / element;
        back.fill(0);
        // SAFETY: the frame has this many items, and they fit into the buffer.
        let read = unsafe {
            let items = c_int::try_from(items).expect("small");
            blosc_getitem(frame.as_ptr().cast(), 0, items, back.as_mut_ptr().cast())
        };
        assert_eq!(usize::try_from(read), Ok(items * element), "{format:?}");
        assert!(back[..items * element] == content[..items * element]);
    }
}

/// Contents made from seeds, shuffled on the device, compressed, and framed on the device.
fn check_case(
    driver: &dyn Driver,
    format: BloscFormat,
    seeds: &[u64],
    claims: &[StandInReport],
    stored: Option<Vec<bool>>,
    room: (usize, usize),
) {
    let BloscBlocks { bytes, block, .. } = format.blocks;
    let contents: Vec<_> = seeds.iter().map(|&seed| content(seed, bytes)).collect();
    let stride = bytes.next_multiple_of(16);
    let inputs = shuffled(driver, format, &contents);
    let mut claims = claims
        .iter()
        .copied()
        .chain(std::iter::repeat(StandInReport::Done));
    let blocks: Vec<Vec<_>> = inputs
        .chunks(stride)
        .map(|slot| slot[..bytes].chunks(block).collect())
        .collect();
    let streams = blocks.iter().map(|blocks| {
        let stream = |block: &&[u8]| (compress(format.streams, block), claims.next());
        let streams = blocks.iter().map(stream);
        let streams = streams.map(|(stream, claim)| (stream, claim.unwrap_or(StandInReport::Done)));
        streams.collect()
    });
    let batch = Batch {
        streams: streams.collect(),
        stored,
        room,
    };
    let bound = blosc_bound(format.blocks).expect("small");
    let outcomes = batch.frame(
        driver,
        bound,
        &inputs,
        |stream, streams, stored, frames, inputs| {
            let inputs = slots(inputs, stride, seeds.len());
            // SAFETY: the spans cover the buffers.
            unsafe { frame_blosc(driver, stream, format, inputs, streams, stored, frames) }
        },
    );
    for (i, outcome) in outcomes.into_iter().enumerate() {
        let expected = naive(format, &blocks[i], &batch.streams[i]);
        assert!(expected.len() <= bound);
        assert!(
            outcome == batch.outcome(i, Some(expected)),
            "{i} of {seeds:?}, {format:?}"
        );
        if let Outcome::Frame(frame) = outcome {
            check_reader(format, &frame, &contents[i]);
        }
    }
}

fn format(
    streams: StreamFormat,
    shuffle: Option<Shuffle>,
    (bytes, block, element): (usize, usize, usize),
) -> BloscFormat {
    let blocks = BloscBlocks {
        bytes,
        block,
        element,
    };
    BloscFormat {
        streams,
        shuffle,
        blocks,
    }
}

pub(crate) fn check_blosc(driver: &dyn Driver, tries: u32) {
    let shape = prop_oneof![1..600usize, 1..9000usize].prop_flat_map(|bytes| {
        let element = prop_oneof![
            proptest::sample::select(vec![1usize, 2, 4, 8, 16]),
            1..=255usize
        ];
        // Also blocks that are not of whole elements.
        let block = prop_oneof![1..=bytes, Just(bytes), bytes.div_ceil(40)..=bytes];
        (Just(bytes), block, element)
    });
    // Avoids very small blocks, of which there would be too many.
    let shape =
        shape.prop_map(|(bytes, block, element)| (bytes, block.max(bytes / 70 + 1), element));
    let shuffles = proptest::sample::select(SHUFFLES.to_vec());
    let format_of = (proptest::sample::select(STREAMS.to_vec()), shuffles, shape);
    let seeds = proptest::collection::vec(any::<u64>(), 0..6);
    let claims = prop_oneof![
        2 => Just(Vec::new()),
        1 => proptest::collection::vec(claims(), 1..20),
    ];
    let stored = proptest::option::of(proptest::collection::vec(any::<bool>(), 6));
    let strategy = (format_of, seeds, claims, stored, (0..40usize, 0..40usize));
    zarrs_cuda_testing::effort::property(
        tries,
        &strategy,
        |((streams, shuffle, shape), seeds, claims, stored, room)| {
            let stored = stored.map(|stored| stored[..seeds.len()].to_vec());
            let format = format(streams, shuffle, shape);
            check_case(driver, format, &seeds, &claims, stored, room);
            Ok(())
        },
    );
}

/// Checks every supported combination, with compressible and incompressible contents, and with
/// both.
#[test]
fn frames_are_read_by_c_blosc() {
    let driver = Simulation::eager();
    for element in [1, 2, 3, 4, 8, 16, 255] {
        let whole = 8 * element;
        let mut shapes = vec![
            (1, 1),
            (element, element),
            (100, 100),
            (3 * whole, 3 * whole),
            (4 * whole, whole),
            (4 * whole + element, whole),
            (2 * whole + 1, whole),
            (5000, 5000),
            (40_000 / element * element, 12_000 / whole * whole),
        ];
        if element > 1 {
            shapes.push((element - 1, element - 1));
            shapes.push((3 * whole + 1, whole + 1)); // blocks that are not of whole elements
        }
        for (bytes, block) in shapes {
            for streams in STREAMS {
                for shuffle in SHUFFLES {
                    let format = format(streams, shuffle, (bytes, block, element));
                    check_case(&driver, format, &[4, 5, 6, 7], &[], None, (0, 0));
                }
            }
        }
    }
}

#[test]
fn any_blocks_become_frames() {
    check_blosc(&Simulation::eager(), 64);
}

#[test]
fn very_many_streams() {
    let driver = Simulation::eager();
    // 100 000 blocks of a subchunk, and 100 000 subchunks.
    let shape = format(StreamFormat::Lz4, None, (100_000, 1, 1));
    check_case(&driver, shape, &[0, 1], &[], None, (0, 0));
    let shape = format(StreamFormat::Zstd, None, (3, 2, 1));
    let seeds: Vec<_> = (0..100_000).collect();
    check_case(&driver, shape, &seeds, &[], None, (0, 0));
}

#[test]
fn bounds_are_those_of_c_blosc() {
    let bound = |bytes, block, element| {
        blosc_bound(BloscBlocks {
            bytes,
            block,
            element,
        })
    };
    assert_eq!(bound(1, 1, 1), Some(16 + 8 + 1));
    assert_eq!(bound(1000, 300, 255), Some(16 + 4 * 8 + 1000));
    let most = i32::MAX as usize;
    let quarter = 1 << 29;
    assert_eq!(bound(most - 16 - 32, quarter, 1), Some(most));
    for (bytes, block, element) in [
        (0, 1, 1),
        (10, 0, 1),
        (10, 11, 1),
        (10, 10, 0),
        (10, 10, 256),
        (most - 16 - 31, quarter, 1),
        (most / 2, (most - 1020) / 3 + 1, 1), // a block that is too long
        (usize::MAX, quarter, 1),
    ] {
        assert_eq!(bound(bytes, block, element), None, "{bytes} {block}");
    }
}

#[test]
fn wrong_geometry_is_an_error() {
    let driver = Simulation::eager();
    let fits = (64, 32, (2, 4), 80, (20, 10, 2), 16);
    for (stride, stream_stride, counts, frame_stride, shape, inputs_at) in [
        (16, 32, (2, 4), 80, (20, 10, 2), 16), // no room for a subchunk
        (64, 24, (2, 4), 80, (20, 10, 2), 16), // strides
        (64, 32, (1, 4), 80, (20, 10, 2), 16), // too few subchunks
        (64, 32, (2, 3), 80, (20, 10, 2), 16), // too few streams
        (64, 32, (2, 4), 48, (20, 10, 2), 16), // no room for a frame
        (64, 32, (2, 4), 80, (20, 10, 0), 16), // no such elements
        (64, 32, (2, 4), 80, (20, 10, 256), 16), //
        (64, 32, (2, 4), 80, (20, 0, 2), 16),  // no such blocks
        (64, 32, (2, 2), 80, (20, 21, 2), 16), //
        (64, 32, (2, 4), 80, (20, 10, 2), 24), // misaligned subchunks
        (64, 32, (2, 4), 80, (20, 10, 2), 496), // overlap
        fits,
    ] {
        let mut memory = vec![0; 1024];
        let result = on(&driver, &mut [&mut memory], |stream, spans| {
            let part = |offset, len| DeviceSpan {
                offset,
                len,
                ..spans[0]
            };
            let inputs = slots(part(inputs_at, 128), stride, counts.0);
            let streams = Streams {
                slots: slots(part(160, 128), stream_stride, counts.1),
                most: stream_stride,
                sizes: part(304, 32),
                statuses: part(336, 16),
            };
            let frames = CompressedFrames {
                slots: slots(part(512, 160), frame_stride, 2),
                sizes: part(704, 16),
                framed: part(720, 8),
                outcomes: part(728, 8),
            };
            let format = format(StreamFormat::Lz4, None, shape);
            // SAFETY: spans that do not fit are refused, which is what is tested.
            unsafe { frame_blosc(&driver, stream, format, inputs, streams, None, frames) }
        });
        let all = (
            stride,
            stream_stride,
            counts,
            frame_stride,
            shape,
            inputs_at,
        );
        assert_eq!(result.is_ok(), all == fits, "{all:?}: {result:?}");
    }
}

#[test]
fn long_streams_are_moved_once() {
    let driver = counting();
    let (bytes, block) = (65_536, 16_384);
    // Raw blocks are as long as they can be; streams a little shorter.
    for (more, most) in [(0, 110), (5, 110)] {
        let format = format(StreamFormat::Lz4, None, (bytes, block, 4));
        let inputs = noise(6, 16 * bytes);
        let stream = (noise(7, block - more), StandInReport::Done);
        let batch = Batch {
            streams: vec![vec![stream; 4]; 16],
            ..Batch::default()
        };
        let bound = blosc_bound(format.blocks).expect("small");
        batch.frame(
            &driver,
            bound,
            &inputs,
            |stream, streams, stored, frames, inputs| {
                let inputs = slots(inputs, bytes, 16);
                // SAFETY: the spans cover the buffers.
                unsafe { frame_blosc(&driver, stream, format, inputs, streams, stored, frames) }
            },
        );
        let percent = percent_moved(&driver, 16 * bytes);
        assert!((100..=most).contains(&percent), "{percent} % with {more}");
    }
}
