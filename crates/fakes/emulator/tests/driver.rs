//! The emulated driver: right programs run in every schedule, and each wrong use is named.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the emulated driver checks its arguments"
)]
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;
#[path = "common/device.rs"]
mod device;

use std::ffi::{CString, c_void};
use std::ptr;
use std::thread;

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUmodule, CUstream};
use device::{Device, SUCCESS};
use zarrs_cuda_emulator::device::Schedule;
use zarrs_cuda_emulator::driver::{self, Inject, Live};

const SCHEDULES: [Schedule; 4] = [
    Schedule::Eager,
    Schedule::Latest,
    Schedule::Priority(1),
    Schedule::Priority(2),
];

const INVALID_VALUE: u32 = 1;
const INVALID_CONTEXT: u32 = 201;
const INVALID_PTX: u32 = 218;
const INVALID_HANDLE: u32 = 400;
const NOT_READY: u32 = 600;
const ILLEGAL_ADDRESS: u32 = 700;
const NOT_PERMITTED: u32 = 800;

fn read(pinned: *const u8, len: usize) -> Vec<u8> {
    unsafe { std::slice::from_raw_parts(pinned, len) }.to_vec()
}

#[test]
fn work_is_done_in_the_order_of_streams_and_events() {
    for schedule in SCHEDULES {
        let device = Device::new(schedule);
        let (from, to) = (device.pinned(&[7; 100]), device.pinned(&[0; 100]));
        let memory = device.memory(100);
        let (up, down, uploaded) = (device.stream(), device.stream(), device.event());
        unsafe {
            assert_eq!(
                driver::cuMemcpyHtoDAsync_v2(memory, from.cast(), 100, up),
                SUCCESS
            );
            assert_eq!(driver::cuMemsetD8Async(memory + 10, 9, 5, up), SUCCESS);
            assert_eq!(driver::cuEventRecord(uploaded, up), SUCCESS);
            assert_eq!(driver::cuStreamWaitEvent(down, uploaded, 0), SUCCESS);
            assert_eq!(
                driver::cuMemcpyDtoHAsync_v2(to.cast(), memory, 100, down),
                SUCCESS
            );
            assert_eq!(driver::cuStreamSynchronize(down), SUCCESS);
            assert_eq!(driver::cuEventQuery(uploaded), SUCCESS);
            assert_eq!(driver::cuStreamQuery(up), SUCCESS);
        }
        let mut expected = [7; 100];
        expected[10..15].fill(9);
        assert_eq!(read(to, 100), expected);
        unsafe {
            assert_eq!(driver::cuMemFree_v2(memory), SUCCESS);
            assert_eq!(driver::cuMemFreeHost(from.cast()), SUCCESS);
            assert_eq!(driver::cuMemFreeHost(to.cast()), SUCCESS);
            assert_eq!(driver::cuStreamDestroy_v2(up), SUCCESS);
            assert_eq!(driver::cuStreamDestroy_v2(down), SUCCESS);
            assert_eq!(driver::cuEventDestroy_v2(uploaded), SUCCESS);
        }
        device.is_right();
        assert_eq!(driver::live(device.number), Live::default());
        device.leave();
    }
}

#[test]
fn work_that_nothing_waits_for_is_late() {
    let device = Device::new(Schedule::Latest);
    let (from, to, stream) = (
        device.pinned(&[7; 8]),
        device.pinned(&[0; 8]),
        device.stream(),
    );
    let (memory, event) = (device.memory(8), device.event());
    unsafe {
        assert_eq!(
            driver::cuMemcpyHtoDAsync_v2(memory, from.cast(), 8, stream),
            SUCCESS
        );
        assert_eq!(
            driver::cuMemcpyDtoHAsync_v2(to.cast(), memory, 8, stream),
            SUCCESS
        );
        assert_eq!(driver::cuEventRecord(event, stream), SUCCESS);
        assert_eq!(driver::cuStreamQuery(stream), NOT_READY);
        assert_eq!(read(to, 8), [0; 8]);
        assert_eq!(driver::cuEventQuery(event), NOT_READY);
        assert_eq!(driver::cuEventSynchronize(event), SUCCESS);
    }
    assert_eq!(read(to, 8), [7; 8]);
    device.is_right();
    device.leave();
}

#[test]
fn what_was_freed_is_not_used() {
    let device = Device::new(Schedule::Eager);
    let (stream, event, memory) = (device.stream(), device.event(), device.memory(8));
    unsafe {
        assert_eq!(driver::cuEventDestroy_v2(event), SUCCESS);
        assert_eq!(driver::cuEventRecord(event, stream), INVALID_HANDLE);
        device.named("cuEventRecord: the event");
        device.named("was destroyed");
        assert_eq!(driver::cuEventDestroy_v2(event), INVALID_HANDLE);

        assert_eq!(driver::cuMemFree_v2(memory), SUCCESS);
        assert_eq!(driver::cuMemFree_v2(memory), INVALID_VALUE);
        device.named("was freed");
        assert_eq!(driver::cuMemsetD8Async(memory, 0, 8, stream), INVALID_VALUE);

        assert_eq!(driver::cuStreamDestroy_v2(stream), SUCCESS);
        assert_eq!(driver::cuStreamQuery(stream), INVALID_HANDLE);
        device.named("cuStreamQuery: the stream");
        let never = ptr::without_provenance_mut(0x1234);
        assert_eq!(driver::cuStreamQuery(never), INVALID_HANDLE);
        device.named("never existed");
        // A handle of another kind.
        assert_eq!(driver::cuEventQuery(device.stream().cast()), INVALID_HANDLE);
        device.named("is no event");
    }
    device.leave();
}

