//! The contract of engines for streams: slices in, encoded parts of shards out.
//!
//! A stream's bytes are the bytes of its slices, one after the other. They are written to an
//! [`BatchInput`], a buffer for one batch of epochs. An [`Encoder`] makes an [`EncodedBatch`] of it.
//! Encoders run on threads of their own, one at a time; inputs are filled on the caller's thread. Neither holds a
//! lock of the other. Neither runs on rayon's global pool, whose threads the caller may all be
//! using.
//!
//! The contract, which every engine keeps:
//!
//! 1. The parts of an encoded batch are in C order of their shards, each with its subchunks in C
//!    order. They lie in pieces, densely. If there is [room](StreamJob::room) for an index around
//!    each part, each part is one piece.
//! 2. A subchunk that is bitwise equal to the fill value is not stored, unless `store_empty`. What
//!    lies beyond the edge of the array counts as the fill value.
//! 3. The same slices give the same parts, whatever the number of threads, and however they were
//!    cut into batches.
//! 4. An engine has only the buffers that the job counts: `inputs` inputs and, unless an input
//!    becomes the output, `outputs` outputs. A buffer that is in use comes back when it is dropped.
//! 5. A batch that fails is handed back with its input, so that it can be tried again.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::{Chain, EngineError, KnownChain, ShardJob, SubchunkCodec};
use crate::layout::{BatchGrid, StreamGrid, SubchunkGrid};
use crate::process::account::{Debtor, Lender};
use crate::reduce::Reducer;

/// A stream: everything about it but its bytes.
#[derive(Clone, Debug)]
pub struct StreamJob {
    pub grid: StreamGrid,
    pub chain: StreamChain,
    /// The bytes of one element of an empty subchunk; as long as an element.
    pub fill_value: Vec<u8>,
    /// Whether to store subchunks that are equal to the fill value.
    pub store_empty: bool,
    /// The most threads to use.
    pub threads: NonZeroUsize,
    /// Whether to ask the operating system for huge pages behind large buffers.
    pub huge_pages: bool,
    /// Epochs of a batch, as [`StreamGrid::whole_batch`] has them.
    pub epochs: usize,
    /// Bytes that are left around each part. Only engines for which a part is one piece leave any.
    pub room: Room,
    /// How many batches can be filled, wait, or be encoded at once.
    pub inputs: usize,
    /// How many encoded batches there can be at once.
    pub outputs: usize,
    /// The lending of these buffers, if some are lent. Only the host lends buffers.
    pub lending: Option<Lending>,
    /// From what its slices may be [reduced](StreamEngine::reduce), if the device of another stream
    /// has that.
    pub reduced_from: Option<ReducedFrom>,
}

/// The buffers of a stream that are its own. It may lack the others.
#[derive(Clone, Copy, Debug)]
pub struct Lending {
    pub inputs: usize,
    pub outputs: usize,
    pub lender: Lender,
}

/// The level above: the stream whose slices are reduced to the slices of another stream.
#[derive(Clone, Debug)]
pub struct ReducedFrom {
    /// Makes a slice of this stream of one or two slices of the level above.
    pub reducer: Reducer,
    /// How many slices of the level above become one: 1 or 2. The last one of a stream may be of one.
    pub slices: usize,
    /// The level above.
    pub above: StreamGrid,
}

/// Windows that follow one another along the first axis. Each has as many slices of the level above
/// as [`ReducedFrom`] says; the last one may have one slice.
#[derive(Debug)]
pub struct Windows<'i> {
    /// Whether the first slice is the one that was [kept](StreamEngine::keep).
    pub kept: bool,
    /// An input of the level above, and slices of its batch. `None`: the kept slice is a window.
    pub above: Option<(&'i mut (dyn BatchInput + 'static), Range<usize>)>,
}

impl StreamJob {
    /// Returns the job of a batch as one shard of `chain`. The batch is padded to the whole
    /// subchunks of `padded`.
    pub fn as_shard<'a>(&'a self, padded: &'a SubchunkGrid, chain: &'a KnownChain) -> ShardJob<'a> {
        ShardJob {
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
pub enum StreamChain {
    Known(KnownChain),
    Foreign(Arc<dyn SubchunkCodec>),
}

impl StreamChain {
    /// Returns whether every subchunk encodes to the same number of bytes.
    pub fn is_fixed_size(&self) -> bool {
        matches!(self, Self::Known(chain) if chain.is_fixed_size())
    }
}

/// Bytes that are left before and after each part of an encoded batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub head: usize,
    pub tail: usize,
}

/// Is called with each range of bytes that the calling thread has just read, and may have in its cache.
pub type OnRead<'a> = dyn Fn(&Range<usize>) + Sync + 'a;

/// A buffer for the slices of one batch.
pub trait BatchInput: Send + fmt::Debug {
    /// Writes `bytes` at byte `at` of the batch, whose bytes are its slices one after the other.
    /// Writes come in any order, and may replace earlier ones. When the batch is
    /// [submitted](Encoder::submit), everything up to the end of its last epoch was written.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the bytes leave the batch.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), EngineError>;

