//! The result codes of the CUDA driver, and the fault that each code means.

use super::{
    functions::{Code, Functions},
    hints,
};
use crate::cuda::driver::Fault;
use cudarc::driver::sys::CUresult;
use std::{
    ffi::{CStr, c_char},
    fmt::Write as _,
    ops::RangeInclusive,
    ptr,
};

pub(super) const SUCCESS: Code = CUresult::CUDA_SUCCESS as Code;
pub(super) const NOT_READY: Code = CUresult::CUDA_ERROR_NOT_READY as Code;

/// The codes of errors that captures of streams cause.
pub(super) const CAPTURE: RangeInclusive<Code> = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    as Code
    ..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as Code;

const OUT_OF_MEMORY: Code = CUresult::CUDA_ERROR_OUT_OF_MEMORY as Code;

/// Codes after which CUDA no longer works in this process. Either the driver's documentation says so ("the
/// context is in an inconsistent state", "must be terminated and relaunched"), or there is no context.
const STICKY: &[Code] = &[
    CUresult::CUDA_ERROR_NOT_INITIALIZED as Code,
    CUresult::CUDA_ERROR_DEINITIALIZED as Code,
    CUresult::CUDA_ERROR_NO_DEVICE as Code,
    CUresult::CUDA_ERROR_INVALID_DEVICE as Code,
    CUresult::CUDA_ERROR_INVALID_CONTEXT as Code,
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE as Code,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE as Code,
    226, // CUDA_ERROR_CONTAINED, of CUDA 12.8
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS as Code,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT as Code,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as Code,
    CUresult::CUDA_ERROR_ASSERT as Code,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR as Code,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION as Code,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS as Code,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE as Code,
    CUresult::CUDA_ERROR_INVALID_PC as Code,
    CUresult::CUDA_ERROR_LAUNCH_FAILED as Code,
    721, // CUDA_ERROR_TENSOR_MEMORY_LEAK, of CUDA 12.8
    CUresult::CUDA_ERROR_SYSTEM_NOT_READY as Code,
    CUresult::CUDA_ERROR_MPS_CONNECTION_FAILED as Code,
    CUresult::CUDA_ERROR_MPS_RPC_FAILURE as Code,
    CUresult::CUDA_ERROR_MPS_SERVER_NOT_READY as Code,
    CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED as Code,
    CUresult::CUDA_ERROR_EXTERNAL_DEVICE as Code,
    CUresult::CUDA_ERROR_UNKNOWN as Code,
];

/// Returns the fault of a code that is not [`SUCCESS`], from a function that ran in a context.
pub(super) fn fault(code: Code) -> Fault {
    if code == OUT_OF_MEMORY {
        Fault::OutOfMemory
    } else if STICKY.contains(&code) {
        Fault::Sticky
    } else {
        Fault::Refused
    }
}

/// Returns the fault of a code from a function that ran without a context. Without a context nothing is
/// broken, and a later attempt may succeed. For example, another process may use the device exclusively, or
/// the device's daemon may not have started.
pub(super) fn fault_without_context(code: Code) -> Fault {
    match fault(code) {
        Fault::OutOfMemory => Fault::OutOfMemory,
        _ => Fault::Unavailable,
    }
}

/// The code of every function of the library that a CUDA toolkit has for linking.
const STUB_LIBRARY: Code = CUresult::CUDA_ERROR_STUB_LIBRARY as Code;

/// The code of a driver that shows no device to this process.
const NO_DEVICE: Code = CUresult::CUDA_ERROR_NO_DEVICE as Code;

/// Returns the name of a code, its number, and the driver's description; and advice if there is no device.
pub(super) fn describe(functions: &Functions, code: Code) -> String {
    let described = in_words(functions, code);
    match code {
        NO_DEVICE => format!("{described}: {}", hints::without_device()),
        _ => described,
    }
}

fn in_words(functions: &Functions, code: Code) -> String {
    if code == STUB_LIBRARY {
        return "the loader found the stub of a CUDA toolkit instead of the driver's libcuda.so.1: remove the folder `stubs` from LD_LIBRARY_PATH, and install an NVIDIA driver if there is none".to_string();
    }
    let text = |get: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
        let mut text = ptr::null();
        // SAFETY: `get` accepts any number, and writes one pointer: to a static string, or null.
        let result = unsafe { get(code, &raw mut text) };
        // SAFETY: the driver wrote a pointer to a static string.
        (result == SUCCESS && !text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
    };
    match text(functions.cuGetErrorName) {
        Some(name) => {
            let mut description = format!("{} ({code})", name.to_string_lossy());
            if let Some(more) = text(functions.cuGetErrorString) {
                let _ = write!(description, ", {}", more.to_string_lossy());
            }
            description
        }
        None => format!("error {code}, which the driver has no name for"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_outlives_the_operation_is_sticky() {
        let fault = |code: CUresult| fault(code as Code);
        assert_eq!(
            fault(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            Fault::OutOfMemory
        );
        for code in [
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_INVALID_PTX,
            CUresult::CUDA_ERROR_INVALID_HANDLE,
            CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            CUresult::CUDA_ERROR_NOT_SUPPORTED,
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
            CUresult::CUDA_ERROR_OPERATING_SYSTEM,
        ] {
            assert_eq!(fault(code), Fault::Refused, "{code:?}");
        }
        for code in [
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_UNKNOWN,
        ] {
            assert_eq!(fault(code), Fault::Sticky, "{code:?}");
        }
    }

    #[test]
    fn nothing_is_sticky_before_there_is_a_context() {
        let fault = |code: CUresult| fault_without_context(code as Code);
        assert_eq!(
            fault(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            Fault::OutOfMemory
        );
        for code in [
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
            CUresult::CUDA_ERROR_MPS_SERVER_NOT_READY,
            CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
            CUresult::CUDA_ERROR_OPERATING_SYSTEM,
            CUresult::CUDA_ERROR_UNKNOWN,
        ] {
            assert_eq!(fault(code), Fault::Unavailable, "{code:?}");
        }
    }
}
