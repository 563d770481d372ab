//! Threads that help a caller with work that it has cut into shares.
//!
//! The threads are not rayon's. While a caller holds something that others wait for (a lane, a
//! batch), nothing may run on rayon: its threads could pick up other work of the application, and
//! wait for something that their own stack holds. The thread that asks for help takes part, so work
//! completes even if no thread could be started.

use std::any::Any;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The most threads that work at the same time for one caller, including itself. All callers share
/// the helping threads, so there are more of them than one caller needs.
const MOST_THREADS: usize = 16;

/// How many threads a caller wakes itself. Waking a thread takes some microseconds, in which the
/// caller does nothing else. A woken thread wakes the next.
const WOKEN_BY_CALLER: usize = 2;

/// How long a thread waits for work before it ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// The work for each share. It lives as long as the call that made it: see [`Crew::run`].
#[derive(Clone, Copy)]
struct Share(*const (dyn Fn(usize) + Sync));

// SAFETY: it points to something `Sync`, which outlives every use: see `Crew::run`.
unsafe impl Send for Share {}
// SAFETY: as above.
unsafe impl Sync for Share {}

/// Work that was asked for, in shares that threads take one after the other.
///
/// Two locks order the accesses to the memory that is worked on. A helping thread finds the work in
/// the queue, under its lock; the caller put it there after it had written what the shares read.
/// And the caller returns after it saw, under the lock of `done`, that every share was added there
/// by the thread that did it. So `next` and `seats` only deal out numbers and order nothing: they
/// are relaxed.
struct Work {
    share: Share,
    total: usize,
    next: AtomicUsize,
    /// How many threads besides the one that asked may still join.
    seats: AtomicUsize,
    done: Mutex<Done>,
    all_done: Condvar,
}

#[derive(Default)]
struct Done {
    shares: usize,
    /// The first panic, for the caller.
    panic: Option<Box<dyn Any + Send>>,
}

impl Work {
    fn new(share: Share, total: usize, seats: usize) -> Self {
        Self {
            share,
            total,
            next: AtomicUsize::new(0),
            seats: AtomicUsize::new(seats),
            done: Mutex::default(),
            all_done: Condvar::new(),
        }
    }

    /// Take shares until there are none.
    fn help(&self) {
        let mut completed = 0;
        let mut panic = None;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.total {
                break;
            }
            // SAFETY: the share is not done, so the call that made it has not returned.
            let share = unsafe { &*self.share.0 };
            if let Err(why) = catch_unwind(AssertUnwindSafe(|| share(number))) {
                panic.get_or_insert(why);
            }
            completed += 1;
        }
        if completed > 0 {
            let mut done = lock(&self.done);
            done.shares += completed;
            if let Some(why) = panic {
                done.panic.get_or_insert(why);
            }
            if done.shares == self.total {
                self.all_done.notify_all();
            }
        }
    }

    fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.total
    }

    /// Whether one more thread could join now.
    fn wants_help(&self) -> bool {
        self.has_more() && self.seats.load(Ordering::Relaxed) > 0
    }
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Arc<Work>>,
    threads: usize,
    idle: usize,
    /// There will be no more work.
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

/// The threads. They start when there is work, and end when there was none for a while.
pub(crate) struct Crew {
    name: &'static str,
    shared: Arc<Shared>,
    most: usize,
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew")
            .field("name", &self.name)
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.arrived.notify_all();
    }
}

impl Crew {
    /// As many threads as this machine has processors, the caller among them, up to a limit.
    pub(crate) fn new(name: &'static str) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self::of(name, cores.min(MOST_THREADS) - 1)
    }

    /// At most `most` threads besides the caller.
    pub(crate) fn of(name: &'static str, most: usize) -> Self {
        Self {
            name,
            shared: Arc::default(),
            most,
        }
    }

    /// Do `share(0)`, …, `share(total - 1)`, on at most `threads` threads, this one among them.
    /// Returns when all are done.
    ///
    /// # Panics
    /// If `share` does.
    pub(crate) fn run(&self, total: usize, threads: NonZeroUsize, share: &(dyn Fn(usize) + Sync)) {
        self.run_while(total, threads, share, || ());
    }

