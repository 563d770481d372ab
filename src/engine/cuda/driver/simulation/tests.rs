//! The simulation has teeth, and bites nobody who keeps the rules.

#![allow(clippy::unwrap_used)] // a test that panics has failed

mod programs;

use std::ptr;
use std::sync::Arc;

use super::*;

const SITE: Site = Site("test");

fn device_span(memory: DeviceMemory, offset: usize, len: usize) -> DeviceSpan {
    DeviceSpan {
        memory,
        offset,
        len,
    }
}

fn pinned_span(memory: PinnedMemory, offset: usize, len: usize) -> PinnedSpan {
    PinnedSpan {
        memory,
        offset,
        len,
    }
}

/// A simulation with the context current, and shorter names.
struct Bench(Simulation);

impl Bench {
    fn new(config: Config) -> Self {
        let simulation = Simulation::new(config);
        simulation.enter().unwrap();
        Self(simulation)
    }

    fn device(&self, len: usize) -> DeviceSpan {
        device_span(self.0.allocate(len).unwrap(), 0, len)
    }

    fn pinned(&self, len: usize) -> PinnedSpan {
        let memory = self.0.allocate_pinned(len, PinnedUse::FromDevice).unwrap();
        pinned_span(memory, 0, len)
    }

    fn stream(&self) -> StreamId {
        self.0.create_stream().unwrap()
    }

    fn upload(
        &self,
        stream: StreamId,
        from: PinnedSpan,
        to: DeviceSpan,
    ) -> Result<(), DriverError> {
        // SAFETY: the simulation checks what it is told.
        unsafe { self.0.copy(stream, Span::Pinned(from), Span::Device(to)) }
    }

    fn download(
        &self,
        stream: StreamId,
        from: DeviceSpan,
        to: PinnedSpan,
    ) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { self.0.copy(stream, Span::Device(from), Span::Pinned(to)) }
    }

    /// Write a pinned span.
    fn write(&self, span: PinnedSpan, bytes: &[u8]) -> Result<(), DriverError> {
        assert_eq!(bytes.len(), span.len);
        self.0.host_access(span, Access::Write)?;
        // SAFETY: within the span, and nobody else uses it now.
        unsafe {
            let to = span.memory.0.as_ptr().add(span.offset);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, span.len);
        }
        Ok(())
    }

    /// Read a pinned span.
    fn read(&self, span: PinnedSpan) -> Result<Vec<u8>, DriverError> {
        self.0.host_access(span, Access::Read)?;
        let mut bytes = vec![0; span.len];
        // SAFETY: as above.
        unsafe {
            let from = span.memory.0.as_ptr().add(span.offset);
            ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), span.len);
        }
        Ok(bytes)
    }
}

#[test]
fn bytes_go_there_and_back() {
    let bench = Bench::new(Config::default());
    let (pinned, device, stream) = (bench.pinned(100), bench.device(100), bench.stream());
    let bytes: Vec<u8> = (0..100).collect();
    bench.write(pinned, &bytes).unwrap();
    bench.upload(stream, pinned, device).unwrap();
    let back = bench.pinned(100);
    bench.download(stream, device, back).unwrap();
    bench.0.synchronize_stream(stream, SITE).unwrap();
    assert_eq!(bench.read(back).unwrap(), bytes);
    assert!(bench.0.violations().is_empty());
}

#[test]
fn kernels_run() {
    let bench = Bench::new(Config::default());
    let (pinned, device, stream) = (bench.pinned(1024), bench.device(2048), bench.stream());
    bench
        .write(pinned, &1_u32.to_le_bytes().repeat(256))
        .unwrap();
    let input = device_span(device.memory, 1024, 1024);
    let output = device_span(device.memory, 0, 1024);
    bench.upload(stream, pinned, input).unwrap();
    let args = [
        Arg::Span(input, Access::Read),
        Arg::Span(output, Access::Write),
    ];
    let dims = Dims {
        grid: 1,
        block: 256,
    };
    // SAFETY: what the kernel takes.
    unsafe { bench.0.launch(stream, "test_scan", dims, &args) }.unwrap();
    bench.download(stream, output, pinned).unwrap();
    bench.0.synchronize_stream(stream, SITE).unwrap();
    let sums: Vec<u8> = (1..=256_u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(bench.read(pinned).unwrap(), sums);
    assert!(bench.0.violations().is_empty());
}

/// What was broken, and no more than that.
#[track_caller]
fn only_violation(simulation: &Simulation) -> Violation {
    let violations = simulation.violations();
    assert_eq!(violations.len(), 1, "{violations:#?}");
    violations[0].clone()
}

/// The call was refused, and this rule was broken.
#[track_caller]
fn refused<T: fmt::Debug>(bench: &Bench, result: Result<T, DriverError>, rule: Rule) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.fault, Fault::Refused, "{error}");
    assert!(error.reason.starts_with("simulation: "), "{error}");
    let violation = only_violation(&bench.0);
    assert_eq!(violation.rule, rule, "{violation:?}");
    violation.message
}

