//! The program, and the files that it leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Returns a command without arguments, with an environment that does not change its output.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zarrs-cuda"));
    command.env("NO_COLOR", "1").env("COLUMNS", "80");
    command
}

/// The program as a user runs it whom permissions concern: root may read everything. `folder` is a directory of
/// this test, which gets a copy of the program that other users reach.
#[cfg(unix)]
pub(crate) fn as_a_user(folder: &Path) -> Command {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return program();
    }
    let copy = folder.join("zarrs-cuda-copy");
    // A child that another test starts would inherit the copy while it is written, and nothing could run it.
    let mut cp = Command::new("cp");
    let copied = cp.arg(program().get_program()).arg(&copy).status().unwrap();
    assert!(copied.success());
    for path in [folder, &copy] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let mut command = Command::new(&copy);
    command
        .uid(65_534)
        .env("NO_COLOR", "1")
        .env("COLUMNS", "80");
    command
}

/// Runs the program with words, and checks the exit code. Returns its output, stdout first.
pub(crate) fn said(arguments: &[&dyn AsRef<std::ffi::OsStr>], code: i32) -> String {
    let mut command = program();
    command.args(arguments);
    said_with_code(&command.output().unwrap(), code)
}

/// Runs the program with `--json`, and checks the exit code. Returns the object.
pub(crate) fn json(arguments: &[&dyn AsRef<std::ffi::OsStr>], code: i32) -> Value {
    let mut command = program();
    command.args(arguments).arg("--json");
    let output = command.output().unwrap();
    said_with_code(&output, code);
    serde_json::from_slice(&output.stdout).unwrap()
}

pub(crate) fn said_with_code(ended: &Output, code: i32) -> String {
    let said = [&ended.stdout[..], &ended.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert_eq!(ended.status.code(), Some(code), "{said}");
    said
}

/// Runs a line of a shell in which `zarrs-cuda` is the program, and checks the exit code. Returns its output, stdout first.
#[cfg(unix)]
pub(crate) fn shell(folder: &Path, line: &str, code: i32) -> String {
    let bin = Path::new(env!("CARGO_BIN_EXE_zarrs-cuda")).parent();
    let path = format!(
        "{}:{}",
        bin.unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(folder);
    shell.env("PATH", path).env("NO_COLOR", "1");
    said_with_code(&shell.output().unwrap(), code)
}

/// The files in the directory `path`; none if it does not exist.
pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Sends Ctrl-C.
#[cfg(unix)]
pub(crate) fn interrupt(child: &std::process::Child) {
    send("-INT", child);
}

/// Sends a signal, as `-TERM`.
#[cfg(unix)]
pub(crate) fn send(signal: &str, child: &std::process::Child) {
    let kill = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
}
