//! Every fault at every operation: `Auto` has the right bytes from the host, `Cuda` an error, and
//! nothing leaks.

use super::*;
use crate::engine::cuda::WithFallback;
use crate::engine::cuda::driver::Fault;
use crate::engine::cuda::driver::simulation::{Counts, Inject};

/// What one encoding and one decoding ask of a device.
fn counts() -> Counts {
    let simulation = simulation(Schedule::Latest);
    let engine = engine_on(&simulation);
    Shard::new(1).round_trip(&engine).expect("no fault");
    drop(engine);
    simulation.counts()
}

fn device_with(fault: Inject) -> Arc<Simulation> {
    let simulation = simulation(Schedule::Latest);
    simulation.inject(fault);
    simulation
}

/// A fault that passes: an error under `Cuda`, after which the same engine works; under `Auto`
/// nobody notices.
fn check_transient(inject: Inject, fault: Fault) {
    let shard = Shard::new(1);
    let simulation = device_with(inject);
    let engine = engine_on(&simulation);
    match shard.round_trip(&engine) {
        Err(EngineError::Device(error)) => {
            assert_eq!(error.fault, fault, "{inject:?}: {error}");
            assert_eq!(error.device, Some(0), "{inject:?}: {error}");
        }
        // Without memory for one lane there may be some for a smaller one.
        Ok(()) => assert_eq!(fault, Fault::OutOfMemory, "{inject:?} has no effect"),
        Err(other) => panic!("{inject:?}: {other}"),
    }
    shard
        .round_trip(&engine)
        .unwrap_or_else(|error| panic!("{inject:?}, afterwards: {error}"));
    drop(engine);
    assert_clean(&simulation);

    let simulation = device_with(inject);
    let engine = WithFallback(engine_on(&simulation));
    shard.round_trip(&engine).expect("the host has it");
    drop(engine);
    assert_clean(&simulation);
}

/// A fault that stays: the device is not touched again.
fn check_sticky(inject: Inject) {
    let shard = Shard::new(1);
    let simulation = device_with(inject);
    let engine = engine_on(&simulation);
    for attempt in 0..2 {
        match shard.round_trip(&engine) {
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
    assert!(
        simulation.violations().is_empty(),
        "{inject:?}: {:?}",
        simulation.violations()
    );

    let simulation = device_with(inject);
    let engine = WithFallback(engine_on(&simulation));
    shard.round_trip(&engine).expect("the host has it");
    let fallbacks = engine.0.counters().snapshot().fallbacks;
    assert!(!fallbacks.is_empty(), "{inject:?}");
    drop(engine);
    assert!(
        simulation.violations().is_empty(),
        "{inject:?}: {:?}",
        simulation.violations()
    );
}

#[test]
fn no_memory_at_any_allocation() {
    let counts = counts();
    for allocation in 0..counts.device_allocations + counts.pinned_allocations {
        check_transient(Inject::OutOfMemory { allocation }, Fault::OutOfMemory);
    }
}

#[test]
fn a_refusal_of_any_launch() {
    for launch in 0..counts().launches {
        check_transient(Inject::Refused { launch }, Fault::Refused);
    }
}

#[test]
fn a_broken_context_or_a_lost_device_at_any_operation() {
    // The operations of the round trip; what is freed behind it comes after.
    let last = {
        let simulation = simulation(Schedule::Latest);
        let engine = engine_on(&simulation);
        Shard::new(1).round_trip(&engine).expect("no fault");
        simulation.counts().operations
    };
    for operation in 0..last {
        check_sticky(Inject::Sticky { operation });
        check_sticky(Inject::Lost { operation });
    }
}

#[test]
fn without_memory_for_a_large_batch_a_small_one_does() {
    let shard = Shard::new(1);
    let simulation = simulation(Schedule::Eager);
    let engine = engine_on(&simulation);
    let planned = engine
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    simulation.set_memory(planned.device - 1);
    shard.round_trip(&engine).expect("a smaller lane");
    assert!(engine.counters().snapshot().batches_halved > 0);
    drop(engine);
    assert_clean(&simulation);
}

#[test]
fn a_second_device_takes_over() {
    let shard = Shard::new(1);
    let first = device_with(Inject::Lost { operation: 100 });
    let second = Arc::new(Simulation::new(Config {
        ordinal: 1,
        ..Config::default()
    }));
    let engine = engine_on_all(&[first.clone(), second.clone()]);
    assert!(shard.round_trip(&engine).is_err());
    for _ in 0..3 {
        shard.round_trip(&engine).expect("the second device");
    }
    drop(engine);
    assert!(first.violations().is_empty());
    assert_clean(&second);
}
