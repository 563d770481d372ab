//! Applications that capture a stream into a graph while this crate works.

use std::ptr;

use zarrs_cuda_emulator::driver::Inject;

use cudarc::driver::sys::{CUgraph, CUstream, CUstream_flags, CUstreamCaptureMode};

use super::*;

/// A capture of the application on another thread, in the mode in which CUDA refuses most.
#[test]
fn a_capture_of_the_application_stays_valid() {
    let driver = emulated::driver(config(Schedule::Latest));
    let device = driver.device().ordinal;
    driver.enter().unwrap();
    let mut stream: CUstream = ptr::null_mut();
    // SAFETY: the driver writes a stream.
    let code = unsafe {
        driver::cuStreamCreate(
            &raw mut stream,
            CUstream_flags::CU_STREAM_NON_BLOCKING as u32,
        )
    };
    assert_eq!(code, 0);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream was created just now.
    assert_eq!(unsafe { driver::cuStreamBeginCapture_v2(stream, mode) }, 0);

    run(Arc::clone(&driver))
        .expect("no panic")
        .expect("no fault");
    let handle = stream.expose_provenance() as u64;
    // SAFETY: the stream lives until it is destroyed below.
    assert!(unsafe { driver.is_captured(handle) }.unwrap());

    let mut graph: CUgraph = ptr::null_mut();
    // SAFETY: the driver writes a graph.
    let code = unsafe { driver::cuStreamEndCapture(stream, &raw mut graph) };
    assert_eq!(code, 0, "the capture is no longer valid");
    let is_captured = || {
        // SAFETY: as above.
        unsafe { driver.is_captured(handle) }
    };
    assert!(!is_captured().unwrap());
    // The driver returns 906 or 908 for the null stream while a stream that blocks it is captured.
    // Any other code is an error.
    for (code, expected) in [(906, Some(true)), (908, Some(true)), (400, None)] {
        let function = "cuStreamIsCapturing";
        let mut calls = driver::calls(device).into_iter();
        let fault = Inject {
            function: function.to_owned(),
            call: calls
                .find(|(name, _)| *name == function)
                .map_or(0, |(_, calls)| calls),
            code,
        };
        driver::inject(device, fault);
        assert_eq!(is_captured().ok(), expected, "code {code}");
    }
    assert!(!is_captured().unwrap());
    // SAFETY: nothing uses the stream.
    assert_eq!(unsafe { driver::cuStreamDestroy_v2(stream) }, 0);
    driver.leave().unwrap();
    assert_eq!(driver::violations(device), [""; 0]);
}
