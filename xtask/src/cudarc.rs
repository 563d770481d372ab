//! Compiles the engine as a dependency of an application that has cudarc for another version of CUDA.
//!
//! Nothing in this workspace can show that: Cargo enables the features of all members together.

use std::fs;

use crate::{Result, cargo, target};

/// The versions, as cudarc names them: the oldest, one whose header renames a function, and the newest.
const VERSIONS: [&str; 3] = ["12000", "12080", "13040"];

/// Checks the engine with each version, and that no version is an error of cudarc.
pub(crate) fn check() -> Result<()> {
    let folder = target().join("scratch/cudarc");
    let source = folder.join("src");
    fs::create_dir_all(&source).map_err(|e| format!("{}: {e}", source.display()))?;
    let root = crate::root();
    let engine = root.join("crates/engine");
    let manifest = format!(
        "[package]\nname = \"application\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nzarrs_cuda_engine = {{ path = \"{}\", default-features = false, features = [\"cuda\"] }}\n",
        engine.display()
    );
    for (name, text) in [("Cargo.toml", manifest.as_str()), ("src/lib.rs", "")] {
        let file = folder.join(name);
        fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    // The same versions as here.
    let lock = folder.join("Cargo.lock");
    fs::copy(root.join("Cargo.lock"), &lock).map_err(|e| format!("{}: {e}", lock.display()))?;
    for version in VERSIONS {
        let checked = command(&folder)
            .env("CUDARC_CUDA_VERSION", version)
            .status();
        let status = checked.map_err(|e| format!("cargo: {e}"))?;
        if !status.success() {
            return Err(format!(
                "the engine does not compile with cudarc for {version}"
            ));
        }
    }
    let without = command(&folder).env_remove("CUDARC_CUDA_VERSION").output();
    let without = without.map_err(|e| format!("cargo: {e}"))?;
    let said = String::from_utf8_lossy(&without.stderr);
    if without.status.success() || !said.contains("Must specify one of the following features") {
        return Err(format!(
            "cudarc should name the features for versions: {said}"
        ));
    }
    println!(
        "the engine compiles with cudarc for {}",
        VERSIONS.join(", ")
    );
    Ok(())
}

fn command(folder: &std::path::Path) -> std::process::Command {
    let mut command = cargo();
    command
        .args(["check", "--quiet"])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", folder.join("target"));
    command
}
