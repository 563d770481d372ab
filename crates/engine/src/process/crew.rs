//! Threads that help a caller with work that the caller has divided into shares.
//!
//! The threads do not belong to rayon. While a caller holds a lane or a batch for which others wait, it must
//! not run anything on rayon: rayon's thread could start other work of the application, which waits for the
//! lane or the batch that this thread's own stack holds. The calling thread takes part in the work, so that
//! the work completes even if no thread can be started.

use std::any::Any;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use super::per_process::PerProcess;

/// The most threads that work at the same time for one caller, including the caller. All callers share the
/// helping threads, so a crew may have more threads than one caller needs.
const MOST_THREADS: usize = 16;

/// The time for which a thread of a [spinning](Crew::spinning) crew looks for more work before it sleeps, and
/// for which a caller looks for the end of its work. Waking a thread takes at least as long.
const SPIN: Duration = Duration::from_micros(50);

/// The time for which a thread waits for work before it ends.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A pointer to the function that does one share. It is valid until the call that made it returns: see
/// [`Crew::run`].
#[derive(Clone, Copy)]
struct Share(*const (dyn Fn(usize) + Sync));

// SAFETY: the pointer leads to a `Sync` function that outlives every use: see `Crew::run`.
unsafe impl Send for Share {}
// SAFETY: as for `Send`.
unsafe impl Sync for Share {}

/// The work of one call, in shares that threads take one after the other.
///
/// Two locks order the accesses to the memory of the work. A helping thread finds the work in the queue,
/// under the lock of the queue; the caller put it there after it had written the inputs of the shares. The
/// caller returns after it saw, under the lock of `done`, that threads have added every share they did. So
/// `next`, `seats` and `added` are only numbers that order nothing, and accesses to them are relaxed.
struct CrewWork {
    share: Share,
    total: usize,
    next: AtomicUsize,
    /// The number of threads besides the caller that may still join.
    seats: AtomicUsize,
    /// A copy of `Done::shares`, which can be read without the lock.
    added: AtomicUsize,
    done: Mutex<Done>,
    all_done: Condvar,
}

#[derive(Default)]
struct Done {
    shares: usize,
    /// Whether the caller sleeps until all shares are done.
    awaited: bool,
    /// The first panic of a share, which the caller will resume.
    panic: Option<Box<dyn Any + Send>>,
}

impl CrewWork {
    fn new(share: Share, total: usize, seats: usize) -> Self {
        Self {
            share,
            total,
            next: AtomicUsize::new(0),
            seats: AtomicUsize::new(seats),
            added: AtomicUsize::new(0),
            done: Mutex::default(),
            all_done: Condvar::new(),
        }
    }

    /// Takes and does shares until none are left.
    fn help(&self) {
        let mut completed = 0;
        let mut panic = None;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.total {
                break;
            }
            // SAFETY: this share is not done yet, so the call that made the pointer has not returned.
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
            self.added.store(done.shares, Ordering::Relaxed);
            if done.shares == self.total && done.awaited {
                self.all_done.notify_all();
            }
        }
    }

    /// Blocks until all shares are done. For the first `spin`, it does not sleep.
    fn wait(&self, spin: Duration) -> MutexGuard<'_, Done> {
        if !spin.is_zero() {
            spin_while(Instant::now() + spin, || {
                self.added.load(Ordering::Relaxed) < self.total
            });
        }
        let mut done = lock(&self.done);
        done.awaited = true;
        self.all_done
            .wait_while(done, |done| done.shares < self.total)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.total
    }
}

/// The threads that wait for work by spinning, or by sleeping: `threads` that were not called, and `called`
/// ones that have not come back yet.
#[derive(Default)]
struct Waiting {
    threads: usize,
    called: usize,
}

impl Waiting {
    fn enter(&mut self) {
        self.threads += 1;
    }

    /// Calls up to `most` threads that were not called before. Returns the number of called threads.
    fn call(&mut self, most: usize) -> usize {
        let called = self.threads.min(most);
        self.threads -= called;
        self.called += called;
        called
    }

    /// Notes that a thread comes back. If any thread was called, this one counts as called.
    fn leave(&mut self) {
        if self.called > 0 {
            self.called -= 1;
        } else {
            self.threads -= 1;
        }
    }
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Arc<CrewWork>>,
    threads: usize,
    spinning: Waiting,
    sleeping: Waiting,
    /// Whether the crew was dropped, so that there will be no more work.
    closed: bool,
}

struct CrewState {
    queue: Mutex<Queue>,
    arrived: Condvar,
    /// The number of times that work was queued. Spinning threads read it without the lock. It changes only
    /// under the lock, which orders everything else.
    calls: AtomicUsize,
    /// The time for which threads spin.
    spin: Duration,
    /// The function that each thread calls when it starts.
    start: Option<Box<dyn Fn() + Send + Sync>>,
    /// The identifier of the process that made the crew.
    process: u32,
    /// The number of times that a thread woke up.
    #[cfg(test)]
    woken: AtomicUsize,
}

