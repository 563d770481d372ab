//! Tests of the whole engine.
//!
//! | folder | devices |
//! |---|---|
//! | `on_gpu` | the first GPU of this machine; the tests are skipped if there is none |
//! | `simulated` | simulated devices with emulated kernels |
//!
//! The bodies that both share are in `on_gpu`: `application`, `bodies`, `compressed` and `stream`.

#[allow(unsafe_code)]
mod on_gpu;
#[allow(unsafe_code)]
mod simulated;
