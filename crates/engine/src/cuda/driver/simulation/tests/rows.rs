//! Copies of rows: each row counts, and nothing between them.

use super::*;

const SHAPE: RowsShape = RowsShape {
    planes: 2,
    rows: 3,
    row: 4,
};

/// Rows of `SHAPE` from `offset` on.
fn rows(memory: DeviceMemory, offset: usize, pitch: usize, height: usize) -> Rows {
    let len = (height + 2) * pitch + 4;
    Rows {
        span: Span::Device(device_span(memory, offset, len)),
        pitch,
        height,
    }
}

/// The source: dense rows. The target: rows with gaps.
struct Case {
    bench: Bench,
    streams: [StreamId; 2],
    from: Rows,
    to: Rows,
}

/// Bytes from one row of the target to the next, and rows from one plane to the next.
const PITCH: usize = 7;
const HEIGHT: usize = 5;

impl Case {
    /// The source is written, and the target is not.
    fn new(schedule: Schedule) -> Self {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let streams = [bench.stream(), bench.stream()];
        let (source, target) = (bench.device(24 + 8), bench.device(100));
        let staging = bench.pinned(24);
        bench.write(staging, &(0..24).collect::<Vec<u8>>()).unwrap();
        let from = device_span(source.memory, 8, 24);
        bench.upload(streams[0], staging, from).unwrap();
        bench.0.synchronize_stream(streams[0], SITE).unwrap();
        Self {
            from: rows(source.memory, 8, 4, 3),
            to: rows(target.memory, 11, PITCH, HEIGHT),
            bench,
            streams,
        }
    }

    fn copy(&self) -> Result<(), DriverError> {
        self.copy_as(SHAPE, self.from, self.to)
    }

    fn copy_as(&self, shape: RowsShape, from: Rows, to: Rows) -> Result<(), DriverError> {
        // SAFETY: the simulation checks what it is told.
        unsafe { self.bench.0.copy_rows(self.streams[0], shape, from, to) }
    }

    fn memory(rows: Rows) -> DeviceMemory {
        match rows.span {
            Span::Device(span) => span.memory,
            Span::Pinned(_) => panic!("all rows are on the device"),
        }
    }

    /// Fills bytes of the target in the other stream, or of the source.
    fn fill(&self, rows: Rows, offset: usize, len: usize) -> Result<(), DriverError> {
        let span = device_span(Self::memory(rows), offset, len);
        // SAFETY: the simulation checks what it is told.
        unsafe { self.bench.0.fill(self.streams[1], span, 0xee) }
    }
}

/// Returns where the rows of the target begin in its allocation.
fn starts() -> impl Iterator<Item = usize> {
    (0..6).map(|row| 11 + (row / 3 * HEIGHT + row % 3) * PITCH)
}

#[test]
fn rows_are_copied_and_gaps_are_left_alone() {
    for schedule in schedules().take(10) {
        let case = Case::new(schedule);
        case.fill(case.to, 0, 100).unwrap();
        case.bench
            .0
            .synchronize_stream(case.streams[1], SITE)
            .unwrap();
        case.copy().unwrap();
        let back = case.bench.pinned(100);
        let target = device_span(Case::memory(case.to), 0, 100);
        case.bench.download(case.streams[0], target, back).unwrap();
        case.bench
            .0
            .synchronize_stream(case.streams[0], SITE)
            .unwrap();
        let mut expected = [0xee; 100];
        for (row, start) in starts().enumerate() {
            for byte in 0..4 {
                expected[start + byte] = (row * 4 + byte) as u8;
            }
        }
        assert_eq!(case.bench.read(back).unwrap(), expected);
        assert!(case.bench.0.violations().is_empty());
    }
}

