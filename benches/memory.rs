//! Copies from a small ring of buffers into fresh memory, as the CUDA engine copies what came from a
//! device to its output. Compares the engine's copiers with the best that as many threads reach by
//! hand.
//!
//! `cargo bench --package zarrs_cuda_benches --bench memory [-- MEBIBYTES]` prints a table: the
//! engine, the engine without pages that are made ahead, the best by hand, and the medians of the
//! ratios to that. All take turns in one process. With `--list` it prints its name and measures
//! nothing.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "made-up data, and rates for people"
)]

use std::env;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use memmap2::MmapMut;
use zarrs_cuda_benches::{median, warm};
use zarrs_cuda_engine::cuda::Tuning;
use zarrs_cuda_engine::cuda::copiers::{Copiers, Copy};
use zarrs_cuda_engine::memory::allocate;
use zarrs_cuda_engine::memory::fresh::Fresh;

/// How often each contender is timed, after a round that is not.
const ROUNDS: usize = 15;
/// The goal: the engine's rate, relative to the best by hand.
const GOAL: f64 = 0.8;
const HUGE_PAGE: usize = 2 << 20;

/// Copies `from`, again and again, into all of fresh memory.
struct Bench<'a> {
    from: &'a [u8],
    threads: NonZeroUsize,
    copiers: Copiers,
}

/// A way to fill the memory.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// The engine's copiers, slab by slab, with pages that are made ahead.
    Engine,
    /// The same without such pages.
    NotAhead,
    /// Each thread takes the next huge page.
    Pages,
    /// Each thread takes the next huge page, and lets the kernel make it first.
    Populated,
    /// Each thread takes one part of the memory.
    Parts,
}

const WAYS: [Way; 5] = [
    Way::Engine,
    Way::NotAhead,
    Way::Pages,
    Way::Populated,
    Way::Parts,
];

/// An address that threads share.
#[derive(Clone, Copy)]
struct Shared(*mut u8);

