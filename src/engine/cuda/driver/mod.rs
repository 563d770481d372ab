//! The seam below the CUDA engine: allocate, copy, launch, record, wait.
//!
//! Two implementations: [`cuda`] calls the CUDA driver, [`simulation`] needs no GPU and checks what
//! hardware hides. Everything above the seam is written once, and is ordered by what it says here:
//! every operation declares the bytes that it reads and writes, and every wait, record and
//! synchronisation has a [`Site`], a name under which the simulation can take it out.
//!
//! Rules for whoever calls a driver:
//! - Calls happen between [`enter`](Driver::enter) and [`leave`](Driver::leave) on the same thread.
//! - What an operation reads and writes stays allocated until the operation has completed.
//! - The host touches pinned memory only after [`host_access`](Driver::host_access) for it.

#[allow(unsafe_code)]
pub(crate) mod cuda;
#[cfg(test)]
#[allow(unsafe_code)]
pub(crate) mod simulation;

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::time::Duration;

pub use crate::engine::error::DriverError;
pub(crate) use crate::engine::error::Fault;

/// A device, as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The number of the device among those that the process sees.
    pub ordinal: usize,
    pub name: String,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    /// In bytes.
    pub total_memory: usize,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

/// A stream of operations that run in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(pub(crate) u64);

/// A point in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub(crate) u64);

/// An allocation of device memory: the address of its first byte, aligned to 256 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceMemory(pub(crate) u64);

/// An allocation of pinned host memory: its first byte, aligned to 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PinnedMemory(pub NonNull<u8>);

// SAFETY: a handle. What is done with the memory is ordered by the rules of the module.
#[allow(unsafe_code)]
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for PinnedMemory {}

/// Bytes of an allocation of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpan {
    pub memory: DeviceMemory,
    pub offset: usize,
    pub len: usize,
}

/// Bytes of an allocation of pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedSpan {
    pub memory: PinnedMemory,
    pub offset: usize,
    pub len: usize,
}

/// Bytes that an operation can name. Pageable memory is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    Device(DeviceSpan),
    Pinned(PinnedSpan),
}

/// What an operation does to a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads it; all of it must have been written.
    Read,
    /// Writes any part of it, and does not read it. Counts as written afterwards.
    Write,
    /// Reads and writes it; all of it must have been written.
    Update,
}

/// Who writes pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinnedUse {
    /// The host writes, the device reads: may be write-combined, which is slow to read.
    ToDevice,
    /// The device writes, the host reads.
    FromDevice,
}

/// The name of a wait, a record or a synchronisation: unique in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site(pub &'static str);

/// How many threads run a kernel: one-dimensional, as all our kernels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Blocks; at least 1 and below 2³¹.
    pub(crate) grid: u32,
    /// Threads per block; a multiple of 32.
    pub(crate) block: u32,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A pointer to the first byte of the span, and what the kernel does to it.
    #[allow(
        dead_code,
        reason = "the simulation checks the access, hardware does not ask"
    )]
    Span(DeviceSpan, Access),
    /// A null pointer.
    Null,
    U32(u32),
    U64(u64),
    /// A structure, by value: its bytes. Aligned to 8.
    Struct(&'a [u8]),
}

/// A call of a library's asynchronous function, given the driver's own handle of a stream. An error
/// is what the library says.
pub(crate) type LibraryCall = Box<dyn FnOnce(*mut c_void) -> Result<(), String> + Send>;

/// Allocates, copies, launches, records and waits, on one device.
///
/// Spans of length 0 are legal everywhere, and so are copies and fills of them, which do nothing.
/// Every method returns a [`DriverError`] if the operation, or an earlier one on the same device,
/// failed.
#[allow(unsafe_code)]
pub trait Driver: fmt::Debug + Send + Sync {
    /// The device.
    fn device(&self) -> &DeviceInfo;

    /// Make the device's context current on this thread, until [`leave`](Self::leave). Nests.
    fn enter(&self) -> Result<(), DriverError>;

    /// Undo the last [`enter`](Self::enter) of this thread.
    fn leave(&self) -> Result<(), DriverError>;

    /// The free device memory, in bytes.
    fn free_memory(&self) -> Result<usize, DriverError>;

    /// Allocate `len` bytes of device memory; `len` is at least 1. Its content is undefined.
    fn allocate(&self, len: usize) -> Result<DeviceMemory, DriverError>;

