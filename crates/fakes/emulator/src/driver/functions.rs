//! The functions, by NVIDIA's names.

#![allow(non_snake_case, reason = "NVIDIA's names")]
#![allow(
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    missing_docs,
    reason = "NVIDIA's documentation describes the functions"
)]

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::thread;

use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_WRITECOMBINED, CUDA_MEMCPY3D, CUcontext, CUdevice, CUdevice_attribute,
    CUdeviceptr, CUevent, CUevent_flags, CUfunction, CUgraph, CUhostFn, CUjit_option, CUmemorytype,
    CUmodule, CUpointer_attribute, CUstream, CUstream_flags, CUstreamCaptureMode,
    CUstreamCaptureStatus,
};

use super::capture;
use super::codes::{self, Code};
use super::device::{Action, Ends, HostFunction, Recorded};
use super::rows;
use super::world::{self, Event, MODE, Object, Of, Stream, World, call};
use super::{Failure, wrong};
use crate::Module;
use crate::device::Kind;

/// The name of every emulated device.
pub const DEVICE_NAME: &str = "Emulated device";

/// Returns an opaque pointer for a handle.
fn opaque<T>(handle: u64) -> *mut T {
    ptr::without_provenance_mut(handle as usize)
}

/// Returns the number of a handle.
fn handle<T>(pointer: *mut T) -> u64 {
    pointer.addr() as u64
}