    /// Writes `bytes` like [`write`](Self::write), and tells which of them were `read`: maybe not all.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    fn write_telling(
        &mut self,
        at: usize,
        bytes: &[u8],
        _read: &OnRead<'_>,
    ) -> Result<(), EngineError> {
        self.write(at, bytes)
    }

    /// Copies the bytes of the batch from byte `at` on to `bytes`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the bytes leave the batch, and the device's errors.
    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), EngineError>;

    /// Writes bytes that are on a device. The result says when the bytes were read.
    ///
    /// # Errors
    /// [`EngineError::Unsuitable`] if this engine runs elsewhere, and the device's errors. Nothing
    /// was written then, and the bytes are not read any more.
    ///
    /// # Safety
    /// The requirements of [`DeviceBytes`].
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

    /// Returns the input as `Any`, from which an engine gets its own type.
    fn as_any_mut(&mut self) -> &mut dyn std::any::Any;

    /// Returns the input as `Any`, from which the engine gets its own type back.
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send>;
}

/// Bytes of a device that an application owns.
///
/// `pointer` is an address of the device `device`. `stream` is the driver's handle of a stream of
/// the primary context, or 0 for the default stream. The bytes are read after everything that is in
/// this stream when they are handed over. The application must not write or free them before the
/// [`Reusable`] that it gets for them says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBytes {
    pub device: usize,
    pub pointer: u64,
    pub len: usize,
    pub stream: u64,
}

/// Says when the bytes of an application were read. It may be dropped earlier.
pub trait Reusable: Send + Sync + fmt::Debug {
    /// Blocks until the bytes were read.
    fn wait(&self) -> Result<(), EngineError>;

    /// Returns whether the bytes were read.
    fn query(&self) -> Result<bool, EngineError>;

    /// Returns the driver's handle of an event that happens when the bytes were read. A stream of
    /// the application may wait for it. The event is the engine's, which uses it for other bytes
    /// after this is dropped.
    fn event(&self) -> u64;
}

/// Bytes of an encoded batch, in a buffer that goes back to its engine when it is dropped.
pub trait BatchOutput: AsRef<[u8]> + AsMut<[u8]> + Send + Sync + fmt::Debug {
    /// Returns whether the buffer is scarce (page-locked), so that a store must not keep it.
    fn is_scarce(&self) -> bool {
        false
    }

    /// Notes that a store keeps the buffer. The buffer does not come back for now, and another
    /// buffer may take its place. A scarce buffer is never kept.
    fn keep(&self) {}
}

/// An encoded batch.
#[derive(Debug)]
pub struct EncodedBatch {
    pub output: Box<dyn BatchOutput>,
    /// For each part of the batch ([`BatchGrid::parts`]).
    pub parts: Vec<EncodedPart>,
}

/// The encoded subchunks of a batch that belong to one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedPart {
    /// Where the subchunks are in the output, in order: any number of pieces. If there is room
    /// around the part, it is one piece, even if empty.
    pub pieces: Vec<Range<usize>>,
    /// For each subchunk, in C order: how many bytes it takes; `None` if it is not stored.
    pub sizes: Vec<Option<usize>>,
}

impl EncodedPart {
    /// Returns how many bytes it has.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Range::len).sum()
    }
}

/// A batch that could not be encoded.
#[derive(Debug)]
pub struct FailedBatch {
    pub error: EngineError,
    /// The input of the batch, to try again.
    pub input: Box<dyn BatchInput>,
}

/// Encodes the batches on which an engine has failed. An engine without a fallback hands them back.
pub trait BatchFallback: Send + Sync + fmt::Debug {
    /// Reports that a batch comes here because of `error`. If the engine is `lost`, no later batch
    /// will succeed there.
    fn tell(&self, error: &EngineError, lost: bool);

    /// Encodes `batch`, whose slices are `padded` to whole subchunks, into `output`. Returns its
    /// parts, and the bytes that they take, with the room around them.
    ///
    /// # Errors
    /// The fallback fails, too.
    fn encode(
        &self,
        batch: &BatchGrid,
        padded: &[u8],
        output: &mut [u8],
    ) -> Result<(Vec<EncodedPart>, usize), EngineError>;
}

/// Encodes batches, in the order in which they are submitted. Used by one thread at a time.
pub trait Encoder: Send + fmt::Debug {
    /// Returns how many batches can be under way at once.
    fn depth(&self) -> usize;

    /// Takes the buffers that [`complete`](Self::complete) needs, without waiting. Returns whether
    /// there were enough: then `complete` does not wait for buffers. [`Returned`] tells when a
    /// buffer comes back.
    fn prepare(&mut self) -> bool;

    /// Begins to encode `input`, as `batch` of this job's stream. Fewer than [`depth`](Self::depth)
    /// batches are under way. [`complete`](Self::complete) returns the errors.
    fn submit(&mut self, input: Box<dyn BatchInput>, batch: Arc<BatchGrid>);

    /// Blocks until the batch that was submitted first is complete, and a buffer for it is free; `None` if
    /// none is under way.
    /// The batches after one that failed are still under way.
    fn complete(&mut self) -> Option<Result<EncodedBatch, FailedBatch>>;
}

