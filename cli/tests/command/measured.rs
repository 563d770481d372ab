//! The program within a budget of memory, and how much it took.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::program::{program, said_with_code};

const MIB: u64 = 1 << 20;
/// The program, the stacks and heaps of its threads, and contexts of compressors.
const BESIDE: u64 = 64 * MIB;

/// Runs a program, then says how much memory the program took at most, in KiB. The third argument is a
/// control group for it; `-` is none.
const MEASURE: &str = r#"
import os, resource, subprocess, sys
group = sys.argv[1]
def join():
    if group != "-":
        with open(os.path.join(group, "cgroup.procs"), "w") as procs:
            procs.write(str(os.getpid()))
code = subprocess.call(sys.argv[2:], preexec_fn=join)
print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code if code >= 0 else 128 - code)
"#;

/// A control group with a limit of memory, which is deleted again.
struct Group(PathBuf);

impl Group {
    /// `None`, and a message that no harness hides, where this process may not make one.
    fn new(limit: u64) -> Option<Self> {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("zarrs-cuda-test-{}-{number}", std::process::id());
        let roots = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        for (root, file) in roots {
            let group = Path::new(root).join(&name);
            if fs::create_dir(&group).is_err() {
                continue;
            }
            let group = Self(group);
            // On a file system of another kind there is no such file.
            let limited = fs::OpenOptions::new().write(true).open(group.0.join(file));
            if limited.is_ok_and(|mut file| write!(file, "{limit}").is_ok()) {
                return Some(group);
            }
        }
        let message = "NO LIMIT OF A CONTROL GROUP IS TESTED: this process may not make one";
        assert!(
            std::env::var_os("ZARRS_CUDA_TEST_CGROUP").is_none(),
            "{message}"
        );
        let _ = writeln!(std::io::stderr(), "\n{message}");
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Runs the program within a budget of so many MiB. Returns what it says. It may fail, but not take more
/// memory than the budget and [`BESIDE`].
pub(crate) fn within(budget: u64, arguments: &[&str], input: Option<&Path>) -> Output {
    within_and(budget, arguments, input, &[])
}

/// The same, with variables of the environment.
pub(crate) fn within_and(
    budget: u64,
    arguments: &[&str],
    input: Option<&Path>,
    environment: &[(&str, &str)],
) -> Output {
    let limit = budget * MIB + BESIDE;
    // Pages of files are counted there, too, but are given up for others.
    let group = Group::new(limit);
    let mut command = Command::new("python3");
    command.args(["-c", MEASURE]);
    match &group {
        Some(group) => command.arg(&group.0),
        None => command.arg("-"),
    };
    command.arg(program().get_program()).args(arguments);
    command.args(["--memory", &format!("{budget}MiB"), "--threads", "2"]);
    command.env("NO_COLOR", "1").env_remove("MALLOC_ARENA_MAX");
    command.envs(environment.iter().copied());
    command.stdin(match input {
        Some(input) => Stdio::from(fs::File::open(input).unwrap()),
        None => Stdio::null(),
    });
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let peak = said.lines().find_map(|line| line.strip_prefix("peak "));
    let peak: u64 = peak.unwrap_or_else(|| panic!("{said}")).parse().unwrap();
    println!("{budget} MiB, {arguments:?}: {} MiB", peak / 1024);
    assert!(
        peak * 1024 <= limit,
        "{arguments:?} took {} MiB within {budget} MiB: {said}",
        peak / 1024
    );
    output
}

/// The same, and the exit code has to be `code`.
pub(crate) fn said_within(budget: u64, arguments: &[&str], code: i32) -> String {
    said_with_code(&within(budget, arguments, None), code)
}
