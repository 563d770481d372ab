//! Parts of tests that limit their process run in one of their own.

use std::path::{Path, PathBuf};

use zarrs_cuda_testing::processes;

/// The folder that a part works in.
const FOLDER: &str = "ZARRS_CUDA_TEST_SPARSE_FILES";
/// How many descriptors it has.
const DESCRIPTORS: &str = "ZARRS_CUDA_TEST_DESCRIPTORS";

/// Run `part`, an ignored test of `module`, in a process of its own.
pub(crate) fn run(module: &str, part: &str, folder: &Path) {
    run_with(module, part, folder, 64);
}

/// The same, with so many descriptors, if it limits them.
pub(crate) fn run_with(module: &str, part: &str, folder: &Path, descriptors: u64) {
    let output = processes::again(module, part, true)
        .env(FOLDER, folder)
        .env(DESCRIPTORS, descriptors.to_string())
        .output()
        .unwrap();
    println!("{}", processes::assert_passed(&output));
}

/// The folder to work in; `None` if no test has started this process.
pub(crate) fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// How many descriptors this process should have.
pub(crate) fn descriptors() -> u64 {
    std::env::var(DESCRIPTORS).unwrap().parse().unwrap()
}

/// Let this process have at most `most` of a resource.
pub(crate) fn limit(resource: libc::__rlimit_resource_t, most: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is valid, and written.
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut limit) }, 0);
    limit.rlim_cur = most.min(limit.rlim_max);
    // SAFETY: the structure is valid, and read.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}
