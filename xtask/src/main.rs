//! Tasks of this repository. `cargo xtask` lists them.

#![deny(unsafe_code)]

mod arrows;
mod book;
mod bundle;
mod charts;
mod cudarc;
mod deny;
mod diagrams;
mod fuzz;
mod kernels;
mod lines;
mod links;
mod machine_code;
mod mutants;
mod nvcomp;
#[allow(unsafe_code)]
mod nvjitlink;
#[allow(unsafe_code)]
mod nvrtc;
mod occupancy;
mod packages;
mod ptx;
mod ptxas;
mod public;
mod pypi;
mod sources;
mod style;
mod svg;
mod troubles;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// The error of a task, as text for people.
type Result<T> = std::result::Result<T, String>;

const USAGE: &str = "\
cargo xtask kernels             compile kernels/*.cu to kernels/ptx, and report what each kernel takes
cargo xtask kernels --check     compile without writing; fail if kernels/ptx is not what comes out
cargo xtask mutants [MODULE...] say which instructions of the kernels the tests execute; leave out each
                                barrier, and change other instructions, to see whether a test fails
            --count N           so many changes of chance; 500 unless it is given
            --seed N            others than those of seed 1
cargo xtask fuzz [TARGET...]    let libFuzzer look for inputs that fail, with cargo-fuzz
            --minutes N         so long for each target; 1 unless it is given
cargo xtask arrows              compare what uses what in src with the rooms of docs/architecture.md
cargo xtask troubles            check that docs/guide/troubleshooting.md has each error and warning
cargo xtask lines               count the lines of code in src, by folder
cargo xtask links               check the links of the documentation, on GitHub and in target/doc
cargo xtask book                render the documentation to target/book, and check the links of its pages
cargo xtask charts              draw docs/images/*.svg and render docs/results/*.md from benches/results
cargo xtask charts --check      fail if they are not what comes out
cargo xtask style               check how comments begin
cargo xtask diagrams            draw docs/images/*.svg
cargo xtask diagrams --check    draw without writing; fail if docs/images is not what comes out
cargo xtask public              check that no public item of the library shows the engine's types
cargo xtask deny                check licences, sources and advisories of all dependencies
cargo xtask packages            compile the published packages as users get them, in an empty folder
cargo xtask cudarc              compile the engine for applications with cudarc for other versions
                                of CUDA
cargo xtask nvcomp-check        compare what we assume of nvCOMP with its headers and libraries
cargo xtask gpu-bundle          build target/gpu-bundle, a folder that runs the GPU suites and the
                                benchmark on a machine with an NVIDIA driver and no Rust
            --without-nvcomp    leave out NVIDIA's library of compressors";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // Compilers see relative paths, so that the repository's place does not matter.
    let run = || {
        env::set_current_dir(root()).map_err(|e| format!("{}: {e}", root().display()))?;
        match arguments[..] {
            ["cudarc"] => cudarc::check(),
            ["packages"] => packages::check(),
            ["public"] => public::check(),
            ["kernels"] => kernels::write(),
            ["kernels", "--check"] => kernels::check(),
            ["mutants", ref arguments @ ..] => mutants::run(arguments),
            ["fuzz", ref arguments @ ..] => fuzz::fuzz(arguments),
            ["arrows"] => arrows::check(),
            ["troubles"] => troubles::check(),
            ["lines"] => lines::print(),
            ["charts"] => charts::write(),
            ["charts", "--check"] => charts::check(),
            ["links"] => links::check(),
            ["book"] => book::build(),
            ["deny"] => deny::check(),
            ["style"] => style::check(),
            ["diagrams"] => diagrams::write(),
            ["diagrams", "--check"] => diagrams::check(),
            ["nvcomp-check"] => nvcomp::check(),
            ["gpu-bundle"] => bundle::build(true),
            ["gpu-bundle", "--without-nvcomp"] => bundle::build(false),
            _ => Err(USAGE.into()),
        }
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the repository.
fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Cargo's target directory.
fn target() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(target)
}

/// The cargo that runs this task.
fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs `command` with visible output.
fn run(command: &mut Command) -> Result<()> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Runs `command`, and returns its output.
fn output(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(format!("{stdout}{stderr}"))
    } else {
        Err(format!("{command:?}: {}\n{stdout}{stderr}", output.status))
    }
}