/// All schedules, some of them with priorities.
fn schedules() -> impl Iterator<Item = Schedule> {
    [Schedule::Eager, Schedule::Latest]
        .into_iter()
        .chain((0..200).map(Schedule::Priority))
}

const RECORD: Site = Site("record the upload");
const WAIT: Site = Site("wait for the upload");
const AGAIN: Site = Site("synchronise before the staging is overwritten");
const RECORD_AGAIN: Site = Site("record that the staging was read");
const WAIT_BACK: Site = Site("wait for the download before the next upload");
const RECORD_BACK: Site = Site("record the download");
const END: Site = Site("synchronise with the download");

/// Move bytes through one pinned buffer and one device buffer, upwards in one stream and back in
/// another, three times. Right in each of its edges.
fn ring(config: Config) -> (Bench, Result<Vec<u8>, DriverError>) {
    let bench = Bench::new(config);
    let result = (|| {
        let driver = &bench.0;
        let (up, down) = (driver.create_stream()?, driver.create_stream()?);
        let (uploaded, downloaded) = (driver.create_event()?, driver.create_event()?);
        let memory = driver.allocate_pinned(64, PinnedUse::ToDevice)?;
        let staging = pinned_span(memory, 0, 64);
        let memory = driver.allocate_pinned(192, PinnedUse::FromDevice)?;
        let back = |i: usize| pinned_span(memory, i * 64, 64);
        let device = device_span(driver.allocate(64)?, 0, 64);
        for i in 0..3_u8 {
            if i > 0 {
                driver.synchronize(uploaded, AGAIN)?;
                driver.wait(up, downloaded, WAIT_BACK)?;
            }
            bench.write(staging, &[i; 64])?;
            bench.upload(up, staging, device)?;
            driver.record(uploaded, up, if i == 0 { RECORD } else { RECORD_AGAIN })?;
            driver.wait(down, uploaded, WAIT)?;
            bench.download(down, device, back(i.into()))?;
            driver.record(downloaded, down, RECORD_BACK)?;
        }
        driver.synchronize_stream(down, END)?;
        let mut bytes = Vec::new();
        for i in 0..3 {
            bytes.extend(bench.read(back(i))?);
        }
        // SAFETY: the streams are empty: the last download is after all else.
        unsafe {
            driver.free_pinned(staging.memory)?;
            driver.free_pinned(memory)?;
            driver.free(device.memory)?;
        }
        driver.destroy_event(uploaded)?;
        driver.destroy_event(downloaded)?;
        driver.destroy_stream(up)?;
        driver.destroy_stream(down)?;
        driver.leave()?;
        Ok(bytes)
    })();
    (bench, result)
}

#[test]
fn a_right_program_is_right_under_every_schedule() {
    let expected = [[0; 64], [1; 64], [2; 64]].concat();
    for schedule in schedules() {
        let (bench, bytes) = ring(Config {
            schedule,
            ..Config::default()
        });
        assert_eq!(bytes.unwrap(), expected, "{schedule:?}");
        assert!(bench.0.violations().is_empty());
        assert_eq!(bench.0.live(), Live::default());
        let sites = [
            RECORD,
            WAIT,
            AGAIN,
            RECORD_AGAIN,
            WAIT_BACK,
            RECORD_BACK,
            END,
        ];
        assert_eq!(bench.0.sites(), sites.into());
    }
}

#[test]
fn each_edge_is_needed_under_every_schedule() {
    let removed = [
        (RECORD, Rule::Event),
        (WAIT, Rule::Order),
        (AGAIN, Rule::Order),
        (RECORD_AGAIN, Rule::Order),
        (WAIT_BACK, Rule::Order),
        (RECORD_BACK, Rule::Event),
        (END, Rule::Order),
    ];
    for schedule in schedules().take(10) {
        for (site, rule) in removed {
            let (bench, bytes) = ring(Config {
                schedule,
                removed: Some(site),
                ..Config::default()
            });
            let message = refused(&bench, bytes, rule);
            assert!(bench.0.sites().contains(&site), "{message}");
        }
    }
}

