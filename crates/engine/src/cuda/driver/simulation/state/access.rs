//! Memory, and whether an access to it keeps the rules.

use std::ops::Range;

use zarrs_cuda_emulator::device::{self, Kind, granules};

use super::super::Rule;
use super::super::clocks::{Clock, Label, Touch};
use super::super::guard::AccessedBytes;
use super::Uses;
use super::{Failure, SimulationState, violation};
use crate::cuda::driver::{Access, DeviceMemory, DeviceSpan, Fault, Span, StreamId};

impl SimulationState {
    pub(crate) fn allocate(&mut self, len: usize, kind: Kind) -> Result<u64, Failure> {
        if len == 0 {
            return violation(Rule::Argument, "an allocation has at least 1 byte");
        }
        if !self.faults.allocation(kind) {
            return Err(Failure::Fault(
                Fault::OutOfMemory,
                "out of memory (injected)".into(),
            ));
        }
        let capacity = match kind {
            Kind::Device => self.config.memory,
            Kind::Pinned => self.config.pinned,
        };
        let free = capacity.saturating_sub(self.memory.used(kind));
        let fits = granules(len, kind) <= free;
        let memory = if fits {
            self.memory.allocate(len, kind)
        } else {
            None
        };
        memory.ok_or_else(|| {
            let reason = format!("out of memory: {free} bytes of {kind} are free");
            Failure::Fault(Fault::OutOfMemory, reason)
        })
    }

    pub(crate) fn free(&mut self, address: u64, kind: Kind) -> Result<(), Failure> {
        let allocation = self.allocation(address, kind)?;
        let whole = 0..allocation.block.len();
        if let Some(earlier) = allocation.known.history.conflict(&whole, true, &self.host) {
            let message = self.unordered(earlier, allocation, None);
            return violation(Rule::Lifetime, format!("freed while in use: {message}"));
        }
        let broken = allocation.block.broken_zone();
        let number = allocation.number;
        self.memory.free(address);
        match broken {
            Some(at) => violation(
                Rule::Guard,
                format!(
                    "byte {at} of {kind} {number} was written, which has {} bytes",
                    whole.end
                ),
            ),
            None => Ok(()),
        }
    }

    fn allocation(&self, address: u64, kind: Kind) -> Result<&Allocation, Failure> {
        match self.memory.get(address) {
            Some(allocation) if allocation.kind == kind => Ok(allocation),
            Some(allocation) => violation(
                Rule::Lifetime,
                format!("{} {} is no {kind}", allocation.kind, allocation.number),
            ),
            None => violation(Rule::Lifetime, self.memory.absent(address)),
        }
    }

