//! The memory of streams, and the reuse of returned buffers.

use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::contract::stream::{BatchInput, DeviceBytes};
use crate::cuda::driver::Fault;
use crate::cuda::driver::simulation::{Inject, Kind};

fn rounded(bytes: usize, to: usize) -> usize {
    bytes.next_multiple_of(to)
}

#[test]
fn a_stream_takes_what_was_estimated() {
    for streams in 1..=3 {
        takes_what_was_estimated(streams);
    }
}

fn takes_what_was_estimated(streams: usize) {
    for (stages, library) in [
        (vec![Stage::Crc32c], StandIn::Six),
        (
            vec![blosc(Cname::Zstd, Shuffle::Bit, 2, 32)],
            StandIn::Failing,
        ),
    ] {
        let subject = padded(stages);
        let simulation = simulation(Schedule::Eager);
        let engine = stream_engine(&simulation, library, &subject);
        let engine = with_streams(engine, streams);
        let estimate = engine.stream_estimate(&subject.job).expect("fits");
        let before = simulation.live();
        assert_eq!((before.device_bytes, before.pinned_bytes), (0, 0));
        let stream = open(&engine, &subject, false).expect("fits");
        // The inputs are complete when one is refused.
        let inputs: Vec<_> = std::iter::from_fn(|| stream.input(true).expect("no fault")).collect();
        assert_eq!(inputs.len(), 2);
        drop(inputs);
        let live = simulation.live();
        assert_eq!(live.device_bytes, rounded(estimate.device, 256));
        // For both directions, and for the second input.
        assert_eq!(live.pinned_allocations, 3);
        assert!((estimate.pinned..estimate.pinned + 3 * 4096).contains(&live.pinned_bytes));
        stream::encode(&subject, stream, 0).expect("no fault");
        assert_eq!(simulation.peak(Kind::Device), live.device_bytes);
        assert_eq!(simulation.peak(Kind::Pinned), live.pinned_bytes);
        assert_eq!(estimate.host, 0);
        drop(engine);
        assert_clean(&simulation);
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_numbers() {
    let mut subject = padded(vec![]);
    let simulation = simulation(Schedule::Eager);
    let engine = stream_engine(&simulation, StandIn::Six, &subject);
    let estimate = engine.stream_estimate(&subject.job).expect("fits");
    for (device, pinned) in [
        (estimate.device - 1, estimate.pinned),
        (estimate.device, estimate.pinned - 1),
    ] {
        let limits = DeviceLimits {
            devices: None,
            device_memory: Some(device),
            pinned_memory: pinned,
            idle: None,
            ..DeviceLimits::default()
        };
        let drivers = vec![simulation.clone() as Arc<dyn Driver>];
        let engine = CudaEngine::new(Devices::new(drivers), limits, Tuning::TINY);
        for error in [
            engine.stream_estimate(&subject.job).expect_err("too much"),
            open(&engine, &subject, true).expect_err("too much"),
        ] {
            let text = error.to_string();
            assert!(matches!(error, EngineError::Unsuitable(_)), "{text}");
            assert!(text.contains(&estimate.device.to_string()), "{text}");
            assert!(text.contains(&pinned.to_string()), "{text}");
        }
        subject.job.epochs = 1;
        let less = engine.stream_estimate(&subject.job).expect("fewer epochs");
        assert!(less.device < estimate.device && less.pinned < estimate.pinned);
        subject.job.epochs = 2;
    }
    drop(engine);
    assert_clean(&simulation);
}

#[test]
fn a_device_without_the_memory_is_an_error_to_react_to() {
    let subject = padded(vec![]);
    let simulation = simulation(Schedule::Eager);
    let engine = stream_engine(&simulation, StandIn::Six, &subject);
    let estimate = engine.stream_estimate(&subject.job).expect("fits");
    simulation.set_memory(estimate.device - 1);
    match open(&engine, &subject, true) {
        Err(EngineError::Device(error)) => assert_eq!(error.fault, Fault::OutOfMemory),
        other => panic!("{other:?}"),
    }
    assert_eq!(simulation.live(), Live::default());
    simulation.set_memory(1 << 30);
    let stream = open(&engine, &subject, true).expect("there is some");
    stream::encode(&subject, stream, 0).expect("no fault");
    drop(engine);
    assert_clean(&simulation);
}

/// Idle lanes of shards are freed to make room for a stream.
#[test]
fn lanes_that_nobody_uses_are_freed_for_a_stream() {
    let (shard, subject) = (Shard::new(1), padded(vec![]));
    let simulation = simulation(Schedule::Eager);
    let engine = stream_engine(&simulation, StandIn::Six, &subject);
    shard.round_trip(&engine).expect("no fault");
    let estimate = engine.stream_estimate(&subject.job).expect("fits");
    simulation.set_memory(simulation.live().device_bytes.max(estimate.device + 256));
    let stream = open(&engine, &subject, false).expect("room was made");
    stream::encode(&subject, stream, 0).expect("no fault");
    drop(engine);
    assert_clean(&simulation);
}

fn fill(subject: &Subject, input: &mut dyn BatchInput) {
    let bytes = subject.job.epochs * subject.job.grid.epoch_bytes();
    input
        .write(0, &subject.bytes[..bytes])
        .expect("in the batch");
}

#[test]
fn buffers_are_as_many_as_the_job_says_and_come_back() {
    let mut subject = padded(vec![]);
    subject.job.outputs = 1;
    let batch = Arc::new(subject.job.grid.batch(2).expect("fits"));
    let simulation = simulation(Schedule::Latest);
    let engine = stream_engine(&simulation, StandIn::Six, &subject);
    let returned = returned();
    let job = Arc::new(subject.job.clone());
    let stream = engine.stream(job, returned.clone(), None).expect("fits");
    stream.settle();
    let mut encoder = stream.encoder().expect("the first");
    assert!(stream.encoder().is_err(), "there is one");
    let mut inputs: Vec<_> = (0..2)
        .map(|_| stream.input(true).expect("no fault").expect("not in use"))
        .collect();
    assert!(stream.input(true).expect("no fault").is_none());
    let seen = returned.count();
    drop(inputs.pop());
    assert!(returned.count() > seen);
    inputs.push(stream.input(true).expect("no fault").expect("came back"));
    for mut input in inputs {
        fill(&subject, &mut *input);
        encoder.submit(input, batch.clone());
    }
    let first = encoder.complete().expect("under way").expect("no fault");
    let bytes = (*first.output).as_ref().to_vec();
    assert!(first.output.is_scarce());
    // The next batch waits for this output's memory.
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let second = encoder.complete().expect("under way").expect("no fault");
        let copy = (*second.output).as_ref().to_vec();
        sender.send(copy).expect("somebody waits");
        (encoder, second)
    });
    let waiting = receiver.recv_timeout(Duration::from_millis(50));
    assert!(waiting.is_err(), "it has an output that is in use");
    drop(first);
    let same = receiver.recv().expect("now it has one");
    assert!(same.len() == bytes.len());
    // The order and the thread of the drops do not matter.
    let (encoder, second) = thread.join().expect("no panic");
    drop(encoder);
    drop(stream);
    drop(engine);
    assert!(
        simulation.live().device_allocations == 1,
        "an output is in use"
    );
    std::thread::spawn(move || drop(second))
        .join()
        .expect("no panic");
    assert_clean(&simulation);
}

