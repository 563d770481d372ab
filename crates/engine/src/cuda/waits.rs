//! The host's waits for a device. A wait asks the driver again and again, and has a limit.
//!
//! ```text
//! ask without a pause, for 20 µs
//! repeat
//!     sleep for 50 µs, and each time longer, up to 1 ms
//!     ask: it has happened, the wait is stopped, or the device is in quarantine: return
//!     no work of the application is awaited, and the process was not suspended: count the time
//!     the time that was counted has reached the limit
//!         sleep for a second, and ask again: it has still not happened
//!             the device is put in quarantine; return the error
//! ```
//!
//! The device's work may have to wait for work of the application, which may take any time
//! ([`LentMemory`]). The limit does not count this time. If the process sleeps for much longer than it
//! asked for, the process or the machine was suspended, and the device may have been, too.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::application::LentMemory;
use super::device::Device;
use super::driver::{DriverError, EventId, Fault, Site, StreamId};

/// The time for which a wait asks without a pause.
const SPIN: Duration = Duration::from_micros(20);
/// The first and the longest pause between two questions.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));
/// The time between the end of the limit and the last question.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// The most that a pause may exceed its time, unless the process was suspended.
const SUSPENDED: Duration = Duration::from_secs(1);

/// The place in the order of operations that the host waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Awaited {
    /// The last record of an event.
    Event(EventId),
    /// The end of all operations that are in a stream now.
    Stream(StreamId),
}

/// The time after which a wait fails, and the memory of applications whose work stops this time.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitLimit<'a> {
    pub(super) time: Duration,
    pub(super) lent: Option<&'a LentMemory>,
}

/// The time as a wait sees it.
trait Clock {
    /// Returns the time since some moment. It never decreases.
    fn now(&self) -> Duration;

    fn sleep(&self, time: Duration);
}

/// The clock of the system. It does not count the time for which the machine is suspended.
struct SystemClock(Instant);

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Asks `happened` until it returns true, or until `limit` has passed. Returns whether it returned true. The
/// time for which `stands_still` returns true does not count.
fn ask_until(
    clock: &impl Clock,
    limit: Duration,
    mut happened: impl FnMut() -> Result<bool, DriverError>,
    mut stands_still: impl FnMut() -> Result<bool, DriverError>,
) -> Result<bool, DriverError> {
    let begin = clock.now();
    loop {
        if happened()? {
            return Ok(true);
        }
        if clock.now().saturating_sub(begin) >= SPIN {
            break;
        }
        std::hint::spin_loop();
    }
    let (mut pause, longest) = PAUSES;
    let mut counted = Duration::ZERO;
    let mut still = stands_still()?;
    loop {
        let is_last = !still && counted >= limit;
        let asked = if is_last { SECOND_LOOK } else { pause };
        let before = clock.now();
        clock.sleep(asked);
        let slept = clock.now().saturating_sub(before);
        if happened()? {
            return Ok(true);
        }
        let was_still = std::mem::replace(&mut still, stands_still()?);
        let counts = !was_still && !still && slept <= asked + SUSPENDED;
        if counts && is_last {
            return Ok(false);
        }
        if counts {
            counted += slept;
        }
        pause = (pause + pause / 4).min(longest);
    }
}

impl Device {
    /// Blocks this thread until `awaited` is reached. The device's context is current on this thread.
    ///
    /// # Errors
    /// The errors of the driver. If the device has not reached it within `limit`, the error is
    /// [`Fault::Sticky`], and the device is in quarantine already: nothing that the device may still use is
    /// freed or used again.
    pub(super) fn wait(
        &self,
        awaited: Awaited,
        site: Site,
        limit: WaitLimit<'_>,
    ) -> Result<(), DriverError> {
        self.wait_unless(awaited, site, limit, &|| false).map(drop)
    }

