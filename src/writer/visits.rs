//! Counts the threads that use a writer, so that the end of the writer waits for them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Counts the threads that use a writer, until the writer ends.
#[derive(Debug, Default)]
pub(super) struct Visits {
    state: Mutex<Count>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Count {
    inside: usize,
    is_closed: bool,
}

/// The use of a writer by a thread, until this value is dropped.
#[derive(Debug)]
pub(super) struct Visit(Arc<Visits>);

impl Visits {
    fn lock(&self) -> MutexGuard<'_, Count> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a thread uses the writer; `None` if the writer has ended.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Visit> {
        let mut count = self.lock();
        if count.is_closed {
            return None;
        }
        count.inside += 1;
        Some(Visit(self.clone()))
    }

    /// Lets no thread use the writer from now on. Blocks until no thread uses it.
    pub(super) fn close(&self) {
        let mut count = self.lock();
        count.is_closed = true;
        drop(
            self.left
                .wait_while(count, |count| count.inside > 0)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Returns whether the writer has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut count = self.0.lock();
        count.inside -= 1;
        if count.inside == 0 && count.is_closed {
            self.0.left.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_end_waits_for_those_inside_and_lets_nobody_enter() {
        let visits = Arc::new(Visits::default());
        let visit = visits.enter().expect("it is open");
        drop(visits.enter());
        std::thread::scope(|scope| {
            let end = scope.spawn(|| visits.close());
            while !visits.is_closed() {
                std::thread::yield_now();
            }
            assert!(visits.enter().is_none());
            std::thread::sleep(Duration::from_millis(5));
            assert!(!end.is_finished());
            drop(visit);
        });
        visits.close();
    }
}
