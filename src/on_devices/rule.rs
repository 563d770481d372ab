//! The choice of a place under `Backend::Auto`, and jobs that go to a device only for decoding.

use zarrs_cuda_engine::contract::stream::{Room, StreamChain, StreamJob};
use zarrs_cuda_engine::layout::StreamGrid;
use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::*;
use crate::options::{Backend, LevelPolicy, Options};
use crate::plan::{self, EngineRule, Engines};

fn zstd(level: i32) -> KnownChain {
    KnownChain {
        order: vec![0, 1, 2],
        swap: 1,
        stages: vec![Stage::Zstd {
            level,
            checksum: false,
        }],
    }
}

fn options() -> Options {
    Options::default()
        .with_nvcomp(StandIn::Six.path())
        .with_device_memory(8 << 30)
        .with_pinned_memory(1 << 30)
}

/// Engines of a host with `processors` processors, and of a large device.
fn engines(processors: usize) -> Engines {
    let device = Simulation::new(Config {
        multiprocessors: 132,
        ..Config::default()
    });
    let processors = NonZeroUsize::new(processors).unwrap();
    Engines::of_devices(
        Devices::new(vec![Arc::new(device) as Arc<dyn Driver>]),
        EngineRule::Faster { processors },
        Tuning::DEFAULT,
    )
}

#[test]
fn a_shard_goes_to_the_faster_place() {
    let uncompressed = KnownChain {
        stages: vec![],
        ..zstd(1)
    };
    let gzip = KnownChain {
        stages: vec![Stage::Gzip { level: 1 }],
        ..zstd(1)
    };
    let (many, one) = ([512; 3], [32; 3]);
    for (shard, chain, processors, engine, why) in [
        (many, &zstd(1), 4, "cuda", "estimated to be faster"),
        (many, &zstd(1), 64, "host", "better place"),
        (one, &zstd(1), 4, "host", "better place"),
        (many, &uncompressed, 4, "host", "better place"),
        (many, &gzip, 1, "host", "no figure"),
        (many, &zstd(4), 4, "host", "zstd level 4"),
    ] {
        let grid = SubchunkGrid::new(&shard, &[32; 3], 2).unwrap();
        let engines = engines(processors);
        let plan = engines.choose(&options(), &grid, Ok(chain)).unwrap();
        let estimates = engines.estimates(&options(), &grid, Ok(chain));
        let [encoder, decoder] = engines.preview(&options(), &grid, Ok(chain)).unwrap();
        let explained = plan::explain(
            &grid,
            Ok(chain),
            "index".to_string(),
            (encoder, &decoder),
            estimates,
        );
        let case = format!("{shard:?}, {chain:?}, {processors}: {explained}");
        assert_eq!(plan.engine.name(), engine, "{case}");
        assert!(explained.why.contains(why), "{case}");
        let estimates = estimates.expect("there is a figure for the host");
        let expects_device = why != "no figure" && why != "zstd level 4";
        assert_eq!(estimates.device.is_some(), expects_device, "{case}");
        let printed = format!("estimated to encode a shard: {estimates}\n");
        assert!(case.contains(&printed), "{case}");
        // The options say that the host decodes compressed shards.
        assert!(explained.decoding.starts_with("host ("), "{case}");
    }
}

/// The estimate of the host is printed without a device, too.
#[test]
fn an_array_that_stays_on_the_host_has_one_estimate() {
    let grid = SubchunkGrid::new(&[512; 3], &[32; 3], 2).unwrap();
    let options = options().with_backend(Backend::Host);
    let estimates = engines(4).estimates(&options, &grid, Ok(&zstd(1)));
    let estimates = estimates.expect("there is a figure");
    assert_eq!(estimates.device, None);
    assert!(estimates.to_string().ends_with("on the host"));
    let unknown = engines(4).estimates(&options, &grid, Err("of another crate"));
    assert_eq!(unknown, None);
}

#[test]
fn a_stream_goes_to_the_faster_place() {
    for (inner, processors, on_device) in [
        ([1024, 2048], 4, true),
        ([1024, 2048], 64, false),
        ([32, 32], 4, false),
    ] {
        let shard = SubchunkGrid::new(&[32, 256, 256], &[32; 3], 2).unwrap();
        let job = StreamJob {
            grid: StreamGrid::new(shard, &inner).unwrap(),
            chain: StreamChain::Known(zstd(1)),
            fill_value: vec![0; 2],
            store_empty: false,
            threads: NonZeroUsize::MIN,
            huge_pages: false,
            epochs: 1,
            room: Room::default(),
            inputs: 2,
            outputs: 2,
            lending: None,
            reduced_from: None,
        };
        let choice = engines(processors).choose_stream(&options(), &job).unwrap();
        assert_eq!(choice.is_device(), on_device, "{inner:?}: {}", choice.why);
    }
}