impl CrewState {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::default(),
            arrived: Condvar::new(),
            calls: AtomicUsize::new(0),
            spin: Duration::ZERO,
            start: None,
            process: std::process::id(),
            #[cfg(test)]
            woken: AtomicUsize::new(0),
        })
    }

    /// Returns the time for which threads of this process spin. It is 0 in a forked child, which may lack the
    /// threads for which it would spin.
    fn spin(&self) -> Duration {
        if self.spin.is_zero() || self.process != std::process::id() {
            return Duration::ZERO;
        }
        self.spin
    }
}

/// A crew of threads. They start when there is work, and end after [`PATIENCE`] without work.
pub struct Crew {
    name: &'static str,
    shared: Arc<CrewState>,
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
    /// Returns a crew with as many threads, including the caller, as this process may use processors, up to a
    /// limit.
    pub fn new(name: &'static str) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self::for_processors(name, cores)
    }

    /// Returns a crew with `processors` threads, including the caller, up to a limit.
    pub(crate) fn for_processors(name: &'static str, processors: usize) -> Self {
        Self::of(name, processors.clamp(1, MOST_THREADS) - 1)
    }

    /// Returns a crew with at most `most` threads besides the caller.
    pub fn of(name: &'static str, most: usize) -> Self {
        Self {
            name,
            shared: CrewState::new(),
            most,
        }
    }

    /// Returns the crew as a spinning one. Its threads look for more work for [`SPIN`] before they sleep, and
    /// callers look as long for the end of their work. This is for short shares of work that come one after
    /// the other. On one processor, nothing spins.
    pub(crate) fn spinning(self) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.spinning_on(cores)
    }

    fn spinning_on(mut self, cores: usize) -> Self {
        if let Some(shared) = self.without_threads()
            && cores > 1
        {
            shared.spin = SPIN;
        }
        self
    }

    /// Returns the crew with a function that each of its threads calls when it starts.
    pub(crate) fn starting(mut self, start: impl Fn() + Send + Sync + 'static) -> Self {
        if let Some(shared) = self.without_threads() {
            shared.start = Some(Box::new(start));
        }
        self
    }

    /// Returns the state that threads will share; `None` if a thread has started already.
    fn without_threads(&mut self) -> Option<&mut CrewState> {
        Arc::get_mut(&mut self.shared)
    }

    /// Calls `share(0)`, …, `share(total - 1)`, on at most `threads` threads, including this one. Returns
    /// when all calls have returned.
    ///
    /// # Panics
    /// If a call of `share` panics.
    pub fn run(&self, total: usize, threads: NonZeroUsize, share: &(dyn Fn(usize) + Sync)) {
        self.run_while(total, threads, share, || ());
    }

    /// Does the shares like [`run`](Self::run), but this thread first does `work`, and then helps with the
    /// shares. Returns the result of `work`.
    ///
    /// # Panics
    /// If `share` or `work` panics. The panic is resumed after all shares are done.
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
        // SAFETY: only the lifetime changes. No other thread uses the function after this one returns or
        // unwinds: before that, this function waits until every share is done, and a thread that still has
        // the `CrewWork` finds no share in it.
        let share: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(share) };
        let shares = Arc::new(CrewWork::new(Share(share), total, helpers));
        self.call(&shares, helpers);
        // Catch a panic of `work`, which would otherwise free memory that the shares use.
        let result = catch_unwind(AssertUnwindSafe(work));
        shares.help();
        let mut done = shares.wait(self.shared.spin());
        let panic = done.panic.take();
        drop(done);
        match (result, panic) {
            (Ok(result), None) => result,
            (Err(why), _) | (Ok(_), Some(why)) => resume_unwind(why),
        }
    }

    /// Queues `work` for up to `helpers` threads. Calls spinning threads first, then wakes sleeping ones, and
    /// starts new ones if there are still too few.
    fn call(&self, work: &Arc<CrewWork>, helpers: usize) {
        let mut queue = lock(&self.shared.queue);
        queue.work.push_back(work.clone());
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        let missing = helpers - queue.spinning.call(helpers);
        let woken = queue.sleeping.call(missing);
        let all = queue.sleeping.threads == 0;
        for _ in 0..(missing - woken).min(self.most - queue.threads) {
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
        drop(queue);
        if all && woken > 1 {
            self.shared.arrived.notify_all();
        } else {
            (0..woken).for_each(|_| self.shared.arrived.notify_one());
        }
    }
}

