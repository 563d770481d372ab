//! `zarrs-cuda doctor` never fails; `plan` says what it should.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::program::{json, program, said, said_with_code};

#[test]
fn doctor_without_a_path_and_with_wrong_ones() {
    let folder = TempDir::new().unwrap();
    let text = said(&[&"doctor"], 0);
    assert!(text.contains("nvCOMP"), "{text}");
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
    }
}

/// A driver whose every function fails, and files that are no libraries.
#[cfg(target_os = "linux")]
#[test]
fn doctor_with_broken_libraries() {
    let folder = TempDir::new().unwrap();
    let source = folder.path().join("stub.c");
    let functions = [
        "cuInit",
        "cuDriverGetVersion",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetAttribute",
        "cuDeviceTotalMem_v2",
        "cuGetErrorName",
        "cuGetErrorString",
        "cuDevicePrimaryCtxRetain",
        "cuDevicePrimaryCtxRelease_v2",
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuMemGetInfo_v2",
    ];
    let code: Vec<_> = functions
        .iter()
        .map(|name| format!("int {name}() {{ return 999; }}\n"))
        .collect();
    fs::write(&source, code.concat()).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
    let library = folder.path().join("libcuda.so.1");
    let compiled = Command::new(compiler)
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([&library, &source])
        .status();
    assert!(
        compiled.unwrap().success(),
        "the library needs a C compiler as well"
    );
    fs::write(folder.path().join("libnvcomp.so.6"), "no library").unwrap();
    let mut doctor = program();
    doctor.arg("doctor").env("LD_LIBRARY_PATH", folder.path());
    let text = said_with_code(&doctor.output().unwrap(), 0);
    assert!(text.contains("devices: none: "), "{text}");
    // Without any function.
    fs::write(&library, "no library").unwrap();
    let text = said_with_code(&doctor.output().unwrap(), 0);
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