/// A level that is too high for a device is encoded on the host, and decoded on a device.
#[test]
fn levels_limit_encoding_alone() {
    let shard = Shard::new(zstd(19).stages);
    for backend in [Backend::Auto, Backend::Cuda] {
        let simulation = simulation(Schedule::Latest);
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, Tuning::TINY);
        let options = options().with_backend(backend).with_device_decode(true);
        let encoder = engines.choose(&options, &shard.grid, Ok(&shard.chain));
        let engine: Box<dyn Engine> = if backend == Backend::Auto {
            encoder.expect("the host").engine
        } else {
            let error = encoder.expect_err("no device encodes it").to_string();
            assert!(error.contains("zstd level 19"), "{error}");
            Box::new(HostEngine)
        };
        assert_eq!(engine.name(), "host");
        let encoded = engine.encode(&shard.job(), &shard.elements, 3, 5);
        let encoded = encoded.unwrap();
        let decoder = engines.choose_decoder(&options, &shard.grid, Ok(&shard.chain));
        let decoder = decoder.expect("a device decodes it").engine;
        assert!(decoder.decodes_whole_shards());
        let decoded = decoder.decode(&shard.job(), &encoded.bytes, &encoded.extents);
        assert!(decoded.unwrap() == shard.elements);
        let metrics = devices.counters.snapshot();
        assert_eq!((metrics.shards_encoded, metrics.shards_decoded), (0, 1));
        drop((decoder, engines, devices));
        assert_clean(&simulation);
    }
}

#[test]
fn blosc_has_a_level_for_each_compressor() {
    use zarrs_cuda_engine::contract::{BloscStage, Cname, Shuffle};
    let grid = SubchunkGrid::new(&[512; 3], &[32; 3], 2).unwrap();
    let policy = LevelPolicy::default();
    let all = policy.with_blosc_lz4(9).with_blosc_zstd(9);
    for (cname, level, policy, refused) in [
        (Cname::Lz4, 5, policy, false),
        (Cname::Lz4, 6, policy, true),
        (Cname::Zstd, 2, policy, false),
        (Cname::Zstd, 3, policy, true),
        (Cname::Lz4, 9, all, false),
        (Cname::Zstd, 9, all, false),
    ] {
        let chain = KnownChain {
            stages: vec![Stage::Blosc(BloscStage {
                cname,
                level,
                shuffle: Shuffle::Byte,
                typesize: 2,
                blocksize: 0,
            })],
            ..zstd(1)
        };
        let options = options()
            .with_backend(Backend::Cuda)
            .with_device_levels(policy);
        let choice = engines(4).choose(&options, &grid, Ok(&chain));
        assert_eq!(choice.is_err(), refused, "{cname:?} {level}: {choice:?}");
    }
}

/// The metrics of an engine have the bytes of the subchunks that are stored.
#[test]
fn the_bytes_of_a_device_are_counted() {
    let shard = Shard::new(zstd(1).stages);
    let simulation = simulation(Schedule::Latest);
    let devices = Devices::new(vec![simulation as Arc<dyn Driver>]);
    let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, Tuning::TINY);
    let options = options().with_device_decode(true);
    let plan = engines
        .choose(&options, &shard.grid, Ok(&shard.chain))
        .unwrap();
    let encoded = plan
        .engine
        .encode(&shard.job(), &shard.elements, 3, 5)
        .unwrap();
    let decoded = plan
        .engine
        .decode(&shard.job(), &encoded.bytes, &encoded.extents);
    assert!(decoded.unwrap() == shard.elements);
    let stored: Vec<usize> = encoded
        .extents
        .iter()
        .flatten()
        .map(ExactSizeIterator::len)
        .collect();
    assert!(stored.len() < encoded.extents.len(), "some are empty");
    let decoded = (stored.len() * shard.grid.subchunk_bytes()) as u64;
    let encoded = stored.iter().sum::<usize>() as u64;
    let bytes = devices.counters.snapshot().coded_bytes;
    assert_eq!((bytes.encode_in, bytes.encode_out), (decoded, encoded));
    assert_eq!((bytes.decode_in, bytes.decode_out), (encoded, decoded));
}
