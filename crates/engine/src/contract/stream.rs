//! The contract of engines for streams, which encode slices to parts of shards.
//!
//! The bytes of a stream are those of its slices, one after the other. The caller writes them to a
//! [`BatchInput`], a buffer for one batch of epochs, on its own thread. An [`Encoder`] makes an
//! [`EncodedBatch`] from the input. Encoders run on other threads, one batch at a time. The caller and the
//! encoder hold no lock of each other, and do not run on rayon's global pool, all of whose threads the caller
//! may be using.
//!
//! The contract, which every engine keeps:
//!
//! 1. The parts of an encoded batch are in C order of their shards, each with its subchunks in C order. Parts
//!    lie densely, in pieces of the output. If there is [room](StreamJob::room) for an index around each
//!    part, each part is one piece.
//! 2. A subchunk that is bitwise equal to the fill value is not stored, unless `store_empty` is set. Elements
//!    beyond the edge of the array count as the fill value.
//! 3. The same slices give the same parts, for any number of threads and any division into batches.
//! 4. An engine has only the buffers that the job counts: `inputs` inputs and, unless an input becomes the
//!    output, `outputs` outputs. A dropped buffer goes back to its engine.
//! 5. A batch that fails is returned with its input, so that the caller can try again.

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

/// Everything about a stream, except for its bytes.
#[derive(Clone, Debug)]
pub struct StreamJob {
    pub grid: StreamGrid,
    pub chain: StreamChain,
    /// The bytes of one element of an empty subchunk, as many as an element has.
    pub fill_value: Vec<u8>,
    /// Whether to store subchunks that are equal to the fill value.
    pub store_empty: bool,
    /// The most threads to use.
    pub threads: NonZeroUsize,
    /// Whether to ask the operating system for huge pages behind large buffers.
    pub huge_pages: bool,
    /// The number of epochs of a batch, as [`StreamGrid::whole_batch`] has them.
    pub epochs: usize,
    /// The bytes that are left free around each part. They are 0 for engines for which a part may be several
    /// pieces.
    pub room: Room,
    /// The number of batches that can be filled, wait, or be encoded at the same time.
    pub inputs: usize,
    /// The number of encoded batches that can exist at the same time.
    pub outputs: usize,
    /// The numbers of buffers that are the stream's own, if others are lent; `None` if none are lent. Only
    /// the host lends.
    pub lending: Option<Lending>,
    /// The stream above, whose slices the device can [reduce](StreamEngine::reduce) to slices of this stream;
    /// `None` if slices are never reduced on a device.
    pub reduced_from: Option<ReducedFrom>,
}

/// The numbers of buffers that belong to a stream. The other buffers are lent, and may be missing.
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
    /// The number of slices of the level above that become one slice, 1 or 2. The last slice of a stream may
    /// be made of one.
    pub slices: usize,
    /// The grid of the level above.
    pub above: StreamGrid,
}

/// Windows of slices of the level above, which follow one another along the first axis. A window has
/// [`slices`](ReducedFrom::slices) slices; the last one may have one slice.
#[derive(Debug)]
pub struct Windows<'i> {
    /// Whether the first slice of the first window is the slice that was [kept](StreamEngine::keep).
    pub kept: bool,
    /// An input of the level above, and the slices of its batch in these windows; `None` if the kept slice
    /// alone is a window.
    pub above: Option<(&'i mut (dyn BatchInput + 'static), Range<usize>)>,
}

impl StreamJob {
    /// Returns the job that encodes a batch like one shard of `chain`. The batch is padded to the whole
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

/// The codecs of a subchunk.
#[derive(Clone, Debug)]
pub enum StreamChain {
    Known(KnownChain),
    Foreign(Arc<dyn SubchunkCodec>),
}

impl StreamChain {
    /// Returns whether every encoded subchunk has the same number of bytes.
    pub fn is_fixed_size(&self) -> bool {
        matches!(self, Self::Known(chain) if chain.is_fixed_size())
    }
}

/// The numbers of bytes that are left free before and after each part of an encoded batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub head: usize,
    pub tail: usize,
}

/// A function that is called with each range of bytes that the calling thread has just read, and may still
/// have in its cache.
pub type OnRead<'a> = dyn Fn(&Range<usize>) + Sync + 'a;

/// A buffer for the slices of one batch.
pub trait BatchInput: Send + fmt::Debug {
    /// Writes `bytes` at the byte `at` of the batch, whose bytes are its slices one after the other. Writes
    /// come in any order, and may replace earlier ones. Before the batch is [submitted](Encoder::submit),
    /// everything up to the end of its last epoch is written.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the bytes do not lie within the batch.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), EngineError>;

