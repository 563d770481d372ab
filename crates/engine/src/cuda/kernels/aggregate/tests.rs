//! Sizes are permuted and summed, and runs are gathered, as an oracle does it.

use zarrs_cuda_testing::effort;

use super::super::spans::testing::*;
use super::super::testing::far::{self, FarMemory};
use super::super::testing::run as on;
use super::*;
use crate::cuda::driver::simulation::Simulation;
use crate::layout::permutation::tests as layout;
use proptest::prelude::*;

fn exclusive_sums(sizes: &[u64]) -> Vec<u64> {
    let mut sum = 0u64;
    let mut offsets = vec![0];
    for &size in sizes {
        sum = sum.wrapping_add(size);
        offsets.push(sum);
    }
    offsets
}

fn check_permute_case(
    driver: &dyn Driver,
    (subchunks, per_shard): (&[usize], &[usize]),
    seed: u64,
    (each, elide): (bool, bool),
    most: Most,
) {
    let permutation = ShardPermutation::new(subchunks, per_shard).expect("small");
    let (count, padded) = (permutation.subchunks(), permutation.padded_slots());
    let noise = noise(seed, 2 * count);
    let size = |i: usize| {
        if each {
            u64::from(noise[i]) << 33
        } else {
            1 << 40
        }
    };
    let present = |i: usize| !elide || noise[count + i] > 99;
    let sizes: Vec<u64> = (0..count).map(size).collect();
    let flags: Vec<u32> = (0..count).map(|i| 3 * u32::from(present(i))).collect();
    let mut expected_sizes = vec![0; padded];
    let mut expected_source = vec![0; padded];
    for i in 0..count {
        let place = layout::naive(subchunks, per_shard, i);
        expected_sizes[place] = if present(i) { size(i) } else { 0 };
        expected_source[place] = u32::try_from(i).expect("small");
    }
    let (mut sizes, mut flags) = (u64s(&sizes), u32s(&flags));
    let (mut permuted, mut source) = (vec![0xcc; padded * 8], vec![0xcc; padded * 4]);
    let buffers = &mut [&mut sizes, &mut flags, &mut permuted, &mut source];
    on(driver, buffers, |stream, spans| {
        let all = usize::try_from(1u64 << 40).expect("64 bits");
        let sizes = if each {
            Lengths::Each(spans[0])
        } else {
            Lengths::All(all)
        };
        let present = elide.then_some(spans[1]);
        // SAFETY: the spans cover the buffers.
        unsafe {
            let launch = Launch {
                driver,
                stream,
                kernel: "permute_sizes",
            };
            permute_sizes_as(
                launch,
                &permutation,
                sizes,
                present,
                spans[2],
                spans[3],
                most,
            )
        }
    })
    .expect("launches");
    assert_eq!(to_u64s(&permuted), expected_sizes);
    assert_eq!(to_u32s(&source), expected_source);
}

fn check_scan_case(driver: &dyn Driver, sizes: &[u64], in_place: bool, alone: usize) {
    let count = sizes.len();
    let mut input = u64s(sizes);
    let mut output = vec![0xcc; 8 * (count + 1)];
    let mut scratch = vec![0xcc; scan_scratch_bytes(count)];
    if in_place {
        output[..8 * count].copy_from_slice(&input);
    }
    on(
        driver,
        &mut [&mut input, &mut output, &mut scratch],
        |stream, spans| {
            let from = if in_place { spans[1] } else { spans[0] };
            // SAFETY: the spans cover the buffers.
            unsafe { scan_as(driver, stream, from, spans[1], spans[2], count, alone) }
        },
    )
    .expect("launches");
    assert!(
        to_u64s(&output) == exclusive_sums(sizes),
        "{count} sizes, in place: {in_place}, alone: {alone}"
    );
}

/// Runs to gather: their sizes, their slots, and the stride of slots.
#[derive(Clone, Debug)]
struct Runs {
    sizes: Vec<usize>,
    source: Vec<u32>,
    stride: usize,
    seed: u64,
}

