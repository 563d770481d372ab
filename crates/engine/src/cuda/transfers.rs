//! Rings of pinned memory, through which bytes are copied to the device and from the device.
//!
//! | edge | producer | consumer | guards |
//! |---|---|---|---|
//! | [`UPLOADED`] | copy to the device (`up`) | copiers, through [`UPLOADED_HOST`] | a place of the ring |
//! | [`DOWNLOADED`] | copy from the device (`down`) | copiers, through [`DOWNLOADED_HOST`] | a place of the ring |

use std::collections::VecDeque;

use super::arena::Region;
use super::check_progress::ring_uses;
use super::counters::TimedStage;
use super::driver::{Access, DeviceSpan, DriverError, EventId, PinnedSpan, Site, Span, StreamId};
use super::session::{Session, Timed};

/// The record of the event after which the bytes in a place of the ring are on the device, so that the place
/// may be written again.
const UPLOADED: Site = Site("record: bytes were copied to the device");
const UPLOADED_HOST: Site = Site("synchronise: pinned memory before it is written again");
/// The record of the event after which bytes from the device are in a place of the ring.
const DOWNLOADED: Site = Site("record: bytes were copied from the device");
const DOWNLOADED_HOST: Site = Site("synchronise: bytes from the device before they are read");

/// A copy between pinned memory and the device that is in flight.
#[derive(Debug)]
struct Copying {
    /// The event at the end of the copy.
    done: EventId,
    timed: Vec<Timed>,
}

impl Copying {
    /// Enqueues a copy in `stream`, and records an event at its end, at the site `site`.
    fn start(
        session: &Session<'_>,
        stream: StreamId,
        (stage, site): (TimedStage, Site),
        (from, to): (Span, Span),
    ) -> Result<Self, DriverError> {
        let mut timed = Vec::new();
        session.run(stream, stage, &mut timed, || {
            session.lane.copy(stream, from, to)
        })?;
        let done = session.record(stream, site)?;
        Ok(Self { done, timed })
    }

    /// Adds the times of a complete copy to the metrics, and gives its events back.
    fn finish(self, session: &Session<'_>) -> Result<(), DriverError> {
        session.events.give(self.done);
        session.finish_timed(self.timed)
    }
}

/// The ring of copies to the device.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    copying: VecDeque<Copying>,
    /// The number of places that were reserved, and the number of copies that were started from them.
    reserved: usize,
    started: usize,
}

/// A place of the ring that the host fills.
#[derive(Debug)]
pub(super) struct Staging {
    /// The number of the place in the ring.
    pub(super) place: usize,
    /// The address of the first byte of the place.
    pub(super) start: *mut u8,
    span: PinnedSpan,
}

impl Staging {
    /// Declares that the host has written the place until now.
    pub(super) fn declare(&self, session: &Session<'_>) -> Result<(), DriverError> {
        session.lane.driver.host_access(self.span, Access::Write)
    }

    /// Returns the same place, of which only the first `len` bytes are copied to the device.
    pub(super) fn cut(mut self, len: usize) -> Self {
        self.span = self.span.part(0..len);
        self
    }

    /// Returns the number of bytes of the place that are copied to the device.
    pub(super) fn len(&self) -> usize {
        self.span.len
    }
}

impl Uploads {
    /// Returns how often each place of the ring was used.
    pub(super) fn uses(&self, session: &Session<'_>) -> Vec<u32> {
        ring_uses(self.started, session.sizing.staging_in.len())
    }

    /// Returns whether [`reserve`](Self::reserve) would wait for the device.
    pub(super) fn would_wait(&self, session: &Session<'_>) -> Result<bool, DriverError> {
        match self.copying.front() {
            Some(oldest) if self.is_full(session) => {
                Ok(!session.lane.driver.query_event(oldest.done)?)
            }
            _ => Ok(false),
        }
    }

    /// Returns whether all places are reserved or being copied.
    fn is_full(&self, session: &Session<'_>) -> bool {
        let waiting = self.reserved - self.started;
        self.copying.len() + waiting >= session.sizing.staging_in.len()
    }

    /// Reserves the next place of the ring for `len` bytes. Blocks until the host may write them.
    pub(super) fn reserve(
        &mut self,
        session: &Session<'_>,
        len: usize,
    ) -> Result<Staging, DriverError> {
        let lane = session.lane;
        let ring = &session.sizing.staging_in;
        if self.is_full(session)
            && let Some(oldest) = self.copying.pop_front()
        {
            lane.synchronize(oldest.done, UPLOADED_HOST)?;
            oldest.finish(session)?;
        }
        let place = self.reserved % ring.len();
        let span = lane.pinned_in(ring[place].part(0..len));
        let start = lane.write(span)?;
        self.reserved += 1;
        Ok(Staging { place, start, span })
    }

