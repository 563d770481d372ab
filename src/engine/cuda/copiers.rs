//! Threads that copy between the caller's memory and pinned memory.
//!
//! They are the engine's own: while a lane is held nothing may run on rayon, whose threads could
//! pick up another `encode` and wait for the lane that their own stack holds. The thread that asks
//! for a copy takes part in it, so copies complete even where no thread could be started.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A thread takes about this many bytes at once.
const SHARE: usize = 256 << 10;

/// The most threads that copy at the same time for one caller, itself among them. All callers share
/// those that help, in both directions: what is enough for one direction alone is too few.
const MOST_THREADS: usize = 16;

/// How many threads a caller wakes itself: each takes some microseconds, in which it copies nothing.
/// Whoever was woken wakes the next.
const WOKEN_BY_CALLER: usize = 2;

/// How long a thread waits for work before it ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// One axis over which the rows of a copy repeat.
#[derive(Clone, Copy, Debug)]
struct Axis {
    extent: usize,
    /// Bytes from one to the next.
    from: usize,
    to: usize,
}

/// Rows of bytes to copy.
#[derive(Clone, Debug)]
pub(super) struct Copy<'a> {
    from: *const u8,
    to: *mut u8,
    row: usize,
    /// Slowest first.
    axes: Vec<Axis>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: whoever made the copy promised that both sides can be used until it is done, by any
// thread, and by nobody else.
unsafe impl Send for Copy<'_> {}
// SAFETY: as above. Threads that share a copy take different rows.
unsafe impl Sync for Copy<'_> {}

impl Copy<'_> {
    /// Copy `len` bytes.
    ///
    /// # Safety
    /// For `'a`, the bytes at `from` can be read, those at `to` are written by nobody else, and the
    /// two do not overlap.
    pub(super) unsafe fn bytes(from: *const u8, to: *mut u8, len: usize) -> Self {
        Self {
            from,
            to,
            row: len,
            axes: Vec::new(),
            memory: PhantomData,
        }
    }

    /// Copy a box of `shape`, in elements of `element_size` bytes, between C-order arrays: whose
    /// strides are `from_strides` and `to_strides`, in bytes, with contiguous rows on both sides.
    ///
    /// # Safety
    /// As for [`bytes`](Self::bytes), for every row of the box.
    pub(super) unsafe fn strided(
        (from, from_strides): (*const u8, &[usize]),
        (to, to_strides): (*mut u8, &[usize]),
        shape: &[usize],
        element_size: usize,
    ) -> Self {
        let mut row = element_size;
        let mut axes: Vec<Axis> = Vec::new();
        for ((&extent, &from), &to) in shape.iter().zip(from_strides).zip(to_strides).rev() {
            if extent == 1 {
                continue;
            }
            if axes.is_empty() && from == row && to == row {
                row *= extent;
            } else {
                axes.push(Axis { extent, from, to });
            }
        }
        axes.reverse();
        Self {
            from,
            to,
            row,
            axes,
            memory: PhantomData,
        }
    }

    fn rows(&self) -> usize {
        self.axes.iter().map(|axis| axis.extent).product()
    }

    /// The pieces of a row that are copied at once: `(pieces per row, bytes per piece)`.
    fn pieces_of_row(&self) -> (usize, usize) {
        let pieces = self.row.div_ceil(SHARE).max(1);
        (pieces, self.row.div_ceil(pieces).max(1))
    }

    /// How many shares there are, and how many pieces each has.
    fn shares(&self) -> (usize, usize) {
        let (pieces, bytes) = self.pieces_of_row();
        let per_share = (SHARE / bytes).max(1);
        ((self.rows() * pieces).div_ceil(per_share), per_share)
    }

    /// Copy share `number`.
    fn run(&self, number: usize) {
        let (pieces, bytes) = self.pieces_of_row();
        let (_, per_share) = self.shares();
        let all = self.rows() * pieces;
        let first = number * per_share;
        for piece in first..all.min(first + per_share) {
            let (mut row, piece) = (piece / pieces, piece % pieces);
            let at = piece * bytes;
            let (mut from, mut to) = (at, at);
            for axis in self.axes.iter().rev() {
                from += row % axis.extent * axis.from;
                to += row % axis.extent * axis.to;
                row /= axis.extent;
            }
            let len = bytes.min(self.row.saturating_sub(at));
            // SAFETY: within a row of the box, which whoever made the copy promised; no two pieces
            // overlap, and each is copied by the one thread that took its share.
            unsafe {
                std::ptr::copy_nonoverlapping(self.from.add(from), self.to.add(to), len);
            }
        }
    }
}