fn runs(longest: usize) -> impl Strategy<Value = Runs> {
    let size = prop_oneof![
        2 => Just(0),
        2 => 0..40usize,
        2 => 0..longest,
        1 => (0..longest / 16).prop_map(|n| n * 16),
        1 => Just(longest),
    ];
    (
        proptest::collection::vec((size, any::<prop::sample::Index>()), 0..60),
        0..40usize,
        any::<u64>(),
    )
        .prop_map(move |(runs, room, seed)| {
            let count = runs.len();
            let mut source: Vec<_> = (0..u32::try_from(count).expect("few")).collect();
            for (i, (_, other)) in runs.iter().enumerate() {
                source.swap(i, other.index(count));
            }
            Runs {
                sizes: runs.into_iter().map(|(size, _)| size).collect(),
                source,
                stride: (longest + room).next_multiple_of(16),
                seed,
            }
        })
}

/// Checks a gather of `runs` into `room` bytes more than they need.
fn check_gather_case(driver: &dyn Driver, runs: &Runs, room: usize, most: Most) {
    let count = runs.sizes.len();
    let mut bytes = noise(runs.seed, count * runs.stride);
    let mut expected = Vec::new();
    for (&size, &slot) in runs.sizes.iter().zip(&runs.source) {
        expected.extend_from_slice(&bytes[slot as usize * runs.stride..][..size]);
    }
    expected.resize(expected.len() + room, 0xcc);
    let mut dense = vec![0xcc; expected.len()];
    let sizes: Vec<u64> = runs.sizes.iter().map(|&n| n as u64).collect();
    let mut offsets = u64s(&exclusive_sums(&sizes));
    let mut source = u32s(&runs.source);
    let buffers = &mut [&mut bytes, &mut source, &mut offsets, &mut dense];
    on(driver, buffers, |stream, spans| {
        let slots = slots(spans[0], runs.stride, count);
        // SAFETY: the offsets are sums of sizes, which are at most the stride, and every source
        // is below the number of slots.
        unsafe {
            let launch = Launch {
                driver,
                stream,
                kernel: "gather",
            };
            gather_as(launch, slots, spans[1], spans[2], count, spans[3], most)
        }
    })
    .expect("launches");
    let wrong = std::iter::zip(&dense, &expected).position(|(a, b)| a != b);
    assert_eq!(wrong, None, "in {runs:?}");
}

/// Checks all three passes, for subchunks of at most `size` bytes, some of them elided.
fn check_passes_case(
    driver: &dyn Driver,
    (subchunks, per_shard): (&[usize], &[usize]),
    size: usize,
    seed: u64,
) {
    let permutation = ShardPermutation::new(subchunks, per_shard).expect("small");
    let (count, padded) = (permutation.subchunks(), permutation.padded_slots());
    let stride = size.next_multiple_of(16);
    let mut bytes = noise(seed, count * stride);
    let dice = noise(!seed, 2 * count);
    let sizes: Vec<usize> = dice[..count]
        .iter()
        .map(|&d| usize::from(d) * size / 255)
        .collect();
    let flags: Vec<u32> = dice[count..].iter().map(|&d| u32::from(d > 50)).collect();
    let mut in_order = vec![None; padded];
    for i in 0..count {
        in_order[layout::naive(subchunks, per_shard, i)] = Some(i);
    }
    let (mut expected, mut expected_offsets) = (Vec::new(), vec![0]);
    for i in in_order {
        if let Some(i) = i.filter(|&i| flags[i] != 0) {
            expected.extend_from_slice(&bytes[i * stride..][..sizes[i]]);
        }
        expected_offsets.push(expected.len() as u64);
    }
    let sizes: Vec<u64> = sizes.iter().map(|&n| n as u64).collect();
    let (mut sizes, mut flags) = (u64s(&sizes), u32s(&flags));
    let mut offsets = vec![0xcc; (padded + 1) * 8];
    let mut source = vec![0xcc; padded * 4];
    let mut scratch = vec![0xcc; scan_scratch_bytes(padded)];
    let mut dense = vec![0xcc; count * stride];
    let buffers = &mut [
        &mut bytes,
        &mut sizes,
        &mut flags,
        &mut offsets,
        &mut source,
        &mut scratch,
        &mut dense,
    ];
    on(driver, buffers, |stream, spans| {
        let &[bytes, sizes, flags, offsets, source, scratch, dense] = spans else {
            panic!("{} spans", spans.len());
        };
        let slots = slots(bytes, stride, count);
        let sizes = Lengths::Each(sizes);
        // SAFETY: the offsets are sums of sizes, which are at most the stride, and the sources
        // are numbers of subchunks.
        unsafe {
            permute_sizes(
                driver,
                stream,
                &permutation,
                sizes,
                Some(flags),
                offsets,
                source,
            )?;
            scan(driver, stream, offsets, offsets, scratch, padded)?;
            gather(driver, stream, slots, source, offsets, padded, dense)
        }
    })
    .expect("launches");
    assert!(
        to_u64s(&offsets) == expected_offsets,
        "offsets of {subchunks:?} by {per_shard:?}"
    );
    assert!(
        dense[..expected.len()] == expected,
        "bytes of {subchunks:?} by {per_shard:?}"
    );
    assert!(dense[expected.len()..].iter().all(|&byte| byte == 0xcc));
}

