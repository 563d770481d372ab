//! Packages that NVIDIA publishes on `PyPI`, installed into folders of their own under `target/`.

use crate::{Result, output, target};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

const REMEDY: &str = "Needed: Python 3 with venv (Debian, Ubuntu: apt-get install python3-venv), \
                      and a pip that reaches PyPI or an index that has these versions.";

/// Installs the packages in the file `requirements`, unless an earlier run did. Returns the folder
/// with the packages.
pub(crate) fn install(requirements: &str) -> Result<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(format!(
            "{requirements} lists packages for Linux on x86-64. Run this task there; nothing else \
             in this repository needs it."
        ));
    }
    let file = Path::new("xtask").join(requirements);
    let wanted = read(&file)?;
    let root = target().join(file.with_extension("").file_name().unwrap_or_default());
    let packages = root.join("packages");
    let stamp = root.join("stamp");

    fs::create_dir_all(&root).map_err(|e| format!("{}: {e}", root.display()))?;
    // The lock is held to the end of this function: other processes wait for it.
    let lock = File::create(root.join("lock")).map_err(|e| format!("{}: {e}", root.display()))?;
    lock.lock()
        .map_err(|e| format!("{}: {e}", root.display()))?;
    if fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(packages);
    }

    eprintln!("installing {} into {}", file.display(), packages.display());
    let install = || {
        for old in [&stamp, &packages] {
            if old.is_file() {
                fs::remove_file(old).map_err(|e| format!("{}: {e}", old.display()))?;
            } else if old.is_dir() {
                fs::remove_dir_all(old).map_err(|e| format!("{}: {e}", old.display()))?;
            }
        }
        let venv = root.join("venv");
        output(
            Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(&venv),
        )?;
        let mut pip = Command::new(venv.join("bin/python"));
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
        ])
        .args(["--no-compile", "--require-hashes"])
        .arg("--requirement")
        .arg(&file)
        .arg("--target")
        .arg(&packages);
        output(&mut pip)
    };
    install().map_err(|error| format!("{error}\n{REMEDY}"))?;
    fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))?;
    Ok(packages)
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))
}