    pub(super) fn place(&self, span: Span, access: Access) -> Result<AccessedBytes, Failure> {
        let (address, kind, offset, len) = match span {
            Span::Device(s) => (s.memory.0, Kind::Device, s.offset, s.len),
            Span::Pinned(s) => (
                s.memory.0.addr().get() as u64,
                Kind::Pinned,
                s.offset,
                s.len,
            ),
        };
        let allocation = self.allocation(address, kind)?;
        let size = allocation.block.len();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(AccessedBytes {
                address,
                bytes: offset..end,
                access,
            }),
            _ => violation(
                Rule::Bounds,
                format!(
                    "{len} bytes from {offset} on of {kind} {} of {size} bytes",
                    allocation.number
                ),
            ),
        }
    }

    /// Checks an access by somebody who has waited as far as `clock`: `None` is the host.
    pub(super) fn check(
        &self,
        place: &AccessedBytes,
        by: Option<(&Clock, StreamId)>,
    ) -> Result<(), Failure> {
        if place.bytes.is_empty() {
            return Ok(());
        }
        let Some(allocation) = self.memory.get(place.address) else {
            return violation(Rule::Lifetime, self.memory.absent(place.address));
        };
        let clock = by.map_or(&self.host, |(clock, _)| clock);
        let writes = place.access != Access::Read;
        if let Some(earlier) = allocation
            .known
            .history
            .conflict(&place.bytes, writes, clock)
        {
            let message = self.unordered(earlier, allocation, by.map(|(_, stream)| stream));
            return violation(
                Rule::Order,
                format!(
                    "it {}, but {message}",
                    touches(place.access, &place.bytes, allocation)
                ),
            );
        }
        if place.access != Access::Write
            && let Some(gap) = allocation.known.written.first_gap(place.bytes.clone())
        {
            return violation(
                Rule::Uninitialised,
                format!(
                    "it {}, of which {gap:?} were never written",
                    touches(place.access, &place.bytes, allocation)
                ),
            );
        }
        Ok(())
    }

    /// Says which edge is missing.
    fn unordered(&self, earlier: &Touch, allocation: &Allocation, by: Option<StreamId>) -> String {
        let stream = self.streams[earlier.stamp.stream].id.0;
        let Label { what, name } = earlier.label;
        let touched = touches(earlier.access, &earlier.bytes, allocation);
        let missing = match by {
            Some(StreamId(by)) => {
                format!(
                    "stream {by} has not waited for an event recorded in stream {stream} after it"
                )
            }
            None => format!("the host has not synchronised with stream {stream} after it"),
        };
        let time = earlier.stamp.time;
        format!("{what}{name} (operation {time} of stream {stream}) {touched}, and {missing}")
    }

    pub(crate) fn host_access(&mut self, span: Span, access: Access) -> Result<(), Failure> {
        let place = self.place(span, access)?;
        self.check(&place, None)?;
        if let Some(allocation) = self.memory.get_mut(place.address) {
            if access != Access::Write && allocation.known.is_for_uploads {
                self.uploads_read += place.bytes.len();
            }
            if access != Access::Read {
                allocation.known.written.insert(place.bytes);
            }
        }
        Ok(())
    }

    pub(crate) fn discard(&mut self, span: Span) -> Result<(), Failure> {
        let place = self.place(span, Access::Write)?;
        self.check(&place, None)?;
        if let Some(allocation) = self.memory.get_mut(place.address) {
            let written = allocation.known.written.within(place.bytes.clone());
            allocation.known.written.remove(place.bytes);
            self.poison(place.address, written);
        }
        Ok(())
    }

    /// Returns the device memory that has `len` bytes at an address, and where in it.
    pub(crate) fn find(&self, pointer: u64, len: usize) -> Result<(DeviceMemory, usize), Failure> {
        let (address, offset) = self.memory.containing(pointer).unwrap_or((pointer, 0));
        let memory = DeviceMemory(address);
        let span = Span::Device(DeviceSpan {
            memory,
            offset,
            len,
        });
        self.place(span, Access::Read).map(|_| (memory, offset))
    }

    /// Returns the addresses of the device memory that has an address.
    pub(crate) fn allocation_at(&self, pointer: u64) -> Result<Range<u64>, Failure> {
        let found = self
            .memory
            .containing(pointer)
            .and_then(|(address, offset)| {
                let allocation = self.memory.get(address)?;
                let len = allocation.block.len();
                let is_there = allocation.kind == Kind::Device && offset < len;
                is_there.then(|| address..address + len as u64)
            });
        let reason = "the address belongs to no device memory";
        found.ok_or_else(|| Failure::Fault(Fault::Refused, reason.to_owned()))
    }

    /// Lets these bytes of an allocation be as if they had never been written.
    fn poison(&self, address: u64, written: Vec<Range<usize>>) {
        if let Some(allocation) = self.memory.get(address) {
            // The other bytes still have the pattern.
            for bytes in written {
                allocation.block.poison(bytes, &self.memory.poison);
            }
        }
    }
}

/// An allocation of the simulation.
type Allocation = device::Allocation<Uses>;

fn touches(access: Access, bytes: &Range<usize>, allocation: &Allocation) -> String {
    let verb = match access {
        Access::Read => "reads",
        Access::Write => "writes",
        Access::Update => "updates",
    };
    format!(
        "{verb} bytes {bytes:?} of {} {}",
        allocation.kind, allocation.number
    )
}
