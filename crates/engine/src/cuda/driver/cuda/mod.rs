//! The CUDA driver.
//!
//! Each device has one [`CudaDriver`] for the life of the process. It uses the device's primary
//! context, as do CUDA's runtime and every library on top of the runtime. The context takes device
//! memory, and the device may never be used. So the context is retained only at the first
//! [`enter`](Driver::enter). It is never released. A release could destroy the context while memory
//! that was leaked on purpose is in use, and would discard the compiled kernels. At exit, a release
//! may come after the driver has shut down.

mod arguments;
mod calls;
mod capture;
mod codes;
#[cfg(any(test, feature = "fakes"))]
pub mod emulated;
mod foreign;
mod functions;
mod handles;
mod hints;
mod kernels;
#[cfg(test)]
mod layouts;
mod open;
mod rows;

#[cfg(any(test, feature = "fakes"))]
pub use open::gpu_or_skip;
pub use open::open_all;
pub(crate) use open::{count, current_device, version};

use super::{
    Access, Arg, DeviceInfo, DeviceMemory, DeviceSpan, Dims, Driver, DriverError, EventId, Fault,
    Found, LibraryCall, MemoryAt, PinnedMemory, PinnedSpan, PinnedUse, Rows, RowsShape, Site, Span,
    StreamId,
};
use arguments::{Arguments, address};
use codes::{NOT_READY, SUCCESS};
use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_WRITECOMBINED, CUctx_st, CUdevice, CUevent, CUevent_flags, CUevent_st,
    CUstream, CUstream_flags, CUstream_st,
};
use functions::Functions;
use handles::{Handle, Handles, Kernels};
use std::{
    ffi::c_void,
    fmt, process, ptr,
    ptr::NonNull,
    sync::{Arc, OnceLock},
    time::Duration,
};
use zarrs_cuda_kernels::KERNELS;

/// A device that is used through the CUDA driver.
pub struct CudaDriver {
    functions: &'static Functions,
    info: DeviceInfo,
    device: CUdevice,
    context: OnceLock<Handle<CUctx_st>>,
    /// The process that opened the device. CUDA does not work in a forked child.
    process: u32,
    /// The first sticky error. Every later operation but `leave` returns this error, without a call of the
    /// driver.
    broken: OnceLock<DriverError>,
    streams: Handles<Stream>,
    events: Handles<Handle<CUevent_st>>,
    kernels: Kernels,
}

struct Stream {
    handle: Handle<CUstream_st>,
    /// The event that marks the end of the operations for which the host waits. A question about the
    /// stream itself would also ask about later operations.
    done: Handle<CUevent_st>,
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl CudaDriver {
    /// Returns the primary context of the device. The first call retains the context.
    fn context(&self) -> Result<Handle<CUctx_st>, DriverError> {
        if let Some(context) = self.context.get() {
            return Ok(*context);
        }
        let mut context = ptr::null_mut();
        let operation = || "retain the primary context".to_owned();
        let code = self.code(&operation, |functions| {
            // SAFETY: the function writes the context.
            unsafe { (functions.cuDevicePrimaryCtxRetain)(&raw mut context, self.device) }
        })?;
        if code != SUCCESS {
            return Err(self.told(code, operation(), codes::fault_without_context(code)));
        }
        // If another thread was faster, it has stored the same context.
        Ok(*self.context.get_or_init(|| Handle(context)))
    }

    fn stream(
        &self,
        id: StreamId,
        operation: impl Fn() -> String,
    ) -> Result<Arc<Stream>, DriverError> {
        let stream = self.streams.get(id.0);
        stream.ok_or_else(|| self.refused(operation(), "there is no such stream"))
    }

    fn event(
        &self,
        id: EventId,
        operation: impl Fn() -> String,
    ) -> Result<Arc<Handle<CUevent_st>>, DriverError> {
        let event = self.events.get(id.0);
        event.ok_or_else(|| self.refused(operation(), "there is no such event"))
    }

    fn new_event(
        &self,
        timed: bool,
        operation: impl Fn() -> String,
    ) -> Result<Handle<CUevent_st>, DriverError> {
        let mut event: CUevent = ptr::null_mut();
        let mut flags = CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        if !timed {
            flags |= CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        }
        self.run(operation, |functions| {
            // SAFETY: the function writes the event.
            unsafe { (functions.cuEventCreate)(&raw mut event, flags) }
        })?;
        Ok(Handle(event))
    }

    fn has_happened(
        &self,
        event: EventId,
        operation: impl Fn() -> String,
    ) -> Result<bool, DriverError> {
        let event = self.event(event, &operation)?;
        self.query(*event, operation)
    }

    /// Returns whether an event that the caller keeps alive has happened.
    fn query(
        &self,
        event: Handle<CUevent_st>,
        operation: impl Fn() -> String,
    ) -> Result<bool, DriverError> {
        let code = self.code(&operation, |functions| {
            // SAFETY: the caller keeps the event alive.
            unsafe { (functions.cuEventQuery)(event.0) }
        })?;
        match code {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            code => Err(self.error(code, operation())),
        }
    }

    fn delete_event(
        &self,
        event: Handle<CUevent_st>,
        operation: impl Fn() -> String,
    ) -> Result<(), DriverError> {
        self.run(operation, |functions| {
            // SAFETY: `new_event` made the event. No other thread has it: it is not in the table.
            unsafe { (functions.cuEventDestroy_v2)(event.0) }
        })
    }
}

/// Returns the address of the first byte of `span`. Accesses through it must stay within the allocation.
fn pinned_address(span: PinnedSpan) -> *mut c_void {
    span.memory.0.as_ptr().wrapping_add(span.offset).cast()
}

impl Driver for CudaDriver {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn has_context(&self) -> bool {
        self.context.get().is_some()
    }