#[test]
fn a_missing_wait_is_named() {
    let bench = Bench::new(Config::default());
    let (a, b) = (bench.stream(), bench.stream());
    let (pinned, device) = (bench.pinned(64), bench.device(256));
    bench.write(pinned, &[1; 64]).unwrap();
    bench
        .upload(a, pinned, device_span(device.memory, 64, 64))
        .unwrap();
    // SAFETY: the simulation checks what it is told.
    let fill = |stream, offset| unsafe {
        bench
            .0
            .fill(stream, device_span(device.memory, offset, 64), 0)
    };
    fill(b, 0).unwrap();
    fill(b, 128).unwrap();
    let message = refused(&bench, fill(b, 65), Rule::Order);
    for part in [
        "fill DeviceSpan",
        "in stream 2: it writes bytes 65..129 of device memory 1",
        "a copy (operation 1 of stream 1) writes bytes 64..128 of device memory 1",
        "stream 2 has not waited for an event recorded in stream 1 after it",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn pinned_memory_is_the_hosts_only_when_it_has_waited() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        for access in [Access::Read, Access::Write, Access::Update] {
            for upload in [true, false] {
                let bench = Bench::new(Config {
                    schedule,
                    ..Config::default()
                });
                let (stream, event) = (bench.stream(), bench.0.create_event().unwrap());
                let (pinned, device) = (bench.pinned(64), bench.device(64));
                bench.write(pinned, &[1; 64]).unwrap();
                bench.upload(stream, pinned, device).unwrap();
                if !upload {
                    bench.0.synchronize_stream(stream, SITE).unwrap();
                    bench.download(stream, device, pinned).unwrap();
                }
                let byte = pinned_span(pinned.memory, 63, 1);
                if upload && access == Access::Read {
                    // Both read.
                    bench.0.host_access(byte, access).unwrap();
                    continue;
                }
                let message = refused(&bench, bench.0.host_access(byte, access), Rule::Order);
                assert!(
                    message.contains("the host has not synchronised with stream"),
                    "{message}"
                );
                bench.0.record(event, stream, SITE).unwrap();
                bench.0.synchronize(event, SITE).unwrap();
                bench.0.host_access(byte, access).unwrap();
            }
        }
    }
}

#[test]
fn an_event_that_has_happened_was_waited_for() {
    for schedule in schedules().take(20) {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let (stream, event) = (bench.stream(), bench.0.create_event().unwrap());
        let (pinned, device) = (bench.pinned(64), bench.device(64));
        bench.write(pinned, &[1; 64]).unwrap();
        bench.upload(stream, pinned, device).unwrap();
        bench.0.record(event, stream, SITE).unwrap();
        let mut queries = 1;
        while !bench.0.query_event(event).unwrap() {
            queries += 1;
        }
        match schedule {
            Schedule::Eager => assert_eq!(queries, 1),
            Schedule::Latest => assert_eq!(queries, 2),
            Schedule::Priority(_) => assert!(queries <= 2),
        }
        bench.write(pinned, &[2; 64]).unwrap();
        assert!(bench.0.violations().is_empty());
    }
}

#[test]
fn events_that_were_never_recorded_are_refused() {
    type Use = fn(&Simulation, StreamId, EventId) -> Result<(), DriverError>;
    let uses: [Use; 4] = [
        |driver, stream, event| driver.wait(stream, event, SITE),
        |driver, _, event| driver.synchronize(event, SITE),
        |driver, _, event| driver.query_event(event).map(drop),
        |driver, _, event| driver.elapsed(event, event).map(drop),
    ];
    for use_event in uses {
        let bench = Bench::new(Config::default());
        let (stream, event) = (bench.stream(), bench.0.create_event().unwrap());
        let message = refused(&bench, use_event(&bench.0, stream, event), Rule::Event);
        assert!(message.contains("was never recorded"), "{message}");
        bench.0.record(event, stream, SITE).unwrap();
        use_event(&bench.0, stream, event).unwrap();
        bench.0.destroy_event(event).unwrap();
        assert!(use_event(&bench.0, stream, event).is_err());
        let lifetime = bench.0.violations()[1].clone();
        assert_eq!(lifetime.rule, Rule::Lifetime, "{lifetime:?}");
    }
}

