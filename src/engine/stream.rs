//! The contract of engines for streams: slices in, encoded parts of shards out.
//!
//! A stream's bytes are those of its slices, one after the other. They are put into an [`Input`], a
//! buffer for one batch of epochs, which an [`Encoder`] makes an [`EncodedBatch`] of. Encoders run on
//! a thread of their own; inputs are filled on the caller's. Neither holds a lock of the other, and
//! neither runs on rayon's global pool, whose threads the caller may all be using.
//!
//! The contract, which every engine keeps:
//!
//! 1. The parts of an encoded batch are in C order of their shards, each with its subchunks in C
//!    order. They lie in pieces, densely, unless there is [room](StreamJob::room) for an index around
//!    each part, which is one piece then.
//! 2. A subchunk that is bitwise equal to the fill value is not stored, unless `store_empty`. What
//!    lies beyond the edge of the array counts as the fill value.
//! 3. The same slices give the same parts, whatever the number of threads, and however they were cut
//!    into batches.
//! 4. All buffers are those that the job counts: an engine has `inputs` inputs and, unless an input
//!    becomes the output, `outputs` outputs. One that is in use comes back when it is dropped.
//! 5. A batch that fails is handed back with its input, so that it can be tried again.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{Chain, EngineError, Job, KnownChain, SubchunkCodec};
use crate::layout::{BatchGrid, StreamGrid, SubchunkGrid};

/// A stream: everything about it but its bytes.
#[derive(Clone, Debug)]
pub(crate) struct StreamJob {
    pub(crate) grid: StreamGrid,
    pub(crate) chain: StreamChain,
    /// The bytes of one element of an empty subchunk; as long as an element.
    pub(crate) fill_value: Vec<u8>,
    /// Whether to store subchunks that are equal to the fill value.
    pub(crate) store_empty: bool,
    /// The most threads to use.
    pub(crate) threads: NonZeroUsize,
    /// Whether to ask the operating system for huge pages behind large buffers.
    pub(crate) huge_pages: bool,
    /// Epochs of a batch, as [`StreamGrid::whole_batch`] has them.
    pub(crate) epochs: usize,
    /// Bytes that are left around each part. Only engines for which a part is one piece leave any.
    pub(crate) room: Room,
    /// How many batches can be filled, wait, or be encoded at once.
    pub(crate) inputs: usize,
    /// How many encoded batches there can be at once.
    pub(crate) outputs: usize,
}

impl StreamJob {
    /// What a batch, padded to the whole subchunks of `padded`, is as one shard of `chain`.
    pub(crate) fn as_shard<'a>(
        &'a self,
        padded: &'a SubchunkGrid,
        chain: &'a KnownChain,
    ) -> Job<'a> {
        Job {
            grid: padded,
            chain: Chain::Known(chain),
            fill_value: &self.fill_value,
            store_empty: self.store_empty,
            validate_checksums: true,
            threads: self.threads,
            huge_pages: self.huge_pages,
        }
    }
}

/// How one subchunk is encoded.
#[derive(Clone, Debug)]
pub(crate) enum StreamChain {
    Known(KnownChain),
    Foreign(Arc<dyn SubchunkCodec>),
}

impl StreamChain {
    /// Whether every subchunk encodes to the same number of bytes.
    pub(crate) fn is_fixed_size(&self) -> bool {
        matches!(self, Self::Known(chain) if chain.is_fixed_size())
    }
}

/// Bytes that are left before and after each part of an encoded batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) head: usize,
    pub(crate) tail: usize,
}

/// A buffer for the slices of one batch.
pub(crate) trait Input: Send + fmt::Debug {
    /// Put `bytes` at `at` of the batch's bytes, which are those of its slices one after the other.
    /// Parts come in any order, and may replace what was there. Everything up to the end of the last
    /// epoch that is encoded has been put when the batch is [submitted](Encoder::submit).
    ///
    /// # Errors
    /// [`EngineError::Internal`] if they leave the batch.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), EngineError>;

    /// Copy what was put at `at` to `bytes`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if that leaves the batch, and the device's.
    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), EngineError>;

    /// Put bytes there that are on the device. What is returned says when they were read.
    ///
    /// # Errors
    /// [`EngineError::Unsuitable`] if this engine runs elsewhere, and the device's: nothing was put
    /// there, and the bytes are not read any more.
    ///
    /// # Safety
    /// That of [`DeviceBytes`].
    #[allow(unsafe_code)]
    unsafe fn write_from_device(
        &mut self,
        _at: usize,
        _bytes: &DeviceBytes,
    ) -> Result<Box<dyn Reusable>, EngineError> {
        Err(EngineError::Unsuitable(
            "the data are on a device, and this stream is encoded on the host: copy them to the host first, or ask for `Backend::Cuda`".to_string(),
        ))
    }

    /// The engine's own buffer.
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send>;
}

/// Bytes of a device that an application owns.
///
/// The pointer is an address of the device `device`; what is in `stream` (the driver's handle, of a
/// stream of the primary context; 0 for the default stream) when the bytes are handed over is waited
/// for before they are read. The application must not write or free them before the [`Reusable`] that
/// it gets for them says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceBytes {
    pub(crate) device: usize,
    pub(crate) pointer: u64,
    pub(crate) len: usize,
    pub(crate) stream: u64,
}

