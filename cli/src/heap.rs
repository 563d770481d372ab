//! The heap of the process, where a limit of addresses is in force (`ulimit -v`).
//!
//! glibc reserves 64 MiB of addresses for the heap of each thread, most of which are never used. Under such
//! a limit they are missing elsewhere, and an allocation that fails ends the process. Only the environment
//! of a new process changes that.

/// Starts this program anew with one heap for all threads, if there is a limit of addresses. Goes on where
/// that is not possible, and where the environment already says how many heaps there are.
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
        // It returns only if it fails.
        let _ = again.args(arguments).env(HEAPS, "1").exec();
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn fit_addresses() {}
