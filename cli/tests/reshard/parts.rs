//! Runs in parts: of any layout, killed, doubled, and mixed with others.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use zarrs_cuda_testing::{Rng, effort};

use crate::arrays::{Layout, files, temporary};
use crate::{command, run};

fn shard(layout: &Layout) -> String {
    let counts = layout.counts.as_ref().unwrap();
    let edges = layout.subchunk.iter().zip(counts);
    let edges: Vec<String> = edges.map(|(s, n)| (s * n).to_string()).collect();
    edges.join(",")
}

/// Returns the files of an output, without the record of a complete run.
fn made(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = files(path);
    files.retain(|(name, _)| name != ".zarrs-cuda-run/done.json");
    files
}

fn must_succeed(input: &Path, output: &Path, options: &[&str]) -> String {
    let done = run(input, output, options);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{options:?}: {said}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// The parts make the files of one run, in any order.
#[test]
fn parts_make_the_output_of_one_run() {
    for seed in effort::seeds(40) {
        let mut rng = Rng(seed);
        let (input, goal) = loop {
            let input = Layout::random(&mut rng);
            let mut goal = input.clone();
            goal.vary(&mut rng);
            // A shape of no dimensions cannot be an argument.
            if goal.counts.is_some() && !goal.shape.is_empty() {
                break (input, goal);
            }
        };
        let directory = temporary();
        let path = |name: &str| directory.path().join(name);
        input.create(&path("in"), &mut rng);
        let shard = shard(&goal);
        must_succeed(&path("in"), &path("one"), &["--shard", &shard]);
        let parts = 1 + rng.below(5);
        let mut order: Vec<u64> = (1..=parts).collect();
        for n in (1..order.len()).rev() {
            order.swap(n, rng.below(n as u64 + 1) as usize);
        }
        let context = format!("{order:?} of {parts}, {input:?} to {shard}");
        for (number, part) in order.iter().enumerate() {
            assert!(!path("out").join("zarr.json").exists(), "{context}");
            let part = format!("{part}/{parts}");
            let said = must_succeed(
                &path("in"),
                &path("out"),
                &["--shard", &shard, "--part", &part],
            );
            let is_last = number + 1 == order.len();
            assert_eq!(said.contains("can be read"), is_last, "{context}: {said}");
        }
        assert!(made(&path("out")) == made(&path("one")), "{context}");
        // After the end, a part changes nothing.
        let part = format!("1/{parts}");
        let options = ["--shard", &shard, "--part", &part];
        let said = must_succeed(&path("in"), &path("out"), &options);
        assert!(said.contains("complete already"), "{said}");
        assert!(made(&path("out")) == made(&path("one")), "{context}");
    }
}

struct Case {
    directory: tempfile::TempDir,
}

impl Case {
    /// An array of 2,048 chunks, as IN.
    fn new() -> Self {
        let case = Self {
            directory: temporary(),
        };
        crate::interrupted::create(&crate::interrupted::layout(None), &case.path("in"));
        case
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn options(part: &str) -> [&str; 4] {
        ["--shard", "8,16", "--part", part]
    }

    fn spawn(&self, part: &str) -> Child {
        let mut command = command(&self.path("in"), &self.path("out"), &Self::options(part));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Runs a part that fails, and returns what it says.
    fn refused(&self, options: &[&str], code: i32) -> String {
        let done = run(&self.path("in"), &self.path("out"), options);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{said}");
        said
    }
}

#[test]
fn killed_and_doubled() {
    let case = Case::new();
    let mut rng = Rng(effort::seed());
    must_succeed(&case.path("in"), &case.path("one"), &["--shard", "8,16"]);
    for round in 0..effort::times(6) {
        let parts = 2 + rng.below(3);
        let mut kills = 0;
        while !case.path("out").join("zarr.json").exists() {
            let children: Vec<Child> = (0..=rng.below(3))
                .map(|_| case.spawn(&format!("{}/{parts}", 1 + rng.below(parts))))
                .collect();
            for mut child in children {
                if kills < 20 && rng.one_in(2) {
                    std::thread::sleep(Duration::from_micros(rng.below(40_000)));
                    child.kill().unwrap();
                    kills += 1;
                }
                let done = child.wait_with_output().unwrap();
                let said = String::from_utf8_lossy(&done.stderr);
                let code = done.status.code();
                assert!(matches!(code, None | Some(0)), "{code:?}: {said}");
            }
        }
        // The last process may have been killed when it had published.
        must_succeed(
            &case.path("in"),
            &case.path("out"),
            &Case::options(&format!("1/{parts}")),
        );
        assert!(
            made(&case.path("out")) == made(&case.path("one")),
            "round {round}, {kills} kills"
        );
        fs::remove_dir_all(case.path("out")).unwrap();
    }
}

#[test]
fn others_are_refused() {
    let case = Case::new();
    let (input, out) = (case.path("in"), case.path("out"));
    must_succeed(&input, &out, &Case::options("1/2"));
    for (options, word) in [
        (&["--shard", "8,32", "--part", "2/2"][..], "--shard"),
        (&["--shard", "8,16", "--part", "2/3"], "3"),
        (
            &["--shard", "8,16", "--part", "2/2", "--index", "start"],
            "--index",
        ),
        (&["--shard", "8,16"], "holds an unfinished run in 2 parts"),
        (&["--chunks"], "holds an unfinished run in 2 parts"),
    ] {
        let said = case.refused(options, 1);
        assert!(said.contains(word), "{options:?}: {said}");
        assert!(!said.contains("--overwrite"), "there is none: {said}");
    }
    for options in [
        &["--chunks", "--part", "1/2"][..],
        &["--part", "1/2"],
        &["--shard", "8,16", "--part", "3/2"],
        &["--shard", "8,16", "--part", "1/2", "--prepare", "2"],
        &["--shard", "8,16", "--prepare", "65537"],
    ] {
        case.refused(options, 2);
    }
    // A shard that is not whole is not replaced.
    let shard = out.join("c/0/0");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[1..]).unwrap();
    let said = case.refused(&Case::options("1/2"), 3);
    assert!(
        said.contains("not whole") && said.contains("delete the shard"),
        "{said}"
    );
    fs::remove_file(&shard).unwrap();
    // The second part finds the first one unmade.
    let said = must_succeed(&input, &out, &Case::options("2/2"));
    assert!(said.contains("missing: 1"), "{said}");
    let said = must_succeed(&input, &out, &Case::options("1/2"));
    assert!(said.contains("can be read"), "{said}");
    assert_eq!(fs::read(&shard).unwrap(), bytes);
    // OUT is taken: by other files, or by a run without parts.
    let other = case.path("other");
    fs::create_dir_all(&other).unwrap();
    fs::write(other.join("mine"), "").unwrap();
    let done = run(&input, &other, &Case::options("1/2"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("1 file in"), "{said}");
    fs::rename(other.join("mine"), other.join("zarr.json.reshard")).unwrap();
    let done = run(&input, &other, &Case::options("1/2"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(!other.join(".zarrs-cuda-run/plan.json").exists());
}

/// Parts may be planned before.
#[test]
fn a_prepared_run() {
    let case = Case::new();
    let (input, out) = (case.path("in"), case.path("out"));
    must_succeed(&input, &case.path("one"), &["--shard", "8,16"]);
    let said = must_succeed(&input, &out, &["--shard", "8,16", "--prepare", "2"]);
    assert!(said.contains("planned in 2 parts"), "{said}");
    must_succeed(&input, &out, &Case::options("2/2"));
    must_succeed(&input, &out, &Case::options("1/2"));
    assert!(made(&out) == made(&case.path("one")));
}
