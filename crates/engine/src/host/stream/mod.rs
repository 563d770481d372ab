//! Encodes streams on the host.
//!
//! ```text
//! slices -> slots of their subchunks             the caller's thread and a crew, as they come
//! without a compressor, in place:
//!     slots -> axes, byte order, checksums       the encoder's thread and its rayon pool
//!     gaps of empty subchunks closed             the encoder's thread
//! with one, into a buffer of its own:
//!     slots -> compressed, at their bounds       the encoder's thread and its rayon pool
//! pieces -> where a shard is put together        the assembling thread, and the crew (`memory/pieces.rs`)
//! ```
//!
//! So without a compressor, a byte is copied once, and the store gets the buffer that the slices were written
//! to.

mod encode;
mod padded;
mod slots;

pub use padded::encode_padded;
pub use slots::{HostStream, encoded_bound, stream_memory};

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::contract::EngineError;
use crate::contract::coded_bytes::StoredBytes;
use crate::contract::stream::{
    BatchInput, EncodedBatch, EncodedPart, Encoder, FailedBatch, StreamEngine, StreamJob,
};
use crate::layout::BatchGrid;
use crate::memory::buffers::Lease;
use crate::process::account::Debtor;
use crate::process::per_process::PerProcess;
use slots::HostInput;

/// Returns the threads that encode streams. They are not rayon's global threads, because all of those may be
/// waiting until a stream takes the slices that they append.
///
/// # Errors
/// [`EngineError::Unsuitable`] if no threads can be started.
fn encoding_threads() -> Result<&'static rayon::ThreadPool, EngineError> {
    static THREADS: PerProcess<Result<rayon::ThreadPool, String>> = PerProcess::new(|| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(std::thread::available_parallelism().map_or(1, NonZeroUsize::get))
            .thread_name(|n| format!("zarrs_cuda encode {n}"))
            .build()
            .map_err(|error| error.to_string())
    });
    THREADS
        .get()
        .as_ref()
        .map_err(|error| EngineError::Unsuitable(format!("no threads to encode with: {error}")))
}

impl StreamEngine for Arc<HostStream> {
    fn name(&self) -> &'static str {
        "host"
    }

    fn input(&self, new: bool) -> Result<Option<Box<dyn BatchInput>>, EngineError> {
        let Some(mut lease) = self.inputs.take(new)? else {
            return Ok(None);
        };
        // If inputs become outputs, a used buffer has encoded bytes at the edges of the array: fill the edges
        // again.
        if lease.is_new() || self.outputs.is_none() {
            self.fill_edges(lease.bytes());
        }
        Ok(Some(Box::new(HostInput {
            stream: self.clone(),
            lease,
            in_place: Vec::new(),
        })))
    }

    fn encoder(&self) -> Result<Box<dyn Encoder>, EngineError> {
        encoding_threads()?;
        Ok(Box::new(HostEncoder {
            stream: self.clone(),
            submitted: None,
            output: None,
        }))
    }

    fn pools(&self) -> Vec<Arc<dyn Debtor>> {
        let mut pools: Vec<Arc<dyn Debtor>> = vec![self.inputs.clone()];
        if let Some(outputs) = &self.outputs {
            pools.push(outputs.clone());
        }
        pools
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Encodes batches, one at a time.
#[derive(Debug)]
struct HostEncoder {
    stream: Arc<HostStream>,
    submitted: Option<(Box<dyn BatchInput>, Arc<BatchGrid>)>,
    /// The output buffer for the next batch, if it was taken already.
    output: Option<Lease>,
}

impl Encoder for HostEncoder {
    fn depth(&self) -> usize {
        1
    }

    fn prepare(&mut self) -> bool {
        if self.output.is_some() {
            return true;
        }
        let Some(outputs) = &self.stream.outputs else {
            return true;
        };
        match outputs.take(true) {
            Ok(output) => {
                self.output = output;
                self.output.is_some()
            }
            // Report success: `complete` then returns this error.
            Err(_) => true,
        }
    }

    fn submit(&mut self, input: Box<dyn BatchInput>, batch: Arc<BatchGrid>) {
        self.submitted = Some((input, batch));
    }

    fn complete(&mut self) -> Option<Result<EncodedBatch, FailedBatch>> {
        let (input, batch) = self.submitted.take()?;
        let Ok(mut input) = input.into_any().downcast::<HostInput>() else {
            return None;
        };
        // Take the output before a thread: while this stream waits for a buffer, other streams need the
        // threads.
        super::count_coding();
        let output = match (self.output.take(), &self.stream.outputs) {
            (Some(output), _) => Ok(Some(output)),
            (None, Some(outputs)) => outputs.wait().map(Some),
            (None, None) => Ok(None),
        };
        let encoded = output.and_then(|output| {
            let threads = encoding_threads()?;
            threads.install(|| encode::encode(&self.stream, &mut input, &batch, output))
        });
        Some(match encoded {
            Ok((output, parts)) => {
                count_encoded(&self.stream.job, &parts);
                Ok(EncodedBatch {
                    output: match output {
                        Some(output) => Box::new(output),
                        None => Box::new(input.lease),
                    },
                    parts,
                })
            }
            Err(error) => Err(FailedBatch { error, input }),
        })
    }
}

/// Counts the bytes of the encoded `parts` of a batch.
fn count_encoded(job: &StreamJob, parts: &[EncodedPart]) {
    let bytes = job.grid.shard().subchunk_bytes();
    super::BYTES.encoded(StoredBytes::of_parts(bytes, parts));
}
