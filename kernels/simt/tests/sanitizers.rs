//! What the sanitizers see, in a process of its own each: they end it.

#![allow(clippy::unwrap_used)]

mod common;

use std::env;
use std::process::Command;

use common::{argument, launch};
use zarrs_cuda_simt::SANITIZER;

/// The variable that tells a child what to run.
const CHILD: &str = "ZARRS_CUDA_SIMT_TEST_CHILD";

/// Run `body` in a child if the kernels were compiled with `sanitizer`, and expect `report` and
/// `place` in what it writes before it is ended, or, with no report, that it is not ended.
fn child(test: &str, sanitizer: &str, report: &[&str], body: impl FnOnce()) {
    if env::var(CHILD).as_deref() == Ok(test) {
        body();
        return;
    }
    if SANITIZER != sanitizer {
        println!("skipped: needs ZARRS_CUDA_SIMT_SANITIZE={sanitizer}");
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.success(), report.is_empty(), "{text}");
    for part in report {
        assert!(text.contains(part), "no {part} in: {text}");
    }
}

fn words(count: usize) -> Vec<u32> {
    (0..).take(count).collect()
}

fn bytes_read(count: usize) {
    let bytes = Box::new([1u8; 100]); // the sanitizer knows no variables of Rust's
    let mut output = words(32);
    let (from, to) = (bytes.as_ptr(), output.as_mut_ptr());
    let count = u32::try_from(count).unwrap();
    let args = [argument(&from), argument(&to), argument(&count)];
    launch("test_out_of_bounds", 1, 32, &args).unwrap();
    assert_eq!(output, [1; 32]);
}

#[test]
fn out_of_bounds() {
    let report = [
        "AddressSanitizer: heap-buffer-overflow",
        "test_out_of_bounds",
        "language.cu",
    ];
    child("out_of_bounds", "address", &report, || bytes_read(100));
}

#[test]
fn in_bounds() {
    child("in_bounds", "address", &[], || bytes_read(99));
}

/// Reads byte `at` of a hundred, of which those from `from` on are forbidden; then all.
fn forbidden(from: usize, at: u32) {
    #[repr(align(16))]
    struct Aligned([u8; 100]);
    let bytes = Box::new(Aligned([1; 100]));
    let start = bytes.0.as_ptr();
    let mut output = words(32);
    let to = output.as_mut_ptr();
    let forbidden = start.wrapping_add(from).addr() as u64;
    zarrs_cuda_simt::forbid(forbidden, 100 - from);
    let read = |at: u32| {
        let args = [argument(&start), argument(&to), argument(&at)];
        launch("test_out_of_bounds", 1, 32, &args).unwrap();
    };
    read(at);
    zarrs_cuda_simt::allow(forbidden, 100 - from);
    read(99);
}

#[test]
fn forbidden_bytes() {
    let report = [
        "AddressSanitizer: use-after-poison",
        "test_out_of_bounds",
        "language.cu",
    ];
    child("forbidden_bytes", "address", &report, || forbidden(50, 50));
}

#[test]
fn allowed_bytes() {
    child("allowed_bytes", "address", &[], || forbidden(50, 49));
}

fn shared_written(at: u32) {
    let mut output = words(32);
    let to = output.as_mut_ptr();
    let args = [argument(&to), argument(&at)];
    launch("test_shared_overflow", 1, 32, &args).unwrap();
}

#[test]
fn shared_overflow() {
    let report = [
        "AddressSanitizer: heap-buffer-overflow",
        "test_shared_overflow",
        "language.cu",
    ];
    child("shared_overflow", "address", &report, || shared_written(32));
}

#[test]
fn shared_in_bounds() {
    child("shared_in_bounds", "address", &[], || shared_written(31));
}

fn added(a: i32, b: i32) {
    let mut output = words(32);
    let to = output.as_mut_ptr();
    let args = [argument(&to), argument(&a), argument(&b)];
    launch("test_signed_overflow", 1, 32, &args).unwrap();
}

