//! Keeps writers between two calls of the application: one thread stores complete shards while the input
//! rests.
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

use super::appending::Appending;
use super::error::WriterError;
use super::stream::check_process;
use super::timer::{Look, TIMER};
use super::waiting::{TURN, Waiting};

/// The time until the timer looks again at a writer that was busy.
pub(crate) const SOON: Duration = Duration::from_millis(10);

/// The time beyond its limit that the end of a writer may take to erase temporaries.
const GRACE: Duration = Duration::from_millis(250);

/// A writer that an application has, and that the timer looks at.
#[derive(Debug)]
pub(crate) struct Kept<W: Appending> {
    /// The writer; `None` once it was taken out to end it.
    writer: Arc<Mutex<Option<W>>>,
    waiting: Arc<Waiting>,
    start: u64,
    drop_limit: Duration,
    /// The identifier of the process that built the writer.
    process: u32,
}

impl<W: Appending> Kept<W> {
    /// Keeps a writer, and lets the timer look at it unless complete shards are to wait for their batches.
    pub(crate) fn new(
        writer: W,
        flush_after: Option<Duration>,
        drop_limit: Duration,
    ) -> std::io::Result<Self> {
        let (waiting, start) = (
            writer.top().waiting.clone(),
            writer.top().shared.setup.first(),
        );
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

    /// Returns the first slice that the writer writes.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Does `work` with the writer, while the timer does not look at the writer.
    pub(crate) fn with<T>(
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

    /// Takes the writer out; `None` if it was taken out before.
    ///
    /// # Errors
    /// [`WriterError::Broken`] in a forked child.
    pub(crate) fn take(&self) -> Result<Option<W>, WriterError> {
        check_process(self.process, self.start)?;
        Ok(lock(&self.writer).take())
    }

    /// Ends the writer within `limit`: see [`Appending::stop`]. If the end takes longer, it goes on in a
    /// thread, and this function returns.
    pub(crate) fn stop(&self, limit: Duration, stores: bool) -> Result<u64, WriterError> {
        let Some(writer) = self.take()? else {
            return Ok(self.start);
        };
        let finished = writer.top().progress().finished_slices;
        if writer.is_done() {
            return Ok(finished);
        }
        self.waiting.limit(limit);
        // The thread takes the writer out of `place`. If no thread can be started, the writer is still there.
        let place = Arc::new(Mutex::new(Some(writer)));
        let of_thread = place.clone();
        let (send, done) = sync_channel(1);
        // Events of the end are logged by the subscriber of the caller.
        let log = tracing::dispatcher::get_default(Clone::clone);
        let work = move || {
            let _log = tracing::dispatcher::set_default(&log);
            let Some(mut writer) = lock(&of_thread).take() else {
                return;
            };
            let result = catch_unwind(AssertUnwindSafe(|| writer.stop(stores)));
            // The writer no longer uses the store when the caller goes on.
            drop(catch_unwind(AssertUnwindSafe(|| drop(writer))));
            // An error means that the caller waits no longer.
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

impl<W: Appending> Drop for Kept<W> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The parent process goes on with the writer, also with its temporaries.
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

impl<W: Appending> Look for Mutex<Option<W>> {
    /// Looks at the writer by [`Appending::look`], unless a call of the application uses the writer.
    fn look(self: Arc<Self>) -> Option<Duration> {
        match self.try_lock() {
            Ok(mut writer) => writer.as_mut()?.look(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().as_mut()?.look(),
            Err(TryLockError::WouldBlock) => Some(SOON),
        }
    }
}
