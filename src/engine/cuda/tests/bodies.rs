//! What a GPU is tested with, small, on simulated devices.

use std::time::Duration;

use super::*;
use crate::engine::cuda::gpu::bodies;

/// As many multiprocessors as a large device has: several warps share the checksum of a long
/// subchunk there.
fn large_device(schedule: Schedule) -> Arc<Simulation> {
    Arc::new(Simulation::new(Config {
        schedule,
        multiprocessors: 132,
        ..Config::default()
    }))
}

/// What only a GPU is given, as far as it can be seen without one.
#[test]
fn large_shards_are_what_they_should_be() {
    let subjects = bodies::large();
    let sizes = || subjects.iter().map(bodies::Subject::bytes);
    assert_eq!(sizes().min(), Some(4 << 20));
    assert_eq!(sizes().max(), Some(64 << 20));
    for batch in [1 << 20, Tuning::DEFAULT.batch] {
        let partly_empty = subjects.iter().filter(|subject| {
            let (empty, all) = subject.empty_batches(batch);
            0 < empty && empty < all
        });
        // In front, in the middle and at the end.
        assert!(partly_empty.count() >= 3, "batches of {batch} bytes");
    }
    for subject in &subjects {
        subject.round_trip(&HostEngine, 2).expect("as before");
    }
}

#[test]
fn many_threads_with_mixed_shards() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let simulation = large_device(schedule);
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let tunings = [TINY, Tuning::DEFAULT];
        let subjects = bodies::small();
        let trips = bodies::under_load(&devices, &subjects, &tunings, 4, Duration::ZERO);
        assert!(trips >= subjects.len());
        drop(devices);
        assert_clean(&simulation);
    }
}

#[test]
fn one_lane_and_nested_rayon() {
    let simulation = large_device(Schedule::Eager);
    let (subject, patience) = (bodies::small().swap_remove(3), Duration::from_mins(2));
    bodies::one_lane_and_nested_rayon(simulation.clone(), subject, TINY, patience);
    assert_clean(&simulation);
}

#[test]
fn idle_lanes_are_given_up_in_time() {
    let simulation = large_device(Schedule::Eager);
    bodies::idle_lanes(simulation.clone(), &bodies::small()[0], TINY);
    assert_clean(&simulation);
}

#[test]
fn less_and_less_memory() {
    let simulation = large_device(Schedule::Eager);
    bodies::budgets(simulation.clone(), &bodies::small()[1], TINY);
    assert_clean(&simulation);
}

#[test]
#[cfg(target_os = "linux")]
fn a_forked_child_uses_the_host() {
    let simulation = large_device(Schedule::Eager);
    bodies::forked_child(simulation.clone(), &bodies::small()[1], TINY);
    assert_clean(&simulation);
}
