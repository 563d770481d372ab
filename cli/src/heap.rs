//! Keeps the heap of the process small if a limit on virtual addresses (`ulimit -v`) is in force.
//!
//! glibc reserves 64 MiB of addresses for the heap of each thread, most of which are never used. Under a
//! limit, these addresses are missing for other allocations, and a failed allocation ends the process. Only
//! an environment variable that is set before the process starts can change the number of heaps.

/// Starts this program anew with one heap for all threads, if addresses are limited. Does nothing if that is
/// not possible, or if the environment already sets the number of heaps.
#[cfg(target_os = "linux")]
pub(crate) fn fit_addresses() {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    const HEAPS: &str = "MALLOC_ARENA_MAX";
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let mut limits = limits.lines();
    let limit = limits.find_map(|line| line.strip_prefix("Max address space"));
    let is_limited = limit.is_some_and(|limit| !limit.trim_start().starts_with("unlimited"));
    if !is_limited || std::env::var_os(HEAPS).is_some() {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        let mut arguments = std::env::args_os();
        let mut again = Command::new(program);
        if let Some(name) = arguments.next() {
            again.arg0(name);
        }
        // `exec` returns only if it fails.
        let _ = again.args(arguments).env(HEAPS, "1").exec();
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn fit_addresses() {}
