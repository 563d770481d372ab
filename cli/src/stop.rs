//! Handles Ctrl-C, and the signals that ask a process to end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use zarrs_cuda_convert::Failure;

use crate::exit::Exit;

static STOP: AtomicBool = AtomicBool::new(false);
/// The number of guards that exist. There may be several, because a subcommand may call another one.
static GUARDS: AtomicUsize = AtomicUsize::new(0);

/// Handles Ctrl-C from now on. While no [`Guard`] exists, Ctrl-C ends the process at once.
pub(crate) fn listen() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        let is_first = !STOP.swap(true, Ordering::Relaxed);
        if !is_first || GUARDS.load(Ordering::Relaxed) == 0 {
            tell!("\ninterrupted");
            std::process::exit(i32::from(Exit::Interrupted.code()));
        }
        tell!("\nstopping after what is under way (Ctrl-C again: at once)");
    })
    .map_err(Failure::to("listen for Ctrl-C"))
}

/// Returns a guard. While it exists, Ctrl-C makes [`is_asked`] true, and only a second Ctrl-C ends the
/// process.
pub(crate) fn wait_for_me() -> Guard {
    GUARDS.fetch_add(1, Ordering::Relaxed);
    Guard(())
}

/// A value that exists while a subcommand calls [`is_asked`] now and then.
pub(crate) struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        GUARDS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether the user asked the command to stop.
pub(crate) fn is_asked() -> bool {
    STOP.load(Ordering::Relaxed)
}
