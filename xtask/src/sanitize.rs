//! The kernels on the emulator, compiled with a sanitizer: the emulator's tests, which show that it
//! sees what it should, and those of the kernels.

use crate::{Result, cargo, run};

/// What the sanitizer finds ends the tests' process.
pub(crate) fn run_tests(sanitizer: &str) -> Result<()> {
    for tests in [
        &["--package", "zarrs_cuda_simt"][..],
        &["--package", "zarrs_cuda", "--lib", "engine::cuda::kernels"],
    ] {
        run(cargo()
            .arg("test")
            .args(tests)
            .env("ZARRS_CUDA_SIMT_SANITIZE", sanitizer))?;
    }
    Ok(())
}
