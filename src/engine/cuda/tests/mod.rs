//! The engine as a whole.
//!
//! | folder | on which devices |
//! |---|---|
//! | `on_gpu` | the first GPU of this machine, skipped where there is none |
//! | `simulated` | simulations, with emulated kernels |
//!
//! What both try is in `on_gpu`: `application`, `bodies`, `compressed` and `stream`.

#[allow(unsafe_code)]
mod on_gpu;
#[allow(unsafe_code)]
mod simulated;
