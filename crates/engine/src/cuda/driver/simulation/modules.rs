//! The modules that kernels are of, for the emulator: those that the crate embeds.
//!
//! Two environment variables serve `cargo xtask mutants`:
//! - `ZARRS_CUDA_TEST_PTX`: a folder whose modules take the place of those of the same name.
//! - `ZARRS_CUDA_TEST_EXECUTED`: a file, to which `KERNEL LINE` is appended for each instruction that is
//!   executed for the first time.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, PoisonError};

use zarrs_cuda_emulator::{Kernel, Module, Report};

use zarrs_cuda_kernels as ptx;

fn parse(module: &ptx::Module) -> Result<Module, String> {
    let mut replacement = None;
    if let Some(folder) = std::env::var_os("ZARRS_CUDA_TEST_PTX") {
        let file = PathBuf::from(folder).join(format!("{}.ptx", module.name));
        replacement = match fs::read_to_string(&file) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(format!("{}: {error}", file.display())),
        };
    }
    let parsed = Module::parse(replacement.as_deref().unwrap_or(module.text));
    parsed.map_err(|error| format!("module {}: {error}", module.name))
}

/// Returns the kernel called `name`.
pub(crate) fn kernel(name: &str) -> Result<&'static Kernel, String> {
    static MODULES: LazyLock<HashMap<&str, Result<Module, String>>> = LazyLock::new(|| {
        let mut modules = HashMap::new();
        for (_, module) in ptx::KERNELS {
            modules.entry(module.name).or_insert_with(|| parse(module));
        }
        modules
    });
    let known = ptx::KERNELS.iter().find(|(kernel, _)| *kernel == name);
    let (_, module) = known.ok_or_else(|| format!("there is no kernel {name}"))?;
    let module = MODULES[module.name].as_ref().map_err(Clone::clone)?;
    let kernel = module.kernel(name);
    kernel.ok_or_else(|| format!("kernel {name} is gone from its module"))
}

/// Remembers which instructions of `kernel` were executed.
pub(super) fn executed(kernel: &Kernel, report: &Report) {
    static FILE: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os("ZARRS_CUDA_TEST_EXECUTED").map(PathBuf::from));
    static KNOWN: Mutex<Vec<(String, Vec<bool>)>> = Mutex::new(Vec::new());
    let Some(file) = &*FILE else { return };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let at = known.iter().position(|(name, _)| name == kernel.name());
    let at = at.unwrap_or_else(|| {
        known.push((
            kernel.name().to_string(),
            vec![false; report.executed.len()],
        ));
        known.len() - 1
    });
    let mut lines = Vec::new();
    let instructions = std::iter::zip(&mut known[at].1, &report.executed);
    for ((is_known, times), (line, _)) in instructions.zip(kernel.instructions()) {
        if *times > 0 && !*is_known {
            *is_known = true;
            lines.push(format!("{} {line}\n", kernel.name()));
        }
    }
    if !lines.is_empty() {
        let opened = OpenOptions::new().create(true).append(true).open(file);
        let written = opened.and_then(|mut file| file.write_all(lines.concat().as_bytes()));
        written.expect("ZARRS_CUDA_TEST_EXECUTED can be written");
    }
}
