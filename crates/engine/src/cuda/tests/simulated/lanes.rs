//! Lanes: their budget, their estimate, and their use under rayon.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use rayon::prelude::*;

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::compression::{blosc, compressors, engine_with, with};
use super::*;
use crate::contract::{Cname, Shuffle};
use crate::cuda::DeviceMetrics;
use crate::cuda::driver::Fault;
use crate::cuda::driver::simulation::{Inject, Kind};
use crate::cuda::nvcomp;
use crate::cuda::sizing::Sizing;

/// The tuning [`Tuning::TINY`], with half the batch size.
const TINIER: Tuning = Tuning {
    batch: Tuning::TINY.batch / 2,
    ..Tuning::TINY
};

/// An engine whose budget is one lane for `shard`. Its compressor fails on some chunks.
fn engine_of_one_lane(simulation: &Arc<Simulation>, shard: &Shard) -> CudaEngine {
    let one = engine_with(simulation, StandIn::Failing, &shard.chain)
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    let limits = DeviceLimits {
        devices: None,
        device_memory: Some(one.device),
        pinned_memory: one.pinned,
        idle: None,
        ..DeviceLimits::default()
    };
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    CudaEngine::new(devices, limits, Tuning::TINY).for_chain(&shard.chain, with(StandIn::Failing))
}

#[test]
fn one_lane_and_nested_rayon() {
    check_one_lane_and_nested_rayon(Shard::new(1));
}

/// The thread that holds the lane compresses the chunks that the device fails on. It must not do so
/// through rayon.
#[test]
fn one_lane_and_nested_rayon_and_a_compressor() {
    let stage = blosc(Cname::Zstd, Shuffle::Byte, 2, 32);
    check_one_lane_and_nested_rayon(Shard::new(0).compressed(0, stage, 1));
}

/// Every thread of the pool encodes inside nested parallel iterators. If a thread that holds the
/// lane ever ran rayon's work, that work might be an `encode` that waits for the same lane.
fn check_one_lane_and_nested_rayon(shard: Shard) {
    let simulation = simulation(Schedule::Eager);
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
                    shard.run(&engine).expect("one after the other");
                    counter.fetch_add(1, Ordering::Relaxed);
                });
            });
        });
        let metrics = engine.counters().snapshot();
        assert_eq!(metrics.lanes_created, 1);
        assert_eq!(metrics.lanes_waiting, 0);
        drop(engine);
    });
    // A deadlock must fail the test, not hang it.
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
    let mut shards: Vec<Shard> = (0..3).map(Shard::new).collect();
    shards.extend(
        compressors()
            .into_iter()
            .map(|stage| Shard::new(0).compressed(0, stage, 1)),
    );
    for (shard, streams) in shards
        .iter()
        .flat_map(|shard| [1, 2, 3].map(|n| (shard, n)))
    {
        let simulation = simulation(Schedule::Eager);
        let engine = engine_with(&simulation, StandIn::Five, &shard.chain);
        let engine = with_streams(engine, streams);
        let estimate = engine
            .memory_estimate(&shard.grid, &shard.chain)
            .expect("fits");
        shard.run(&engine).expect("fits");
        // Two for copies, one for offsets, and the streams of kernels.
        assert_eq!(simulation.live().streams, 3 + streams);
        // The device rounds each allocation up to its alignment, and the host to pages.
        let device = simulation.peak(Kind::Device);
        assert!((estimate.device..estimate.device + 256).contains(&device));
        let pinned = simulation.peak(Kind::Pinned);
        assert!((estimate.pinned..estimate.pinned + 2 * 4096).contains(&pinned));
    }
}

