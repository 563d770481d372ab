//! The engine conformance suite, as the host engine passes it, on a simulated device.

use super::*;
use crate::engine::cuda::gpu::bodies::conformance;

#[test]
fn a_device_where_it_can_and_the_host_where_it_cannot() {
    for schedule in [Schedule::Eager, Schedule::Latest, Schedule::Priority(1)] {
        for (tuning, cases) in [(TINY, 60), (Tuning::DEFAULT, 20)] {
            check(&simulation(schedule), tuning, cases);
        }
    }
}

/// As many multiprocessors as a large device has: kernels choose other launches there.
#[test]
fn a_device_with_many_multiprocessors() {
    for (tuning, cases) in [(TINY, 30), (Tuning::DEFAULT, 30)] {
        let simulation = Arc::new(Simulation::new(Config {
            multiprocessors: 132,
            ..Config::default()
        }));
        check(&simulation, tuning, cases);
    }
}

fn check(simulation: &Arc<Simulation>, tuning: Tuning, cases: u32) {
    conformance(simulation.clone(), Some(1 << 28), tuning, cases);
    assert_clean(simulation);
}
