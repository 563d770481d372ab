//! Runs one thread of the process, which looks at each watched object when it is due.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use zarrs_cuda_engine::process::crew::PATIENCE;
use zarrs_cuda_engine::process::per_process::PerProcess;

/// An object that the timer looks at. The look never blocks.
pub(super) trait Look: Send + Sync {
    /// Does the work that is due. Returns the time until the next look; `None` if the timer need not look
    /// again.
    fn look(self: Arc<Self>) -> Option<Duration>;
}

/// The timer of this process.
pub(super) static TIMER: PerProcess<Timer> = PerProcess::new(Timer::new);

pub(super) struct Timer {
    watched: Mutex<Watched>,
    changed: Condvar,
}

struct Watched {
    looked_at: Vec<(Instant, Weak<dyn Look>)>,
    /// Whether the timer has a thread. The thread ends when no object is watched.
    has_thread: bool,
}

impl Timer {
    fn new() -> Self {
        Self {
            watched: Mutex::new(Watched {
                looked_at: Vec::new(),
                has_thread: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Watches an object: looks at it `after` this time, and then whenever its last look has asked for.
    ///
    /// # Errors
    /// The error of a thread that cannot be started.
    pub(super) fn watch(
        &'static self,
        looked_at: Weak<dyn Look>,
        after: Duration,
    ) -> std::io::Result<()> {
        let mut watched = lock(&self.watched);
        watched.looked_at.push((time_in(after), looked_at));
        if watched.has_thread {
            self.changed.notify_one();
            return Ok(());
        }
        let thread = std::thread::Builder::new().name("zarrs_cuda pause".to_owned());
        let started = thread.spawn(|| self.run()).map(drop);
        watched.has_thread = started.is_ok();
        if started.is_err() {
            watched.looked_at.pop();
        }
        started
    }

    fn run(&self) {
        let mut watched = lock(&self.watched);
        loop {
            let now = Instant::now();
            watched
                .looked_at
                .retain(|(_, weak)| weak.strong_count() > 0);
            let due: Vec<_> = watched
                .looked_at
                .extract_if(.., |(at, _)| *at <= now)
                .collect();
            if due.is_empty() {
                let Some(next) = watched.looked_at.iter().map(|(at, _)| *at).min() else {
                    watched.has_thread = false;
                    return;
                };
                // The wait has a limit, so that the timer forgets writers that have ended meanwhile.
                let wait = next.saturating_duration_since(now).min(PATIENCE);
                watched = self
                    .changed
                    .wait_timeout(watched, wait)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
                continue;
            }
            drop(watched);
            let looked = due.into_iter().filter_map(|(_, weak)| {
                let known = weak.upgrade()?;
                let next = catch_unwind(AssertUnwindSafe(|| known.look()));
                if next.is_err() {
                    tracing::error!("a writer panicked when a timer looked at it");
                }
                Some((time_in(next.ok()??), weak))
            });
            let looked: Vec<_> = looked.collect();
            watched = lock(&self.watched);
            watched.looked_at.extend(looked);
        }
    }
}

/// Returns the moment `after` this time, which is taken as at least `LEAST` and at most `MOST`.
fn time_in(after: Duration) -> Instant {
    const LEAST: Duration = Duration::from_millis(5);
    const MOST: Duration = Duration::from_hours(24);
    Instant::now() + after.clamp(LEAST, MOST)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