/// A lane with more streams of kernels takes more memory for each; within a budget for one stream
/// there is one.
#[test]
fn a_budget_limits_the_streams_of_kernels() {
    let stage = compressors().swap_remove(0);
    for shard in [Shard::new(1), Shard::new(0).compressed(0, stage, 1)] {
        let simulation = simulation(Schedule::Eager);
        let of_streams = |streams| {
            let engine = engine_with(&simulation, StandIn::Six, &shard.chain);
            with_streams(engine, streams)
        };
        let estimate = |engine: &CudaEngine| {
            let estimate = engine.memory_estimate(&shard.grid, &shard.chain);
            estimate.expect("fits").device
        };
        let [one, two, three] = [1, 2, 3].map(|streams| estimate(&of_streams(streams)));
        if shard.chain.is_fixed_size() {
            assert!(one < two && two < three, "{one}, {two}, {three}");
        }
        let mut engine = of_streams(3);
        for (budget, streams) in [(three, 3), (three - 1, 2), (one, 1)] {
            engine.devices.release_idle();
            engine.limits.device_memory = Some(budget);
            let takes = estimate(&engine);
            assert!(takes <= budget, "{takes} of {budget}");
            shard.run(&engine).expect("fits");
            if shard.chain.is_fixed_size() {
                assert_eq!(simulation.live().streams, 3 + streams, "{budget}");
            }
        }
        drop(engine);
        assert_clean(&simulation);
    }
}

/// An idle lane with fewer streams of kernels than a shard wants is not used for it, and one with more
/// is.
#[test]
fn idle_lanes_have_enough_streams_of_kernels() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(1);
    let mut engine = engine_on(&simulation);
    for (streams, created) in [(1, 1), (3, 2), (1, 2), (3, 2)] {
        engine.tuning.streams = streams;
        shard.round_trip(&engine).expect("no fault");
        let metrics = engine.counters().snapshot();
        assert_eq!(metrics.lanes_created, created, "{streams}");
    }
    drop(engine);
    assert_clean(&simulation);
}

#[test]
fn lanes_stay_within_the_budget() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(1);
    let engine = engine_on(&simulation);
    let one = engine
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    let limits = DeviceLimits {
        devices: None,
        device_memory: Some(3 * one.device),
        pinned_memory: 2 * one.pinned + 1,
        idle: None,
        ..DeviceLimits::default()
    };
    drop(engine);
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let engine = CudaEngine::new(devices, limits, Tuning::TINY);
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
        let limits = DeviceLimits {
            devices: None,
            device_memory: Some(bytes),
            pinned_memory: 1 << 24,
            idle: None,
            ..DeviceLimits::default()
        };
        CudaEngine::new(devices, limits, Tuning::TINY)
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

/// Asking for a lane's memory must not create a context on every device of the machine.
#[test]
fn a_device_is_asked_when_it_is_used() {
    let shard = Shard::new(1);
    let simulations = [0, 1].map(|ordinal| {
        Arc::new(Simulation::new(Config {
            ordinal,
            ..Config::default()
        }))
    });
    let drivers = simulations
        .each_ref()
        .map(|simulation| simulation.clone() as Arc<dyn Driver>);
    let limits = DeviceLimits {
        device_memory: None,
        ..limits()
    };
    let engine = CudaEngine::new(Devices::new(drivers.into()), limits, Tuning::TINY);
    engine.numbers().expect("a device");
    engine
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    shard.round_trip(&engine).expect("fits");
    assert!(simulations[0].counts().enters > 0);
    assert_eq!(simulations[1].counts().enters, 0);
    drop(engine);
    assert_clean(&simulations[0]);
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    let simulation = simulation(Schedule::Eager);
    let devices = Devices::new(vec![simulation as Arc<dyn Driver>]);
    let limits = DeviceLimits {
        devices: Some(vec![0, 7]),
        ..limits()
    };
    let engine = CudaEngine::new(devices, limits, Tuning::TINY);
    let reason = engine.numbers().expect_err("there is no device 7");
    assert!(reason.contains("there is no CUDA device 7"), "{reason}");
    let error = Shard::new(1).round_trip(&engine).expect_err("as above");
    assert!(
        error.to_string().contains("there is no CUDA device 7"),
        "{error}"
    );
}