#[test]
fn what_was_never_recorded_is_not_waited_for() {
    let device = Device::new(Schedule::Eager);
    let (stream, event) = (device.stream(), device.event());
    let mut time = 0.0;
    unsafe {
        assert_eq!(driver::cuEventQuery(event), INVALID_HANDLE);
        device.named("cuEventQuery: the event was never recorded");
        assert_eq!(driver::cuEventSynchronize(event), INVALID_HANDLE);
        assert_eq!(driver::cuStreamWaitEvent(stream, event, 0), INVALID_HANDLE);
        device.named("cuStreamWaitEvent: the event was never recorded");
        assert_eq!(
            driver::cuEventElapsedTime(&raw mut time, event, event),
            INVALID_HANDLE
        );
        let mut untimed = ptr::null_mut();
        assert_eq!(driver::cuEventCreate(&raw mut untimed, 2), SUCCESS);
        assert_eq!(driver::cuEventRecord(untimed, stream), SUCCESS);
        assert_eq!(
            driver::cuEventElapsedTime(&raw mut time, untimed, untimed),
            INVALID_HANDLE
        );
        device.named("the event takes no time");
    }
    device.leave();
}

#[test]
fn a_stream_with_work_is_not_destroyed() {
    let device = Device::new(Schedule::Latest);
    let (stream, memory) = (device.stream(), device.memory(8));
    unsafe {
        assert_eq!(driver::cuMemsetD8Async(memory, 0, 8, stream), SUCCESS);
        assert_eq!(driver::cuStreamDestroy_v2(stream), SUCCESS);
    }
    device.named("cuStreamDestroy_v2: the stream is destroyed while it has work");
    device.leave();
}

#[test]
fn objects_belong_to_their_device() {
    let other = Device::new(Schedule::Eager);
    let (stream, event, memory) = (other.stream(), other.event(), other.memory(8));
    let device = Device::new(Schedule::Eager);
    let own = device.stream();
    unsafe {
        assert_eq!(driver::cuMemsetD8Async(memory, 0, 8, own), INVALID_VALUE);
        device.named("are in no device memory of the device");
        assert_eq!(driver::cuStreamQuery(stream), INVALID_HANDLE);
        device.named("is used in the context of device");
        assert_eq!(driver::cuEventRecord(event, own), INVALID_HANDLE);
        device.named("an event of device");
        assert_eq!(driver::cuMemFree_v2(memory), INVALID_VALUE);
    }
    device.leave();
    other.leave();
    // Without a context nothing works.
    let mut memory = 0;
    let code = unsafe { driver::cuMemAlloc_v2(&raw mut memory, 8) };
    assert_eq!(code, INVALID_CONTEXT);
}

#[test]
fn a_thread_leaves_no_context_behind() {
    let device = Device::new(Schedule::Eager);
    let number = device.number;
    device.leave();
    let context = device.context.expose_provenance();
    let push = move || {
        let context = ptr::with_exposed_provenance_mut(context);
        assert_eq!(unsafe { driver::cuCtxPushCurrent_v2(context) }, SUCCESS);
    };
    thread::spawn(push).join().unwrap();
    let violations = driver::violations(number);
    assert!(
        violations[0].contains("a thread ended with 1 contexts"),
        "{violations:?}"
    );
}

#[test]
fn copies_stay_within_memory_and_do_not_overlap() {
    let device = Device::new(Schedule::Eager);
    let (stream, memory) = (device.stream(), device.memory(100));
    let (pinned, pageable) = (device.pinned(&[0; 100]), [0_u8; 100]);
    unsafe {
        assert_eq!(
            driver::cuMemcpyHtoDAsync_v2(memory + 1, pinned.cast(), 100, stream),
            INVALID_VALUE
        );
        device.named("100 bytes at");
        let code = driver::cuMemcpyHtoDAsync_v2(memory, pageable.as_ptr().cast(), 100, stream);
        assert_eq!(code, INVALID_VALUE);
        device.named("are in no pinned memory");
        assert_eq!(
            driver::cuMemcpyDtoDAsync_v2(memory, memory + 10, 20, stream),
            INVALID_VALUE
        );
        device.named("overlap");
        assert_eq!(
            driver::cuMemsetD8Async(memory + 100, 0, 1, stream),
            INVALID_VALUE
        );
        assert_eq!(
            driver::cuMemFreeHost(ptr::without_provenance_mut(
                usize::try_from(memory).unwrap()
            )),
            INVALID_VALUE
        );
        device.named("device memory is freed as pinned memory");
    }
    device.leave();
}

