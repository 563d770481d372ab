//! Loads NVIDIA's library of compressors, for tests that need it.

use std::env;
use std::path::Path;

use crate::cuda::driver::Driver;
use crate::cuda::driver::cuda::CudaDriver;
use crate::cuda::nvcomp::{Nvcomp, Search, VARIABLE};

/// Returns NVIDIA's library, or a stand-in, for a test. Without a library, it prints that the test is
/// skipped, and returns `None`. `is_stand_in` tells whether a file is a stand-in.
///
/// - There is no library, although its variable names a file, as the bundle's script does for a bundle with
///   one, or `ZARRS_CUDA_REQUIRE_NVCOMP` is 1.
/// - The library is NVIDIA's own, and the device is emulated.
pub fn nvcomp_or_skip(test: &str, is_stand_in: impl Fn(&Path) -> bool) -> Option<Nvcomp> {
    match Search::new(None).load() {
        Ok(nvcomp) => {
            // NVIDIA's library needs addresses of a real GPU.
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
