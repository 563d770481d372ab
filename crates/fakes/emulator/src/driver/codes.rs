//! The result codes that the emulated driver returns.

use std::ffi::CStr;

/// The result code of a function of the driver.
pub type Code = u32;

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(pub(super) const $name: Code = $code;)*

        /// Returns the name and the description of a code.
        pub(super) fn describe(code: Code) -> Option<(&'static CStr, &'static CStr)> {
            Some(match code {
                $($code => (
                    c_string(concat!("CUDA_ERROR_", stringify!($name), "\0")),
                    c_string(concat!($text, "\0")),
                ),)*
                SUCCESS => (c"CUDA_SUCCESS", c"no error"),
                _ => return None,
            })
        }
    };
}

pub(super) const SUCCESS: Code = 0;

codes! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "initialization error";
    NO_DEVICE = 100, "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "invalid device ordinal";
    INVALID_CONTEXT = 201, "invalid device context";
    NO_BINARY_FOR_GPU = 209, "no kernel image is available for execution on the device";
    ECC_UNCORRECTABLE = 214, "uncorrectable ECC error encountered";
    INVALID_PTX = 218, "a PTX JIT compilation failed";
    INVALID_HANDLE = 400, "invalid resource handle";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "device not ready";
    ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    LAUNCH_FAILED = 719, "unspecified launch failure";
    NOT_PERMITTED = 800, "operation not permitted";
    NOT_SUPPORTED = 801, "operation not supported";
    STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    STREAM_CAPTURE_UNMATCHED = 903, "attempt to terminate a thread-local capture sequence";
    STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    UNKNOWN = 999, "unknown error";
}

/// Codes after which the context does not work any more.
pub(super) const STICKY: [Code; 4] = [ECC_UNCORRECTABLE, ILLEGAL_ADDRESS, LAUNCH_FAILED, UNKNOWN];

const fn c_string(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}
