//! `zarrs-cuda doctor` says what can be used, and fails if a setting asks for more; `plan` says what it should.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use zarrs_cuda::{Backend, Options};

use crate::program::{json, program, said, said_with_code};

#[test]
fn doctor_without_a_path_and_with_wrong_ones() {
    let folder = TempDir::new().unwrap();
    let text = said(&[&"doctor"], 0);
    assert!(text.contains("nvCOMP"), "{text}");
    assert!(text.contains(" ms on the host"), "{text}");
    let text = said(&[&"doctor", &folder.path()], 0);
    assert!(text.contains("replace a file by renaming: "), "{text}");
    assert!(!text.contains("failed"), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let text = said(&[&"doctor", &folder.path().join("none")], 0);
    assert!(text.contains("write a file: failed"), "{text}");
    assert!(text.contains("not promised"), "{text}");
    let has_gpu = zarrs_cuda::check_backend(&cuda()).is_ok();
    for (backend, code) in [("auto", 0), ("host", 0), ("cuda", u8::from(!has_gpu))] {
        let found = json(&[&"doctor", &"--backend", &backend], i32::from(code));
        assert_eq!(found["use"]["is_well"], code == 0, "{found}");
        assert_eq!(found["chains"].as_array().unwrap().len(), 4, "{found}");
        let estimates = found["estimates"].as_array().unwrap();
        assert_eq!(estimates.len(), 6, "{found}");
        for estimate in estimates {
            assert!(
                estimate["seconds"]["host"].as_f64().unwrap() > 0.0,
                "{found}"
            );
        }
    }
}

fn cuda() -> Options {
    Options::default().with_backend(Backend::Cuda)
}

/// Each setting gives one sentence, and the exit code says whether it can be kept.
#[test]
fn doctor_says_whether_arrays_use_gpus() {
    let said = |options: &[&str], variable: Option<(&str, &str)>, code: i32| {
        let mut doctor = program();
        doctor
            .args(["doctor", "--json"])
            .args(options)
            .envs(variable);
        let output = doctor.output().unwrap();
        said_with_code(&output, code);
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found["use"]["is_well"], code == 0, "{found}");
        found["use"]["text"].as_str().unwrap().to_string()
    };
    let text = said(&["--devices", "4096"], None, 1);
    assert!(text.contains("--devices names GPU 4096"), "{text}");
    let text = said(&["--devices", "4096", "--backend", "cuda"], None, 1);
    assert!(
        text.starts_with("the backend is `cuda`, so every read"),
        "{text}"
    );
    let text = said(&[], Some(("ZARRS_CUDA_DEVICES", "4096")), 1);
    assert!(text.contains("ZARRS_CUDA_DEVICES names GPU 4096"), "{text}");
    let text = said(&[], Some(("ZARRS_CUDA_DEVICES", "first")), 1);
    assert!(text.contains("ZARRS_CUDA_DEVICES is \"first\""), "{text}");
    let text = said(&[], Some(("ZARRS_CUDA_BACKEND", "host")), 0);
    assert_eq!(
        text,
        "arrays use no GPU: ZARRS_CUDA_BACKEND asked for the host"
    );
    let text = said(
        &["--devices", "4096"],
        Some(("ZARRS_CUDA_BACKEND", "host")),
        0,
    );
    assert_eq!(
        text,
        "arrays use no GPU: ZARRS_CUDA_BACKEND asked for the host"
    );
    let text = said(
        &["--backend", "host"],
        Some(("ZARRS_CUDA_BACKEND", "cuda")),
        0,
    );
    assert_eq!(text, "arrays use no GPU: the options asked for the host");
    let text = said(&[], None, 0);
    assert!(
        text.starts_with("arrays use no GPU: no GPU was asked for"),
        "{text}"
    );
}

#[test]
fn doctor_names_unknown_variables() {
    let mut doctor = program();
    doctor.arg("doctor").env("ZARRS_CUDA_DEVICE", "0");
    let text = said_with_code(&doctor.output().unwrap(), 0);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("ZARRS_CUDA_DEVICE in the environment does nothing"),
        "{text}"
    );
    assert!(text.contains("Did you mean ZARRS_CUDA_DEVICES?"), "{text}");
}

/// A program may always run `doctor`, with whatever arguments it begins: the process that looks begins no other.
#[test]
fn doctor_in_the_process_that_looks_reports_and_begins_no_process() {
    let folder = TempDir::new().unwrap();
    for arguments in [&["doctor"][..], &["doctor", "--json"]] {
        let mut doctor = program();
        doctor
            .args(arguments)
            .arg(folder.path())
            .env("ZARRS_CUDA_DOCTOR_LOOKS", "1");
        let output = doctor.output().unwrap();
        said_with_code(&output, 0);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["members"]["use"]["is_well"].is_boolean(), "{report}");
    }
}

