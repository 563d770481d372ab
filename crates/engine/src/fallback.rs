//! Lets the host do the work of a device that fails, so that a missing GPU is no error. No other part of the
//! crate falls back.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::contract::stream::{BatchFallback, EncodedPart, StreamJob};
use crate::contract::{Chain, EncodedShard, Engine, EngineError, ShardJob};
use crate::cuda::CudaEngine;
use crate::host::HostEngine;
use crate::host::stream::encode_padded;
use crate::layout::{BatchGrid, Extent};

/// The engine of a device, with the host as fallback. The host repeats a failed job from its start, so that
/// errors about the data are the host's.
#[derive(Clone, Debug)]
pub struct WithFallback<E> {
    pub device: E,
    /// Whether the caller gets failures of the device as errors, instead of a fallback.
    strict: bool,
}

impl<E: Engine> WithFallback<E> {
    /// Returns an engine for `Backend::Auto`: the host does every job that fails on the device.
    pub fn new(device: E) -> Self {
        Self {
            device,
            strict: false,
        }
    }

    /// Returns an engine for `Backend::Cuda`: a failure of the device is an error. The host only decodes
    /// shards whose compressed frames the device does not support.
    pub fn strict(device: E) -> Self {
        Self {
            device,
            strict: true,
        }
    }

    /// Counts and logs the reason why the host gets a shard. Errors that the data may have caused are logged
    /// at the debug level only, because the host decides whether the data are wrong.
    fn tell(&self, doing: &'static str, error: &EngineError) {
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
        self.device.fell_back(&reason(error));
    }
}

impl<E: Engine> Engine for WithFallback<E> {
    fn name(&self) -> &'static str {
        self.device.name()
    }

    fn encode(
        &self,
        job: &ShardJob<'_>,
        decoded: &[u8],
        head: usize,
        tail: usize,
    ) -> Result<EncodedShard, EngineError> {
        let encoded = self.device.encode(job, decoded, head, tail);
        if self.strict {
            return encoded;
        }
        encoded.or_else(|error| {
            self.tell("encode", &error);
            HostEngine.encode(job, decoded, head, tail)
        })
    }

    fn decode(
        &self,
        job: &ShardJob<'_>,
        encoded: &[u8],
        extents: &[Extent],
    ) -> Result<Vec<u8>, EngineError> {
        if !self.device.decodes_whole_shards() {
            // The device never decodes whole shards of this kind, so this is no failure.
            return HostEngine.decode(job, encoded, extents);
        }
        let compressed = matches!(job.chain, Chain::Known(chain) if !chain.is_fixed_size());
        self.device.decode(job, encoded, extents).or_else(|error| {
            // Compressed frames that a device does not support are no failure of the device.
            let is_for_host = compressed && matches!(error, EngineError::Unsuitable(_));
            if self.strict && !is_for_host {
                return Err(error);
            }
            self.tell("decode", &error);
            HostEngine.decode(job, encoded, extents)
        })
    }

    fn decodes_whole_shards(&self) -> bool {
        self.device.decodes_whole_shards()
    }

    fn first_wait(&self) -> Option<String> {
        self.device.first_wait()
    }
}

/// The host, as the fallback of a stream on a device.
#[derive(Debug)]
pub struct HostBatches {
    device: CudaEngine,
    job: Arc<StreamJob>,
    /// Whether the log says already that the device is lost, and that the host encodes the rest of the
    /// stream.
    told: AtomicBool,
}

impl HostBatches {
    /// Returns the fallback for the stream of `job` on `device`.
    pub fn new(device: CudaEngine, job: Arc<StreamJob>) -> Self {
        Self {
            device,
            job,
            told: AtomicBool::new(false),
        }
    }
}

impl BatchFallback for HostBatches {
    fn tell(&self, error: &EngineError, lost: bool) {
        self.device.counters().fell_back(&reason(error));
        if self.told.swap(lost, Ordering::Relaxed) {
            tracing::debug!(%error, "another batch of a stream goes to the host");
        } else {
            tracing::warn!(%error, "a CUDA device failed; a batch of a stream goes to the host");
        }
    }

    fn encode(
        &self,
        batch: &BatchGrid,
        padded: &[u8],
        output: &mut [u8],
    ) -> Result<(Vec<EncodedPart>, usize), EngineError> {
        encode_padded(&self.job, batch, padded, output)
    }
}

/// Returns the reason under which a fallback is counted, without the numbers that differ between equal
/// failures.
pub fn reason(error: &EngineError) -> Cow<'_, str> {
    match error {
        EngineError::Unsuitable(reason) => reason.into(),
        EngineError::Device(error) => (&error.reason).into(),
        EngineError::Internal(what) => format!("internal error: {what}").into(),
        EngineError::OutOfMemory { what, .. } => {
            format!("the host has no memory for {what}").into()
        }
        EngineError::InputLength { .. } => "the input is not as long as its shape needs".into(),
        EngineError::Strides { .. } => "the elements of a shard leave their memory".into(),
        EngineError::Extent { .. } => "a subchunk ends outside its shard".into(),
        EngineError::Encode { stage, .. } => format!("{stage} could not encode a subchunk").into(),
        EngineError::Decode { stage, .. } => format!("{stage} could not decode a subchunk").into(),
        EngineError::DecodedLength { .. } => "a subchunk has not the length it should have".into(),
        EngineError::Checksum { .. } => "a checksum is invalid".into(),
        EngineError::Foreign(_) => "a codec of another crate failed".into(),
    }
}
