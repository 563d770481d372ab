//! Which engine a stream is encoded by, and why.

use std::sync::Arc;

use super::Engines;
use crate::engine::EngineError;
use crate::engine::host::stream::{HostStream, stream_memory};
use crate::engine::stream::{Returned, StreamEngine, StreamJob, StreamMemory};
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
}

impl StreamChoice {
    fn host(why: impl Into<String>) -> Self {
        Self {
            place: StreamPlace::Host,
            why: why.into(),
        }
    }

    /// Whether a device encodes it.
    pub(crate) fn is_device(&self) -> bool {
        match self.place {
            StreamPlace::Host => false,
        }
    }

    /// What the buffers for `job` take.
    ///
    /// # Errors
    /// They cannot be had: why.
    pub(crate) fn memory(&self, job: &StreamJob) -> Result<StreamMemory, EngineError> {
        match self.place {
            StreamPlace::Host => stream_memory(job),
        }
    }

    /// The engine, set up for `job`.
    ///
    /// # Errors
    /// What stops it.
    pub(crate) fn engine(
        &self,
        job: Arc<StreamJob>,
        returned: Arc<Returned>,
    ) -> Result<Box<dyn StreamEngine>, EngineError> {
        match self.place {
            StreamPlace::Host => Ok(Box::new(HostStream::new(job, returned)?)),
        }
    }
}

impl Engines {
    /// The engine that encodes a stream whose batches are like those of `job`.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if `options` ask for a device and it cannot be one: the reason.
    pub(crate) fn choose_stream(
        &self,
        options: &Options,
        _job: &StreamJob,
    ) -> Result<StreamChoice, Error> {
        match options.backend() {
            Backend::Host => Ok(StreamChoice::host("the host was asked for")),
            Backend::Auto => Ok(StreamChoice::host("no stream goes to a device yet")),
            backend @ Backend::Cuda => Err(Error::BackendUnavailable {
                backend,
                reason: "no stream goes to a device yet".to_string(),
            }),
        }
    }
}
