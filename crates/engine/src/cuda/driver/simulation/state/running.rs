//! Operations, as they run.

use zarrs_cuda_emulator::device::Ticket;

use super::super::guard::{AccessedBytes, Guard};
use super::super::kernels;
use super::super::{Rule, Violation};
use super::{Action, Failure, OperationWork, SimulationState, Time};
use crate::cuda::driver::{Access, Fault};

impl SimulationState {
    /// Runs what the schedule runs now that something was enqueued.
    pub(super) fn enqueued(&mut self) {
        for _ in 0..self.scheduler.steps() {
            if !self.step(None) {
                break;
            }
        }
    }

    pub(super) fn run_until(&mut self, ticket: Ticket) {
        while !self.scheduler.is_done(ticket) && self.step(Some(ticket)) {}
    }

    /// Runs an operation; `false` if there is none.
    pub(super) fn step(&mut self, ticket: Option<Ticket>) -> bool {
        let Some((stream, work)) = self.scheduler.take(ticket) else {
            return false;
        };
        let OperationWork {
            enqueued,
            places,
            action,
        } = work;
        let mut time = self.streams[stream].time.max(enqueued);
        match action {
            Action::Record(happened) => {
                // Recorded once: each record has its own.
                let _ = happened.set(time);
            }
            Action::Wait(happened) => time = time.max(happened.get().copied().unwrap_or(0)),
            action => {
                time += MICROSECOND;
                if let Err((rule, message)) = self.act(&places, action) {
                    let reason = format!("simulation: {message}");
                    self.failed = Some(Failure::Fault(Fault::Refused, reason));
                    if let Some(rule) = rule {
                        self.violations.push(Violation { rule, message });
                    }
                }
            }
        }
        self.streams[stream].time = time;
        true
    }

    /// Does what an operation does; all that it names is live, or was freed in violation of the
    /// rules. An error without a rule is a library's own.
    fn act(
        &mut self,
        places: &[AccessedBytes],
        action: Action,
    ) -> Result<(), (Option<Rule>, String)> {
        let Some(mut alter) = self.alter.take() else {
            return self.act_right(places, action);
        };
        let name = match &action {
            Action::Copy => self.direction(&places[0], &places[places.len() / 2]),
            Action::Fill(_) => "fill",
            Action::Launch { name, .. } | Action::Call { name, .. } => name,
            Action::Record(_) | Action::Wait(_) => "event",
        };
        let written: Vec<_> = places
            .iter()
            .filter(|place| place.access != Access::Read)
            .cloned()
            .collect();
        let before: Vec<_> = written
            .iter()
            .map(|place| self.bytes(place).to_vec())
            .collect();
        let done = self.act_right(places, action);
        if done.is_ok() {
            for (number, (place, before)) in std::iter::zip(&written, &before).enumerate() {
                alter(name, number, before, self.bytes(place));
            }
        }
        self.alter = Some(alter);
        done
    }

    /// Returns the bytes of a place; none if its memory was freed.
    fn bytes(&mut self, place: &AccessedBytes) -> &mut [u8] {
        let Some(allocation) = self.memory.get(place.address) else {
            return &mut [];
        };
        // SAFETY: the place is within a live allocation, and the clocks have shown that neither the host nor
        // another operation uses it now.
        unsafe {
            let first = allocation.block.at(place.bytes.start);
            std::slice::from_raw_parts_mut(first, place.bytes.len())
        }
    }

    /// Does what an operation does, without a change of what it has written.
    fn act_right(
        &mut self,
        places: &[AccessedBytes],
        action: Action,
    ) -> Result<(), (Option<Rule>, String)> {
        if let Some(gone) = places.iter().find(|p| self.memory.get(p.address).is_none()) {
            return Err((Some(Rule::Lifetime), self.memory.absent(gone.address)));
        }
        let at = |place: &AccessedBytes| {
            self.memory
                .get(place.address)
                .map(|a| a.block.at(place.bytes.start))
        };
        match action {
            Action::Copy => {
                let (sources, targets) = places.split_at(places.len() / 2);
                for (from, to) in std::iter::zip(sources, targets) {
                    let (Some(source), Some(target)) = (at(from), at(to)) else {
                        continue;
                    };
                    // SAFETY: all places are within live allocations, those of a pair have the same
                    // length, and no source overlaps a target: checked when the copy was enqueued.
                    // The clocks have shown that neither the host nor another operation uses them
                    // now.
                    unsafe { std::ptr::copy_nonoverlapping(source, target, from.bytes.len()) };
                }
            }
            Action::Fill(byte) => {
                if let [place] = places
                    && let Some(target) = at(place)
                {
                    // SAFETY: as above.
                    unsafe { target.write_bytes(byte, place.bytes.len()) };
                }
            }
            Action::Launch {
                name,
                dims,
                arguments,
            } => {
                self.launches += 1;
                let counts = self.config.sectors || self.config.trace;
                let options = kernels::options(
                    (name, dims, &arguments),
                    self.config.poison,
                    self.launches,
                    counts,
                    self.config.checks_each,
                );
                // SAFETY: as above.
                let ran = unsafe { kernels::run(name, dims, &arguments, options) };
                let ran = ran.map_err(|message| (Some(Rule::Kernel), message))?;
                if let Some((kernel, report)) = ran {
                    if let Some(trace) = &mut self.trace {
                        trace.ran(kernel, &report);
                    }
                    if self.config.sectors {
                        self.sectors = report.accesses;
                    }
                }
            }
            Action::Call { name, function } => {
                let guard = Guard::new(&self.memory, places);
                let ran = function(std::ptr::null_mut());
                let kept = guard.check(&self.memory);
                kept.map_err(|m| (Some(Rule::Guard), format!("library call {name}: {m}")))?;
                ran.map_err(|m| (None, format!("library call {name}: {m}")))?;
            }
            Action::Record(_) | Action::Wait(_) => {}
        }
        Ok(())
    }
}

/// Events that are recorded one after the other have different times.
const MICROSECOND: Time = 1_000;