    fn enter(&self) -> Result<(), DriverError> {
        let operation = || "make the context current".to_owned();
        if process::id() != self.process {
            return Err(DriverError {
                fault: Fault::Sticky,
                ..self.refused(
                    operation(),
                    "the process was forked after it opened the device",
                )
            });
        }
        let context = self.context()?;
        self.run(operation, |functions| {
            // SAFETY: the context is retained for ever.
            unsafe { (functions.cuCtxPushCurrent_v2)(context.0) }
        })?;
        capture::relax(self.functions);
        Ok(())
    }

    fn leave(&self) -> Result<(), DriverError> {
        // This also runs on a broken device: the thread's other contexts may still work.
        capture::restore(self.functions);
        let operation = || "restore the thread's context".to_owned();
        let mut context = ptr::null_mut();
        // SAFETY: the function writes the context that was current.
        match unsafe { (self.functions.cuCtxPopCurrent_v2)(&raw mut context) } {
            SUCCESS if self.context.get().is_some_and(|own| own.0 == context) => Ok(()),
            SUCCESS => {
                // SAFETY: the context was current until just now.
                unsafe { (self.functions.cuCtxPushCurrent_v2)(context) };
                Err(self.refused(operation(), "another context is current"))
            }
            code => Err(self.error(code, operation())),
        }
    }

    fn free_memory(&self) -> Result<usize, DriverError> {
        let (mut free, mut total) = (0, 0);
        let operation = || "ask for the free memory".to_owned();
        self.run(operation, |functions| {
            // SAFETY: the function writes two numbers.
            unsafe { (functions.cuMemGetInfo_v2)(&raw mut free, &raw mut total) }
        })?;
        Ok(free)
    }

    fn allocate(&self, len: usize) -> Result<DeviceMemory, DriverError> {
        let mut memory = 0;
        let operation = || format!("allocate {len} bytes of device memory");
        self.run(operation, |functions| {
            // SAFETY: the function writes an address.
            unsafe { (functions.cuMemAlloc_v2)(&raw mut memory, len) }
        })?;
        Ok(DeviceMemory(memory))
    }

    unsafe fn free(&self, memory: DeviceMemory) -> Result<(), DriverError> {
        let operation = || format!("free the device memory at {:#x}", memory.0);
        self.run(operation, |functions| {
            // SAFETY: the caller promises that nothing uses the memory. The driver refuses an
            // address that belongs to no allocation.
            unsafe { (functions.cuMemFree_v2)(memory.0) }
        })
    }