#[test]
fn spans_are_within_their_allocations() {
    let bench = Bench::new(Config::default());
    let device = bench.device(64);
    let stream = bench.stream();
    // SAFETY: the simulation checks what it is told.
    let fill = |offset, len| unsafe {
        bench
            .0
            .fill(stream, device_span(device.memory, offset, len), 0)
    };
    for (offset, len) in [(0, 64), (63, 1), (64, 0), (0, 0)] {
        fill(offset, len).unwrap();
    }
    for (offset, len) in [(0, 65), (64, 1), (65, 0), (usize::MAX, 1), (1, usize::MAX)] {
        let before = bench.0.violations().len();
        fill(offset, len).unwrap_err();
        let violations = bench.0.violations();
        assert_eq!(violations.len(), before + 1);
        assert_eq!(violations[before].rule, Rule::Bounds);
    }
}

#[test]
fn freed_memory_is_not_used() {
    let bench = Bench::new(Config::default());
    let (device, pinned, stream) = (bench.device(64), bench.pinned(64), bench.stream());
    // SAFETY: nothing uses it; later, the simulation checks what it is told.
    unsafe {
        bench.0.free(device.memory).unwrap();
        bench.0.free_pinned(pinned.memory).unwrap();
        let message = refused(&bench, bench.0.fill(stream, device, 0), Rule::Lifetime);
        assert!(message.ends_with("device memory 0 was freed"), "{message}");
        bench.0.free(device.memory).unwrap_err();
        bench.0.free_pinned(pinned.memory).unwrap_err();
    }
    bench.0.host_access(pinned, Access::Write).unwrap_err();
    bench.0.discard(Span::Device(device)).unwrap_err();
    let violations = bench.0.violations();
    assert_eq!(violations.len(), 5);
    assert!(
        violations.iter().all(|v| v.rule == Rule::Lifetime),
        "{violations:?}"
    );
}

#[test]
fn memory_in_use_is_not_freed() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let (device, pinned, stream) = (bench.device(64), bench.pinned(64), bench.stream());
        bench.write(pinned, &[1; 64]).unwrap();
        bench.upload(stream, pinned, device).unwrap();
        // SAFETY: the simulation checks what it is told.
        let free = || unsafe { bench.0.free_pinned(pinned.memory) };
        let message = refused(&bench, free(), Rule::Lifetime);
        assert!(
            message.contains("freed while in use: a copy (operation 1"),
            "{message}"
        );
        bench.0.synchronize_stream(stream, SITE).unwrap();
        free().unwrap();
    }
}

#[test]
fn bytes_that_were_never_written_are_not_read() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let (device, pinned, stream) = (bench.device(64), bench.pinned(64), bench.stream());
        let part = device_span(device.memory, 0, 48);
        // SAFETY: the simulation checks what it is told.
        unsafe { bench.0.fill(stream, part, 0) }.unwrap();
        let message = refused(
            &bench,
            bench.download(stream, device, pinned),
            Rule::Uninitialised,
        );
        assert!(
            message.contains("of which 48..64 were never written"),
            "{message}"
        );
        let download = || bench.download(stream, part, pinned_span(pinned.memory, 16, 48));
        download().unwrap();
        bench.0.synchronize_stream(stream, SITE).unwrap();
        bench.read(pinned_span(pinned.memory, 16, 48)).unwrap();
        bench.read(pinned).unwrap_err();
        bench.0.host_access(pinned, Access::Update).unwrap_err();
        bench
            .0
            .discard(Span::Device(device_span(device.memory, 47, 1)))
            .unwrap();
        download().unwrap_err();
        let violations = bench.0.violations();
        assert_eq!(violations.len(), 4);
        assert!(
            violations.iter().all(|v| v.rule == Rule::Uninitialised),
            "{violations:?}"
        );
        assert!(
            violations[3]
                .message
                .contains("of which 47..48 were never written")
        );
    }
}

#[test]
fn what_is_discarded_is_poisoned_and_not_in_use() {
    let bench = Bench::new(Config::default());
    let (device, pinned, stream) = (bench.device(64), bench.pinned(64), bench.stream());
    bench.write(pinned, &[0; 64]).unwrap();
    bench.upload(stream, pinned, device).unwrap();
    refused(&bench, bench.0.discard(Span::Pinned(pinned)), Rule::Order);
    bench.0.synchronize_stream(stream, SITE).unwrap();
    bench.0.discard(Span::Pinned(pinned)).unwrap();
    // SAFETY: within the span, initialised by the poison, and nobody else uses it.
    let bytes = unsafe { std::slice::from_raw_parts(pinned.memory.0.as_ptr(), 64) };
    assert_ne!(bytes, [0; 64]);
}