/// Some copies that were asked for together, in shares that threads take one after the other.
///
/// What orders the memory that is copied: whoever helps found the work in the queue, under its lock,
/// where the caller put it after it had written the source and whatever it read of the destination;
/// and the caller returns after it saw, under the lock of `done`, that every share was added there
/// by the thread that had copied it. So `next` and `seats` only deal out numbers and order nothing:
/// they are relaxed.
#[derive(Debug)]
struct Work {
    copies: Vec<Copy<'static>>,
    /// The number of shares in all copies up to and including each.
    ends: Vec<usize>,
    next: AtomicUsize,
    /// How many threads besides the one that asked may still join.
    seats: AtomicUsize,
    done: Mutex<usize>,
    all_done: Condvar,
}

impl Work {
    fn total(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Take shares until there are none.
    fn help(&self) {
        let mut completed = 0;
        loop {
            let share = self.next.fetch_add(1, Ordering::Relaxed);
            if share >= self.total() {
                break;
            }
            let copy = self.ends.partition_point(|&end| end <= share);
            let before = if copy == 0 { 0 } else { self.ends[copy - 1] };
            self.copies[copy].run(share - before);
            completed += 1;
        }
        if completed > 0 {
            let mut done = lock(&self.done);
            *done += completed;
            if *done == self.total() {
                self.all_done.notify_all();
            }
        }
    }

    fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.total()
    }

    /// Whether one more thread could join now.
    fn wants_help(&self) -> bool {
        self.has_more() && self.seats.load(Ordering::Relaxed) > 0
    }
}

#[derive(Debug, Default)]
struct Queue {
    work: VecDeque<Arc<Work>>,
    threads: usize,
    idle: usize,
    /// There will be no more work.
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

/// The threads. They start when there is work, and end when there was none for a while.
#[derive(Debug)]
pub(super) struct Copiers {
    shared: Arc<Shared>,
    most: usize,
    /// Whether anything is copied at all.
    copies: bool,
}

impl Default for Copiers {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            shared: Arc::default(),
            most: cores.min(MOST_THREADS) - 1,
            copies: true,
        }
    }
}

impl Drop for Copiers {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.arrived.notify_all();
    }
}

impl Copiers {
    /// For measuring everything but the copies: all are left out.
    ///
    /// # Safety
    /// Nobody reads what a copy should have written.
    #[cfg(feature = "conformance")]
    pub(super) unsafe fn that_copy_nothing() -> Self {
        Self {
            shared: Arc::default(),
            most: 0,
            copies: false,
        }
    }

