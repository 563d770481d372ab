//! Shuffles of Blosc, and their inverses. The kernels are in `shuffle.cu`.

use super::spans::{Launch, Most, Slots};
use crate::cuda::driver::{Access, Arg, Driver, DriverError, StreamId};

/// The number of threads per block, the same as in the kernels.
const BLOCK: u32 = 256;

/// The sizes by which launches divide their work.
pub struct ShuffleTuning {
    /// The most bytes that a block of threads moves at a time, the same number as in the kernels.
    tile: usize,
    most: Most,
}

const TUNING: ShuffleTuning = ShuffleTuning {
    tile: 16 * 1024,
    most: Most::PerMultiprocessor(32),
};

/// The kind of Blosc's shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    /// Transposes the bytes of the elements.
    Bytes,
    /// Transposes the bits of the elements.
    Bits,
}

/// The names of the kernels, by [`Shuffle`].
const FORWARD: [&str; 2] = ["shuffle", "bit_shuffle"];
const BACK: [&str; 2] = ["unshuffle", "bit_unshuffle"];

/// The division of a slot's content into Blosc blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BloscBlocks {
    /// The size of a slot's content, in bytes.
    pub(crate) bytes: usize,
    /// The size of a block, in bytes. The last block may be shorter.
    pub(crate) block: usize,
    /// The size of an element, in bytes: 1 to 255.
    pub element: usize,
}

/// Enqueues a kernel that shuffles every Blosc block of each slot of `from` into the same place of
/// the same slot of `to`.
///
/// # Errors
/// A span is too short or misaligned, slots overlap or differ in number, Blosc has no such blocks,
/// or the driver fails.
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists.
pub unsafe fn shuffle(
    driver: &dyn Driver,
    stream: StreamId,
    what: Shuffle,
    from: Slots,
    to: Slots,
    blocks: BloscBlocks,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: FORWARD[what as usize],
    };
    // SAFETY: this function has the same requirements, which its caller keeps.
    unsafe { run(launch, from, to, blocks, TUNING.most) }
}

/// Enqueues the inverse of [`shuffle`].
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists.
pub(crate) unsafe fn unshuffle(
    driver: &dyn Driver,
    stream: StreamId,
    what: Shuffle,
    from: Slots,
    to: Slots,
    blocks: BloscBlocks,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: BACK[what as usize],
    };
    // SAFETY: this function has the same requirements, which its caller keeps.
    unsafe { run(launch, from, to, blocks, TUNING.most) }
}

/// # Safety
/// The caller keeps the rules that the module `driver` lists.
unsafe fn run(
    launch: Launch<'_>,
    from: Slots,
    to: Slots,
    blocks: BloscBlocks,
    most: Most,
) -> Result<(), DriverError> {
    let source = launch.slots("slots to read", from)?;
    let target = launch.slots("slots to write", to)?;
    launch.require(from.count == to.count, || {
        format!(
            "there are {} slots to read and {} to write",
            from.count, to.count
        )
    })?;
    launch.require(blocks.bytes <= from.stride.min(to.stride), || {
        format!(
            "{} bytes do not fit into slots of {} and {}",
            blocks.bytes, from.stride, to.stride
        )
    })?;
    let apart = source.memory != target.memory
        || source.offset + source.len <= target.offset
        || target.offset + target.len <= source.offset;
    launch.require(apart, || {
        "the slots to read and to write overlap".to_owned()
    })?;
    // Blosc's own header limits these numbers.
    let block = u32::try_from(blocks.block)
        .ok()
        .filter(|&n| n > 0 && n < 1 << 31);
    let element = u32::try_from(blocks.element)
        .ok()
        .filter(|&n| n > 0 && n < 256);
    let (Some(block), Some(element)) = (block, element) else {
        return launch.require(false, || {
            format!(
                "Blosc has no blocks of {} bytes of elements of {}",
                blocks.block, blocks.element
            )
        });
    };
    if from.count == 0 || blocks.bytes == 0 {
        return Ok(());
    }
    let args = [
        Arg::Span(source, Access::Read),
        Arg::U64(from.stride as u64),
        Arg::Span(target, Access::Write),
        Arg::U64(to.stride as u64),
        Arg::U64(from.count as u64),
        Arg::U64(blocks.bytes as u64),
        Arg::U32(block),
        Arg::U32(element),
    ];
    let block = blocks.block.min(blocks.bytes);
    let tiles = blocks
        .bytes
        .div_ceil(block)
        .saturating_mul(block.div_ceil(TUNING.tile));
    let grid = launch.grid(from.count.saturating_mul(tiles), 1, most);
    // SAFETY: the contents lie within the slots, and the slots within the spans.
    unsafe { launch.run(grid, BLOCK, &args) }
}

#[cfg(test)]
pub(crate) mod tests {
    use zarrs_cuda_testing::effort;

