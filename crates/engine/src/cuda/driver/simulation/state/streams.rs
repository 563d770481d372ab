//! Streams and events, and the host's waits.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::json;
use zarrs_cuda_emulator::device::Ticket;

use super::super::Rule;
use super::super::clocks::Stamp;
use super::{Action, Event, Failure, Recorded, SimulationState, Stream, violation};
use crate::cuda::driver::{EventId, Site, StreamId};

impl SimulationState {
    pub(crate) fn create_stream(&mut self) -> StreamId {
        self.created += 1;
        let id = StreamId(self.created);
        // The component of a stream that is gone can count on, once the host knows all of it.
        let free = self
            .streams
            .iter()
            .enumerate()
            .position(|(number, stream)| {
                let queue = self.scheduler.queue(number);
                let last = Stamp {
                    stream: number,
                    time: queue.enqueued(),
                };
                stream.destroyed && queue.is_idle() && self.host.knows(last)
            });
        let stream = Stream {
            id,
            destroyed: false,
            clock: self.host.clone(),
            time: self.host_time,
        };
        if let Some(number) = free {
            self.scheduler.renew(number);
            self.streams[number] = stream;
        } else {
            self.scheduler.create();
            self.streams.push(stream);
        }
        id
    }

    pub(super) fn stream(&self, id: StreamId) -> Result<usize, Failure> {
        let found = self.streams.iter().position(|s| s.id == id && !s.destroyed);
        found.map_or_else(
            || violation(Rule::Lifetime, format!("there is no stream {}", id.0)),
            Ok,
        )
    }

    pub(crate) fn destroy_stream(&mut self, stream: StreamId) -> Result<(), Failure> {
        let stream = self.stream(stream)?;
        self.streams[stream].destroyed = true;
        Ok(())
    }

    pub(crate) fn create_event(&mut self, timed: bool) -> EventId {
        self.created += 1;
        let id = EventId(self.created);
        let event = Event {
            timed,
            recorded: None,
        };
        self.events.insert(id, event);
        id
    }

    fn event(&self, event: EventId) -> Result<&Recorded, Failure> {
        match self.events.get(&event) {
            Some(Event {
                recorded: Some(recorded),
                ..
            }) => Ok(recorded),
            Some(_) => violation(Rule::Event, format!("event {} was never recorded", event.0)),
            None => violation(Rule::Lifetime, format!("there is no event {}", event.0)),
        }
    }

    pub(crate) fn destroy_event(&mut self, event: EventId) -> Result<(), Failure> {
        match self.events.remove(&event) {
            Some(_) => Ok(()),
            None => violation(Rule::Lifetime, format!("there is no event {}", event.0)),
        }
    }

    pub(crate) fn record(
        &mut self,
        event: EventId,
        stream: StreamId,
        site: Site,
    ) -> Result<(), Failure> {
        let number = self.stream(stream)?;
        if !self.events.contains_key(&event) {
            return violation(Rule::Lifetime, format!("there is no event {}", event.0));
        }
        if !self.site(site) {
            return Ok(());
        }
        let time = Arc::new(OnceLock::new());
        let ticket = self.push(number, None, Vec::new(), Action::Record(Arc::clone(&time)));
        let clock = self.streams[number].clock.clone();
        if let Some(event) = self.events.get_mut(&event) {
            event.recorded = Some(Recorded {
                ticket,
                clock,
                time,
            });
        }
        self.enqueued();
        self.note(|| json!({ "operation": "record", "event": event.0, "stream": stream.0 }));
        Ok(())
    }

    /// An event of a captured stream would pull the streams that wait for it into the capture.
    pub(crate) fn check_not_captured(&self, stream: u64) -> Result<(), Failure> {
        if self.captured.contains(&stream) {
            let message = format!("stream {stream} is being captured");
            return violation(Rule::Capture, message);
        }
        Ok(())
    }

    pub(crate) fn wait(
        &mut self,
        stream: StreamId,
        event: EventId,
        site: Site,
    ) -> Result<(), Failure> {
        let number = self.stream(stream)?;
        if !self.site(site) {
            return Ok(());
        }
        let recorded = self.event(event)?;
        let ticket = recorded.ticket;
        let clock = recorded.clock.clone();
        let action = Action::Wait(Arc::clone(&recorded.time));
        self.streams[number].clock.join(&clock);
        self.push(number, Some(ticket), Vec::new(), action);
        self.enqueued();
        self.note(|| json!({ "operation": "wait", "event": event.0, "stream": stream.0 }));
        Ok(())
    }

