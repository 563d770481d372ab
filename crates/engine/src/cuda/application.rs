//! The memory of an application that a lane reads on the device, and the application's work that the lane
//! waits for.
//!
//! The application may enqueue work that takes any time, and then lend the memory that this work writes. The
//! host's waits for the lane do not count this time ([`waits`](super::waits)). If the device does not finish
//! in time, the errors name the memory: the device may still read it.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::Device;
use super::driver::{Driver, DriverError, EventId};
use crate::contract::EngineError;

/// The number of entries from which on entries that are complete are dropped at once.
const MANY: usize = 64;
/// The most ranges of memory that an error names.
const NAMED: usize = 8;

/// Checks that work may be enqueued in the application's `stream`. The device's context is current on this thread.
///
/// # Errors
/// [`EngineError::Unsuitable`] with `refusal` if the stream is being captured into a graph; the errors of the driver.
///
/// # Safety
/// The stream belongs to the device's primary context, and is not destroyed during the call.
#[allow(unsafe_code)]
pub(super) unsafe fn check_not_captured(
    device: &Device,
    stream: u64,
    refusal: &str,
) -> Result<(), EngineError> {
    // SAFETY: this function has the same requirements, which its caller keeps.
    let captured = unsafe { device.driver().is_captured(stream) };
    if device.watch(captured)? {
        return Err(EngineError::Unsuitable(refusal.to_string()));
    }
    Ok(())
}

/// Memory that an application has lent to a lane.
#[derive(Debug)]
struct Lent {
    /// The addresses of the bytes on the device.
    bytes: Range<u64>,
    /// The event after which the application has made the bytes; `None` after it has happened.
    made: Option<EventId>,
    /// The event after which the lane has read the bytes; `None` until it is recorded.
    taken: Option<EventId>,
    /// Whether the application may still wait for the event `taken`.
    held: bool,
}

#[derive(Debug, Default)]
struct LentList {
    /// The memory that the device may still read, in the order in which the lane reads it.
    lent: VecDeque<Lent>,
    /// The events that no entry and no application uses.
    free: Vec<EventId>,
    /// The memory that is lent to lanes for which this lane waits.
    above: Vec<Arc<LentMemory>>,
}

/// The memory that applications have lent to a lane.
#[derive(Debug)]
pub(super) struct LentMemory {
    list: Mutex<LentList>,
}

impl LentMemory {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            list: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, LentList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event that nothing uses.
    pub(super) fn free_event(&self) -> Option<EventId> {
        self.lock().free.pop()
    }

    /// Notes that the lane will read `bytes`, which the application has made when the event `made` happens.
    /// The event belongs to the entry from now on.
    pub(super) fn lend(&self, bytes: Range<u64>, made: EventId) {
        self.lock().lent.push_back(Lent {
            bytes,
            made: Some(made),
            taken: None,
            held: true,
        });
    }

    /// Notes that the lane has read `bytes`, which were lent last, when the event `taken` happens.
    pub(super) fn read_at(&self, bytes: &Range<u64>, taken: EventId, driver: &dyn Driver) {
        let mut list = self.lock();
        let mut last = list.lent.iter_mut().rev();
        if let Some(lent) = last.find(|lent| lent.taken.is_none() && lent.bytes == *bytes) {
            lent.taken = Some(taken);
        }
        if list.lent.len() >= MANY {
            list.forget_taken(driver);
        }
    }

    /// Notes that the event `taken` has happened.
    pub(super) fn was_read(&self, taken: EventId) {
        let mut list = self.lock();
        if let Some(at) = list.position(taken) {
            list.forget(at + 1);
        }
    }

    /// Notes that the application will not wait for the event `taken` any more.
    pub(super) fn let_go(&self, taken: EventId) {
        let mut list = self.lock();
        match list.position(taken) {
            Some(at) => list.lent[at].held = false,
            None => list.free.push(taken),
        }
    }

    /// Notes that nothing is in flight in the lane.
    pub(super) fn drained(&self) {
        let mut list = self.lock();
        let all = list.lent.len();
        list.forget(all);
    }

    /// Notes that the events of the lane are about to be destroyed.
    pub(super) fn close(&self) {
        *self.lock() = LentList::default();
    }

    /// Notes that the lane waits for a lane to which `above` is lent.
    pub(super) fn wait_for(&self, above: &Arc<Self>) {
        let known = &mut self.lock().above;
        if !known.iter().any(|known| Arc::ptr_eq(known, above)) {
            known.push(above.clone());
        }
    }

    /// Returns whether the lane waits for work of an application that is not complete. The device's context
    /// is current on this thread.
    ///
    /// The lane reads lent memory in order. If it has not read memory that the application has made, the lane
    /// is at work, and the application may be waiting for the lane.
    pub(super) fn is_awaited(&self, driver: &dyn Driver) -> Result<bool, DriverError> {
        let mut list = self.lock();
        list.forget_taken(driver);
        let LentList { lent, free, above } = &mut *list;
        if let Some(first) = lent.front_mut()
            && let Some(made) = first.made
        {
            if !driver.query_event(made)? {
                return Ok(true);
            }
            first.made = None;
            free.push(made);
        }
        for above in above {
            if above.is_awaited(driver)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns a description of the memory that the device may still read; empty if there is none. Asks
    /// `driver`, if there is one, what the device has read.
    pub(super) fn describe(&self, driver: Option<&dyn Driver>) -> String {
        let mut list = self.lock();
        if let Some(driver) = driver {
            list.forget_taken(driver);
        }
        describe(list.lent.iter().map(|lent| lent.bytes.clone()).collect())
    }
}

impl LentList {
    /// Returns the position of the memory that was read when the event `taken` happens.
    fn position(&self, taken: EventId) -> Option<usize> {
        (self.lent.iter()).position(|lent| lent.taken == Some(taken))
    }

    /// Drops the first `count` entries, which the device has read.
    fn forget(&mut self, count: usize) {
        for Lent {
            made, taken, held, ..
        } in self.lent.drain(..count)
        {
            self.free.extend(made);
            self.free.extend(taken.filter(|_| !held));
        }
    }

    /// Drops the first entries as long as the device has read them.
    fn forget_taken(&mut self, driver: &dyn Driver) {
        while let Some(taken) = self.lent.front().and_then(|first| first.taken)
            && driver.query_event(taken).unwrap_or(false)
        {
            self.forget(1);
        }
    }
}

/// Returns a description of ranges of device memory, as the end of an error's text.
fn describe(mut ranges: Vec<Range<u64>>) -> String {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    if merged.is_empty() {
        return String::new();
    }
    let mut text = String::from("; the device may still read memory of the application:");
    for (number, range) in merged.iter().take(NAMED).enumerate() {
        let separator = if number == 0 { "" } else { "," };
        let _ = write!(
            text,
            "{separator} {} bytes at {:#x}",
            range.end - range.start,
            range.start
        );
    }
    if merged.len() > NAMED {
        let _ = write!(text, ", and {} other ranges", merged.len() - NAMED);
    }
    text.push_str(": do not write, reuse or free it before the process ends");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_merged_and_many_are_counted() {
        assert_eq!(describe(Vec::new()), "");
        let text = describe(vec![64..128, 0..64, 32..48, 256..260]);
        assert!(
            text.contains(": 128 bytes at 0x0, 4 bytes at 0x100: do not"),
            "{text}"
        );
        let text = describe((0..10).map(|at| at * 100..at * 100 + 1).collect());
        assert!(
            text.contains("1 bytes at 0x2bc, and 2 other ranges"),
            "{text}"
        );
    }
}