#[test]
fn what_is_left_is_counted() {
    let bench = Bench::new(Config::default());
    let (device, pinned, stream) = (bench.device(300), bench.pinned(64), bench.stream());
    let event = bench.0.create_event().unwrap();
    assert_eq!(
        bench.0.live(),
        Live {
            device_allocations: 1,
            device_bytes: 512,
            pinned_allocations: 1,
            pinned_bytes: 4096,
            streams: 1,
            events: 1,
            entered: 1,
        }
    );
    // SAFETY: nothing uses it.
    unsafe {
        bench.0.free(device.memory).unwrap();
        bench.0.free_pinned(pinned.memory).unwrap();
    }
    bench.0.destroy_event(event).unwrap();
    bench.0.destroy_stream(stream).unwrap();
    bench.0.leave().unwrap();
    assert_eq!(bench.0.live(), Live::default());
    assert_eq!(bench.0.peak(Kind::Device), 512);
    assert_eq!(bench.0.peak(Kind::Pinned), 4096);
    assert!(bench.0.violations().is_empty());
}

#[test]
fn allocations_are_aligned() {
    let bench = Bench::new(Config::default());
    for len in [1, 255, 257, 5000] {
        assert_eq!(bench.device(len).memory.0 % 256, 0);
        assert_eq!(bench.pinned(len).memory.0.addr().get() % 4096, 0);
    }
}

/// A library that writes `len` bytes from `offset` bytes from the first one of `span` on.
fn writes(span: DeviceSpan, offset: isize, len: usize) -> LibraryCall {
    Box::new(move |_| {
        let first = ptr::with_exposed_provenance_mut::<u8>(span.memory.0 as usize);
        // SAFETY: within the allocation or the zones around it.
        unsafe { first.offset(offset).write_bytes(7, len) };
        Ok(())
    })
}

#[test]
fn a_library_keeps_within_its_spans() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        // What it writes of 512 bytes, of which it may write 128..256 and read 256..384.
        let wrong = [
            (
                120,
                16,
                "it wrote byte 120 of device memory 0, which is in none of its spans",
            ),
            (
                250,
                10,
                "it wrote byte 256 of device memory 0, which it was to read only",
            ),
            (
                511,
                1,
                "it wrote byte 511 of device memory 0, which is in none of its spans",
            ),
            (
                512,
                1,
                "it wrote byte 512 of device memory 0, which has 512 bytes",
            ),
            (
                -1,
                1,
                "it wrote byte -1 of device memory 0, which has 512 bytes",
            ),
        ];
        for (offset, len, expected) in [(128, 128, "")].into_iter().chain(wrong) {
            let bench = Bench::new(Config {
                schedule,
                ..Config::default()
            });
            let (device, stream) = (bench.device(512), bench.stream());
            let part = |offset| Span::Device(device_span(device.memory, offset, 128));
            let accesses = [(part(128), Access::Write), (part(256), Access::Read)];
            // SAFETY: the simulation checks what it is told.
            unsafe { bench.0.fill(stream, device, 7) }.unwrap();
            let calls = || {
                // SAFETY: as above.
                unsafe {
                    bench
                        .0
                        .call(stream, "write", &accesses, writes(device, offset, len))
                }?;
                bench.0.synchronize_stream(stream, SITE)
            };
            if expected.is_empty() {
                calls().unwrap();
                continue;
            }
            // A byte that is what it was shows only where it was hidden.
            if offset == 250 {
                // SAFETY: as above.
                unsafe { bench.0.fill(stream, device, 8) }.unwrap();
            }
            let message = refused(&bench, calls(), Rule::Guard);
            assert_eq!(message, format!("library call write: {expected}"));
        }
    }
}

