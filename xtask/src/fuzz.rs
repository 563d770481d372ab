//! Runs the fuzz targets with libFuzzer.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, cargo, output, run, target};

/// The memory limits of the process and of one allocation, in MiB. Inputs may allocate much less,
/// which the targets check themselves.
const MEMORY: (u32, u32) = (2048, 1024);
/// The time limit for one input, in seconds.
const TIMEOUT: u32 = 10;
/// The largest length of an input, in bytes.
const MOST_BYTES: u32 = 4096;

/// The folder with libFuzzer's results for all targets.
fn folder() -> PathBuf {
    target().join("fuzz")
}

/// `[TARGET...] [--minutes N]`: lets libFuzzer search for failing inputs, for some minutes per
/// target.
pub(crate) fn fuzz(arguments: &[&str]) -> Result<()> {
    let mut minutes = 1;
    let mut names = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if *argument == "--minutes" {
            let number = arguments.next().and_then(|number| number.parse().ok());
            minutes = number.ok_or("--minutes takes a number")?;
        } else {
            names.push((*argument).to_owned());
        }
    }
    let all = targets()?;
    if let Some(name) = names.iter().find(|name| !all.contains(name)) {
        return Err(format!("no target is called {name}: {}", all.join(", ")));
    }
    if names.is_empty() {
        names = all;
    }
    build()?;
    let mut found = Vec::new();
    for name in &names {
        if let Err(finding) = look(name, minutes) {
            println!("{finding}");
            found.push(name.as_str());
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(format!("libFuzzer found something: {}", found.join(", ")))
}

/// The names of the targets.
fn targets() -> Result<Vec<String>> {
    let folder = Path::new("fuzz/fuzz_targets");
    let files = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut names = Vec::new();
    for file in files {
        let file = file.map_err(|e| format!("{}: {e}", folder.display()))?;
        let path = file.path();
        names.extend(path.file_stem().map(|n| n.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Compiles the targets with `AddressSanitizer` and libFuzzer's instrumentation.
fn build() -> Result<()> {
    output(cargo().args(["fuzz", "--version"])).map_err(|error| {
        format!("cargo-fuzz is missing, `cargo install cargo-fuzz --locked` installs it: {error}")
    })?;
    // Sanitizer options need a nightly compiler, or this variable.
    run(cargo()
        // With `--cfg fuzzing`, libraries leave out checks: miniz_oxide does not compare checksums.
        .args(["fuzz", "build", "--debug-assertions", "--no-cfg-fuzzing"])
        .env("RUSTFLAGS", "--cfg libfuzzer")
        .env("RUSTC_BOOTSTRAP", "1")
        // C libraries are instrumented, too. GCC keeps constants of a scope in static memory, and
        // LLVM's runtime mistakes a second access to them for one after the end of the scope.
        .env("CFLAGS", "-fno-sanitize-address-use-after-scope"))
}

/// The folder of the programs. cargo-fuzz names it after the host's target.
fn programs() -> Result<PathBuf> {
    let version = output(Command::new(rustc()).arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or("rustc does not say which host it is for")?;
    Ok(target().join(host).join("release"))
}

fn rustc() -> std::ffi::OsString {
    env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())
}

/// Runs one target, and prints the result.
fn look(name: &str, minutes: u32) -> Result<()> {
    let corpus = folder().join("corpus").join(name);
    let findings = folder().join("findings").join(name);
    for folder in [&corpus, &findings] {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let log = folder().join(format!("{name}.log"));
    let file = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    let program = programs()?.join(name);
    let (all, one) = MEMORY;
    let status = Command::new(&program)
        .arg(&corpus)
        .arg(format!("fuzz/corpus/{name}"))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg(format!("-max_total_time={}", 60 * minutes))
        .arg(format!("-timeout={TIMEOUT}"))
        .arg(format!("-rss_limit_mb={all}"))
        .arg(format!("-malloc_limit_mb={one}"))
        .arg(format!("-max_len={MOST_BYTES}"))
        // C libraries have tables with the same names.
        .env("ASAN_OPTIONS", "detect_odr_violation=0")
        // The threads of pools live as long as the process.
        .args(["-detect_leaks=0", "-print_final_stats=1"])
        // Short inputs are useless: they end before they describe the content of a shard.
        .arg("-len_control=0")
        .stderr(file)
        .status()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let text = fs::read(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    println!("{}", Summary::of(&text).line(name, minutes));
    if status.success() {
        return Ok(());
    }
    let last: Vec<&str> = text.lines().rev().take(60).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Err(format!(
        "{}\n{name}: {status}. All of it is in {}; to try the input again: {} {}/<file>",
        last.join("\n"),
        log.display(),
        program.display(),
        findings.display(),
    ))
}

/// libFuzzer's statistics of a run.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    executions: Option<u64>,
    /// The number of reached edges of the program.
    coverage: Option<u64>,
    inputs: Option<String>,
}

impl Summary {
    fn of(log: &str) -> Self {
        let after = |name: &str| {
            let mut lines = log.lines().rev();
            let value = lines.find_map(|line| Some(line.split_once(name)?.1.trim_start()))?;
            value.split_whitespace().next()
        };
        Self {
            executions: after("stat::number_of_executed_units:").and_then(|n| n.parse().ok()),
            coverage: after(" cov:").and_then(|n| n.parse().ok()),
            inputs: after(" corp:").map(ToOwned::to_owned),
        }
    }

    fn line(&self, name: &str, minutes: u32) -> String {
        let number = |number: Option<u64>| number.map_or("?".to_owned(), |n| n.to_string());
        format!(
            "{name}: {} executions in {minutes} min at most, {} edges covered, corpus {}",
            number(self.executions),
            number(self.coverage),
            self.inputs.as_deref().unwrap_or("?"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_prints() {
        let log = "#2\tINITED cov: 11 ft: 12 corp: 1/1b exec/s: 0 rss: 31Mb\n\
            #86141\tDONE   cov: 1234 ft: 5678 corp: 301/14Kb lim: 1300 exec/s: 86141 rss: 457Mb\n\
            stat::number_of_executed_units: 86141\n";
        let summary = Summary::of(log);
        assert_eq!(
            summary,
            Summary {
                executions: Some(86141),
                coverage: Some(1234),
                inputs: Some("301/14Kb".to_owned()),
            }
        );
        let line = summary.line("frames", 2);
        assert!(line.contains("86141 executions"), "{line}");
        assert_eq!(Summary::of("").executions, None);
    }
}
