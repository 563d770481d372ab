//! Streams and memory of the application.

use super::CudaDriver;
use super::arguments::address;
use super::codes::{self, SUCCESS};
use crate::cuda::driver::{DriverError, EventId, MemoryAt, Rows, RowsShape, Site, Span};
use cudarc::driver::sys::{CUmemorytype, CUpointer_attribute, CUstream, CUstreamCaptureStatus};
use std::{ffi::c_void, ptr};

impl CudaDriver {
    /// Returns the handle of a stream that the application created.
    fn foreign_stream(
        &self,
        handle: u64,
        operation: impl Fn() -> String,
    ) -> Result<CUstream, DriverError> {
        let address = usize::try_from(handle).map_err(|_| {
            let reason = "a stream's handle is an address of this machine";
            self.refused(operation(), reason)
        })?;
        Ok(ptr::with_exposed_provenance_mut(address))
    }

    /// Records an event: see [`Driver::record_in`](crate::cuda::driver::Driver::record_in).
    ///
    /// # Safety
    /// The requirements of [`Driver::record_in`](crate::cuda::driver::Driver::record_in).
    pub(super) unsafe fn record_in_foreign(
        &self,
        event: EventId,
        stream: u64,
        site: Site,
    ) -> Result<(), DriverError> {
        let operation = || {
            format!(
                "record event {} in a stream of the application, {stream:#x} ({})",
                event.0, site.0
            )
        };
        let event = self.event(event, operation)?;
        let stream = self.foreign_stream(stream, operation)?;
        self.run(operation, |functions| {
            // SAFETY: the event lives while it is held here; the caller vouches for the stream.
            unsafe { (functions.cuEventRecord)(event.0, stream) }
        })
    }

    /// Returns whether a stream is being captured: see [`Driver::is_captured`](crate::cuda::driver::Driver::is_captured).
    ///
    /// # Safety
    /// The requirements of [`Driver::is_captured`](crate::cuda::driver::Driver::is_captured).
    pub(super) unsafe fn is_foreign_captured(&self, stream: u64) -> Result<bool, DriverError> {
        let operation = || format!("ask whether the application's stream {stream:#x} is captured");
        let stream = self.foreign_stream(stream, operation)?;
        let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut status = none;
        let code = self.code(&operation, |functions| {
            // SAFETY: the status is valid for writes; the caller vouches for the stream.
            unsafe { (functions.cuStreamIsCapturing)(stream, &raw mut status) }
        })?;
        match code {
            SUCCESS => Ok(status != none),
            // The driver returns such a code for the null stream while another stream is captured.
            code if codes::CAPTURE.contains(&code) => Ok(true),
            code => Err(self.error(code, operation())),
        }
    }

    /// Enqueues a copy: see [`Driver::copy_rows_in`](crate::cuda::driver::Driver::copy_rows_in).
    ///
    /// # Safety
    /// The requirements of [`Driver::copy_rows_in`](crate::cuda::driver::Driver::copy_rows_in).
    pub(super) unsafe fn copy_rows_in_foreign(
        &self,
        stream: u64,
        shape: RowsShape,
        from: Rows,
        to: Rows,
    ) -> Result<(), DriverError> {
        let operation = || {
            format!(
                "copy {shape:?}: {from:?} to {to:?}, in a stream of the application, {stream:#x}"
            )
        };
        let stream = self.foreign_stream(stream, operation)?;
        let is_dense = |rows: &Rows| {
            (rows.pitch, rows.height, rows.span.len()) == (shape.row, shape.rows, shape.len())
        };
        if let (Span::Device(source), Span::Device(target)) = (from.span, to.span)
            && is_dense(&from)
            && is_dense(&to)
            && shape.len() > 0
        {
            let (source, target) = (address(source), address(target));
            return self.run(operation, |functions| {
                // SAFETY: the caller keeps the same requirements, and vouches for the stream.
                unsafe { (functions.cuMemcpyDtoDAsync_v2)(target, source, shape.len(), stream) }
            });
        }
        // SAFETY: the caller keeps the same requirements, and vouches for the stream.
        unsafe { self.copy_rows_raw(stream, shape, (from, to), operation) }
    }

    /// Returns an allocation: see [`Driver::memory_at`](crate::cuda::driver::Driver::memory_at).
    pub(super) fn foreign_memory_at(&self, pointer: u64) -> Result<MemoryAt, DriverError> {
        let operation = || format!("look for device memory at {pointer:#x}");
        let (mut kind, mut device, mut start, mut len) = (0_u32, -1_i32, 0_u64, 0_usize);
        let mut attributes = [
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        ];
        let mut data: [*mut c_void; 4] = [
            (&raw mut kind).cast(),
            (&raw mut device).cast(),
            (&raw mut start).cast(),
            (&raw mut len).cast(),
        ];
        let (attributes, data) = (attributes.as_mut_ptr(), data.as_mut_ptr());
        self.run(operation, |functions| {
            // SAFETY: each attribute has a place of the type that the header names: an enumeration of 32 bits, a
            // signed number of 32 bits, an address, and a size. The driver writes 0 for an address that it does not know.
            unsafe { (functions.cuPointerGetAttributes)(4, attributes, data, pointer) }
        })?;
        let device = usize::try_from(device).ok();
        let is_there = kind == CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 && start <= pointer;
        let bytes = start..start.saturating_add(len as u64);
        match device {
            Some(device) if is_there && bytes.contains(&pointer) => Ok(MemoryAt { device, bytes }),
            _ => Err(self.refused(
                operation(),
                "the address belongs to no device memory that the CUDA driver knows",
            )),
        }
    }
}