    /// Enqueues the copy of a place to the device. Places are copied in the order in which they were
    /// reserved. Returns the event at the end of the copy. The event stays valid until the next copy from the
    /// same place of the ring.
    pub(super) fn start(
        &mut self,
        session: &Session<'_>,
        from: &Staging,
        to: DeviceSpan,
    ) -> Result<EventId, DriverError> {
        let copying = Copying::start(
            session,
            session.lane.up,
            (TimedStage::ToDevice, UPLOADED),
            (Span::Pinned(from.span), Span::Device(to)),
        )?;
        session.counters.add_to_device(from.len());
        let done = copying.done;
        self.copying.push_back(copying);
        self.started += 1;
        Ok(done)
    }

    /// Adds the times of all copies to the metrics. The caller knows that all copies are complete.
    pub(super) fn finish(&mut self, session: &Session<'_>) -> Result<(), DriverError> {
        self.copying
            .drain(..)
            .try_for_each(|copying| copying.finish(session))
    }
}

/// The ring of copies from the device. `T` is the place to which the bytes of a copy are copied afterwards.
#[derive(Debug)]
pub(super) struct Downloads<T> {
    copying: VecDeque<Download<T>>,
    started: usize,
}

/// A copy from the device, in flight or complete.
#[derive(Debug)]
pub(super) struct Download<T> {
    copying: Copying,
    place: Region,
    pub(super) to: T,
}

impl<T> Default for Downloads<T> {
    fn default() -> Self {
        Self {
            copying: VecDeque::new(),
            started: 0,
        }
    }
}

impl<T> Downloads<T> {
    /// Returns how often each place of the ring was used.
    pub(super) fn uses(&self, session: &Session<'_>) -> Vec<u32> {
        ring_uses(self.started, session.sizing.staging_out.len())
    }

    /// Returns whether no copy is in the ring.
    pub(super) fn is_empty(&self) -> bool {
        self.copying.is_empty()
    }

    /// Returns whether no place of the ring is free.
    pub(super) fn is_full(&self, session: &Session<'_>) -> bool {
        self.copying.len() == session.sizing.staging_out.len()
    }

    /// Returns the number of bytes of one place of the ring.
    pub(super) fn most(session: &Session<'_>) -> usize {
        session.sizing.staging_out[0].len
    }

    /// Enqueues the copy of `from` to a free place of the ring. `from` is device memory of at most
    /// [`most`](Self::most) bytes.
    pub(super) fn start(
        &mut self,
        session: &Session<'_>,
        from: Region,
        to: T,
    ) -> Result<(), DriverError> {
        let lane = session.lane;
        let ring = &session.sizing.staging_out;
        let place = ring[self.started % ring.len()].part(0..from.len);
        let (from, pinned) = (lane.device(from), lane.pinned_out(place));
        let copying = Copying::start(
            session,
            lane.down,
            (TimedStage::FromDevice, DOWNLOADED),
            (Span::Device(from), Span::Pinned(pinned)),
        )?;
        session.counters.add_from_device(place.len);
        self.copying.push_back(Download { copying, place, to });
        self.started += 1;
        Ok(())
    }

    /// Returns the oldest copy if it is complete, and `None` otherwise. If `wait`, blocks until the oldest
    /// copy is complete.
    pub(super) fn next(
        &mut self,
        session: &Session<'_>,
        wait: bool,
    ) -> Result<Option<Download<T>>, DriverError> {
        let driver = session.lane.driver;
        let Some(oldest) = self.copying.front() else {
            return Ok(None);
        };
        let done = oldest.copying.done;
        if wait {
            session.lane.synchronize(done, DOWNLOADED_HOST)?;
        } else if !driver.query_event(done)? {
            return Ok(None);
        }
        Ok(self.copying.pop_front())
    }
}

impl<T> Download<T> {
    /// Returns the bytes that were copied from the device.
    pub(super) fn bytes<'s>(&self, session: &'s Session<'_>) -> Result<&'s [u8], DriverError> {
        session.lane.read(session.lane.pinned_out(self.place))
    }

    /// Returns the number of bytes of the copy.
    pub(super) fn len(&self) -> usize {
        self.place.len
    }

    /// Ends the copy after its bytes were copied out of the ring.
    pub(super) fn finish(self, session: &Session<'_>) -> Result<T, DriverError> {
        self.copying.finish(session)?;
        Ok(self.to)
    }
}
