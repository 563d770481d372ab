//! Packs the packages that are published, and compiles them from an empty folder, as users do.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{Result, cargo, output, root, run, target};

/// The packages, in the order in which they are published.
const PACKAGES: [&str; 6] = [
    "zarrs_cuda_kernels",
    "zarrs_cuda_emulator",
    "zarrs_cuda_engine",
    "zarrs_cuda",
    "zarrs_cuda_convert",
    "zarrs_cuda_cli",
];

/// The files of the licences, which each package has.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Checks all packages.
pub(crate) fn check() -> Result<()> {
    let folder = target().join("scratch/packages");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut pack = cargo();
    pack.args(["package", "--quiet", "--no-verify", "--allow-dirty"]);
    pack.args(PACKAGES.iter().flat_map(|name| ["--package", name]));
    run(&mut pack)?;
    let mut patches = Vec::new();
    for name in PACKAGES {
        let version = version(name)?;
        let unpacked = format!("{name}-{version}");
        let archive = target().join(format!("package/{unpacked}.crate"));
        let mut unpack = Command::new("tar");
        // The files get the time of now. Archives give all files one old time, by which cargo would take what it
        // compiled from an earlier archive for up to date.
        run(unpack.arg("xmf").arg(&archive).arg("-C").arg(&folder))?;
        for licence in LICENCES {
            if !folder.join(&unpacked).join(licence).is_file() {
                return Err(format!("the package {name} has no {licence}"));
            }
        }
        patches.push(format!("{name}.path = \"{unpacked}\"\n"));
    }
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n\n[patch.crates-io]\n{}",
        patches.concat()
    );
    write(&folder.join("Cargo.toml"), &manifest)?;
    // The same versions as here.
    let lock = folder.join("Cargo.lock");
    fs::copy(root().join("Cargo.lock"), &lock).map_err(|e| format!("{}: {e}", lock.display()))?;
    let mut check = cargo();
    check.args(["check", "--quiet", "--workspace"]);
    run(check.current_dir(&folder).env("CARGO_TARGET_DIR", target()))?;
    println!("{} compile from their packages", PACKAGES.join(", "));
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
}

/// The version of a package of this repository.
fn version(name: &str) -> Result<String> {
    let id = output(cargo().args(["pkgid", "--package", name]))?;
    let version = id.trim().rsplit(['@', '#']).next();
    version
        .map(str::to_owned)
        .ok_or_else(|| format!("cargo does not say the version of {name}: {id}"))
}
