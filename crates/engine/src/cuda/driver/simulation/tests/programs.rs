//! Random programs of copies and fills: the clocks against a closure of all edges, and the bytes
//! under every schedule against a program that runs in order.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Streams, events, and buffers of each kind; pinned buffers come first.
const STREAMS: usize = 3;
const EVENTS: usize = 3;
const PINNED: usize = 2;
const BUFFERS: usize = 4;
/// Bytes of a buffer.
const LEN: usize = 12;

#[derive(Clone, Copy, Debug)]
struct Bytes {
    buffer: usize,
    offset: usize,
    len: usize,
}

impl Bytes {
    fn overlaps(&self, other: &Self) -> bool {
        let end = |b: &Self| b.offset + b.len;
        self.buffer == other.buffer && self.offset < end(other) && other.offset < end(self)
    }
}

/// Where the rows of a copy are.
#[derive(Clone, Copy, Debug)]
struct BufferRows {
    buffer: usize,
    offset: usize,
    pitch: usize,
    height: usize,
}

impl BufferRows {
    /// Returns all bytes from the first row to the last.
    fn whole(&self, shape: RowsShape) -> Bytes {
        let last = (shape.planes - 1) * self.height + shape.rows - 1;
        Bytes {
            buffer: self.buffer,
            offset: self.offset,
            len: last * self.pitch + shape.row,
        }
    }

    /// Returns the bytes of each row.
    fn rows(&self, shape: RowsShape) -> Vec<Bytes> {
        let mut rows = Vec::new();
        for plane in 0..shape.planes {
            for row in 0..shape.rows {
                rows.push(Bytes {
                    buffer: self.buffer,
                    offset: self.offset + (plane * self.height + row) * self.pitch,
                    len: shape.row,
                });
            }
        }
        rows
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Copy {
        stream: usize,
        from: Bytes,
        to: Bytes,
    },
    CopyRows {
        stream: usize,
        shape: RowsShape,
        from: BufferRows,
        to: BufferRows,
    },
    Fill {
        stream: usize,
        to: Bytes,
        byte: u8,
    },
    Record {
        event: usize,
        stream: usize,
    },
    Wait {
        stream: usize,
        event: usize,
    },
    Synchronize {
        event: usize,
    },
    SynchronizeStream {
        stream: usize,
    },
    HostWrite {
        to: Bytes,
        byte: u8,
    },
    HostRead {
        from: Bytes,
    },
}

impl Step {
    /// Returns the stream that it is in; `None` for what the host does.
    fn stream(&self) -> Option<usize> {
        match *self {
            Step::Copy { stream, .. }
            | Step::CopyRows { stream, .. }
            | Step::Fill { stream, .. }
            | Step::Record { stream, .. }
            | Step::Wait { stream, .. } => Some(stream),
            _ => None,
        }
    }

    fn reads(&self) -> Vec<Bytes> {
        match *self {
            Step::Copy { from, .. } | Step::HostRead { from } => vec![from],
            Step::CopyRows { shape, from, .. } => from.rows(shape),
            _ => vec![],
        }
    }

    fn writes(&self) -> Vec<Bytes> {
        match *self {
            Step::Copy { to, .. } | Step::Fill { to, .. } | Step::HostWrite { to, .. } => vec![to],
            Step::CopyRows { shape, to, .. } => to.rows(shape),
            _ => vec![],
        }
    }

    fn conflicts(&self, other: &Self) -> bool {
        overlap(&self.writes(), &other.writes())
            || overlap(&self.writes(), &other.reads())
            || overlap(&self.reads(), &other.writes())
    }
}

fn overlap(a: &[Bytes], b: &[Bytes]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.overlaps(b)))
}

/// Returns the first step that conflicts with an earlier one, and is not after it; and the earlier
/// one.
fn naive(program: &[Step]) -> Option<(usize, usize)> {
    let mut before: Vec<Vec<bool>> = Vec::new();
    let mut records = HashMap::new();
    for (j, step) in program.iter().enumerate() {
        let mut direct = Vec::new();
        for (i, earlier) in program[..j].iter().enumerate() {
            let waited = match *step {
                Step::SynchronizeStream { stream } => earlier.stream() == Some(stream),
                _ => step.stream().is_some() && earlier.stream() == step.stream(),
            };
            if waited || earlier.stream().is_none() {
                direct.push(i);
            }
        }
        match step {
            Step::Wait { event, .. } | Step::Synchronize { event } => direct.push(records[event]),
            Step::Record { event, .. } => {
                records.insert(*event, j);
            }
            _ => {}
        }
        let mut mine = vec![false; j];
        for i in direct {
            mine[i] = true;
            for k in 0..i {
                mine[k] |= before[i][k];
            }
        }
        let unordered = (0..j).find(|&i| !mine[i] && step.conflicts(&program[i]));
        if let Some(i) = unordered {
            return Some((j, i));
        }
        before.push(mine);
    }
    None
}

