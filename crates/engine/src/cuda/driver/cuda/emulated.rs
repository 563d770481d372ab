//! The driver on emulated devices, for tests: with the correct functions, or with one function that is called
//! wrongly.

use super::{
    CudaDriver, SUCCESS,
    functions::{Code, Functions},
};
use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_WRITECOMBINED, CUDA_MEMCPY3D, CUcontext, CUdevice, CUdeviceptr, CUevent,
    CUfunction, CUmemorytype, CUmodule, CUstream, CUstreamCaptureMode,
};
use std::{
    cell::Cell,
    ffi::{c_char, c_uchar, c_uint, c_void},
    ptr,
    sync::{Arc, LazyLock},
};
use zarrs_cuda_emulator::driver::{self, Config};

static FUNCTIONS: LazyLock<Functions> = LazyLock::new(Functions::emulated);

/// Returns the driver of a new emulated device.
pub fn driver(config: Config) -> Arc<CudaDriver> {
    Arc::new(CudaDriver::new(&FUNCTIONS, driver::add(config)).expect("an emulated device opens"))
}

/// A wrong call of a driver function, which the emulated driver has to detect.
pub struct Mistake {
    pub name: &'static str,
    functions: &'static Functions,
}

impl Mistake {
    /// Returns the driver of a new emulated device. This driver makes the mistake.
    pub fn driver(&self, config: Config) -> Arc<CudaDriver> {
        let ordinal = driver::add(config);
        Arc::new(CudaDriver::new(self.functions, ordinal).expect("an emulated device opens"))
    }
}

macro_rules! mistakes {
    ($($name:literal: $function:ident = |$($argument:ident: $type:ty),*| $body:expr;)*) => {
        /// Returns all mistakes that tests make.
        pub fn mistakes() -> Vec<Mistake> {
            vec![$({
                unsafe extern "C" fn wrong($($argument: $type),*) -> Code {
                    #[allow(unused_unsafe, reason = "some do not call the function")]
                    // SAFETY: the emulated driver checks its arguments. It accesses memory only within
                    // allocations, or refuses.
                    unsafe {
                        $body
                    }
                }
                let mut functions = Functions::emulated();
                functions.$function = wrong;
                Mistake {
                    name: $name,
                    functions: Box::leak(Box::new(functions)),
                }
            }),*]
        }
    };
}

/// The default stream.
const DEFAULT: CUstream = ptr::null_mut();

thread_local! {
    /// The event that was last recorded on this thread.
    static EARLIER: Cell<CUevent> = const { Cell::new(ptr::null_mut()) };
}

