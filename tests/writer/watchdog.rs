//! Ends the process if a test hangs.

use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Ends the process with a message, unless it is dropped in time.
#[must_use]
pub(crate) struct Watchdog {
    _done: Sender<()>,
}

/// Ends the process after minutes. This covers tests without a watchdog of their own.
pub(crate) fn of_the_process() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| std::mem::forget(within(300, "the process")));
}

/// Ends the process unless `what` is done within this many seconds.
pub(crate) fn within(seconds: u64, what: &str) -> Watchdog {
    let (done, waiting) = channel::<()>();
    let what = what.to_owned();
    std::thread::spawn(move || {
        if waiting.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{what} is not over after {seconds} s: it hangs");
            std::process::abort();
        }
    });
    Watchdog { _done: done }
}

/// Waits until `condition` holds. Fails if that takes long.
#[track_caller]
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "never {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