/// An engine, set up for one stream.
pub trait StreamEngine: Send + Sync + fmt::Debug {
    /// Returns the name of the engine, as `explain` shows it.
    fn name(&self) -> &'static str;

    /// Takes a buffer for the next batch; `None` if all are in use. [`Returned`] tells when one
    /// comes back. Unless `new`, none is allocated while another one is in use that will probably
    /// come back. A buffer that was used before keeps its contents.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`], and the device's errors.
    fn input(&self, new: bool) -> Result<Option<Box<dyn BatchInput>>, EngineError>;

    /// Returns the encoder of the stream; made once.
    fn encoder(&self) -> Result<Box<dyn Encoder>, EngineError>;

    /// Returns the pools of buffers on the host that are lent, if there are any.
    fn pools(&self) -> Vec<Arc<dyn Debtor>> {
        Vec::new()
    }

    /// Returns whether the device that encodes this stream can [reduce](Self::reduce) slices of
    /// `above`, which it encodes, too. No fault so far: it may fail later.
    fn can_reduce_from(&self, _above: &dyn StreamEngine) -> bool {
        false
    }

    /// Makes whole slices of this stream, from byte `at` of the batch of `input` on: one for each of
    /// `windows`. This blocks for nothing but the copy of the fill value to the padding of an input's
    /// memory, once for each memory. The slices above are complete, do not change any more, and their
    /// batch is not submitted yet: afterwards writing to them is an error. The slices that are made
    /// are only on the device, as those of [`BatchInput::write_from_device`] are.
    ///
    /// # Errors
    /// [`EngineError::Unsuitable`] if the two streams do not run on the same device,
    /// [`EngineError::Internal`] if slices leave their batches or no slice was kept, and the device's
    /// errors. Nothing was made then, and a kept slice is still there: the caller may
    /// [read](BatchInput::read) the slices above, [take](Self::take_kept) the kept one, and reduce them on
    /// the host.
    fn reduce(
        &self,
        _windows: Windows<'_>,
        _input: &mut dyn BatchInput,
        _at: usize,
    ) -> Result<(), EngineError> {
        Err(no_device())
    }

    /// Keeps a slice of the batch of `above`, an input of the level above, on the device, until it
    /// becomes the first one of a window. One at most is kept. `above` is treated as by
    /// [`reduce`](Self::reduce).
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce), and [`EngineError::Internal`] if a slice is kept already, or
    /// windows have one slice. Nothing is kept then.
    fn keep(&self, _above: &mut dyn BatchInput, _slice: usize) -> Result<(), EngineError> {
        Err(no_device())
    }

    /// Copies the kept slice to the host, without padding. Afterwards none is kept.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if none is kept or it has another size, and the device's errors,
    /// after which it is still kept, though the device may never give it back.
    fn take_kept(&self, _bytes: &mut [u8]) -> Result<(), EngineError> {
        Err(no_device())
    }

    /// Returns the engine as `Any`, from which an engine gets its own type.
    fn as_any(&self) -> &dyn std::any::Any;
}

fn no_device() -> EngineError {
    EngineError::Unsuitable("this stream is encoded on the host, which reduces slices".to_string())
}

/// Tells waiting threads that a buffer came back. They then try to take one again.
#[derive(Default)]
pub struct Returned {
    count: Mutex<u64>,
    changed: Condvar,
    given_up: AtomicBool,
    called: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returned")
            .field("count", &self.count)
            .field("given_up", &self.given_up)
            .finish_non_exhaustive()
    }
}

impl Returned {
    /// Returns how often a buffer came back until now. Read this before trying to take a buffer.
    pub fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the stream up: waiting for a buffer becomes an error. A store may keep buffers that
    /// were thrown away, so they may never come back.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.notify();
    }

    /// Checks that it makes sense to wait for a buffer.
    ///
    /// # Errors
    /// [`EngineError::Unsuitable`] if the stream was [given up](Self::give_up).
    pub fn check(&self) -> Result<(), EngineError> {
        if self.given_up.load(Ordering::Acquire) {
            return Err(EngineError::Unsuitable(
                "the stream was given up".to_string(),
            ));
        }
        Ok(())
    }

    /// Calls `work` whenever a buffer came back, on the thread that gives it back, which may be a store's
    /// with locks of its own. To be set once.
    pub fn call(&self, work: impl Fn() + Send + Sync + 'static) {
        let _ = self.called.set(Box::new(work));
    }

    /// A buffer came back.
    pub fn came_back(&self) {
        self.notify();
        if let Some(call) = self.called.get() {
            call();
        }
    }

    /// Wakes waiting threads, when a buffer came back or something else changed for them.
    pub fn notify(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    /// Blocks until a buffer has come back since the count `seen`, for at most `time`.
    pub fn wait_for(&self, seen: u64, time: Duration) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.changed
                .wait_timeout_while(count, time, |count| *count == seen)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Blocks until a buffer has come back since the count `seen`.
    pub fn wait(&self, seen: u64) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.changed
                .wait_while(count, |count| *count == seen)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}