// SAFETY: threads that share it write to different bytes.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Bench<'_> {
    /// Fills `len` fresh bytes. Returns the rate in GB/s.
    fn rate(&self, way: Way, len: usize, huge_pages: bool) -> f64 {
        warm::touch(len + len / 4).expect("memory");
        let mut vec = allocate::with_capacity(len, "a benchmark", huge_pages).expect("memory");
        let begin = Instant::now();
        match way {
            Way::Engine => {
                let mut fresh = Fresh::of(&mut vec);
                self.slabs(&mut vec, len, |slab, copies| {
                    // SAFETY: the vector's memory, which only these copies write.
                    unsafe {
                        let ahead = (slab, len);
                        self.copiers
                            .run_into(&mut fresh, copies, ahead, self.threads, || ());
                    }
                });
            }
            Way::NotAhead => {
                self.slabs(&mut vec, len, |_, copies| {
                    self.copiers.run(copies, self.threads);
                });
            }
            Way::Pages => self.dealt(&mut vec, len, HUGE_PAGE, false),
            Way::Populated => self.dealt(&mut vec, len, HUGE_PAGE, true),
            Way::Parts => self.dealt(&mut vec, len, len.div_ceil(self.threads.get()), false),
        }
        let seconds = begin.elapsed().as_secs_f64();
        // SAFETY: all of it was written.
        let vec = unsafe { allocate::assume_filled(vec, len) };
        for at in (0..len).step_by(4093) {
            assert_eq!(vec[at], self.from[at % self.from.len()], "byte {at}");
        }
        len as f64 / seconds / 1e9
    }

    /// Calls `copy` with the copies of one slab after the other.
    fn slabs(&self, vec: &mut Vec<u8>, len: usize, mut copy: impl FnMut(usize, &[Copy<'_>])) {
        let slab = Tuning::DEFAULT.slab;
        let to = vec.as_mut_ptr();
        for start in (0..len).step_by(slab) {
            let from = self.from[start % self.from.len()..].as_ptr();
            // SAFETY: the slab lies within the capacity; the ring is a multiple of it.
            let copies = unsafe { [Copy::bytes(from, to.add(start), slab.min(len - start))] };
            copy(slab, &copies);
        }
    }

    /// Deals parts of `share` bytes, which begin with a huge page, to threads.
    fn dealt(&self, vec: &mut Vec<u8>, len: usize, share: usize, populate: bool) {
        let to = Shared(vec.spare_capacity_mut().as_mut_ptr().cast());
        let first = to.0.align_offset(HUGE_PAGE).min(len);
        let next = AtomicUsize::new(0);
        let work = || {
            let Shared(to) = { to };
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let start = match number {
                    0 => 0,
                    _ => first + (number - 1) * share,
                };
                let end = (first + number * share).min(len);
                if start >= len {
                    return;
                }
                if populate {
                    make(to.wrapping_add(start), end - start);
                }
                let mut at = start;
                while at < end {
                    let from = &self.from[at % self.from.len()..];
                    let part = from.len().min(end - at);
                    // SAFETY: within the capacity, and this share's alone.
                    unsafe {
                        to.add(at).copy_from_nonoverlapping(from.as_ptr(), part);
                    }
                    at += part;
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.get() {
                scope.spawn(work);
            }
            work();
        });
    }
}

/// Lets the kernel make pages, the last one first, which is faster. Errors are ignored.
fn make(start: *mut u8, len: usize) {
    #[cfg(target_os = "linux")]
    for first in [len - 1, 0] {
        let in_page = (start.addr() + first) % 4096;
        let page = start.wrapping_add(first).wrapping_sub(in_page).cast();
        // SAFETY: changes no content.
        unsafe { libc::madvise(page, in_page + len - first, libc::MADV_POPULATE_WRITE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, len);
}

fn main() {
    if env::args().any(|argument| argument == "--list") {
        println!("memory: benchmark");
        return;
    }
    let mebibytes = env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok());
    let len = mebibytes.unwrap_or(256) << 20;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let tuning = Tuning::DEFAULT;
    // Aligned to pages, as pinned memory is.
    let mut from = MmapMut::map_anon(tuning.ring * tuning.slab).expect("memory");
    for (i, byte) in from.iter_mut().enumerate() {
        *byte = ((i * 31) >> 3) as u8;
    }
    let bench = Bench {
        from: &from,
        threads,
        copiers: Copiers::default(),
    };
    println!(
        "{} MiB of fresh memory, {threads} threads, slabs of {} MiB, {ROUNDS} rounds; GB/s",
        len >> 20,
        tuning.slab >> 20
    );
    println!("pages        engine   not ahead   by hand   engine / by hand   not ahead / by hand");
    for (pages, huge_pages) in [("huge", true), ("small", false)] {
        let mut rounds = Vec::new();
        for round in 0..=ROUNDS {
            let mut rates = [0.0; WAYS.len()];
            for turn in 0..WAYS.len() {
                // None always runs after the same one.
                let number = (turn * (1 + round % 4) + round) % WAYS.len();
                rates[number] = bench.rate(WAYS[number], len, huge_pages);
            }
            rounds.push(rates);
        }
        rounds.remove(0);
        let of = |number: usize| {
            median(rounds.iter().map(|rates| rates[number])).expect("several rounds")
        };
        let by_hand = (2..WAYS.len()).max_by(|a, b| of(*a).total_cmp(&of(*b)));
        let by_hand = by_hand.expect("several ways");
        let ratio = |number: usize| {
            median(rounds.iter().map(|r| r[number] / r[by_hand])).expect("several rounds")
        };
        println!(
            "{pages:10} {:8.2} {:11.2} {:9.2} {:12.2} ({} {GOAL}) {:16.2}",
            of(0),
            of(1),
            of(by_hand),
            ratio(0),
            if ratio(0) >= GOAL {
                "goal met:"
            } else {
                "goal missed:"
            },
            ratio(1),
        );
    }
}
