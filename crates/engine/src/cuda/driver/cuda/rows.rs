//! Copies of rows by the CUDA driver.
//!
//! The driver's function for three dimensions takes any pitch up to the largest one. The function for two
//! dimensions "may fail for pitches not computed by `cuMemAllocPitch`", by NVIDIA's documentation.

use super::{CudaDriver, arguments::address, pinned_address};
use crate::cuda::driver::{DriverError, Rows, RowsShape, Span};
use cudarc::driver::sys::{CUDA_MEMCPY3D, CUdeviceptr, CUmemorytype, CUstream};
use std::{ffi::c_void, ptr};

/// Returns the type of the memory, the address of the first row if the host has the memory, and the address
/// if the device has the memory. The other address is null.
fn place(rows: Rows) -> (CUmemorytype, *mut c_void, CUdeviceptr) {
    match rows.span {
        Span::Pinned(span) => (CUmemorytype::CU_MEMORYTYPE_HOST, pinned_address(span), 0),
        Span::Device(span) => (
            CUmemorytype::CU_MEMORYTYPE_DEVICE,
            ptr::null_mut(),
            address(span),
        ),
    }
}

/// Returns the parameters of a copy of rows of `shape`.
fn parameters(shape: RowsShape, from: Rows, to: Rows) -> CUDA_MEMCPY3D {
    let (from_type, from_host, from_device) = place(from);
    let (to_type, to_host, to_device) = place(to);
    CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: from_type,
        srcHost: from_host,
        srcDevice: from_device,
        srcArray: ptr::null_mut(),
        reserved0: ptr::null_mut(),
        srcPitch: from.pitch,
        srcHeight: from.height,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: to_type,
        dstHost: to_host,
        dstDevice: to_device,
        dstArray: ptr::null_mut(),
        reserved1: ptr::null_mut(),
        dstPitch: to.pitch,
        dstHeight: to.height,
        WidthInBytes: shape.row,
        Height: shape.rows,
        Depth: shape.planes,
    }
}

impl CudaDriver {
    /// Enqueues a copy of rows in a stream of any owner.
    ///
    /// # Safety
    /// The requirements of [`Driver::copy_rows`](crate::cuda::driver::Driver::copy_rows). The stream is not destroyed during
    /// the call.
    pub(super) unsafe fn copy_rows_raw(
        &self,
        stream: CUstream,
        shape: RowsShape,
        (from, to): (Rows, Rows),
        operation: impl Fn() -> String,
    ) -> Result<(), DriverError> {
        if shape.len() == 0 {
            return Ok(());
        }
        for rows in [from, to] {
            rows.check(shape, self.info.largest_pitch)
                .map_err(|reason| self.refused(operation(), &reason))?;
        }
        if matches!((from.span, to.span), (Span::Pinned(_), Span::Pinned(_))) {
            return Err(self.refused(operation(), "a device copies from or to its own memory"));
        }
        let copy = parameters(shape, from, to);
        self.run(operation, |functions| {
            // SAFETY: the caller keeps the requirements. The driver reads the parameters before it returns.
            unsafe { (functions.cuMemcpy3DAsync_v2)(&raw const copy, stream) }
        })
    }
}
