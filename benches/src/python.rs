//! The Python environment of the peers, installed from `PyPI` into `target/peers`, and their scripts.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::Value;

use crate::Result;

/// The remedy when a step fails.
const PYTHON: &str = "Install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3).";
const VENV: &str =
    "Install Python's venv and ensurepip (Debian, Ubuntu: apt-get install python3-venv).";
const PIP: &str =
    "pip needs to reach PyPI, or an index of its configuration that has these versions.";

/// Returns `target/peers`, and creates it if needed. `tmp` is `target/tmp`, which Cargo tells to
/// benchmarks alone.
pub fn root(tmp: &str) -> Result<PathBuf> {
    let root = Path::new(tmp).join("../peers");
    fs::create_dir_all(&root)?;
    Ok(root.canonicalize()?)
}

/// Returns the Python of an environment with these requirements. Creates the environment unless an
/// earlier run did. `tmp` is `target/tmp`.
pub fn python(tmp: &str) -> Result<PathBuf> {
    let root = root(tmp)?;
    // The lock is held to the end of this function: other processes wait for it.
    let lock = File::create(root.join("lock"))?;
    lock.lock()?;

    let python = root.join(if cfg!(windows) {
        "venv/Scripts/python.exe"
    } else {
        "venv/bin/python"
    });
    let stamp = root.join("stamp");
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/requirements.txt");
    let requirements = format!("{}\n{}", root.display(), fs::read_to_string(&list)?);
    if fs::read_to_string(&stamp).is_ok_and(|made| made == requirements)
        && step(clean(&python).arg("--version"), PYTHON).is_ok()
    {
        return Ok(python);
    }
    eprintln!("installing the peers in {}", root.display());
    if stamp.exists() {
        fs::remove_file(&stamp)?;
    }
    let venv = root.join("venv");
    if venv.exists() {
        fs::remove_dir_all(&venv)?;
    }
    step(clean(find_python()?).args(["-m", "venv"]).arg(&venv), VENV)?;
    let mut pip = clean(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--only-binary=:all:"]);
    step(pip.arg("-r").arg(list), PIP)?;
    fs::write(stamp, requirements)?;
    Ok(python)
}

/// The newest Python on the path that the requirements are known to work with.
fn find_python() -> Result<OsString> {
    let is_new = "import sys; sys.exit(sys.version_info < (3, 11))";
    let names = [
        "python3.13",
        "python3.12",
        "python3.11",
        "python3",
        "python",
    ];
    names
        .into_iter()
        .find(|name| {
            let tried = clean(name).args(["-c", is_new]).output();
            tried.is_ok_and(|output| output.status.success())
        })
        .map(OsString::from)
        .ok_or_else(|| format!("none of {} is new enough. {PYTHON}", names.join(", ")).into())
}

/// A command that ignores other Python environments and writes nothing to the source tree.
pub fn clean(program: impl Into<OsString>) -> Command {
    let mut command = Command::new(program.into());
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("PYTHONPATH")
        .env_remove("PYTHONHOME");
    command
}

/// Runs one step of the installation; `remedy` is part of the error.
fn step(command: &mut Command, remedy: &str) -> Result<()> {
    let reason = match command.output() {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => format!(
            "{}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => error.to_string(),
    };
    Err(format!("tried: {command:?}\nfailed: {reason}\n{remedy}").into())
}

/// A process that runs a script, which answers each line of JSON with another.
pub struct Script {
    name: String,
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Script {
    /// Starts `script`, a file below `benches`, which reads the elements of the array from `data`.
    pub fn start(python: &Path, script: &str, data: &Path) -> Result<Self> {
        let mut command = clean(python);
        let benches = Path::new(env!("CARGO_MANIFEST_DIR"));
        // The scripts share `create.py`.
        command.env("PYTHONPATH", benches.join("python"));
        command.arg(benches.join(script)).arg(data);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let (requests, answers) = (process.stdin.take(), process.stdout.take());
        let (Some(requests), Some(answers)) = (requests, answers) else {
            return Err(format!("{command:?} has no pipes").into());
        };
        Ok(Self {
            name: script.to_string(),
            process,
            requests,
            answers: BufReader::new(answers),
        })
    }

    /// Sends `request`, and returns the answer, which has no `error`.
    pub fn ask(&mut self, request: &Value) -> Result<Value> {
        writeln!(self.requests, "{request}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        if answer.is_empty() {
            return Err(format!("{} ended: {}", self.name, self.process.wait()?).into());
        }
        let answer: Value = serde_json::from_str(&answer)?;
        match &answer["error"] {
            Value::Null => Ok(answer),
            error => Err(format!("{}: {error}", self.name).into()),
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // The process has no data to lose. It may already have ended.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
