//! Streams on a device that hangs, and on a device that waits for an application.

use std::thread;
use std::time::Duration;

use super::levels::{abandon as abandon_both, encode_both, odd, open_both, open_both_on};
use super::sites::abandon;
use super::*;
use crate::contract::stream::{BatchInput, DeviceBytes, Reusable, Windows};
use crate::cuda::driver::simulation::Inject;
use crate::cuda::driver::{DeviceMemory, DeviceSpan, EventId, Site, StreamId};
use crate::cuda::tests::on_gpu::levels::Mix;
use crate::cuda::tests::simulated::hangs::{TIMEOUT, ends};

/// Work on a device, with the host as fallback or without. The bytes that it makes are checked.
pub(in crate::cuda::tests::simulated) type Scenario =
    fn(&Arc<Simulation>, bool) -> Result<(), EngineError>;

/// Scenarios that wait at all sites of streams.
pub(in crate::cuda::tests::simulated) const SCENARIOS: [(&str, Scenario); 4] = [
    ("a stream", plain),
    ("a stream with a fault", with_fault),
    ("a stream whose compressor fails", with_failing_compressor),
    ("two levels", two_levels),
];

fn stream(
    simulation: &Arc<Simulation>,
    stages: Vec<Stage>,
    library: StandIn,
    falls_back: bool,
) -> Result<(), EngineError> {
    let subject = padded(stages);
    let engine = stream_engine(simulation, library, &subject);
    for seed in 0..4 {
        let stream = open(&engine, &subject, falls_back)?;
        encode_with(simulation, &subject, stream, (seed, 1))?;
    }
    abandon(&subject, &*open(&engine, &subject, falls_back)?)
}

fn plain(simulation: &Arc<Simulation>, falls_back: bool) -> Result<(), EngineError> {
    stream(simulation, vec![Stage::Crc32c], StandIn::Six, falls_back)
}

fn with_fault(simulation: &Arc<Simulation>, falls_back: bool) -> Result<(), EngineError> {
    simulation.inject(Inject::Refused { launch: 2 });
    plain(simulation, falls_back)
}

fn with_failing_compressor(
    simulation: &Arc<Simulation>,
    falls_back: bool,
) -> Result<(), EngineError> {
    let zstd = Stage::Zstd {
        level: 3,
        checksum: false,
    };
    stream(simulation, vec![zstd], StandIn::Failing, falls_back)
}

fn two_levels(simulation: &Arc<Simulation>, falls_back: bool) -> Result<(), EngineError> {
    let levels = odd(6);
    let open = || open_both(simulation, &levels, 1, falls_back);
    for seed in 0..4 {
        let (_engine, both) = open()?;
        encode_both(simulation, &levels, both, (seed, Mix::Both, 1))?;
    }
    let (_engine, both) = open()?;
    abandon_both(&levels, &both)
}

/// The stream of an application, whose work does not run, and its memory.
struct StalledApplication {
    simulation: Arc<Simulation>,
    stream: StreamId,
    memory: DeviceMemory,
    len: usize,
}

impl StalledApplication {
    /// Enqueues a fill of the memory.
    fn new(simulation: &Arc<Simulation>, len: usize) -> Self {
        let driver: &dyn Driver = &**simulation;
        driver.enter().expect("no fault");
        let stream = driver.create_stream().expect("no fault");
        let memory = driver.allocate(len).expect("fits");
        simulation.stall(stream, true);
        let span = DeviceSpan {
            memory,
            offset: 0,
            len,
        };
        // SAFETY: the memory is never freed.
        #[allow(unsafe_code)]
        unsafe { driver.fill(stream, span, 3) }.expect("no fault");
        driver.leave().expect("no fault");
        Self {
            simulation: simulation.clone(),
            stream,
            memory,
            len,
        }
    }

    fn bytes(&self) -> DeviceBytes {
        DeviceBytes {
            device: 0,
            pointer: self.memory.0,
            len: self.len,
            stream: self.stream.0,
        }
    }

    /// Lets the work run after much more time than a wait has.
    fn goes_on_later(&self) -> thread::JoinHandle<()> {
        let (simulation, stream) = (self.simulation.clone(), self.stream);
        thread::spawn(move || {
            thread::sleep(TIMEOUT * 10 + Duration::from_secs(2));
            simulation.stall(stream, false);
        })
    }

    /// Lets the work run, and waits until it has run.
    fn finish_stalled(&self) {
        self.simulation.stall(self.stream, false);
        self.finish();
    }

    /// Waits until the work has run.
    fn finish(&self) {
        self.simulation.enter().expect("no fault");
        let finished = self.simulation.synchronize_stream(self.stream, FINISHED);
        finished.expect("no fault");
        self.simulation.leave().expect("no fault");
    }
}