    /// Free device memory.
    ///
    /// # Safety
    /// Nothing uses it any more.
    unsafe fn free(&self, memory: DeviceMemory) -> Result<(), DriverError>;

    /// Allocate `len` bytes of pinned memory; `len` is at least 1.
    ///
    /// # Errors
    /// Also [`Fault::OutOfMemory`] if the host has none.
    fn allocate_pinned(&self, len: usize, pinned: PinnedUse) -> Result<PinnedMemory, DriverError>;

    /// Free pinned memory.
    ///
    /// # Safety
    /// Nothing uses it any more.
    unsafe fn free_pinned(&self, memory: PinnedMemory) -> Result<(), DriverError>;

    /// Create a stream that does not synchronise with the default stream.
    fn create_stream(&self) -> Result<StreamId, DriverError>;

    /// Destroy a stream. What is in it still runs.
    fn destroy_stream(&self, stream: StreamId) -> Result<(), DriverError>;

    /// Create an event that takes the time, and puts threads that synchronise with it to sleep.
    fn create_event(&self) -> Result<EventId, DriverError>;

    /// Destroy an event.
    fn destroy_event(&self, event: EventId) -> Result<(), DriverError>;

    /// Let `event` stand for what is in `stream` now.
    fn record(&self, event: EventId, stream: StreamId, site: Site) -> Result<(), DriverError>;

    /// Let `event` stand for what is now in a stream that is not the driver's own: `stream` is its
    /// handle, as the CUDA driver has it.
    ///
    /// # Safety
    /// It is a stream of the device's primary context, and is not destroyed meanwhile.
    unsafe fn record_in(&self, event: EventId, stream: u64, site: Site) -> Result<(), DriverError>;

    /// The handle of `event`, as the CUDA driver has it.
    fn event_handle(&self, event: EventId) -> Result<u64, DriverError>;

    /// Device memory that is not the driver's own: `len` bytes from the address `pointer` on. It is
    /// told where it is used whether there is such memory.
    fn adopt(&self, pointer: u64, len: usize) -> Result<DeviceSpan, DriverError>;

    /// Let what is put into `stream` from now on wait for `event`, as it was last recorded.
    fn wait(&self, stream: StreamId, event: EventId, site: Site) -> Result<(), DriverError>;

    /// Whether `event` has happened.
    fn query_event(&self, event: EventId) -> Result<bool, DriverError>;

    /// Let this thread wait for `event`, as it was last recorded.
    fn synchronize(&self, event: EventId, site: Site) -> Result<(), DriverError>;

    /// Let this thread wait for everything in `stream`.
    fn synchronize_stream(&self, stream: StreamId, site: Site) -> Result<(), DriverError>;

    /// The time on the device between two events that have both happened.
    fn elapsed(&self, begin: EventId, end: EventId) -> Result<Duration, DriverError>;

    /// Copy `from` to `to`, which have the same length, in `stream`.
    ///
    /// # Safety
    /// The rules of the module.
    unsafe fn copy(&self, stream: StreamId, from: Span, to: Span) -> Result<(), DriverError>;

    /// Set every byte of `span`, in `stream`.
    ///
    /// # Safety
    /// The rules of the module.
    unsafe fn fill(&self, stream: StreamId, span: DeviceSpan, byte: u8) -> Result<(), DriverError>;

    /// Run the kernel `name` in `stream`.
    ///
    /// # Safety
    /// The rules of the module, and: `args` are what the kernel takes, and it keeps within the
    /// spans.
    unsafe fn launch(
        &self,
        stream: StreamId,
        name: &'static str,
        dims: Dims,
        args: &[Arg<'_>],
    ) -> Result<(), DriverError>;

    /// Call a library that puts its work into `stream`, which reads and writes `accesses`.
    ///
    /// # Safety
    /// The rules of the module, and: `function` keeps within the spans, and only enqueues.
    unsafe fn call(
        &self,
        stream: StreamId,
        name: &'static str,
        accesses: &[(Span, Access)],
        function: LibraryCall,
    ) -> Result<(), DriverError>;

    /// Declare that the host reads or writes `span` now, before anything else is enqueued.
    fn host_access(&self, span: PinnedSpan, access: Access) -> Result<(), DriverError>;

    /// Declare that nobody reads what `span` holds now: it will be written first.
    fn discard(&self, span: Span) -> Result<(), DriverError>;
}
