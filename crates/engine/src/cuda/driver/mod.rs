//! The interface below the CUDA engine: allocate, copy, launch, record, wait.
//!
//! There are two implementations. [`cuda`] calls the CUDA driver. [`simulation`] needs no GPU, and
//! detects errors that hardware hides. The code above this interface is the same for both. Every
//! operation declares the bytes that it reads and writes. Every wait, record and synchronisation has a
//! [`Site`], the name by which the simulation can leave this operation out.
//!
//! Rules for the callers of a driver:
//! - Calls happen between [`enter`](Driver::enter) and [`leave`](Driver::leave) on the same thread.
//! - Memory that an operation reads or writes stays allocated until the operation has completed.
//! - The host touches pinned memory only after [`host_access`](Driver::host_access) for it.
//!
//! No method waits for operations in streams, except as far as a function of the CUDA driver does. The host's
//! waits ask again and again: see `waits`.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
pub mod cuda;
#[cfg(any(test, feature = "fakes"))]
#[allow(unsafe_code)]
pub mod instant;
#[cfg(any(test, feature = "fakes"))]
#[allow(unsafe_code)]
#[allow(clippy::cast_possible_truncation, reason = "it needs 64-bit addresses")]
pub mod simulation;

use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

#[cfg(not(feature = "cuda"))]
pub use absent::open_all;
#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{count, current_device, version};
#[cfg(feature = "cuda")]
pub use cuda::open_all;
#[cfg(feature = "cuda")]
pub(crate) use cuda::{count, current_device, version};

pub use crate::error::DriverError;
pub use crate::error::Fault;

/// The devices of a process.
#[derive(Debug)]
pub struct Found {
    /// The drivers of the devices that can be used.
    pub drivers: Vec<Arc<dyn Driver>>,
    /// The reasons why the other devices cannot be used. Each names its device.
    pub refused: Vec<DriverError>,
}

/// The properties of a device that its driver reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The number of the device among the devices that the process sees.
    pub ordinal: usize,
    pub name: String,
    /// The major and the minor version of the compute capability.
    pub compute_capability: (u32, u32),
    /// The size of the device's memory, in bytes.
    pub total_memory: usize,
    /// The number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// The most bytes from one row to the next in a copy of rows.
    pub largest_pitch: usize,
    /// The address of the device on the PCI bus; `None` if the driver does not report it.
    pub pci: Option<PciAddress>,
}

/// The address of a device on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
}

impl fmt::Display for PciAddress {
    /// Writes the address like the names in `/sys/bus/pci/devices`. GPUs are function 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.0")
    }
}

/// A stream of operations that run in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// An event, which can be recorded in a stream to mark a point in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub(crate) u64);

/// An allocation of device memory: the address of its first byte, aligned to 256 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceMemory(pub u64);

/// An allocation of pinned host memory: its first byte, aligned to 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PinnedMemory(pub NonNull<u8>);

// SAFETY: this is only a handle. The rules of the module order all accesses to the memory.
#[allow(unsafe_code)]
unsafe impl Send for PinnedMemory {}
// SAFETY: as for `Send`.
#[allow(unsafe_code)]
unsafe impl Sync for PinnedMemory {}

/// A range of bytes in an allocation of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpan {
    pub memory: DeviceMemory,
    pub offset: usize,
    pub len: usize,
}

/// A range of bytes in an allocation of pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedSpan {
    pub memory: PinnedMemory,
    pub offset: usize,
    pub len: usize,
}

impl PinnedSpan {
    /// Returns a part of the span, cut off at the span's end.
    #[must_use]
    pub(super) fn part(self, range: Range<usize>) -> Self {
        let start = range.start.min(self.len);
        Self {
            offset: self.offset + start,
            len: range.end.clamp(start, self.len) - start,
            ..self
        }
    }
}

/// A range of bytes that an operation reads or writes. Operations cannot access pageable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    Device(DeviceSpan),
    Pinned(PinnedSpan),
}

impl Span {
    /// Returns the number of bytes of the span.
    pub fn len(self) -> usize {
        match self {
            Self::Device(span) => span.len,
            Self::Pinned(span) => span.len,
        }
    }
}

/// An allocation of device memory, of any owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryAt {
    /// The number of the device.
    pub device: usize,
    /// The addresses of the bytes.
    pub bytes: Range<u64>,
}

