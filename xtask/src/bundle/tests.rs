//! Tests of the bundle's script. Scripts that imitate the bundle's programs take their place.

#![allow(clippy::unwrap_used)] // a test that panics has failed

use super::newest_glibc;
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

/// All commands that the script may use. The machine's own nvidia-smi or sanitizer must not be
/// found.
const COMMANDS: &[&str] = &[
    "awk", "bash", "cat", "date", "dirname", "env", "grep", "gzip", "head", "mkdir", "mktemp",
    "mv", "rm", "sed", "sleep", "tail", "tar", "tee", "timeout", "tr", "wc",
];

/// The behaviour of the tests when all is well.
const PASSING: &str = "[ \"$ZARRS_CUDA_REQUIRE_GPU\" = 1 ] || exit 101
echo 'running 2 tests'
echo 'test result: ok. 2 passed; 0 failed'";

/// The files that the script writes.
const FILES: [&str; 2] = ["zarrs_cuda-gpu.json", "zarrs_cuda-gpu.log"];

/// What parts measure, by the names in the document.
const DOCUMENTS: [&str; 8] = [
    "start",
    "start_again",
    "chunks",
    "reads",
    "stream",
    "benchmark",
    "connections_8",
    "connections_32",
];

/// A bundle in a temporary folder, and a simulated machine for it.
struct Bundle {
    root: PathBuf,
}

