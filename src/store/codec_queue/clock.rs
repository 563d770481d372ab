//! Wakes awaited encoders that have waited for their limit, because there may be no runtime that has a clock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::thread;
use std::time::Instant;

use super::{Line, Process};

/// Makes sure that a thread watches the alarms, as long as there are any. Returns `false` if no thread can be
/// started.
pub(super) fn runs(process: &'static Process, line: &mut Line) -> bool {
    if !line.clock_runs {
        let name = "zarrs_cuda turns".to_owned();
        let spawned = thread::Builder::new().name(name).spawn(|| watch(process));
        line.clock_runs = spawned.is_ok();
    }
    line.clock_runs
}

fn watch(process: &Process) {
    let mut line = process.line();
    // An encoder takes its place in the line before it releases the lock, so its alarm is there.
    while let Some(next) = line.waiting.iter().filter_map(|one| one.alarm).min() {
        let now = Instant::now();
        if next <= now {
            let mut late = Vec::new();
            for one in &mut line.waiting {
                if one.alarm.is_some_and(|alarm| alarm <= now) {
                    one.alarm = None;
                    late.push(one.waker.clone());
                }
            }
            // A waker is the application's code. It is called without the lock, and if it panics, the clock
            // goes on.
            drop(line);
            for waker in &late {
                let _panic = catch_unwind(AssertUnwindSafe(|| waker.wake_by_ref()));
            }
            line = process.line();
            continue;
        }
        let waited = process.alarms.wait_timeout(line, next - now);
        line = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    line.clock_runs = false;
}
