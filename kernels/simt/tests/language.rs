//! The rules of the kernels' language, as the emulator keeps them.

#![allow(clippy::unwrap_used)]

mod common;

use common::{argument, launch, launch_counted};
use zarrs_cuda_simt::SANITIZER;

fn error(kernel: &str, block: u32, value: u32) -> String {
    launch(kernel, 1, block, &[argument(&value)]).unwrap_err()
}

/// The line of `language.cu` on which the n-th of the lines after `kernel` with `text` is.
fn line(kernel: &str, text: &str, n: usize) -> String {
    let source = include_str!("language.cu").lines().enumerate();
    let (number, _) = source
        .skip_while(|(_, line)| !line.contains(&format!("KERNEL({kernel},")))
        .filter(|(_, line)| line.contains(text))
        .nth(n)
        .unwrap();
    format!("simt/tests/language.cu:{}", number + 1)
}

#[test]
fn scan() {
    let input: Vec<u32> = (0..256 * 5).map(|i| i * i).collect();
    let mut output = vec![0u32; 256 * 5];
    let (from, to) = (input.as_ptr(), output.as_mut_ptr());
    let args = [argument(&from), argument(&to)];
    assert_eq!(launch("test_scan", 5, 256, &args).unwrap(), []);
    for (input, output) in input.chunks(256).zip(output.chunks(256)) {
        let mut sum = 0u32;
        for (value, got) in input.iter().zip(output) {
            sum = sum.wrapping_add(*value);
            assert_eq!(*got, sum);
        }
    }
}

#[test]
fn many_barriers() {
    let mut words: Vec<u32> = (0..128).collect();
    let to = words.as_mut_ptr();
    let args = [argument(&to), argument(&37u32), argument(&5u32)];
    launch("test_rounds", 1, 128, &args).unwrap();
    for (i, word) in (0..).zip(&words) {
        assert_eq!(*word, (i + 37 * 5) % 128);
    }
}

#[test]
fn shuffles() {
    let mut output = vec![0u64; 64 * 5];
    let to = output.as_mut_ptr();
    launch("test_shuffles", 1, 64, &[argument(&to)]).unwrap();
    let thirds = (0..32).step_by(3).map(|i| 1u64 << i).sum::<u64>();
    for (thread, got) in (0..64u64).zip(output.chunks(5)) {
        let (lane, warp) = (thread % 32, thread / 32 * 32);
        let up = if lane < 2 { thread } else { thread - 2 };
        let expected = [
            100 + (thread ^ 3),
            100 + warp + (31 - lane),
            (100 + up) << 32,
            thirds,
            if warp == 0 { 0 } else { 0xffff_ffff },
        ];
        assert_eq!(got, expected, "thread {thread}");
    }
}

#[test]
fn arguments() {
    #[repr(C)]
    struct Record {
        a: u64,
        b: [u32; 3],
        c: u32,
    }
    let record = Record {
        a: u64::MAX - 1,
        b: [1, 2, 3],
        c: 4,
    };
    let mut output = vec![0u64; 5];
    let to = output.as_mut_ptr();
    let args = [
        argument(&to),
        argument(&record),
        argument(&7u32),
        argument(&(1u64 << 40)),
    ];
    launch("test_arguments", 3, 32, &args).unwrap();
    assert_eq!(output, [u64::MAX - 1, 4321, 7, 1 << 40, 3]);
}

#[test]
fn words() {
    #[repr(align(16))]
    struct Aligned([u32; 16]);
    let mut words = Aligned([0; 16]);
    words.0[..4].copy_from_slice(&[10, 0, 30, 40]);
    let to = words.0.as_mut_ptr();
    launch("test_words", 1, 32, &[argument(&to)]).unwrap();
    let expected = [
        15,
        1,
        30,
        40,
        3,
        0x6655_4433,
        0x3322_1100,
        0x0403_0201,
        10,
        0,
        0,
        0,
        15,
        1,
        30,
        40,
    ];
    assert_eq!(words.0, expected);
}

#[test]
fn atomics() {
    let mut words = vec![0u32; 2];
    let to = words.as_mut_ptr();
    launch("test_atomics", 100, 64, &[argument(&to)]).unwrap();
    assert_eq!(words, [6400, 1]);
}

#[test]
fn each_block_has_poisoned_shared_memory() {
    let mut words = vec![0u32; 32 * 3];
    let to = words.as_mut_ptr();
    launch("test_poison", 3, 32, &[argument(&to)]).unwrap();
    assert!(words.iter().all(|word| *word == 0xa5a5_a5a5));
}

