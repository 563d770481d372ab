//! The end of the use of devices, before the process ends.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::hangs::{ends, impatient};
use super::*;
use crate::contract::stream::StreamEngine;
use crate::cuda::arena::Region;
use crate::cuda::driver::Fault;
use crate::cuda::tests::on_gpu::stream::{Subject, returned};
use crate::fallback::HostBatches;

/// More time than anything here takes.
const LONG: Duration = Duration::from_mins(2);
const SHORT: Duration = Duration::from_millis(50);

fn engine(simulation: &Arc<Simulation>) -> CudaEngine {
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    CudaEngine::new(devices, impatient(limits()), Tuning::TINY)
}

fn assert_refused(done: Result<(), EngineError>) {
    match done {
        Err(EngineError::Device(error)) => {
            assert_eq!(error.fault, Fault::Unavailable, "{error}");
            assert!(
                error.reason.contains("the process is about to end"),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn idle_lanes_are_freed_and_the_host_takes_over() {
    let simulation = simulation(Schedule::Latest);
    let engine = engine(&simulation);
    let shard = Shard::new(1);
    shard.round_trip(&engine).expect("no fault");
    let begin = Instant::now();
    engine.devices.shut_down(LONG);
    assert_clean(&simulation);
    let counts = simulation.counts();
    assert_refused(shard.round_trip(&engine));
    let host = WithFallback::new(engine.clone());
    shard.round_trip(&host).expect("the host has it");
    assert!(engine.devices.warm_up(&engine.limits).is_err());
    engine.devices.shut_down(LONG);
    engine.devices.release_idle();
    drop((host, engine));
    assert_eq!(simulation.counts(), counts);
    assert!(begin.elapsed() < LONG, "there was nothing to wait for");
}

/// Holds a lane in use, until the second channel has a message. Returns what the lane did afterwards.
fn hold(
    engine: &CudaEngine,
) -> (
    mpsc::Sender<()>,
    std::thread::JoinHandle<Result<(), EngineError>>,
) {
    let (has_begun, begun) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let engine = engine.clone();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let thread = std::thread::spawn(move || {
        engine.in_lane(&Shard::new(1).kind(), |session| {
            let lane = session.lane;
            lane.zero(lane.up, Region { offset: 0, len: 1 })?;
            has_begun.send(()).expect("the test waits");
            may_go_on
                .lock()
                .expect("no panic")
                .recv()
                .expect("the test goes on");
            let event = session.record(lane.up, crate::cuda::driver::Site("test: a record"))?;
            Ok(lane.synchronize(event, crate::cuda::driver::Site("test: a wait"))?)
        })
    });
    begun.recv().expect("the lane is used");
    (go_on, thread)
}

#[test]
fn a_lane_in_use_is_waited_for_and_freed() {
    let simulation = simulation(Schedule::Latest);
    let engine = engine(&simulation);
    let (go_on, thread) = hold(&engine);
    let devices = engine.devices.clone();
    let shut_down = std::thread::spawn(move || devices.shut_down(LONG));
    // New work is refused as soon as the shut-down has begun.
    while engine.devices.check_usable(&engine.limits).is_ok() {
        std::thread::yield_now();
    }
    assert!(!shut_down.is_finished(), "a lane is in use");
    go_on.send(()).expect("the lane is used");
    thread
        .join()
        .expect("no panic")
        .expect("the lane works until then");
    ends("the shut-down", move || shut_down.join().expect("no panic"));
    assert_clean(&simulation);
}

#[test]
fn a_lane_that_stays_in_use_is_leaked() {
    let simulation = simulation(Schedule::Latest);
    let engine = engine(&simulation);
    let (go_on, thread) = hold(&engine);
    engine.devices.shut_down(SHORT);
    let (counts, live) = (simulation.counts(), simulation.live());
    assert_eq!(live.device_allocations, 1);
    go_on.send(()).expect("the lane is used");
    let done = thread.join().expect("no panic");
    let text = done.expect_err("the device has ended").to_string();
    assert!(text.contains("the process is about to end"), "{text}");
    drop(engine);
    // The lane recorded an event, whose creation counts as well. Nothing was waited for or freed.
    assert_eq!(simulation.counts().operations, counts.operations + 2);
    assert_eq!(simulation.live().device_allocations, 1);
    assert_eq!(simulation.live().entered, 0);
    assert!(simulation.violations().is_empty());
}

#[test]
fn a_device_that_hangs_does_not_hold_the_process() {
    let simulation = simulation(Schedule::Latest);
    let engine = engine(&simulation);
    let lane = engine.in_lane(&Shard::new(1).kind(), |session| {
        session
            .lane
            .zero(session.lane.up, Region { offset: 0, len: 1 })?;
        Ok(())
    });
    lane.expect("nothing is waited for");
    simulation.hang();
    let devices = engine.devices.clone();
    let begin = Instant::now();
    ends("the shut-down", move || devices.shut_down(SHORT));
    // The second look of a wait comes later.
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
    drop(engine);
    assert_eq!(simulation.live().device_allocations, 1);
}

/// Batches that are under way are waited for. Later batches are the host's.
#[test]
fn a_stream_ends_on_the_host() {
    let simulation = simulation(Schedule::Latest);
    let engine = engine(&simulation);
    let chain = KnownChain {
        order: vec![0, 2, 1],
        swap: 2,
        stages: vec![Stage::Crc32c],
    };
    let subject = Subject::new(&[(0, 2, 4), (8, 3, 1), (7, 4, 1)], 2, chain, (6, 2));
    let job = Arc::new(subject.job.clone());
    let host = HostBatches::new(engine.clone(), job.clone());
    let stream = engine
        .stream(job, returned(), Some(Arc::new(host)))
        .expect("fits");
    let mut encoder = stream.encoder().expect("the first one");
    let batches = subject.batches();
    let mut submit = |stream: &dyn StreamEngine, number: usize| {
        let (first, batch) = batches[number].clone();
        let mut input = stream.input(true).expect("no fault").expect("free");
        let epoch = subject.job.grid.epoch_bytes();
        let bytes = first * epoch..(first + batch.epochs()) * epoch;
        input.write(0, &subject.bytes[bytes]).expect("fits");
        encoder.submit(input, batch);
        number
    };
    submit(&*stream, 0);
    let devices = engine.devices.clone();
    let shut_down = std::thread::spawn(move || devices.shut_down(LONG));
    while engine.devices.check_usable(&engine.limits).is_ok() {
        std::thread::yield_now();
    }
    submit(&*stream, 1);
    assert!(!shut_down.is_finished(), "a batch is under way");
    for _ in 0..2 {
        encoder
            .complete()
            .expect("a batch")
            .expect("the device, or the host");
    }
    ends("the shut-down", move || shut_down.join().expect("no panic"));
    let metrics = engine.counters().snapshot();
    assert_eq!(metrics.batches_encoded, 1);
    assert_eq!(metrics.fallbacks.values().sum::<u64>(), 1);
    let counts = simulation.counts();
    drop((encoder, stream, engine));
    assert_eq!(
        simulation.counts(),
        counts,
        "the lane of the stream is leaked"
    );
    assert!(simulation.violations().is_empty());
}