/// Memory that could not be freed still counts as used.
#[test]
fn leaked_memory_counts() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(1);
    let engine = engine_of_one_lane(&simulation, &shard);
    shard.round_trip(&engine).expect("fits");
    let enter = simulation.counts().enters;
    let fault = Fault::Refused;
    simulation.inject(Inject::NotEntered { enter, fault });
    engine.devices.release_idle();
    assert_eq!(simulation.live().device_allocations, 1);
    let error = shard.round_trip(&engine).expect_err("the budget is taken");
    assert!(matches!(error, EngineError::Unsuitable(_)), "{error}");
    assert_eq!(simulation.live().device_allocations, 1);
    assert!(simulation.violations().is_empty());
}

/// Otherwise other threads could claim the memory before it is free.
#[test]
fn memory_counts_until_it_is_freed() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(1);
    let engine = engine_on(&simulation);
    shard.round_trip(&engine).expect("fits");
    let one = engine
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    assert_eq!(engine.devices.used(), one);
    let seen = Arc::new(Mutex::new(Vec::new()));
    simulation.on_free({
        let (devices, seen) = (engine.devices.clone(), seen.clone());
        move || seen.lock().unwrap().push(devices.used())
    });
    engine.devices.release_idle();
    assert_eq!(*seen.lock().unwrap(), [one]);
    assert_eq!(engine.devices.used().device, 0);
    shard.round_trip(&engine).expect("fits");
    simulation.inject(Inject::Refused {
        launch: simulation.counts().launches,
    });
    shard.round_trip(&engine).expect_err("a lane is given up");
    assert_eq!(*seen.lock().unwrap(), [one, one]);
    assert_eq!(engine.devices.used().device, 0);
}

/// An idle lane is freed for a larger one only if the larger one then fits.
#[test]
fn idle_lanes_are_not_freed_in_vain() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(1);
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let plan_of = |tuning| {
        let shard = &shard;
        move |most| Sizing::within(&shard.kind(), most, tuning).map(Arc::new)
    };
    let plan = plan_of(TINIER);
    let small = devices
        .first(&limits(), plan)
        .expect("fits")
        .capacity
        .device;
    let large = devices
        .first(&limits(), plan_of(Tuning::TINY))
        .expect("fits")
        .capacity
        .device;
    assert!(small < large && large <= 3 * small);
    let limits = DeviceLimits {
        device_memory: Some(3 * small),
        ..limits()
    };
    let mut lanes: Vec<_> = (0..3)
        .map(|_| devices.acquire(&plan, &limits).expect("fits").0)
        .collect();
    lanes[2].reusable();
    drop(lanes.pop());
    let engine = CudaEngine::new(devices.clone(), limits.clone(), Tuning::TINY);
    std::thread::scope(|scope| {
        scope.spawn(|| shard.round_trip(&engine).expect("a lane in time"));
        for _ in 0..1000 {
            if engine.counters().snapshot().lanes_waiting == 1 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(engine.counters().snapshot().lanes_waiting, 1);
        assert_eq!(simulation.live().device_allocations, 3);
        drop(lanes);
    });
    drop((engine, devices));
    assert_clean(&simulation);
}

/// If there is no memory for a large lane, an idle smaller one is used.
#[test]
fn an_idle_smaller_lane_is_used() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(1);
    let large = engine_on(&simulation);
    let small = CudaEngine::new(large.devices.clone(), limits(), TINIER);
    shard.round_trip(&small).expect("fits");
    let planned = large
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    simulation.set_memory(planned.device - 1);
    shard.round_trip(&large).expect("in the smaller lane");
    assert_eq!(large.counters().snapshot().lanes_created, 1);
    drop((large, small));
    assert_clean(&simulation);
}