/// The shape of a copy of rows: planes of rows of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsShape {
    pub planes: usize,
    /// The number of rows of a plane.
    pub rows: usize,
    /// The number of bytes of a row.
    pub row: usize,
}

impl RowsShape {
    /// Returns the number of bytes of all rows, without the bytes between them.
    pub fn len(self) -> usize {
        self.planes * self.rows * self.row
    }
}

/// The places of the rows of a copy, on one of its two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The bytes from the beginning of the first row to the end of the last one.
    pub span: Span,
    /// The number of bytes from the beginning of a row to the beginning of the next.
    pub pitch: usize,
    /// The number of rows from the beginning of a plane to the beginning of the next.
    pub height: usize,
}

impl Rows {
    /// Checks that rows of `shape` can lie in the span with this pitch and height.
    ///
    /// # Errors
    /// The rows would overlap, the span does not have the length that they need, or the pitch is above the
    /// largest one. The reason says which.
    pub fn check(&self, shape: RowsShape, largest_pitch: usize) -> Result<(), String> {
        let Self {
            span,
            pitch,
            height,
        } = *self;
        if pitch < shape.row || height < shape.rows {
            return Err(format!(
                "rows overlap: a pitch of {pitch} bytes and planes of {height} rows, for {shape:?}"
            ));
        }
        if pitch > largest_pitch {
            return Err(format!(
                "a pitch of {pitch} bytes, of which the device takes {largest_pitch} at most"
            ));
        }
        let needed = (shape.planes - 1)
            .checked_mul(height)
            .and_then(|rows| rows.checked_add(shape.rows - 1))
            .and_then(|rows| rows.checked_mul(pitch))
            .and_then(|bytes| bytes.checked_add(shape.row));
        if needed != Some(span.len()) {
            return Err(format!(
                "a span of {} bytes, where {shape:?} with a pitch of {pitch} bytes and planes of {height} rows needs {needed:?}",
                span.len()
            ));
        }
        Ok(())
    }

    /// Returns where each row begins, in bytes from the beginning of the span.
    #[cfg(any(test, feature = "fakes"))]
    fn starts(&self, shape: RowsShape) -> impl Iterator<Item = usize> + use<> {
        let Self { pitch, height, .. } = *self;
        (0..shape.planes)
            .flat_map(move |plane| (0..shape.rows).map(move |row| (plane * height + row) * pitch))
    }
}

/// How an operation accesses a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads the span, all of which must have been written before.
    Read,
    /// Writes any part of the span, and reads nothing. The span counts as written afterwards.
    Write,
    /// Reads and writes the span, all of which must have been written before.
    Update,
}

/// The sides that write a pinned allocation: the host, the device, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinnedUse {
    /// The host writes, the device reads. The memory may be write-combined, which makes reads by the
    /// host slow.
    ToDevice,
    /// The device writes, the host reads.
    FromDevice,
    /// The host and the device read and write.
    Both,
}

/// The name of a wait, a record or a synchronisation. Each name is unique in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site(pub &'static str);

/// The dimensions of a launch. All kernels of this crate are one-dimensional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// The number of thread blocks: at least 1, and below 2³¹.
    pub(crate) grid: u32,
    /// The number of threads per block: a multiple of 32.
    pub(crate) block: u32,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A pointer to the first byte of the span, and how the kernel accesses the span.
    #[allow(
        dead_code,
        reason = "the simulation checks the access, hardware does not ask"
    )]
    Span(DeviceSpan, Access),
    /// A null pointer.
    Null,
    U32(u32),
    U64(u64),
    /// The bytes of a structure that is passed by value, aligned to 8 bytes.
    Struct(&'a [u8]),
}

/// A call of another library's asynchronous function. The argument is the driver's own handle of a stream.
/// The error is the library's message.
pub(crate) type LibraryCall = Box<dyn FnOnce(*mut c_void) -> Result<(), String> + Send>;

/// Allocates, copies, launches, records and waits, on one device.
///
/// Spans of length 0 are legal everywhere. Copies and fills of such spans do nothing. A method
/// returns a [`DriverError`] if its operation or an earlier one on the same device failed.
#[allow(unsafe_code)]
pub trait Driver: fmt::Debug + Send + Sync {
    /// Returns the properties of the device.
    fn device(&self) -> &DeviceInfo;

    /// Returns whether the context exists. The call needs no [`enter`](Driver::enter), and does not wait.
    fn has_context(&self) -> bool;

