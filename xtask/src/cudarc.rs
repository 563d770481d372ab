//! Compiles the engine as a dependency of an application that has cudarc for another version of CUDA.
//!
//! Nothing in this workspace can show that: Cargo enables the features of all members together. With the
//! newest version the application also compares the types of all functions that the engine calls, and the
//! layouts that the engine assumes, with cudarc's bindings, which NVIDIA's header makes.

use std::fs;
use std::path::Path;

use crate::{Result, cargo, target};

/// The versions, as cudarc names them: the oldest, one whose header renames a function, and the newest.
const VERSIONS: [&str; 3] = ["12000", "12080", "13040"];

/// The file with the list of functions, and the file with the assertions about layouts.
const FUNCTIONS: &str = "crates/engine/src/cuda/driver/cuda/functions.rs";
const LAYOUTS: &str = "crates/engine/src/cuda/driver/cuda/layouts.rs";

/// Returns the source of an application that compares types and layouts. `functions` is the text of
/// [`FUNCTIONS`].
fn comparison(functions: &str, layouts: &Path) -> Result<String> {
    let list = functions
        .split_once("\nfunctions! {\n")
        .and_then(|(_, rest)| rest.split_once("\n}\n"));
    let (list, _) = list.ok_or_else(|| format!("{FUNCTIONS} has no list of functions"))?;
    if list.matches(");").count() < 30 {
        return Err(format!(
            "{FUNCTIONS} has a short list of functions:\n{list}"
        ));
    }
    let layouts = layouts.display().to_string();
    Ok(format!(
        "#![allow(unused_imports)]
use cudarc::driver::sys::*;
use std::ffi::{{c_char, c_int, c_uchar, c_uint, c_void}};

mod functions {{
    pub use cudarc::driver::sys::*;
    // NVIDIA's newer header renames this function. Libraries keep the old name, and its type.
    pub use cudarc::driver::sys::cuEventElapsedTime_v2 as cuEventElapsedTime;
}}

macro_rules! functions {{
    (
        {{ $($name:ident($($argument:ty),*);)* }}
        of a code {{ $($of_code:ident($($of_code_argument:ty),*);)* }}
    ) => {{
        $(const _: unsafe fn($($argument),*) -> CUresult = functions::$name;)*
        $(const _: unsafe fn(CUresult, $($of_code_argument),*) -> CUresult = functions::$of_code;)*
    }};
}}

functions! {{
{list}
}}

const _: unsafe fn(*mut CUcontext) -> CUresult = functions::cuCtxGetCurrent;
const _: unsafe fn(*mut CUdevice) -> CUresult = functions::cuCtxGetDevice;

#[path = {layouts:?}]
mod layouts;
"
    ))
}

/// Checks the engine with each version, and that no version is an error of cudarc.
pub(crate) fn check() -> Result<()> {
    let folder = target().join("scratch/cudarc");
    let source = folder.join("src");
    fs::create_dir_all(&source).map_err(|e| format!("{}: {e}", source.display()))?;
    let root = crate::root();
    let engine = root.join("crates/engine");
    let manifest = format!(
        "[package]\nname = \"application\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\n\
         cudarc = {{ version = \"*\", default-features = false, features = [\"std\", \"driver\", \"fallback-dynamic-loading\"] }}\n\
         zarrs_cuda_engine = {{ path = \"{}\", default-features = false, features = [\"cuda\"] }}\n",
        engine.display()
    );
    let write = |name: &str, text: &str| {
        let file = folder.join(name);
        fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))
    };
    write("Cargo.toml", &manifest)?;
    let functions = fs::read_to_string(FUNCTIONS).map_err(|e| format!("{FUNCTIONS}: {e}"))?;
    let comparison = comparison(&functions, &root.join(LAYOUTS))?;
    // The same versions as here.
    let lock = folder.join("Cargo.lock");
    fs::copy(root.join("Cargo.lock"), &lock).map_err(|e| format!("{}: {e}", lock.display()))?;
    for version in VERSIONS {
        let is_newest = VERSIONS.ends_with(&[version]);
        write("src/lib.rs", if is_newest { &comparison } else { "" })?;
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
        "the engine compiles with cudarc for {}; types and layouts are those of the last one",
        VERSIONS.join(", ")
    );
    Ok(())
}

fn command(folder: &Path) -> std::process::Command {
    let mut command = cargo();
    command
        .args(["check", "--quiet"])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", folder.join("target"));
    command
}
