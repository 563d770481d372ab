//! The operations that a simulated device was asked for, in order.
//!
//! A step is a line of JSON: the thread, the processor time that the host took since the thread's
//! step before (its own, and the time of all other threads of the process), and the operation. Time
//! within calls of the driver does not count: the kernels' emulator takes it.

use std::collections::HashMap;
use std::thread::{self, ThreadId};
use std::time::Duration;

use serde_json::{Value, json};
use zarrs_cuda_emulator::{Kernel, Report};

/// The processor time of a thread, and of its process.
#[derive(Clone, Copy, Default)]
struct Times {
    thread: Duration,
    process: Duration,
}

impl Times {
    #[cfg(target_os = "linux")]
    fn now() -> Self {
        let of = |clock| {
            let mut time = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: the structure is valid for writes. A clock that cannot be read stays 0.
            unsafe { libc::clock_gettime(clock, &raw mut time) };
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            Duration::from_secs(seconds)
                + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
        };
        Self {
            thread: of(libc::CLOCK_THREAD_CPUTIME_ID),
            process: of(libc::CLOCK_PROCESS_CPUTIME_ID),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn now() -> Self {
        Self::default()
    }
}

#[derive(Clone, Copy, Default)]
struct Thread {
    number: usize,
    /// When the thread's last call ended.
    left: Times,
    /// Since the thread's last step.
    own: Duration,
    others: Duration,
}

/// The steps so far.
#[derive(Default)]
pub(super) struct Trace {
    steps: Vec<Value>,
    threads: HashMap<ThreadId, Thread>,
    /// The bytes, instructions and atomics of the kernel that ran last.
    kernel: Value,
}

impl Trace {
    fn thread(&mut self) -> &mut Thread {
        let number = self.threads.len();
        let id = thread::current().id();
        self.threads.entry(id).or_insert_with(|| Thread {
            number,
            left: Times::now(),
            ..Thread::default()
        })
    }

    /// This thread calls the driver.
    pub(super) fn enter(&mut self) {
        let thread = self.thread();
        let now = Times::now();
        let own = now.thread.saturating_sub(thread.left.thread);
        thread.own += own;
        let process = now.process.saturating_sub(thread.left.process);
        thread.others += process.saturating_sub(own);
    }

    /// The call ends.
    pub(super) fn leave(&mut self) {
        self.thread().left = Times::now();
    }

    /// Adds a step of this thread: the members of the object `operation`.
    pub(super) fn add(&mut self, mut operation: Value) {
        let kernel = self.kernel.take();
        let thread = self.thread();
        operation["thread"] = thread.number.into();
        operation["own_ns"] = json!(nanoseconds(thread.own));
        operation["others_ns"] = json!(nanoseconds(thread.others));
        (thread.own, thread.others) = (Duration::ZERO, Duration::ZERO);
        if operation["operation"] == "kernel" {
            operation["took"] = kernel;
        }
        self.steps.push(operation);
    }

    /// A kernel ran, with its sectors counted.
    pub(super) fn ran(&mut self, kernel: &Kernel, report: &Report) {
        let sectors: u64 = report.accesses.iter().map(|access| access.sectors).sum();
        let atomics: u64 = std::iter::zip(kernel.instructions(), &report.executed)
            .filter(|((_, text), _)| text.contains("atom."))
            .map(|(_, times)| times)
            .sum();
        self.kernel = json!({
            "bytes": 32 * sectors,
            "instructions": report.instructions(),
            "atomics": atomics,
        });
    }

    pub(super) fn lines(&self) -> String {
        let lines: Vec<_> = self.steps.iter().map(Value::to_string).collect();
        lines.join("\n")
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