    /// Blocks this thread like [`wait`](Self::wait), but not after `stop` has returned true. Returns whether
    /// `awaited` is reached.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub(super) fn wait_unless(
        &self,
        awaited: Awaited,
        site: Site,
        limit: WaitLimit<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Result<bool, DriverError> {
        self.check_usable()?;
        let driver = self.driver();
        if let Awaited::Stream(stream) = awaited {
            driver.mark(stream, site)?;
        }
        let is_stopped = Cell::new(false);
        let happened = || {
            let is_reached = match awaited {
                Awaited::Event(event) => driver.poll(event, site),
                Awaited::Stream(stream) => driver.poll_stream(stream, site),
            }?;
            is_stopped.set(!is_reached && stop());
            Ok(is_reached || is_stopped.get())
        };
        let stands_still = || {
            // Another wait may have found that the device hangs.
            self.check_usable()?;
            limit.lent.map_or(Ok(false), |lent| lent.is_awaited(driver))
        };
        let clock = SystemClock(Instant::now());
        match ask_until(&clock, limit.time, happened, stands_still) {
            Ok(false) => {}
            Ok(true) => return Ok(!is_stopped.get()),
            Err(error) if self.may_still_run() => {
                let lent = limit.lent.map(|lent| lent.describe(None));
                return Err(and_lent(error, lent));
            }
            Err(error) => return Err(error),
        }
        let lent = limit.lent.map(|lent| lent.describe(Some(driver)));
        let missed = DriverError {
            operation: format!("wait for a device ({})", site.0),
            device: Some(self.info().ordinal),
            fault: Fault::Sticky,
            reason: format!(
                "the device did not get there within {:?}: it hangs, or a kernel of another program takes longer, for which `Options::with_device_timeout` allows more time",
                limit.time
            ),
        };
        self.quarantine_hanging(&missed);
        Err(and_lent(missed, lent))
    }
}