#[test]
fn undeclared_bytes_are_hidden_and_come_back() {
    let bench = Bench::new(Config::default());
    let (device, pinned, stream) = (bench.device(64), bench.pinned(64), bench.stream());
    // SAFETY: the simulation checks what it is told.
    unsafe { bench.0.fill(stream, device, 7) }.unwrap();
    let to = device_span(device.memory, 0, 32);
    let copy: LibraryCall = Box::new(move |_| {
        let first = ptr::with_exposed_provenance_mut::<u8>(to.memory.0 as usize);
        // SAFETY: the two halves of the allocation.
        unsafe { ptr::copy_nonoverlapping(first.add(32), first, 32) };
        Ok(())
    });
    // SAFETY: as above.
    unsafe {
        bench
            .0
            .call(stream, "copy", &[(Span::Device(to), Access::Write)], copy)
    }
    .unwrap();
    bench.download(stream, device, pinned).unwrap();
    bench.0.synchronize_stream(stream, SITE).unwrap();
    let bytes = bench.read(pinned).unwrap();
    assert_ne!(bytes[..32], [7; 32]);
    assert_eq!(bytes[32..], [7; 32]);
}

#[test]
fn a_kernel_that_breaks_a_rule_is_named() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let stream = bench.stream();
        let launch = || {
            let dims = Dims { grid: 1, block: 64 };
            let args = [Arg::U32(40)];
            // SAFETY: what the kernel takes.
            unsafe { bench.0.launch(stream, "test_missing_lane", dims, &args) }?;
            bench.0.synchronize_stream(stream, SITE)
        };
        let message = refused(&bench, launch(), Rule::Kernel);
        assert!(
            message.starts_with("kernel test_missing_lane: "),
            "{message}"
        );
    }
}

#[test]
fn schedules_differ() {
    let orders: BTreeSet<_> = schedules()
        .map(|schedule| {
            let bench = Bench::new(Config {
                schedule,
                ..Config::default()
            });
            let streams = [bench.stream(), bench.stream(), bench.stream()];
            let event = bench.0.create_event().unwrap();
            let log = Arc::new(Mutex::new(Vec::new()));
            for i in 0..4 {
                for (name, stream) in streams.iter().enumerate() {
                    let log = log.clone();
                    let function: LibraryCall = Box::new(move |_| {
                        log.lock().unwrap().push((name, i));
                        Ok(())
                    });
                    // SAFETY: it touches no memory of the device.
                    unsafe { bench.0.call(*stream, "log", &[], function) }.unwrap();
                }
                if i == 1 {
                    bench.0.record(event, streams[1], SITE).unwrap();
                    bench.0.wait(streams[0], event, SITE).unwrap();
                }
            }
            let done = log.lock().unwrap().len();
            for stream in &streams {
                bench.0.synchronize_stream(*stream, SITE).unwrap();
            }
            let log = log.lock().unwrap().clone();
            let position = |operation| log.iter().position(|o| *o == operation).unwrap();
            assert_eq!(log.len(), 12);
            for stream in 0..3 {
                assert!((1..4).all(|i| position((stream, i - 1)) < position((stream, i))));
            }
            assert!(position((1, 1)) < position((0, 2)));
            match schedule {
                Schedule::Eager => assert_eq!(done, 12),
                Schedule::Latest => {
                    assert_eq!(done, 0);
                    assert_eq!(log[..4], [(0, 0), (0, 1), (1, 0), (1, 1)]);
                    assert_eq!(log[4..8], [(0, 2), (0, 3), (1, 2), (1, 3)]);
                }
                Schedule::Priority(_) => {}
            }
            log
        })
        .collect();
    assert!(orders.len() > 100, "{}", orders.len());
}

#[test]
fn a_librarys_error_is_no_violation() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let stream = bench.stream();
        let error = (|| {
            let function: LibraryCall = Box::new(|_| Err("no".into()));
            // SAFETY: it does nothing.
            unsafe { bench.0.call(stream, "refuse", &[], function) }?;
            bench.0.synchronize_stream(stream, SITE)
        })();
        let error = error.unwrap_err();
        assert_eq!(error.fault, Fault::Refused);
        assert!(error.reason.ends_with("library call refuse: no"), "{error}");
        assert!(bench.0.violations().is_empty());
        bench.0.synchronize_stream(stream, SITE).unwrap();
    }
}

#[test]
fn arguments_are_checked() {
    let bench = Bench::new(Config::default());
    let (device, stream) = (bench.device(64), bench.stream());
    let part = |offset, len| Span::Device(device_span(device.memory, offset, len));
    // SAFETY: the simulation checks what it is told.
    unsafe {
        bench.0.fill(stream, device, 0).unwrap();
        bench.0.copy(stream, part(0, 32), part(32, 32)).unwrap();
        bench.0.copy(stream, part(0, 32), part(31, 32)).unwrap_err();
        bench.0.copy(stream, part(0, 32), part(32, 31)).unwrap_err();
        for (grid, block) in [(0, 32), (1 << 31, 32), (1, 0), (1, 33), (1, 2048)] {
            let dims = Dims { grid, block };
            bench.0.launch(stream, "test_scan", dims, &[]).unwrap_err();
        }
    }
    bench.0.allocate(0).unwrap_err();
    let violations = bench.0.violations();
    assert_eq!(violations.len(), 8);
    assert!(
        violations.iter().all(|v| v.rule == Rule::Argument),
        "{violations:?}"
    );
}

