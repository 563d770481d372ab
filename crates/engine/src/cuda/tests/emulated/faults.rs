//! Every function fails, with every class of error, at its first call, one in the middle and the
//! last: there is an error or the right bytes, and afterwards the device works unless it is broken.

use zarrs_cuda_emulator::driver::Inject;

use super::*;

/// `CUDA_ERROR_OUT_OF_MEMORY`, an error of the call alone, and one after which nothing works.
const OUT_OF_MEMORY: u32 = 2;
const INVALID_VALUE: u32 = 1;
const ILLEGAL_ADDRESS: u32 = 700;

fn check(function: &'static str, call: usize, code: u32) {
    let what = format!("{function}, call {call}, code {code}");
    let driver = emulated::driver(config(Schedule::Latest));
    let device = driver.device().ordinal;
    driver::inject(
        device,
        Inject {
            function: function.to_owned(),
            // Opening the device made calls already.
            call,
            code,
        },
    );
    // A panic is a wrong result, or a defect.
    let result = run(Arc::clone(&driver)).unwrap_or_else(|_| panic!("{what}: it panicked"));
    if let Err(error) = &result {
        assert!(matches!(error, EngineError::Device(_)), "{what}: {error}");
    }
    let again = run(driver).unwrap_or_else(|_| panic!("{what}: it panicked afterwards"));
    if code == ILLEGAL_ADDRESS || (function, code) == ("cuModuleLoadDataEx", INVALID_VALUE) {
        // A module that was refused once is not tried again.
        assert!(
            again.is_err(),
            "{what}: the device works although it is broken"
        );
    } else {
        again.unwrap_or_else(|error| panic!("{what}: afterwards {error}"));
        // Resources that the driver refused to free are left, and those that may still be in use.
        let live = driver::live(device);
        assert!(
            FREES.contains(&function) || live == Live::default(),
            "{what}: {live:?}"
        );
    }
    // Consequences of the fault that no caller can avoid.
    let allowed = match function {
        "cuCtxPopCurrent_v2" => "a thread ended with 1 contexts",
        "cuEventRecord" | "cuEventQuery" => "destroyed while it has work",
        _ => "",
    };
    let mut violations = driver::violations(device);
    violations.retain(|violation| allowed.is_empty() || !violation.contains(allowed));
    assert!(violations.is_empty(), "{what}: {violations:#?}");
}

/// Functions whose failure leaves resources.
const FREES: [&str; 8] = [
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuStreamDestroy_v2",
];

#[test]
fn every_function_may_fail() {
    let (before, after) = {
        let driver = emulated::driver(config(Schedule::Latest));
        let device = driver.device().ordinal;
        let before = driver::calls(device);
        run(driver).expect("no panic").expect("no fault");
        (before, driver::calls(device))
    };
    let mut tried = 0;
    for (function, count) in after {
        let opened = before.iter().find(|(name, _)| *name == function);
        let first = opened.map_or(0, |(_, count)| *count);
        let mut calls = vec![first, usize::midpoint(first, count), count - 1];
        if function == "cuEventQuery" {
            // How often a wait asks depends on time: a later call may be one of the second run.
            calls.truncate(1);
        }
        calls.dedup();
        for call in calls
            .into_iter()
            .filter(|call| (first..count).contains(call))
        {
            for code in [OUT_OF_MEMORY, INVALID_VALUE, ILLEGAL_ADDRESS] {
                check(function, call, code);
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{tried}");
}