/// A driver that hangs or crashes costs the process that looks, and nothing else.
#[cfg(target_os = "linux")]
#[test]
fn doctor_with_a_driver_that_hangs_or_crashes() {
    let folder = TempDir::new().unwrap();
    for (body, said) in [
        (
            "for (;;) pause();",
            "did not end in 2 s: the NVIDIA driver hangs",
        ),
        // The end of the output is not the end of the process.
        (
            "close(1); for (;;) pause();",
            "did not end in 2 s: the NVIDIA driver hangs",
        ),
        ("abort();", "ended by the signal 6 (SIGABRT)"),
        (
            "*(volatile int *)8 = 1; return 0;",
            "ended by the signal 11 (SIGSEGV)",
        ),
        ("_exit(3);", "ended with the exit code 3"),
    ] {
        stub_driver(
            folder.path(),
            &format!(
                "#include <signal.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
                 int cuDriverGetVersion(int *version) {{ *version = 12040; return 0; }}\n\
                 int cuInit(unsigned flags) {{ {body} }}\n"
            ),
        );
        let mut doctor = program();
        doctor.args(["doctor", "--limit", "2"]);
        doctor.env("LD_LIBRARY_PATH", folder.path());
        let output = doctor.output().unwrap();
        let text = said_with_code(&output, 1);
        // The first lines, and the others in lines of the width of the output.
        assert!(text.starts_with("zarrs-cuda "), "{text}");
        assert!(text.contains("\nhuge pages: "), "{text}");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(said), "{text}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(said), "{error}");
    }
}

/// Makes a CUDA driver with every function that the library looks for. Each fails, but for those that
/// `but` defines.
#[cfg(target_os = "linux")]
fn stub_driver(folder: &Path, but: &str) {
    let list = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/engine/src/cuda/driver/cuda/functions.rs");
    let list = fs::read_to_string(list).unwrap();
    let mut functions: Vec<_> = list
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .filter(|word| {
            word.strip_prefix("cu")
                .is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()))
        })
        .collect();
    functions.sort_unstable();
    functions.dedup();
    assert!(functions.contains(&"cuInit") && functions.contains(&"cuDriverGetVersion"));
    let failing = functions
        .iter()
        .filter(|name| !but.contains(&format!("{name}(")))
        .map(|name| format!("int {name}() {{ return 999; }}\n"));
    compiled(
        folder,
        &(but.to_string() + &failing.collect::<String>()),
        &[],
    );
}

/// Compiles `code` in the place of a CUDA driver in `folder`, with more `options` of the compiler. Returns the
/// file.
#[cfg(target_os = "linux")]
fn compiled(folder: &Path, code: &str, options: &[&str]) -> PathBuf {
    let (source, file) = (folder.join("stub.c"), folder.join("libcuda.so.1"));
    fs::write(&source, code).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
    let compiled = Command::new(compiler)
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([&file, &source])
        .args(options)
        .status();
    assert!(
        compiled.unwrap().success(),
        "the library needs a C compiler as well"
    );
    file
}

