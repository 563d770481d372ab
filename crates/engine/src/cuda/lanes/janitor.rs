//! The thread that frees the lanes, the slabs and the spare memory that were idle for too long.

use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Devices;
use super::pool::take_long_idle;

/// The sleep of the janitor, the thread that frees idle lanes, until it has to look for lanes.
#[derive(Debug, Default)]
pub(super) struct JanitorRest {
    alarm: Mutex<JanitorAlarm>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct JanitorAlarm {
    /// Whether the [`Devices`] were dropped.
    gone: bool,
    next: Option<Instant>,
}

impl JanitorRest {
    fn lock(&self) -> MutexGuard<'_, JanitorAlarm> {
        self.alarm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the janitor at `time`, unless it wakes earlier.
    fn wake_at(&self, time: Instant) {
        let mut alarm = self.lock();
        if alarm.next.is_none_or(|next| time < next) {
            alarm.next = Some(time);
            self.changed.notify_all();
        }
    }

    pub(super) fn wake_for_ever(&self) {
        self.lock().gone = true;
        self.changed.notify_all();
    }

    /// Blocks until the time of the alarm, or until the [`Devices`] are dropped.
    pub(super) fn wait(&self) {
        let mut alarm = self.lock();
        while !alarm.gone {
            let now = Instant::now();
            let time = match alarm.next {
                Some(next) if next <= now => {
                    alarm.next = None;
                    return;
                }
                Some(next) => next - now,
                None => Duration::from_mins(1),
            };
            let waited = self.changed.wait_timeout(alarm, time);
            alarm = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Devices {
    /// Starts the janitor, which frees idle lanes, unless it is running already, and lets it look for idle
    /// lanes at `time`. The caller holds the lock of `state`.
    pub(super) fn call_janitor(&self, time: Instant) {
        self.rest.wake_at(time);
        if self.janitor.swap(true, Ordering::Relaxed) {
            return;
        }
        let (devices, rest) = (self.this.clone(), self.rest.clone());
        let janitor = std::thread::Builder::new()
            .name("zarrs_cuda idle lanes".to_string())
            .spawn(move || {
                loop {
                    rest.wait();
                    let Some(devices) = devices.upgrade() else {
                        return;
                    };
                    if !devices.give_up_long_idle() {
                        return;
                    }
                }
            });
        if let Err(error) = janitor {
            // Without the thread, idle lanes are freed at the next request for a lane.
            tracing::debug!(%error, "no thread to give up idle lanes");
            self.janitor.store(false, Ordering::Relaxed);
        }
    }

    /// Frees the lanes, the slabs and the spare memory that were idle for too long. Returns whether more has to be freed later;
    /// otherwise the janitor ends.
    fn give_up_long_idle(&self) -> bool {
        let mut state = self.lock();
        let long_idle = take_long_idle(&mut state);
        let now = Instant::now();
        self.retire_spare(Some(now));
        let idle = state.iter().flat_map(|of_device| &of_device.idle);
        let lanes = idle.filter_map(|idle| idle.until);
        let usable = self
            .devices
            .iter()
            .filter(|device| device.unusable().is_none());
        let beside = usable.filter_map(|device| {
            let due = [device.retired().next_due(), device.slabs().next_due()];
            due.into_iter().flatten().filter(|due| *due > now).min()
        });
        let next = lanes.chain(beside).min();
        if let Some(next) = next {
            self.rest.wake_at(next);
        }
        self.janitor.store(next.is_some(), Ordering::Relaxed);
        drop(state);
        self.free_slabs(Some(now));
        self.free(long_idle);
        next.is_some()
    }
}