/// Returns the program with an edge before each step that lacks one.
fn repaired(mut program: Vec<Step>) -> Vec<Step> {
    let mut events = EVENTS;
    while let Some((j, i)) = naive(&program) {
        let Some(from) = program[i].stream() else {
            unreachable!("what the host did is before everything that follows")
        };
        let mut edge = Vec::new();
        match program[j].stream() {
            Some(stream) => {
                edge.push(Step::Record {
                    event: events,
                    stream: from,
                });
                edge.push(Step::Wait {
                    stream,
                    event: events,
                });
                events += 1;
            }
            None => edge.push(Step::SynchronizeStream { stream: from }),
        }
        program.splice(j..j, edge);
    }
    program
}

/// The bytes that the host has read, and the contents of the buffers at the end.
type Seen = Vec<Vec<u8>>;

/// Returns the contents of a buffer at the beginning.
fn initial(buffer: usize) -> Vec<u8> {
    (0..LEN).map(|i| (100 * buffer + i) as u8).collect()
}

fn in_order(program: &[Step]) -> Seen {
    let mut buffers: Vec<Vec<u8>> = (0..BUFFERS).map(initial).collect();
    let mut seen = Vec::new();
    for step in program {
        let sources: Vec<Vec<u8>> = step
            .reads()
            .iter()
            .map(|b| buffers[b.buffer][b.offset..][..b.len].to_vec())
            .collect();
        match *step {
            Step::HostWrite { to, byte } | Step::Fill { to, byte, .. } => {
                buffers[to.buffer][to.offset..][..to.len].fill(byte);
            }
            Step::Copy { .. } | Step::CopyRows { .. } => {
                for (to, source) in std::iter::zip(step.writes(), sources) {
                    buffers[to.buffer][to.offset..][..to.len].copy_from_slice(&source);
                }
            }
            Step::HostRead { .. } => seen.extend(sources),
            _ => {}
        }
    }
    seen.extend(buffers);
    seen
}

/// Runs the program: the step that was refused, or what was seen.
fn simulated(program: &[Step], schedule: Schedule) -> Result<Seen, usize> {
    let bench = Bench::new(Config {
        schedule,
        ..Config::default()
    });
    let driver = &bench.0;
    let streams: Vec<_> = (0..STREAMS).map(|_| bench.stream()).collect();
    let events = program.iter().map(|step| match step {
        Step::Record { event, .. } => event + 1,
        _ => 0,
    });
    let events: Vec<_> = (0..events.max().unwrap_or(0))
        .map(|_| driver.create_event(true).unwrap())
        .collect();
    let pinned: Vec<_> = (0..BUFFERS).map(|_| bench.pinned(LEN)).collect();
    let device: Vec<_> = (PINNED..BUFFERS).map(|_| bench.device(LEN)).collect();
    for (i, span) in pinned.iter().enumerate() {
        bench.write(*span, &initial(i)).unwrap();
    }
    for (from, to) in pinned[PINNED..].iter().zip(&device) {
        bench.upload(streams[0], *from, *to).unwrap();
    }
    driver.synchronize_stream(streams[0], SITE).unwrap();

    let on_host = |b: Bytes| PinnedSpan {
        offset: b.offset,
        len: b.len,
        ..pinned[b.buffer]
    };
    let on_device = |b: Bytes| DeviceSpan {
        offset: b.offset,
        len: b.len,
        ..device[b.buffer - PINNED]
    };
    let span = |b: Bytes| {
        if b.buffer < PINNED {
            Span::Pinned(on_host(b))
        } else {
            Span::Device(on_device(b))
        }
    };
    let mut seen = Vec::new();
    for (i, step) in program.iter().enumerate() {
        let result = match *step {
            // SAFETY: the simulation checks what it is told.
            Step::Copy { stream, from, to } => unsafe {
                driver.copy(streams[stream], span(from), span(to))
            },
            Step::CopyRows {
                stream,
                shape,
                from,
                to,
            } => {
                let [from, to] = [from, to].map(|place| Rows {
                    span: span(place.whole(shape)),
                    pitch: place.pitch,
                    height: place.height,
                });
                // SAFETY: as above.
                unsafe { driver.copy_rows(streams[stream], shape, from, to) }
            }
            // SAFETY: as above.
            Step::Fill { stream, to, byte } => unsafe {
                driver.fill(streams[stream], on_device(to), byte)
            },
            Step::Record { event, stream } => driver.record(events[event], streams[stream], SITE),
            Step::Wait { stream, event } => driver.wait(streams[stream], events[event], SITE),
            Step::Synchronize { event } => driver.synchronize(events[event], SITE),
            Step::SynchronizeStream { stream } => driver.synchronize_stream(streams[stream], SITE),
            Step::HostWrite { to, byte } => bench.write(on_host(to), &vec![byte; to.len]),
            Step::HostRead { from } => bench.read(on_host(from)).map(|bytes| seen.push(bytes)),
        };
        let violations = driver.violations();
        assert_eq!(result.is_err(), violations.len() == 1, "{violations:?}");
        if result.is_err() {
            assert_eq!(violations[0].rule, Rule::Order, "{violations:?}");
            return Err(i);
        }
    }
    for stream in &streams {
        driver.synchronize_stream(*stream, SITE).unwrap();
    }
    for (to, from) in pinned[PINNED..].iter().zip(&device) {
        bench.download(streams[0], *from, *to).unwrap();
    }
    driver.synchronize_stream(streams[0], SITE).unwrap();
    seen.extend(pinned.iter().map(|span| bench.read(*span).unwrap()));
    assert!(driver.violations().is_empty());
    Ok(seen)
}

