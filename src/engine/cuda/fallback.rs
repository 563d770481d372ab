//! A device where it can, the host where it cannot: nothing is lost for want of a GPU.

use std::borrow::Cow;

use super::CudaEngine;
use crate::engine::host::HostEngine;
use crate::engine::{EncodedShard, EncodedSubchunk, Engine, EngineError, Job, Sink};
use crate::layout::Extent;

/// Tries a device first. Whatever fails there is done again, from the start, on the host; so errors
/// about the data are the host's.
#[derive(Clone, Debug)]
pub(crate) struct WithFallback(pub(crate) CudaEngine);

impl WithFallback {
    /// Count and tell why a shard goes to the host. What may be the data's fault is told quietly, for
    /// the host has the last word on them.
    fn tell(&self, doing: &'static str, error: &EngineError) {
        let counters = self.0.counters();
        match error {
            EngineError::Unsuitable(reason) => {
                tracing::debug!(doing, reason, "a shard goes to the host");
            }
            EngineError::Device(error) => {
                tracing::warn!(doing, %error, "a CUDA device failed; the shard goes to the host");
            }
            EngineError::Internal(_) | EngineError::OutOfMemory { .. } => {
                tracing::warn!(doing, %error, "the CUDA engine failed; the shard goes to the host");
            }
            error => {
                tracing::debug!(doing, %error, "the host has the last word on this shard");
            }
        }
        counters.fell_back(&reason(error));
    }
}

/// What a fallback is counted under: of equal failures, not every number makes a reason of its own.
pub(super) fn reason(error: &EngineError) -> Cow<'_, str> {
    match error {
        EngineError::Unsuitable(reason) => reason.into(),
        EngineError::Device(error) => (&error.reason).into(),
        EngineError::Internal(what) => format!("internal error: {what}").into(),
        EngineError::OutOfMemory { what, .. } => {
            format!("the host has no memory for {what}").into()
        }
        EngineError::InputLength { .. } => "the input is not as long as its shape needs".into(),
        EngineError::Extent { .. } => "a subchunk ends outside its shard".into(),
        EngineError::Encode { stage, .. } => format!("{stage} could not encode a subchunk").into(),
        EngineError::Decode { stage, .. } => format!("{stage} could not decode a subchunk").into(),
        EngineError::DecodedLength { .. } => "a subchunk has not the length it should have".into(),
        EngineError::Checksum { .. } => "a checksum is invalid".into(),
        EngineError::Foreign(_) => "a codec of another crate failed".into(),
    }
}

impl Engine for WithFallback {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn encode(
        &self,
        job: &Job<'_>,
        decoded: &[u8],
        head: usize,
        tail: usize,
    ) -> Result<EncodedShard, EngineError> {
        self.0.encode(job, decoded, head, tail).or_else(|error| {
            self.tell("encode", &error);
            HostEngine.encode(job, decoded, head, tail)
        })
    }

    fn decode(
        &self,
        job: &Job<'_>,
        encoded: &[u8],
        extents: &[Extent],
    ) -> Result<Vec<u8>, EngineError> {
        if !self.decodes_whole_shards() {
            // On the host already: no device fails, and once is enough.
            return HostEngine.decode(job, encoded, extents);
        }
        self.0.decode(job, encoded, extents).or_else(|error| {
            self.tell("decode", &error);
            HostEngine.decode(job, encoded, extents)
        })
    }

    fn decodes_whole_shards(&self) -> bool {
        self.0.decodes_whole_shards()
    }

    fn decode_each(
        &self,
        job: &Job<'_>,
        subchunks: &[EncodedSubchunk<'_>],
        sink: &Sink<'_>,
    ) -> Result<(), EngineError> {
        self.0.decode_each(job, subchunks, sink)
    }
}
