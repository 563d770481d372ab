//! Every fault at every operation: `Auto` returns the right bytes from the host, `Cuda` an error,
//! and nothing leaks.

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::compression::{blosc, with};
use super::*;
use crate::contract::{Cname, Shuffle};
use crate::cuda::driver::Fault;
use crate::cuda::driver::simulation::{Counts, Inject};

/// A slab is half a batch: every kind of operation occurs, as rarely as possible.
const COMPRESSED: Tuning = Tuning {
    slab: 720,
    long_slab: 720,
    ..Tuning::TINY
};

/// The shard that is encoded and decoded when the fault occurs.
struct Subject {
    shard: Shard,
    library: StandIn,
    /// Streams of kernels in a lane.
    streams: usize,
}

impl Subject {
    fn plain() -> Self {
        Self {
            shard: Shard::new(1),
            library: StandIn::Six,
            streams: 1,
        }
    }

    /// Shards without a compressor, with every kernel that one needs, and with chunks that it fails
    /// on.
    fn all() -> [Self; 3] {
        let shuffled = blosc(Cname::Zstd, Shuffle::Bit, 2, 32);
        let gzip = Stage::Gzip { level: 4 };
        [
            Self::plain(),
            Self {
                shard: Shard::new(0).compressed(0, shuffled, 1),
                library: StandIn::Six,
                streams: 3,
            },
            Self {
                shard: Shard::with(0, Empty::First(5), true).compressed(1, gzip, 0),
                library: StandIn::Failing,
                streams: 1,
            },
        ]
    }

    fn engine_on(&self, simulation: &Arc<Simulation>) -> CudaEngine {
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let tuning = if self.shard.chain.is_fixed_size() {
            Tuning::TINY
        } else {
            COMPRESSED
        };
        let engine = CudaEngine::new(devices, limits(), tuning);
        with_streams(
            engine.for_chain(&self.shard.chain, with(self.library)),
            self.streams,
        )
    }

    fn run(&self, engine: &(impl Engine + Clone)) -> Result<(), EngineError> {
        self.shard.run(engine)
    }

    /// Returns the device operations of one encoding, one decoding, and freeing the lane.
    fn counts(&self) -> Counts {
        let simulation = simulation(Schedule::Latest);
        let engine = self.engine_on(&simulation);
        self.run(&engine).expect("no fault");
        drop(engine);
        simulation.counts()
    }

    /// Returns the same without freeing the lane.
    fn counts_until_then(&self) -> Counts {
        let simulation = simulation(Schedule::Latest);
        let engine = self.engine_on(&simulation);
        self.run(&engine).expect("no fault");
        simulation.counts()
    }
}

fn device_with(fault: Inject) -> Arc<Simulation> {
    let simulation = simulation(Schedule::Latest);
    simulation.inject(fault);
    simulation
}

/// A transient fault: an error under `Cuda`, after which the same engine works. `Auto` hides it.
fn check_transient(subject: &Subject, inject: Inject, fault: Fault) {
    let simulation = device_with(inject);
    let engine = subject.engine_on(&simulation);
    match subject.run(&engine) {
        Err(EngineError::Device(error)) => {
            assert_eq!(error.fault, fault, "{inject:?}: {error}");
            assert_eq!(error.device, Some(0), "{inject:?}: {error}");
        }
        // If the memory is too little for one lane, a smaller lane may still fit.
        Ok(()) => assert_eq!(fault, Fault::OutOfMemory, "{inject:?} has no effect"),
        Err(other) => panic!("{inject:?}: {other}"),
    }
    subject
        .run(&engine)
        .unwrap_or_else(|error| panic!("{inject:?}, afterwards: {error}"));
    drop(engine);
    assert_clean(&simulation);

    let simulation = device_with(inject);
    let engine = WithFallback::new(subject.engine_on(&simulation));
    subject.run(&engine).expect("the host has it");
    drop(engine);
    assert_clean(&simulation);
}

/// A sticky fault: the device is not used again.
fn check_sticky(subject: &Subject, inject: Inject) {
    let simulation = device_with(inject);
    let engine = subject.engine_on(&simulation);
    for attempt in 0..2 {
        match subject.run(&engine) {
            Err(EngineError::Device(error)) => {
                let text = error.to_string();
                assert!(
                    attempt == 0 || text.contains("not used any more in this process"),
                    "{inject:?}: {text}"
                );
            }
            other => panic!("{inject:?}: {other:?}"),
        }
    }
    drop(engine);
    assert_left(&simulation, inject);

    let simulation = device_with(inject);
    let engine = WithFallback::new(subject.engine_on(&simulation));
    subject.run(&engine).expect("the host has it");
    let fallbacks = engine.device.counters().snapshot().fallbacks;
    assert!(!fallbacks.is_empty(), "{inject:?}");
    drop(engine);
    assert_left(&simulation, inject);
}