/// Runs a thread of the crew until there is no more work for it.
fn serve(shared: &Weak<CrewState>) {
    let spin = match shared.upgrade() {
        Some(shared) => {
            if let Some(start) = &shared.start {
                start();
            }
            shared.spin()
        }
        None => return,
    };
    while let Some(shared) = shared.upgrade() {
        let Some(work) = next_work(&shared, spin) else {
            return;
        };
        work.help();
    }
}

/// Blocks until there is work, and returns it. For the first `spin`, it does not sleep. Returns `None` if
/// there was no work for [`PATIENCE`]; then the thread does not count any more.
///
/// No thread misses work that it could join. A caller that queues work calls threads that spin or sleep, each
/// for one work. A thread looks at the queue before it spins or sleeps, and busy threads look at it when they
/// are done.
fn next_work(shared: &CrewState, spin: Duration) -> Option<Arc<CrewWork>> {
    let mut queue = lock(&shared.queue);
    let mut spin_until = (!spin.is_zero()).then(|| Instant::now() + spin);
    loop {
        while let Some(work) = queue.work.front() {
            if work.has_more() && take_seat(work) {
                return Some(work.clone());
            }
            queue.work.pop_front();
        }
        if queue.closed {
            return None;
        }
        if let Some(until) = spin_until {
            queue.spinning.enter();
            let calls = shared.calls.load(Ordering::Relaxed);
            drop(queue);
            // All spinning threads see the call at once. They try the lock, and do not sleep for it.
            let mut locked = None;
            let in_time = spin_while(until, || {
                if shared.calls.load(Ordering::Relaxed) != calls {
                    locked = match shared.queue.try_lock() {
                        Ok(queue) => Some(queue),
                        Err(TryLockError::Poisoned(queue)) => Some(queue.into_inner()),
                        Err(TryLockError::WouldBlock) => None,
                    };
                }
                locked.is_none()
            });
            queue = locked.unwrap_or_else(|| lock(&shared.queue));
            queue.spinning.leave();
            if !in_time {
                spin_until = None;
            }
            continue;
        }
        queue.sleeping.enter();
        let (woken, timeout) = shared
            .arrived
            .wait_timeout(queue, PATIENCE)
            .unwrap_or_else(PoisonError::into_inner);
        queue = woken;
        queue.sleeping.leave();
        #[cfg(test)]
        shared.woken.fetch_add(1, Ordering::Relaxed);
        if timeout.timed_out() && queue.work.is_empty() {
            queue.threads -= 1;
            return None;
        }
    }
}

/// Spins while `waits` returns true, but at most until the time `until`. Returns whether `waits` returned
/// false in time.
fn spin_while(until: Instant, mut waits: impl FnMut() -> bool) -> bool {
    /// The number of calls of `waits` between two readings of the clock, which take longer.
    const LOOKS: usize = 16;
    loop {
        for _ in 0..LOOKS {
            if !waits() {
                return true;
            }
            std::hint::spin_loop();
        }
        if Instant::now() >= until {
            return false;
        }
    }
}

/// Takes a seat for one more thread in `work`. Returns whether there was one.
fn take_seat(work: &CrewWork) -> bool {
    work.seats
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seats| {
            seats.checked_sub(1)
        })
        .is_ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the crew that copies slices and pieces, which all streams of the process share.
pub(crate) fn of_slices() -> &'static Crew {
    static CREW: PerProcess<Crew> = PerProcess::new(|| Crew::new("zarrs_cuda slices").spinning());
    CREW.get()
}