/// Says when the bytes of an application were read. It can be dropped before.
pub(crate) trait Reusable: Send + Sync + fmt::Debug {
    /// Wait until they were.
    fn wait(&self) -> Result<(), EngineError>;

    /// Whether they were.
    fn query(&self) -> Result<bool, EngineError>;

    /// The driver's handle of an event that says so, for a stream of the application to wait for. It
    /// is the engine's, and stands for something else when this is dropped.
    fn event(&self) -> u64;
}

/// Bytes of an encoded batch, in a buffer that goes back to its engine when it is dropped.
pub(crate) trait Output: AsRef<[u8]> + AsMut<[u8]> + Send + Sync + fmt::Debug {
    /// Whether the buffer is scarce (page-locked), so that a store must not keep it.
    fn is_scarce(&self) -> bool {
        false
    }

    /// A store keeps it, and it does not come back for now: another one may take its place. A scarce
    /// one is never kept.
    fn keep(&self) {}
}

/// An encoded batch.
#[derive(Debug)]
pub(crate) struct EncodedBatch {
    pub(crate) output: Box<dyn Output>,
    /// For each part of the batch ([`BatchGrid::parts`]).
    pub(crate) parts: Vec<EncodedPart>,
}

/// What a batch has of one shard, encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EncodedPart {
    /// Where its subchunks are in the output, in their order: any number of pieces; one, even if it is
    /// empty, if there is room around it.
    pub(crate) pieces: Vec<Range<usize>>,
    /// For each subchunk, in C order: how many bytes it takes; `None` if it is not stored.
    pub(crate) sizes: Vec<Option<usize>>,
}

impl EncodedPart {
    /// How many bytes it has.
    pub(crate) fn len(&self) -> usize {
        self.pieces.iter().map(Range::len).sum()
    }
}

/// A batch that could not be encoded.
#[derive(Debug)]
pub(crate) struct FailedBatch {
    pub(crate) error: EngineError,
    /// To try again with.
    pub(crate) input: Box<dyn Input>,
}

/// Encodes the batches that an engine has failed on. An engine that has none hands them back.
pub(crate) trait BatchFallback: Send + Sync + fmt::Debug {
    /// Tell that a batch comes here, because of `error`. Nothing more will succeed there if the
    /// engine is `lost`.
    fn tell(&self, error: &EngineError, lost: bool);

    /// Encode `batch`, whose slices are `padded` to whole subchunks, into `output`. Returns its
    /// parts, and the bytes that they take, with the room around them.
    ///
    /// # Errors
    /// What stops it, too.
    fn encode(
        &self,
        batch: &BatchGrid,
        padded: &[u8],
        output: &mut [u8],
    ) -> Result<(Vec<EncodedPart>, usize), EngineError>;
}

/// Encodes batches, in the order in which they are submitted. Used by one thread.
pub(crate) trait Encoder: Send + fmt::Debug {
    /// How many batches can be under way at once.
    fn depth(&self) -> usize;

    /// Begin to encode `input`, as `batch` of this job's stream. Fewer than [`depth`](Self::depth)
    /// are under way. What fails is said by [`complete`](Self::complete).
    fn submit(&mut self, input: Box<dyn Input>, batch: Arc<BatchGrid>);

    /// Wait for the batch that was submitted first; `None` if none is under way. Those behind one
    /// that failed are still under way.
    fn complete(&mut self) -> Option<Result<EncodedBatch, FailedBatch>>;
}

/// An engine, set up for one stream: its buffers are allocated as they are first needed.
pub(crate) trait StreamEngine: Send + Sync + fmt::Debug {
    /// The name of the engine, as `explain` shows it.
    fn name(&self) -> &'static str;

    /// A buffer for the next batch; `None` if all are in use: [`Returned`] tells when one is not. Unless
    /// `new`, none is allocated while another one is in use.
    /// A buffer that was used before holds what it held.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`], and the device's.
    fn input(&self, new: bool) -> Result<Option<Box<dyn Input>>, EngineError>;

    /// What encodes them; made once.
    fn encoder(&self) -> Result<Box<dyn Encoder>, EngineError>;
}

/// Tells those who wait that a buffer came back. Whoever waits looks for one again.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    count: Mutex<u64>,
    changed: Condvar,
    given_up: AtomicBool,
}

impl Returned {
    /// How often a buffer came back until now. Ask before looking for one.
    pub(crate) fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody is to wait for a buffer any more: a store may keep those that were thrown away.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.notify();
    }

    /// That it makes sense to wait for a buffer.
    ///
    /// # Errors
    /// [`EngineError::Unsuitable`] if the stream was [given up](Self::give_up).
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        if self.given_up.load(Ordering::Acquire) {
            return Err(EngineError::Unsuitable(
                "the stream was given up".to_string(),
            ));
        }
        Ok(())
    }

    /// A buffer came back, or something else happened that those who wait should see.
    pub(crate) fn notify(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    /// Wait until one has come back since `seen`, for at most `time`.
    pub(crate) fn wait_for(&self, seen: u64, time: Duration) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.changed
                .wait_timeout_while(count, time, |count| *count == seen)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Wait until one has come back since `seen`.
    pub(crate) fn wait(&self, seen: u64) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.changed
                .wait_while(count, |count| *count == seen)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}
