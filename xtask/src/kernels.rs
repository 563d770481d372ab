//! Compiles `kernels/*.cu` to `kernels/ptx/*.ptx`, and writes the table of kernels that the crate
//! embeds.

use crate::{
    Result, machine_code,
    nvjitlink::NvJitLink,
    nvrtc::Nvrtc,
    occupancy::{self, ARCHITECTURES},
    ptx::Module,
    ptxas::{self, Resources},
    pypi, target,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

const SOURCES: &str = "kernels";
const MODULES: &str = "kernels/ptx";
const TABLE: &str = "kernels/src/lib.rs";

const OPTIONS: [&str; 4] = [
    "--gpu-architecture=compute_70",
    "--std=c++17",
    "--include-path=kernels",
    // Without this, every module gets the constants of <nv/target>, which no kernel uses.
    "--define-macro=__NV_TARGET_H",
];

/// Architectures on which no kernel may spill or have a stack frame. They are the oldest that the
/// PTX supports, and every later generation for data centres or workstations.
const NO_SPILLS: [u32; 5] = [70, 80, 90, 100, 120];

/// Compiles all kernels, reports their resources, and writes changed files.
pub(crate) fn write() -> Result<()> {
    let toolchain = pypi::install("kernels-toolchain.txt")?;
    let modules = compile(&toolchain)?;
    report(&toolchain, &modules)?;

    let outputs = outputs(&modules);
    fs::create_dir_all(MODULES).map_err(|e| format!("{MODULES}: {e}"))?;
    for file in stale(&outputs)? {
        fs::remove_file(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        println!("removed {}", file.display());
    }
    for (file, text) in outputs {
        if fs::read_to_string(&file).ok().as_ref() != Some(&text) {
            fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
            println!("wrote {}", file.display());
        }
    }
    Ok(())
}

/// Compiles all kernels, reports their resources, and checks their machine code. Fails if the
/// checked-in files differ.
pub(crate) fn check() -> Result<()> {
    let toolchain = pypi::install("kernels-toolchain.txt")?;
    let modules = compile(&toolchain)?;
    report(&toolchain, &modules)?;
    let files: Vec<_> = modules
        .iter()
        .map(|module| assembled(&module.name))
        .collect();
    machine_code::check(&files, &target().join("kernels-toolchain/ptx"))?;
    let newest = pypi::install("kernels-machine-code.txt")?;
    NvJitLink::load(&newest.join("nvidia/cu13/lib/libnvJitLink.so.13"))?.check(&files)?;

    let outputs = outputs(&modules);
    let mut drifted = stale(&outputs)?;
    for (file, text) in outputs {
        if fs::read_to_string(&file).ok() != Some(text) {
            drifted.push(file);
        }
    }
    if drifted.is_empty() {
        return Ok(());
    }
    let mut message = String::from("these are not what the kernels compile to:\n");
    for file in drifted {
        let _ = writeln!(message, "    {}", file.display());
    }
    Err(message + "run: cargo xtask kernels")
}

fn compile(toolchain: &Path) -> Result<Vec<Module>> {
    let nvrtc = Nvrtc::load(&toolchain.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))?;
    let mut modules = Vec::new();
    let mut kernels = BTreeMap::new();
    for file in files(SOURCES, "cu")? {
        let source = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let name = file.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        let ptx = nvrtc.compile(&format!("{name}.cu"), &source, &OPTIONS)?;
        let module = Module::parse(name, format!("{}\n{ptx}", stamp(&file)?))?;
        for entry in &module.entries {
            if let Some(other) = kernels.insert(entry.name.clone(), module.name.clone()) {
                let name = &entry.name;
                return Err(format!(
                    "{name} is in both {other}.cu and {}.cu",
                    module.name
                ));
            }
        }
        modules.push(module);
    }
    if modules.is_empty() {
        return Err(format!("there are no kernels in {SOURCES}/"));
    }
    Ok(modules)
}

/// The first line of the module that `file` compiles to: a fingerprint of all that the compiler reads.
fn stamp(file: &Path) -> Result<String> {
    let mut read = BTreeSet::new();
    let mut left = vec![file.to_path_buf()];
    let mut fingerprint = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        // FNV-1a, of 64 bits.
        for byte in bytes {
            fingerprint = (fingerprint ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    while let Some(file) = left.pop() {
        if !read.insert(file.clone()) {
            continue;
        }
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        add(text.as_bytes());
        for line in text.lines() {
            let name = line
                .strip_prefix("#include \"")
                .and_then(|l| l.strip_suffix('"'));
            left.extend(name.map(|name| Path::new(SOURCES).join(name)));
        }
    }
    for option in OPTIONS {
        add(option.as_bytes());
    }
    Ok(format!(
        "// Of sources with the fingerprint {fingerprint:016x}."
    ))
}

/// The files with this extension, sorted.
fn files(folder: &str, extension: &str) -> Result<BTreeSet<PathBuf>> {
    let error = |e: std::io::Error| format!("{folder}: {e}");
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(error)? {
        let file = entry.map_err(error)?.path();
        if file.extension() == Some(OsStr::new(extension)) {
            files.insert(file);
        }
    }
    Ok(files)
}

/// Every generated file that is checked in, with its text.
fn outputs(modules: &[Module]) -> BTreeMap<PathBuf, String> {
    let file = |module: &Module| Path::new(MODULES).join(&module.name).with_extension("ptx");
    let mut outputs: BTreeMap<_, _> = modules
        .iter()
        .map(|module| (file(module), module.text.clone()))
        .collect();
    outputs.insert(TABLE.into(), table(modules));
    outputs
}

/// Checked-in modules whose kernels are gone.
fn stale(outputs: &BTreeMap<PathBuf, String>) -> Result<Vec<PathBuf>> {
    if !Path::new(MODULES).exists() {
        return Ok(Vec::new());
    }
    let modules = files(MODULES, "ptx")?.into_iter();
    Ok(modules.filter(|f| !outputs.contains_key(f)).collect())
}

/// The source that embeds the modules.
fn table(modules: &[Module]) -> String {
    let mut text = String::from(
        "\
//! The CUDA kernels of `zarrs_cuda`, compiled to PTX. No promise of semantic versioning covers them.
//!
//! Written by `cargo xtask kernels`: do not edit.

/// The PTX of one file of kernels.
#[derive(Debug)]
pub struct Module {
    /// The name of the file, without its extension.
    pub name: &'static str,
    /// The PTX of the module.
    pub text: &'static str,
}

",
    );
    for Module { name, .. } in modules {
        let constant = name.to_uppercase();
        let _ = writeln!(
            text,
            "static {constant}: Module = Module {{\n    name: \"{name}\",\n    \
             text: include_str!(\"../ptx/{name}.ptx\"),\n}};"
        );
    }
    text.push_str("\n/// Every kernel, and the module that it is in.\n");
    let mut kernels = String::new();
    for module in modules {
        let constant = module.name.to_uppercase();
        for entry in &module.entries {
            let _ = writeln!(kernels, "    (\"{}\", &{constant}),", entry.name);
        }
    }
    let _ = writeln!(
        text,
        "pub static KERNELS: &[(&str, &Module)] = &[\n{kernels}];"
    );
    text
}

/// The file with a module that assemblers read.
fn assembled(module: &str) -> PathBuf {
    let folder = target().join("kernels-toolchain/ptx");
    folder.join(module).with_extension("ptx")
}

/// Prints the resources of each kernel. Fails if one spills.
fn report(toolchain: &Path, modules: &[Module]) -> Result<()> {
    let assembler = toolchain.join("nvidia/cuda_nvcc/bin/ptxas");
    // Files for the assembler, which reads no other input.
    let folder = target().join("kernels-toolchain/ptx");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;

    let mut lines = vec![heading()];
    let mut spills = String::new();
    for module in modules {
        let file = assembled(&module.name);
        fs::write(&file, &module.text).map_err(|e| format!("{}: {e}", file.display()))?;
        let mut on = BTreeMap::new();
        for sm in NO_SPILLS {
            let functions = ptxas::resources(&assembler, &file, sm)?;
            for (function, Resources { local, .. }) in &functions {
                if *local > 0 {
                    let module = &module.name;
                    let _ = writeln!(
                        spills,
                        "{module}.cu: {function} keeps {local} bytes per thread in memory on sm_{sm}"
                    );
                }
            }
            on.insert(sm, BTreeMap::from_iter(functions));
        }
        for entry in &module.entries {
            let mut line = format!("{:<10} {:<28} {:>5}", module.name, entry.name, entry.block);
            for architecture in &ARCHITECTURES {
                let resources = on.get(&architecture.sm).and_then(|f| f.get(&entry.name));
                let resources = resources.ok_or_else(|| {
                    format!(
                        "ptxas says nothing about {} on sm_{}",
                        entry.name, architecture.sm
                    )
                })?;
                let percent = occupancy::percent(architecture, entry.block, resources);
                let Resources {
                    registers, shared, ..
                } = resources;
                let _ = write!(line, " | {registers:>4} {shared:>6} {percent:>4}%");
            }
            lines.push(line);
        }
    }
    println!("{}", lines.join("\n"));
    if spills.is_empty() {
        Ok(())
    } else {
        Err(spills)
    }
}

fn heading() -> String {
    let mut first = format!("{:45}", "registers per thread, bytes shared, occupancy");
    let mut second = format!("{:<10} {:<28} {:>5}", "file", "kernel", "block");
    for architecture in &ARCHITECTURES {
        let name = format!("sm_{}", architecture.sm);
        let _ = write!(first, " | {name:<17}");
        let _ = write!(second, " | {:>4} {:>6} {:>5}", "reg", "shared", "occ");
    }
    format!("{first}\n{second}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The PTX that is executed by tests, and shipped, is of these sources. No compiler is needed to see
    /// that it is not.
    #[test]
    fn modules_are_of_these_sources() {
        std::env::set_current_dir(crate::root()).expect("the repository");
        for file in files(SOURCES, "cu").expect("sources") {
            let stamp = stamp(&file).expect("readable");
            let module = Path::new(MODULES)
                .join(file.file_stem().unwrap_or_default())
                .with_extension("ptx");
            let text = fs::read_to_string(&module).expect("a module");
            assert_eq!(
                text.lines().next(),
                Some(&*stamp),
                "{} is stale: run `cargo xtask kernels`",
                module.display()
            );
        }
    }
}