#[test]
fn mistakes_are_errors() {
    let subject = padded(vec![]);
    let simulation = simulation(Schedule::Eager);
    let engine = stream_engine(&simulation, StandIn::Six, &subject);
    let stream = open(&engine, &subject, true).expect("fits");
    let mut input = stream.input(true).expect("no fault").expect("not in use");
    let len = subject.job.epochs * subject.job.grid.epoch_bytes();
    input.write(len, &[]).expect("nothing");
    assert!(input.write(len - 1, &[0; 2]).is_err());
    assert!(input.write(usize::MAX, &[0; 2]).is_err());
    let elsewhere = DeviceBytes {
        device: 7,
        pointer: 0,
        len: 1,
        stream: 0,
    };
    #[allow(unsafe_code)]
    // SAFETY: the bytes are on another device, and are not read.
    let put = unsafe { input.write_from_device(0, &elsewhere) };
    let error = put.expect_err("another device");
    assert!(error.to_string().contains("device 7"), "{error}");
    let mut encoder = stream.encoder().expect("the first");
    assert!(encoder.complete().is_none(), "nothing is under way");
    // An input of another stream is rejected.
    let other = open(&engine, &subject, true).expect("fits");
    let batch = Arc::new(subject.job.grid.batch(2).expect("fits"));
    let stranger = other.input(true).expect("no fault").expect("not in use");
    encoder.submit(stranger, batch.clone());
    assert!(encoder.complete().expect("under way").is_err());
    // A batch with more epochs than the stream was made for is rejected.
    let long = Arc::new(subject.job.grid.batch(4).expect("fits"));
    encoder.submit(input, long);
    assert!(encoder.complete().expect("under way").is_err());
    drop((encoder, stream, other, engine));
    assert_clean(&simulation);
}

/// Without memory for the second or third input, the stream goes on with fewer.
#[test]
fn a_stream_goes_on_with_fewer_inputs() {
    for missing in [None, Some(3), Some(2)] {
        let mut subject = padded(vec![Stage::Crc32c]);
        subject.job.inputs = 3;
        let simulation = simulation(Schedule::Latest);
        // The allocations of the lane are 0 and 1. The second try fails, too.
        if let Some(allocation) = missing {
            for allocation in [allocation, allocation + 1] {
                simulation.inject(Inject::OutOfMemoryOf {
                    kind: Kind::Pinned,
                    allocation,
                });
            }
        }
        let engine = stream_engine(&simulation, StandIn::Six, &subject);
        let stream = open(&engine, &subject, false).expect("one input fits");
        let inputs: Vec<_> = std::iter::from_fn(|| stream.input(true).expect("no fault")).collect();
        let expected = missing.map_or(3, |allocation| allocation - 1);
        assert_eq!(inputs.len(), expected);
        drop(inputs);
        stream::encode(&subject, stream, 0).expect("no fault");
        drop(engine);
        assert_clean(&simulation);
    }
}

/// A stream that is dropped at once waits for the thread that allocates its inputs.
#[test]
fn a_stream_that_is_dropped_at_once_leaves_nothing() {
    let mut subject = padded(vec![]);
    subject.job.inputs = 3;
    let simulation = simulation(Schedule::Eager);
    let engine = stream_engine(&simulation, StandIn::Six, &subject);
    for _ in 0..50 {
        drop(open(&engine, &subject, false).expect("fits"));
        assert_eq!(simulation.live(), Live::default());
    }
    drop(engine);
    assert_clean(&simulation);
}