/// Asserts that no thread has the context current, and that no rule was broken.
fn assert_left(simulation: &Simulation, inject: Inject) {
    let violations = simulation.violations();
    assert!(violations.is_empty(), "{inject:?}: {violations:#?}");
    assert_eq!(simulation.live().entered, 0, "{inject:?}");
}

/// Returns the resources that remain when an operation was refused: those that it should have
/// freed. If a stream could not be synchronised, the memory that the device may still use.
fn leftovers(operation: &str) -> Live {
    let mut live = Live::default();
    if operation.starts_with("synchronise with stream") {
        (live.device_allocations, live.pinned_allocations) = (1, 2);
    } else if operation.starts_with("free the device memory") {
        live.device_allocations = 1;
    } else if operation.starts_with("free the pinned memory") {
        live.pinned_allocations = 1;
    } else if operation.starts_with("destroy stream") {
        live.streams = 1;
    } else if operation.starts_with("destroy event") {
        live.events = 1;
    }
    live
}

fn assert_left_over(simulation: &Simulation, expected: &Live, what: &str) {
    let violations = simulation.violations();
    assert!(violations.is_empty(), "{what}: {violations:#?}");
    let live = Live {
        device_bytes: 0,
        pinned_bytes: 0,
        ..simulation.live()
    };
    assert_eq!(live, *expected, "{what}");
}

/// An operation that is refused once. As [`check_transient`], but operations that free resources or
/// measure time do not fail the shard.
fn check_refused(subject: &Subject, operation: usize) {
    let inject = Inject::Failed {
        operation,
        fault: Fault::Refused,
    };
    let simulation = device_with(inject);
    let engine = subject.engine_on(&simulation);
    let result = subject.run(&engine);
    let failed = simulation.failed();
    match (result, failed.first()) {
        (Err(EngineError::Device(error)), Some(what)) => {
            assert!(!what.starts_with("time from"), "{what} fails the shard");
            assert_eq!(error.fault, Fault::Refused, "{what}: {error}");
            assert_eq!(error.device, Some(0), "{what}: {error}");
        }
        (Ok(()), Some(what)) => assert!(what.starts_with("time from"), "{what} has no effect"),
        (Ok(()), None) => {}
        (other, what) => panic!("{what:?}: {other:?}"),
    }
    if !failed.is_empty() {
        subject
            .run(&engine)
            .unwrap_or_else(|error| panic!("after {failed:?}: {error}"));
    }
    drop(engine);
    let failed = simulation.failed();
    assert_eq!(failed.len(), 1, "{operation}");
    assert_left_over(&simulation, &leftovers(&failed[0]), &failed[0]);

    let simulation = device_with(inject);
    let engine = WithFallback::new(subject.engine_on(&simulation));
    subject.run(&engine).expect("the host has it");
    drop(engine);
    let failed = simulation.failed();
    assert_left_over(&simulation, &leftovers(&failed[0]), &failed[0]);
}

#[test]
fn a_refusal_of_any_operation() {
    for subject in Subject::all() {
        let operations = subject.counts().operations;
        assert!(operations > 100);
        for operation in 0..operations {
            check_refused(&subject, operation);
        }
    }
}

#[test]
fn a_context_that_cannot_be_made_current() {
    for subject in Subject::all() {
        for enter in 0..subject.counts_until_then().enters {
            for fault in [Fault::OutOfMemory, Fault::Refused, Fault::Unavailable] {
                check_transient(&subject, Inject::NotEntered { enter, fault }, fault);
            }
        }
    }
}

/// A lane is given up after a fault, and the device does not confirm that it is done with the
/// memory.
#[test]
fn memory_that_a_stream_may_still_use_is_left_alone() {
    Subject::all().iter().for_each(check_left_alone);
}

fn check_left_alone(subject: &Subject) {
    let refused = Inject::Refused { launch: 12 };
    let last = {
        let simulation = device_with(refused);
        let engine = subject.engine_on(&simulation);
        assert!(subject.run(&engine).is_err());
        simulation.counts().operations
    };
    let mut tried = 0;
    for operation in 0..last {
        let simulation = device_with(refused);
        simulation.inject(Inject::Failed {
            operation,
            fault: Fault::Refused,
        });
        let engine = subject.engine_on(&simulation);
        assert!(subject.run(&engine).is_err());
        let Some(failed) = simulation.failed().pop() else {
            continue;
        };
        if failed.starts_with("synchronise with stream") {
            tried += 1;
            subject.run(&engine).expect("another lane");
            assert_eq!(engine.counters().snapshot().lanes_leaked, 1);
            drop(engine);
            assert_left_over(&simulation, &leftovers(&failed), &failed);
        }
    }
    assert_eq!(tried, 3 + subject.streams, "all streams of a lane");
}

#[test]
fn no_memory_at_any_allocation() {
    for subject in Subject::all() {
        let counts = subject.counts();
        for allocation in 0..counts.device_allocations + counts.pinned_allocations {
            let inject = Inject::OutOfMemory { allocation };
            check_transient(&subject, inject, Fault::OutOfMemory);
        }
    }
}

