//! Which engine a stream is encoded by, and why.

use std::path::Path;
use std::sync::Arc;

use super::{Engines, Rule};
use crate::engine::EngineError;
use crate::engine::cuda::{self, Compressors, CudaEngine, WithFallback};
use crate::engine::host::stream::{HostStream, stream_memory};
use crate::engine::stream::{Returned, StreamChain, StreamEngine, StreamJob, StreamMemory};
use crate::{Backend, Error, Options};

/// The engine of a stream, and why that one.
#[derive(Clone, Debug)]
pub(crate) struct StreamChoice {
    place: StreamPlace,
    /// For a person.
    pub(crate) why: String,
}

#[derive(Clone, Debug)]
enum StreamPlace {
    Host,
    Device(CudaEngine),
    /// What fails there is encoded by the host.
    DeviceOrHost(WithFallback),
}

impl StreamChoice {
    /// The host, and why.
    pub(crate) fn host(why: impl Into<String>) -> Self {
        Self {
            place: StreamPlace::Host,
            why: why.into(),
        }
    }

    /// Whether a device encodes it.
    pub(crate) fn is_device(&self) -> bool {
        !matches!(self.place, StreamPlace::Host)
    }

    /// Whether the host would do as well.
    pub(crate) fn can_fall_back(&self) -> bool {
        matches!(self.place, StreamPlace::DeviceOrHost(_))
    }

    /// Whether each part of a batch of `chain` is one piece, around which there can be room.
    pub(crate) fn packs(&self, chain: &StreamChain) -> bool {
        self.is_device() || chain.is_fixed_size()
    }

    /// What the buffers for `job` take.
    ///
    /// # Errors
    /// They cannot be had: why.
    pub(crate) fn memory(&self, job: &StreamJob) -> Result<StreamMemory, EngineError> {
        match &self.place {
            StreamPlace::Host => stream_memory(job),
            StreamPlace::Device(cuda) => cuda.stream_estimate(job),
            StreamPlace::DeviceOrHost(cuda) => cuda.stream_estimate(job),
        }
    }

    /// The engine, set up for `job`.
    ///
    /// # Errors
    /// What stops it; [`EngineError::wants_less`] if a job of fewer epochs may do.
    pub(crate) fn engine(
        &self,
        job: Arc<StreamJob>,
        returned: Arc<Returned>,
    ) -> Result<Arc<dyn StreamEngine>, EngineError> {
        match &self.place {
            StreamPlace::Host => Ok(Arc::new(HostStream::new(job, &returned)?)),
            StreamPlace::Device(cuda) => cuda.stream(job, returned),
            StreamPlace::DeviceOrHost(cuda) => cuda.stream(job, returned),
        }
    }
}

impl Engines {
    /// The engine that encodes a stream whose batches are like those of `job`, which has the fewest
    /// epochs.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if `options` ask for a device and it cannot be one: the reason.
    pub(crate) fn choose_stream(
        &self,
        options: &Options,
        job: &StreamJob,
    ) -> Result<StreamChoice, Error> {
        match options.backend() {
            Backend::Host => Ok(StreamChoice::host("the host was asked for")),
            Backend::Auto => {
                if let Some(why) = self.rule.stream_on_host(job) {
                    return Ok(StreamChoice::host(why));
                }
                Ok(match self.device_for(options, job) {
                    Ok(cuda) => StreamChoice {
                        place: StreamPlace::DeviceOrHost(WithFallback(cuda)),
                        why: "a device can encode it".to_string(),
                    },
                    Err(why) => StreamChoice::host(why),
                })
            }
            backend @ Backend::Cuda => {
                let cuda = self.device_for(options, job);
                let cuda = cuda.map_err(|reason| Error::BackendUnavailable { backend, reason })?;
                Ok(StreamChoice {
                    place: StreamPlace::Device(cuda),
                    why: "CUDA was asked for".to_string(),
                })
            }
        }
    }

    /// The engine on a device, if a device can encode the stream.
    fn device_for(&self, options: &Options, job: &StreamJob) -> Result<CudaEngine, String> {
        let StreamChain::Known(chain) = &job.chain else {
            return Err("the CUDA engine does not know the inner codecs".to_string());
        };
        cuda::check_chain(job.grid.shard(), chain, options.device_levels())?;
        let compressors = Compressors {
            levels: options.device_levels(),
            nvcomp: options.nvcomp().map(Path::to_path_buf),
            decode: false,
        };
        let cuda = self.cuda(options)?.for_chain(chain, compressors);
        let estimate = cuda.stream_estimate(job);
        estimate.map_err(|error| error.to_string())?;
        Ok(cuda)
    }
}

impl Rule {
    /// Why a stream stays on the host, if it does: for the reasons that a shard would, but that all
    /// shards of a shard epoch are encoded together.
    fn stream_on_host(&self, job: &StreamJob) -> Option<String> {
        let StreamChain::Known(chain) = &job.chain else {
            return Some("the CUDA engine does not know the inner codecs".to_string());
        };
        let grid = &job.grid;
        let all = grid
            .subchunks_per_epoch()
            .saturating_mul(grid.epochs_per_shard());
        self.host_is_better(
            chain,
            all.saturating_mul(grid.shard().subchunk_bytes()),
            all,
        )
    }
}
