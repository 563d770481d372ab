//! Stream captures of the application.
//!
//! While any thread captures a stream in the driver's default mode, what could end up in a graph by
//! mistake is refused on every thread, and invalidates the capture: allocations and queries of
//! events, ours among them. None of our streams is ever captured, so between `enter` and `leave` a
//! thread says that it knows what it does.

use std::cell::Cell;

use cudarc::driver::sys::CUstreamCaptureMode;

use super::codes::SUCCESS;
use super::functions::{Code, Functions};

/// A `CUstreamCaptureMode`; as a number, since a newer driver may know others.
type Mode = u32;

const _: () = assert!(size_of::<CUstreamCaptureMode>() == size_of::<Mode>());

const RELAXED: Mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as Mode;

/// How often this thread has entered, and the mode that it had before the first time; `None` if the
/// driver did not tell.
type Entered = (usize, Option<Mode>);

thread_local! {
    static ENTERED: Cell<Entered> = const { Cell::new((0, None)) };
}

/// Nothing of ours is part of a capture, on this thread, until [`restore`].
pub(super) fn relax(functions: &Functions) {
    let exchange = |mode| exchange(functions, mode);
    ENTERED.set(entered(ENTERED.get(), exchange));
}

/// Undo the last [`relax`] of this thread.
pub(super) fn restore(functions: &Functions) {
    let exchange = |mode| exchange(functions, mode);
    ENTERED.set(left(ENTERED.get(), exchange));
}

/// Set the mode, and return what it was. What fails is not worth an error: it matters only while
/// the application captures.
fn exchange(functions: &Functions, mut mode: Mode) -> Option<Mode> {
    let pointer = (&raw mut mode).cast();
    // SAFETY: reads a mode that the driver knows, or gave, and writes another: a number of the same
    // size, and no value of the enumeration before it is looked at.
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