/// Writes a result.
fn write<T>(to: *mut T, value: T) -> Result<(), Failure> {
    if to.is_null() {
        return wrong(codes::INVALID_VALUE, "the result's address is null");
    }
    // SAFETY: the caller of the function promises that the address is valid.
    unsafe { to.write(value) };
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> Code {
    call("cuInit", Of::Nothing, |world, _| {
        if flags != 0 {
            return wrong(codes::INVALID_VALUE, "the flags are not 0");
        }
        world.initialize()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    call("cuDriverGetVersion", Of::Nothing, |_, _| {
        write(version, world::version())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: Code, text: *mut *const c_char) -> Code {
    describe(code, text, |(name, _)| name)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: Code, text: *mut *const c_char) -> Code {
    describe(code, text, |(_, description)| description)
}

fn describe(
    code: Code,
    text: *mut *const c_char,
    choose: impl FnOnce((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Code {
    let found = codes::describe(code).map(choose);
    let pointer = found.map_or(ptr::null(), CStr::as_ptr);
    if write(text, pointer).is_err() || found.is_none() {
        return codes::INVALID_VALUE;
    }
    codes::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    call("cuDeviceGetCount", Of::Driver, |world, _| {
        write(count, (world.devices.len() as u32).cast_signed())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> Code {
    call("cuDeviceGet", Of::Device(ordinal), |_, _| {
        write(device, ordinal)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> Code {
    call(
        "cuDeviceGetAttribute",
        Of::Device(device),
        |world, device| {
            let config = &world.devices[device].config;
            let (major, minor) = config.compute_capability;
            let number = match attribute {
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => major,
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => minor,
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => {
                    config.multiprocessors
                }
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH => config.largest_pitch,
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID
                | CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID
                | CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => {
                    let [domain, bus, device] = config.pci.ok_or(codes::NOT_SUPPORTED)?;
                    match attribute {
                        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => domain,
                        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => bus,
                        _ => device,
                    }
                }
                _ => {
                    let message = format!("{attribute:?} is not known here");
                    return wrong(codes::INVALID_VALUE, &message);
                }
            };
            write(value, number.cast_signed())
        },
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) -> Code {
    call("cuDeviceGetName", Of::Device(device), |_, _| {
        let text = format!("{DEVICE_NAME}\0");
        if name.is_null() || usize::try_from(len).is_ok_and(|len| len < text.len()) {
            return wrong(codes::INVALID_VALUE, "there is no room for the name");
        }
        // SAFETY: the caller of the function promises `len` bytes.
        unsafe { name.cast::<u8>().copy_from(text.as_ptr(), text.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> Code {
    call(
        "cuDeviceTotalMem_v2",
        Of::Device(device),
        |world, device| write(bytes, world.devices[device].config.memory),
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut CUcontext,
    device: CUdevice,
) -> Code {
    call(
        "cuDevicePrimaryCtxRetain",
        Of::Device(device),
        |world, device| {
            let retained = world.devices[device].context.unwrap_or_else(|| {
                let new = world.insert(Object::Context(device));
                world.devices[device].context = Some(new);
                new
            });
            write(context, opaque(retained))
        },
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(context: CUcontext) -> Code {
    let context = handle(context);
    call("cuCtxPushCurrent_v2", Of::Context(context), |_, _| {
        World::push(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> Code {
    call("cuCtxPopCurrent_v2", Of::Top, |_, _| {
        let top = World::pop().ok_or(codes::INVALID_CONTEXT)?;
        write(context, opaque(top))
    })
}

/// Works before `cuInit`, which an application may not have called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> Code {
    call("cuCtxGetCurrent", Of::Nothing, |world, _| {
        if !world.is_initialized {
            return Err(codes::NOT_INITIALIZED.into());
        }
        write(context, World::top().map_or(ptr::null_mut(), opaque))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> Code {
    call("cuCtxGetDevice", Of::Current, |_, current| {
        write(device, CUdevice::try_from(current).unwrap_or(0))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    call("cuMemGetInfo_v2", Of::Current, |world, device| {
        write(free, world.devices[device].free_bytes(Kind::Device))?;
        write(total, world.devices[device].config.memory)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut CUdeviceptr, len: usize) -> Code {
    call("cuMemAlloc_v2", Of::Current, |world, device| {
        world.allow()?;
        write(address, world.devices[device].allocate(len, Kind::Device)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> Code {
    call("cuMemFree_v2", Of::Current, |world, device| {
        world.allow()?;
        world.devices[device].free(address, Kind::Device)
    })
}

/// An address that the driver does not know is no error, as NVIDIA documents: its attributes are 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *mut CUpointer_attribute,
    data: *mut *mut c_void,
    pointer: CUdeviceptr,
) -> Code {
    call("cuPointerGetAttributes", Of::Current, |world, _| {
        let found = world
            .devices
            .iter()
            .enumerate()
            .find_map(|(number, device)| {
                let (first, offset) = device.memory.containing(pointer)?;
                let allocation = device.memory.get(first)?;
                // Memory of another device may lie behind it.
                (offset < allocation.block.len()).then_some((number, first, allocation))
            });
        for at in 0..count as usize {
            // SAFETY: the caller of the function promises that there are `count` attributes and addresses.
            let (attribute, to) = unsafe { (*attributes.add(at), *data.add(at)) };
            match attribute {
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                    let kind = found.map_or(0, |(_, _, allocation)| match allocation.kind {
                        Kind::Device => CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint,
                        Kind::Pinned => CUmemorytype::CU_MEMORYTYPE_HOST as c_uint,
                    });
                    write(to.cast::<c_uint>(), kind)?;
                }
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
                    let number = found.map_or(-2, |(number, ..)| {
                        c_int::try_from(number).unwrap_or(c_int::MAX)
                    });
                    write(to.cast::<c_int>(), number)?;
                }
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => {
                    write(to.cast::<u64>(), found.map_or(0, |(_, first, _)| first))?;
                }
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE => {
                    let len = found.map_or(0, |(_, _, allocation)| allocation.block.len());
                    write(to.cast::<usize>(), len)?;
                }
                other => {
                    let message = format!("the attribute {other:?} is not known here");
                    return wrong(codes::INVALID_VALUE, &message);
                }
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(
    address: *mut *mut c_void,
    len: usize,
    flags: c_uint,
) -> Code {
    call("cuMemHostAlloc", Of::Current, |world, device| {
        world.allow()?;
        if flags & !CU_MEMHOSTALLOC_WRITECOMBINED != 0 {
            return wrong(
                codes::INVALID_VALUE,
                &format!("the flags {flags} are not known here"),
            );
        }
        let first = world.devices[device].allocate(len, Kind::Pinned)?;
        write(address, ptr::with_exposed_provenance_mut(first as usize))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> Code {
    call("cuMemFreeHost", Of::Current, |world, device| {
        world.allow()?;
        world.devices[device].free(handle(address), Kind::Pinned)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> Code {
    call("cuStreamCreate", Of::Current, |world, device| {
        if flags != CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint {
            let message = "streams that wait for the default stream are not emulated";
            return wrong(codes::NOT_SUPPORTED, message);
        }
        let number = world.devices[device].create_stream();
        let new = world.insert(Object::Stream(Stream { device, number }));
        write(stream, opaque(new))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> Code {
    call("cuStreamDestroy_v2", Of::Current, |world, device| {
        let handle = handle(stream);
        if handle <= 2 {
            return wrong(codes::INVALID_HANDLE, "a default stream is destroyed");
        }
        let own = world.stream(handle, device)?;
        if world.captures.of(handle).is_some() {
            return wrong(
                codes::STREAM_CAPTURE_UNSUPPORTED,
                "the stream is being captured",
            );
        }
        world.remove(handle);
        if !world.devices[device].is_idle(own.number) {
            return wrong(codes::SUCCESS, "the stream is destroyed while it has work");
        }
        Ok(())
    })
}

/// Returns the stream of a call that enqueues work; `None` if the stream is being captured, and the
/// work becomes a node of a graph.
fn enqueues(world: &mut World, stream: CUstream, device: usize) -> Result<Option<Stream>, Failure> {
    let found = world.stream(handle(stream), device)?;
    match world.captures.of(handle(stream)) {
        None => Ok(Some(found)),
        Some(capture) if capture.is_invalid => Err(codes::STREAM_CAPTURE_INVALIDATED.into()),
        Some(_) => Ok(None),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> Code {
    call("cuCtxSynchronize", Of::Current, |world, device| {
        world.allow()?;
        world.devices[device].drain_all();
        finished(world, device)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(stream: CUstream) -> Code {
    call("cuStreamQuery", Of::Current, |world, device| {
        world.allow()?;
        let own = world.stream(handle(stream), device)?;
        refuse_captured(world, stream)?;
        if world.devices[device].is_idle(own.number) {
            return Ok(());
        }
        Err(codes::NOT_READY.into())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> Code {
    call("cuStreamSynchronize", Of::Current, |world, device| {
        world.allow()?;
        let own = world.stream(handle(stream), device)?;
        refuse_captured(world, stream)?;
        world.devices[device].drain(own.number);
        finished(world, device)
    })
}

/// Refuses a call that cannot be part of a capture.
fn refuse_captured(world: &mut World, stream: CUstream) -> Result<(), Failure> {
    match world.captures.of(handle(stream)) {
        None => Ok(()),
        Some(capture) => {
            capture.is_invalid = true;
            Err(codes::STREAM_CAPTURE_UNSUPPORTED.into())
        }
    }
}

/// Returns the error of work that ran during a call.
fn finished(world: &World, device: usize) -> Result<(), Failure> {
    world.devices[device]
        .broken
        .map_or(Ok(()), |code| Err(code.into()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(
    stream: CUstream,
    event: CUevent,
    flags: c_uint,
) -> Code {
    call("cuStreamWaitEvent", Of::Current, |world, device| {
        if flags != 0 {
            return wrong(codes::INVALID_VALUE, "the flags are not 0");
        }
        let Event {
            recorded, captured, ..
        } = world.event(handle(event), device)?.clone();
        let own = world.stream(handle(stream), device)?;
        if let Some(capture) = captured.and_then(|number| world.captures.by_number(number)) {
            let stream = handle(stream);
            if capture.origin != stream && !capture.joined.contains(&stream) {
                capture.joined.push(stream);
            }
            return Ok(());
        }
        refuse_captured(world, stream)?;
        let Some(recorded) = recorded else {
            return wrong(codes::INVALID_HANDLE, "the event was never recorded");
        };
        world.devices[device].wait(own.number, &recorded);
        finished(world, device)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> Code {
    call("cuEventCreate", Of::Current, |world, device| {
        let untimed = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        let known = untimed | CUevent_flags::CU_EVENT_BLOCKING_SYNC as c_uint;
        if flags & !known != 0 {
            return wrong(
                codes::INVALID_VALUE,
                &format!("the flags {flags} are not known here"),
            );
        }
        let new = world.insert(Object::Event(Event {
            device,
            takes_time: flags & untimed == 0,
            recorded: None,
            captured: None,
        }));
        write(event, opaque(new))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> Code {
    call("cuEventDestroy_v2", Of::Current, |world, device| {
        world.event(handle(event), device)?;
        world.remove(handle(event));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> Code {
    call("cuEventRecord", Of::Current, |world, device| {
        world.event(handle(event), device)?;
        let own = enqueues(world, stream, device)?;
        let capture = world
            .captures
            .of(handle(stream))
            .map(|capture| capture.number);
        let recorded = own.map(|own| world.devices[device].record(own.number));
        let event = world.event(handle(event), device)?;
        (event.recorded, event.captured) = (recorded, capture);
        finished(world, device)
    })
}

/// Returns the last record of an event, for a call that asks whether it has happened.
fn recorded(world: &mut World, event: CUevent, device: usize) -> Result<Recorded, Failure> {
    let Event {
        recorded, captured, ..
    } = world.event(handle(event), device)?.clone();
    if captured.is_some() {
        return Err(codes::CAPTURED_EVENT.into());
    }
    recorded.map_or_else(
        || wrong(codes::INVALID_HANDLE, "the event was never recorded"),
        Ok,
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: CUevent) -> Code {
    call("cuEventQuery", Of::Current, |world, device| {
        world.allow()?;
        let recorded = recorded(world, event, device)?;
        let has_happened = world.devices[device].query(&recorded);
        finished(world, device)?;
        if has_happened {
            return Ok(());
        }
        Err(codes::NOT_READY.into())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> Code {
    call("cuEventSynchronize", Of::Current, |world, device| {
        world.allow()?;
        let recorded = recorded(world, event, device)?;
        world.devices[device].synchronize(&recorded);
        finished(world, device)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(
    milliseconds: *mut f32,
    begin: CUevent,
    end: CUevent,
) -> Code {
    call("cuEventElapsedTime", Of::Current, |world, device| {
        let mut time = |event| {
            if !world.event(handle(event), device)?.takes_time {
                return wrong(codes::INVALID_HANDLE, "the event takes no time");
            }
            let recorded = recorded(world, event, device)?;
            recorded.time.get().copied().ok_or(codes::NOT_READY.into())
        };
        let (begin, end) = (time(begin)?, time(end)?);
        let microseconds = end.cast_signed().saturating_sub(begin.cast_signed()) / 1000;
        let microseconds = i32::try_from(microseconds).unwrap_or(i32::MAX);
        write(milliseconds, (f64::from(microseconds) / 1e3) as f32)
    })
}

/// Enqueues a copy.
fn copy(name: &'static str, ends: Ends, from: u64, to: u64, len: usize, stream: CUstream) -> Code {
    call(name, Of::Current, |world, device| {
        let stream = enqueues(world, stream, device)?;
        let device = &mut world.devices[device];
        device.bytes(from, len, ends.from)?;
        device.bytes(to, len, ends.to)?;
        if from < to.saturating_add(len as u64) && to < from.saturating_add(len as u64) {
            return wrong(codes::INVALID_VALUE, "the two ends of the copy overlap");
        }
        if let Some(stream) = stream {
            let action = Action::Copy {
                ends,
                from,
                to,
                len,
            };
            device.enqueue(stream.number, None, action);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    len: usize,
    stream: CUstream,
) -> Code {
    let ends = Ends {
        from: Kind::Pinned,
        to: Kind::Device,
    };
    copy(
        "cuMemcpyHtoDAsync_v2",
        ends,
        from.addr() as u64,
        to,
        len,
        stream,
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    len: usize,
    stream: CUstream,
) -> Code {
    let ends = Ends {
        from: Kind::Device,
        to: Kind::Pinned,
    };
    copy(
        "cuMemcpyDtoHAsync_v2",
        ends,
        from,
        to.addr() as u64,
        len,
        stream,
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
    stream: CUstream,
) -> Code {
    let ends = Ends {
        from: Kind::Device,
        to: Kind::Device,
    };
    copy("cuMemcpyDtoDAsync_v2", ends, from, to, len, stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D, stream: CUstream) -> Code {
    call("cuMemcpy3DAsync_v2", Of::Current, |world, device| {
        let stream = enqueues(world, stream, device)?;
        if copy.is_null() {
            return wrong(
                codes::INVALID_VALUE,
                "the address of the parameters is null",
            );
        }
        // SAFETY: the caller of the function promises that the address is valid.
        let copy = unsafe { copy.read() };
        let device = &mut world.devices[device];
        let action = rows::action(&copy, device)?;
        if let Some(stream) = stream {
            device.enqueue(stream.number, None, action);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    byte: c_uchar,
    len: usize,
    stream: CUstream,
) -> Code {
    call("cuMemsetD8Async", Of::Current, |world, device| {
        let stream = enqueues(world, stream, device)?;
        let device = &mut world.devices[device];
        device.bytes(to, len, Kind::Device)?;
        if let Some(stream) = stream {
            device.enqueue(stream.number, None, Action::Fill { to, len, byte });
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: CUstream,
    function: CUhostFn,
    data: *mut c_void,
) -> Code {
    call("cuLaunchHostFunc", Of::Current, |world, device| {
        let stream = enqueues(world, stream, device)?;
        let Some(function) = function else {
            return wrong(codes::INVALID_VALUE, "the function's address is null");
        };
        if let Some(stream) = stream {
            let action = Action::Host(HostFunction { function, data });
            world.devices[device].enqueue(stream.number, None, action);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> Code {
    call("cuModuleLoadDataEx", Of::Current, |world, device| {
        world.allow()?;
        if image.is_null() {
            return wrong(codes::INVALID_VALUE, "the image's address is null");
        }
        // SAFETY: the caller of the function promises a text that ends with NUL.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
        let (major, minor) = world.devices[device].config.compute_capability;
        if target(&text).is_none_or(|target| target > 10 * major + minor) {
            return Err(codes::NO_BINARY_FOR_GPU.into());
        }
        match Module::parse(&text) {
            Ok(parsed) => {
                let new = world.insert(Object::Module(device, Arc::new(parsed)));
                write(module, opaque(new))
            }
            Err(error) => {
                // SAFETY: the caller of the function promises `count` options and values.
                unsafe { write_log(&error, count as usize, options, values) };
                Err(codes::INVALID_PTX.into())
            }
        }
    })
}

/// Returns the architecture for which a module was compiled: 10 × major + minor.
fn target(text: &str) -> Option<u32> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(".target sm_"))?;
    let end = line
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(line.len());
    line[..end].parse().ok()
}

/// Writes an error into the log, if the options name one.
///
/// # Safety
/// There are `count` options and values. The log has as many bytes as the options say.
unsafe fn write_log(
    error: &str,
    count: usize,
    options: *const CUjit_option,
    values: *const *mut c_void,
) {
    let value = |option: CUjit_option| {
        // SAFETY: the caller's promise.
        (0..count).find_map(|at| unsafe {
            (options.add(at).read() == option).then(|| values.add(at).read())
        })
    };
    let log = value(CUjit_option::CU_JIT_ERROR_LOG_BUFFER);
    let size = value(CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
    if let (Some(log), Some(size)) = (log, size) {
        let Some(most) = size.addr().checked_sub(1) else {
            return;
        };
        let len = error.len().min(most);
        // SAFETY: the caller's promise. The text and its NUL fit.
        unsafe {
            log.cast::<u8>().copy_from(error.as_ptr(), len);
            log.cast::<u8>().add(len).write(0);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> Code {
    call("cuModuleGetFunction", Of::Current, |world, device| {
        let loaded = match world.get(handle(module), "module")? {
            Object::Module(of, loaded) if *of == device => Arc::clone(loaded),
            _ => {
                return wrong(
                    codes::INVALID_HANDLE,
                    "this is no module of the current context",
                );
            }
        };
        if name.is_null() {
            return wrong(codes::INVALID_VALUE, "the kernel's name is null");
        }
        // SAFETY: the caller of the function promises a text that ends with NUL.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let kernels = loaded.kernels().iter();
        let Some(number) = kernels.clone().position(|kernel| kernel.name() == name) else {
            return Err(codes::NOT_FOUND.into());
        };
        let new = world.insert(Object::Function(device, loaded, number));
        write(function, opaque(new))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    threads: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    call("cuLaunchKernel", Of::Current, |world, device| {
        let (module, kernel) = match world.get(handle(function), "kernel")? {
            Object::Function(of, module, kernel) if *of == device => (Arc::clone(module), *kernel),
            _ => {
                return wrong(
                    codes::INVALID_HANDLE,
                    "this is no kernel of the current context",
                );
            }
        };
        let stream = enqueues(world, stream, device)?;
        if [grid_y, grid_z, threads_y, threads_z] != [1; 4] || shared != 0 || !extra.is_null() {
            return wrong(
                codes::INVALID_VALUE,
                "a launch has one dimension, and no dynamic shared memory or extra options here",
            );
        }
        let own = &module.kernels()[kernel];
        if threads != own.threads() {
            let message = format!(
                "kernel {} takes blocks of {} threads, not of {threads}",
                own.name(),
                own.threads()
            );
            return wrong(codes::LAUNCH_OUT_OF_RESOURCES, &message);
        }
        if grid == 0 || grid > i32::MAX.cast_unsigned() {
            return wrong(codes::INVALID_VALUE, &format!("a grid of {grid} blocks"));
        }
        if parameters.is_null() {
            return wrong(
                codes::INVALID_VALUE,
                "the address of the parameters is null",
            );
        }
        let arguments: Vec<Vec<u8>> = own
            .parameters()
            .enumerate()
            .map(|(number, len)| {
                let mut bytes = vec![0; len];
                // SAFETY: the caller of the function promises a pointer for each parameter, to as
                // many bytes as the parameter has.
                unsafe {
                    let from = parameters.add(number).read().cast::<u8>();
                    bytes.as_mut_ptr().copy_from(from, len);
                }
                bytes
            })
            .collect();
        if let Some(stream) = stream {
            let action = Action::Launch {
                module,
                kernel,
                grid,
                threads,
                arguments,
            };
            world.devices[device].enqueue(stream.number, None, action);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) -> Code {
    call("cuThreadExchangeStreamCaptureMode", Of::Driver, |_, _| {
        let mode = mode.cast::<u32>();
        if mode.is_null() {
            return wrong(codes::INVALID_VALUE, "the mode's address is null");
        }
        // SAFETY: the caller of the function promises that the address is valid.
        let new = unsafe { mode.read() };
        if new > capture::RELAXED {
            return wrong(codes::INVALID_VALUE, &format!("{new} is no mode"));
        }
        write(mode, MODE.replace(new))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(
    stream: CUstream,
    mode: CUstreamCaptureMode,
) -> Code {
    call("cuStreamBeginCapture_v2", Of::Current, |world, device| {
        world.stream(handle(stream), device)?;
        refuse_captured(world, stream)?;
        if handle(stream) <= 1 {
            return Err(codes::STREAM_CAPTURE_UNSUPPORTED.into());
        }
        let thread = thread::current().id();
        world.captures.begin(handle(stream), mode as u32, thread);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
) -> Code {
    call("cuStreamIsCapturing", Of::Current, |world, device| {
        world.stream(handle(stream), device)?;
        let is_invalid = world
            .captures
            .of(handle(stream))
            .map(|capture| capture.is_invalid);
        write(
            status,
            match is_invalid {
                None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
                Some(false) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
                Some(true) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            },
        )
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> Code {
    call("cuStreamEndCapture", Of::Current, |world, device| {
        world.stream(handle(stream), device)?;
        let ended = world.captures.end(handle(stream), thread::current().id());
        write(graph, ptr::null_mut())?;
        ended.map_err(Into::into)
    })
}
