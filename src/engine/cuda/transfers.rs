//! Rings of pinned memory, through which bytes go to the device and come back.
//!
//! | edge | producer | consumer | guards |
//! |---|---|---|---|
//! | [`UPLOADED`] | copy to the device (`up`) | copiers, through [`UPLOADED_HOST`] | a place of the ring |
//! | [`DOWNLOADED`] | copy from the device (`down`) | copiers, through [`DOWNLOADED_HOST`] | a place of the ring |

use std::collections::VecDeque;

use super::arena::Region;
use super::counters::TimedStage;
use super::driver::{DeviceSpan, DriverError, EventId, PinnedSpan, Site, Span};
use super::session::Session;

/// The bytes in a place of the ring are on the device, and the place may be written again.
const UPLOADED: Site = Site("record: bytes were copied to the device");
const UPLOADED_HOST: Site = Site("synchronise: pinned memory before it is written again");
/// Bytes from the device are in a place of the ring.
const DOWNLOADED: Site = Site("record: bytes were copied from the device");
const DOWNLOADED_HOST: Site = Site("synchronise: bytes from the device before they are read");

/// A copy in flight.
#[derive(Clone, Copy, Debug)]
struct Copying {
    begin: EventId,
    done: EventId,
}

impl Copying {
    fn new(session: &Session<'_>) -> Result<Self, DriverError> {
        Ok(Self {
            begin: session.events.take()?,
            done: session.events.take()?,
        })
    }

    /// Adds the time of the complete copy to the metrics, and gives its events back.
    fn finish(self, session: &Session<'_>, stage: TimedStage) -> Result<(), DriverError> {
        session.time(stage, self.begin, self.done)?;
        session.events.give([self.begin, self.done]);
        Ok(())
    }
}

/// The ring of copies to the device.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    copying: VecDeque<Copying>,
    started: usize,
}

impl Uploads {
    /// The number of the next place of the ring.
    pub(super) fn place(&self, session: &Session<'_>) -> usize {
        self.started % session.sizing.staging_in.len()
    }

    /// Blocks until the next place may be written. Returns the span of its first `len` bytes, and
    /// their address.
    pub(super) fn next(
        &self,
        session: &Session<'_>,
        len: usize,
    ) -> Result<(PinnedSpan, *mut u8), DriverError> {
        if self.is_full(session)
            && let Some(oldest) = self.copying.front()
        {
            session
                .lane
                .driver
                .synchronize(oldest.done, UPLOADED_HOST)?;
        }
        let region = session.sizing.staging_in[self.place(session)];
        let span = session.lane.pinned_in(region.part(0..len));
        Ok((span, session.lane.write(span)?))
    }

    /// Enqueues the copy of the [`next`](Self::next) place to the device. Returns the event at the
    /// end of the copy, which stays valid until the ring has gone round.
    pub(super) fn start(
        &mut self,
        session: &Session<'_>,
        from: PinnedSpan,
        to: DeviceSpan,
    ) -> Result<EventId, DriverError> {
        if self.is_full(session)
            && let Some(oldest) = self.copying.pop_front()
        {
            oldest.finish(session, TimedStage::ToDevice)?;
        }
        let lane = session.lane;
        let copying = Copying::new(session)?;
        session.begin(lane.up, copying.begin)?;
        lane.copy(lane.up, Span::Pinned(from), Span::Device(to))?;
        lane.driver.record(copying.done, lane.up, UPLOADED)?;
        session.counters.add_to_device(from.len);
        self.copying.push_back(copying);
        self.started += 1;
        Ok(copying.done)
    }

    /// Adds the times of all copies to the metrics: all are known to be complete.
    pub(super) fn finish(&mut self, session: &Session<'_>) -> Result<(), DriverError> {
        self.copying
            .drain(..)
            .try_for_each(|copying| copying.finish(session, TimedStage::ToDevice))
    }

    fn is_full(&self, session: &Session<'_>) -> bool {
        self.copying.len() == session.sizing.staging_in.len()
    }
}

/// The ring of copies from the device; `T` says where bytes go.
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
    /// Whether no copy is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.copying.is_empty()
    }

    /// Whether no place is free.
    pub(super) fn is_full(&self, session: &Session<'_>) -> bool {
        self.copying.len() == session.sizing.staging_out.len()
    }

    /// The bytes of one place.
    pub(super) fn most(session: &Session<'_>) -> usize {
        session.sizing.staging_out[0].len
    }

    /// Enqueues the copy of `from`, at most [`most`](Self::most) bytes of device memory, to a free
    /// place.
    pub(super) fn start(
        &mut self,
        session: &Session<'_>,
        from: Region,
        to: T,
    ) -> Result<(), DriverError> {
        let lane = session.lane;
        let ring = &session.sizing.staging_out;
        let place = ring[self.started % ring.len()].part(0..from.len);
        let copying = Copying::new(session)?;
        session.begin(lane.down, copying.begin)?;
        let (from, pinned) = (lane.device(from), lane.pinned_out(place));
        lane.copy(lane.down, Span::Device(from), Span::Pinned(pinned))?;
        lane.driver.record(copying.done, lane.down, DOWNLOADED)?;
        session.counters.add_from_device(place.len);
        self.copying.push_back(Download { copying, place, to });
        self.started += 1;
        Ok(())
    }

    /// Returns the oldest copy if it is complete, and `None` otherwise. If `wait`, or if no place
    /// is free, blocks until the oldest copy is complete.
    pub(super) fn next(
        &mut self,
        session: &Session<'_>,
        wait: bool,
    ) -> Result<Option<Download<T>>, DriverError> {
        let driver = session.lane.driver;
        let Some(oldest) = self.copying.front() else {
            return Ok(None);
        };
        let wait = wait || self.is_full(session);
        if !wait && !driver.query_event(oldest.copying.done)? {
            return Ok(None);
        }
        driver.synchronize(oldest.copying.done, DOWNLOADED_HOST)?;
        Ok(self.copying.pop_front())
    }
}

impl<T> Download<T> {
    /// The bytes that came from the device.
    pub(super) fn bytes<'s>(&self, session: &'s Session<'_>) -> Result<&'s [u8], DriverError> {
        session.lane.read(session.lane.pinned_out(self.place))
    }

    /// Ends the copy after its bytes were copied to where they go.
    pub(super) fn finish(self, session: &Session<'_>) -> Result<T, DriverError> {
        self.copying.finish(session, TimedStage::FromDevice)?;
        Ok(self.to)
    }
}