    use super::super::spans::testing::*;
    use super::super::testing::run as on;
    use super::*;
    use crate::cuda::driver::simulation::Simulation;
    use proptest::prelude::*;
    use std::ffi::c_int;

    /// Returns a shuffled block, as the kernels define it.
    fn naive(what: Shuffle, block: &[u8], element: usize) -> Vec<u8> {
        let n = block.len() / element;
        let mut shuffled = block.to_vec();
        match what {
            Shuffle::Bytes => {
                for i in 0..n {
                    for j in 0..element {
                        shuffled[j * n + i] = block[i * element + j];
                    }
                }
            }
            Shuffle::Bits if n.is_multiple_of(8) => {
                shuffled[..n * element].fill(0);
                for i in 0..n {
                    for j in 0..element {
                        for k in 0..8 {
                            let bit = block[i * element + j] >> k & 1;
                            shuffled[(8 * j + k) * (n / 8) + i / 8] |= bit << (i % 8);
                        }
                    }
                }
            }
            Shuffle::Bits => {}
        }
        shuffled
    }

    // The functions that C-Blosc calls for each block.
    unsafe extern "C" {
        fn blosc_internal_shuffle(element: usize, block: usize, from: *const u8, to: *mut u8);
        fn blosc_internal_bitshuffle(
            element: usize,
            block: usize,
            from: *const u8,
            to: *mut u8,
            scratch: *mut u8,
        ) -> c_int;
    }

    fn c_blosc(what: Shuffle, block: &[u8], element: usize) -> Vec<u8> {
        let (mut to, mut scratch) = (vec![0; block.len()], vec![0; block.len() + 64]);
        // SAFETY: the buffers are as long as the block.
        unsafe {
            let (from, to) = (block.as_ptr(), to.as_mut_ptr());
            match what {
                Shuffle::Bytes => blosc_internal_shuffle(element, block.len(), from, to),
                Shuffle::Bits => {
                    let scratch = scratch.as_mut_ptr();
                    let done = blosc_internal_bitshuffle(element, block.len(), from, to, scratch);
                    assert!(done >= 0);
                }
            }
        }
        to
    }

    #[derive(Clone, Debug)]
    struct Case {
        count: usize,
        blocks: BloscBlocks,
        strides: (usize, usize),
        seed: u64,
        most: Most,
    }

    fn cases(most: usize) -> impl Strategy<Value = Case> {
        let element = prop_oneof![
            proptest::sample::select(vec![1usize, 2, 4, 8, 16]),
            1..=255usize,
        ];
        // Bytes, whole elements, and the multiples of 8 elements that bits need.
        let length = move |element: usize| {
            prop_oneof![
                1..=most,
                (1..=most.div_ceil(element)).prop_map(move |n| n * element),
                (1..=most.div_ceil(8 * element)).prop_map(move |n| 8 * n * element),
            ]
        };
        element
            .prop_flat_map(move |element| {
                let lengths = (length(element), length(element));
                (
                    Just(element),
                    lengths,
                    (0..4usize, 0..40usize, 0..40usize),
                    (any::<u64>(), few_or(TUNING.most)),
                )
            })
            .prop_map(
                |(element, (bytes, block), (count, room, other), (seed, most))| Case {
                    count,
                    blocks: BloscBlocks {
                        bytes,
                        block,
                        element,
                    },
                    strides: (
                        (bytes + room).next_multiple_of(16),
                        (bytes + other).next_multiple_of(16),
                    ),
                    seed,
                    most,
                },
            )
    }

    fn check_case(driver: &dyn Driver, what: Shuffle, case: &Case) {
        let &Case {
            count,
            blocks,
            strides: (stride, other),
            seed,
            most,
        } = case;
        let mut plain = noise(seed, count * stride);
        let mut expected = vec![0xcc; count * other];
        for i in 0..count {
            let from = plain[i * stride..][..blocks.bytes].chunks(blocks.block);
            let to = expected[i * other..][..blocks.bytes].chunks_mut(blocks.block);
            for (from, to) in from.zip(to) {
                to.copy_from_slice(&naive(what, from, blocks.element));
            }
        }
        let mut shuffled = vec![0xcc; count * other];
        let mut back = vec![0x33; count * stride];
        on(
            driver,
            &mut [&mut plain, &mut shuffled, &mut back],
            |stream, spans| {
                let [plain, shuffled, back] = [
                    slots(spans[0], stride, count),
                    slots(spans[1], other, count),
                    slots(spans[2], stride, count),
                ];
                // SAFETY: the spans cover the buffers.
                unsafe {
                    let launch = |kernel| Launch {
                        driver,
                        stream,
                        kernel,
                    };
                    let [forward, inverse] = [FORWARD, BACK].map(|kernel| kernel[what as usize]);
                    run(launch(forward), plain, shuffled, blocks, most)?;
                    run(launch(inverse), shuffled, back, blocks, most)
                }
            },
        )
        .expect("launches");
        assert!(shuffled == expected, "{what:?} of {case:?}");
        for (i, slot) in back.chunks(stride.max(1)).enumerate() {
            let (back, untouched) = slot.split_at(blocks.bytes);
            assert!(
                back == &plain[i * stride..][..blocks.bytes],
                "back from {what:?} of {case:?}"
            );
            assert!(untouched.iter().all(|&byte| byte == 0x33));
        }
    }