impl Bundle {
    /// The tests pass, the benchmark writes its file, and there is no nvidia-smi and no sanitizer.
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "zarrs_cuda-bundle-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let root = std::env::temp_dir().join(name);
        for folder in ["bundle", "bin", "out", "temporary"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let path = std::env::var_os("PATH").unwrap();
        for command in COMMANDS {
            let mut files = std::env::split_paths(&path).map(|folder| folder.join(command));
            let file = files.find(|file| file.is_file()).unwrap();
            symlink(file, root.join("bin").join(command)).unwrap();
        }
        let bundle = Self { root };
        fs::copy(
            Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu-bundle.sh"),
            bundle.root.join("bundle/run.sh"),
        )
        .unwrap();
        fs::write(bundle.root.join("bundle/commit"), "abc1234").unwrap();
        bundle.tests(PASSING);
        bundle.bench(r#"echo '{ "goals": [1] }' >"$ZARRS_CUDA_BENCH_OUT""#);
        bundle
    }

    /// Creates a bash program at `path`. It appends its arguments to the file `calls`.
    fn program(&self, path: &str, body: &str) {
        let file = self.root.join(path);
        let calls = self.root.join("calls");
        let bash = self.root.join("bin/bash");
        let name = file.file_name().unwrap().to_str().unwrap();
        let text = format!(
            "#!{}\necho {name} \"$@\" >>'{}'\n{body}\n",
            bash.display(),
            calls.display()
        );
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Makes the bundle's tests run `body`, except for listing.
    fn tests(&self, body: &str) {
        self.listed("bundle/zarrs_cuda-engine-tests", body);
        self.listed("bundle/zarrs_cuda-tests", body);
    }

    /// Makes the benchmark run `body`. The GPU answers its probe.
    fn bench(&self, body: &str) {
        self.probed("exit 0", body);
    }

    /// Makes the benchmark run `body`, and `probe` when the script asks whether the GPU answers.
    fn probed(&self, probe: &str, body: &str) {
        let case = format!(r#"case " $* " in *" --probe "*) {probe};; esac"#);
        self.listed("bundle/zarrs_cuda-bench", &format!("{case}\n{body}"));
    }

    fn listed(&self, path: &str, body: &str) {
        let list = r#"case " $* " in *" --list "*) echo listed; exit;; esac"#;
        self.program(path, &format!("{list}\n{body}"));
    }

    /// Adds a sanitizer that runs `body` before the tests.
    fn sanitizer(&self, body: &str) {
        let help = "if [ \"$*\" = --help ]; then echo ' --kernel-name-exclude arg'; exit; fi";
        let run = "while [[ $1 == --* ]]; do shift 2; done; \"$@\"";
        self.program("bin/compute-sanitizer", &format!("{help}\n{body}\n{run}"));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.root.join("bin/bash"));
        command
            .arg(self.root.join("bundle/run.sh"))
            .args(arguments)
            .current_dir(&self.root)
            .env_clear()
            .env("PATH", self.root.join("bin"))
            .env("OUT", self.root.join("out"))
            .env("TMPDIR", self.root.join("temporary"));
        if !self.root.join("bin/compute-sanitizer").exists() {
            command.env("ZARRS_CUDA_SANITIZER", "");
        }
        if !self.root.join("bin/ncu").exists() {
            command.env("ZARRS_CUDA_NCU", "");
        }
        command
    }

    /// Runs the script to its end, which must leave exactly two files.
    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> (Output, Value) {
        let mut command = self.command(arguments);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert_eq!(self.files("temporary"), [""; 0]);
        assert_eq!(self.files("out"), FILES);
        (output, self.json())
    }

    fn json(&self) -> Value {
        let text = fs::read_to_string(self.root.join("out/zarrs_cuda-gpu.json")).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn log(&self) -> String {
        let bytes = fs::read(self.root.join("out/zarrs_cuda-gpu.log")).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The arguments of the programs, one line for each call.
    fn calls(&self) -> String {
        fs::read_to_string(self.root.join("calls")).unwrap_or_default()
    }

    fn files(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(folder)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The results of the parts, in order.
fn results(json: &Value) -> Vec<(&str, &str)> {
    let parts = json["parts"].as_array().unwrap().iter();
    parts
        .map(|part| {
            (
                part["part"].as_str().unwrap(),
                part["result"].as_str().unwrap(),
            )
        })
        .collect()
}

fn part<'a>(json: &'a Value, name: &str) -> &'a Value {
    let mut parts = json["parts"].as_array().unwrap().iter();
    parts.find(|part| part["part"] == name).unwrap()
}

#[test]
fn everything_passes() {
    let bundle = Bundle::new();
    bundle.sanitizer("");
    bundle.tests(&format!(
        "echo \"cases=${{ZARRS_CUDA_GPU_CASES-all}}\"\n{PASSING}"
    ));
    bundle.program(
        "bin/nvidia-smi",
        "echo 'NVIDIA \"X\", 580.1, 81559 MiB, 9.0'; echo 'Other, 1, 2, 3'",
    );
    let (output, json) = bundle.run(&[], &[]);
    assert!(output.status.success(), "{json:#}");
    assert_eq!(
        results(&json),
        [
            ("machine", "passed"),
            ("start", "passed"),
            ("quick", "passed"),
            ("chunks", "passed"),
            ("reads", "passed"),
            ("stream", "passed"),
            ("benchmark", "passed"),
            ("connections", "passed"),
            ("suites", "passed"),
            ("memcheck", "passed"),
            ("racecheck", "passed"),
            ("synccheck", "passed"),
            ("initcheck", "passed"),
            ("profile", "absent"),
        ]
    );
    assert_eq!(json["passed"], true);
    assert_eq!(json["commit"], "abc1234");
    assert_eq!(json["gpu"], "NVIDIA \"X\"");
    assert_eq!(json["driver"], "580.1");
    assert_eq!(json["memory"], "81559 MiB");
    assert_eq!(json["compute_capability"], "9.0");
    for document in DOCUMENTS {
        assert_eq!(json[document]["goals"][0], 1, "{document}");
    }
    assert_eq!(
        part(&json, "suites")["tests"],
        "test result: ok. 2 passed; 0 failed\ntest result: ok. 2 passed; 0 failed"
    );
    let log = bundle.log();
    for heading in ["== suites\n", "== memcheck\n", "== benchmark\n"] {
        assert!(log.contains(heading), "{log}");
    }
    assert_eq!(log.matches("cases=all").count(), 2);
    assert_eq!(log.matches("cases=8").count(), 2);
    assert_eq!(log.matches("cases=4").count(), 4 * 3);

    let calls = bundle.calls();
    // The tests that each run of a tool should run.
    let tool = |name: &str| -> Vec<&str> {
        let begin = format!("compute-sanitizer --tool {name} --error-exitcode 9 ");
        let calls = calls.lines().filter(|call| call.starts_with(&begin));
        calls
            .map(|call| call.split_once("--test-threads=1 ").unwrap().1)
            .collect()
    };
    let probe = "::on_gpu::kernels::the_driver_compiles_every_kernel";
    for name in ["memcheck", "racecheck", "synccheck"] {
        let filters = [probe, "::on_gpu::kernels ::on_gpu::engine", "::on_gpu::"];
        assert_eq!(tool(name), filters);
    }
    let filters = [probe, "::on_gpu::engine", "::on_gpu::"];
    assert_eq!(tool("initcheck"), filters);
    // Hazards of nvCOMP's kernels are not reported.
    let excluded = |name: &str| {
        calls.contains(&format!(
            "--tool {name} --error-exitcode 9 --kernel-name-exclude kns=nvcomp "
        ))
    };
    assert_eq!(
        ["memcheck", "racecheck", "synccheck", "initcheck"].map(excluded),
        [false, true, false, true]
    );
    for program in ["zarrs_cuda-engine-tests", "zarrs_cuda-tests"] {
        let call = format!("{program} ::on_gpu:: --show-output\n");
        assert!(calls.contains(&call), "{calls}");
    }
}

#[test]
fn a_failing_test_fails_its_part_and_no_other() {
    let bundle = Bundle::new();
    bundle.tests(
        "printf 'a \"quoted\" \\\\ b\\tc \\xff \\x01\\n'; echo 'test result: FAILED. 1'; exit 101",
    );
    let (output, json) = bundle.run(&["benchmark", "suites"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        results(&json),
        [("benchmark", "passed"), ("suites", "failed")]
    );
    let suites = part(&json, "suites");
    assert_eq!(suites["code"], 101);
    assert_eq!(suites["tests"], "test result: FAILED. 1");
    assert_eq!(
        suites["log"],
        "a \"quoted\" \\ b\tc ? \ntest result: FAILED. 1"
    );
    assert_eq!(json["passed"], false);
}

#[test]
fn tests_that_do_not_run_are_not_a_success() {
    let bundle = Bundle::new();
    bundle.tests("echo 'running 0 tests'");
    let (output, json) = bundle.run(&["suites"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(results(&json), [("suites", "empty")]);
}

#[test]
fn an_older_sanitizer_has_another_option() {
    let bundle = Bundle::new();
    bundle.sanitizer("");
    let path = bundle.root.join("bin/compute-sanitizer");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("echo ' --kernel-name-exclude arg'", "echo older"),
    )
    .unwrap();
    bundle.run(&["racecheck"], &[]);
    let calls = bundle.calls();
    assert!(
        calls.contains("--kernel-regex-exclude kns=nvcomp "),
        "{calls}"
    );
}

#[test]
fn kernels_are_profiled_where_that_is_allowed() {
    for (body, result) in [
        ("echo '\"ID\",\"Kernel Name\"'", "passed"),
        ("echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1", "absent"),
        ("echo '==WARNING== No kernels were profiled.'", "empty"),
        ("exit 1", "failed"),
    ] {
        let bundle = Bundle::new();
        bundle.program("bin/ncu", body);
        let (_, json) = bundle.run(&["profile"], &[]);
        assert_eq!(results(&json), [("profile", result)], "{body}");
        let calls = bundle.calls();
        assert!(
            calls.contains("zarrs_cuda-bench --bench kernels\n"),
            "{calls}"
        );
    }
}

#[test]
fn arrays_become_one_archive() {
    let bundle = Bundle::new();
    bundle.tests(&format!("echo x >\"$ZARRS_CUDA_EXPORT/a\"\n{PASSING}"));
    let mut command = bundle.command(&["suites"]);
    let output = command.env("ZARRS_CUDA_EXPORT", "1").output().unwrap();
    assert!(output.status.success(), "{}", bundle.log());
    let archive = bundle.root.join("out/zarrs_cuda-gpu-arrays.tar.gz");
    let listed = Command::new("tar")
        .arg("-tzf")
        .arg(archive)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap(), "./\n./a\n");
}

#[test]
fn a_sanitizer_that_does_not_work_here_is_absent() {
    let bundle = Bundle::new();
    bundle.sanitizer(
        "if [[ $* == *racecheck* ]]; then echo '========= Error: no such device'; \
         echo '========= ERROR SUMMARY: 1 error'; exit 1; fi",
    );
    let (output, json) = bundle.run(&["memcheck", "racecheck"], &[]);
    assert!(output.status.success(), "{json:#}");
    assert_eq!(
        results(&json),
        [("memcheck", "passed"), ("racecheck", "absent")]
    );
    assert_eq!(
        part(&json, "racecheck")["reason"],
        "unusable here: ========= Error: no such device"
    );
}

#[test]
fn what_a_sanitizer_finds_is_a_failure() {
    let bundle = Bundle::new();
    bundle.sanitizer("[[ $* == *every_kernel* ]] || { echo '========= found'; exit 9; }");
    let (output, json) = bundle.run(&["memcheck"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(results(&json), [("memcheck", "failed")]);
    assert_eq!(part(&json, "memcheck")["log"], "========= found");
}

#[test]
fn where_tests_fail_without_a_sanitizer_too_it_is_not_to_blame() {
    let bundle = Bundle::new();
    bundle.sanitizer("");
    bundle.tests("echo no GPU; exit 101");
    let (output, json) = bundle.run(&["memcheck"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(results(&json), [("memcheck", "failed")]);
}

#[test]
fn no_sanitizer_is_no_failure() {
    let (output, json) = Bundle::new().run(&["synccheck"], &[]);
    assert!(output.status.success(), "{json:#}");
    assert_eq!(results(&json), [("synccheck", "absent")]);
}

#[test]
fn a_benchmark_that_writes_nothing_has_failed() {
    let bundle = Bundle::new();
    bundle.bench("echo device is skipped");
    let (output, json) = bundle.run(&["benchmark"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(results(&json), [("benchmark", "failed")]);
    assert_eq!(json["benchmark"], Value::Null);
    let log = part(&json, "benchmark")["log"].as_str().unwrap();
    assert!(
        log.starts_with("device is skipped\nit wrote no results"),
        "{log}"
    );
}

#[test]
fn a_benchmark_that_fails_keeps_what_it_measured() {
    let bundle = Bundle::new();
    bundle.bench(r#"echo '{ "errors": ["x"] }' >"$ZARRS_CUDA_BENCH_OUT"; exit 1"#);
    let (output, json) = bundle.run(&["benchmark"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(results(&json), [("benchmark", "failed")]);
    assert_eq!(json["benchmark"]["errors"][0], "x");
}

#[test]
fn a_benchmark_that_is_ended_keeps_the_sections_before() {
    let bundle = Bundle::new();
    bundle.bench(r#"echo "{ \"asked\": \"$*\" }" >"$ZARRS_CUDA_BENCH_OUT"; exec sleep 60"#);
    let limits = [
        ("ZARRS_CUDA_LIMIT_BENCHMARK", "1"),
        ("ZARRS_CUDA_SECTIONS", "bus whole"),
    ];
    let (_, json) = bundle.run(&["benchmark"], &limits);
    assert_eq!(results(&json), [("benchmark", "timeout")]);
    assert_eq!(json["benchmark"]["asked"], "--bench bus whole");
}

#[test]
fn a_benchmark_that_is_ended_leaves_the_document_whole() {
    let bundle = Bundle::new();
    bundle.bench(r#"echo '{ "goals": [' >"$ZARRS_CUDA_BENCH_OUT"; exec sleep 60"#);
    let (_, json) = bundle.run(&["benchmark"], &[("ZARRS_CUDA_LIMIT_BENCHMARK", "1")]);
    assert_eq!(results(&json), [("benchmark", "timeout")]);
    assert_eq!(json["benchmark"], Value::Null);
}

#[test]
fn after_a_time_out_the_rest_runs_only_if_the_gpu_answers() {
    for (probe, rest) in [
        ("exit 0", "passed"),
        ("exit 1", "skipped"),
        ("exec sleep 60", "skipped"),
    ] {
        let bundle = Bundle::new();
        bundle.sanitizer("");
        bundle.probed(probe, "echo one; exec sleep 60");
        let begin = Instant::now();
        let (output, json) = bundle.run(
            &["suites", "memcheck", "benchmark"],
            &[("ZARRS_CUDA_LIMIT_BENCHMARK", "2")],
        );
        assert!(begin.elapsed() < Duration::from_secs(30));
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(
            results(&json),
            [
                ("benchmark", "timeout"),
                ("suites", rest),
                ("memcheck", rest)
            ],
            "{probe}"
        );
        assert_eq!(part(&json, "benchmark")["log"], "one");
        let calls = bundle.calls();
        assert_eq!(calls.matches("--probe").count(), 1, "{calls}");
        assert_eq!(calls.contains("sanitizer"), rest == "passed", "{calls}");
    }
}

#[test]
fn a_tool_that_takes_all_its_time_is_no_failure() {
    let bundle = Bundle::new();
    bundle.sanitizer("[[ $* == *every_kernel* ]] || { echo slow; exec sleep 60; }");
    bundle.program("bin/ncu", "exec sleep 60");
    let limits = [
        ("ZARRS_CUDA_LIMIT_MEMCHECK", "4"),
        ("ZARRS_CUDA_LIMIT_PROFILE", "1"),
    ];
    let (output, json) = bundle.run(&["memcheck", "profile"], &limits);
    assert!(output.status.success(), "{json:#}");
    assert_eq!(
        results(&json),
        [("memcheck", "incomplete"), ("profile", "incomplete")]
    );
    assert_eq!(part(&json, "memcheck")["log"], "slow");
    assert_eq!(json["passed"], true);
}

#[test]
fn the_machine_is_described_and_what_is_absent_is_named() {
    let bundle = Bundle::new();
    bundle.program("bin/nvidia-smi", "echo \"smi $*\"");
    bundle.program("bin/lscpu", "echo 'CPU(s): 2'; exit 3");
    let (output, json) = bundle.run(&["machine"], &[("CUDA_VISIBLE_DEVICES", "0")]);
    assert!(output.status.success(), "{json:#}");
    let machine = &json["machine"];
    assert_eq!(machine["nvidia-smi -q"], "smi -q");
    assert_eq!(machine["nvidia-smi topo"], "smi topo -m");
    for file in ["load", "memory"] {
        assert!(machine[file].is_string(), "{machine:#}");
    }
    assert!(machine["limits"].as_str().unwrap().contains("open files"));
    let environment = machine["environment"].as_str().unwrap();
    assert!(
        environment.contains("CUDA_VISIBLE_DEVICES=0"),
        "{environment}"
    );
    let absent = machine["absent"].as_array().unwrap();
    assert!(
        absent.contains(&"lscpu: nothing from lscpu".into()),
        "{absent:?}"
    );
}

#[test]
fn a_start_is_measured_before_and_after_the_driver_has_compiled() {
    let bundle = Bundle::new();
    bundle.bench(
        "cached=$(cat \"$CUDA_CACHE_PATH\" 2>/dev/null); echo kernels >\"$CUDA_CACHE_PATH\"
        echo \"{ \\\"cached\\\": \\\"$cached\\\" }\" >\"$ZARRS_CUDA_BENCH_OUT\"",
    );
    let (_, json) = bundle.run(&["start"], &[]);
    assert_eq!(json["start"]["cached"], "");
    assert_eq!(json["start_again"]["cached"], "kernels");
    assert_eq!(json["chunks"], Value::Null);
}

#[test]
fn shards_are_measured_with_few_and_many_connections() {
    let bundle = Bundle::new();
    bundle.bench(
        "echo \"{ \\\"asked\\\": \\\"$CUDA_DEVICE_MAX_CONNECTIONS $*\\\" }\" >\"$ZARRS_CUDA_BENCH_OUT\"",
    );
    let (_, json) = bundle.run(&["connections"], &[]);
    assert_eq!(json["connections_8"]["asked"], "8 --bench shards");
    assert_eq!(json["connections_32"]["asked"], "32 --bench shards");
}

/// The limits of all parts, and for each part the seconds until a killed program is gone and the GPU
/// has answered, are less than half an hour.
#[test]
fn all_limits_fit_half_an_hour() {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = fs::read_to_string(xtask.join("gpu-bundle.sh")).unwrap();
    let (_, limits) = script.split_once("declare -A limit=(").unwrap();
    let (limits, _) = limits.split_once(')').unwrap();
    let limits: Vec<(&str, u32)> = limits
        .split_whitespace()
        .map(|limit| {
            let (name, seconds) = limit.split_once("]=").unwrap();
            (&name[1..], seconds.parse().unwrap())
        })
        .collect();
    assert_eq!(limits.len(), 14);
    let sum: u32 = limits.iter().map(|(_, seconds)| seconds + 10 + 5).sum();
    assert!(sum < 30 * 60, "{sum}");
    // The head of the script says the same.
    for (name, seconds) in limits {
        if !name.ends_with("check") {
            let line = script
                .lines()
                .find(|line| line.starts_with(&format!("#   {name} ")));
            assert!(line.unwrap().ends_with(&format!(" {seconds} s")), "{name}");
        }
    }
}

/// Starts a script that describes the machine, and then runs the benchmark, which runs `body`.
fn in_the_benchmark(bundle: &Bundle, body: &str) -> Child {
    bundle.bench(body);
    let mut command = bundle.command(&["machine", "benchmark"]);
    let mut script = command.stdout(Stdio::null()).spawn().unwrap();
    until(|| {
        assert_eq!(script.try_wait().unwrap(), None);
        bundle.calls().contains("zarrs_cuda-bench --bench")
    });
    assert_eq!(bundle.files("out"), FILES);
    script
}

/// Waits for `condition`, with a time limit.
fn until(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(50));
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_script_that_is_killed_keeps_the_parts_before() {
    let bundle = Bundle::new();
    // The benchmark ends by itself, since killing the script alone does not reach it.
    let mut script = in_the_benchmark(&bundle, "exec sleep 3");
    script.kill().unwrap();
    script.wait().unwrap();
    let json = bundle.json();
    assert_eq!(
        results(&json),
        [("machine", "passed"), ("benchmark", "running")]
    );
    assert_eq!(json["passed"], false);
}

#[test]
fn a_script_that_is_told_to_end_takes_all_with_it() {
    let bundle = Bundle::new();
    let process = bundle.root.join("process");
    let body = format!("echo $$ >'{}'; exec sleep 60", process.display());
    let mut script = in_the_benchmark(&bundle, &body);
    until(|| fs::read_to_string(&process).is_ok_and(|text| text.ends_with('\n')));
    let id = script.id().to_string();
    let begin = Instant::now();
    assert!(Command::new("kill").arg(id).status().unwrap().success());
    assert_eq!(script.wait().unwrap().code(), Some(143));
    assert!(begin.elapsed() < Duration::from_secs(30));
    assert_eq!(bundle.files("temporary"), [""; 0]);
    let process = fs::read_to_string(process).unwrap();
    until(|| !Path::new("/proc").join(process.trim()).exists());
}

#[test]
fn parts_that_are_yet_to_come_are_waiting() {
    let bundle = Bundle::new();
    // A copy of the document from the time of the first suites.
    let text = bundle.root.join("text");
    bundle.tests(&format!(
        "cat \"$OUT\"/zarrs_cuda-gpu.json >'{}'\n{PASSING}",
        text.display()
    ));
    bundle.run(&["quick", "benchmark"], &[]);
    let json: Value = serde_json::from_str(&fs::read_to_string(text).unwrap()).unwrap();
    assert_eq!(
        results(&json),
        [("quick", "running"), ("benchmark", "waiting")]
    );
}

#[test]
fn programs_that_cannot_start_are_not_failed_tests() {
    let bundle = Bundle::new();
    bundle.sanitizer("");
    let message = "zarrs_cuda-tests: libc.so.6: version `GLIBC_2.99' not found";
    bundle.program(
        "bundle/zarrs_cuda-tests",
        &format!("echo \"{}\" >&2; exit 1", message.replace('`', "\\`")),
    );
    fs::write(bundle.root.join("bundle/zarrs_cuda-bench"), "not a program").unwrap();
    let (output, json) = bundle.run(&["suites", "memcheck", "benchmark"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        results(&json),
        [
            ("benchmark", "cannot start"),
            ("suites", "cannot start"),
            ("memcheck", "cannot start"),
        ]
    );
    assert_eq!(part(&json, "suites")["log"], message);
}

#[test]
fn without_nvidia_smi_the_gpu_is_unknown() {
    let bundle = Bundle::new();
    let (_, json) = bundle.run(&["suites"], &[]);
    assert_eq!(json["gpu"], Value::Null);
    assert_eq!(json["compute_capability"], Value::Null);

    // The error output of nvidia-smi is not taken for a GPU's name.
    bundle.program("bin/nvidia-smi", "echo NVIDIA-SMI has failed; exit 9");
    let (_, json) = bundle.run(&["suites"], &[]);
    assert_eq!(json["gpu"], Value::Null);
}

#[test]
fn unknown_parts_and_limits_are_errors() {
    let bundle = Bundle::new();
    let mut command = bundle.command(&["suites", "memchek"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        message,
        "there is no part \"memchek\"; the parts are: \
         machine start quick chunks reads stream benchmark connections suites \
         memcheck racecheck synccheck initcheck profile\n"
    );
    let mut command = bundle.command(&[]);
    command.env("ZARRS_CUDA_LIMIT_SYNCCHECK", "1m");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.starts_with("ZARRS_CUDA_LIMIT_SYNCCHECK is"),
        "{message}"
    );
    assert_eq!(bundle.calls(), "");
}

#[test]
fn the_drivers_folder_is_added_if_it_is_named_or_unknown() {
    let bundle = Bundle::new();
    bundle.tests(&format!("echo \"path=$LD_LIBRARY_PATH\"\n{PASSING}"));
    bundle.program("bin/ldconfig", "echo 'libc.so.6 => /lib/libc.so.6'");
    let folder = bundle.root.join("nvidia");
    fs::create_dir(&folder).unwrap();
    let folder = folder.to_str().unwrap();
    let path = |expected: &str| {
        bundle.run(&["suites"], &[("ZARRS_CUDA_LIBCUDA", folder)]);
        let log = bundle.log();
        assert!(log.contains(&format!("path={expected}\n")), "{log}");
    };
    path("");
    fs::write(bundle.root.join("nvidia/libcuda.so.1"), "").unwrap();
    path(folder);
    bundle.program(
        "bin/ldconfig",
        "echo 'libcuda.so.1 (libc6) => /lib/libcuda.so.1'",
    );
    path(folder);
}

#[test]
fn nvcomp_is_unpacked_for_the_programs_and_not_left_behind() {
    let bundle = Bundle::new();
    bundle.tests(&format!(
        "echo \"nvcomp=$(cat \"$ZARRS_CUDA_NVCOMP\")\"\n{PASSING}"
    ));
    fs::create_dir(bundle.root.join("bundle/nvcomp")).unwrap();
    fs::write(bundle.root.join("bundle/nvcomp/libnvcomp.so.6.xz"), "").unwrap();
    // Neither xz nor python3 exists.
    let (output, json) = bundle.run(&["suites"], &[]);
    assert!(output.status.success(), "{json:#}");
    assert_eq!(results(&json), [("nvcomp", "absent"), ("suites", "passed")]);

    // The tools run with the machine's own libraries, not with those for the bundle's programs.
    let driver = bundle.root.join("nvidia");
    fs::create_dir(&driver).unwrap();
    fs::write(driver.join("libcuda.so.1"), "").unwrap();
    bundle.program("bin/ldconfig", "");
    for (program, to) in [("python3", "$4"), ("xz", "/dev/stdout")] {
        let body = format!(
            "[ -s \"$OUT/zarrs_cuda-gpu.json\" ] || exit 1
            echo \"by {program}, ${{LD_LIBRARY_PATH-no path}}\" >\"{to}\""
        );
        fs::remove_file(bundle.root.join("out/zarrs_cuda-gpu.json")).unwrap();
        bundle.program(&format!("bin/{program}"), &body);
        let variable = ("ZARRS_CUDA_LIBCUDA", driver.to_str().unwrap());
        let (_, json) = bundle.run(&["suites"], &[variable]);
        assert_eq!(results(&json), [("suites", "passed")]);
        let log = bundle.log();
        assert!(
            log.contains(&format!("nvcomp=by {program}, no path\n")),
            "{log}"
        );
    }
}

/// The script names tests, but cannot check that they exist.
#[test]
fn the_tests_that_the_script_names_exist() {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = fs::read_to_string(xtask.join("gpu-bundle.sh")).unwrap();
    let folder = xtask.join("../crates/engine/src/cuda/tests/on_gpu");
    let mut named = 0;
    for path in script.split("::on_gpu::").skip(1) {
        let end = path.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        let path = &path[..end.unwrap_or(path.len())];
        if path.is_empty() {
            continue;
        }
        let (module, test) = path.split_once("::").unwrap_or((path, ""));
        let source = fs::read_to_string(folder.join(format!("{module}.rs"))).unwrap();
        assert!(source.contains(&format!("fn {test}")), "{path}");
        named += 1;
    }
    assert_eq!(named, 4);
}

#[test]
fn the_newest_glibc_is_by_number() {
    let headers = "
Version References:
  required from libm.so.6:
    0x06969187 0x00 07 GLIBC_2.9
  required from libc.so.6:
    0x069691b4 0x00 06 GLIBC_2.34
    0x0963cf85 0x00 05 GLIBC_PRIVATE
    0x09691972 0x00 03 GLIBC_2.3.2";
    assert_eq!(newest_glibc(headers), [2, 34]);
}
