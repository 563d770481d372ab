//! Operations, as they are enqueued.

use serde_json::json;
use zarrs_cuda_emulator::device::{Kind, Task, Ticket};

use super::super::Rule;
use super::super::clocks::{Label, Stamp, Touch};
use super::super::guard::AccessedBytes;
use super::super::intervals::Intervals;
use super::super::kernels::Argument;
use super::{Action, Failure, OperationWork, SimulationState, violation};
use crate::cuda::driver::{Access, Arg, Dims, Fault, LibraryCall, Rows, RowsShape, Span, StreamId};

impl SimulationState {
    pub(crate) fn copy(&mut self, stream: StreamId, from: Span, to: Span) -> Result<(), Failure> {
        let places = [
            self.place(from, Access::Read)?,
            self.place(to, Access::Write)?,
        ];
        let [from, to] = &places;
        if from.bytes.len() != to.bytes.len() {
            return violation(Rule::Argument, "the spans have different lengths");
        }
        if from.address == to.address
            && from.bytes.start < to.bytes.end
            && to.bytes.start < from.bytes.end
        {
            return violation(Rule::Argument, "the spans overlap");
        }
        let label = Label {
            what: "a copy",
            name: "",
        };
        let (len, direction) = (from.bytes.len(), self.direction(from, to));
        self.enqueue(stream, label, places.into(), Action::Copy)?;
        self.note(|| json!({ "operation": "copy", "direction": direction, "bytes": len, "stream": stream.0 }));
        Ok(())
    }

    /// The copy reads and writes the rows, and nothing between them.
    pub(crate) fn copy_rows(
        &mut self,
        stream: StreamId,
        shape: RowsShape,
        from: Rows,
        to: Rows,
    ) -> Result<(), Failure> {
        if shape.len() == 0 {
            return Ok(());
        }
        if matches!((from.span, to.span), (Span::Pinned(_), Span::Pinned(_))) {
            return violation(Rule::Argument, "neither end is on the device");
        }
        let mut places = Vec::new();
        for (rows, access) in [(from, Access::Read), (to, Access::Write)] {
            let whole = self.place(rows.span, access)?;
            if let Err(reason) = rows.check(shape, self.config.largest_pitch) {
                return violation(Rule::Argument, reason);
            }
            places.extend(rows.starts(shape).map(|start| {
                let start = whole.bytes.start + start;
                AccessedBytes {
                    bytes: start..start + shape.row,
                    ..whole
                }
            }));
        }
        let (sources, targets) = places.split_at(places.len() / 2);
        let (from, to) = (&sources[0], &targets[0]);
        if from.address == to.address {
            let mut written = Intervals::default();
            for place in targets {
                written.insert(place.bytes.clone());
            }
            let mut read = sources.iter();
            if read.any(|place| !written.within(place.bytes.clone()).is_empty()) {
                return violation(Rule::Argument, "rows that are read are also written");
            }
        }
        let direction = self.direction(from, to);
        let label = Label {
            what: "a copy of rows",
            name: "",
        };
        self.enqueue(stream, label, places, Action::Copy)?;
        self.note(|| json!({ "operation": "copy_rows", "direction": direction, "bytes": shape.len(), "rows": shape.planes * shape.rows, "stream": stream.0 }));
        Ok(())
    }