/// Drivers that fail, and files that are no libraries.
#[cfg(target_os = "linux")]
#[test]
fn doctor_with_broken_libraries() {
    let folder = TempDir::new().unwrap();
    let doctor = |options: &[&str]| {
        let mut doctor = program();
        doctor.arg("doctor").args(options);
        doctor.env("LD_LIBRARY_PATH", folder.path());
        said_with_code(&doctor.output().unwrap(), 0)
    };
    fs::write(folder.path().join("libnvcomp.so.6"), "no library").unwrap();
    stub_driver(folder.path(), "");
    let text = doctor(&[]);
    assert!(text.contains("devices: none: "), "{text}");
    assert!(text.contains("does not tell its version"), "{text}");
    assert!(!text.contains("for CUDA"), "{text}");
    // It says its version, and no more.
    stub_driver(
        folder.path(),
        "int cuDriverGetVersion(int *version) { *version = 12040; return 0; }\n",
    );
    let text = doctor(&[]);
    assert!(text.contains("\ndriver: for CUDA 12.4"), "{text}");
    assert!(text.contains("devices: none: "), "{text}");
    let found: serde_json::Value = serde_json::from_str(&doctor(&["--json"])).unwrap();
    assert_eq!(found["machine"]["driver"]["cuda"], "12.4");
    // It is too old.
    stub_driver(
        folder.path(),
        "int cuDriverGetVersion(int *version) { *version = 11080; return 0; }\n",
    );
    let text = doctor(&[]);
    assert!(text.contains("\ndriver: for CUDA 11.8"), "{text}");
    assert!(text.contains("525 or newer"), "{text}");
    // Files that are there and cannot be loaded: the loader's own words.
    let unwrapped = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let file = folder.path().join("libcuda.so.1");
    fs::write(&file, "no library").unwrap();
    let text = unwrapped(doctor(&[]));
    assert!(text.contains("is there and cannot be loaded: "), "{text}");
    assert!(
        text.contains("file too short") || text.contains("invalid ELF header"),
        "{text}"
    );
    assert!(!text.contains("no CUDA driver is installed"), "{text}");
    // A library for another machine.
    let mut library = fs::read(compiled(folder.path(), "int nothing;\n", &[])).unwrap();
    library[18] = 243; // RISC-V, in the header of the ELF format
    fs::remove_file(&file).unwrap();
    fs::write(&file, library).unwrap();
    let text = unwrapped(doctor(&[]));
    assert!(text.contains("is there and cannot be loaded: "), "{text}");
    // A library that needs one that is absent.
    let needed = folder.path().join("libneeded.so");
    fs::rename(compiled(folder.path(), "int needed;\n", &[]), &needed).unwrap();
    let with = format!("-L{}", folder.path().display());
    compiled(
        folder.path(),
        "extern int needed; int f() { return needed; }\n",
        &[&with, "-Wl,--no-as-needed", "-lneeded"],
    );
    fs::remove_file(&needed).unwrap();
    let text = unwrapped(doctor(&[]));
    assert!(
        text.contains("cannot be loaded: libneeded.so: cannot open"),
        "{text}"
    );
}

#[test]
fn plans_are_commands_that_work() {
    let folder = TempDir::new().unwrap();
    let plan = json(
        &[
            &"plan",
            &"--shape",
            &"50,40,30",
            &"--dtype",
            &"uint16",
            &"--rate",
            &"10",
        ],
        0,
    );
    let text = |key: &str| {
        let extents = plan[key]
            .as_array()
            .unwrap()
            .iter()
            .map(ToString::to_string);
        extents.collect::<Vec<_>>().join(",")
    };
    let raw = folder.path().join("raw");
    fs::write(&raw, vec![1_u8; 50 * 40 * 30 * 2]).unwrap();
    let out = folder.path().join("out");
    said(
        &[
            &"stream",
            &out,
            &raw,
            &"--frame-shape",
            &"40,30",
            &"--dtype",
            &"uint16",
            &"--shard",
            &text("shard"),
            &"--subchunk",
            &text("subchunk"),
        ],
        0,
    );
    // A stream that is told no shapes takes those of the plan.
    let plan = json(
        &[
            &"plan",
            &"--shape",
            &"100000000,40,3000",
            &"--dtype",
            &"uint16",
            &"--rate",
            &"10",
        ],
        0,
    );
    let out = folder.path().join("without shapes");
    said(
        &[
            &"stream",
            &out,
            &raw,
            &"--frame-shape",
            &"40,3000",
            &"--dtype",
            &"uint16",
            &"--frames",
            &"1",
        ],
        1, // the input is half a frame
    );
    let metadata = fs::read_to_string(out.join("zarr.json")).unwrap();
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let shape = |of: &serde_json::Value| of["configuration"]["chunk_shape"].clone();
    assert_eq!(shape(&metadata["chunk_grid"]), plan["shard"]);
    assert_eq!(shape(&metadata["codecs"][0]), plan["subchunk"]);
    for arguments in [
        &["--shape", "4,4", "--dtype", "word"][..],
        &["--shape", "4,4", "--dtype", "string"],
        &["--shape", "", "--dtype", "uint8"],
        &["--shape", "4", "--dtype", "uint8", "--rate", "-1"],
        &["--dtype", "uint8"],
    ] {
        let mut plan = program();
        plan.arg("plan").args(arguments);
        said_with_code(&plan.output().unwrap(), 2);
    }
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let text = said(&[&"completions", &shell], 0);
        assert!(text.contains("reencode"), "{text}");
    }
    let folder = TempDir::new().unwrap();
    said(&[&"man", &folder.path()], 0);
    assert!(folder.path().join("zarrs-cuda-verify.1").is_file());
}