pub(crate) fn check_permute(driver: &dyn Driver, tries: u32) {
    let most = few_or(TUNING.permute_most);
    let strategy = (layout::shapes(), any::<(u64, (bool, bool))>(), most);
    effort::property(
        tries,
        &strategy,
        |((subchunks, per_shard), (seed, how), most)| {
            check_permute_case(driver, (&subchunks, &per_shard), seed, how, most);
            Ok(())
        },
    );
    let most = TUNING.permute_most;
    check_permute_case(driver, (&[100_000], &[7]), 1, (true, true), most);
    check_permute_case(driver, (&[2; 16], &[2; 16]), 2, (false, true), most);
    check_permute_case(driver, (&[3000], &[7]), 3, (true, true), Most::InAll(3));
}

pub(crate) fn check_scan(driver: &dyn Driver, tries: u32) {
    let sizes = proptest::collection::vec(0u64..1 << 45, 0..10_000);
    let alone = proptest::sample::select(vec![0, TUNING.scan_alone]);
    effort::property(
        tries,
        &(sizes, any::<bool>(), alone),
        |(sizes, in_place, alone)| {
            check_scan_case(driver, &sizes, in_place, alone);
            Ok(())
        },
    );
    for count in [0, 1, 2047, 2048, 2049, 100_000] {
        let sizes: Vec<u64> = (0..count).map(|n| n * n % 1009).collect();
        for in_place in [false, true] {
            for alone in [0, usize::MAX] {
                check_scan_case(driver, &sizes, in_place, alone);
            }
        }
    }
}

pub(crate) fn check_gather(driver: &dyn Driver, tries: u32) {
    let most = few_or(TUNING.gather_most);
    effort::property(
        tries,
        &(runs(6000), 0..40usize, most),
        |(runs, room, most)| {
            check_gather_case(driver, &runs, room, most);
            Ok(())
        },
    );
    // A warp copies several windows, and goes on from run to run.
    let stretches = Runs {
        sizes: (0..80).map(|n| n * 997 % 6000).collect(),
        source: (0..80).rev().collect(),
        stride: 6000,
        seed: 6,
    };
    check_gather_case(driver, &stretches, 0, Most::InAll(1));
    // Many runs in a granule, and many empty ones between two.
    for (runs, nth) in [(0, 1), (1, 1), (10_000, 1), (100_000, 30_011)] {
        let sizes = (0..runs).map(|n| usize::from(n % nth == 0)).collect();
        let source = (0..u32::try_from(runs).expect("few")).rev().collect();
        let runs = Runs {
            sizes,
            source,
            stride: 16,
            seed: 5,
        };
        for most in [TUNING.gather_most, Most::InAll(1)] {
            check_gather_case(driver, &runs, 3, most);
        }
    }
}

pub(crate) fn check_passes(driver: &dyn Driver, tries: u32) {
    let strategy = (layout::shapes(), 0..3000usize, any::<u64>());
    effort::property(tries, &strategy, |((subchunks, per_shard), size, seed)| {
        check_passes_case(driver, (&subchunks, &per_shard), size, seed);
        Ok(())
    });
    check_passes_case(driver, (&[3, 3], &[2, 2]), 5000, 3);
    check_passes_case(driver, (&[50, 50, 40], &[8, 4, 16]), 20, 4);
}

#[test]
fn sizes_are_permuted() {
    check_permute(&Simulation::eager(), 32);
}

#[test]
fn sizes_are_summed() {
    check_scan(&Simulation::eager(), 8);
}

#[test]
fn runs_are_gathered() {
    check_gather(&Simulation::eager(), 32);
}

#[test]
fn subchunks_become_dense_shards() {
    check_passes(&Simulation::eager(), 32);
}