#[test]
fn a_missing_wait_is_found_for_each_row() {
    for row in 0..6 {
        // Another stream writes a row of the target, or of the source, before.
        let start = starts().nth(row).unwrap();
        for of_target in [true, false] {
            let case = Case::new(Schedule::Latest);
            let (rows, at) = if of_target {
                (case.to, start + 3)
            } else {
                (case.from, 8 + row * 4)
            };
            case.fill(rows, at, 1).unwrap();
            let message = refused(&case.bench, case.copy(), Rule::Order);
            let verb = if of_target { "it writes" } else { "it reads" };
            assert!(message.contains(verb), "{message}");
            let event = case.bench.0.create_event(true).unwrap();
            case.bench.0.record(event, case.streams[1], SITE).unwrap();
            case.bench.0.wait(case.streams[0], event, SITE).unwrap();
            case.copy().unwrap();
        }
        // Another stream writes a row of either side afterwards.
        for of_target in [true, false] {
            let case = Case::new(Schedule::Latest);
            case.copy().unwrap();
            let (rows, at) = if of_target {
                (case.to, start)
            } else {
                (case.from, 8 + row * 4 + 3)
            };
            let message = refused(&case.bench, case.fill(rows, at, 1), Rule::Order);
            assert!(
                message.contains("a copy of rows (operation 2 of stream 1)"),
                "{message}"
            );
        }
    }
}

#[test]
fn what_lies_between_the_rows_is_free() {
    let case = Case::new(Schedule::Latest);
    let mut is_gap = [true; 100];
    starts().for_each(|start| is_gap[start..start + 4].fill(false));
    let gaps: Vec<usize> = (0..100).filter(|at| is_gap[*at]).collect();
    assert_eq!(gaps.len(), 100 - 24);
    // Before and after, in another stream, without any order.
    let (before, after) = gaps.split_at(gaps.len() / 2);
    for at in before {
        case.fill(case.to, *at, 1).unwrap();
    }
    case.copy().unwrap();
    for at in after {
        case.fill(case.to, *at, 1).unwrap();
    }
    assert!(case.bench.0.violations().is_empty());
}

#[test]
fn only_rows_need_to_be_written_before_and_count_as_written_after() {
    // Back from the target, whose gaps were never written.
    let case = Case::new(Schedule::Latest);
    case.copy().unwrap();
    case.copy_as(SHAPE, case.to, case.from).unwrap();
    let back = case.bench.pinned(4);
    for start in starts() {
        let row = device_span(Case::memory(case.to), start, 4);
        case.bench.download(case.streams[0], row, back).unwrap();
        let gap = device_span(Case::memory(case.to), start + 1, 4);
        let gap = case.bench.download(case.streams[0], gap, back);
        assert!(gap.unwrap_err().reason.contains("were never written"));
    }
    assert_eq!(case.bench.0.violations().len(), 6);

    // A row that was never written.
    let case = Case::new(Schedule::Latest);
    let Span::Device(span) = case.from.span else {
        panic!("all rows are on the device");
    };
    let byte = device_span(span.memory, 8 + 3 * 4, 1);
    case.bench.0.discard(Span::Device(byte)).unwrap();
    let message = refused(&case.bench, case.copy(), Rule::Uninitialised);
    assert!(message.contains("of which 20..21 were never"), "{message}");
}

#[test]
fn rows_stay_within_their_allocation() {
    let case = Case::new(Schedule::Eager);
    // The last row ends at the end of the allocation; then a byte behind it.
    let len = (HEIGHT + 2) * PITCH + 4;
    let target = Case::memory(case.to);
    let last = rows(target, 100 - len, PITCH, HEIGHT);
    case.copy_as(SHAPE, case.from, last).unwrap();
    let behind = rows(target, 100 - len + 1, PITCH, HEIGHT);
    let copy = case.copy_as(SHAPE, case.from, behind);
    refused(&case.bench, copy, Rule::Bounds);
}