/// Returns `error` with the description of memory that the device may still use.
fn and_lent(mut error: DriverError, lent: Option<String>) -> DriverError {
    error.reason += &lent.unwrap_or_default();
    error
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;

    /// A pause of a [`FakeClock`].
    #[derive(Clone, Debug)]
    struct Pause {
        asked: Duration,
        time: Range<Duration>,
    }

    impl Pause {
        fn took(&self) -> Duration {
            self.time.end.saturating_sub(self.time.start)
        }
    }

    /// A clock on which each question takes `step`, and some pauses take longer than asked.
    #[derive(Debug, Default)]
    struct FakeClock {
        now: Duration,
        step: Duration,
        /// The number of a pause, and the time by which it is longer.
        longer: Vec<(usize, Duration)>,
        pauses: Vec<Pause>,
    }

    impl Clock for RefCell<FakeClock> {
        fn now(&self) -> Duration {
            let mut clock = self.borrow_mut();
            let step = clock.step;
            clock.now += step;
            clock.now
        }

        fn sleep(&self, asked: Duration) {
            let mut clock = self.borrow_mut();
            let number = clock.pauses.len();
            let longer = clock.longer.iter().filter(|(at, _)| *at == number);
            let end = clock.now + asked + longer.map(|(_, more)| *more).sum::<Duration>();
            let time = clock.now..end;
            clock.pauses.push(Pause { asked, time });
            clock.now = end;
        }
    }

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A device, and an application.
    #[derive(Clone, Debug)]
    struct Case {
        /// The time of the event; `None` if it never happens.
        happens: Option<Duration>,
        limit: Duration,
        /// The time during which the application's work is awaited.
        still: Range<Duration>,
        longer: Vec<(usize, Duration)>,
    }

    impl Case {
        /// Returns whether the event happened in time, and the clock.
        fn run(&self) -> (bool, FakeClock) {
            let clock = RefCell::new(FakeClock {
                step: Duration::from_nanos(700),
                longer: self.longer.clone(),
                ..FakeClock::default()
            });
            let happened = || Ok(self.happens.is_some_and(|time| time <= clock.borrow().now));
            let stands_still = || Ok(self.still.contains(&clock.borrow().now));
            let done = ask_until(&clock, self.limit, happened, stands_still).expect("no fault");
            (done, clock.into_inner())
        }

        /// Returns whether the time of a pause counts.
        fn counts(&self, pause: &Pause) -> bool {
            let still = |time: Duration| self.still.contains(&time);
            let suspended = pause.took() > pause.asked + SUSPENDED;
            !still(pause.time.start) && !still(pause.time.end) && !suspended
        }
    }

    fn cases() -> impl Strategy<Value = Case> {
        let time = |most: u64| (0..most).prop_map(Duration::from_micros);
        let longer = prop::collection::vec((0..40_usize, time(5_000_000)), 0..4);
        (
            prop::option::of(time(20_000_000)),
            time(3_000_000),
            (time(2_000_000), time(4_000_000)),
            longer,
        )
            .prop_map(|(happens, limit, (begin, len), longer)| Case {
                happens,
                limit,
                still: begin..begin + len,
                longer,
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// The pauses that were taken are added up again, one by one.
        #[test]
        fn a_wait_ends_with_the_event_or_two_looks_after_the_limit(case in cases()) {
            let (done, clock) = case.run();
            prop_assert_eq!(done, case.happens.is_some_and(|time| time <= clock.now));
            let regular: Duration = (clock.pauses.iter())
                .filter(|pause| case.counts(pause) && pause.asked <= MILLISECOND)
                .map(Pause::took)
                .sum();
            if done {
                // No pause but a second look delays the answer by more than a millisecond.
                let last = clock.pauses.last();
                prop_assert!(last.is_none_or(|last| Some(last.time.end) >= case.happens));
                // The event may happen while the question before the last pause is asked.
                let asked = case.happens.map(|happens| happens + clock.step * 4);
                prop_assert!(last.is_none_or(|last| Some(last.time.start) <= asked));
            } else {
                let last = clock.pauses.last().expect("a second look");
                prop_assert_eq!(last.asked, SECOND_LOOK);
                prop_assert!(case.counts(last));
                let questions = clock.step * 4 * u32::try_from(clock.pauses.len()).expect("few");
                prop_assert!(regular + questions >= case.limit);
            }
            // The pause that reaches the limit, and those that may or may not be suspensions.
            let at_most = SUSPENDED * (2 + u32::try_from(case.longer.len()).expect("few"));
            prop_assert!(regular < case.limit + at_most);
        }
    }

    #[test]
    fn pauses_begin_short_and_grow_to_a_millisecond() {
        let case = Case {
            happens: None,
            limit: Duration::from_mins(1),
            still: Duration::ZERO..Duration::ZERO,
            longer: Vec::new(),
        };
        let (done, clock) = case.run();
        assert!(!done);
        let (second, regular) = clock.pauses.split_last().expect("pauses");
        assert_eq!(second.asked, Duration::from_secs(1));
        assert!(regular.is_sorted_by_key(|pause| pause.asked));
        assert_eq!(regular[0].asked, Duration::from_micros(50));
        assert_eq!(regular[regular.len() - 1].asked, MILLISECOND);
        assert!(clock.now < Duration::from_secs(62), "{:?}", clock.now);
    }

    /// The process is stopped for an hour in each of the first looks after the limit.
    #[test]
    fn a_suspended_process_does_not_miss_its_limit() {
        let hour = Duration::from_hours(1);
        let mut case = Case {
            happens: Some(hour * 3 + MILLISECOND * 50),
            limit: Duration::ZERO,
            still: Duration::ZERO..Duration::ZERO,
            longer: (0..3).map(|pause| (pause, hour)).collect(),
        };
        assert!(case.run().0);
        case.happens = None;
        let (done, clock) = case.run();
        assert!(!done);
        assert_eq!(clock.pauses.len(), 4);
    }
}
