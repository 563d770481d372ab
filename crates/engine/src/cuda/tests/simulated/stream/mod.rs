//! Streams on simulated devices.

mod any;
mod counts;
mod faults;
pub(super) mod hangs;
mod levels;
mod memory;
pub(super) mod sites;
mod wrong_results;

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::compression::{blosc, compressors, with};
use super::hangs::impatient;
use super::*;
use crate::contract::stream::{BatchFallback, StreamEngine};
use crate::contract::{Cname, Shuffle};
use crate::cuda::tests::on_gpu::stream;
use crate::cuda::tests::on_gpu::stream::{Run, Subject, returned};
use crate::fakes::Application;
use crate::fallback::HostBatches;

/// Larger limits of memory, because compressors need temporary memory, and a short one for waits.
fn stream_limits() -> DeviceLimits {
    DeviceLimits {
        device_memory: Some(1 << 29),
        pinned_memory: 1 << 29,
        ..impatient(limits())
    }
}

fn stream_engine(simulation: &Arc<Simulation>, library: StandIn, subject: &Subject) -> CudaEngine {
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    CudaEngine::new(devices, stream_limits(), Tuning::TINY)
        .for_chain(subject.chain(), with(library))
}

/// Opens a stream that falls back, or fails when the device does.
fn open(
    engine: &CudaEngine,
    subject: &Subject,
    falls_back: bool,
) -> Result<Arc<dyn StreamEngine>, EngineError> {
    let job = Arc::new(subject.job.clone());
    let fallback = falls_back.then(|| {
        let host = HostBatches::new(engine.clone(), job.clone());
        Arc::new(host) as Arc<dyn BatchFallback>
    });
    let stream = engine.stream(job, returned(), fallback)?;
    stream.settle();
    Ok(stream)
}

/// Encodes a subject, partly from an application's memory on the device, and checks the result.
fn encode_with(
    simulation: &Arc<Simulation>,
    subject: &Subject,
    stream: Arc<dyn StreamEngine>,
    (seed, tries): (u64, usize),
) -> Result<(), EngineError> {
    let driver = simulation.clone() as Arc<dyn Driver>;
    let mut run = Run::new(subject, stream, seed)?;
    run.tries = tries;
    let Ok(mut application) = Application::new(driver, true, subject.bytes.len(), seed) else {
        // A broken device does not allow an application.
        subject.check(&run.all(&mut stream::from_host)?);
        return Ok(());
    };
    let encoded = run.all(&mut |input, at, bytes| application.write(input, at, bytes));
    // On a broken device nothing can be freed.
    let ended = application.end();
    subject.check(&encoded?);
    ended.or(Ok(()))
}

/// Three shards of 3 × 2 subchunks, with padding at the edge of the second axis. A batch is a part
/// of a shard.
fn padded(stages: Vec<Stage>) -> Subject {
    let chain = KnownChain {
        order: vec![0, 2, 1],
        swap: 2,
        stages,
    };
    let mut subject = Subject::new(&[(0, 2, 4), (8, 3, 1), (7, 4, 1)], 2, chain, (6, 2));
    subject.job.inputs = 2;
    subject
}
