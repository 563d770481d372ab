//! Limits how long a call of the application waits for the threads of its writer.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::WriterError;
use super::shared::{Shared, State};
use zarrs_cuda_engine::contract::stream::Returned;

/// The time after which a call that waits asks the application again whether to go on.
pub(crate) const TURN: Duration = Duration::from_millis(50);

/// Asks the application whether a call is to end early.
#[derive(Clone)]
pub(crate) struct Interrupt(pub(crate) Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interrupt")
    }
}

/// The limits for how long calls wait: the application's interrupt and, at the end of a writer, a time.
#[derive(Debug)]
pub(crate) struct Waiting {
    interrupt: Option<Interrupt>,
    state: Mutex<Limits>,
}

#[derive(Debug)]
struct Limits {
    until: Option<Instant>,
    asked: Instant,
}

impl Waiting {
    pub(crate) fn new(interrupt: Option<Interrupt>) -> Self {
        Self {
            interrupt,
            state: Mutex::new(Limits {
                until: None,
                asked: Instant::now(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Limits> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets calls wait for at most `time` from now on, without asking the application.
    pub(crate) fn limit(&self, time: Duration) {
        self.lock().until = Instant::now().checked_add(time);
    }

    /// Returns whether the application wants a call to end. It is asked at most once in a [`TURN`].
    pub(crate) fn is_interrupted(&self) -> bool {
        let Some(interrupt) = &self.interrupt else {
            return false;
        };
        {
            let mut limits = self.lock();
            if limits.asked.elapsed() < TURN {
                return false;
            }
            limits.asked = Instant::now();
        }
        (interrupt.0)()
    }

    /// Blocks until the signal's count of changes differs from `seen`, for at most the time `most`.
    ///
    /// # Errors
    /// [`WriterError::Cancelled`] if the call is not to wait any longer.
    pub(crate) fn wait(
        &self,
        signal: &Returned,
        seen: u64,
        most: Option<Duration>,
    ) -> Result<(), WriterError> {
        let until = self.lock().until;
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(WriterError::Cancelled);
        }
        let asks = (until.is_some() || self.interrupt.is_some()).then_some(TURN);
        match [asks, left, most].into_iter().flatten().min() {
            Some(time) => signal.wait_for(seen, time),
            None => signal.wait(seen),
        }
        if until.is_none() && self.is_interrupted() {
            return Err(WriterError::Cancelled);
        }
        Ok(())
    }

    /// Waits until `look` returns a result.
    ///
    /// # Errors
    /// The error that `look` returns, and [`WriterError::Cancelled`] if the call is not to wait any longer.
    pub(crate) fn until<T>(
        &self,
        shared: &Shared,
        mut look: impl FnMut(&mut State) -> Option<Result<T, WriterError>>,
    ) -> Result<T, WriterError> {
        loop {
            let seen = shared.signal.count();
            if let Some(found) = look(&mut shared.lock()) {
                return found;
            }
            self.wait(&shared.signal, seen, None)?;
        }
    }
}