/// A module whose kernel `test` writes a word.
fn module() -> String {
    let body =
        "\tcvta.to.global.u64 \t%rd1, %rd0;\n\tmov.u32 \t%r1, 7;\n\tst.global.u32 \t[%rd1], %r1;";
    common::module(32, 1, "", body)
}

fn load(text: &str) -> (u32, CUmodule) {
    let mut module = ptr::null_mut();
    let text = CString::new(text).unwrap();
    let (options, values) = (ptr::null_mut(), ptr::null_mut());
    let code = unsafe {
        driver::cuModuleLoadDataEx(&raw mut module, text.as_ptr().cast(), 0, options, values)
    };
    (code, module)
}

fn launch(kernel: CUfunction, threads: u32, stream: CUstream, address: CUdeviceptr) -> u32 {
    let mut address = address;
    let mut parameters: [*mut c_void; 1] = [(&raw mut address).cast()];
    let (parameters, extra) = (parameters.as_mut_ptr(), ptr::null_mut());
    unsafe { driver::cuLaunchKernel(kernel, 1, 1, 1, threads, 1, 1, 0, stream, parameters, extra) }
}

#[test]
fn a_kernel_that_leaves_its_memory_breaks_the_context() {
    let device = Device::new(Schedule::Eager);
    let (code, module) = load(&module());
    assert_eq!(code, SUCCESS);
    let mut kernel = ptr::null_mut();
    let name = c"test".as_ptr();
    let code = unsafe { driver::cuModuleGetFunction(&raw mut kernel, module, name) };
    assert_eq!(code, SUCCESS);
    let (stream, memory) = (device.stream(), device.memory(4));
    assert_eq!(launch(kernel, 64, stream, memory), 701);
    device.named("takes blocks of 32 threads");
    let before = driver::violations(device.number).len();
    assert_eq!(launch(kernel, 32, stream, memory), SUCCESS);
    assert_eq!(unsafe { driver::cuStreamSynchronize(stream) }, SUCCESS);
    assert_eq!(driver::violations(device.number).len(), before);
    // One byte beyond the end.
    launch(kernel, 32, stream, memory + 4);
    device.named("kernel test, block 0");
    assert_eq!(
        unsafe { driver::cuStreamSynchronize(stream) },
        ILLEGAL_ADDRESS
    );
    let mut more = 0;
    assert_eq!(
        unsafe { driver::cuMemAlloc_v2(&raw mut more, 8) },
        ILLEGAL_ADDRESS
    );
    device.leave();
}

#[test]
fn text_that_is_not_understood_is_refused() {
    let device = Device::new(Schedule::Eager);
    let wrong = module().replace("st.global.u32", "st.global.u33");
    assert_eq!(load(&wrong).0, INVALID_PTX);
    assert_eq!(load(&module().replace("sm_70", "sm_100")).0, 209);
    device.is_right();
    device.leave();
}

extern "C" fn calls_the_driver(code: *mut c_void) {
    let mut memory = 0;
    unsafe {
        code.cast::<u32>()
            .write(driver::cuMemAlloc_v2(&raw mut memory, 1));
    };
}

#[test]
fn functions_of_the_host_run_in_their_turn_and_do_not_call_the_driver() {
    let device = Device::new(Schedule::Latest);
    let (stream, mut code) = (device.stream(), u32::MAX);
    let function: unsafe extern "C" fn(*mut c_void) = calls_the_driver;
    let data = (&raw mut code).cast();
    assert_eq!(
        unsafe { driver::cuLaunchHostFunc(stream, Some(function), data) },
        SUCCESS
    );
    assert_eq!(code, u32::MAX);
    assert_eq!(unsafe { driver::cuStreamSynchronize(stream) }, SUCCESS);
    assert_eq!(code, NOT_PERMITTED);
    device.leave();
}

#[test]
fn calls_fail_when_they_are_told_to() {
    let device = Device::new(Schedule::Eager);
    let inject = |call, code| {
        let function = "cuMemAlloc_v2".to_owned();
        driver::inject(
            device.number,
            Inject {
                function,
                call,
                code,
            },
        );
    };
    inject(1, 2);
    inject(3, ILLEGAL_ADDRESS);
    let mut memory = 0;
    let codes = [0; 5].map(|_| unsafe { driver::cuMemAlloc_v2(&raw mut memory, 8) });
    assert_eq!(
        codes,
        [SUCCESS, 2, SUCCESS, ILLEGAL_ADDRESS, ILLEGAL_ADDRESS]
    );
    let calls = driver::calls(device.number);
    assert!(calls.contains(&("cuMemAlloc_v2", 5)), "{calls:?}");
    // The context of a broken device can still be popped.
    device.leave();
    device.is_right();
}