#[test]
fn missing_lane() {
    let place = line("test_missing_lane", "ballot", 0);
    assert_eq!(
        error("test_missing_lane", 64, 40),
        format!(
            "kernel test_missing_lane, block 0: not all of threads 32-63 reach ballot at {place}; \
             32-39, 41-63 in ballot at {place}; 40 ended"
        )
    );
}

#[test]
fn divergent_warp() {
    let barrier = line("test_divergent_warp", "warp_barrier", 0);
    let shuffle = line("test_divergent_warp", "shuffle_xor", 0);
    assert_eq!(
        error("test_divergent_warp", 32, 16),
        format!(
            "kernel test_divergent_warp, block 0: not all of threads 0-31 reach warp_barrier at \
             {barrier}; 0-15 in shuffle_xor at {shuffle}; 16 in warp_barrier at {barrier}; 17-31 \
             not yet"
        )
    );
    let first = line("test_divergent_places", "warp_barrier", 0);
    let second = line("test_divergent_places", "warp_barrier", 1);
    assert_eq!(
        error("test_divergent_places", 32, 31),
        format!(
            "kernel test_divergent_places, block 0: not all of threads 0-31 reach warp_barrier at \
             {first}; 0-30 in warp_barrier at {second}; 31 in warp_barrier at {first}"
        )
    );
    error("test_divergent_places", 32, 1);
    for none in [0, 32] {
        let args = [argument(&none)];
        launch("test_divergent_places", 2, 32, &args).unwrap();
    }
}

#[test]
fn missing_thread() {
    let place = line("test_missing_thread", "block_barrier", 0);
    assert_eq!(
        error("test_missing_thread", 128, 127),
        format!(
            "kernel test_missing_thread, block 0: not all of threads 0-127 reach block_barrier at \
             {place}; 0-126 in block_barrier at {place}; 127 ended"
        )
    );
    for all in [0, 128] {
        launch("test_missing_thread", 2, 128, &[argument(&all)]).unwrap();
    }
}

#[test]
fn divergent_barrier() {
    let first = line("test_divergent_barrier", "block_barrier", 0);
    let second = line("test_divergent_barrier", "block_barrier", 1);
    assert_eq!(
        error("test_divergent_barrier", 64, 63),
        format!(
            "kernel test_divergent_barrier, block 0: not all of threads 0-63 reach block_barrier \
             at {first}; 0-62 in block_barrier at {second}; 63 in block_barrier at {first}"
        )
    );
    let block = line("test_mixed_barrier", "block_barrier", 0);
    let warp = line("test_mixed_barrier", "warp_barrier", 0);
    assert_eq!(
        error("test_mixed_barrier", 64, 16),
        format!(
            "kernel test_mixed_barrier, block 0: not all of threads 0-31 reach warp_barrier at \
             {warp}; 0-15 in warp_barrier at {warp}; 16-31 in block_barrier at {block}"
        )
    );
}

#[test]
fn misaligned() {
    let words = [0u32; 8];
    let mut output = vec![0u32; 32];
    let to = output.as_mut_ptr();
    let base = words.as_ptr().cast::<u8>();
    for (kernel, alignment, operation) in [
        ("test_load", 4, "load(words)"),
        ("test_load16", 16, "load16(bytes)"),
    ] {
        let past = base.align_offset(16) % 16;
        for offset in [1, 2, alignment / 2] {
            let from = base.wrapping_add(past + offset);
            let args = [argument(&from), argument(&to)];
            assert_eq!(
                launch(kernel, 1, 32, &args).unwrap_err(),
                format!(
                    "kernel {kernel}, block 0: thread 0 accesses {from:?}, not aligned to \
                     {alignment}, at {}",
                    line(kernel, operation, 0)
                )
            );
        }
        let from = base.wrapping_add(past);
        launch(kernel, 1, 32, &[argument(&from), argument(&to)]).unwrap();
    }
    let to = output.as_mut_ptr().wrapping_byte_add(1);
    let error = launch("test_store16", 1, 32, &[argument(&to)]).unwrap_err();
    assert!(error.contains("not aligned to 16"), "{error}");
}