/// Threads, devices that lose and regain memory, refused launches, and few lanes: no thread waits
/// for ever, and the accounted memory is the allocated memory.
#[test]
fn lanes_come_and_go() {
    let shard = Shard::new(1);
    let simulations = [0, 1].map(|ordinal| {
        Arc::new(Simulation::new(Config {
            ordinal,
            ..Config::default()
        }))
    });
    for simulation in &simulations {
        for i in 0..20 {
            simulation.inject(Inject::Refused { launch: i * 67 });
            simulation.inject(Inject::OutOfMemory { allocation: i * 5 });
        }
    }
    let large = engine_on_all(&simulations);
    let one = large
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    let limits = DeviceLimits {
        device_memory: Some(2 * one.device),
        ..limits()
    };
    let engines = [Tuning::TINY, TINIER].map(|tuning| {
        let devices = large.devices.clone();
        WithFallback::new(CudaEngine::new(devices, limits.clone(), tuning))
    });
    let finished = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (shard, engine, finished) = (&shard, &engines[thread % 2], &finished);
            scope.spawn(move || {
                for _ in 0..20 {
                    shard.round_trip(engine).expect("by the host, if need be");
                }
                finished.fetch_add(1, Ordering::Relaxed);
            });
        }
        for i in 0.. {
            if finished.load(Ordering::Relaxed) == 6 {
                break;
            }
            if i == 60_000 {
                eprintln!("deadlock");
                std::process::abort();
            }
            let memory = [0, one.device - 1, 1 << 30];
            simulations[i % 2].set_memory(memory[i % 3]);
            if i % 7 == 0 {
                large.devices.release_idle();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let metrics = large.counters().snapshot();
    assert!(metrics.shards_encoded > 0 && metrics.lanes_created > 6);
    assert_eq!((metrics.lanes_leaked, metrics.lanes_waiting), (0, 0));
    for simulation in &simulations {
        let peak = simulation.peak(Kind::Device);
        assert!(peak <= 2 * one.device + 3 * 256, "{peak}");
    }
    large.devices.release_idle();
    assert_eq!(large.devices.used().device, 0);
    assert_eq!(large.devices.used().pinned, 0);
    for simulation in &simulations {
        assert_clean(simulation);
    }
}

/// A lock that another thread of the parent held stays locked for ever in a forked child.
#[test]
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn a_forked_child_waits_for_no_lock() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(1);
    let engine = engine_on(&simulation);
    shard.round_trip(&engine).expect("fits");
    let compressed = Shard::new(0).compressed(0, Stage::Gzip { level: 1 }, 0);
    let compressing = CudaEngine::new(engine.devices.clone(), limits(), Tuning::TINY)
        .for_chain(&compressed.chain, with(StandIn::Six));
    compressed.run(&compressing).expect("fits");
    let (tell_locked, locked) = mpsc::channel();
    let (tell_done, done) = mpsc::channel::<()>();
    let (devices, counters) = (&engine.devices, engine.counters());
    let reads = engine.clone().reads(0, &shard.grid, &shard.chain);
    let reads = reads.expect("usable");
    let slabs = reads.slabs().expect("usable").expect("fits");
    let slab = slabs.take(100);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            devices.while_locked(|| {
                counters.while_locked(|| {
                    nvcomp::while_locked(|| {
                        tell_locked.send(()).unwrap();
                        let _ = done.recv();
                    });
                });
            });
        });
        locked.recv().unwrap();
        // SAFETY: the only lock of another thread that the child may take is the allocator's, which
        // glibc keeps usable across `fork`. The child exits without the parent's exit handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            devices.release_idle();
            devices.shut_down(Duration::from_mins(1));
            counters.fell_back("the process was forked");
            let has_slab = slab.is_some() && slabs.take(100).is_none() && reads.slabs().is_err();
            drop((slab, slabs));
            let told = has_slab
                && counters.snapshot() == DeviceMetrics::default()
                && engine.numbers().is_err()
                && engine.memory_estimate(&shard.grid, &shard.chain).is_err()
                && compressing
                    .memory_estimate(&compressed.grid, &compressed.chain)
                    .is_err();
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!told)) };
        }
        assert!(child > 0);
        let mut status = -1;
        let mut ended = 0;
        for _ in 0..1000 {
            // SAFETY: the function writes one number.
            ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
            if ended != 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if ended == 0 {
            // SAFETY: the child is this process's own, and was not waited for yet.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        drop(tell_done);
        assert_eq!((ended, status), (child, 0));
    });
}