    pub(crate) fn check_shuffle(driver: &dyn Driver, what: Shuffle, tries: u32) {
        effort::property(tries, &cases(3000), |case| {
            check_case(driver, what, &case);
            Ok(())
        });
        // More than one tile.
        effort::property(tries.div_ceil(8), &cases(100_000), |case| {
            check_case(driver, what, &case);
            Ok(())
        });
        // Blocks of several tiles, for few blocks of threads.
        for element in [2, 7] {
            let blocks = BloscBlocks {
                bytes: 100_000,
                block: 5000 / element * 8 * element,
                element,
            };
            let case = Case {
                count: 2,
                blocks,
                strides: (100_000, 100_000),
                seed: 2,
                most: Most::InAll(3),
            };
            check_case(driver, what, &case);
        }
        let blocks = BloscBlocks {
            bytes: 3,
            block: 3,
            element: 2,
        };
        for count in [0, 1, 30_000] {
            let case = Case {
                count,
                blocks,
                strides: (16, 16),
                seed: 1,
                most: TUNING.most,
            };
            check_case(driver, what, &case);
        }
    }

    #[test]
    fn the_naive_shuffles_are_c_bloscs() {
        let strategy = (cases(3000), any::<bool>());
        effort::property(128, &strategy, |(case, bits)| {
            let what = if bits { Shuffle::Bits } else { Shuffle::Bytes };
            let (block, element) = (noise(case.seed, case.blocks.block), case.blocks.element);
            prop_assert_eq!(naive(what, &block, element), c_blosc(what, &block, element));
            Ok(())
        });
    }

    #[test]
    fn bytes_are_shuffled_and_back() {
        check_shuffle(&Simulation::eager(), Shuffle::Bytes, 64);
    }

    #[test]
    fn bits_are_shuffled_and_back() {
        check_shuffle(&Simulation::eager(), Shuffle::Bits, 64);
    }

    #[test]
    fn wrong_geometry_is_an_error() {
        let driver = Simulation::eager();
        let fits = (32, 32, 128, 32, 16, 2);
        for (from, to, at, bytes, block, element) in [
            (32, 32, 128, 33, 16, 2),
            (24, 32, 128, 16, 16, 2),
            (32, 32, 32, 32, 16, 2),  // overlap
            (32, 64, 128, 32, 16, 2), // beyond the end
            (32, 32, 128, 32, 0, 2),
            (32, 32, 128, 32, 1 << 31, 2),
            (32, 32, 128, 32, 16, 0),
            (32, 32, 128, 32, 16, 256),
            fits,
        ] {
            let mut memory = vec![0; 192];
            let result = on(&driver, &mut [&mut memory], |stream, spans| {
                let part = |offset, len| crate::cuda::driver::DeviceSpan {
                    offset,
                    len,
                    ..spans[0]
                };
                let (from, to) = (slots(part(0, 64), from, 2), slots(part(at, 64), to, 2));
                let blocks = BloscBlocks {
                    bytes,
                    block,
                    element,
                };
                // SAFETY: spans that do not fit are refused, which is what is tested.
                unsafe { shuffle(&driver, stream, Shuffle::Bytes, from, to, blocks) }
            });
            let all = (from, to, at, bytes, block, element);
            assert_eq!(result.is_ok(), all == fits, "{all:?}");
        }
    }

    #[test]
    fn each_byte_is_moved_once() {
        let driver = counting();
        for element in [2, 4, 8, 16] {
            for what in [Shuffle::Bytes, Shuffle::Bits] {
                let (count, stride) = (2, 1 << 17);
                let blocks = BloscBlocks {
                    bytes: stride,
                    block: 1 << 16,
                    element,
                };
                for kernels in [FORWARD, BACK] {
                    let mut from = noise(4, count * stride);
                    let mut to = vec![0; count * stride];
                    on(&driver, &mut [&mut from, &mut to], |stream, spans| {
                        let launch = Launch {
                            driver: &driver,
                            stream,
                            kernel: kernels[what as usize],
                        };
                        let [from, to] = [0, 1].map(|i| slots(spans[i], stride, count));
                        // SAFETY: the spans cover the buffers.
                        unsafe { run(launch, from, to, blocks, TUNING.most) }
                    })
                    .expect("launches");
                    let (moved, _) = sectors(&driver);
                    let least = (2 * count * stride / 32) as u64;
                    assert_eq!(moved, least, "{what:?} of {element}, {kernels:?}");
                }
            }
        }
    }
}
