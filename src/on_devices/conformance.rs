//! The engine conformance suite on a simulated device. The host engine passes it, too.

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::suites::{compressed_conformance, conformance, forked_child};
use super::*;
use crate::options::{Backend, Options};

fn options(library: StandIn) -> Options {
    Options::default()
        .with_device_memory(1 << 28)
        .with_pinned_memory(1 << 28)
        .with_nvcomp(library.path())
}

#[test]
fn a_device_where_it_can_and_the_host_where_it_cannot() {
    for schedule in [Schedule::Eager, Schedule::Latest, Schedule::Priority(1)] {
        for (tuning, cases) in [(Tuning::TINY, 30), (Tuning::DEFAULT, 10)] {
            check(&simulation(schedule), tuning, cases);
        }
    }
}

/// The device has as many multiprocessors as a large one: kernels choose other launches there.
#[test]
fn a_device_with_many_multiprocessors() {
    for (tuning, cases) in [(Tuning::TINY, 15), (Tuning::DEFAULT, 15)] {
        let simulation = Arc::new(Simulation::new(Config {
            multiprocessors: 132,
            ..Config::default()
        }));
        check(&simulation, tuning, cases);
    }
}

fn check(simulation: &Arc<Simulation>, tuning: Tuning, cases: u32) {
    conformance(&options(StandIn::Six), simulation.clone(), tuning, cases);
    assert_clean(simulation);
}

/// Every compressor that a device supports, with every shuffle and many type sizes.
#[test]
fn compressors() {
    for (backend, library, tuning, cases) in [
        (Backend::Auto, StandIn::Six, Tuning::TINY, 30),
        (Backend::Auto, StandIn::Five, Tuning::TINY, 15),
        (Backend::Auto, StandIn::Failing, Tuning::TINY, 20),
        (Backend::Auto, StandIn::Six, Tuning::DEFAULT, 15),
        (Backend::Cuda, StandIn::Six, Tuning::TINY, 20),
        (Backend::Cuda, StandIn::Failing, Tuning::DEFAULT, 10),
    ] {
        let simulation = simulation(Schedule::Latest);
        let options = options(library).with_backend(backend);
        let on_host = compressed_conformance(&options, simulation.clone(), tuning, cases);
        assert_eq!(on_host > 0, library == StandIn::Failing, "{on_host}");
        assert_clean(&simulation);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_forked_child_uses_the_host() {
    let simulation = simulation(Schedule::Eager);
    forked_child(simulation.clone(), Tuning::TINY);
    assert_clean(&simulation);
}