const FINISHED: Site = Site("application: its work has run");

/// A stream, with an input that is partly on the device.
fn lent(
    simulation: &Arc<Simulation>,
    subject: &Subject,
) -> (CudaEngine, Arc<dyn StreamEngine>, StalledApplication) {
    // For a comparison, the application's bytes are copied to the host at once.
    let engine = stream_engine(simulation, StandIn::Six, subject).without_checks();
    let stream = open(&engine, subject, false).expect("fits");
    let application = StalledApplication::new(simulation, subject.job.grid.slice_bytes());
    (engine, stream, application)
}

/// Gives the bytes of an application to an input.
fn give(input: &mut dyn BatchInput, application: &StalledApplication) -> Box<dyn Reusable> {
    #[allow(unsafe_code)]
    // SAFETY: the application keeps its memory.
    let given = unsafe { input.write_from_device(0, &application.bytes()) };
    given.expect("no fault")
}

/// Asserts that an error names the memory of the application.
fn assert_named(error: &EngineError, application: &StalledApplication) {
    let text = error.to_string();
    let (len, pointer) = (application.len, application.memory.0);
    let named = format!("{len} bytes at {pointer:#x}: do not write, reuse or free it");
    assert!(text.contains(&named), "{text}");
    assert!(text.contains("before the process ends"), "{text}");
}

#[test]
fn a_wait_stands_still_while_the_application_works() {
    let simulation = simulation(Schedule::Latest);
    let subject = padded(vec![Stage::Crc32c]);
    let (engine, stream, application) = lent(&simulation, &subject);
    let mut input = stream.input(true).expect("no fault").expect("free");
    let reusable = give(&mut *input, &application);
    let later = application.goes_on_later();
    let waited = ends("the bytes are taken", move || reusable.wait());
    waited.expect("the application was slow, and not the device");
    later.join().expect("no panic");
    // The work of the application is complete, so the clock runs.
    let reusable = give(&mut *input, &application);
    application.finish();
    simulation.hang();
    let waited = ends("the bytes are taken", move || {
        let waited = reusable.wait();
        // Each later wait ends at once, and says the same.
        (waited, reusable.wait(), reusable.query())
    });
    assert_named(&waited.0.expect_err("the device hangs"), &application);
    assert_named(&waited.1.expect_err("the device hangs"), &application);
    assert_named(&waited.2.expect_err("the device hangs"), &application);
    let mut bytes = vec![0; application.len];
    let read = input.read(0, &mut bytes);
    assert_named(&read.expect_err("only the device has them"), &application);
    drop((input, stream, engine));
    assert!(simulation.live().device_allocations == 2 && simulation.violations().is_empty());
}