mistakes! {
    "the context is not pushed":
        cuCtxPushCurrent_v2 = |_context: CUcontext| SUCCESS;
    "the context is pushed twice":
        cuCtxPushCurrent_v2 = |context: CUcontext| {
            driver::cuCtxPushCurrent_v2(context);
            driver::cuCtxPushCurrent_v2(context)
        };
    "the context of another device is retained":
        cuDevicePrimaryCtxRetain = |context: *mut CUcontext, _device: CUdevice| {
            let other = driver::add(Config::default());
            driver::cuDevicePrimaryCtxRetain(context, CUdevice::try_from(other).unwrap_or(0))
        };
    "no event is recorded":
        cuEventRecord = |_event: CUevent, _stream: CUstream| SUCCESS;
    "events are recorded in the default stream":
        cuEventRecord = |event: CUevent, _stream: CUstream| driver::cuEventRecord(event, DEFAULT);
    "events are destroyed where they are recorded":
        cuEventRecord = |event: CUevent, stream: CUstream| {
            driver::cuEventRecord(event, stream);
            driver::cuEventDestroy_v2(event)
        };
    "no stream waits":
        cuStreamWaitEvent = |_stream: CUstream, _event: CUevent, _flags: c_uint| SUCCESS;
    "the default stream waits":
        cuStreamWaitEvent = |_stream: CUstream, event: CUevent, flags: c_uint| {
            driver::cuStreamWaitEvent(DEFAULT, event, flags)
        };
    "a stream waits for the wrong event":
        cuStreamWaitEvent = |stream: CUstream, event: CUevent, flags: c_uint| {
            let earlier = EARLIER.replace(event);
            let event = if earlier.is_null() { event } else { earlier };
            driver::cuStreamWaitEvent(stream, event, flags)
        };
    "the host does not wait":
        cuEventQuery = |_event: CUevent| SUCCESS;
    "an upload is a byte too short":
        cuMemcpyHtoDAsync_v2 = |to: CUdeviceptr, from: *const c_void, len: usize, stream: CUstream| {
            driver::cuMemcpyHtoDAsync_v2(to, from, len - 1, stream)
        };
    "an upload goes a byte too far":
        cuMemcpyHtoDAsync_v2 = |to: CUdeviceptr, from: *const c_void, len: usize, stream: CUstream| {
            driver::cuMemcpyHtoDAsync_v2(to + 1, from, len, stream)
        };
    "uploads are in the default stream":
        cuMemcpyHtoDAsync_v2 = |to: CUdeviceptr, from: *const c_void, len: usize, _stream: CUstream| {
            driver::cuMemcpyHtoDAsync_v2(to, from, len, DEFAULT)
        };
    "a download is a byte too short":
        cuMemcpyDtoHAsync_v2 = |to: *mut c_void, from: CUdeviceptr, len: usize, stream: CUstream| {
            driver::cuMemcpyDtoHAsync_v2(to, from, len - 1, stream)
        };
    "a download begins a byte too late":
        cuMemcpyDtoHAsync_v2 = |to: *mut c_void, from: CUdeviceptr, len: usize, stream: CUstream| {
            driver::cuMemcpyDtoHAsync_v2(to, from + 1, len, stream)
        };
    "downloads are in the default stream":
        cuMemcpyDtoHAsync_v2 = |to: *mut c_void, from: CUdeviceptr, len: usize, _stream: CUstream| {
            driver::cuMemcpyDtoHAsync_v2(to, from, len, DEFAULT)
        };
    "a copy on the device is a byte too short":
        cuMemcpyDtoDAsync_v2 = |to: CUdeviceptr, from: CUdeviceptr, len: usize, stream: CUstream| {
            driver::cuMemcpyDtoDAsync_v2(to, from, len - 1, stream)
        };
    "copies on the device are in the default stream":
        cuMemcpyDtoDAsync_v2 = |to: CUdeviceptr, from: CUdeviceptr, len: usize, _stream: CUstream| {
            driver::cuMemcpyDtoDAsync_v2(to, from, len, DEFAULT)
        };
    "the pitches of a copy of rows are swapped":
        cuMemcpy3DAsync_v2 = |copy: *const CUDA_MEMCPY3D, stream: CUstream| {
            let mut copy = copy.read();
            (copy.srcPitch, copy.dstPitch) = (copy.dstPitch, copy.srcPitch);
            driver::cuMemcpy3DAsync_v2(&raw const copy, stream)
        };
    "the heights of a copy of rows are swapped":
        cuMemcpy3DAsync_v2 = |copy: *const CUDA_MEMCPY3D, stream: CUstream| {
            let mut copy = copy.read();
            (copy.srcHeight, copy.dstHeight) = (copy.dstHeight, copy.srcHeight);
            driver::cuMemcpy3DAsync_v2(&raw const copy, stream)
        };
    "the planes of a copy of rows have as many rows as are copied":
        cuMemcpy3DAsync_v2 = |copy: *const CUDA_MEMCPY3D, stream: CUstream| {
            let mut copy = copy.read();
            copy.dstHeight = copy.Height;
            driver::cuMemcpy3DAsync_v2(&raw const copy, stream)
        };
    "rows are a byte too short":
        cuMemcpy3DAsync_v2 = |copy: *const CUDA_MEMCPY3D, stream: CUstream| {
            let mut copy = copy.read();
            copy.WidthInBytes -= 1;
            driver::cuMemcpy3DAsync_v2(&raw const copy, stream)
        };
    "rows are a byte too long":
        cuMemcpy3DAsync_v2 = |copy: *const CUDA_MEMCPY3D, stream: CUstream| {
            let mut copy = copy.read();
            copy.WidthInBytes += 1;
            driver::cuMemcpy3DAsync_v2(&raw const copy, stream)
        };
    "a copy of rows has a row too few":
        cuMemcpy3DAsync_v2 = |copy: *const CUDA_MEMCPY3D, stream: CUstream| {
            let mut copy = copy.read();
            copy.Height -= 1;
            driver::cuMemcpy3DAsync_v2(&raw const copy, stream)
        };
    "a copy of rows has one plane":
        cuMemcpy3DAsync_v2 = |copy: *const CUDA_MEMCPY3D, stream: CUstream| {
            let mut copy = copy.read();
            copy.Depth = 1;
            driver::cuMemcpy3DAsync_v2(&raw const copy, stream)
        };
    "rows and planes are swapped":
        cuMemcpy3DAsync_v2 = |copy: *const CUDA_MEMCPY3D, stream: CUstream| {
            let mut copy = copy.read();
            (copy.Height, copy.Depth) = (copy.Depth, copy.Height);
            driver::cuMemcpy3DAsync_v2(&raw const copy, stream)
        };
    "rows are copied from memory of the host":
        cuMemcpy3DAsync_v2 = |copy: *const CUDA_MEMCPY3D, stream: CUstream| {
            let mut copy = copy.read();
            copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
            driver::cuMemcpy3DAsync_v2(&raw const copy, stream)
        };
    "copies of rows begin a byte too late":
        cuMemcpy3DAsync_v2 = |copy: *const CUDA_MEMCPY3D, stream: CUstream| {
            let mut copy = copy.read();
            copy.dstDevice += 1;
            driver::cuMemcpy3DAsync_v2(&raw const copy, stream)
        };
    "copies of rows are in the default stream":
        cuMemcpy3DAsync_v2 = |copy: *const CUDA_MEMCPY3D, _stream: CUstream| {
            driver::cuMemcpy3DAsync_v2(copy, DEFAULT)
        };
    "a fill is a byte too short":
        cuMemsetD8Async = |to: CUdeviceptr, byte: c_uchar, len: usize, stream: CUstream| {
            driver::cuMemsetD8Async(to, byte, len - 1, stream)
        };
    "a fill has the wrong byte":
        cuMemsetD8Async = |to: CUdeviceptr, byte: c_uchar, len: usize, stream: CUstream| {
            driver::cuMemsetD8Async(to, !byte, len, stream)
        };
    "fills are in the default stream":
        cuMemsetD8Async = |to: CUdeviceptr, byte: c_uchar, len: usize, _stream: CUstream| {
            driver::cuMemsetD8Async(to, byte, len, DEFAULT)
        };
    "streams wait for the default stream":
        cuStreamCreate = |stream: *mut CUstream, _flags: c_uint| driver::cuStreamCreate(stream, 0);
    "a stream is destroyed where it is created":
        cuStreamCreate = |stream: *mut CUstream, flags: c_uint| {
            driver::cuStreamCreate(stream, flags);
            driver::cuStreamDestroy_v2(stream.read())
        };
    "streams are not destroyed":
        cuStreamDestroy_v2 = |_stream: CUstream| SUCCESS;
    "events are not destroyed":
        cuEventDestroy_v2 = |_event: CUevent| SUCCESS;
    "device memory is not freed":
        cuMemFree_v2 = |_memory: CUdeviceptr| SUCCESS;
    "device memory is freed twice":
        cuMemFree_v2 = |memory: CUdeviceptr| {
            driver::cuMemFree_v2(memory);
            driver::cuMemFree_v2(memory)
        };
    "pinned memory is not freed":
        cuMemFreeHost = |_memory: *mut c_void| SUCCESS;
    "device memory is half as long":
        cuMemAlloc_v2 = |memory: *mut CUdeviceptr, len: usize| driver::cuMemAlloc_v2(memory, len.div_ceil(2));
    "pinned memory is half as long":
        cuMemHostAlloc = |memory: *mut *mut c_void, len: usize, flags: c_uint| {
            driver::cuMemHostAlloc(memory, len.div_ceil(2), flags)
        };
    "pinned memory has flags that were not asked for":
        cuMemHostAlloc = |memory: *mut *mut c_void, len: usize, _flags: c_uint| {
            driver::cuMemHostAlloc(memory, len, !CU_MEMHOSTALLOC_WRITECOMBINED)
        };
    "a launch has a block too few":
        cuLaunchKernel = |kernel: CUfunction, x: c_uint, y: c_uint, z: c_uint, threads: c_uint,
                          threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: CUstream,
                          arguments: *mut *mut c_void, extra: *mut *mut c_void| {
            if x == 1 {
                return SUCCESS;
            }
            driver::cuLaunchKernel(
                kernel, x - 1, y, z, threads, threads_y, threads_z, shared, stream, arguments, extra,
            )
        };
    "blocks have half as many threads":
        cuLaunchKernel = |kernel: CUfunction, x: c_uint, y: c_uint, z: c_uint, threads: c_uint,
                          threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: CUstream,
                          arguments: *mut *mut c_void, extra: *mut *mut c_void| {
            driver::cuLaunchKernel(
                kernel, x, y, z, threads / 2, threads_y, threads_z, shared, stream, arguments, extra,
            )
        };
    "threads are along another axis":
        cuLaunchKernel = |kernel: CUfunction, x: c_uint, y: c_uint, z: c_uint, threads: c_uint,
                          threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: CUstream,
                          arguments: *mut *mut c_void, extra: *mut *mut c_void| {
            driver::cuLaunchKernel(
                kernel, x, y, z, threads_y, threads, threads_z, shared, stream, arguments, extra,
            )
        };
    "launches are in the default stream":
        cuLaunchKernel = |kernel: CUfunction, x: c_uint, y: c_uint, z: c_uint, threads: c_uint,
                          threads_y: c_uint, threads_z: c_uint, shared: c_uint, _stream: CUstream,
                          arguments: *mut *mut c_void, extra: *mut *mut c_void| {
            driver::cuLaunchKernel(
                kernel, x, y, z, threads, threads_y, threads_z, shared, DEFAULT, arguments, extra,
            )
        };
    "the first argument is passed twice":
        cuLaunchKernel = |kernel: CUfunction, x: c_uint, y: c_uint, z: c_uint, threads: c_uint,
                          threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: CUstream,
                          arguments: *mut *mut c_void, extra: *mut *mut c_void| {
            arguments.add(1).write(arguments.read());
            driver::cuLaunchKernel(
                kernel, x, y, z, threads, threads_y, threads_z, shared, stream, arguments, extra,
            )
        };
    "the first argument begins a word too late":
        cuLaunchKernel = |kernel: CUfunction, x: c_uint, y: c_uint, z: c_uint, threads: c_uint,
                          threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: CUstream,
                          arguments: *mut *mut c_void, extra: *mut *mut c_void| {
            arguments.write(arguments.read().byte_add(8));
            driver::cuLaunchKernel(
                kernel, x, y, z, threads, threads_y, threads_z, shared, stream, arguments, extra,
            )
        };
    "another kernel is found":
        cuModuleGetFunction = |kernel: *mut CUfunction, module: CUmodule, _name: *const c_char| {
            driver::cuModuleGetFunction(kernel, module, c"no_such_kernel".as_ptr())
        };
    "the mode of the thread is not restored":
        cuThreadExchangeStreamCaptureMode = |mode: *mut CUstreamCaptureMode| {
            let code = driver::cuThreadExchangeStreamCaptureMode(mode);
            mode.cast::<u32>().write(2);
            code
        };
}