/// Runs one block of a launch whose runs and slots no memory could hold.
#[test]
fn runs_may_be_longer_than_four_gibibytes() {
    const WINDOW: u64 = 2048; // as in the kernel
    let four = 1u64 << 32;
    let huge =
        proptest::sample::select(vec![0, 1, 15, four - 1, four, four + 17, 3 * four, 1 << 44]);
    let strategy = (
        proptest::collection::vec((huge, 0..13_u32), 1..80),
        any::<u64>(),
    );
    effort::property(32, &strategy, |(runs, dice)| {
        let sizes: Vec<u64> = runs.iter().map(|run| run.0).collect();
        let offsets = exclusive_sums(&sizes);
        let total = offsets[runs.len()];
        if total == 0 {
            return Ok(());
        }
        let stride = 1u64 << 44;
        let source: Vec<u32> = (0..).zip(&runs).map(|(j, run)| 13 * j + run.1).collect();
        // The bytes that the block gathers are `begin..end` of all bytes.
        let grid = far::GRID;
        let warps = u64::from(BLOCK / 32);
        let even = total.div_ceil(u64::from(grid) * warps);
        let stretch = even.max(2 * WINDOW).next_multiple_of(WINDOW);
        let block = dice % total / (stretch * warps);
        let begin = block * stretch * warps;
        let end = total.min(begin + stretch * warps);

        let mut memory = FarMemory::default();
        for (j, size) in sizes.iter().enumerate() {
            let first = begin.max(offsets[j]);
            let last = end.min(offsets[j] + size);
            let from =
                far::SHARDS + u64::from(source[j]) * stride + first.saturating_sub(offsets[j]);
            memory.copied(from, far::SLOTS + first, last.saturating_sub(first));
        }
        memory.numbers(far::OFFSETS, offsets.iter().copied());
        memory.words(far::SIZES, source.iter().copied());
        memory.check(
            "gather",
            u32::try_from(block).expect("below 2^31"),
            &[
                far::SHARDS,
                stride,
                far::SIZES,
                far::OFFSETS,
                runs.len() as u64,
                far::SLOTS,
                u64::MAX,
            ],
        );
        Ok(())
    });
}

#[test]
fn wrong_geometry_is_an_error() {
    let driver = Simulation::eager();
    let mut bytes = vec![0; 256];
    let part = |span: DeviceSpan, offset, len| DeviceSpan {
        offset,
        len,
        ..span
    };
    let mut refused = |launch: &dyn Fn(StreamId, DeviceSpan) -> Result<(), DriverError>| {
        let error = on(&driver, &mut [&mut bytes], |stream, spans| {
            launch(stream, spans[0])
        })
        .expect_err("does not fit");
        assert!(error.to_string().starts_with("launching "), "{error}");
    };
    let permutation = ShardPermutation::new(&[4], &[2]).expect("small");
    for (permuted, source) in [
        ((0, 24), (32, 16)),
        ((4, 32), (64, 16)),
        ((0, 32), (32, 12)),
    ] {
        refused(&|stream, span| {
            // SAFETY: nothing is launched.
            unsafe {
                let permuted = part(span, permuted.0, permuted.1);
                let source = part(span, source.0, source.1);
                let sizes = Lengths::All(1);
                permute_sizes(&driver, stream, &permutation, sizes, None, permuted, source)
            }
        });
    }
    for (sizes, offsets, scratch) in [
        ((0, 24), (64, 32), (128, 16)), // 4 sizes
        ((0, 32), (64, 32), (128, 16)), // 5 offsets
        ((0, 32), (64, 40), (128, 8)),  // 2 sums
        ((0, 32), (8, 40), (128, 16)),  // neither in place nor apart
        ((0, 32), (68, 40), (128, 16)), // 8-byte aligned
    ] {
        refused(&|stream, span| {
            // SAFETY: nothing is launched.
            unsafe {
                let [sizes, offsets, scratch] =
                    [sizes, offsets, scratch].map(|(offset, len)| part(span, offset, len));
                scan(&driver, stream, sizes, offsets, scratch, 4)
            }
        });
    }
    for (stride, source, offsets, dense) in [
        (24, (64, 8), (80, 24), (128, 64)),
        (16, (64, 4), (80, 24), (128, 64)),
        (16, (64, 8), (80, 16), (128, 64)),
        (16, (64, 8), (80, 24), (136, 64)),
        (48, (64, 8), (80, 24), (128, 64)),
    ] {
        refused(&|stream, span| {
            // SAFETY: nothing is launched.
            unsafe {
                let slots = slots(part(span, 0, 64), stride, 2);
                let [source, offsets, dense] =
                    [source, offsets, dense].map(|(offset, len)| part(span, offset, len));
                gather(&driver, stream, slots, source, offsets, 2, dense)
            }
        });
    }
}

