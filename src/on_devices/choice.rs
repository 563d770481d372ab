//! The engine that is chosen for shards with a compressor, and its explanation.

use std::time::{Duration, Instant};

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::*;
use crate::options::{Backend, Options};
use crate::plan::{self, EngineRule, Engines};

/// The limit of the options ends the wait for a device that hangs, and the host encodes the shard.
#[test]
fn the_host_takes_over_from_a_device_that_hangs() {
    let shard = Shard::new(vec![Stage::Crc32c]);
    let simulation = simulation(Schedule::Latest);
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, Tuning::TINY);
    let options = Options::default()
        .with_device_memory(1 << 24)
        .with_pinned_memory(1 << 24)
        .with_device_timeout(Duration::from_millis(20));
    let choice = engines.choose(&options, &shard.grid, Ok(&shard.chain));
    let choice = choice.expect("suits");
    simulation.hang();
    let begin = Instant::now();
    let job = shard.job();
    let expected = HostEngine
        .encode(&job, &shard.elements, 0, 0)
        .expect("the host");
    let encoded = choice.engine.encode(&job, &shard.elements, 0, 0);
    assert!(encoded.expect("the host takes over").bytes == expected.bytes);
    assert!(begin.elapsed() < options.device_timeout() + Duration::from_secs(40));
    assert_eq!(devices.counters.snapshot().shards_encoded, 0);
    assert!(simulation.hangs() && simulation.violations().is_empty());
}

/// The option reaches the engine and the plan's explanation.
#[test]
fn the_plan_knows() {
    let shard = Shard::new(vec![Stage::Zstd {
        level: 1,
        checksum: false,
    }]);
    let encoded = &shard.expected;
    let simulation = simulation(Schedule::Latest);
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, Tuning::TINY);
    let mut on_device = 0;
    for backend in [Backend::Auto, Backend::Cuda] {
        for decode in [false, true] {
            let options = Options::default()
                .with_backend(backend)
                .with_nvcomp(StandIn::Six.path())
                .with_device_memory(1 << 24)
                .with_pinned_memory(1 << 24)
                .with_device_decode(decode);
            let choice = engines.choose(&options, &shard.grid, Ok(&shard.chain));
            let choice = choice.expect("suits");
            assert_eq!(choice.engine.decodes_whole_shards(), decode);
            let index = "index".to_string();
            let [encoder, decoder] = engines
                .preview(&options, &shard.grid, Ok(&shard.chain))
                .expect("suits");
            let plans = (encoder, &decoder);
            let explained = plan::explain(&shard.grid, Ok(&shard.chain), index, plans, None);
            assert_eq!(explained.engine, "cuda");
            let place = if decode { "cuda (" } else { "host (" };
            assert!(
                explained.decoding.starts_with(place),
                "{}",
                explained.decoding
            );
            let job = shard.job();
            let decoded = choice.engine.decode(&job, &encoded.bytes, &encoded.extents);
            assert!(decoded.expect("decodes") == shard.elements);
            on_device += u64::from(decode);
            assert_eq!(devices.counters.snapshot().shards_decoded, on_device);
        }
    }
}

/// Users are told of a named device that does not exist, because the host does its work.
#[test]
fn a_named_device_that_is_missing_is_told() {
    let shard = Shard::new(vec![Stage::Crc32c]);
    let devices = Devices::new(vec![simulation(Schedule::Latest) as Arc<dyn Driver>]);
    let engines = Engines::of_devices(devices, EngineRule::ALL, Tuning::TINY);
    let choose = |options: &Options| engines.choose(options, &shard.grid, Ok(&shard.chain));
    let options = Options::default()
        .with_device_memory(1 << 24)
        .with_pinned_memory(1 << 24);
    assert!(choose(&options.clone().with_devices([0])).is_ok());
    assert!(choose(&options.clone().with_all_devices()).is_ok());
    // Tests of this process share the notes.
    let told = || crate::metrics().missing_devices.get(&4097).cloned();
    assert_eq!(told(), None);
    for _ in 0..2 {
        let plan = choose(&options.clone().with_devices([0, 4097])).expect("the host");
        assert_eq!(plan.engine.name(), "host");
        let why = told().expect("a note");
        for part in [
            "CUDA device 4097",
            "named by the test",
            "can be used are [0]",
        ] {
            assert!(why.contains(part), "{why}");
        }
    }
    assert!(crate::metrics().to_string().contains("CUDA device 4097"));
}
