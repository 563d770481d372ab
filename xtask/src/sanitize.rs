//! Runs the kernels on the emulator, compiled with a sanitizer. The emulator's tests show that it
//! detects errors. The kernels' tests follow or, if that is quick enough, the tests of the whole
//! engine.

use crate::{Result, cargo, run};

/// A finding of the sanitizer ends the tests' process.
pub(crate) fn run_tests(sanitizer: &str) -> Result<()> {
    let engine = ["--package", "zarrs_cuda", "--lib", "engine::cuda"];
    let kernels = ["--package", "zarrs_cuda", "--lib", "engine::cuda::kernels"];
    // The simulation's tests break the rules on purpose that the sanitizer checks.
    let but = ["--", "--skip", "driver::simulation::tests"];
    let tests = if sanitizer == "thread" {
        kernels.to_vec()
    } else {
        [&engine[..], &but].concat()
    };
    for tests in [vec!["--package", "zarrs_cuda_simt"], tests] {
        run(cargo()
            .arg("test")
            .args(tests)
            .env("ZARRS_CUDA_SIMT_SANITIZE", sanitizer))?;
    }
    Ok(())
}
