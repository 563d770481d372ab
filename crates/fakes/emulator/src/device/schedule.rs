//! When operations run, once they are enqueued.

use std::collections::VecDeque;

use crate::random::Random;

/// When operations run. All keep to the order that streams and events give, so a program that is
/// ordered right gives the same bytes under each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Operations run as soon as they are enqueued.
    Eager,
    /// Operations run when the host waits for them, or for one that waits for them.
    Latest,
    /// Streams have priorities, drawn from the seed. Now and then, and when the host waits, the
    /// first operation of the stream with the highest priority runs, of those that are ready.
    Priority(u64),
}

/// A place in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The number of the stream.
    pub stream: usize,
    /// How many tasks of the stream must have run.
    pub time: u64,
}

/// Work in a stream.
#[derive(Debug)]
pub struct Task<W> {
    /// A place of another stream that must be reached before.
    pub after: Option<Ticket>,
    /// The work.
    pub work: W,
}

/// The tasks of a stream that have not run.
#[derive(Debug)]
pub struct Queue<W> {
    tasks: VecDeque<Task<W>>,
    enqueued: u64,
    priority: u64,
    /// Whether the tasks do not run for now.
    is_stalled: bool,
}

impl<W> Queue<W> {
    /// Returns how many tasks have run.
    fn done(&self) -> u64 {
        self.enqueued - self.tasks.len() as u64
    }

    /// Returns how many tasks were enqueued.
    #[must_use]
    pub fn enqueued(&self) -> u64 {
        self.enqueued
    }

    /// Returns whether all tasks have run.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }
}

/// The streams of a device. Chooses the task that runs next.
#[derive(Debug)]
pub struct Scheduler<W> {
    schedule: Schedule,
    random: Random,
    queues: Vec<Queue<W>>,
    /// How many tasks were enqueued, in all streams.
    enqueued: u64,
    /// The device hangs once more tasks than these were enqueued.
    hangs_after: u64,
}

impl<W> Scheduler<W> {
    /// Returns a device without streams.
    #[must_use]
    pub fn new(schedule: Schedule) -> Self {
        let seed = match schedule {
            Schedule::Priority(seed) => seed,
            Schedule::Eager | Schedule::Latest => 0,
        };
        Self {
            schedule,
            random: Random::new(seed),
            queues: Vec::new(),
            enqueued: 0,
            hangs_after: u64::MAX,
        }
    }

    /// Lets the device hang once more than `tasks` tasks were enqueued: no task runs any more.
    pub fn hang_after(&mut self, tasks: u64) {
        self.hangs_after = tasks;
    }

    /// Lets the tasks of a stream wait, or run again.
    pub fn stall(&mut self, stream: usize, is_stalled: bool) {
        self.queues[stream].is_stalled = is_stalled;
    }

    /// Returns whether no task runs any more.
    #[must_use]
    pub fn hangs(&self) -> bool {
        self.enqueued > self.hangs_after
    }

    /// Returns the number of a new stream, from 0.
    pub fn create(&mut self) -> usize {
        self.queues.push(Queue {
            tasks: VecDeque::new(),
            enqueued: 0,
            priority: 0,
            is_stalled: false,
        });
        self.renew(self.queues.len() - 1);
        self.queues.len() - 1
    }

    /// Draws another priority for a stream.
    pub fn renew(&mut self, stream: usize) {
        self.queues[stream].priority = self.random.next();
    }

    /// Returns the tasks of a stream.
    #[must_use]
    pub fn queue(&self, stream: usize) -> &Queue<W> {
        &self.queues[stream]
    }

    /// Enqueues a task. Returns its place.
    pub fn push(&mut self, stream: usize, task: Task<W>) -> Ticket {
        self.enqueued += 1;
        let queue = &mut self.queues[stream];
        queue.tasks.push_back(task);
        queue.enqueued += 1;
        let time = queue.enqueued;
        Ticket { stream, time }
    }

    /// Returns whether a place was reached.
    #[must_use]
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.queues[ticket.stream].done() >= ticket.time
    }

    /// Returns how many tasks to run now that another one was enqueued.
    pub fn steps(&mut self) -> usize {
        match self.schedule {
            Schedule::Eager => usize::MAX,
            Schedule::Latest => 0,
            Schedule::Priority(_) => {
                let number = self.random.next();
                if number.is_multiple_of(4) {
                    1 + (number >> 8 & 3) as usize
                } else {
                    0
                }
            }
        }
    }

    /// Takes the next task, and returns it with its stream. With a `ticket` and the latest schedule it
    /// is a task without which the ticket's place is not reached.
    pub fn take(&mut self, ticket: Option<Ticket>) -> Option<(usize, W)> {
        if self.hangs() {
            return None;
        }
        let stream = match (self.schedule, ticket) {
            (Schedule::Latest, Some(ticket)) => self.needed(ticket),
            _ => self.highest(),
        }?;
        let task = self.queues[stream].tasks.pop_front()?;
        Some((stream, task.work))
    }

    /// Returns whether the first task of a stream can run.
    fn is_ready(&self, queue: &Queue<W>) -> bool {
        let first = queue.tasks.front().filter(|_| !queue.is_stalled);
        first.is_some_and(|task| task.after.is_none_or(|ticket| self.is_done(ticket)))
    }

    fn highest(&self) -> Option<usize> {
        let ready = self
            .queues
            .iter()
            .enumerate()
            .filter(|(_, q)| self.is_ready(q));
        ready
            .max_by_key(|(_, q)| q.priority)
            .map(|(stream, _)| stream)
    }

    /// Returns a stream whose first task is ready, and must run before the ticket's place is reached. A
    /// task waits for one that was enqueued before it, so this ends.
    fn needed(&self, ticket: Ticket) -> Option<usize> {
        let mut stream = ticket.stream;
        loop {
            match self.queues[stream].tasks.front()?.after {
                _ if self.queues[stream].is_stalled => return None,
                Some(ticket) if !self.is_done(ticket) => stream = ticket.stream,
                _ => return Some(stream),
            }
        }
    }
}
