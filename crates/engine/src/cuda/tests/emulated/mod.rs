//! The engine on emulated devices, through the C functions of the CUDA driver.
//!
//! `mistakes` and `faults` use devices of this process, one for each run. `processes` starts children
//! that load a driver's library, as applications do. `warm_up` compiles kernels ahead.

mod capture;
mod faults;
mod frames;
mod hangs;
mod mistakes;
mod processes;
mod warm_up;

use std::sync::Arc;
use std::thread;

use zarrs_cuda_emulator::device::Schedule;
use zarrs_cuda_emulator::driver::{self, Config, Live};

use super::on_gpu::stream::{Run, Subject, returned};
use super::simulated::{Shard, limits};
use crate::contract::{EngineError, KnownChain, Stage};
use crate::cuda::HighestLevels;
use crate::cuda::driver::Driver;
use crate::cuda::driver::cuda::CudaDriver;
use crate::cuda::driver::cuda::emulated;
use crate::cuda::{Compressors, CudaEngine, Devices, Tuning};
use crate::fakes::Application;

const SCHEDULES: [Schedule; 5] = [
    Schedule::Latest,
    Schedule::Eager,
    Schedule::Priority(1),
    Schedule::Priority(2),
    Schedule::Priority(3),
];

fn config(schedule: Schedule) -> Config {
    Config {
        schedule,
        ..Config::default()
    }
}

/// Encodes and decodes a shard, and encodes a stream, whose data are partly on the device. Compares
/// all with the host.
fn round_trip(driver: &Arc<CudaDriver>) -> Result<(), EngineError> {
    let driver = Arc::clone(driver) as Arc<dyn Driver>;
    let engine = CudaEngine::new(Devices::new(vec![driver.clone()]), limits(), Tuning::TINY);
    Shard::new(1).round_trip(&engine)?;

    let chain = KnownChain {
        order: vec![0, 2, 1],
        swap: 2,
        stages: vec![Stage::Crc32c],
    };
    let mut subject = Subject::new(&[(0, 2, 4), (8, 3, 1), (7, 4, 1)], 2, chain, (6, 2));
    subject.job.inputs = 2;
    let compressors = Compressors {
        levels: HighestLevels::default(),
        nvcomp: None,
        decode: false,
    };
    let engine = engine.for_chain(subject.chain(), compressors);
    let stream = engine.stream(Arc::new(subject.job.clone()), returned(), None)?;
    let mut application = Application::new(driver, false, subject.bytes.len(), 1)?;
    let encoded = Run::new(&subject, stream, 1)
        .and_then(|run| run.all(&mut |input, at, bytes| application.write(input, at, bytes)));
    application.end()?;
    subject.check(&encoded?);
    Ok(())
}

/// How a round trip ended: `Ok` if all bytes were right.
type Outcome = thread::Result<Result<(), EngineError>>;

/// Runs a round trip on a thread of its own, whose contexts must be gone when it ends.
fn run(driver: Arc<CudaDriver>) -> Outcome {
    let work = move || {
        let result = round_trip(&driver);
        assert_eq!(mode(), 0, "the capture mode of the thread was changed");
        result
    };
    thread::spawn(work).join()
}

/// Returns the capture mode of this thread: 0 unless it was changed.
fn mode() -> u32 {
    let mut mode = 0_u32;
    // SAFETY: the function writes a number of this size.
    let code = unsafe { driver::cuThreadExchangeStreamCaptureMode((&raw mut mode).cast()) };
    assert_eq!(code, 0);
    mode
}

#[test]
fn shards_and_streams_survive_every_schedule() {
    for schedule in SCHEDULES {
        let driver = emulated::driver(config(schedule));
        let device = driver.device().ordinal;
        run(driver).expect("no panic").expect("no fault");
        let violations = driver::violations(device);
        assert!(violations.is_empty(), "{schedule:?}: {violations:#?}");
        assert_eq!(driver::live(device), Live::default(), "{schedule:?}");
    }
}
