//! Compiles the stand-ins: shared libraries, each with libzstd inside.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Macros and their values.
type Defines = &'static [(&'static str, &'static str)];

/// The folder of each library, its major version, and the macros that define its variant.
const LIBRARIES: [(&str, u32, Defines); 10] = [
    ("six", 6, &[]),
    (
        "five",
        5,
        &[
            ("STAND_IN_VERSION", "5300"),
            ("STAND_IN_INPUT", "2"),
            ("STAND_IN_OUTPUT", "16"),
            ("STAND_IN_TEMP", "32"),
        ],
    ),
    ("four", 4, &[("STAND_IN_VERSION", "4200")]),
    ("seven", 7, &[("STAND_IN_VERSION", "7000")]),
    ("failing", 6, &[("STAND_IN_FAIL_EVERY", "3")]),
    ("refusing", 6, &[("STAND_IN_REFUSES", "1")]),
    (
        "coarse",
        6,
        &[
            ("STAND_IN_INPUT", "256"),
            ("STAND_IN_OUTPUT", "256"),
            ("STAND_IN_TEMP", "256"),
        ],
    ),
    (
        "incomplete",
        6,
        // Functions with other names are not found.
        &[
            (
                "nvcompBatchedLZ4CompressGetMaxOutputChunkSize",
                "stand_in_absent_1",
            ),
            ("nvcompBatchedDeflateDecompressAsync", "stand_in_absent_2"),
        ],
    ),
    ("nodevice", 6, &[("STAND_IN_NO_DEVICE", "1")]),
    (
        "noproperties",
        6,
        &[("nvcompGetProperties", "stand_in_absent")],
    ),
];

const CODECS: [&str; 3] = ["deflate.c", "lz4.c", "zstd.c"];

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let zstd = PathBuf::from(env::var_os("DEP_ZSTD_ROOT").expect("set by zstd-sys"));
    println!("cargo::rustc-env=STAND_IN_LIBRARIES={}", out.display());
    for name in CODECS.iter().chain(&["stand_in.c", "abi.h", "codecs.h"]) {
        println!("cargo::rerun-if-changed={}", here.join(name).display());
    }

    let codecs = compiler(&zstd)
        .files(CODECS.map(|name| here.join(name)))
        .compile_intermediates();
    for (folder, major, defines) in LIBRARIES {
        let folder = out.join(folder);
        fs::create_dir_all(&folder).expect("OUT_DIR can be written");
        let mut build = compiler(&zstd);
        for &(name, value) in defines {
            build.define(name, value);
        }
        let object = build
            .out_dir(&folder)
            .file(here.join("stand_in.c"))
            .compile_intermediates();
        link(
            &build,
            object.iter().chain(&codecs),
            &zstd.join("libzstd.a"),
            &folder.join(format!("libnvcomp.so.{major}")),
        );
    }
}

fn compiler(zstd: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .std("c11")
        .opt_level(2)
        .debug(true)
        .pic(true)
        .include(zstd.join("include"))
        // The symbols of libzstd are neither exported nor taken from another library.
        .flag("-fvisibility=hidden");
    build
}

fn link<'a>(
    build: &cc::Build,
    objects: impl Iterator<Item = &'a PathBuf>,
    archive: &Path,
    library: &Path,
) {
    let mut command: Command = build.get_compiler().to_command();
    command
        .args(["-shared", "-Wl,-Bsymbolic", "-Wl,--exclude-libs,ALL"])
        .arg("-o")
        .arg(library)
        .args(objects)
        .arg(archive)
        .arg("-ldl"); // part of libc since glibc 2.34
    let status = command.status().expect("the C compiler runs");
    assert!(status.success(), "{command:?}: {status}");
}
