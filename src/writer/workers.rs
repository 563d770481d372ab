//! Threads of the process that do the work of its writers.
//!
//! No thread belongs to a writer. A writer that has work calls for a thread with a [`Task`]; a thread
//! does one step of it after the other, and goes on with the task of another writer in between if one
//! waits. A thread without work ends after [`PATIENCE`].
//!
//! | work | waits for |
//! |---|---|
//! | a step of encoding | rayon's pool for streams, whose tasks wait for nothing; the device; no buffer: a step begins when its buffers are free |
//! | a step of storing | the store, which may hang; the application's function for progress |
//! | the timer, and threads of the application that give work | nothing but locks that no thread holds while it works |
//!
//! Encoding never waits for a store, and encoding and storing have threads of their own. A store that hangs
//! occupies threads that store. A thread that is in one step for longer than [`STUCK`] is not counted any
//! more: another thread may start in its place, so that the tasks of other writers go on.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::timer::{Look, TIMER};
use zarrs_cuda_engine::process::crew::PATIENCE;
use zarrs_cuda_engine::process::per_process::PerProcess;

/// The longest time that a step may take before its thread is not counted any more.
const STUCK: Duration = Duration::from_secs(1);

/// The most threads that store at once, unless one writer asks for more.
const MOST_STORING: usize = 64;

/// The most threads that encode at once, on a machine with fewer processors than this. These threads mostly
/// wait for the threads of the engine.
const LEAST_ENCODING: usize = 4;

/// The threads of this process that encode batches.
pub(super) static ENCODING: PerProcess<Arc<Workers>> = PerProcess::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    Workers::new("zarrs_cuda encode", cores.max(LEAST_ENCODING))
});

/// The threads of this process that store shards.
pub(super) static STORING: PerProcess<Arc<Workers>> =
    PerProcess::new(|| Workers::new("zarrs_cuda store", MOST_STORING));

/// A task of a writer, which threads do in steps.
pub(super) trait Task: Send + 'static {
    /// Does the next step, if there is one. Returns whether another step may follow.
    fn step(&mut self) -> bool;
}

/// Threads that do tasks. They start when there is work, and end when there was no work for a while.
pub(super) struct Workers {
    name: &'static str,
    most: usize,
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Box<dyn Task>>,
    /// For each thread that does a step: its number, and when the step began.
    begun: Vec<(u64, Instant)>,
    threads: usize,
    started: u64,
    /// The most threads that a task of the queue wants to have at once.
    wanted: usize,
    /// Whether the timer watches for threads that are stuck.
    is_watched: bool,
}

impl Queue {
    /// Returns the number of threads that are not stuck at `now`.
    fn active(&self, now: Instant) -> usize {
        let stuck = self.begun.iter().filter(|(_, begun)| is_stuck(*begun, now));
        self.threads - stuck.count()
    }

    /// Returns the time until the next thread counts as stuck; `None` if no thread does a step that is not
    /// stuck yet.
    fn next_stuck(&self, now: Instant) -> Option<Duration> {
        let not_yet = self
            .begun
            .iter()
            .filter(|(_, begun)| !is_stuck(*begun, now));
        let first = not_yet.map(|(_, begun)| *begun).min()?;
        Some(STUCK.saturating_sub(now.saturating_duration_since(first)))
    }
}

fn is_stuck(begun: Instant, now: Instant) -> bool {
    now.saturating_duration_since(begun) >= STUCK
}

