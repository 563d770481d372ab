//! Fake devices and applications, for the tests, benchmarks and fuzz targets of `zarrs_cuda`'s repository.

#[allow(unsafe_code)]
mod application;
mod numbers;
mod nvcomp;

pub use application::{Application, OWN};
pub use numbers::Numbers;
pub use nvcomp::nvcomp_or_skip;

pub use crate::cuda::driver::{instant, simulation};
