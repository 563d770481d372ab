//! The examples of the README and of `docs/cli.md`, and the manual pages and completions that the wheel installs.
//! With `ZARRS_CUDA_BLESS=1` the page's output and those files are written.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use zarrs_cuda_object_store_tests::Server;

/// Subcommands whose output is of the machine: only its words are compared.
const OF_THE_MACHINE: [&str; 3] = ["zarrs-cuda doctor", "zarrs-cuda plan", "zarrs-cuda bench"];

/// The first line of a block whose commands need the feature `remote`.
const REMOTE: &str = "```console remote";
/// Where the page has its server, which listens elsewhere in this test.
const SERVER: &str = "localhost:9000";

/// Makes a program `zarrs-cuda` in `folder`, with two threads, whatever the machine has. Returns a `PATH` with it.
fn path_with_program(folder: &Path) -> String {
    let bin = folder.join(".bin");
    fs::create_dir(&bin).unwrap();
    let wrapper = bin.join("zarrs-cuda");
    let script = format!(
        "#!/bin/sh\nexec '{}' \"$@\" --threads 2\n",
        env!("CARGO_BIN_EXE_zarrs-cuda")
    );
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", bin.display(), std::env::var("PATH").unwrap())
}

/// The wheel installs what is below this folder in the environment's `share`.
#[test]
fn manual_pages_and_completions_of_the_wheel() {
    let share = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/data/data/share");
    let made = TempDir::new().unwrap();
    let program = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_zarrs-cuda"))
            .args(words)
            .output()
            .unwrap();
        assert!(output.status.success());
        output.stdout
    };
    let man = made.path().join("man/man1");
    program(&["man", man.to_str().unwrap()]);
    for (shell, file) in [
        ("bash", "bash-completion/completions/zarrs-cuda"),
        ("zsh", "zsh/site-functions/_zarrs-cuda"),
        ("fish", "fish/vendor_completions.d/zarrs-cuda.fish"),
    ] {
        let file = made.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, program(&["completions", shell])).unwrap();
    }
    if std::env::var_os("ZARRS_CUDA_BLESS").is_some() {
        let _ = fs::remove_dir_all(&share);
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(made.path()).arg(&share);
        fs::create_dir_all(share.parent().unwrap()).unwrap();
        assert!(copy.status().unwrap().success());
        return;
    }
    let differs = Command::new("diff")
        .arg("-r")
        .args([made.path(), &share])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&differs.stdout);
    assert!(
        differs.status.success(),
        "python/data is not what the program writes; ZARRS_CUDA_BLESS=1 writes it there\n{said}"
    );
}

/// Runs the commands that a reader types first.
#[test]
fn the_commands_of_the_readme() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = fs::read_to_string(page).unwrap();
    let folder = TempDir::new().unwrap();
    let path = path_with_program(folder.path());
    let block = text.split("```console\n").nth(1).unwrap();
    let commands: Vec<&str> = block
        .lines()
        .take_while(|line| *line != "```")
        .map(|line| line.strip_prefix("$ ").unwrap())
        .collect();
    assert!(commands.len() >= 3 && text.matches("```console").count() == 1);
    for command in commands {
        let output = Command::new("sh")
            .args(["-c", command])
            .current_dir(folder.path())
            .env("PATH", &path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}");
    }
}

