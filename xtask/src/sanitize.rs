//! The kernels on the emulator, compiled with a sanitizer: the emulator's tests, which show that it
//! sees what it should, and those of the kernels or, where that is quick, of the whole engine.

use crate::{Result, cargo, run};

/// What the sanitizer finds ends the tests' process.
pub(crate) fn run_tests(sanitizer: &str) -> Result<()> {
    let engine = ["--package", "zarrs_cuda", "--lib", "engine::cuda"];
    let kernels = ["--package", "zarrs_cuda", "--lib", "engine::cuda::kernels"];
    // The tests of the simulation break the rules that the sanitizer watches.
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
