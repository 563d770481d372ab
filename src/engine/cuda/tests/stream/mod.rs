//! Streams on simulated devices.

mod any;

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::compression::{compressors, with};
use super::*;
use crate::engine::cuda::WithFallback;
use crate::engine::cuda::gpu::stream::{self, Subject, returned};
use crate::engine::stream::StreamEngine;

fn stream_engine(simulation: &Arc<Simulation>, library: StandIn, subject: &Subject) -> CudaEngine {
    engine_on(simulation).for_chain(subject.chain(), with(library))
}

/// A stream that fails where the device does, or falls back.
fn open(
    engine: &CudaEngine,
    subject: &Subject,
    falls_back: bool,
) -> Result<Arc<dyn StreamEngine>, EngineError> {
    let job = Arc::new(subject.job.clone());
    if falls_back {
        WithFallback(engine.clone()).stream(job, returned())
    } else {
        engine.stream(job, returned())
    }
}