impl Workers {
    fn new(name: &'static str, most: usize) -> Arc<Self> {
        Arc::new(Self {
            name,
            most,
            queue: Mutex::default(),
            arrived: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues `task` for a thread. The caller's writer may have `threads` threads at once.
    ///
    /// # Errors
    /// The error of a thread that cannot be started, if there is no other thread. The task is dropped.
    pub(super) fn call(
        self: &Arc<Self>,
        task: Box<dyn Task>,
        threads: usize,
    ) -> std::io::Result<()> {
        let mut queue = self.lock();
        queue.tasks.push_back(task);
        queue.wanted = queue.wanted.max(threads);
        let started = self.staff(&mut queue);
        if started.is_err() && queue.threads == 0 {
            let refused = queue.tasks.pop_back();
            drop(queue);
            drop(refused);
            return started;
        }
        Ok(())
    }

    /// Wakes or starts threads for the tasks of the queue, as many as may work.
    ///
    /// Threads that have not begun a step, or have ended one, take tasks before they sleep. So there is a
    /// thread for each task, or as many threads as may work.
    fn staff(self: &Arc<Self>, queue: &mut Queue) -> std::io::Result<()> {
        self.arrived.notify_one();
        let now = Instant::now();
        while queue.tasks.len() > queue.threads - queue.begun.len() {
            if queue.active(now) >= self.most.max(queue.wanted) {
                self.watch(queue, now);
                break;
            }
            if let Err(error) = self.start(queue) {
                tracing::debug!(%error, name = self.name, "no thread for a task");
                self.watch(queue, now);
                return Err(error);
            }
        }
        Ok(())
    }

    fn start(self: &Arc<Self>, queue: &mut Queue) -> std::io::Result<()> {
        let (workers, number) = (self.clone(), queue.started);
        let thread = std::thread::Builder::new().name(self.name.to_owned());
        thread.spawn(move || workers.serve(number))?;
        queue.started += 1;
        queue.threads += 1;
        Ok(())
    }

    /// Lets the timer start threads for waiting tasks when all working threads are stuck.
    fn watch(self: &Arc<Self>, queue: &mut Queue, now: Instant) {
        if queue.is_watched {
            return;
        }
        let looked_at: Arc<dyn Look> = self.clone();
        let after = queue.next_stuck(now).unwrap_or(STUCK);
        match TIMER.get().watch(Arc::downgrade(&looked_at), after) {
            Ok(()) => queue.is_watched = true,
            Err(error) => tracing::debug!(%error, "no timer for tasks that wait"),
        }
    }

    /// Runs the loop of a thread until there is no task.
    fn serve(&self, number: u64) {
        let mut mine = None;
        while let Some(mut task) = self.next(number, mine.take()) {
            let more = catch_unwind(AssertUnwindSafe(|| task.step()));
            if more.is_err() {
                tracing::error!("a task of a writer panicked");
            }
            if more.unwrap_or(false) {
                mine = Some(task);
            }
        }
    }

    /// Returns the task that has waited longest, after it has queued `mine`, the thread's own task. Returns
    /// `None` if no task came for a while, or if there are more threads than may work. The thread is then not
    /// counted any more.
    fn next(&self, number: u64, mine: Option<Box<dyn Task>>) -> Option<Box<dyn Task>> {
        let mut queue = self.lock();
        queue.begun.retain(|(other, _)| *other != number);
        queue.tasks.extend(mine);
        if queue.active(Instant::now()) > self.most.max(queue.wanted) {
            // This thread was stuck, and another thread has taken its place.
            queue.threads -= 1;
            return None;
        }
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                queue.begun.push((number, Instant::now()));
                return Some(task);
            }
            let (woken, timeout) = self
                .arrived
                .wait_timeout(queue, PATIENCE)
                .unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            if timeout.timed_out() && queue.tasks.is_empty() {
                queue.threads -= 1;
                queue.wanted = 0;
                return None;
            }
        }
    }
}

impl Look for Workers {
    /// Starts threads in the place of stuck threads.
    fn look(self: Arc<Self>) -> Option<Duration> {
        let mut queue = self.lock();
        queue.is_watched = false;
        // If no thread can be started, the tasks wait for the threads that there are.
        let _ = self.staff(&mut queue);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// The longest time that anything of a test takes.
    const LIMIT: Duration = Duration::from_secs(20);

    /// A task of some steps, which tells when it is dropped.
    struct Steps<F: FnMut(usize) -> bool + Send + 'static> {
        number: usize,
        step: F,
        _end: Sender<()>,
    }

    impl<F: FnMut(usize) -> bool + Send + 'static> Task for Steps<F> {
        fn step(&mut self) -> bool {
            self.number += 1;
            (self.step)(self.number)
        }
    }

    /// Calls for a thread that does `step`, with the number of the step. The result disconnects at the end.
    fn call(
        workers: &Arc<Workers>,
        step: impl FnMut(usize) -> bool + Send + 'static,
    ) -> Receiver<()> {
        let (end, ended) = channel();
        let task = Steps {
            number: 0,
            step,
            _end: end,
        };
        workers.call(Box::new(task), 1).expect("a thread");
        ended
    }

    fn wait_for(ended: &Receiver<()>) {
        use std::sync::mpsc::RecvTimeoutError::Disconnected;
        assert_eq!(ended.recv_timeout(LIMIT), Err(Disconnected), "a task hangs");
    }

    #[test]
    fn a_few_threads_do_all_steps_of_many_tasks() {
        const MOST: usize = 3;
        const STEPS: usize = 200;
        let workers = Workers::new("test", MOST);
        let (done, inside, most) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicUsize::new(0)),
        );
        let ends: Vec<_> = (0..20)
            .map(|_| {
                let (done, inside, most) = (done.clone(), inside.clone(), most.clone());
                call(&workers, move |number| {
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                    number < STEPS
                })
            })
            .collect();
        ends.iter().for_each(wait_for);
        assert_eq!(done.load(Ordering::SeqCst), 20 * STEPS);
        assert!(most.load(Ordering::SeqCst) <= MOST);
        assert!(workers.lock().threads <= MOST);
    }

    #[test]
    fn a_task_without_end_does_not_keep_others_waiting() {
        let workers = Workers::new("test", 1);
        let (stop, stopped) = channel::<()>();
        let endless = call(&workers, move |_| {
            stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty)
        });
        wait_for(&call(&workers, |number| number < 10));
        drop(stop);
        wait_for(&endless);
        assert_eq!(workers.lock().threads, 1);
    }

    #[test]
    fn a_thread_that_is_stuck_is_replaced() {
        let workers = Workers::new("test", 2);
        let (go, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let stuck = [(); 2].map(|()| {
            let gate = gate.clone();
            call(&workers, move |_| {
                let _ = gate.lock().unwrap_or_else(PoisonError::into_inner).recv();
                false
            })
        });
        let ends = [(); 5].map(|()| call(&workers, |number| number < 10));
        ends.iter().for_each(wait_for);
        assert!(workers.lock().threads <= 4);
        drop(go);
        stuck.iter().for_each(wait_for);
        // The two threads that may work stay; the others leave at once.
        wait_for(&call(&workers, |_| false));
        let begin = Instant::now();
        while workers.lock().threads > 2 {
            assert!(begin.elapsed() < LIMIT, "a thread too many stays");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_panic_ends_its_task_and_no_thread() {
        let workers = Workers::new("test", 1);
        let panicking = call(&workers, |_| panic!("a step"));
        wait_for(&panicking);
        wait_for(&call(&workers, |number| number < 3));
        assert_eq!(workers.lock().threads, 1);
    }
}