#[test]
fn launches_that_cannot_be() {
    let value = 0u32;
    let args = [argument(&value)];
    let refused = |kernel, grid, block, args: &[_]| launch(kernel, grid, block, args).unwrap_err();
    assert_eq!(
        refused("test_nothing", 1, 32, &args),
        "there is no kernel test_nothing"
    );
    assert_eq!(
        refused("test_missing_lane", 1, 32, &args),
        "kernel test_missing_lane takes blocks of 64 threads, not of 32"
    );
    assert_eq!(
        refused("test_missing_lane", 1, 64, &[]),
        "kernel test_missing_lane takes 1 arguments, not 0"
    );
    assert_eq!(
        refused("test_missing_lane", 0, 64, &args),
        "kernel test_missing_lane with a grid of 0 blocks"
    );
    assert_eq!(
        refused("test_missing_lane", 1 << 31, 64, &args),
        "kernel test_missing_lane with a grid of 2147483648 blocks"
    );
    let place = line("test_too_much_shared", "SHARED", 1);
    let mut words = vec![0u32; 32];
    let output = words.as_mut_ptr();
    assert_eq!(
        refused("test_too_much_shared", 1, 32, &[argument(&output)]),
        format!(
            "kernel test_too_much_shared, block 0: 53248 bytes of shared memory at {place}, more \
             than 49152"
        )
    );
}

#[test]
fn launches_from_many_threads() {
    // ThreadSanitizer takes long to make and to forget fibers.
    let launches = if SANITIZER == "thread" { 2 } else { 20 };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for _ in 0..launches {
                    scan();
                    if thread % 2 == 0 {
                        missing_lane();
                        divergent_barrier();
                    } else {
                        many_barriers();
                    }
                }
            });
        }
    });
}

/// Words of 64 threads, `stride` apart, from word `offset` on of an address that is aligned to 32.
fn strided(offset: usize, stride: u32, count: u32) -> (u64, u64, u64) {
    let words = vec![1u32; offset + 64 * (stride * count) as usize + 8];
    let mut output = vec![0u32; 64];
    let past = words.as_ptr().align_offset(32);
    let from = words.as_ptr().wrapping_add(past + offset);
    let to = output.as_mut_ptr();
    let args = [
        argument(&from),
        argument(&to),
        argument(&stride),
        argument(&count),
    ];
    let counts = launch_counted("test_strided", 1, 64, &args).unwrap();
    assert_eq!(output, [count; 64]);
    let sites = [
        line("test_strided", "load(words", 0),
        line("test_strided", "store(output", 0),
    ];
    assert_eq!(
        counts.iter().map(|count| &count.site).collect::<Vec<_>>(),
        sites.each_ref()
    );
    assert!(!counts[0].write && counts[1].write);
    assert_eq!((counts[1].accesses, counts[1].ideal), (2, 8));
    (counts[0].accesses, counts[0].sectors, counts[0].ideal)
}

#[test]
fn sectors() {
    // Two warps, each 128 bytes.
    assert_eq!(strided(0, 1, 1), (2, 8, 8));
    assert_eq!(strided(0, 1, 3), (6, 24, 24));
    // All lanes read the same word.
    assert_eq!(strided(0, 0, 2), (4, 4, 4));
    // Every other word; every eighth; further.
    assert_eq!(strided(0, 2, 1), (2, 16, 8));
    assert_eq!(strided(0, 8, 1), (2, 64, 8));
    assert_eq!(strided(0, 9, 1), (2, 64, 8));
    // Not at the beginning of a sector.
    assert_eq!(strided(1, 1, 1), (2, 10, 8));
    assert_eq!(strided(7, 1, 2), (4, 20, 16));
}

#[test]
fn sectors_of_wide_accesses_in_many_blocks() {
    #[repr(align(32))]
    struct Aligned([u8; 3072 + 16]);
    let from = Aligned([7; 3072 + 16]);
    let mut to = Aligned([0; 3072 + 16]);
    let source = from.0.as_ptr();
    let target = to.0.as_mut_ptr().wrapping_add(16);
    let args = [argument(&source), argument(&target)];
    let counts = launch_counted("test_copy16", 3, 64, &args).unwrap();
    let counts: Vec<_> = counts
        .iter()
        .map(|count| (count.write, count.accesses, count.sectors, count.ideal))
        .collect();
    assert_eq!(counts, [(false, 6, 96, 96), (true, 6, 102, 96)]);
    assert!(to.0[..16].iter().all(|byte| *byte == 0));
    assert!(to.0[16..].iter().all(|byte| *byte == 7));
}