    /// Returns where a copy goes.
    pub(super) fn direction(&self, from: &AccessedBytes, to: &AccessedBytes) -> &'static str {
        let kind = |place: &AccessedBytes| self.memory.get(place.address).map(|a| a.kind);
        match (kind(from), kind(to)) {
            (Some(Kind::Pinned), Some(Kind::Device)) => "up",
            (Some(Kind::Device), Some(Kind::Pinned)) => "down",
            _ => "within",
        }
    }

    pub(crate) fn fill(&mut self, stream: StreamId, span: Span, byte: u8) -> Result<(), Failure> {
        let place = self.place(span, Access::Write)?;
        let label = Label {
            what: "a fill",
            name: "",
        };
        let len = place.bytes.len();
        self.enqueue(stream, label, vec![place], Action::Fill(byte))?;
        self.note(|| json!({ "operation": "fill", "bytes": len, "stream": stream.0 }));
        Ok(())
    }

    pub(crate) fn launch(
        &mut self,
        stream: StreamId,
        name: &'static str,
        dims: Dims,
        args: &[Arg<'_>],
    ) -> Result<(), Failure> {
        if dims.grid == 0 || dims.grid > i32::MAX.cast_unsigned() {
            return violation(Rule::Argument, format!("a grid of {} blocks", dims.grid));
        }
        if dims.block == 0 || dims.block > 1024 || !dims.block.is_multiple_of(32) {
            return violation(Rule::Argument, format!("blocks of {} threads", dims.block));
        }
        let mut places = Vec::new();
        for arg in args {
            if let Arg::Span(span, access) = arg {
                places.push(self.place(Span::Device(*span), *access)?);
            }
        }
        if !self.faults.launch() {
            return Err(Failure::Fault(
                Fault::Refused,
                "the launch was refused (injected)".into(),
            ));
        }
        let label = Label {
            what: "kernel ",
            name,
        };
        let action = Action::Launch {
            name,
            dims,
            arguments: args.iter().map(Argument::new).collect(),
        };
        self.enqueue(stream, label, places, action)?;
        self.note(|| json!({ "operation": "kernel", "name": name, "stream": stream.0 }));
        Ok(())
    }

    pub(crate) fn call(
        &mut self,
        stream: StreamId,
        name: &'static str,
        accesses: &[(Span, Access)],
        function: LibraryCall,
    ) -> Result<(), Failure> {
        let places = accesses
            .iter()
            .map(|(span, access)| self.place(*span, *access));
        let places = places.collect::<Result<Vec<_>, _>>()?;
        if !self.faults.launch() {
            return Err(Failure::Fault(
                Fault::Refused,
                "the call was refused (injected)".into(),
            ));
        }
        let label = Label {
            what: "library call ",
            name,
        };
        let of = |write: bool| -> usize {
            let is_one = |place: &&AccessedBytes| (place.access != Access::Read) == write;
            let places = places.iter().filter(is_one);
            places.map(|place| place.bytes.len()).sum()
        };
        let (read, written) = (of(false), of(true));
        // The first span is a table of pointers, one for each chunk.
        let chunks = places.first().map_or(0, |place| place.bytes.len() / 8);
        self.enqueue(stream, label, places, Action::Call { name, function })?;
        self.note(|| {
            json!({
                "operation": "library",
                "name": name,
                "chunks": chunks,
                "read": read,
                "written": written,
                "stream": stream.0,
            })
        });
        Ok(())
    }

    /// Puts an operation into a stream, if it is ordered and what it reads was written.
    fn enqueue(
        &mut self,
        stream: StreamId,
        label: Label,
        places: Vec<AccessedBytes>,
        action: Action,
    ) -> Result<(), Failure> {
        let number = self.stream(stream)?;
        self.streams[number].clock.join(&self.host);
        let clock = &self.streams[number].clock;
        for place in &places {
            self.check(place, Some((clock, stream)))?;
        }
        let touched = places.clone();
        let ticket = self.push(number, None, places, action);
        let stamp = Stamp {
            stream: number,
            time: ticket.time,
        };
        for AccessedBytes {
            address,
            bytes,
            access,
        } in touched
        {
            if let Some(allocation) = self.memory.get_mut(address) {
                if access != Access::Read {
                    allocation.known.written.insert(bytes.clone());
                }
                let touch = Touch {
                    stamp,
                    label,
                    bytes,
                    access,
                };
                allocation
                    .known
                    .history
                    .enter(&touch, &self.streams[number].clock, &self.host);
            }
        }
        self.enqueued();
        Ok(())
    }

    /// Puts work into a stream, and notes where the work is.
    pub(super) fn push(
        &mut self,
        stream: usize,
        after: Option<Ticket>,
        places: Vec<AccessedBytes>,
        action: Action,
    ) -> Ticket {
        let work = OperationWork {
            enqueued: self.host_time,
            places,
            action,
        };
        let ticket = self.scheduler.push(stream, Task { after, work });
        let time = ticket.time;
        self.streams[stream].clock.include(Stamp { stream, time });
        ticket
    }
}
