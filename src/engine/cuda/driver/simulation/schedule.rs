//! When operations run, once they are enqueued.

use std::collections::VecDeque;

/// When operations run. All keep to the order that streams and events give; a program that is
/// ordered right gives the same bytes under each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// As soon as they are enqueued.
    Eager,
    /// When the host waits for them, or for one that waits for them.
    Latest,
    /// Streams have priorities, drawn from the seed. Now and then, and when the host waits, the
    /// first operation of the stream with the highest priority runs, of those that are ready.
    Priority(u64),
}

/// Pseudo-random numbers (`SplitMix64`).
#[derive(Clone, Debug)]
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A place in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) stream: usize,
    /// How many operations of the stream must have run.
    pub(super) time: u64,
}

/// Work in a stream.
pub(super) struct Task<W> {
    /// What must have run before, other than what is before it in the stream.
    pub(super) after: Option<Ticket>,
    pub(super) work: W,
}

/// The tasks of a stream that have not run.
pub(super) struct Queue<W> {
    tasks: VecDeque<Task<W>>,
    enqueued: u64,
    priority: u64,
}

impl<W> Queue<W> {
    /// How many tasks have run.
    fn done(&self) -> u64 {
        self.enqueued - self.tasks.len() as u64
    }

    /// How many tasks were enqueued.
    pub(super) fn enqueued(&self) -> u64 {
        self.enqueued
    }

    pub(super) fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }
}

/// Chooses what runs next.
pub(super) struct Scheduler<W> {
    schedule: Schedule,
    numbers: Numbers,
    queues: Vec<Queue<W>>,
}

impl<W> Scheduler<W> {
    pub(super) fn new(schedule: Schedule) -> Self {
        let seed = match schedule {
            Schedule::Priority(seed) => seed,
            Schedule::Eager | Schedule::Latest => 0,
        };
        Self {
            schedule,
            numbers: Numbers::new(seed),
            queues: Vec::new(),
        }
    }

    /// The number of a new stream.
    pub(super) fn create(&mut self) -> usize {
        self.queues.push(Queue {
            tasks: VecDeque::new(),
            enqueued: 0,
            priority: 0,
        });
        self.renew(self.queues.len() - 1);
        self.queues.len() - 1
    }

    /// Draw another priority for a stream.
    pub(super) fn renew(&mut self, stream: usize) {
        self.queues[stream].priority = self.numbers.next();
    }

    pub(super) fn queue(&self, stream: usize) -> &Queue<W> {
        &self.queues[stream]
    }

    pub(super) fn push(&mut self, stream: usize, task: Task<W>) {
        let queue = &mut self.queues[stream];
        queue.tasks.push_back(task);
        queue.enqueued += 1;
    }

    pub(super) fn is_done(&self, ticket: Ticket) -> bool {
        self.queues[ticket.stream].done() >= ticket.time
    }

    /// How many operations to run now that another one was enqueued.
    pub(super) fn steps(&mut self) -> usize {
        match self.schedule {
            Schedule::Eager => usize::MAX,
            Schedule::Latest => 0,
            Schedule::Priority(_) => {
                let number = self.numbers.next();
                if number.is_multiple_of(4) {
                    1 + (number >> 8 & 3) as usize
                } else {
                    0
                }
            }
        }
    }

    /// Take the next task, and say of which stream; it is needed for `ticket`, if there is one and
    /// the schedule is late.
    pub(super) fn take(&mut self, ticket: Option<Ticket>) -> Option<(usize, W)> {
        let stream = match (self.schedule, ticket) {
            (Schedule::Latest, Some(ticket)) => self.needed(ticket),
            _ => self.highest(),
        }?;
        let task = self.queues[stream].tasks.pop_front()?;
        Some((stream, task.work))
    }

    /// Whether the first task of a stream can run.
    fn is_ready(&self, queue: &Queue<W>) -> bool {
        let first = queue.tasks.front();
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

    /// A stream whose first task is ready, and must run before `ticket` is done. A wait is for
    /// something that was enqueued before it, so this ends.
    fn needed(&self, ticket: Ticket) -> Option<usize> {
        let mut stream = ticket.stream;
        loop {
            match self.queues[stream].tasks.front()?.after {
                Some(ticket) if !self.is_done(ticket) => stream = ticket.stream,
                _ => return Some(stream),
            }
        }
    }
}
