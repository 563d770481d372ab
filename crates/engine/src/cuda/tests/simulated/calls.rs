//! How often the engine calls the driver, counted exactly on a device that completes at once.

use super::*;
use crate::cuda::driver::instant::{Calls, InstantDevice};

/// Returns the calls for a shard of 256 MiB: 8³ subchunks of 64³ elements of two bytes.
fn calls(stages: usize, store_empty: bool, times: bool) -> Calls {
    let grid = SubchunkGrid::new(&[512; 3], &[64; 3], 2).unwrap();
    let chain = KnownChain {
        order: vec![0, 1, 2],
        swap: 1,
        stages: vec![Stage::Crc32c; stages],
    };
    let job = ShardJob {
        grid: &grid,
        chain: Chain::Known(&chain),
        fill_value: &[0; 2],
        store_empty,
        validate_checksums: true,
        threads: NonZeroUsize::new(2).unwrap(),
        huge_pages: true,
    };
    let device = Arc::new(InstantDevice::new(grid.subchunk_bytes() + 4 * stages));
    let limits = DeviceLimits {
        device_memory: Some(4 << 30),
        pinned_memory: 1 << 30,
        ..DeviceLimits::default()
    };
    let engine = CudaEngine::new(Devices::new(vec![device.clone()]), limits, Tuning::DEFAULT);
    let engine = engine.with_times(times).without_checks();
    let shard = vec![1; grid.shard_bytes()];
    let encoded = engine.encode(&job, &shard, 0, 0).unwrap();
    assert_eq!(encoded.extents.iter().flatten().count(), 512);
    // The last synchronisations free the lane.
    let calls = device.calls();
    drop(engine);
    calls
}

/// 32 slabs of 8 MiB in 16 batches; before slabs were that long and events for edges alone, there
/// were 2361 calls.
#[test]
fn a_shard_of_256_mib() {
    let calls = calls(0, true, false);
    assert_eq!((calls.timed_events, calls.times), (0, 0), "{calls:#?}");
    let (slabs, batches) = (32, 16);
    // A scatter for each slab; sizes, scan and gather for each batch.
    assert_eq!(calls.launches, slabs + 3 * batches);
    // Up, and down; the offsets of each batch; the fill value.
    assert_eq!(calls.copies, 2 * slabs + batches + 1);
    assert_eq!(calls.all(), 441, "{calls:#?}");
}

#[test]
fn times_are_taken_only_on_request() {
    for (stages, store_empty) in [(0, false), (1, true), (2, false)] {
        let without = calls(stages, store_empty, false);
        assert_eq!((without.timed_events, without.times), (0, 0));
        let with = calls(stages, store_empty, true);
        assert!(with.timed_events > 0 && with.times > 0);
        // Two records and a question for each stage, and nothing else.
        assert_eq!(with.records - without.records, 2 * with.times);
        let others = |calls: Calls| Calls {
            records: 0,
            times: 0,
            events: 0,
            timed_events: 0,
            ..calls
        };
        assert_eq!(others(with), others(without));
        assert_eq!(with.events - with.timed_events, without.events);
    }
}