#[test]
fn signed_overflow() {
    let report = ["language.cu", "signed integer overflow"];
    child("signed_overflow", "address", &report, || added(i32::MAX, 1));
}

#[test]
fn no_signed_overflow() {
    child("no_signed_overflow", "address", &[], || added(i32::MAX, -1));
}

#[test]
fn out_of_bounds_after_a_failed_launch() {
    // The stacks of threads that were abandoned are used again.
    let report = [
        "AddressSanitizer: heap-buffer-overflow",
        "test_out_of_bounds",
    ];
    child(
        "out_of_bounds_after_a_failed_launch",
        "address",
        &report,
        || {
            for missing in [40, 33, 63] {
                launch("test_missing_lane", 1, 64, &[argument(&missing)]).unwrap_err();
                bytes_read(3);
            }
            bytes_read(101);
        },
    );
}

fn reversed(kernel: &str, launches: u32, synchronised: u32) {
    for _ in 0..launches {
        let mut words = words(64);
        let to = words.as_mut_ptr();
        let args = [argument(&to), argument(&synchronised)];
        launch(kernel, 1, 64, &args).unwrap();
    }
}

#[test]
fn missing_block_barrier() {
    let report = ["ThreadSanitizer: data race", "test_reverse", "language.cu"];
    child("missing_block_barrier", "thread", &report, || {
        reversed("test_reverse", 1, 0);
    });
}

#[test]
fn missing_warp_barrier() {
    let report = [
        "ThreadSanitizer: data race",
        "test_reverse_warps",
        "language.cu",
    ];
    child("missing_warp_barrier", "thread", &report, || {
        reversed("test_reverse_warps", 1, 0);
    });
}

#[test]
fn barriers() {
    child("barriers", "thread", &[], || {
        reversed("test_reverse", 3, 1);
        reversed("test_reverse_warps", 3, 1);
    });
}

#[test]
fn barrier_missing_after_a_failed_launch() {
    let report = ["ThreadSanitizer: data race", "test_reverse", "language.cu"];
    child(
        "barrier_missing_after_a_failed_launch",
        "thread",
        &report,
        || {
            for missing in [40, 33, 63] {
                launch("test_missing_lane", 1, 64, &[argument(&missing)]).unwrap_err();
                reversed("test_reverse", 1, 1);
            }
            reversed("test_reverse", 1, 0);
        },
    );
}

fn overlapping(blocks: u32, more: u32) {
    let mut words = words(blocks as usize * 32 + 32);
    let to = words.as_mut_ptr();
    let args = [argument(&to), argument(&more)];
    launch("test_blocks_overlap", blocks, 32, &args).unwrap();
}

#[test]
fn blocks_overlap() {
    let report = [
        "ThreadSanitizer: data race",
        "test_blocks_overlap",
        "language.cu",
    ];
    child("blocks_overlap", "thread", &report, || overlapping(2, 1));
}

#[test]
fn blocks_do_not_overlap() {
    child("blocks_do_not_overlap", "thread", &[], || {
        overlapping(10, 0);
    });
}

/// Launches in turn on several threads of the host, which write the same words.
#[test]
fn launches_are_ordered() {
    child("launches_are_ordered", "thread", &[], || {
        let buffer = std::sync::Mutex::new(words(64));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let mut words = buffer.lock().unwrap();
                        let to = words.as_mut_ptr();
                        let args = [argument(&to), argument(&1u32)];
                        launch("test_reverse", 1, 64, &args).unwrap();
                        words.rotate_left(3);
                        let copy = words.clone();
                        words.copy_from_slice(&copy);
                    }
                });
            }
        });
    });
}

#[test]
fn atomics_do_not_race() {
    child("atomics_do_not_race", "thread", &[], || {
        let mut words = words(2);
        let to = words.as_mut_ptr();
        launch("test_atomics", 6, 64, &[argument(&to)]).unwrap();
    });
}
