//! Outputs whose parts are not all made: what others may do there, and which command makes the rest.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use zarrs::array::{ArrayBuilder, data_type};
use zarrs::group::GroupBuilder;

use crate::arrays::{store, values};
use crate::program::{files, program, shell};

/// A folder with IN, a group of two arrays of five shards and three.
struct Case {
    folder: TempDir,
}

impl Case {
    fn new() -> Self {
        let this = Self {
            folder: TempDir::new().unwrap(),
        };
        let store = store(&this.path("in"));
        for path in ["/", "/deep"] {
            let group = GroupBuilder::new().build(store.clone(), path).unwrap();
            group.store_metadata().unwrap();
        }
        for (path, rows) in [("/a", 40_u64), ("/deep/b", 24)] {
            let builder = ArrayBuilder::new(vec![rows, 8], vec![4, 8], data_type::uint16(), 0_u16);
            let array = builder.build(store.clone(), path).unwrap();
            array.store_metadata().unwrap();
            let elements: Vec<u16> = (0..rows * 8).map(|n| n as u16 + 1).collect();
            array
                .store_array_subset(&array.subset_all(), elements)
                .unwrap();
        }
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn shell(&self, line: &str, code: i32) -> String {
        shell(self.folder.path(), line, code)
    }

    fn group(&self, more: &str, code: i32) -> String {
        let line = format!(
            "zarrs-cuda reencode in out --recursive --shard 8,8 --subchunk 4,4 --threads 1 {more}"
        );
        self.shell(&line, code)
    }

    fn status(&self, out: &str) -> Value {
        let mut command = program();
        command.args(["status", "--json"]).arg(self.path(out));
        let output = command.output().unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        json["status"].clone()
    }

    /// Returns the files of the folder, and their bytes.
    fn all(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files: Vec<_> = files(self.folder.path())
            .into_iter()
            .map(|file| (file.clone(), fs::read(file).unwrap()))
            .collect();
        files.sort();
        files
    }

    /// Copies the plan and the marks of OUT to `kept`.
    fn keep(&self, kept: &Path) {
        fs::create_dir_all(kept).unwrap();
        for file in files(&self.path("out/.zarrs-cuda-run")) {
            fs::copy(&file, kept.join(file.file_name().unwrap())).unwrap();
        }
    }
}

/// Returns the command between backticks in the remedy.
fn named(said: &str) -> &str {
    let help = said.split("\nhelp: finish it by `").nth(1).unwrap();
    help.split('`').next().unwrap()
}

#[test]
fn a_run_without_parts_is_refused() {
    let case = Case::new();
    for (first, made, parts) in [
        (
            "--prepare 3",
            "0 parts are made, and 0 of 8 shards stored",
            "--part I/3`, with I of 1,2,3; or delete out as a whole",
        ),
        (
            "--part 2/3",
            "1 part is made, and 2 of 8 shards stored",
            "--part I/3`, with I of 1,3; or delete out as a whole",
        ),
        (
            "--part 1/3",
            "2 parts are made, and 5 of 8 shards stored",
            "--part 3/3`; or delete out as a whole",
        ),
    ] {
        case.group(first, 0);
        let before = case.all();
        for more in [
            "",
            "--resume",
            "--overwrite",
            "--overwrite --dry-run",
            "--resume --dry-run",
        ] {
            let said = case.group(more, 1);
            assert!(
                said.contains(&format!(
                    "error: out holds an unfinished run in 3 parts: {made}"
                )),
                "{more}: {said}"
            );
            assert!(said.contains(parts), "{more}: {said}");
        }
        assert!(case.all() == before, "{first}: something was written");
    }
    let said = case.group("--overwrite", 1);
    assert_eq!(
        named(&said),
        "zarrs-cuda reencode in out --shard 8,8 --subchunk 4,4 --recursive --part 3/3"
    );
    let said = case.shell(named(&said), 0);
    assert!(said.contains("can be read"), "{said}");
    assert_eq!(values(&case.path("out/a")), values(&case.path("in/a")));
    // It is finished, and replaced.
    case.group("--overwrite", 0);
    assert!(!case.path("out/.zarrs-cuda-run/done.json").exists());
}

/// All parts are made, and the last process was killed before it completed OUT.
#[test]
fn a_run_that_was_not_completed() {
    let case = Case::new();
    let kept = case.path("kept");
    case.group("--part 1/2", 0);
    case.keep(&kept);
    let marks = files(&case.path("out/.zarrs-cuda-run")).into_iter();
    let mut marks = marks.filter(|file| file.to_str().unwrap().ends_with("-1"));
    fs::remove_file(marks.next().unwrap()).unwrap();
    case.group("--part 2/2", 0);
    case.keep(&kept);
    for file in files(&kept) {
        let name = file.file_name().unwrap();
        fs::copy(&file, case.path("out/.zarrs-cuda-run").join(name)).unwrap();
    }
    let said = case.group("--overwrite", 1);
    assert!(
        said.contains("2 parts are made, and 8 of 8 shards stored"),
        "{said}"
    );
    assert_eq!(named(&said), "zarrs-cuda status out --finish");
    let said = case.shell(named(&said), 0);
    assert!(said.contains("can be read"), "{said}");
    // It was killed before it deleted the plan.
    let plan = ".zarrs-cuda-run/plan.json";
    fs::copy(kept.join("plan.json"), case.path("out").join(plan)).unwrap();
    for more in ["--overwrite", "--resume"] {
        let said = case.group(more, 1);
        assert_eq!(named(&said), "zarrs-cuda status out --finish");
    }
    case.shell("zarrs-cuda status out --finish", 0);
    assert!(!case.path("out").join(plan).exists());
    assert_eq!(case.status("out")["stored"], Value::Null);
    assert_eq!(case.status("out")["shards"], 8);
}

/// The status says of how many shards some are stored, and its command makes the part again.
#[test]
fn the_status_names_the_command() {
    let case = Case::new();
    fs::rename(case.path("in"), case.path("it's in")).unwrap();
    let line = "zarrs-cuda reencode \"it's in\" out --recursive --shape-for '**/b=24,8' \
                --shape-for 'a=8,8/4,4' --include a --include '**/b' --codec zstd:5 --index start \
                --consolidate-metadata --backend host --shard-size 1MiB --subchunk-size 64 --threads 1";
    case.shell(&format!("{line} --part 2/3"), 0);
    let said = case.shell("zarrs-cuda status out", 3);
    assert!(
        said.contains("out: reencode in 3 parts, 2 of 6 shards stored"),
        "{said}"
    );
    assert!(said.contains("  1/3: 0 of 3 shards stored\n"), "{said}");
    assert!(said.contains("  3/3: 0 of 1 shard stored\n"), "{said}");
    let line = said.lines().last().unwrap();
    assert!(line.starts_with("zarrs-cuda reencode 'it'\\''s in' out "));
    assert!(line.ends_with("--part I/3"), "{line}");
    let status = case.status("out");
    assert_eq!(
        (&status["shards"], &status["stored"]),
        (&6.into(), &2.into())
    );
    let missing = status["missing"].as_array().unwrap();
    assert_eq!(missing.len(), 2);
    for part in missing {
        assert_eq!(part["stored"], 0);
        assert_eq!(
            part["shards"],
            if part["part"] == 1 { 3 } else { 1 },
            "{part}"
        );
        // OUT is absolute there, and so is IN.
        let line = part["again"].as_str().unwrap();
        assert!(
            !line.contains(" out ") && line.contains("--backend host"),
            "{line}"
        );
        case.shell(&format!("cd / && {line}"), 0);
    }
    assert_eq!(case.status("out")["is_complete"], true);
}

/// Arrays that are left out, and an array without chunks, need an option that is not of the output.
#[test]
fn commands_of_what_is_left_out_or_empty() {
    let case = Case::new();
    fs::write(case.path("in/a/zarr.json"), "{").unwrap();
    case.group("--part 2/2 --keep-going", 1);
    let line = case.status("out")["missing"][0]["again"].clone();
    assert!(
        line.as_str().unwrap().contains(" --keep-going --part 1/2"),
        "{line}"
    );
    case.shell(line.as_str().unwrap(), 1);
    assert_eq!(case.status("out")["is_complete"], true);

    fs::remove_dir_all(case.path("in/deep/b/c")).unwrap();
    case.shell(
        "zarrs-cuda reencode in/deep/b empty --part 2/2 --allow-empty",
        0,
    );
    let line = case.status("empty")["missing"][0]["again"].clone();
    case.shell(line.as_str().unwrap(), 0);
    assert_eq!(case.status("empty")["is_complete"], true);
}

#[test]
fn siblings_of_the_command_are_refused() {
    let case = Case::new();
    case.shell(
        "zarrs-cuda reencode in/a one --shard 8,8 --subchunk 4,4 --codec crc32c",
        0,
    );
    case.shell(
        "zarrs-cuda reshard one moved --shard 16,8 --chunk-keys v2. --index start --prepare 2",
        0,
    );
    case.group("--prepare 2", 0);
    let before = case.all();
    for line in [
        "zarrs-cuda reshard one moved --shard 16,8",
        "zarrs-cuda reshard one moved --chunks",
        "zarrs-cuda reencode in/a moved --overwrite",
        "zarrs-cuda reencode in/a out/a",
        "zarrs-cuda reencode in/a out/a --overwrite",
        "zarrs-cuda reencode in/a out/a --part 1/1",
        "zarrs-cuda reencode in out/deep --recursive --overwrite",
        "zarrs-cuda reshard one out/a --chunks",
        "zarrs-cuda stream moved /dev/null --frame-shape 4,4 --dtype uint8",
        "zarrs-cuda stream out/a /dev/null --frame-shape 4,4 --dtype uint8",
    ] {
        let said = case.shell(line, 1);
        assert!(
            said.contains("holds an unfinished run in 2 parts: 0 parts are made"),
            "{line}: {said}"
        );
    }
    assert!(case.all() == before, "something was written");
    for line in [
        "reencode in/a out/a",
        "stream out/a /dev/null --frame-shape 4,4 --dtype uint8",
    ] {
        let said = case.shell(&format!("zarrs-cuda {line}"), 1);
        assert!(said.contains("error: out/a lies in "), "{said}");
    }
    // Another array beside those of the run.
    case.shell("zarrs-cuda reencode in/a out/other", 0);
    for number in [0, 0] {
        let line = case.status("moved")["missing"][number]["again"].clone();
        case.shell(line.as_str().unwrap(), 0);
    }
    assert_eq!(case.status("moved")["is_complete"], true);
    assert_eq!(values(&case.path("moved")), values(&case.path("in/a")));
}

/// Members of OUT that are outputs of their own, and not finished.
#[test]
fn members_that_are_not_finished() {
    for (member, shapes) in [("a", ""), ("deep", "--recursive")] {
        let case = Case::new();
        case.group("", 0);
        fs::remove_dir_all(case.path("out").join(member)).unwrap();
        let line = format!(
            "zarrs-cuda reencode in/{member} out/{member} --shard 8,8 --subchunk 4,4 {shapes}"
        );
        case.shell(&format!("{line} --prepare 2"), 0);
        let before = case.all();
        for more in ["--overwrite", "--prepare 2 --overwrite"] {
            let said = case.group(more, 1);
            assert!(
                said.contains(&format!("out/{member} holds an unfinished run in 2 parts")),
                "{said}"
            );
        }
        assert!(case.all() == before, "something was written");
        for part in ["1/2", "2/2"] {
            case.shell(&format!("{line} --part {part}"), 0);
        }
        case.group("--overwrite", 0);
    }
}
