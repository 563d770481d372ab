//! Builds `target/gpu-bundle`, which runs on a machine with an NVIDIA driver but without Rust or a
//! network.

use crate::{Result, cargo, output, pypi, target};
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The largest size of the folder, in bytes.
const LIMIT: u64 = 60_000_000;

/// Builds the folder, with the nvCOMP library if `nvcomp`.
pub(crate) fn build(nvcomp: bool) -> Result<()> {
    let folder = target().join("gpu-bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    create(&folder)?;

    // The same profile as elsewhere: with overflow checks and debug assertions.
    let engine = executable("zarrs_cuda_engine", &["--profile", "test", "--lib"])?;
    let engine = binary(&engine, &folder.join("zarrs_cuda-engine-tests"))?;
    let tests = executable("zarrs_cuda", &["--profile", "test", "--lib"])?;
    let tests = binary(&tests, &folder.join("zarrs_cuda-tests"))?;
    let bench = executable(
        "zarrs_cuda_benches",
        &["--profile", "bench", "--bench", "device"],
    )?;
    let bench = binary(&bench, &folder.join("zarrs_cuda-bench"))?;
    let glibc = needed_glibc(&[&engine, &tests, &bench])?;
    write(&folder.join("glibc"), format!("{glibc}\n").as_bytes())?;
    if nvcomp {
        add_nvcomp(&folder.join("nvcomp"))?;
    }
    add_scan(&folder.join("bold.zarr"))?;
    copy_folder(Path::new("tests/foreign"), &folder.join("foreign"))?;
    copy(Path::new("xtask/gpu-bundle.sh"), &folder.join("run.sh"))?;
    let commit = output(Command::new("git").args(["describe", "--always", "--dirty"]))?;
    write(&folder.join("commit"), commit.trim().as_bytes())?;

    let bytes = size(&folder)?;
    println!(
        "{}: {} MB, for glibc {glibc} or newer",
        folder.display(),
        bytes.div_ceil(1_000_000)
    );
    if bytes > LIMIT {
        return Err(format!("the bundle may have {LIMIT} bytes, not {bytes}"));
    }
    println!("copy it to a machine with a GPU and run: bash gpu-bundle/run.sh");
    Ok(())
}

/// Builds the target of `package` that `arguments` of `cargo rustc` name. Links the C++ runtime statically,
/// which some compressors need: the other machine's may be older. Returns the
/// executable.
fn executable(package: &str, arguments: &[&str]) -> Result<PathBuf> {
    let runtime = static_runtime()?;
    let mut command = cargo();
    command
        .args(["rustc", "--package", package])
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .args(["--", "-L"])
        .arg(format!("native={}", runtime.display()))
        .stderr(std::process::Stdio::inherit());
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let executables: Vec<PathBuf> = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| Some(message.get("executable")?.as_str()?.into()))
        .collect();
    match &executables[..] {
        [executable] => Ok(executable.clone()),
        _ => Err(format!(
            "{command:?} should build one executable: {executables:?}"
        )),
    }
}

/// Copies a binary to `to` without debug symbols.
fn binary(from: &Path, to: &Path) -> Result<PathBuf> {
    output(
        Command::new("strip")
            .arg("-o")
            .arg(to)
            .arg("--strip-debug")
            .arg(from),
    )?;
    Ok(to.to_owned())
}

/// Returns a folder that only holds `libstdc++.a`. A linker that searches it first uses the file
/// for `-lstdc++`.
///
/// `libgcc_s` stays dynamic, because every machine has it: the static one of GCC 12 needs a newer
/// glibc.
fn static_runtime() -> Result<PathBuf> {
    let name = "libstdc++.a";
    let compiler = env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let path = output(Command::new(compiler).arg(format!("-print-file-name={name}")))?;
    let folder = target().join("gpu-bundle-runtime");
    create(&folder)?;
    copy(Path::new(path.trim()), &folder.join(name))?;
    Ok(folder)
}

/// The newest version of glibc that one of `programs` needs. Fails if one needs the dynamic C++
/// runtime.
fn needed_glibc(programs: &[&Path]) -> Result<String> {
    let mut newest = Vec::new();
    for program in programs {
        let headers = output(Command::new("objdump").arg("-p").arg(program))?;
        if headers.contains("libstdc++") {
            let program = program.display();
            return Err(format!("{program} was linked with a shared libstdc++"));
        }
        newest = newest.max(newest_glibc(&headers));
    }
    let newest: Vec<String> = newest.iter().map(ToString::to_string).collect();
    Ok(newest.join("."))
}

/// The newest of the `GLIBC_` versions in the output of `objdump -p`.
fn newest_glibc(headers: &str) -> Vec<u32> {
    let versions = headers
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("GLIBC_"));
    // Skips GLIBC_PRIVATE and the like.
    let numbers =
        versions.filter_map(|version| version.split('.').map(|n| n.parse().ok()).collect());
    numbers.max().unwrap_or_default()
}

/// Adds nvCOMP's library, compressed, and its licence.
fn add_nvcomp(folder: &Path) -> Result<()> {
    let package = pypi::install("nvcomp.txt")?.join("nvidia/libnvcomp");
    let library = package.join("lib64/libnvcomp.so.6");
    let compressed = library.with_extension("6.xz");
    if !compressed.exists() {
        eprintln!("compressing {}", library.display());
        // The file is renamed when it is complete.
        let script = "import lzma, os, sys\n\
            data = open(sys.argv[1], 'rb').read()\n\
            open(sys.argv[2] + '~', 'wb').write(lzma.compress(data, preset=9))\n\
            os.rename(sys.argv[2] + '~', sys.argv[2])";
        let mut python = Command::new("python3");
        output(python.args(["-c", script]).arg(&library).arg(&compressed))?;
    }
    create(folder)?;
    copy(&compressed, &folder.join("libnvcomp.so.6.xz"))?;
    for text in ["LICENSE", "NOTICE"] {
        copy(&package.join(text), &folder.join(text))?;
    }
    Ok(())
}

/// Adds the scan of the command's demo, which the benchmark encodes, and its licence.
fn add_scan(to: &Path) -> Result<()> {
    copy_folder(Path::new("cli/data/bold.zarr"), to)?;
    copy(Path::new("cli/data/LICENSE"), &to.join("LICENSE"))
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    create(to)?;
    let error = |e: std::io::Error| format!("{}: {e}", from.display());
    for entry in fs::read_dir(from).map_err(error)? {
        let entry = entry.map_err(error)?;
        let to = to.join(entry.file_name());
        if entry.metadata().map_err(error)?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            copy(&entry.path(), &to)?;
        }
    }
    Ok(())
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(file, bytes).map_err(|e| format!("{}: {e}", file.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = fs::copy(from, to);
    copied
        .map(drop)
        .map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))
}

/// The size of all files in `folder`, in bytes.
fn size(folder: &Path) -> Result<u64> {
    let error = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut bytes = 0;
    for entry in fs::read_dir(folder).map_err(error)? {
        let entry = entry.map_err(error)?;
        let metadata = entry.metadata().map_err(error)?;
        bytes += if metadata.is_dir() {
            size(&entry.path())?
        } else {
            metadata.len()
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
