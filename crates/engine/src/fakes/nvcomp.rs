//! NVIDIA's compressors, for tests that need them.

use std::env;
use std::path::Path;

use crate::cuda::driver::Driver;
use crate::cuda::driver::cuda::CudaDriver;
use crate::cuda::nvcomp::{Nvcomp, Search, VARIABLE};

/// Returns the library for a test that needs it. Without a library, prints that the test is skipped.
/// `is_stand_in` tells stand-ins from NVIDIA's own library.
///
/// # Panics
/// There is no library, and its variable names a file, as the bundle's script does for a bundle with
/// one, or `ZARRS_CUDA_REQUIRE_NVCOMP` is 1. Or NVIDIA's own library would be given an emulated device.
pub fn nvcomp_or_skip(test: &str, is_stand_in: impl Fn(&Path) -> bool) -> Option<Nvcomp> {
    match Search::new(None).load() {
        Ok(nvcomp) => {
            // NVIDIA's library takes addresses of a GPU.
            let is_emulated = CudaDriver::open(0).is_ok_and(|driver| {
                driver.device().name == zarrs_cuda_emulator::driver::DEVICE_NAME
            });
            let path = nvcomp.path().display();
            assert!(
                !is_emulated || is_stand_in(nvcomp.path()),
                "{path} cannot use an emulated device"
            );
            Some(nvcomp)
        }
        Err(reason) => {
            let required = env::var_os("ZARRS_CUDA_REQUIRE_NVCOMP").is_some_and(|v| v == "1");
            let named = env::var_os(VARIABLE).is_some_and(|file| !file.is_empty());
            assert!(!required && !named, "{reason}");
            eprintln!("{test} is skipped: {reason}");
            None
        }
    }
}
