//! Lanes: their budget, their estimate, and rayon.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rayon::prelude::*;

use super::*;
use crate::engine::cuda::driver::simulation::Kind;

/// An engine whose budget is one lane for `shard`.
fn engine_of_one_lane(simulation: &Arc<Simulation>, shard: &Shard) -> CudaEngine {
    let one = engine_on(simulation)
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    let limits = Limits {
        devices: None,
        device_memory: Some(one.device),
        pinned_memory: one.pinned,
    };
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    CudaEngine::new(devices, limits, TINY)
}

/// Every thread of the pool encodes, inside a parallel iterator inside another: if a thread that
/// holds the lane ever ran rayon's work, it would meet an `encode` that waits for that lane.
#[test]
fn one_lane_and_nested_rayon() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(1);
    let engine = engine_of_one_lane(&simulation, &shard);
    let finished = Arc::new(AtomicUsize::new(0));
    let counter = finished.clone();
    let worker = std::thread::spawn(move || {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(4)
            .build()
            .expect("threads");
        pool.install(|| {
            (0..8).into_par_iter().for_each(|_| {
                (0..4).into_par_iter().for_each(|_| {
                    shard.round_trip(&engine).expect("one after the other");
                    counter.fetch_add(1, Ordering::Relaxed);
                });
            });
        });
        let metrics = engine.counters().snapshot();
        assert_eq!(metrics.lanes_created, 1);
        assert_eq!(metrics.lanes_waiting, 0);
        drop(engine);
    });
    // A deadlock is a failure, not a test that hangs.
    for _ in 0..1200 {
        if worker.is_finished() {
            worker.join().expect("no panic");
            assert_eq!(finished.load(Ordering::Relaxed), 32);
            assert_clean(&simulation);
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("deadlock after {} shards", finished.load(Ordering::Relaxed));
}

#[test]
fn a_lane_takes_what_was_estimated() {
    for stages in 0..3 {
        let simulation = simulation(Schedule::Eager);
        let shard = Shard::new(stages);
        let engine = engine_on(&simulation);
        let estimate = engine
            .memory_estimate(&shard.grid, &shard.chain)
            .expect("fits");
        shard.round_trip(&engine).expect("fits");
        // The device rounds to its alignment, the host to pages, once per allocation.
        let device = simulation.peak(Kind::Device);
        assert!((estimate.device..estimate.device + 256).contains(&device));
        let pinned = simulation.peak(Kind::Pinned);
        assert!((estimate.pinned..estimate.pinned + 2 * 4096).contains(&pinned));
    }
}

#[test]
fn lanes_stay_within_the_budget() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(1);
    let engine = engine_on(&simulation);
    let one = engine
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    let limits = Limits {
        devices: None,
        device_memory: Some(3 * one.device),
        pinned_memory: 2 * one.pinned + 1,
    };
    drop(engine);
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let engine = CudaEngine::new(devices, limits, TINY);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| shard.round_trip(&engine).expect("a lane in time"));
        }
    });
    let pinned = simulation.peak(Kind::Pinned);
    assert!(pinned <= 2 * (one.pinned + 2 * 4096), "{pinned} of {one}");
    assert!(engine.counters().snapshot().lanes_created <= 2);
    drop(engine);
    assert_clean(&simulation);
}

#[test]
fn a_smaller_budget_makes_smaller_batches_and_then_a_reason() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(1);
    let with_budget = |bytes| {
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let limits = Limits {
            devices: None,
            device_memory: Some(bytes),
            pinned_memory: 1 << 24,
        };
        CudaEngine::new(devices, limits, TINY)
    };
    let full = with_budget(1 << 24)
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    let smaller = with_budget(full.device - 1);
    let estimate = smaller
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    assert!(estimate.device < full.device);
    shard.round_trip(&smaller).expect("smaller batches");
    drop(smaller);

    let error = shard
        .round_trip(&with_budget(1000))
        .expect_err("too little");
    assert!(matches!(error, EngineError::Unsuitable(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("with_device_memory") && text.contains("1000"),
        "{text}"
    );
    assert_clean(&simulation);
}

#[test]
fn idle_lanes_are_released() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(1);
    let engine = engine_on(&simulation);
    shard.round_trip(&engine).expect("fits");
    assert_eq!(simulation.live().device_allocations, 1);
    engine.devices.release_idle();
    assert_clean(&simulation);
    shard.round_trip(&engine).expect("a new lane");
    drop(engine);
    assert_clean(&simulation);
}
