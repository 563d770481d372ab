//! Runs parts of tests in their own processes, because they limit the resources of the process.

use std::path::{Path, PathBuf};

use zarrs_cuda_testing::processes;

/// The environment variable for the folder of a part.
const FOLDER: &str = "ZARRS_CUDA_TEST_SPARSE_FILES";
/// The environment variable for the number of descriptors.
const DESCRIPTORS: &str = "ZARRS_CUDA_TEST_DESCRIPTORS";

/// Runs `part`, an ignored test of `module`, in its own process.
pub(crate) fn run(module: &str, part: &str, folder: &Path) {
    run_with(module, part, folder, 64);
}

/// The same with this number of descriptors, for parts that limit them.
pub(crate) fn run_with(module: &str, part: &str, folder: &Path, descriptors: u64) {
    let output = processes::again(module, part, true)
        .env(FOLDER, folder)
        .env(DESCRIPTORS, descriptors.to_string())
        .output()
        .unwrap();
    println!("{}", processes::assert_passed(&output));
}

/// The folder of this part; `None` if the process was not started by a test.
pub(crate) fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// The number of descriptors for this process.
pub(crate) fn descriptors() -> u64 {
    std::env::var(DESCRIPTORS).unwrap().parse().unwrap()
}

/// Limits a resource of this process to `most`.
pub(crate) fn limit(resource: libc::__rlimit_resource_t, most: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is valid for writes.
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut limit) }, 0);
    limit.rlim_cur = most.min(limit.rlim_max);
    // SAFETY: the structure is valid for reads.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}
