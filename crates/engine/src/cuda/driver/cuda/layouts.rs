//! The layout of a structure that the driver reads, and the numbers that stand for its questions.
//!
//! The tests of the engine compile these assertions with cudarc's bindings for CUDA 12.0, and
//! `cargo xtask cudarc` with the newest. The numbers are those of NVIDIA's header.

use std::mem::offset_of;

use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_WRITECOMBINED, CUDA_MEMCPY3D, CUdevice, CUdevice_attribute, CUdeviceptr,
    CUevent, CUevent_flags, CUjit_option, CUmemorytype, CUresult, CUstream, CUstream_flags,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};

// A structure with 64-bit addresses.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<CUDA_MEMCPY3D>() == 200 && align_of::<CUDA_MEMCPY3D>() == 8);
    assert!(offset_of!(CUDA_MEMCPY3D, srcXInBytes) == 0);
    assert!(offset_of!(CUDA_MEMCPY3D, srcY) == 8);
    assert!(offset_of!(CUDA_MEMCPY3D, srcZ) == 16);
    assert!(offset_of!(CUDA_MEMCPY3D, srcLOD) == 24);
    assert!(offset_of!(CUDA_MEMCPY3D, srcMemoryType) == 32);
    assert!(offset_of!(CUDA_MEMCPY3D, srcHost) == 40);
    assert!(offset_of!(CUDA_MEMCPY3D, srcDevice) == 48);
    assert!(offset_of!(CUDA_MEMCPY3D, srcArray) == 56);
    assert!(offset_of!(CUDA_MEMCPY3D, reserved0) == 64);
    assert!(offset_of!(CUDA_MEMCPY3D, srcPitch) == 72);
    assert!(offset_of!(CUDA_MEMCPY3D, srcHeight) == 80);
    assert!(offset_of!(CUDA_MEMCPY3D, dstXInBytes) == 88);
    assert!(offset_of!(CUDA_MEMCPY3D, dstY) == 96);
    assert!(offset_of!(CUDA_MEMCPY3D, dstZ) == 104);
    assert!(offset_of!(CUDA_MEMCPY3D, dstLOD) == 112);
    assert!(offset_of!(CUDA_MEMCPY3D, dstMemoryType) == 120);
    assert!(offset_of!(CUDA_MEMCPY3D, dstHost) == 128);
    assert!(offset_of!(CUDA_MEMCPY3D, dstDevice) == 136);
    assert!(offset_of!(CUDA_MEMCPY3D, dstArray) == 144);
    assert!(offset_of!(CUDA_MEMCPY3D, reserved1) == 152);
    assert!(offset_of!(CUDA_MEMCPY3D, dstPitch) == 160);
    assert!(offset_of!(CUDA_MEMCPY3D, dstHeight) == 168);
    assert!(offset_of!(CUDA_MEMCPY3D, WidthInBytes) == 176);
    assert!(offset_of!(CUDA_MEMCPY3D, Height) == 184);
    assert!(offset_of!(CUDA_MEMCPY3D, Depth) == 192);
    assert!(
        size_of::<CUdeviceptr>() == 8 && size_of::<CUstream>() == 8 && size_of::<CUevent>() == 8
    );
};

const _: () = {
    assert!(size_of::<CUresult>() == 4 && size_of::<CUdevice>() == 4);
    assert!(size_of::<CUjit_option>() == 4);
    assert!(size_of::<CUstreamCaptureMode>() == 4 && size_of::<CUstreamCaptureStatus>() == 4);
    assert!(CUmemorytype::CU_MEMORYTYPE_HOST as u32 == 1);
    assert!(CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 == 2);
    assert!(CUjit_option::CU_JIT_ERROR_LOG_BUFFER as u32 == 5);
    assert!(CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as u32 == 6);
    assert!(CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32 == 1);
    assert!(CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 == 2);
    assert!(CUstream_flags::CU_STREAM_NON_BLOCKING as u32 == 1);
    assert!(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32 == 2);
    assert!(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32 == 0);
    assert!(CU_MEMHOSTALLOC_WRITECOMBINED == 4);
    assert!(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH as u32 == 11);
    assert!(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as u32 == 16);
    assert!(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID as u32 == 33);
    assert!(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID as u32 == 34);
    assert!(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID as u32 == 50);
    assert!(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as u32 == 75);
    assert!(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as u32 == 76);
};