    /// Makes the device's context current on this thread, until [`leave`](Self::leave). Calls nest.
    fn enter(&self) -> Result<(), DriverError>;

    /// Undoes the last [`enter`](Self::enter) of this thread.
    fn leave(&self) -> Result<(), DriverError>;

    /// Returns the free device memory, in bytes.
    fn free_memory(&self) -> Result<usize, DriverError>;

    /// Allocates `len` bytes of device memory. `len` is at least 1. The content of the memory is undefined.
    fn allocate(&self, len: usize) -> Result<DeviceMemory, DriverError>;

    /// Frees device memory.
    ///
    /// # Safety
    /// Nothing uses the memory any more.
    unsafe fn free(&self, memory: DeviceMemory) -> Result<(), DriverError>;

    /// Allocates `len` bytes of pinned memory. `len` is at least 1.
    ///
    /// # Errors
    /// The error is [`Fault::OutOfMemory`] also if the host has no memory left.
    fn allocate_pinned(&self, len: usize, pinned: PinnedUse) -> Result<PinnedMemory, DriverError>;

    /// Frees pinned memory.
    ///
    /// # Safety
    /// Nothing uses the memory any more.
    unsafe fn free_pinned(&self, memory: PinnedMemory) -> Result<(), DriverError>;

    /// Creates a stream that does not synchronise with the default stream.
    fn create_stream(&self) -> Result<StreamId, DriverError>;

    /// Destroys a stream. Operations that are already in the stream still run.
    fn destroy_stream(&self, stream: StreamId) -> Result<(), DriverError>;

    /// Creates an event. If the event is `timed`, it takes the time of each record, which costs the device
    /// some work. A thread of the application that waits for the event sleeps.
    fn create_event(&self, timed: bool) -> Result<EventId, DriverError>;

    /// Destroys an event.
    fn destroy_event(&self, event: EventId) -> Result<(), DriverError>;

    /// Records `event` in `stream`: the event happens when all operations that are now in the
    /// stream have completed.
    fn record(&self, event: EventId, stream: StreamId, site: Site) -> Result<(), DriverError>;

    /// Records `event` in a stream that this driver did not create. `stream` is the CUDA driver's
    /// handle of the stream.
    ///
    /// # Safety
    /// The stream belongs to the device's primary context, and is not destroyed during the call.
    unsafe fn record_in(&self, event: EventId, stream: u64, site: Site) -> Result<(), DriverError>;

    /// Enqueues a copy of rows of `shape` from `from` to `to`, both in device memory, in a stream that this driver did
    /// not create. `stream` is the CUDA driver's handle of the stream.
    ///
    /// # Errors
    /// The errors of [`copy_rows`](Self::copy_rows).
    ///
    /// # Safety
    /// The requirements of [`copy_rows`](Self::copy_rows) and of [`record_in`](Self::record_in).
    unsafe fn copy_rows_in(
        &self,
        stream: u64,
        shape: RowsShape,
        from: Rows,
        to: Rows,
    ) -> Result<(), DriverError>;

    /// Returns whether a stream that this driver did not create is being captured into a graph.
    /// `stream` is the CUDA driver's handle of the stream.
    ///
    /// # Safety
    /// As for [`record_in`](Self::record_in).
    unsafe fn is_captured(&self, stream: u64) -> Result<bool, DriverError>;

    /// Returns the CUDA driver's handle of `event`.
    fn event_handle(&self, event: EventId) -> Result<u64, DriverError>;

    /// Returns a span of `len` bytes from the address `pointer` on, in device memory that this
    /// driver did not allocate. A wrong address may be reported only when the span is used.
    fn adopt(&self, pointer: u64, len: usize) -> Result<DeviceSpan, DriverError>;

    /// Returns the allocation of device memory, of any owner, that has the address `pointer`.
    ///
    /// # Errors
    /// The address belongs to no device memory.
    fn memory_at(&self, pointer: u64) -> Result<MemoryAt, DriverError>;

    /// Makes operations that are enqueued in `stream` from now on wait for the last record of
    /// `event`.
    fn wait(&self, stream: StreamId, event: EventId, site: Site) -> Result<(), DriverError>;

    /// Returns whether `event` has happened.
    fn query_event(&self, event: EventId) -> Result<bool, DriverError>;

