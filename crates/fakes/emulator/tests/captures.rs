//! Captures of streams into graphs: which calls they forbid, and which streams belong to them.
//!
//! A capture concerns all threads of a process. So this is one test, in a program of its own.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the emulated driver checks its arguments"
)]
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "common/device.rs"]
mod device;

use std::ptr;
use std::thread;

use cudarc::driver::sys::{CUstreamCaptureMode, CUstreamCaptureStatus};
use device::{Device, SUCCESS};
use zarrs_cuda_emulator::device::Schedule;
use zarrs_cuda_emulator::driver;

const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;
const UNJOINED: u32 = 904;
const CAPTURED_EVENT: u32 = 907;

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// Returns whether a thread may allocate while `stream` is captured, and the code of the capture.
fn capture(
    device: &Device,
    captured: CUstreamCaptureMode,
    thread_mode: CUstreamCaptureMode,
    elsewhere: bool,
) -> (u32, u32) {
    let (stream, mut graph) = (device.stream(), ptr::null_mut());
    assert_eq!(
        unsafe { driver::cuStreamBeginCapture_v2(stream, captured) },
        SUCCESS
    );
    let allocate = |context: usize| {
        let mut mode = thread_mode;
        let (mut memory, mut popped) = (0, ptr::null_mut());
        unsafe {
            driver::cuCtxPushCurrent_v2(ptr::with_exposed_provenance_mut(context));
            driver::cuThreadExchangeStreamCaptureMode(&raw mut mode);
            let code = driver::cuMemAlloc_v2(&raw mut memory, 8);
            driver::cuThreadExchangeStreamCaptureMode(&raw mut mode);
            driver::cuCtxPopCurrent_v2(&raw mut popped);
            code
        }
    };
    let context = device.context.expose_provenance();
    let code = if elsewhere {
        thread::scope(|scope| scope.spawn(|| allocate(context)).join().unwrap())
    } else {
        allocate(context)
    };
    (code, unsafe {
        driver::cuStreamEndCapture(stream, &raw mut graph)
    })
}

#[test]
fn captures_forbid_what_the_documentation_says() {
    let device = Device::new(Schedule::Eager);
    let refused = (UNSUPPORTED, INVALIDATED);
    let fine = (SUCCESS, SUCCESS);
    // The modes of the capture and of the thread; on the thread of the capture, and on another.
    for (captured, thread, own, other) in [
        (GLOBAL, GLOBAL, refused, refused),
        (GLOBAL, THREAD_LOCAL, refused, fine),
        (GLOBAL, RELAXED, fine, fine),
        (THREAD_LOCAL, GLOBAL, refused, fine),
        (THREAD_LOCAL, THREAD_LOCAL, refused, fine),
        (RELAXED, GLOBAL, fine, fine),
    ] {
        let modes = format!("{captured:?}, {thread:?}");
        assert_eq!(capture(&device, captured, thread, false), own, "{modes}");
        assert_eq!(
            capture(&device, captured, thread, true),
            other,
            "{modes}, elsewhere"
        );
    }

    // Work in the stream becomes a graph, and does not run.
    let (stream, other, event) = (device.stream(), device.stream(), device.event());
    let (memory, mut graph) = (device.memory(8), ptr::null_mut());
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    unsafe {
        assert_eq!(driver::cuStreamBeginCapture_v2(stream, RELAXED), SUCCESS);
        assert_eq!(driver::cuMemsetD8Async(memory, 0, 8, stream), SUCCESS);
        assert_eq!(driver::cuEventRecord(event, stream), SUCCESS);
        assert_eq!(driver::cuEventQuery(event), CAPTURED_EVENT);
        assert_eq!(
            driver::cuStreamIsCapturing(stream, &raw mut status),
            SUCCESS
        );
        assert_eq!(
            status,
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
        );
        // A stream that waits for an event of a capture belongs to it.
        assert_eq!(driver::cuStreamIsCapturing(other, &raw mut status), SUCCESS);
        assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        assert_eq!(driver::cuStreamWaitEvent(other, event, 0), SUCCESS);
        assert_eq!(driver::cuStreamIsCapturing(other, &raw mut status), SUCCESS);
        assert_eq!(
            status,
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
        );
        assert_eq!(driver::cuStreamEndCapture(stream, &raw mut graph), UNJOINED);
        // To synchronise with a captured stream invalidates the capture.
        assert_eq!(driver::cuStreamBeginCapture_v2(stream, RELAXED), SUCCESS);
        assert_eq!(driver::cuStreamSynchronize(stream), UNSUPPORTED);
        assert_eq!(
            driver::cuStreamEndCapture(stream, &raw mut graph),
            INVALIDATED
        );
    }
    device.is_right();
    device.leave();
}
