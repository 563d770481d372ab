//! Tests of the whole engine.
//!
//! | folder | devices |
//! |---|---|
//! | `on_gpu` | the first GPU of this machine; the tests are skipped if there is none |
//! | `simulated` | simulated devices, which see what each operation reads and writes |
//! | `emulated` | emulated devices below the C functions of the CUDA driver |
//!
//! The bodies that both share are in `on_gpu`: `application`, `bodies`, `compressed` and `stream`.

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
mod emulated;
#[allow(unsafe_code)]
mod on_gpu;
#[allow(unsafe_code)]
mod simulated;
