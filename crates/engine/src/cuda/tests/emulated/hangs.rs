//! A device of the emulated driver that hangs after some of its operations.

use std::time::Duration;

use super::super::on_gpu::stream;
use super::*;
use crate::contract::Engine;
use crate::cuda::DeviceLimits;
use crate::cuda::driver::Fault;
use crate::cuda::tests::simulated::hangs::ends;
use crate::fallback::{HostBatches, WithFallback};

/// Encodes and decodes a shard, and encodes a stream.
fn work(driver: Arc<CudaDriver>, falls_back: bool) -> Result<(), EngineError> {
    let limits = DeviceLimits {
        timeout: Duration::from_millis(300),
        ..limits()
    };
    let engine = CudaEngine::new(Devices::new(vec![driver]), limits, Tuning::TINY);
    let shard = Shard::new(1);
    if falls_back {
        shard.round_trip(&WithFallback::new(engine.clone()))?;
    } else {
        shard.round_trip(&engine as &dyn Engine)?;
    }
    let chain = KnownChain {
        order: vec![0, 2, 1],
        swap: 2,
        stages: vec![Stage::Crc32c],
    };
    let subject = Subject::new(&[(0, 2, 4), (8, 3, 1), (7, 4, 1)], 2, chain, (6, 2));
    let job = Arc::new(subject.job.clone());
    let host = HostBatches::new(engine.clone(), job.clone());
    let fallback = falls_back.then(|| Arc::new(host) as Arc<_>);
    let stream = engine.stream(job, returned(), fallback)?;
    stream::encode(&subject, stream, 1)
}

/// Runs [`work`] on a device that hangs after a number of operations. Returns the result, and whether the
/// device did anything wrong or has nothing left.
fn hang_after(operations: u64, falls_back: bool) -> (Result<(), EngineError>, Live) {
    let driver = emulated::driver(Config {
        hangs_after: Some(operations),
        ..config(Schedule::Latest)
    });
    let device = driver.device().ordinal;
    let what = format!("{operations} operations");
    let done = ends(&what, move || work(driver, falls_back));
    let violations = driver::violations(device);
    assert!(violations.is_empty(), "{what}: {violations:#?}");
    (done, driver::live(device))
}

#[test]
fn a_device_may_hang_after_any_operation() {
    // The last number is beyond the end of the work.
    let (done, live) = hang_after(1 << 20, false);
    done.expect("the device does not hang");
    assert_eq!(live, Live::default());
    thread::scope(|scope| {
        for operations in [0, 5, 20, 60, 100, 150, 200] {
            scope.spawn(move || {
                let (done, live) = hang_after(operations, false);
                match done {
                    Err(EngineError::Device(error)) => {
                        let is_missed = error.to_string().contains("did not get there within");
                        assert!(is_missed, "{operations}: {error}");
                        assert_ne!(error.fault, Fault::Refused, "{operations}: {error}");
                    }
                    other => panic!("{operations}: {other:?}"),
                }
                assert!(live.device_allocations > 0, "{operations}: {live:?}");
                let (done, _) = hang_after(operations, true);
                // A stream cannot be opened on a device in quarantine: its caller would use the host.
                match done {
                    Ok(()) => {}
                    Err(EngineError::Device(error)) if error.fault == Fault::Unavailable => {}
                    Err(error) => panic!("{operations}: {error}"),
                }
            });
        }
    });
}