fn bytes(buffers: std::ops::Range<usize>) -> impl Strategy<Value = Bytes> {
    (buffers, 0..LEN, 1..=LEN).prop_map(|(buffer, offset, len)| Bytes {
        buffer,
        offset,
        len: len.min(LEN - offset),
    })
}

/// Returns a copy of rows; of one row, if those that were drawn do not fit into a buffer.
fn rows() -> impl Strategy<Value = (RowsShape, BufferRows, BufferRows)> {
    let shape = (1..=2_usize, 1..=3_usize, 1..=3_usize);
    let place = || (0..BUFFERS, 0..LEN, 0..3_usize, 0..2_usize);
    (shape, place(), place()).prop_map(|((planes, rows, row), from, to)| {
        let mut shape = RowsShape { planes, rows, row };
        let place = |(buffer, offset, gap, more), shape: RowsShape| BufferRows {
            buffer,
            offset,
            pitch: shape.row + gap,
            height: shape.rows + more,
        };
        let is_long = |place: BufferRows, shape| place.whole(shape).len > LEN;
        if is_long(place(from, shape), shape) || is_long(place(to, shape), shape) {
            (shape.planes, shape.rows) = (1, 1);
        }
        let (mut from, mut to) = (place(from, shape), place(to, shape));
        if from.buffer.max(to.buffer) < PINNED {
            // One end is on the device.
            to.buffer += PINNED;
        }
        for place in [&mut from, &mut to] {
            place.offset %= LEN - place.whole(shape).len + 1;
        }
        (shape, from, to)
    })
}

fn step() -> impl Strategy<Value = Step> {
    let (stream, event) = (0..STREAMS, 0..EVENTS);
    let copy = (stream.clone(), bytes(0..BUFFERS), bytes(0..BUFFERS));
    prop_oneof![
        4 => copy.prop_map(|(stream, mut from, mut to)| {
            let len = from.len.min(to.len);
            (from.len, to.len) = (len, len);
            Step::Copy { stream, from, to }
        }),
        3 => (stream.clone(), rows()).prop_map(|(stream, (shape, from, to))| {
            Step::CopyRows { stream, shape, from, to }
        }),
        1 => (stream.clone(), bytes(PINNED..BUFFERS), any::<u8>())
            .prop_map(|(stream, to, byte)| Step::Fill { stream, to, byte }),
        3 => (event.clone(), stream.clone()).prop_map(|(event, stream)| Step::Record { event, stream }),
        3 => (stream.clone(), event.clone()).prop_map(|(stream, event)| Step::Wait { stream, event }),
        1 => event.prop_map(|event| Step::Synchronize { event }),
        1 => stream.prop_map(|stream| Step::SynchronizeStream { stream }),
        1 => (bytes(0..PINNED), any::<u8>()).prop_map(|(to, byte)| Step::HostWrite { to, byte }),
        1 => bytes(0..PINNED).prop_map(|from| Step::HostRead { from }),
    ]
}

/// Programs that break no other rule than that of order.
fn program() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..40).prop_map(|mut program| {
        let mut recorded = [false; EVENTS];
        program.retain(|step| match step {
            Step::Record { event, .. } => {
                recorded[*event] = true;
                true
            }
            Step::Wait { event, .. } | Step::Synchronize { event } => recorded[*event],
            Step::Copy { .. } | Step::CopyRows { .. } => !overlap(&step.reads(), &step.writes()),
            _ => true,
        });
        program
    })
}

fn schedules(seed: u64) -> impl Iterator<Item = Schedule> {
    let fixed = [Schedule::Eager, Schedule::Latest];
    fixed
        .into_iter()
        .chain((0..4).map(move |i| Schedule::Priority(seed ^ i)))
}

proptest! {
    #![proptest_config(zarrs_cuda_testing::effort::config(200))]

    /// The clocks refuse the step that the closure of all edges refuses, under every schedule.
    #[test]
    fn the_clocks_judge_as_all_edges_do(program in program(), seed: u64) {
        let expected = naive(&program).map(|(j, _)| j);
        for schedule in schedules(seed) {
            let refused = simulated(&program, schedule).err();
            prop_assert_eq!(refused, expected);
        }
    }

    /// Programs that the clocks accept give the same bytes under every schedule.
    #[test]
    fn ordered_programs_give_the_same_bytes(program in program(), seed: u64) {
        let program = repaired(program);
        let expected = in_order(&program);
        for schedule in schedules(seed) {
            let seen = simulated(&program, schedule);
            prop_assert_eq!(seen.as_ref(), Ok(&expected));
        }
    }
}
