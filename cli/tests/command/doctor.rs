//! `zarrs-cuda doctor` never fails; `plan` says what it should.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

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
    for backend in ["auto", "host", "cuda"] {
        let found = json(&[&"doctor", &"--backend", &backend], 0);
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
    let code = failing.collect::<String>() + but;
    let source = folder.join("stub.c");
    fs::write(&source, code).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
    let compiled = Command::new(compiler)
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([&folder.join("libcuda.so.1"), &source])
        .status();
    assert!(
        compiled.unwrap().success(),
        "the library needs a C compiler as well"
    );
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
    // Without any function.
    fs::write(folder.path().join("libcuda.so.1"), "no library").unwrap();
    let text = doctor(&[]);
    assert!(text.contains("devices: none: "), "{text}");
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