    /// As [`run`](Self::run), but this thread does `work` first, and helps when `work` is done.
    /// Returns the result of `work`.
    ///
    /// # Panics
    /// If `share` or `work` does, when all shares are done.
    pub(crate) fn run_while<T>(
        &self,
        total: usize,
        threads: NonZeroUsize,
        share: &(dyn Fn(usize) + Sync),
        work: impl FnOnce() -> T,
    ) -> T {
        let helpers = self
            .most
            .min(threads.get() - 1)
            .min(total.saturating_sub(1));
        if helpers == 0 {
            let result = work();
            (0..total).for_each(share);
            return result;
        }
        // SAFETY: only the lifetime changes. It is over for others when this function returns or
        // unwinds: before that it waits until every share was done, and a thread that still has the
        // `Work` finds no share in it.
        let share: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(share) };
        let shares = Arc::new(Work::new(Share(share), total, helpers));
        self.call(&shares, helpers);
        // A panic of `work` must not free what the shares use.
        let result = catch_unwind(AssertUnwindSafe(work));
        shares.help();
        let done = lock(&shares.done);
        let mut done = shares
            .all_done
            .wait_while(done, |done| done.shares < total)
            .unwrap_or_else(PoisonError::into_inner);
        let panic = done.panic.take();
        drop(done);
        match (result, panic) {
            (Ok(result), None) => result,
            (Err(why), _) | (Ok(_), Some(why)) => resume_unwind(why),
        }
    }

    /// Queues `work` for up to `helpers` threads. Starts missing threads, and wakes a few idle
    /// ones.
    fn call(&self, work: &Arc<Work>, helpers: usize) {
        let mut queue = lock(&self.shared.queue);
        queue.work.push_back(work.clone());
        let missing = helpers.saturating_sub(queue.idle);
        for _ in 0..missing.min(self.most - queue.threads) {
            let shared = Arc::downgrade(&self.shared);
            let thread = std::thread::Builder::new()
                .name(self.name.to_string())
                .spawn(move || serve(&shared));
            match thread {
                Ok(_) => queue.threads += 1,
                Err(error) => {
                    tracing::debug!(%error, crew = self.name, "no thread to help");
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

/// Runs a thread until there is no more work.
fn serve(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        let Some(work) = next_work(&shared) else {
            return;
        };
        work.help();
    }
}

/// Blocks until there is work. `None` if there was none for a while, and the thread is not counted
/// any more.
///
/// Sleeping threads do not miss work that they could join. A caller that queues work wakes one of
/// them. A thread that leaves here with work while more could join wakes one more. No thread sleeps
/// before it looked at the queue, and busy threads look when they are done.
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
    use std::time::Instant;

    use super::*;

    fn threads(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).expect("positive")
    }

    /// Many callers ask for help with a few shares, so that threads come, help and leave all the
    /// time: every share was done once when `run` returns, and none is done after.
    #[test]
    fn many_callers_and_few_shares() {
        const CALLERS: usize = 8;
        let rounds = if cfg!(debug_assertions) { 500 } else { 5000 };
        let crew = Crew::of("test", 5);
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let crew = &crew;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let total = [0, 1, 2, 7, 30][(round + caller) % 5];
                        let seen: Vec<AtomicUsize> =
                            (0..total).map(|_| AtomicUsize::new(0)).collect();
                        crew.run(total, threads(1 + (round + caller) % 7), &|share| {
                            seen[share].fetch_add(1, Ordering::Relaxed);
                        });
                        assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
                    }
                });
            }
        });
        let queue = lock(&crew.shared.queue);
        assert!(queue.threads <= 5, "{} threads", queue.threads);
    }

    /// The threads end when the crew is dropped, whatever they do at that time.
    #[test]
    fn threads_end_when_there_will_be_no_more_work() {
        for round in 0..200 {
            let crew = Crew::of("test", 4);
            crew.run(20, threads(5), &|_| std::hint::black_box(()));
            let shared = Arc::downgrade(&crew.shared);
            if round % 2 == 0 {
                // Some of them sleep by now.
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(crew);
            let begin = Instant::now();
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
        let crew = Crew::of("test", HELPERS);
        // Shares that take a while, enough of them that none is late.
        let shares = 1 << 40;
        let nothing: &'static (dyn Fn(usize) + Sync) = &|_| std::thread::yield_now();
        let begin = Instant::now();
        let wait = |what: &str, until: &dyn Fn() -> bool| {
            while !until() {
                assert!(begin.elapsed() < PATIENCE / 2, "{what}");
                std::thread::yield_now();
            }
        };
        for round in 0..20 {
            let work = Arc::new(Work::new(Share(nothing), shares, HELPERS));
            crew.call(&work, HELPERS);
            wait(&format!("round {round}: some sleep on"), &|| {
                work.seats.load(Ordering::Relaxed) == 0
            });
            work.next.store(shares, Ordering::Relaxed);
            wait("some do not go to sleep", &|| {
                lock(&crew.shared.queue).idle == HELPERS
            });
        }
    }

    /// The shares of a caller whose work panics are done before the panic goes on.
    #[test]
    fn a_panic_of_the_callers_work_waits_for_the_shares() {
        let crew = Crew::of("test", 3);
        for most in 1..5 {
            let done = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                let share = |_| {
                    std::thread::sleep(Duration::from_millis(1));
                    done.fetch_add(1, Ordering::Relaxed);
                };
                crew.run_while(8, threads(most), &share, || panic!("the caller's work"));
            }));
            assert!(result.is_err());
            // One thread alone has not begun.
            let expected = if most == 1 { 0 } else { 8 };
            assert_eq!(done.into_inner(), expected);
        }
        let work = || std::thread::current().id();
        let here = crew.run_while(8, threads(4), &|_| (), work);
        assert_eq!(here, std::thread::current().id());
    }

    #[test]
    fn a_panic_is_the_callers() {
        let crew = Crew::of("test", 3);
        for bad in 0..8 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                crew.run(8, threads(4), &|share| assert!(share != bad, "share {bad}"));
            }));
            assert!(result.is_err());
        }
        let done = AtomicUsize::new(0);
        crew.run(8, threads(4), &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 8);
    }
}
