//! Ctrl-C, and the signals that ask a process to end.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Exit, Failure};

static STOP: AtomicBool = AtomicBool::new(false);
static IS_AWAITED: AtomicBool = AtomicBool::new(false);

/// Listens for Ctrl-C. Until a [`Guard`] exists, it ends the process at once.
pub(crate) fn listen() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        let is_first = !STOP.swap(true, Ordering::Relaxed);
        if !is_first || !IS_AWAITED.load(Ordering::Relaxed) {
            eprintln!("\ninterrupted");
            std::process::exit(i32::from(Exit::Interrupted.code()));
        }
        eprintln!("\nstopping after what is under way (Ctrl-C again: at once)");
    })
    .map_err(|error| Failure::failed(format!("cannot listen for Ctrl-C: {error}")))
}

/// From now on Ctrl-C only makes [`is_asked`] true, and a second one ends the process.
pub(crate) fn wait_for_me() -> Guard {
    IS_AWAITED.store(true, Ordering::Relaxed);
    Guard(())
}

/// The time in which a subcommand asks [`is_asked`] now and then.
pub(crate) struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        IS_AWAITED.store(false, Ordering::Relaxed);
    }
}

/// Whether the user asked to stop.
pub(crate) fn is_asked() -> bool {
    STOP.load(Ordering::Relaxed)
}