/// Returns the first two slices of an input, as a window.
fn two_of<'i>(input: &'i mut (dyn BatchInput + 'static)) -> Windows<'i> {
    Windows {
        kept: false,
        above: Some((input, 0..2)),
    }
}

/// The application makes its next bytes after the device has read the last ones, and both never happen.
#[test]
fn an_application_that_waits_for_the_device_does_not_hide_that_it_hangs() {
    let simulation = simulation(Schedule::Latest);
    let subject = padded(vec![Stage::Crc32c]);
    let (engine, stream, application) = lent(&simulation, &subject);
    simulation.stall(application.stream, false);
    let mut input = stream.input(true).expect("no fault").expect("free");
    let first = give(&mut *input, &application);
    simulation.hang();
    simulation.enter().expect("no fault");
    let event = EventId(first.event());
    let waits = simulation.wait(application.stream, event, FINISHED);
    waits.expect("no fault");
    simulation.leave().expect("no fault");
    let last = give(&mut *input, &application);
    let waited = ends("the bytes are taken", move || last.wait());
    assert_named(&waited.expect_err("the device hangs"), &application);
    drop((input, first, stream, engine));
    assert!(simulation.violations().is_empty());
}

/// Streams of kernels, levels below, and lanes that are given up wait for the application, too.
#[test]
fn everything_behind_the_application_stands_still() {
    let levels = odd(4);
    let slice = levels.above.job.grid.slice_bytes();
    let simulation = simulation(Schedule::Latest);
    // A comparison waits for the device, and so for the application, at once.
    let engine = stream_engine(&simulation, StandIn::Six, &levels.above).without_checks();
    let (engine, [above, below]) = open_both_on(engine, &levels, false).expect("fits");
    let mut input = above.input(true).expect("no fault").expect("free");
    let mut made = below.input(true).expect("no fault").expect("free");
    // The padding of both levels is on the device before the application's stream stalls.
    input
        .write(0, &levels.above.bytes[..2 * slice])
        .expect("fits");
    below
        .reduce(two_of(&mut *input), &mut *made, 0)
        .expect("no fault");
    drop(input);
    let mut input = above.input(true).expect("no fault").expect("free");
    let application = StalledApplication::new(&simulation, 2 * slice);
    drop(give(&mut *input, &application));
    below
        .reduce(two_of(&mut *input), &mut *made, 0)
        .expect("no fault");
    let later = application.goes_on_later();
    let len = levels.below.job.grid.slice_bytes();
    let read = ends("slices that were reduced", move || {
        let mut bytes = vec![0; len];
        made.read(0, &mut bytes).map(|()| bytes)
    });
    later.join().expect("no panic");
    assert!(
        read.expect("the application was slow")
            .iter()
            .all(|byte| *byte == 3)
    );

    drop(input);
    let mut input = above.input(true).expect("no fault").expect("free");
    let application = StalledApplication::new(&simulation, 2 * slice);
    drop(give(&mut *input, &application));
    let later = application.goes_on_later();
    ends("the lanes are given up", move || {
        drop((input, above, below));
    });
    later.join().expect("no panic");
    assert!(engine.numbers().is_ok());
    let metrics = engine.counters().snapshot();
    assert_eq!(metrics.lanes_leaked, 0);
    assert!(simulation.violations().is_empty());
}

/// An application that never goes on does not hide that the device hangs: another lane notices.
#[test]
fn a_wait_for_an_application_ends_with_the_device() {
    let simulation = simulation(Schedule::Latest);
    let subject = padded(vec![Stage::Crc32c]);
    let (engine, stream, application) = lent(&simulation, &subject);
    let mut input = stream.input(true).expect("no fault").expect("free");
    let reusable = give(&mut *input, &application);
    simulation.hang();
    let waits = thread::spawn(move || reusable.wait());
    let shard = engine.clone();
    let error = ends("a shard", move || Shard::new(1).round_trip(&shard));
    error.expect_err("the device hangs");
    let waited = ends("the bytes are taken", move || {
        waits.join().expect("no panic")
    });
    assert_named(&waited.expect_err("the device hangs"), &application);
    drop((input, stream, engine));
    assert!(simulation.violations().is_empty());
}

/// The device may still write the pinned memory of an input that it brings back. That memory is not
/// used again, by this input or another one.
#[test]
fn memory_that_the_device_may_still_write_is_not_used_again() {
    let simulation = simulation(Schedule::Latest);
    let subject = padded(vec![Stage::Crc32c]);
    let (engine, stream, application) = lent(&simulation, &subject);
    simulation.stall(application.stream, false);
    let mut input = stream.input(true).expect("no fault").expect("free");
    let other = stream.input(true).expect("no fault").expect("free");
    let reusable = give(&mut *input, &application);
    reusable.wait().expect("no fault");
    simulation.hang();
    let mut bytes = vec![0; application.len];
    input.read(0, &mut bytes).expect_err("the device hangs");
    input.write(0, &bytes).expect_err("the device may write it");
    input
        .read(0, &mut bytes)
        .expect_err("the device may write it");
    drop((input, other));
    // One of the two inputs does not come back.
    let again = stream.input(true).expect("no fault").expect("free");
    assert!(stream.input(true).expect("no fault").is_none());
    drop((again, stream, engine));
    assert!(simulation.violations().is_empty());
}

/// A wait for the oldest batch ends when another batch can be submitted, and the oldest is complete later.
#[test]
fn a_wait_for_a_batch_can_be_stopped() {
    let simulation = simulation(Schedule::Latest);
    let subject = padded(vec![Stage::Crc32c]);
    let (engine, stream, application) = lent(&simulation, &subject);
    let grid = &subject.job.grid;
    let batch = Arc::new(grid.batch(1).expect("a batch"));
    let len = grid.epoch_bytes();
    let mut encoder = stream.encoder().expect("the first");
    assert!(encoder.wait(&|| false), "nothing is under way");
    let mut input = stream.input(true).expect("no fault").expect("free");
    input.write(0, &subject.bytes[..len]).expect("fits");
    let reusable = give(&mut *input, &application);
    encoder.submit(input, batch.clone());
    assert!(!encoder.wait(&|| true), "the application does not go on");
    let mut input = stream.input(true).expect("no fault").expect("free");
    input.write(0, &subject.bytes[..len]).expect("fits");
    encoder.submit(input, batch);
    assert!(!encoder.wait(&|| true), "the oldest is still under way");
    application.finish_stalled();
    let completed = ends("two batches", move || {
        assert!(encoder.wait(&|| false));
        [(); 2].map(|()| encoder.complete())
    });
    for completed in completed {
        completed.expect("submitted").expect("no fault");
    }
    drop((reusable, stream, engine));
    assert!(simulation.violations().is_empty());
}
