//! Tests and examples in processes of their own.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Returns a command that runs one test of this program in a process of its own. `module` is the
/// `module_path!()` of `test`. `ignored` says whether the test has `#[ignore]`.
pub fn again(module: &str, test: &str, ignored: bool) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    };
    command.args(["--exact", &name, "--nocapture", "--test-threads=1"]);
    if ignored {
        command.arg("--ignored");
    }
    command
}

/// Fails unless the process succeeded and one test passed in it. Returns its output.
pub fn assert_passed(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{}\n{text}", output.status);
    // The test did run: the filter did not leave it out.
    assert!(text.contains("1 passed"), "no test ran: {text}");
    text
}

/// Runs `body` in a process of its own. That process runs the calling test again: `test` in `module`, which is
/// its `module_path!()`. Returns its output, or none in the process that has run `body`.
pub fn on_its_own(module: &str, test: &str, body: impl FnOnce()) -> Option<String> {
    const PROCESS: &str = "ZARRS_CUDA_TEST_PROCESS";
    if std::env::var(PROCESS).is_ok_and(|process| process == test) {
        body();
        return None;
    }
    let output = again(module, test, false).env(PROCESS, test).output();
    Some(assert_passed(&output.unwrap()))
}

/// The path of an example's program. A test is TARGET/PROFILE/deps/NAME-HASH, and an example is in
/// TARGET/PROFILE/examples.
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(name);
    let program = program.with_extension(std::env::consts::EXE_EXTENSION);
    assert!(
        program.exists(),
        "{} is not built: `cargo test` does that, but with `--test` it takes `cargo build \
         --example {name}` before",
        program.display()
    );
    program
}