    /// Returns whether the last record of `event` has happened, for the host's wait `site`. Does not block.
    fn poll(&self, event: EventId, site: Site) -> Result<bool, DriverError>;

    /// Marks the end of all operations that are now in `stream`, for the host's wait `site`.
    fn mark(&self, stream: StreamId, site: Site) -> Result<(), DriverError>;

    /// Returns whether the stream has reached its last [mark](Self::mark), for the host's wait `site`. Does
    /// not block.
    fn poll_stream(&self, stream: StreamId, site: Site) -> Result<bool, DriverError>;

    /// Blocks this thread, without a limit, until everything that any stream of the context has now is complete, also
    /// streams that this driver did not create. No thread that a caller waits for may call this.
    fn synchronize_context(&self) -> Result<(), DriverError>;

    /// Blocks this thread, without a limit, until the last record of `event` has happened. For tests and
    /// benchmarks: the engine's waits have limits.
    #[cfg(any(test, feature = "fakes"))]
    fn synchronize(&self, event: EventId, site: Site) -> Result<(), DriverError> {
        while !self.poll(event, site)? {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Blocks this thread, without a limit, until all operations in `stream` have completed. For tests and
    /// benchmarks: the engine's waits have limits.
    #[cfg(any(test, feature = "fakes"))]
    fn synchronize_stream(&self, stream: StreamId, site: Site) -> Result<(), DriverError> {
        self.mark(stream, site)?;
        while !self.poll_stream(stream, site)? {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Returns the time on the device from `begin` to `end`, two timed events that have both happened.
    fn elapsed(&self, begin: EventId, end: EventId) -> Result<Duration, DriverError>;

    /// Enqueues a copy of `from` to `to` in `stream`. Both spans have the same length.
    ///
    /// # Safety
    /// The caller keeps the rules that this module lists.
    unsafe fn copy(&self, stream: StreamId, from: Span, to: Span) -> Result<(), DriverError>;

    /// Enqueues a copy of rows in `stream`. Each row of `from` is copied to the same row of `to`. The bytes
    /// between the rows are not touched. A copy without bytes does nothing.
    ///
    /// # Errors
    /// Also if the rows of `from` or of `to` overlap, or if a pitch is above [`DeviceInfo::largest_pitch`].
    ///
    /// # Safety
    /// The caller keeps the rules that this module lists.
    unsafe fn copy_rows(
        &self,
        stream: StreamId,
        shape: RowsShape,
        from: Rows,
        to: Rows,
    ) -> Result<(), DriverError>;

    /// Enqueues a fill of `span` with `byte` in `stream`.
    ///
    /// # Safety
    /// The caller keeps the rules that this module lists.
    unsafe fn fill(&self, stream: StreamId, span: DeviceSpan, byte: u8) -> Result<(), DriverError>;

    /// Compiles the kernels that are not compiled yet. Without this call, a kernel is compiled at its first
    /// launch, together with the other kernels of its file.
    fn compile(&self) -> Result<(), DriverError>;

    /// Returns the number of kernel files that the driver has not tried to compile yet. The call needs no
    /// [`enter`](Driver::enter), and does not wait.
    fn uncompiled(&self) -> usize;

    /// Enqueues the kernel `name` in `stream`.
    ///
    /// # Safety
    /// The caller keeps the rules that this module lists. `args` match the kernel's parameters, and the
    /// kernel stays within the spans.
    unsafe fn launch(
        &self,
        stream: StreamId,
        name: &'static str,
        dims: Dims,
        args: &[Arg<'_>],
    ) -> Result<(), DriverError>;

    /// Calls a library function that enqueues work in `stream`. The work accesses only the spans in
    /// `accesses`.
    ///
    /// # Safety
    /// The caller keeps the rules that this module lists. `function` stays within the spans, and only
    /// enqueues work.
    unsafe fn call(
        &self,
        stream: StreamId,
        name: &'static str,
        accesses: &[(Span, Access)],
        function: LibraryCall,
    ) -> Result<(), DriverError>;

    /// Declares that the host reads or writes `span` now, before anything else is enqueued. If
    /// operations are enqueued while other threads of the host still read or write, the caller
    /// declares the access again afterwards.
    fn host_access(&self, span: PinnedSpan, access: Access) -> Result<(), DriverError>;

    /// Declares that the current content of `span` is not needed: the span will be written before
    /// it is read.
    fn discard(&self, span: Span) -> Result<(), DriverError>;
}