#[test]
fn threads_share_a_device() {
    for schedule in schedules().take(20) {
        let simulation = Simulation::new(Config {
            schedule,
            ..Config::default()
        });
        let rounds = |byte: u8| {
            simulation.enter()?;
            let (stream, event) = (simulation.create_stream()?, simulation.create_event()?);
            let from = pinned_span(simulation.allocate_pinned(64, PinnedUse::ToDevice)?, 0, 64);
            let to = pinned_span(
                simulation.allocate_pinned(64, PinnedUse::FromDevice)?,
                0,
                64,
            );
            let device = device_span(simulation.allocate(64)?, 0, 64);
            for i in 0..20 {
                // SAFETY: nobody else uses the spans, and the event is waited for.
                unsafe {
                    simulation.host_access(from, Access::Write)?;
                    from.memory.0.write_bytes(byte + i, 64);
                    simulation.copy(stream, Span::Pinned(from), Span::Device(device))?;
                    simulation.copy(stream, Span::Device(device), Span::Pinned(to))?;
                    simulation.record(event, stream, SITE)?;
                    simulation.synchronize(event, SITE)?;
                    simulation.host_access(to, Access::Read)?;
                    let bytes = std::slice::from_raw_parts(to.memory.0.as_ptr(), 64);
                    assert_eq!(bytes, [byte + i; 64]);
                }
            }
            // SAFETY: the stream is empty.
            unsafe {
                simulation.free(device.memory)?;
                simulation.free_pinned(from.memory)?;
                simulation.free_pinned(to.memory)?;
            }
            simulation.destroy_event(event)?;
            simulation.destroy_stream(stream)?;
            simulation.leave()
        };
        thread::scope(|scope| {
            let threads = [0, 50, 100, 150].map(|byte| scope.spawn(move || rounds(byte)));
            for thread in threads {
                thread.join().unwrap().unwrap();
            }
        });
        assert!(simulation.violations().is_empty());
        assert_eq!(simulation.live(), Live::default());
    }
}

#[test]
fn the_context_is_current_per_thread() {
    let bench = Bench::new(Config::default());
    bench.0.enter().unwrap();
    bench.0.leave().unwrap();
    let device = bench.device(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            bench.0.discard(Span::Device(device)).unwrap_err();
            bench.0.create_event().unwrap_err();
            bench.0.enter().unwrap();
            bench.0.create_event().unwrap();
            bench.0.leave().unwrap();
        });
    });
    bench.0.leave().unwrap();
    bench.0.free_memory().unwrap_err();
    bench.0.leave().unwrap_err();
    let violations = bench.0.violations();
    assert_eq!(violations.len(), 4);
    assert!(
        violations.iter().all(|v| v.rule == Rule::Context),
        "{violations:?}"
    );
}

#[test]
fn events_take_the_time() {
    let mut times = Vec::new();
    for schedule in schedules().take(20) {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let (device, stream, other) = (bench.device(2 << 20), bench.stream(), bench.stream());
        let events: Vec<_> = (0..4).map(|_| bench.0.create_event().unwrap()).collect();
        let fill = |stream, offset, len| {
            // SAFETY: the simulation checks what it is told.
            unsafe {
                bench
                    .0
                    .fill(stream, device_span(device.memory, offset, len), 0)
            }
            .unwrap();
        };
        bench.0.record(events[0], stream, SITE).unwrap();
        fill(stream, 0, 1 << 10);
        bench.0.record(events[1], stream, SITE).unwrap();
        fill(stream, 0, 1 << 20);
        bench.0.record(events[2], stream, SITE).unwrap();
        bench.0.wait(other, events[2], SITE).unwrap();
        fill(other, 1 << 20, 1);
        bench.0.record(events[3], other, SITE).unwrap();
        let time = |begin: usize, end: usize| bench.0.elapsed(events[begin], events[end]);
        if schedule == Schedule::Latest {
            refused(&bench, time(0, 3), Rule::Event);
        }
        bench.0.synchronize_stream(other, SITE).unwrap();
        let time = |begin, end| time(begin, end).unwrap();
        assert!(time(0, 1) > Duration::ZERO);
        assert!(time(1, 2) > time(0, 1));
        assert_eq!(time(0, 3), time(0, 1) + time(1, 2) + time(2, 3));
        times.push(time(0, 3));
    }
    assert!(times.iter().all(|t| *t == times[0]), "{times:?}");
}