    /// Writes `bytes` like [`write`](Self::write). Calls `read` with ranges of them that it has read, but
    /// perhaps not with all.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
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
    /// [`EngineError::Internal`] if the bytes do not lie within the batch, and the device's errors.
    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), EngineError>;

    /// Writes bytes that are on a device. The result tells when the bytes have been read.
    ///
    /// # Errors
    /// [`EngineError::Unsuitable`] if this engine does not run on that device, and the device's errors. After
    /// an error, nothing was written, and the bytes are not read any more.
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

    /// Returns the input as `Any`, from which an engine gets its own type back.
    fn as_any_mut(&mut self) -> &mut dyn std::any::Any;

    /// Returns the input as `Any`, from which an engine gets its own type back.
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send>;
}

/// Bytes on a device, which an application owns.
///
/// `pointer` is an address of the device `device`. `stream` is the driver's handle of a stream of the primary
/// context, or 0 for the default stream. The engine reads the bytes after all work that is in this stream
/// when it gets them. The application must not write or free the bytes before the [`Reusable`] that it gets
/// for them says that they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBytes {
    pub device: usize,
    pub pointer: u64,
    pub len: usize,
    pub stream: u64,
}

/// Tells when an engine has read the bytes of an application. Dropping the value does not stop the read.
pub trait Reusable: Send + Sync + fmt::Debug {
    /// Blocks until the bytes have been read.
    fn wait(&self) -> Result<(), EngineError>;

    /// Returns whether the bytes have been read.
    fn query(&self) -> Result<bool, EngineError>;

    /// Returns the driver's handle of an event that happens when the bytes have been read. A stream of the
    /// application may wait for the event. The event belongs to the engine, which uses it for other bytes
    /// after this value is dropped.
    fn event(&self) -> u64;
}

/// The bytes of an encoded batch, in a buffer that goes back to its engine when it is dropped.
pub trait BatchOutput: AsRef<[u8]> + AsMut<[u8]> + Send + Sync + fmt::Debug {
    /// Returns whether the buffer is scarce (page-locked), so that a store must not keep it.
    fn is_scarce(&self) -> bool {
        false
    }

    /// Notes that a store keeps the buffer, so that it does not come back for now, and the engine may
    /// allocate another one. A scarce buffer is never kept.
    fn keep(&self) {}
}

/// An encoded batch.
#[derive(Debug)]
pub struct EncodedBatch {
    pub output: Box<dyn BatchOutput>,
    /// The parts of the batch, in the order of [`BatchGrid::parts`].
    pub parts: Vec<EncodedPart>,
}

/// The encoded subchunks of a batch that belong to one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedPart {
    /// The ranges of the output in which the subchunks lie, in order. If there is room around the part, it is
    /// one range, even if empty.
    pub pieces: Vec<Range<usize>>,
    /// The encoded size in bytes of each subchunk, in C order; `None` if it is not stored.
    pub sizes: Vec<Option<usize>>,
}

impl EncodedPart {
    /// Returns the number of bytes of the part.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Range::len).sum()
    }
}

/// A batch that could not be encoded.
#[derive(Debug)]
pub struct FailedBatch {
    pub error: EngineError,
    /// The input of the batch, with which the caller can try again.
    pub input: Box<dyn BatchInput>,
}

/// Encodes batches on which an engine has failed. An engine without a fallback returns such batches to the
/// caller.
pub trait BatchFallback: Send + Sync + fmt::Debug {
    /// Reports that the fallback encodes a batch because of `error`. If the engine is `lost`, no later batch
    /// will succeed on it.
    fn tell(&self, error: &EngineError, lost: bool);

    /// Encodes `batch`, whose slices are `padded` to whole subchunks, into `output`. Returns the parts of the
    /// batch, and the number of bytes that they take, including the room around them.
    ///
    /// # Errors
    /// The errors of the fallback.
    fn encode(
        &self,
        batch: &BatchGrid,
        padded: &[u8],
        output: &mut [u8],
    ) -> Result<(Vec<EncodedPart>, usize), EngineError>;
}

/// Encodes batches in the order in which they are submitted. One thread at a time uses an encoder.
pub trait Encoder: Send + fmt::Debug {
    /// Returns the number of batches that can be submitted and not complete at the same time.
    fn depth(&self) -> usize;

    /// Takes the buffers that [`complete`](Self::complete) needs, without waiting. Returns whether there were
    /// enough, so that `complete` will not wait for buffers. [`Returned`] tells when a buffer comes back.
    fn prepare(&mut self) -> bool;

    /// Begins to encode `input`, as `batch` of this job's stream. The caller keeps fewer than
    /// [`depth`](Self::depth) batches submitted and not complete. [`complete`](Self::complete) returns the
    /// errors.
    fn submit(&mut self, input: Box<dyn BatchInput>, batch: Arc<BatchGrid>);

    /// Blocks until the engine has encoded the batch that was submitted first, or until `stop` returns true.
    /// Returns false only after `stop` returned true: [`complete`](Self::complete) would still wait for the
    /// batch. `complete` returns the errors.
    fn wait(&mut self, _stop: &dyn Fn() -> bool) -> bool {
        true
    }

    /// Blocks until the batch that was submitted first is complete, which needs a free buffer. Returns the
    /// batch; `None` if no batch is submitted. After a failure, later batches are still being encoded.
    fn complete(&mut self) -> Option<Result<EncodedBatch, FailedBatch>>;