#[test]
fn every_example() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
    let text = fs::read_to_string(&page).unwrap();
    let folder = TempDir::new().unwrap();
    let path = path_with_program(folder.path());
    let server = Server::start();
    let address = server.address().to_string();

    let mut blessed = String::new();
    let mut wrong = Vec::new();
    let mut shown: Vec<&str> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        blessed += &format!("{line}\n");
        let is_run = line == "```console" || line == REMOTE && cfg!(feature = "remote");
        if line == REMOTE && !is_run {
            eprintln!("the examples of remote places were not run: the feature remote is off");
        }
        if !is_run {
            continue;
        }
        while let Some(line) = lines.next_if(|line| *line != "```") {
            let command = line
                .strip_prefix("$ ")
                .expect("a block begins with a command");
            shown.push(command);
            let mut expected = String::new();
            while let Some(line) = lines.next_if(|line| *line != "```" && !line.starts_with("$ ")) {
                expected += &format!("{line}\n");
            }
            // Both outputs, in the order in which a terminal would show them.
            let output = Command::new("sh")
                .args([
                    "-c",
                    &format!("exec 2>&1; {}", command.replace(SERVER, &address)),
                ])
                .current_dir(folder.path())
                .env("AWS_ENDPOINT_URL", format!("http://{address}"))
                .env("AWS_ALLOW_HTTP", "true")
                .env("AWS_SKIP_SIGNATURE", "true")
                .env("NO_PROXY", "127.0.0.1")
                .env("PATH", &path)
                .env("NO_COLOR", "1")
                .env("COLUMNS", "80")
                .output()
                .unwrap();
            let got = String::from_utf8(output.stdout).unwrap();
            let got = got.replace(&address, SERVER);
            let of_machine = OF_THE_MACHINE.iter().any(|name| command.starts_with(name));
            let is_equal = if of_machine {
                words(&got) == words(&expected)
            } else {
                pattern(&got) == pattern(&expected)
            };
            if !is_equal {
                wrong.push(format!(
                    "$ {command}\n--- the page\n{expected}--- the program\n{got}"
                ));
            }
            blessed += &format!("$ {command}\n{}", if is_equal { &expected } else { &got });
        }
    }
    if std::env::var_os("ZARRS_CUDA_BLESS").is_some() {
        fs::write(&page, blessed).unwrap();
        return;
    }
    assert!(
        wrong.is_empty(),
        "docs/cli.md is not what the program says; ZARRS_CUDA_BLESS=1 writes it there\n{}",
        wrong.join("\n")
    );
    let help = Command::new(env!("CARGO_BIN_EXE_zarrs-cuda"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let commands = help.split("Commands:\n").nth(1).unwrap().lines();
    for subcommand in commands.take_while(|line| !line.is_empty()) {
        if subcommand.starts_with("   ") {
            continue; // the rest of a long line
        }
        let name = subcommand.split_whitespace().next().unwrap();
        let is_shown = name == "help"
            || shown
                .iter()
                .any(|command| command.contains(&format!("zarrs-cuda {name}")));
        assert!(is_shown, "docs/cli.md has no example of {name}");
    }
}

/// The text with `#` for times, rates, and sizes of memory.
fn pattern(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut out = String::new();
    for line in text.lines() {
        words.clear();
        words.extend(line.split(' ').map(ToString::to_string));
        for at in 1..words.len() {
            let unit = words[at].trim_end_matches([',', ':', ';', ')']);
            let is_measured = matches!(unit, "s" | "ms" | "µs") || unit.ends_with("/s");
            if is_measured
                && words[at - 1]
                    .trim_start_matches('(')
                    .starts_with(|first: char| first.is_ascii_digit())
            {
                words[at - 1] = "#".to_string();
                words[at] = "#".to_string();
            }
        }
        out += &format!("{}\n", words.join(" "));
    }
    out
}

/// The first words of each line of a table or list: what a machine cannot change.
fn words(text: &str) -> Vec<String> {
    let words = text.lines().filter_map(|line| {
        if line.starts_with("      ") {
            return None; // the rest of a long line
        }
        let word = line.split_whitespace().next()?;
        // The reasons, names and numbers of a machine.
        (!word.starts_with(|first: char| first.is_ascii_digit()))
            .then(|| word.trim_end_matches(':').to_string())
    });
    let mut words: Vec<_> = words.collect();
    words.retain(|word| {
        !matches!(
            word.as_str(),
            "device" | "devices" | "linux" | "promised" | "not"
        )
    });
    words
}