#[test]
fn memory_runs_out() {
    let bench = Bench::new(Config {
        memory: 1024,
        pinned: 4096,
        ..Config::default()
    });
    let out =
        |result: Result<(), DriverError>| assert_eq!(result.unwrap_err().fault, Fault::OutOfMemory);
    let device = bench.device(257);
    assert_eq!(bench.0.free_memory().unwrap(), 512);
    out(bench.0.allocate(513).map(drop));
    out(bench.0.allocate(usize::MAX).map(drop));
    bench.device(512);
    out(bench.0.allocate(1).map(drop));
    // SAFETY: nothing uses it.
    unsafe { bench.0.free(device.memory) }.unwrap();
    bench.device(512);
    bench.0.set_memory(512);
    assert_eq!(bench.0.free_memory().unwrap(), 0);
    bench.pinned(4096);
    out(bench.0.allocate_pinned(1, PinnedUse::ToDevice).map(drop));
    assert!(bench.0.violations().is_empty());
}

#[test]
fn an_injected_allocation_fails_once() {
    let device = Kind::Device;
    let kinds = [Kind::Pinned, Kind::Device, Kind::Pinned, Kind::Device];
    let of = |kind, allocation| Inject::OutOfMemoryOf { kind, allocation };
    for (fault, failing) in [
        (Inject::OutOfMemory { allocation: 0 }, 0),
        (Inject::OutOfMemory { allocation: 3 }, 3),
        (of(device, 1), 3),
        (of(Kind::Pinned, 1), 2),
    ] {
        let bench = Bench::new(Config {
            faults: vec![fault],
            ..Config::default()
        });
        for (i, kind) in kinds.into_iter().enumerate() {
            let result = match kind {
                Kind::Device => bench.0.allocate(1).map(drop),
                Kind::Pinned => bench.0.allocate_pinned(1, PinnedUse::ToDevice).map(drop),
            };
            assert_eq!(
                result.err().map(|e| e.fault),
                (i == failing).then_some(Fault::OutOfMemory)
            );
        }
        assert!(bench.0.violations().is_empty());
    }
}

#[test]
fn an_injected_launch_is_refused_once() {
    let bench = Bench::new(Config::default());
    let stream = bench.stream();
    let call = || {
        // SAFETY: it does nothing.
        unsafe { bench.0.call(stream, "nothing", &[], Box::new(|_| Ok(()))) }
    };
    call().unwrap();
    let launch = bench.0.counts().launches;
    bench.0.inject(Inject::Refused { launch });
    assert_eq!(call().unwrap_err().fault, Fault::Refused);
    call().unwrap();
    assert!(bench.0.violations().is_empty());
}

#[test]
fn nothing_works_after_a_sticky_fault() {
    let operations = ring(Config::default()).0.0.counts().operations;
    assert!(operations > 20);
    for operation in 0..operations {
        for fault in [Inject::Sticky { operation }, Inject::Lost { operation }] {
            let (bench, result) = ring(Config {
                faults: vec![fault],
                ..Config::default()
            });
            assert_eq!(result.unwrap_err().fault, Fault::Sticky);
            assert_eq!(bench.0.counts().operations, operation + 1);
            assert!(bench.0.violations().is_empty());
            for result in [
                bench.0.create_event().map(drop),
                bench.0.free_memory().map(drop),
                bench.0.enter(),
            ] {
                assert_eq!(result.unwrap_err().fault, Fault::Sticky);
            }
            assert!(bench.0.violations().is_empty());
            let freed = bench.0.destroy_event(EventId(1));
            assert_eq!(freed.unwrap_err().fault, Fault::Sticky);
            assert_eq!(only_violation(&bench.0).rule, Rule::Context);
            bench.0.leave().unwrap();
        }
    }
    assert!(
        ring(Config {
            faults: vec![Inject::Lost {
                operation: operations
            }],
            ..Config::default()
        })
        .1
        .is_ok()
    );
}