#[test]
fn sizes_are_moved_once_when_they_are_permuted() {
    let driver = counting();
    // The kernel reads sizes and flags, and writes sizes and sources. Eight neighbours stay
    // neighbours, and their sources fill a sector.
    let most = TUNING.permute_most;
    let moved = |elide| {
        check_permute_case(&driver, (&[64, 64], &[8, 8]), 1, (true, elide), most);
        sectors(&driver).0
    };
    let without_flags = 64 * 64 * (8 + 8 + 4) / 32;
    let flags = 64 * 64 * 4 / 32;
    assert_eq!(moved(false), without_flags);
    // Sizes whose neighbours are elided, too, are not read.
    let moved = moved(true);
    assert!(
        (without_flags..=without_flags + flags).contains(&moved),
        "{moved} sectors"
    );
}

#[test]
fn sizes_are_moved_once_when_they_are_summed() {
    let driver = counting();
    let tiles = 5;
    let count = tiles * TUNING.scan_tile;
    let (mut sizes, mut offsets) = (vec![0; 8 * count], vec![0; 8 * (count + 1)]);
    let mut sums = vec![0; scan_scratch_bytes(count)];
    let mut moved = |kernel, grid, used: &[(usize, Access)]| {
        let buffers = &mut [&mut sizes, &mut offsets, &mut sums];
        on(&driver, buffers, |stream, spans| {
            let launch = Launch {
                driver: &driver,
                stream,
                kernel,
            };
            let mut args: Vec<_> = used
                .iter()
                .map(|&(which, access)| Arg::Span(spans[which], access))
                .collect();
            args.insert(1, Arg::U64(count as u64));
            // SAFETY: the spans have `count` sizes, a sum for each tile and one more, and one
            // offset more than sizes.
            unsafe { launch.run(grid, BLOCK, &args) }
        })
        .expect("launches");
        sectors(&driver).0
    };
    let (read, write) = (Access::Read, Access::Write);
    let once = (count * 8 / 32) as u64;
    // Each size is read, each offset is written, and then the last offset.
    let whole = moved("scan_whole", 1, &[(0, read), (1, write)]);
    assert_eq!(whole, 2 * once + 1);
    let tiles = tiles as u64;
    let grid = u32::try_from(tiles).expect("few");
    // Each size is read, and a sum is written for each block.
    let sums = moved("scan_sums", grid, &[(0, read), (2, write)]);
    assert_eq!(sums, once + tiles);
    // Each size is read, each offset is written. Each warp reads the sum of the tiles before.
    // Then there is the last offset.
    let add = moved("scan_add", grid, &[(0, read), (2, read), (1, write)]);
    assert_eq!(add, 2 * once + 8 * tiles + 2);
}

#[test]
fn long_runs_are_moved_once() {
    let driver = counting();
    // Runs of about 16 KiB, aligned to 16 and not. Further sectors are due to the search for
    // runs, in a few offsets that stay in caches, and to windows where runs meet, which are
    // loaded twice.
    for (size, most) in [(16_384, 108), (16_389, 120)] {
        let runs = Runs {
            sizes: vec![size; 64],
            source: (0..64).collect(),
            stride: 16_416,
            seed: 9,
        };
        check_gather_case(&driver, &runs, 0, TUNING.gather_most);
        let (moved, _) = sectors(&driver);
        let least = (2 * 64 * size).div_ceil(32) as u64;
        let percent = moved * 100 / least;
        assert!(
            (100..=most).contains(&percent),
            "{moved} sectors for {least}"
        );
    }
}

#[test]
fn the_search_for_runs_costs_little() {
    let driver = counting();
    // Each offset and source is read once. Further reads of them are a few percent.
    for (size, most) in [(4096, 106), (2000, 124)] {
        let count = (8 << 20) / size;
        let runs = Runs {
            sizes: vec![size; count],
            source: (0..u32::try_from(count).expect("few")).collect(),
            stride: size,
            seed: 9,
        };
        check_gather_case(&driver, &runs, 0, Most::InAll(8));
        let (moved, _) = sectors(&driver);
        let least = (2 * count * size + 12 * count).div_ceil(32) as u64;
        let percent = moved * 100 / least;
        assert!(
            (100..=most).contains(&percent),
            "{moved} sectors for {least}"
        );
    }
}
