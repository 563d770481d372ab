//! A Python with numcodecs, zarr-python, xarray and tensorstore, below `target/values`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const REMEDY: &str = "Install Python 3.12 or newer with venv, in PATH or by pyenv. pip needs to \
                      reach PyPI, or an index of its configuration that has these versions.";

/// Runs a script of this folder, and returns what it prints. Fails if the script does.
pub(crate) fn run(script: &str, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> String {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let python = match PYTHON.get_or_init(installed) {
        Ok(python) => python,
        Err(message) => panic!("these tests need other implementations.\n{message}\n{REMEDY}"),
    };
    let mut command = clean(python);
    command.arg(folder().join(script)).args(arguments);
    said(&mut command).unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/values")
}

/// Reuses the environment of an earlier run with the same requirements, or makes one.
fn installed() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("values");
    fs::create_dir_all(&root).unwrap();
    // The lock is held to the end of this function: other test processes wait for it.
    let lock = File::create(root.join("lock")).unwrap();
    lock.lock().unwrap();
    let list = folder().join("requirements.txt");
    let wanted = format!("{}\n{}", root.display(), fs::read_to_string(&list).unwrap());
    let (venv, stamp) = (root.join("venv"), root.join("stamp"));
    let python = venv.join("bin/python");
    let is_there = said(clean(&python).arg("--version")).is_ok();
    if is_there && fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == wanted) {
        return Ok(python);
    }
    let shown = venv.display();
    let _ = writeln!(
        io::stderr(),
        "values: installing other implementations in {shown}"
    );
    let _ = fs::remove_file(&stamp);
    said(clean(&found()?).args(["-m", "venv", "--clear"]).arg(&venv))?;
    let mut pip = clean(&python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--only-binary=:all:",
        "-r",
    ]);
    said(pip.arg(&list))?;
    fs::write(stamp, wanted).unwrap();
    Ok(python)
}

/// A Python that is new enough, from PATH or from pyenv.
fn found() -> Result<PathBuf, String> {
    let names = ["python3", "python3.12", "python3.13", "python3.14"].map(PathBuf::from);
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(std::env::home_dir()?.join(".pyenv")));
    let versions = pyenv.and_then(|pyenv| fs::read_dir(pyenv.join("versions")).ok());
    let mut of_pyenv: Vec<_> = versions
        .into_iter()
        .flatten()
        .flatten()
        .map(|version| version.path().join("bin/python3"))
        .collect();
    of_pyenv.sort();
    let is_new = "import sys; sys.exit(sys.version_info < (3, 12))";
    names
        .into_iter()
        .chain(of_pyenv)
        .find(|python| said(clean(python).args(["-c", is_new])).is_ok())
        .ok_or_else(|| "no Python is new enough".to_string())
}

/// A command that ignores other Python environments and writes nothing to the source tree.
fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env_remove("PYTHONPATH").env_remove("PYTHONHOME");
    command
}

fn said(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if output.status.success() {
        return Ok(stdout);
    }
    Err(format!("{command:?}: {}\n{stdout}{stderr}", output.status))
}