    /// Do all of `copies`, on at most `threads` threads, this one among them. Returns when they are
    /// done.
    pub(super) fn run(&self, copies: &[Copy<'_>], threads: NonZeroUsize) {
        if !self.copies {
            return;
        }
        let mut total = 0;
        let ends: Vec<usize> = copies
            .iter()
            .map(|copy| {
                total += copy.shares().0;
                total
            })
            .collect();
        let helpers = self
            .most
            .min(threads.get() - 1)
            .min(total.saturating_sub(1));
        if helpers == 0 {
            for copy in copies {
                (0..copy.shares().0).for_each(|share| copy.run(share));
            }
            return;
        }
        let copies = copies
            .iter()
            .map(|copy| Copy {
                axes: copy.axes.clone(),
                memory: PhantomData,
                ..*copy
            })
            .collect();
        // The lifetime of the copies is over for others when this function returns: it waits until
        // every share was completed, and a thread that still has the `Work` finds no share in it.
        let work = Arc::new(Work {
            copies,
            ends,
            next: AtomicUsize::new(0),
            seats: AtomicUsize::new(helpers),
            done: Mutex::new(0),
            all_done: Condvar::new(),
        });
        self.call(&work, helpers);
        work.help();
        let mut done = lock(&work.done);
        while *done < total {
            done = work
                .all_done
                .wait(done)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Let up to `helpers` threads know of `work`.
    fn call(&self, work: &Arc<Work>, helpers: usize) {
        let mut queue = lock(&self.shared.queue);
        queue.work.push_back(work.clone());
        let missing = helpers.saturating_sub(queue.idle);
        for _ in 0..missing.min(self.most - queue.threads) {
            let shared = Arc::downgrade(&self.shared);
            let thread = std::thread::Builder::new()
                .name("zarrs_cuda copier".to_string())
                .spawn(move || serve(&shared));
            match thread {
                Ok(_) => queue.threads += 1,
                Err(error) => {
                    tracing::debug!(%error, "no thread to help copying");
                    break;
                }
            }
        }
        let woken = helpers.min(queue.idle).min(WOKEN_BY_CALLER);
        drop(queue);
        for _ in 0..woken {
            self.shared.arrived.notify_one();
        }
    }
}

/// What a thread does until there is no more work.
fn serve(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        let Some(work) = next_work(&shared) else {
            return;
        };
        work.help();
    }
}

/// Wait for work; `None` if there was none for a while, and the thread is not counted any more.
///
/// Work that could be joined is not forgotten by those that sleep: whoever puts it into the queue
/// wakes one of them, and whoever leaves here with work while more could join wakes one more. Nobody
/// sleeps before it looked at the queue, and if all are busy they look when they are not.
fn next_work(shared: &Shared) -> Option<Arc<Work>> {
    let mut queue = lock(&shared.queue);
    loop {
        while let Some(work) = queue.work.front() {
            if work.has_more() && take_seat(work) {
                let work = work.clone();
                let more = queue.idle > 0 && queue.work.iter().any(|work| work.wants_help());
                drop(queue);
                if more {
                    shared.arrived.notify_one();
                }
                return Some(work);
            }
            queue.work.pop_front();
        }
        if queue.closed {
            return None;
        }
        queue.idle += 1;
        let (woken, timeout) = shared
            .arrived
            .wait_timeout(queue, PATIENCE)
            .unwrap_or_else(PoisonError::into_inner);
        queue = woken;
        queue.idle -= 1;
        if timeout.timed_out() && queue.work.is_empty() {
            queue.threads -= 1;
            return None;
        }
    }
}

/// Whether one more thread may join.
fn take_seat(work: &Work) -> bool {
    work.seats
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seats| {
            seats.checked_sub(1)
        })
        .is_ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).expect("positive")
    }

    fn copiers(most: usize) -> Copiers {
        Copiers {
            shared: Arc::default(),
            most,
            copies: true,
        }
    }

    /// Many callers ask for many copies of a few shares, so that threads come, help and leave all
    /// the time: every byte is where it should be when `run` returns, and none is touched after.
    #[test]
    fn many_callers_and_small_copies() {
        const CALLERS: usize = 8;
        let rounds = if cfg!(debug_assertions) { 150 } else { 1500 };
        let copiers = copiers(5);
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let copiers = &copiers;
                scope.spawn(move || {
                    let mut from = vec![0; 5 * SHARE / 2];
                    let mut to = vec![0; from.len()];
                    for round in 0..rounds {
                        // Other bytes each time: what an earlier round left does not do.
                        let tag = (round * CALLERS + caller) as u8;
                        let len = [1, 13, SHARE + 1, from.len()][(round + caller) % 4];
                        from[..len].fill(tag);
                        from[len / 2] = !tag;
                        let (first, second) = to[..len].split_at_mut(len / 3);
                        // SAFETY: both sides lie in this thread's vectors, which nobody touches
                        // before `run` returns.
                        let copies = unsafe {
                            [
                                Copy::bytes(from.as_ptr(), first.as_mut_ptr(), first.len()),
                                Copy::bytes(
                                    from[first.len()..].as_ptr(),
                                    second.as_mut_ptr(),
                                    second.len(),
                                ),
                            ]
                        };
                        copiers.run(&copies, threads(1 + (round + caller) % 7));
                        assert!(to[..len] == from[..len], "caller {caller}, round {round}");
                        // A thread that copied late would undo this.
                        to[..len].fill(tag ^ 0x55);
                        if round % 16 == 0 {
                            std::thread::yield_now();
                        }
                        assert!(to[..len].iter().all(|&byte| byte == tag ^ 0x55));
                    }
                });
            }
        });
        let queue = lock(&copiers.shared.queue);
        assert!(queue.threads <= 5, "{} threads", queue.threads);
    }

    /// The threads end with what owns them, whatever they do at that time.
    #[test]
    fn threads_end_when_there_will_be_no_more_work() {
        for round in 0..200 {
            let copiers = copiers(4);
            let from = vec![round as u8 + 1; 4 * SHARE];
            let mut to = vec![0; from.len()];
            // SAFETY: both vectors outlive `run`.
            let copy = unsafe { Copy::bytes(from.as_ptr(), to.as_mut_ptr(), from.len()) };
            copiers.run(&[copy], threads(5));
            assert!(to == from);
            let shared = Arc::downgrade(&copiers.shared);
            if round % 2 == 0 {
                // Some of them sleep by now.
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(copiers);
            let begin = std::time::Instant::now();
            while shared.strong_count() > 0 {
                assert!(begin.elapsed() < PATIENCE, "a thread waits for work");
                std::thread::yield_now();
            }
        }
    }

    /// All that may help are woken, although the caller wakes only some of them.
    #[test]
    fn whoever_was_woken_wakes_the_next() {
        const HELPERS: usize = 6;
        let copiers = copiers(HELPERS);
        // Rows of no bytes: shares that take a while, enough of them that none is late.
        let shares = 10_000;
        let nothing = Copy {
            from: std::ptr::null(),
            to: std::ptr::null_mut(),
            row: 0,
            axes: vec![Axis {
                extent: shares * SHARE,
                from: 0,
                to: 0,
            }],
            memory: PhantomData,
        };
        let begin = std::time::Instant::now();
        let wait = |what: &str, until: &dyn Fn() -> bool| {
            while !until() {
                assert!(begin.elapsed() < PATIENCE / 2, "{what}");
                std::thread::yield_now();
            }
        };
        for round in 0..20 {
            let work = Arc::new(Work {
                copies: vec![nothing.clone()],
                ends: vec![shares],
                next: AtomicUsize::new(0),
                seats: AtomicUsize::new(HELPERS),
                done: Mutex::new(0),
                all_done: Condvar::new(),
            });
            copiers.call(&work, HELPERS);
            wait(&format!("round {round}: some sleep on"), &|| {
                work.seats.load(Ordering::Relaxed) == 0
            });
            work.next.store(shares, Ordering::Relaxed);
            wait("some do not go to sleep", &|| {
                lock(&copiers.shared.queue).idle == HELPERS
            });
        }
    }

    #[test]
    fn boxes_are_copied_from_any_number_of_callers() {
        let copiers = copiers(3);
        // A box of 5 × 300 × 400 of an array of 6 × 310 × 410, elements of 3 bytes.
        let (outer, inner, size) = ([6, 310, 410], [5, 300, 400], 3);
        let array: Vec<u8> = (0..outer.iter().product::<usize>() * size)
            .map(|i| ((i * 31) >> 3) as u8)
            .collect();
        let from_strides = [310 * 410 * size, 410 * size, size];
        let to_strides = [300 * 400 * size, 400 * size, size];
        std::thread::scope(|scope| {
            for n in 1..6 {
                let (array, copiers) = (&array, &copiers);
                scope.spawn(move || {
                    let mut to = vec![0; inner.iter().product::<usize>() * size];
                    let mut all = vec![0; array.len()];
                    // SAFETY: the box lies within both, and both outlive `run`.
                    let copies = unsafe {
                        [
                            Copy::strided(
                                (array.as_ptr(), &from_strides),
                                (to.as_mut_ptr(), &to_strides),
                                &inner,
                                size,
                            ),
                            Copy::bytes(array.as_ptr(), all.as_mut_ptr(), array.len()),
                            Copy::bytes(array.as_ptr(), all.as_mut_ptr(), 0),
                        ]
                    };
                    copiers.run(&copies, threads(n));
                    assert!(&all == array);
                    for (i, element) in to.chunks(size).enumerate() {
                        let (z, y, x) = (i / (300 * 400), i / 400 % 300, i % 400);
                        let at = z * from_strides[0] + y * from_strides[1] + x * size;
                        assert_eq!(element, &array[at..at + size]);
                    }
                });
            }
        });
    }
}
