//! The kernels of nvCOMP, which are loaded ahead.

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::compression::with;
use super::*;
use crate::cuda::Compressors;

/// The compressors that are run: of zstd, three algorithms of deflate, and of lz4.
const COMPRESSORS: u64 = 5;

fn engine(simulation: &Arc<Simulation>) -> CudaEngine {
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let limits = DeviceLimits {
        device_memory: Some(1 << 29),
        pinned_memory: 1 << 29,
        ..limits()
    };
    CudaEngine::new(devices, limits, Tuning::TINY)
}

#[test]
fn each_compressor_runs_and_is_checked() {
    let mut launches = Vec::new();
    for decode in [false, true] {
        let simulation = simulation(Schedule::Latest);
        let engine = engine(&simulation);
        let compressors = Compressors {
            decode,
            ..with(StandIn::Six)
        };
        engine.warm_up(&compressors).expect("no fault");
        let metrics = engine.counters().snapshot();
        // No subchunk came from the host, and the host has compared each shard.
        assert_eq!(metrics.subchunks_on_host, 0);
        let checked = metrics.batches_checked;
        assert!(checked >= COMPRESSORS, "{checked}");
        launches.push((checked, simulation.counts().launches));
        // The application did not ask for these shards.
        assert_eq!((metrics.shards_encoded, metrics.shards_decoded), (0, 0));
        drop(engine);
        assert!(simulation.violations().is_empty());
    }
    assert!(launches[0].0 < launches[1].0 && launches[0].1 < launches[1].1);
}

#[test]
fn a_compressor_that_fails_is_no_error() {
    for library in [
        StandIn::Refusing,
        StandIn::Failing,
        StandIn::Incomplete,
        StandIn::NoDevice,
        StandIn::Four,
    ] {
        let simulation = simulation(Schedule::Latest);
        let engine = engine(&simulation);
        engine.warm_up(&with(library)).expect("the host compresses");
        // The device is still used.
        Shard::new(1).round_trip(&engine).expect("no fault");
        drop(engine);
        assert!(simulation.violations().is_empty(), "{library:?}");
    }
}

#[test]
fn a_device_that_breaks_is_an_error() {
    let simulation = simulation(Schedule::Latest);
    let engine = engine(&simulation);
    let operation = simulation.counts().operations + 20;
    simulation.inject(crate::cuda::driver::simulation::Inject::Sticky { operation });
    let error = engine.warm_up(&with(StandIn::Six)).expect_err("it breaks");
    assert!(error.to_string().contains("illegal address"), "{error}");
}
