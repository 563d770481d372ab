//! Copies encoded subchunks from shards to slots. The kernel is in `split.cu`.

use super::spans::{Launch, Most, Slots};
use crate::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};

/// The number of threads per block, the same as in the kernel.
const BLOCK: u32 = 256;

/// The numbers by which a launch divides its work.
pub struct SplitTuning {
    /// The number of bytes of a slot that a warp writes at a time, the same as in the kernel.
    piece: usize,
    most: Most,
}

const TUNING: SplitTuning = SplitTuning {
    piece: 4096,
    most: Most::PerMultiprocessor(32),
};

/// Enqueues a kernel that copies `sizes[i]` bytes of `shards`, from `offsets[i]` on, to the beginning of slot
/// `i`. Sizes and offsets are `u64`s, one for each slot. A size of zero copies nothing. An extent that
/// exceeds `shards` or a slot is not copied, either. The other bytes of a slot are unchanged.
///
/// # Errors
/// A span is too short or misaligned (`shards` begins at a multiple of 16), or the driver fails.
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists.
pub unsafe fn split(
    driver: &dyn Driver,
    stream: StreamId,
    shards: DeviceSpan,
    offsets: DeviceSpan,
    sizes: DeviceSpan,
    slots: Slots,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: "split",
    };
    // SAFETY: this function has the same requirements, which its caller keeps.
    unsafe { split_as(launch, shards, offsets, sizes, slots, TUNING.most) }
}

/// [`split`], in a launch of at most `most` thread blocks.
///
/// # Safety
/// As for [`split`].
unsafe fn split_as(
    launch: Launch<'_>,
    shards: DeviceSpan,
    offsets: DeviceSpan,
    sizes: DeviceSpan,
    slots: Slots,
    most: Most,
) -> Result<(), DriverError> {
    let shards = launch.elements("shards", shards, shards.len, 1, 16)?;
    let offsets = launch.elements("offsets", offsets, slots.count, 8, 8)?;
    let sizes = launch.elements("sizes", sizes, slots.count, 8, 8)?;
    let span = launch.slots("slots", slots)?;
    if span.len == 0 {
        return Ok(());
    }
    let args = [
        Arg::Span(shards, Access::Read),
        Arg::U64(shards.len as u64),
        Arg::Span(offsets, Access::Read),
        Arg::Span(sizes, Access::Read),
        Arg::Span(span, Access::Write),
        Arg::U64(slots.stride as u64),
        Arg::U64(slots.count as u64),
    ];
    let pieces = slots
        .count
        .saturating_mul(slots.stride.div_ceil(TUNING.piece));
    let grid = launch.grid(pieces, BLOCK as usize / 32, most);
    // SAFETY: the kernel checks each extent against the lengths of the shards and of a slot.
    unsafe { launch.run(grid, BLOCK, &args) }
}

#[cfg(test)]
pub(crate) mod tests {
    use zarrs_cuda_testing::effort;

    use super::super::spans::testing::*;
    use super::super::testing::far::{self, FarMemory};
    use super::super::testing::run as on;
    use super::*;
    use crate::cuda::driver::simulation::Simulation;
    use proptest::prelude::*;

    /// Checks a split of a shard of noise into slots.
    fn check_case(
        driver: &dyn Driver,
        shard_bytes: usize,
        extents: &[(u64, u64)],
        stride: usize,
        (seed, most): (u64, Most),
    ) {
        let mut shards = noise(seed, shard_bytes);
        let mut expected = vec![0xcc; stride * extents.len()];
        for (i, &(offset, size)) in extents.iter().enumerate() {
            let (Ok(offset), Ok(size)) = (usize::try_from(offset), usize::try_from(size)) else {
                continue;
            };
            let end = offset.checked_add(size);
            if let Some(from) = end.and_then(|end| shards.get(offset..end))
                && size <= stride
            {
                expected[i * stride..][..size].copy_from_slice(from);
            }
        }
        let mut slot_bytes = vec![0xcc; expected.len()];
        let (offsets, sizes): (Vec<_>, Vec<_>) = extents.iter().copied().unzip();
        let (mut offsets, mut sizes) = (u64s(&offsets), u64s(&sizes));
        let buffers = &mut [&mut shards, &mut offsets, &mut sizes, &mut slot_bytes];
        on(driver, buffers, |stream, spans| {
            let slots = slots(spans[3], stride, extents.len());
            // SAFETY: the spans cover the buffers.
            unsafe {
                let launch = Launch {
                    driver,
                    stream,
                    kernel: "split",
                };
                split_as(launch, spans[0], spans[1], spans[2], slots, most)
            }
        })
        .expect("launches");
        let wrong = std::iter::zip(&slot_bytes, &expected).position(|(a, b)| a != b);
        assert_eq!(
            wrong, None,
            "{extents:?} of {shard_bytes} in slots of {stride}"
        );
    }

