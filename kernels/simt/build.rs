//! Compiles the kernels as host C++, together with the emulator.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let kernels = here
        .parent()
        .expect("the crate is in kernels/")
        .to_path_buf();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));

    println!("cargo::rerun-if-env-changed={SANITIZE}");
    let sanitizer = Sanitizer::from_env();
    println!("cargo::rustc-env=SIMT_SANITIZER={}", sanitizer.name());

    // The emulator is not instrumented: it tells the sanitizers what it does.
    let mut emulator = compiler(&kernels);
    for name in sanitizer.defines() {
        emulator.define(name, None);
    }
    let emulator = emulator
        .include(&here)
        .file(here.join("simt.cpp"))
        .compile_intermediates();

    let mut build = compiler(&kernels);
    for flag in sanitizer.flags() {
        build.flag(flag);
    }
    for object in emulator {
        build.object(object);
    }
    // Before the standard library of C++: a sanitizer's runtime has to be loaded first.
    for library in sanitizer.libraries() {
        println!("cargo::rustc-link-lib=dylib={library}");
    }

    for name in ["fiber.h", "sectors.h", "simt.cpp", "simt.h"] {
        println!("cargo::rerun-if-changed={}", here.join(name).display());
    }
    let device = kernels.join("device.h");
    println!("cargo::rerun-if-changed={}", device.display());
    let mut declarations = String::new();
    let mut list = String::new();
    let mut count = 0;
    for directory in [kernels, here.join("tests")] {
        println!("cargo::rerun-if-changed={}", directory.display());
        for source in sources(&directory) {
            println!("cargo::rerun-if-changed={}", source.display());
            let text = format!(
                "#include \"{}\"\n#include \"{}\"\nSIMT_TABLE(simt_table_{count})\n",
                source.display(),
                device.display(),
            );
            build.file(write(&out, &format!("kernels_{count}.cpp"), &text));
            writeln!(declarations, "extern const simt::Table simt_table_{count};")
                .expect("memory for text");
            write!(list, "&simt_table_{count}, ").expect("memory for text");
            count += 1;
        }
    }
    let text = format!(
        "#include \"{}\"\n\
         {declarations}\
         extern const simt::Table* const simt_tables[] = {{{list}nullptr}};\n\
         extern const size_t simt_table_count = {count};\n",
        here.join("simt.h").display(),
    );
    build.file(write(&out, "tables.cpp", &text));
    build.compile("zarrs_cuda_simt");
}

const SANITIZE: &str = "ZARRS_CUDA_SIMT_SANITIZE";

#[derive(Clone, Copy)]
enum Sanitizer {
    None,
    Address,
    Thread,
}

impl Sanitizer {
    fn from_env() -> Self {
        match env::var(SANITIZE).as_deref() {
            Err(_) | Ok("") => Self::None,
            Ok("address") => Self::Address,
            Ok("thread") => Self::Thread,
            Ok(other) => panic!("{SANITIZE} is address, thread or nothing, not {other}"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Address => &[
                "-fsanitize=address,undefined",
                "-fno-sanitize-recover=all",
                "-fsanitize-address-use-after-scope",
            ],
            Self::Thread => &["-fsanitize=thread"],
        }
    }

    fn defines(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Address => &["SIMT_ADDRESS"],
            Self::Thread => &["SIMT_THREAD"],
        }
    }

    fn libraries(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Address => &["asan", "ubsan"],
            Self::Thread => &["tsan"],
        }
    }
}

/// What all files are compiled with. Optimised, whatever the profile: tests run many launches.
fn compiler(kernels: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .debug(true)
        .flag("-fno-strict-aliasing")
        .flag("-fno-omit-frame-pointer")
        // Messages name kernels by their path below kernels/.
        .flag(format!("-fmacro-prefix-map={}/=", kernels.display()));
    build
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).expect("OUT_DIR can be written");
    path
}

/// The kernels in `directory`, in order.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut sources: Vec<_> = fs::read_dir(directory)
        .expect("a directory of kernels")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    sources.sort();
    sources
}
