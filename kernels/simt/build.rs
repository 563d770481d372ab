//! Compiles the kernels as host C++, with the emulator.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let kernels = here.parent().expect("kernels/").to_path_buf();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .debug(true)
        .include(&here)
        .flag(format!("-fmacro-prefix-map={}/=", kernels.display()))
        .flag("-fno-strict-aliasing")
        .file(here.join("simt.cpp"));
    for header in [
        kernels.join("device.h"),
        here.join("simt.h"),
        here.join("simt.cpp"),
    ] {
        println!("cargo::rerun-if-changed={}", header.display());
    }
    let mut declarations = String::from("#include \"simt.h\"\n");
    let mut list = String::new();
    let mut count = 0;
    for directory in [kernels.clone(), here.join("tests")] {
        println!("cargo::rerun-if-changed={}", directory.display());
        for source in sources(&directory) {
            println!("cargo::rerun-if-changed={}", source.display());
            let wrapper = out.join(format!("kernels_{count}.cpp"));
            let text = format!(
                "#include \"{}\"\n#include \"{}\"\nSIMT_TABLE(simt_table_{count})\n",
                source.display(),
                kernels.join("device.h").display(),
            );
            fs::write(&wrapper, text).expect("a file in OUT_DIR");
            build.file(wrapper);
            writeln!(declarations, "extern const simt::Table simt_table_{count};").expect("text");
            write!(list, "&simt_table_{count}, ").expect("text");
            count += 1;
        }
    }
    let tables = out.join("tables.cpp");
    let text = format!(
        "{declarations}extern const simt::Table* const simt_tables[];\n\
         extern const size_t simt_table_count;\n\
         const simt::Table* const simt_tables[] = {{{list}nullptr}};\n\
         const size_t simt_table_count = {count};\n"
    );
    fs::write(&tables, text).expect("a file in OUT_DIR");
    build.file(tables).compile("zarrs_cuda_simt");
}

/// The kernels in `directory`, in order.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut sources: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    sources.sort();
    sources
}
