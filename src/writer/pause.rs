//! Writers between two calls of the application: one thread stores complete shards while the input rests.
//!
//! ```text
//! a call of the application  ──► lock ──► the writer
//! the timer, one per process ──► lock, if no call has it ──► the writer's `look`
//! the end of a writer        ──► takes the writer out ──► a thread of its own ──► `stop`
//! ```
//!
//! The timer never waits for a writer, a buffer or a store. A forked child has neither the timer nor the
//! writers of its parent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::error::WriterError;
use super::timer::{Look, TIMER};
use super::waiting::{TURN, Waiting};

/// A writer that can be looked at between two calls.
pub(super) trait Pausing: Send + 'static {
    /// Hands complete shards that have waited long enough to the threads of the writer, without waiting.
    /// Returns in how long to look again; `None` if there will be nothing to do.
    fn look(&mut self) -> Option<Duration>;

    /// How long calls of the writer wait.
    fn waiting(&self) -> Arc<Waiting>;

    /// Whether its work has ended.
    fn is_done(&self) -> bool;

    /// All slices below this one are stored.
    fn finished_slices(&self) -> u64;

    /// Ends the writer, which `stores` its complete shards before. Returns the first slice that is not
    /// stored. Waiting for the store is [limited](Waiting::limit).
    fn stop(&mut self, stores: bool) -> Result<u64, WriterError>;
}

/// In how long to look again at a writer that was busy.
pub(super) const SOON: Duration = Duration::from_millis(10);

/// How long the end of a writer takes beyond its limit, so that its temporaries are erased.
const GRACE: Duration = Duration::from_millis(250);

/// Checks that this is the process in which a writer was built that begins at the slice `start`.
pub(super) fn check_process(process: u32, start: u64) -> Result<(), WriterError> {
    if process == std::process::id() {
        return Ok(());
    }
    Err(WriterError::Broken {
        reason: "its process was forked after it was built, and the writer is the parent's: build another one here, for another part of the array".to_string(),
        finished_slices: start,
    })
}

/// A writer of an application, which the timer knows.
#[derive(Debug)]
pub(super) struct Kept<W: Pausing> {
    /// `None` once it was taken out.
    writer: Arc<Mutex<Option<W>>>,
    waiting: Arc<Waiting>,
    start: u64,
    drop_limit: Duration,
    /// The process that built it.
    process: u32,
}

impl<W: Pausing> Kept<W> {
    /// Lets the timer know a writer that begins at the slice `start`, unless nothing is stored in pauses.
    pub(super) fn new(
        writer: W,
        start: u64,
        flush_after: Option<Duration>,
        drop_limit: Duration,
    ) -> std::io::Result<Self> {
        let waiting = writer.waiting();
        let writer = Arc::new(Mutex::new(Some(writer)));
        if let Some(after) = flush_after {
            let watched: Arc<dyn Look> = writer.clone();
            TIMER.get().watch(Arc::downgrade(&watched), after)?;
        }
        Ok(Self {
            writer,
            waiting,
            start,
            drop_limit,
            process: std::process::id(),
        })
    }

    /// Does `work` with the writer.
    pub(super) fn with<T>(
        &self,
        work: impl FnOnce(&mut W) -> Result<T, WriterError>,
    ) -> Result<T, WriterError> {
        check_process(self.process, self.start)?;
        match &mut *lock(&self.writer) {
            Some(writer) => work(writer),
            None => Err(WriterError::Broken {
                reason: "it was stopped".to_owned(),
                finished_slices: self.start,
            }),
        }
    }

    /// Takes the writer out; `None` if it was taken before.
    ///
    /// # Errors
    /// [`WriterError::Broken`] in a forked child.
    pub(super) fn take(&self) -> Result<Option<W>, WriterError> {
        check_process(self.process, self.start)?;
        Ok(lock(&self.writer).take())
    }

    /// Ends the writer within `limit`: see [`Pausing::stop`]. It goes on behind the caller's back if it takes
    /// longer.
    pub(super) fn stop(&self, limit: Duration, stores: bool) -> Result<u64, WriterError> {
        let Some(writer) = self.take()? else {
            return Ok(self.start);
        };
        let finished = writer.finished_slices();
        if writer.is_done() {
            return Ok(finished);
        }
        self.waiting.limit(limit);
        // The thread takes the writer, so that it is still here if there is no thread.
        let place = Arc::new(Mutex::new(Some(writer)));
        let of_thread = place.clone();
        let (send, done) = sync_channel(1);
        // Its end is logged where the caller logs.
        let log = tracing::dispatcher::get_default(Clone::clone);
        let work = move || {
            let _log = tracing::dispatcher::set_default(&log);
            let Some(mut writer) = lock(&of_thread).take() else {
                return;
            };
            let result = catch_unwind(AssertUnwindSafe(|| writer.stop(stores)));
            // The store is free when the caller goes on.
            drop(catch_unwind(AssertUnwindSafe(|| drop(writer))));
            // Without a caller there is nobody to tell.
            let _ = send.send(result);
        };
        let thread = std::thread::Builder::new().name("zarrs_cuda stop".to_owned());
        if let Err(error) = thread.spawn(work) {
            tracing::warn!(%error, "no thread to end a writer: its end may take long");
            return match lock(&place).take() {
                Some(mut writer) => writer.stop(stores),
                None => Ok(finished),
            };
        }
        let begin = Instant::now();
        let mut limit = limit;
        loop {
            match done.recv_timeout(TURN) {
                Ok(Ok(result)) => return result,
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(WriterError::Broken {
                        reason: "it panicked at its end".to_owned(),
                        finished_slices: finished,
                    });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if begin.elapsed() > limit.saturating_add(GRACE) {
                tracing::warn!(
                    "the store of a writer that ends is at work for {:?}, and is not waited for any longer: slices from {finished} on may be lost",
                    begin.elapsed()
                );
                return Ok(finished);
            }
            if self.waiting.is_interrupted() {
                limit = limit.min(begin.elapsed());
                self.waiting.limit(Duration::ZERO);
            }
        }
    }
}

impl<W: Pausing> Drop for Kept<W> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The parent goes on with all of it: with its temporaries, too.
            std::mem::forget(self.writer.clone());
            return;
        }
        if let Err(error) = self.stop(self.drop_limit, !std::thread::panicking()) {
            tracing::warn!(%error, "dropping a writer");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: Pausing> Look for Mutex<Option<W>> {
    /// Looks at the writer by [`Pausing::look`], unless a call of the application is in the writer.
    fn look(self: Arc<Self>) -> Option<Duration> {
        match self.try_lock() {
            Ok(mut writer) => writer.as_mut()?.look(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().as_mut()?.look(),
            Err(TryLockError::WouldBlock) => Some(SOON),
        }
    }
}
