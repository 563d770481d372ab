//! Coexistence with stream captures of the application.
//!
//! While any thread captures a stream in the driver's default mode, the driver refuses potentially
//! unsafe calls on every thread: allocations and queries of events, for example. Such a call also
//! invalidates the capture. This crate's streams are never captured. So between `enter` and `leave` a thread
//! is in the relaxed mode, in which these calls are legal.

use std::cell::Cell;

use cudarc::driver::sys::CUstreamCaptureMode;

use super::codes::SUCCESS;
use super::functions::{Code, Functions};

/// A `CUstreamCaptureMode` as a number, since a newer driver may have further modes.
type Mode = u32;

const _: () = assert!(size_of::<CUstreamCaptureMode>() == size_of::<Mode>());

const RELAXED: Mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as Mode;

/// The number of this thread's nested `enter` calls, and the thread's capture mode before the first call. The
/// mode is `None` if the driver did not report it.
type Entered = (usize, Option<Mode>);

thread_local! {
    static ENTERED: Cell<Entered> = const { Cell::new((0, None)) };
}

/// Switches this thread to the relaxed capture mode until [`restore`].
pub(super) fn relax(functions: &Functions) {
    let exchange = |mode| exchange(functions, mode);
    ENTERED.set(entered(ENTERED.get(), exchange));
}

/// Undoes the last [`relax`] of this thread.
pub(super) fn restore(functions: &Functions) {
    let exchange = |mode| exchange(functions, mode);
    ENTERED.set(left(ENTERED.get(), exchange));
}

/// Sets the thread's capture mode, and returns the mode before; `None` if the driver refuses. A failure is no
/// error, because it matters only while the application captures a stream.
fn exchange(functions: &Functions, mut mode: Mode) -> Option<Mode> {
    let pointer = (&raw mut mode).cast();
    // SAFETY: the function reads a mode that the driver knows or has returned, and writes the mode before.
    // Both are numbers of the enumeration's size, and are never used as the enumeration.
    let code: Code = unsafe { (functions.cuThreadExchangeStreamCaptureMode)(pointer) };
    (code == SUCCESS).then_some(mode)
}

fn entered((times, mode): Entered, exchange: impl Fn(Mode) -> Option<Mode>) -> Entered {
    let mode = if times == 0 { exchange(RELAXED) } else { mode };
    (times + 1, mode)
}

fn left((times, mode): Entered, exchange: impl Fn(Mode) -> Option<Mode>) -> Entered {
    match (times, mode) {
        (0, _) => (0, None),
        (1, Some(mode)) => {
            exchange(mode);
            (0, None)
        }
        (times, mode) => (times - 1, mode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_of_the_application_comes_back_with_the_last_leave() {
        let current = Cell::new(1);
        let exchange = |mode| Some(current.replace(mode));
        let mut state = (0, None);
        for _ in 0..3 {
            state = entered(state, exchange);
            assert_eq!(current.get(), RELAXED);
        }
        for _ in 0..2 {
            state = left(state, exchange);
            assert_eq!(current.get(), RELAXED);
        }
        state = left(state, exchange);
        assert_eq!((current.get(), state), (1, (0, None)));
        assert_eq!(left(state, exchange), (0, None));
        assert_eq!(current.get(), 1);
    }

    #[test]
    fn a_mode_that_was_not_told_is_not_restored() {
        let state = entered((0, None), |_| None);
        assert_eq!(state, (1, None));
        let state = left(state, |mode| panic!("set to {mode}"));
        assert_eq!(state, (0, None));
    }
}