    /// Checks, after the last batch is complete, that the batches of the stream can be trusted.
    ///
    /// # Errors
    /// The engine found meanwhile that batches which it returned may be wrong.
    fn end(&mut self) -> Result<(), EngineError> {
        Ok(())
    }
}

/// An engine, set up for one stream.
pub trait StreamEngine: Send + Sync + fmt::Debug {
    /// Returns the name of the engine, as `explain` shows it.
    fn name(&self) -> &'static str;

    /// Takes a buffer for the next batch; returns `None` if all are in use. [`Returned`] tells when a buffer
    /// comes back. Unless `new`, it allocates no buffer while one is in use that will probably come back. A
    /// used buffer keeps its contents.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`], and the device's errors.
    fn input(&self, new: bool) -> Result<Option<Box<dyn BatchInput>>, EngineError>;

    /// Waits until no buffer is being allocated.
    #[cfg(test)]
    fn settle(&self) {}

    /// Makes the encoder of the stream. To be called once.
    fn encoder(&self) -> Result<Box<dyn Encoder>, EngineError>;

    /// Returns the pools of lent buffers on the host; none if no buffers are lent.
    fn pools(&self) -> Vec<Arc<dyn Debtor>> {
        Vec::new()
    }

    /// Returns whether the device that encodes this stream also encodes `above`, and can
    /// [reduce](Self::reduce) its slices. It may still fail later.
    fn can_reduce_from(&self, _above: &dyn StreamEngine) -> bool {
        false
    }

    /// Makes whole slices of this stream from the byte `at` of the batch of `input` on: one slice for each of
    /// `windows`. It blocks only to copy the fill value to the padding of an input's memory, once for each
    /// memory. The slices above are complete, do not change any more, and their batch is not submitted yet:
    /// later writes to them are an error. The new slices are only on the device, like those of
    /// [`BatchInput::write_from_device`].
    ///
    /// [`EngineError::Unsuitable`] if the two streams do not run on the same device,
    /// [`EngineError::Internal`] if slices leave their batches or no slice was kept, and the device's errors.
    /// After an error, no slice was made, and a kept slice is still kept: the caller may
    /// [read](BatchInput::read) the slices above, [take](Self::take_kept) the kept slice, and reduce them on
    /// the host.
    fn reduce(
        &self,
        _windows: Windows<'_>,
        _input: &mut dyn BatchInput,
        _at: usize,
    ) -> Result<(), EngineError> {
        Err(no_device())
    }

    /// Keeps a slice of the batch of `above`, an input of the level above, on the device, until it becomes
    /// the first slice of a window. At most one slice is kept. `above` is treated as by
    /// [`reduce`](Self::reduce).
    ///
    /// # Errors
    /// The errors of [`reduce`](Self::reduce), and [`EngineError::Internal`] if a slice is kept already, or
    /// windows have one slice. After an error, the slice is not kept.
    fn keep(&self, _above: &mut dyn BatchInput, _slice: usize) -> Result<(), EngineError> {
        Err(no_device())
    }

    /// Copies the kept slice to the host, without padding. Afterwards no slice is kept.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if no slice is kept or it has another size, and the device's errors. After
    /// an error of the device, the slice is still kept, but the device may never give it back.
    fn take_kept(&self, _bytes: &mut [u8]) -> Result<(), EngineError> {
        Err(no_device())
    }

    /// Returns the engine as `Any`, from which an engine gets its own type back.
    fn as_any(&self) -> &dyn std::any::Any;
}

fn no_device() -> EngineError {
    EngineError::Unsuitable("this stream is encoded on the host, which reduces slices".to_string())
}

/// Tells waiting threads that a buffer came back, so that they try to take one again.
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
    /// Returns the number of times that a buffer has come back. Read it before an attempt to take a buffer.
    pub fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the stream up: [`check`](Self::check) fails from now on. A store may keep buffers whose contents
    /// it discarded, so a wait for them might never end.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.notify();
    }

    /// Checks that a wait for a buffer can end.
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

    /// Sets the function that is called whenever a buffer comes back. It runs on the thread that gives the
    /// buffer back, which may be a store's thread that holds locks. To be set once.
    pub fn call(&self, work: impl Fn() + Send + Sync + 'static) {
        let _ = self.called.set(Box::new(work));
    }

    /// Notes that a buffer came back.
    pub fn came_back(&self) {
        self.notify();
        if let Some(call) = self.called.get() {
            call();
        }
    }

    /// Wakes the waiting threads, after a buffer came back or another reason to wait has changed.
    pub fn notify(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    /// Blocks until a buffer comes back after [`count`](Self::count) was `seen`, but at most for `time`.
    pub fn wait_for(&self, seen: u64, time: Duration) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.changed
                .wait_timeout_while(count, time, |count| *count == seen)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Blocks until a buffer comes back after [`count`](Self::count) was `seen`.
    pub fn wait(&self, seen: u64) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.changed
                .wait_while(count, |count| *count == seen)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}
