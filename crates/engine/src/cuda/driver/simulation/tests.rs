//! The simulation has teeth, and bites nobody who keeps the rules.

#![allow(clippy::unwrap_used)] // a test that panics has failed

mod faults;
mod kernels;
mod memory;
mod order;
mod programs;
mod rows;

use std::ptr;

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

    /// Writes a pinned span.
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

    /// Reads a pinned span.
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
    let (pinned, device, stream) = (bench.pinned(1024), bench.device(4096), bench.stream());
    bench
        .write(pinned, &1_u64.to_le_bytes().repeat(128))
        .unwrap();
    let input = device_span(device.memory, 2048, 1024);
    let output = device_span(device.memory, 0, 1032);
    bench.upload(stream, pinned, input).unwrap();
    let args = [
        Arg::Span(input, Access::Read),
        Arg::U64(128),
        Arg::Span(output, Access::Write),
    ];
    let dims = Dims {
        grid: 1,
        block: 256,
    };
    // SAFETY: what the kernel takes.
    unsafe { bench.0.launch(stream, "scan_whole", dims, &args) }.unwrap();
    let back = bench.pinned(1032);
    bench.download(stream, output, back).unwrap();
    bench.0.synchronize_stream(stream, SITE).unwrap();
    let sums: Vec<u8> = (0..=128_u64).flat_map(u64::to_le_bytes).collect();
    assert_eq!(bench.read(back).unwrap(), sums);
    assert!(bench.0.violations().is_empty());
}

/// Returns the violation, and checks that there is no other one.
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

/// Returns all schedules, some of them with priorities.
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

/// Moves bytes through one pinned buffer and one device buffer, upwards in one stream and back in
/// another, three times. Right in each of its edges.
fn ring(config: Config) -> (Bench, Result<Vec<u8>, DriverError>) {
    let bench = Bench::new(config);
    let result = (|| {
        let driver = &bench.0;
        let (up, down) = (driver.create_stream()?, driver.create_stream()?);
        let (uploaded, downloaded) = (driver.create_event(true)?, driver.create_event(true)?);
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