#[test]
fn a_refusal_of_any_launch() {
    for subject in Subject::all() {
        for launch in 0..subject.counts().launches {
            check_transient(&subject, Inject::Refused { launch }, Fault::Refused);
        }
    }
}

#[test]
fn a_broken_context_or_a_lost_device_at_any_operation() {
    for subject in Subject::all() {
        // Operations that free the lane come after these.
        for operation in 0..subject.counts_until_then().operations {
            check_sticky(&subject, Inject::Sticky { operation });
            check_sticky(&subject, Inject::Lost { operation });
        }
    }
}

#[test]
fn without_memory_for_a_large_batch_a_small_one_does() {
    for subject in Subject::all() {
        let shard = &subject.shard;
        let simulation = simulation(Schedule::Eager);
        let engine = subject.engine_on(&simulation);
        let planned = engine
            .memory_estimate(&shard.grid, &shard.chain)
            .expect("fits");
        simulation.set_memory(planned.device - 1);
        subject.run(&engine).expect("a smaller lane");
        assert!(engine.counters().snapshot().batches_halved > 0);
        drop(engine);
        assert_clean(&simulation);
    }
}

/// The device has less memory than the options allow. One shard finds out, and the others do not
/// try.
#[test]
fn what_fitted_is_remembered() {
    let shard = Shard::new(1);
    let simulation = simulation(Schedule::Eager);
    let engine = engine_on(&simulation);
    let planned = engine
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    simulation.set_memory(planned.device - 1);
    for _ in 0..5 {
        shard.round_trip(&engine).expect("a smaller lane");
    }
    let metrics = engine.counters().snapshot();
    assert_eq!((metrics.lanes_created, metrics.batches_halved), (1, 1));
    drop(engine);
    assert_clean(&simulation);
}

fn second_device() -> Arc<Simulation> {
    Arc::new(Simulation::new(Config {
        ordinal: 1,
        ..Config::default()
    }))
}

#[test]
fn without_memory_on_one_device_another_takes_over() {
    let shard = Shard::new(1);
    for memory in [0, 2000] {
        let (first, second) = (simulation(Schedule::Eager), second_device());
        first.set_memory(memory);
        let engine = engine_on_all(&[first.clone(), second.clone()]);
        for _ in 0..3 {
            shard.round_trip(&engine).expect("the second device");
        }
        let metrics = engine.counters().snapshot();
        assert_eq!(metrics.batches_halved, 0, "before another device was tried");
        assert_eq!(metrics.lanes_created, 1);
        drop(engine);
        assert_clean(&first);
        assert_clean(&second);
    }
}

/// The device has no context, for example because another process uses it exclusively.
#[test]
fn a_device_without_a_context_leaves_the_others() {
    let shard = Shard::new(1);
    for device_memory in [None, Some(1 << 24)] {
        let (first, second) = (simulation(Schedule::Eager), second_device());
        for enter in 0..1000 {
            first.inject(Inject::NotEntered {
                enter,
                fault: Fault::Unavailable,
            });
        }
        let drivers = [&first, &second].map(|simulation| simulation.clone() as Arc<dyn Driver>);
        let limits = DeviceLimits {
            device_memory,
            ..limits()
        };
        let engine = CudaEngine::new(Devices::new(drivers.into()), limits, Tuning::TINY);
        for _ in 0..10 {
            shard.round_trip(&engine).expect("the second device");
        }
        let tried = first.counts().enters;
        assert!((1..=2).contains(&tried), "it was tried {tried} times");
        drop(engine);
        assert_clean(&first);
        assert_clean(&second);
    }
}

#[test]
fn without_any_context_the_reason_is_that() {
    let simulation = simulation(Schedule::Eager);
    for enter in 0..1000 {
        simulation.inject(Inject::NotEntered {
            enter,
            fault: Fault::Unavailable,
        });
    }
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let limits = DeviceLimits {
        device_memory: None,
        ..limits()
    };
    let engine = CudaEngine::new(devices, limits, Tuning::TINY);
    let error = Shard::new(1)
        .round_trip(&engine)
        .expect_err("there is none");
    assert!(matches!(error, EngineError::Device(_)), "{error}");
    let reason = error.to_string();
    assert!(
        reason.contains("enter the context on CUDA device 0"),
        "{reason}"
    );
}

#[test]
fn a_second_device_takes_over() {
    let shard = Shard::new(1);
    let first = device_with(Inject::Lost { operation: 100 });
    let second = second_device();
    let engine = engine_on_all(&[first.clone(), second.clone()]);
    assert!(shard.round_trip(&engine).is_err());
    for _ in 0..3 {
        shard.round_trip(&engine).expect("the second device");
    }
    drop(engine);
    assert!(first.violations().is_empty());
    assert_clean(&second);
}