#[test]
fn rows_do_not_overlap() {
    type Make = fn(&Case) -> (Rows, Rows);
    let wrong: [(&str, Make); 3] = [
        ("rows overlap: a pitch of 3 bytes", |case| {
            (case.from, rows(Case::memory(case.to), 0, 3, 5))
        }),
        ("planes of 2 rows", |case| {
            (case.from, rows(Case::memory(case.to), 0, 7, 2))
        }),
        ("rows that are read are also written", |case| {
            let memory = Case::memory(case.to);
            (rows(memory, 0, 7, 5), rows(memory, 3, 7, 5))
        }),
    ];
    for (text, make) in wrong {
        let case = Case::new(Schedule::Eager);
        let (from, to) = make(&case);
        let message = refused(&case.bench, case.copy_as(SHAPE, from, to), Rule::Argument);
        assert!(message.contains(text), "{message}");
    }
    // Rows between the rows of the other side are legal.
    let case = Case::new(Schedule::Eager);
    case.fill(case.to, 0, 100).unwrap();
    case.bench
        .0
        .synchronize_stream(case.streams[1], SITE)
        .unwrap();
    let memory = Case::memory(case.to);
    let between = (rows(memory, 0, 8, 5), rows(memory, 4, 8, 5));
    case.copy_as(SHAPE, between.0, between.1).unwrap();
    assert!(case.bench.0.violations().is_empty());
}

#[test]
fn pitches_and_spans_are_checked() {
    let bench = Bench::new(Config {
        largest_pitch: 8,
        ..Config::default()
    });
    let (source, target) = (bench.device(100), bench.device(100));
    let stream = bench.stream();
    // SAFETY: the simulation checks what it is told.
    let copy = |shape, from, to| unsafe { bench.0.copy_rows(stream, shape, from, to) };
    // SAFETY: as above.
    unsafe { bench.0.fill(stream, source, 1) }.unwrap();
    let from = rows(source.memory, 0, 8, 3);
    copy(SHAPE, from, rows(target.memory, 0, 8, 3)).unwrap();
    let far = copy(SHAPE, from, rows(target.memory, 0, 9, 3));
    let message = refused(&bench, far, Rule::Argument);
    assert!(message.contains("takes 8 at most"), "{message}");

    let mut long = rows(target.memory, 0, 8, 3);
    long.span = Span::Device(device_span(target.memory, 0, 45));
    copy(SHAPE, from, long).unwrap_err();
    let pinned = bench.pinned(44);
    let on_host = Rows {
        span: Span::Pinned(pinned),
        ..from
    };
    copy(SHAPE, on_host, on_host).unwrap_err();
    let messages: Vec<_> = bench.0.violations();
    assert!(messages.iter().all(|v| v.rule == Rule::Argument));
    assert!(messages[1].message.contains("a span of 45 bytes"));
    assert!(messages[2].message.contains("neither end is on the device"));
    assert_eq!(messages.len(), 3);

    // A copy without bytes does nothing, wherever it is.
    for shape in [(0, 3, 4), (2, 0, 4), (2, 3, 0)] {
        let (planes, rows, row) = shape;
        copy(RowsShape { planes, rows, row }, long, long).unwrap();
    }
    assert_eq!(bench.0.violations().len(), 3);
}

/// Both ways between the host and the device.
#[test]
fn the_host_has_rows_too() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let case = Case::new(schedule);
        let pinned = case.bench.pinned(53);
        let on_host = Rows {
            span: Span::Pinned(pinned),
            ..case.to
        };
        case.copy_as(SHAPE, case.from, on_host).unwrap();
        let byte = pinned_span(pinned.memory, 0, 1);
        let early = case.bench.0.host_access(byte, Access::Read);
        refused(&case.bench, early, Rule::Order);
        case.bench
            .0
            .synchronize_stream(case.streams[0], SITE)
            .unwrap();
        for (row, start) in starts().enumerate() {
            let row = row as u8;
            let bytes = pinned_span(pinned.memory, start - 11, 4);
            let expected = [4 * row, 4 * row + 1, 4 * row + 2, 4 * row + 3];
            assert_eq!(case.bench.read(bytes).unwrap(), expected);
            case.bench.write(bytes, &[row; 4]).unwrap();
        }
        case.copy_as(SHAPE, on_host, case.to).unwrap();
        let back = case.bench.pinned(4);
        for (row, start) in starts().enumerate() {
            let row_ = device_span(Case::memory(case.to), start, 4);
            case.bench.download(case.streams[0], row_, back).unwrap();
            case.bench
                .0
                .synchronize_stream(case.streams[0], SITE)
                .unwrap();
            assert_eq!(case.bench.read(back).unwrap(), [row as u8; 4]);
        }
        assert_eq!(case.bench.0.violations().len(), 1);
    }
}