    fn allocate_pinned(&self, len: usize, pinned: PinnedUse) -> Result<PinnedMemory, DriverError> {
        let flags = match pinned {
            PinnedUse::ToDevice => CU_MEMHOSTALLOC_WRITECOMBINED,
            PinnedUse::FromDevice | PinnedUse::Both => 0,
        };
        let mut memory = ptr::null_mut();
        let operation = || format!("allocate {len} bytes of pinned memory");
        self.run(operation, |functions| {
            // SAFETY: the function writes an address.
            unsafe { (functions.cuMemHostAlloc)(&raw mut memory, len, flags) }
        })?;
        NonNull::new(memory.cast())
            .map(PinnedMemory)
            .ok_or_else(|| self.refused(operation(), "the driver returned a null pointer"))
    }

    unsafe fn free_pinned(&self, memory: PinnedMemory) -> Result<(), DriverError> {
        let operation = || format!("free the pinned memory at {:p}", memory.0);
        self.run(operation, |functions| {
            // SAFETY: the caller promises that nothing uses the memory. The driver refuses an
            // address that belongs to no allocation.
            unsafe { (functions.cuMemFreeHost)(memory.0.as_ptr().cast()) }
        })
    }

    fn create_stream(&self) -> Result<StreamId, DriverError> {
        let operation = || "create a stream".to_owned();
        let done = self.new_event(false, operation)?;
        let mut stream: CUstream = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let created = self.run(operation, |functions| {
            // SAFETY: the function writes the stream.
            unsafe { (functions.cuStreamCreate)(&raw mut stream, flags) }
        });
        if let Err(error) = created {
            // The first error is the one to report.
            let _ = self.delete_event(done, operation);
            return Err(error);
        }
        let handle = Handle(stream);
        Ok(StreamId(self.streams.insert(Stream { handle, done })))
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<(), DriverError> {
        let operation = || format!("destroy stream {}", stream.0);
        let Some(Stream { handle, done }) = self.streams.remove(stream.0) else {
            return Err(self.refused(operation(), "it does not exist, or is being used"));
        };
        let destroyed = self.run(operation, |functions| {
            // SAFETY: `create_stream` made the stream. No other thread has it: it is not in the
            // table.
            unsafe { (functions.cuStreamDestroy_v2)(handle.0) }
        });
        destroyed.and(self.delete_event(done, operation))
    }

    fn create_event(&self, timed: bool) -> Result<EventId, DriverError> {
        let event = self.new_event(timed, || "create an event".to_owned())?;
        Ok(EventId(self.events.insert(event)))
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DriverError> {
        let operation = || format!("destroy event {}", event.0);
        match self.events.remove(event.0) {
            Some(event) => self.delete_event(event, operation),
            None => Err(self.refused(operation(), "it does not exist, or is being used")),
        }
    }

    fn record(&self, event: EventId, stream: StreamId, site: Site) -> Result<(), DriverError> {
        let operation = || {
            format!(
                "record event {} in stream {} ({})",
                event.0, stream.0, site.0
            )
        };
        let event_ = self.event(event, operation)?;
        let stream_ = self.stream(stream, operation)?;
        self.run(operation, |functions| {
            // SAFETY: the event and the stream live while they are held here.
            unsafe { (functions.cuEventRecord)(event_.0, stream_.handle.0) }
        })
    }

    unsafe fn record_in(&self, event: EventId, stream: u64, site: Site) -> Result<(), DriverError> {
        // SAFETY: the caller keeps the same requirements.
        unsafe { self.record_in_foreign(event, stream, site) }
    }

    unsafe fn copy_rows_in(
        &self,
        stream: u64,
        shape: RowsShape,
        from: Rows,
        to: Rows,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller keeps the same requirements.
        unsafe { self.copy_rows_in_foreign(stream, shape, from, to) }
    }

    unsafe fn is_captured(&self, stream: u64) -> Result<bool, DriverError> {
        // SAFETY: the caller keeps the same requirements.
        unsafe { self.is_foreign_captured(stream) }
    }

    fn event_handle(&self, event: EventId) -> Result<u64, DriverError> {
        let operation = || format!("hand event {} to the application", event.0);
        let event = self.event(event, operation)?;
        Ok(event.0.expose_provenance() as u64)
    }

    fn adopt(&self, pointer: u64, len: usize) -> Result<DeviceSpan, DriverError> {
        Ok(DeviceSpan {
            memory: DeviceMemory(pointer),
            offset: 0,
            len,
        })
    }

    fn memory_at(&self, pointer: u64) -> Result<MemoryAt, DriverError> {
        self.foreign_memory_at(pointer)
    }

    fn wait(&self, stream: StreamId, event: EventId, site: Site) -> Result<(), DriverError> {
        let operation = || {
            format!(
                "let stream {} wait for event {} ({})",
                stream.0, event.0, site.0
            )
        };
        let event_ = self.event(event, operation)?;
        let stream_ = self.stream(stream, operation)?;
        self.run(operation, |functions| {
            // SAFETY: the event and the stream live while they are held here.
            unsafe { (functions.cuStreamWaitEvent)(stream_.handle.0, event_.0, 0) }
        })
    }

    fn query_event(&self, event: EventId) -> Result<bool, DriverError> {
        self.has_happened(event, || format!("query event {}", event.0))
    }

    fn poll(&self, event: EventId, site: Site) -> Result<bool, DriverError> {
        self.has_happened(event, || format!("wait for event {} ({})", event.0, site.0))
    }

    fn mark(&self, stream: StreamId, site: Site) -> Result<(), DriverError> {
        let operation = || format!("wait for stream {} ({})", stream.0, site.0);
        let stream = self.stream(stream, operation)?;
        self.run(operation, |functions| {
            // SAFETY: the event `done` and the stream live while the stream is held here.
            unsafe { (functions.cuEventRecord)(stream.done.0, stream.handle.0) }
        })
    }

    /// If another thread has marked the stream since, its mark is the last one.
    fn poll_stream(&self, stream: StreamId, site: Site) -> Result<bool, DriverError> {
        let operation = || format!("wait for stream {} ({})", stream.0, site.0);
        let stream = self.stream(stream, operation)?;
        self.query(stream.done, operation)
    }

    fn synchronize_context(&self) -> Result<(), DriverError> {
        let operation = || "wait for everything on the device".to_string();
        self.run(operation, |functions| {
            // SAFETY: the function has no arguments.
            unsafe { (functions.cuCtxSynchronize)() }
        })
    }

    fn elapsed(&self, begin: EventId, end: EventId) -> Result<Duration, DriverError> {
        let operation = || format!("take the time from event {} to event {}", begin.0, end.0);
        let begin = self.event(begin, operation)?;
        let end = self.event(end, operation)?;
        let mut milliseconds = 0.0_f32;
        self.run(operation, |functions| {
            // SAFETY: both events live while they are held here; writes a number.
            unsafe { (functions.cuEventElapsedTime)(&raw mut milliseconds, begin.0, end.0) }
        })?;
        // The driver's resolution is half a microsecond, so a difference may be negative.
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }

    unsafe fn copy(&self, stream: StreamId, from: Span, to: Span) -> Result<(), DriverError> {
        let len = from.len();
        let operation = || format!("copy {len} bytes: {from:?} to {to:?}");
        if to.len() != len {
            return Err(self.refused(operation(), "the lengths differ"));
        }
        if len == 0 {
            return Ok(());
        }
        let stream = self.stream(stream, operation)?;
        let stream = stream.handle.0;
        // SAFETY, of all three calls: the caller promises that the spans stay allocated until the
        // copy has completed, and that no conflicting access happens meanwhile. The driver refuses
        // a span that is in no allocation of the device.
        match (from, to) {
            (Span::Pinned(from), Span::Device(to)) => self.run(operation, |functions| {
                let (from, to) = (pinned_address(from), address(to));
                // SAFETY: see the comment on all three calls.
                unsafe { (functions.cuMemcpyHtoDAsync_v2)(to, from, len, stream) }
            }),
            (Span::Device(from), Span::Pinned(to)) => self.run(operation, |functions| {
                let (from, to) = (address(from), pinned_address(to));
                // SAFETY: see the comment on all three calls.
                unsafe { (functions.cuMemcpyDtoHAsync_v2)(to, from, len, stream) }
            }),
            (Span::Device(from), Span::Device(to)) => self.run(operation, |functions| {
                let (from, to) = (address(from), address(to));
                // SAFETY: see the comment on all three calls.
                unsafe { (functions.cuMemcpyDtoDAsync_v2)(to, from, len, stream) }
            }),
            (Span::Pinned(_), Span::Pinned(_)) => {
                Err(self.refused(operation(), "a device copies from or to its own memory"))
            }
        }
    }

    unsafe fn copy_rows(
        &self,
        stream: StreamId,
        shape: RowsShape,
        from: Rows,
        to: Rows,
    ) -> Result<(), DriverError> {
        let operation = || format!("copy {shape:?}: {from:?} to {to:?}");
        let stream = self.stream(stream, operation)?;
        // SAFETY: the caller keeps the same requirements. The stream lives while it is held here.
        unsafe { self.copy_rows_raw(stream.handle.0, shape, (from, to), operation) }
    }

    unsafe fn fill(&self, stream: StreamId, span: DeviceSpan, byte: u8) -> Result<(), DriverError> {
        let operation = || format!("fill {span:?} with {byte}");
        if span.len == 0 {
            return Ok(());
        }
        let stream = self.stream(stream, operation)?;
        self.run(operation, |functions| {
            let to = address(span);
            // SAFETY: the caller promises that the span stays allocated until the fill has
            // completed, and that nothing else accesses the span meanwhile.
            unsafe { (functions.cuMemsetD8Async)(to, byte, span.len, stream.handle.0) }
        })
    }

    fn compile(&self) -> Result<(), DriverError> {
        // If one module does not compile, the other modules are compiled nevertheless.
        let compiled = KERNELS.iter().map(|(name, _)| self.kernel(name).map(drop));
        compiled.fold(Ok(()), Result::and)
    }

    fn uncompiled(&self) -> usize {
        self.kernels.uncompiled()
    }

    unsafe fn launch(
        &self,
        stream: StreamId,
        name: &'static str,
        dims: Dims,
        args: &[Arg<'_>],
    ) -> Result<(), DriverError> {
        let Dims { grid, block } = dims;
        let operation = || format!("launch {name} with {grid} blocks of {block} threads");
        let stream = self.stream(stream, operation)?;
        let kernel = self.kernel(name)?;
        let mut arguments = Arguments::new(args);
        let mut pointers = arguments.pointers();
        self.run(operation, |functions| {
            let (arguments, extra) = (pointers.as_mut_ptr(), ptr::null_mut());
            // SAFETY: the caller promises that the arguments match the kernel's parameters. The
            // caller also promises that the kernel stays within the spans, and that these stay
            // allocated until the kernel has completed. The driver copies the arguments before it
            // returns.
            unsafe {
                (functions.cuLaunchKernel)(
                    kernel.0,
                    grid,
                    1,
                    1,
                    block,
                    1,
                    1,
                    0,
                    stream.handle.0,
                    arguments,
                    extra,
                )
            }
        })
    }

    unsafe fn call(
        &self,
        stream: StreamId,
        name: &'static str,
        accesses: &[(Span, Access)],
        function: LibraryCall,
    ) -> Result<(), DriverError> {
        let operation = || {
            let bytes: usize = accesses.iter().map(|(span, _)| span.len()).sum();
            format!("call {name} on {bytes} bytes in {} spans", accesses.len())
        };
        let stream = self.stream(stream, operation)?;
        let mut result = Ok(());
        self.run(operation, |_| {
            result = function(stream.handle.0.cast());
            SUCCESS
        })?;
        let Err(reason) = result else {
            return Ok(());
        };
        // The library may have failed because of an error of the context. The query of the stream returns
        // this error.
        let query = self.code(&operation, |functions| {
            // SAFETY: the stream lives while it is held here.
            unsafe { (functions.cuStreamQuery)(stream.handle.0) }
        })?;
        match query {
            SUCCESS | NOT_READY => Err(self.refused(operation(), &reason)),
            code => Err(self.error(code, format!("{} ({reason})", operation()))),
        }
    }

    fn host_access(&self, _: PinnedSpan, _: Access) -> Result<(), DriverError> {
        Ok(())
    }

    fn discard(&self, _: Span) -> Result<(), DriverError> {
        Ok(())
    }
}