    pub(crate) fn check_split(driver: &dyn Driver, tries: u32) {
        let shard = prop_oneof![0..100usize, 0..20_000usize];
        let strategy = shard.prop_flat_map(|bytes| {
            let end = bytes as u64 + 1;
            // Mostly extents that fit, some up to the exact end, and some as in a corrupt file.
            let extent = prop_oneof![
                6 => (0..end, any::<u64>()).prop_map(move |(at, n)| (at, n % (end - at))),
                2 => (0..end).prop_map(move |at| (at, end - 1 - at)),
                1 => (0..end).prop_map(|at| (at, 0)),
                1 => (0..2 * end, 0..2 * end),
                1 => any::<(u64, u64)>(),
                1 => Just((u64::MAX, u64::MAX)),
            ];
            let extents = proptest::collection::vec(extent, 0..20);
            let most = few_or(TUNING.most);
            (Just(bytes), extents, 0..20_000usize, (any::<u64>(), most))
        });
        effort::property(tries, &strategy, |(bytes, extents, stride, dice)| {
            check_case(driver, bytes, &extents, stride.next_multiple_of(16), dice);
            Ok(())
        });
        let many: Vec<_> = (0..100_000).map(|i| (i * 7 % 1000, i % 17)).collect();
        check_case(driver, 1016, &many, 16, (1, TUNING.most));
        check_case(driver, 1016, &many[..1000], 4112, (1, Most::InAll(2)));
        check_case(driver, 0, &[], 16, (1, TUNING.most));
        check_case(driver, 100_000, &[(3, 99_997)], 100_000, (1, TUNING.most));
    }

    #[test]
    fn extents_reach_their_slots() {
        check_split(&Simulation::eager(), 64);
    }

    /// Runs one block of a launch whose slots no memory could hold.
    #[test]
    fn slots_may_be_longer_than_four_gibibytes() {
        let strides = proptest::sample::select(vec![16u64, 4096, 4112, 1 << 32, (1 << 36) + 16]);
        let numbers = (0..1u64 << 34, 0..1u64 << 50, 0..1u64 << 40);
        effort::property(
            32,
            &(strides, numbers),
            |(stride, (number, offset, cut))| {
                let piece = TUNING.piece as u64;
                let pieces_per_slot = stride.div_ceil(piece);
                let warps = u64::from(BLOCK / 32);
                let first = number / warps * warps;
                // The slots to which the block's warps copy, from the slot of the block's first
                // piece on.
                let slot_of = |number: u64| number / pieces_per_slot;
                let slots = slot_of(first)..slot_of(first + warps - 1) + 1;
                let size_of = |slot: u64| stride - (cut + slot) % stride.min(100);
                // Far from each other.
                let offset_of = |slot: u64| offset + ((slot - slot_of(first)) << 44);
                let mut memory = FarMemory::default();
                for slot in slots.clone() {
                    let of_slot = |number: u64| {
                        number.clamp(slot * pieces_per_slot, (slot + 1) * pieces_per_slot)
                    };
                    let begin = (of_slot(first) - slot * pieces_per_slot) * piece;
                    let end = (of_slot(first + warps) - slot * pieces_per_slot) * piece;
                    let end = end.min(size_of(slot));
                    let from = far::SHARDS + offset_of(slot) + begin;
                    memory.copied(
                        from,
                        far::SLOTS + slot * stride + begin,
                        end.saturating_sub(begin),
                    );
                }
                memory.numbers(far::OFFSETS + 8 * slots.start, slots.clone().map(offset_of));
                memory.numbers(far::SIZES + 8 * slots.start, slots.clone().map(size_of));
                let block = u32::try_from(first / warps).expect("below 2^31");
                memory.check(
                    "split",
                    block,
                    &[
                        far::SHARDS,
                        1 << 62,
                        far::OFFSETS,
                        far::SIZES,
                        far::SLOTS,
                        stride,
                        slots.end,
                    ],
                );
                Ok(())
            },
        );
    }

    #[test]
    fn wrong_geometry_is_an_error() {
        let driver = Simulation::eager();
        for (shards, offsets, sizes, stride) in [
            ((8, 32), (64, 16), (80, 16), 16),
            ((0, 32), (64, 8), (80, 16), 16),
            ((0, 32), (64, 16), (84, 16), 16),
            ((0, 32), (64, 16), (80, 16), 20),
            ((0, 32), (64, 16), (80, 16), 80),
        ] {
            let mut bytes = vec![0; 256];
            let error = on(&driver, &mut [&mut bytes], |stream, spans| {
                let [shards, offsets, sizes, slot_bytes] = [shards, offsets, sizes, (128, 128)]
                    .map(|(offset, len)| DeviceSpan {
                        offset,
                        len,
                        ..spans[0]
                    });
                let slots = slots(slot_bytes, stride, 2);
                // SAFETY: nothing is launched.
                unsafe { split(&driver, stream, shards, offsets, sizes, slots) }
            })
            .expect_err("does not fit");
            assert!(error.to_string().starts_with("launching split"), "{error}");
        }
    }

    #[test]
    fn long_extents_are_moved_once() {
        let driver = counting();
        for (size, most) in [(16_384u64, 100), (16_389, 104)] {
            let extents: Vec<_> = (0..64).map(|i| (i * size, size)).collect();
            let shard_bytes = usize::try_from(64 * size).expect("small");
            check_case(&driver, shard_bytes, &extents, 16_416, (2, TUNING.most));
            let (moved, _) = sectors(&driver);
            let least = (2 * 64 * size).div_ceil(32);
            let percent = moved * 100 / least;
            assert!(
                (100..=most).contains(&percent),
                "{moved} sectors for {least}"
            );
        }
    }
}