    pub(crate) fn query(&mut self, event: EventId) -> Result<bool, Failure> {
        let ticket = self.event(event)?.ticket;
        // A thread that asks again and again gets an answer under every schedule.
        if !self.scheduler.is_done(ticket) {
            self.step(Some(ticket));
        }
        let done = self.scheduler.is_done(ticket);
        if done {
            self.happened(event)?;
            // A device would have had to be ready by then.
            self.note(|| json!({ "operation": "synchronize", "event": event.0, "asked": true }));
        }
        Ok(done)
    }

    pub(crate) fn poll(&mut self, event: EventId, site: Site) -> Result<bool, Failure> {
        if !self.site(site) {
            return Ok(true);
        }
        self.wait_at(site);
        let ticket = self.event(event)?.ticket;
        if !self.reaches(ticket, site) {
            return Ok(false);
        }
        self.note(|| json!({ "operation": "synchronize", "event": event.0, "site": site.0 }));
        self.happened(event)?;
        Ok(true)
    }

    /// Notes that the host waits at `site`.
    fn wait_at(&mut self, site: Site) {
        self.waits.insert(site);
        if self.config.hangs_at == Some(site) {
            self.hang();
        }
    }

    /// Lets the device work until the ticket's place is reached. Returns whether the host learns that it is.
    fn reaches(&mut self, ticket: Ticket, site: Site) -> bool {
        self.run_until(ticket);
        self.scheduler.is_done(ticket) && self.config.hangs_at != Some(site)
    }

    pub(crate) fn hang(&mut self) {
        if self.hangs() {
            return;
        }
        for application in self.applications.clone() {
            if let Ok(stream) = self.stream(application) {
                let time = self.scheduler.queue(stream).enqueued();
                self.run_until(Ticket { stream, time });
            }
        }
        self.scheduler.hang_after(0);
    }

    pub(crate) fn hangs(&self) -> bool {
        self.scheduler.hangs()
    }

    pub(crate) fn stall(&mut self, stream: StreamId, is_stalled: bool) {
        if let Ok(number) = self.stream(stream) {
            self.scheduler.stall(number, is_stalled);
        }
    }

    /// The host knows that the event has happened.
    fn happened(&mut self, event: EventId) -> Result<(), Failure> {
        let recorded = self.event(event)?;
        let (clock, time) = (recorded.clock.clone(), recorded.time.get().copied());
        self.host.join(&clock);
        self.host_time = self.host_time.max(time.unwrap_or(0));
        Ok(())
    }

    /// Checks that the stream exists. The mark is the end of the stream, which the host's threads move
    /// together.
    pub(crate) fn mark(&self, stream: StreamId) -> Result<(), Failure> {
        self.stream(stream).map(drop)
    }

    pub(crate) fn poll_stream(&mut self, stream: StreamId, site: Site) -> Result<bool, Failure> {
        let number = self.stream(stream)?;
        if !self.site(site) {
            return Ok(true);
        }
        self.wait_at(site);
        let end = Ticket {
            stream: number,
            time: self.scheduler.queue(number).enqueued(),
        };
        if !self.reaches(end, site) {
            return Ok(false);
        }
        self.host.join(&self.streams[number].clock);
        self.host_time = self.host_time.max(self.streams[number].time);
        self.note(|| json!({ "operation": "synchronize_stream", "stream": stream.0 }));
        Ok(true)
    }

    /// Lets the device work until every stream is empty.
    pub(crate) fn synchronize_context(&mut self) -> Result<(), Failure> {
        for number in 0..self.streams.len() {
            let end = Ticket {
                stream: number,
                time: self.scheduler.queue(number).enqueued(),
            };
            self.run_until(end);
            if !self.scheduler.is_done(end) {
                return violation(Rule::Event, "the device hangs".to_string());
            }
            self.host.join(&self.streams[number].clock);
            self.host_time = self.host_time.max(self.streams[number].time);
        }
        Ok(())
    }

    pub(crate) fn elapsed(&self, begin: EventId, end: EventId) -> Result<Duration, Failure> {
        let untimed = |event: &EventId| self.events.get(event).is_some_and(|event| !event.timed);
        if let Some(event) = [begin, end].iter().find(|event| untimed(event)) {
            let message = format!("event {} does not take the time", event.0);
            return violation(Rule::Event, message);
        }
        let time = |event| match self.event(event)?.time.get() {
            Some(time) => Ok(*time),
            None => violation(Rule::Event, format!("event {} has not happened", event.0)),
        };
        Ok(Duration::from_nanos(
            time(end)?.saturating_sub(time(begin)?),
        ))
    }
}