#[cfg(test)]
mod tests {
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
        for crew in both(5) {
            many_callers(&crew, CALLERS, rounds);
        }
    }

    /// Returns a crew that spins, and one that does not.
    fn both(most: usize) -> [Crew; 2] {
        [
            Crew::of("test", most),
            Crew::of("test", most).spinning_on(2),
        ]
    }

    fn many_callers(crew: &Crew, callers: usize, rounds: usize) {
        std::thread::scope(|scope| {
            for caller in 0..callers {
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
            let [sleeps, spins] = both(4);
            let crew = if round % 4 < 2 { sleeps } else { spins };
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

    /// Waits until something has happened, which should take less than a thread's patience.
    fn wait(what: &str, until: &dyn Fn() -> bool) {
        let begin = Instant::now();
        while !until() {
            assert!(begin.elapsed() < PATIENCE / 2, "{what}");
            std::thread::yield_now();
        }
    }

    /// Shares that take a while, enough of them that no thread is late.
    const ENDLESS: usize = 1 << 40;

    fn endless(helpers: usize) -> Arc<CrewWork> {
        let nothing: &'static (dyn Fn(usize) + Sync) = &|_| std::thread::yield_now();
        Arc::new(CrewWork::new(Share(nothing), ENDLESS, helpers))
    }

    fn end(work: &CrewWork) {
        work.next.store(ENDLESS, Ordering::Relaxed);
    }

    /// All threads that may help come: those that sleep, those that spin, and those that do not
    /// exist yet.
    #[test]
    fn all_that_are_wanted_come() {
        const HELPERS: usize = 6;
        for crew in both(HELPERS) {
            for round in 0..40 {
                let work = endless(HELPERS);
                crew.call(&work, HELPERS);
                wait(&format!("round {round}: some sleep on"), &|| {
                    work.seats.load(Ordering::Relaxed) == 0
                });
                end(&work);
                if round % 2 == 0 {
                    wait("some do not go to sleep", &|| {
                        lock(&crew.shared.queue).sleeping.threads == HELPERS
                    });
                }
            }
        }
    }

    /// A few calls for a few threads each get as many as they want, although no thread is called
    /// for two of them. No others are woken.
    #[test]
    fn only_those_that_are_wanted_are_woken() {
        const HELPERS: usize = 12;
        for crew in both(HELPERS) {
            let all = endless(HELPERS);
            crew.call(&all, HELPERS);
            wait("the threads do not start", &|| {
                all.seats.load(Ordering::Relaxed) == 0
            });
            end(&all);
            let mut woken = 0;
            const ROUNDS: usize = 20;
            for round in 0..ROUNDS {
                wait("some do not go to sleep", &|| {
                    lock(&crew.shared.queue).sleeping.threads == HELPERS
                });
                // The threads are about to sleep.
                std::thread::sleep(Duration::from_millis(5));
                let before = crew.shared.woken.load(Ordering::Relaxed);
                let works = [endless(1), endless(2), endless(1)];
                for work in &works {
                    crew.call(work, work.seats.load(Ordering::Relaxed));
                }
                wait(&format!("round {round}: some sleep on"), &|| {
                    let mut seats = works.iter().map(|work| work.seats.load(Ordering::Relaxed));
                    seats.all(|seats| seats == 0)
                });
                woken += crew.shared.woken.load(Ordering::Relaxed) - before;
                for work in &works {
                    end(work);
                }
            }
            // A thread may wake up without a reason.
            assert!(
                (4 * ROUNDS..6 * ROUNDS).contains(&woken),
                "{woken} for {ROUNDS} times 4"
            );
            let queue = lock(&crew.shared.queue);
            assert!(queue.threads <= HELPERS, "{} threads", queue.threads);
        }
    }

    #[test]
    fn spinning_ends() {
        for waits in [Duration::ZERO, SPIN] {
            let begin = Instant::now();
            assert!(!spin_while(begin + waits, || true));
            assert!(begin.elapsed() >= waits);
        }
        assert!(spin_while(Instant::now(), || false));
    }

    #[test]
    fn nothing_spins_on_one_processor_or_in_a_forked_child() {
        let crew = |cores| Crew::of("test", 3).spinning_on(cores);
        assert_eq!(Crew::of("test", 3).shared.spin(), Duration::ZERO);
        assert_eq!(crew(1).shared.spin(), Duration::ZERO);
        assert_eq!(crew(2).shared.spin(), SPIN);
        let mut of_parent = crew(2);
        let shared = Arc::get_mut(&mut of_parent.shared).expect("no threads yet");
        shared.process = std::process::id().wrapping_add(1);
        assert_eq!(of_parent.shared.spin(), Duration::ZERO);
        of_parent.run(20, threads(4), &|_| std::thread::yield_now());
        let work = endless(3);
        of_parent.call(&work, 3);
        wait("the threads do not come", &|| {
            work.seats.load(Ordering::Relaxed) == 0
        });
        end(&work);
        wait("a thread spins", &|| {
            lock(&of_parent.shared.queue).sleeping.threads == 3
        });
        // The caller of the parent's crew counts threads that do not exist in the child.
        let mut queue = lock(&of_parent.shared.queue);
        queue.spinning.threads = 3;
        drop(queue);
        let done = AtomicUsize::new(0);
        of_parent.run(20, threads(4), &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 20);
    }

    /// Each thread calls `start` once, before it takes work.
    #[test]
    fn threads_start_with_a_call() {
        thread_local!(static STARTED: AtomicUsize = const { AtomicUsize::new(0) });
        let started = || STARTED.with(|started| started.load(Ordering::Relaxed));
        let crew = Crew::of("test", 3).spinning_on(2).starting(|| {
            STARTED.with(|started| started.fetch_add(1, Ordering::Relaxed));
        });
        let caller = std::thread::current().id();
        for _ in 0..20 {
            crew.run(40, threads(4), &|_| {
                let is_caller = std::thread::current().id() == caller;
                assert_eq!(started(), usize::from(!is_caller));
                std::thread::yield_now();
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
