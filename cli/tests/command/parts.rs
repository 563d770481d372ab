//! Runs in parts: killed, repeated, doubled, and mixed with others.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use zarrs::array::{ArrayBuilder, data_type};
use zarrs::group::GroupBuilder;
use zarrs_cuda_testing::{Rng, effort};

use crate::arrays::store;
use crate::program::{files, program, said, said_with_code};

/// How many processes are killed before all may end.
const KILLS: u32 = 30;

/// Makes a group with arrays of several sizes; one of them has chunks without stored elements.
fn group(path: &Path) {
    let store = store(path);
    let group = |at: &str| {
        GroupBuilder::new()
            .build(store.clone(), at)
            .unwrap()
            .store_metadata()
            .unwrap();
    };
    group("/");
    group("/deep");
    for (at, rows, first) in [("/a", 40_u64, 0), ("/deep/b", 24, 12), ("/c", 8, 0)] {
        let shape = vec![rows, 8];
        let builder = ArrayBuilder::new(shape, vec![4, 8], data_type::uint16(), 0_u16);
        let array = builder.build(store.clone(), at).unwrap();
        array.store_metadata().unwrap();
        let elements: Vec<u16> = (0..(rows - first) * 8).map(|n| n as u16 + 1).collect();
        array
            .store_array_subset(&[first..rows, 0..8], elements)
            .unwrap();
    }
}

/// A folder with IN, a group, and the output of one run.
struct Case {
    folder: TempDir,
}

impl Case {
    fn new() -> Self {
        let this = Self {
            folder: TempDir::new().unwrap(),
        };
        group(&this.path("in"));
        this.run("one", "", 0);
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn arguments(&self, out: &str, more: &str) -> Vec<std::ffi::OsString> {
        let mut arguments = vec![
            "reencode".into(),
            self.path("in").into(),
            self.path(out).into(),
        ];
        let rest = "--recursive --shard 8,8 --subchunk 4,4 --threads 1";
        let words = rest
            .split(' ')
            .chain(more.split(' '))
            .filter(|word| !word.is_empty());
        arguments.extend(words.map(Into::into));
        arguments
    }

    fn run(&self, out: &str, more: &str, code: i32) -> String {
        let output = program().args(self.arguments(out, more)).output().unwrap();
        said_with_code(&output, code)
    }

    /// Re-encodes one array of the group, as `array`.
    fn run_array(&self, more: &str, code: i32) -> String {
        let mut command = program();
        command
            .arg("reencode")
            .arg(self.path("in/a"))
            .arg(self.path("array"));
        command
            .args("--shard 8,8 --subchunk 4,4".split(' '))
            .args(more.split(' '));
        said_with_code(&command.output().unwrap(), code)
    }

    fn spawn(&self, out: &str, more: &str) -> Child {
        let mut command = program();
        command.args(self.arguments(out, more));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn status(&self, out: &str) -> Value {
        let output = program()
            .arg("status")
            .arg(self.path(out))
            .arg("--json")
            .output()
            .unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let is_complete = json["status"]["is_complete"] == true;
        said_with_code(&output, if is_complete { 0 } else { 3 });
        json["status"].clone()
    }

    /// Returns the files of an output and their bytes, without the record of a complete run.
    fn output(&self, out: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let root = self.path(out);
        let files = files(&root).into_iter();
        let files = files.map(|file| (file.strip_prefix(&root).unwrap().to_path_buf(), file));
        let files = files.filter(|(name, _)| !name.starts_with(".zarrs-cuda-run"));
        files
            .map(|(name, file)| (name, fs::read(file).unwrap()))
            .collect()
    }

    fn must_be_complete(&self, out: &str) {
        self.must_be_complete_as(out, "one");
    }

    /// Checks that an output of parts is complete, and equal to the output `one` of one run.
    fn must_be_complete_as(&self, out: &str, one: &str) {
        let (output, one) = (self.output(out), self.output(one));
        let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&output), names(&one));
        assert!(output == one, "files with other bytes");
        let left = files(&self.path(out).join(".zarrs-cuda-run"));
        let left: Vec<_> = left.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(left, ["done.json"]);
        assert_eq!(self.status(out)["is_complete"], true);
    }
}

#[test]
fn parts_make_the_output_of_one_run() {
    for parts in [1_u64, 2, 3, 7, 30] {
        let case = Case::new();
        let mut order: Vec<u64> = (1..=parts).collect();
        let mut rng = Rng(effort::seed());
        for n in (1..order.len()).rev() {
            order.swap(n, rng.below(n as u64 + 1) as usize);
        }
        for (done, part) in order.iter().enumerate() {
            let said = case.run("out", &format!("--part {part}/{parts}"), 0);
            let is_last = done + 1 == order.len();
            assert_eq!(said.contains("can be read"), is_last, "{said}");
            assert_eq!(case.path("out/zarr.json").exists(), is_last);
            let missing = case.status("out")["missing"].as_array().unwrap().len();
            assert_eq!(missing, order.len() - done - 1);
        }
        case.must_be_complete("out");
        // After the end, a part changes nothing, and says so.
        let said = case.run("out", &format!("--part 1/{parts}"), 0);
        assert!(said.contains("complete already"), "{said}");
        case.must_be_complete("out");
    }
}

#[test]
fn killed_doubled_and_repeated() {
    let case = Case::new();
    let mut rng = Rng(effort::seed());
    let parts = 3 + rng.below(3);
    let mut kills = 0;
    let mut run = 0;
    let clock = std::time::Instant::now();
    case.run("timed", &format!("--part 1/{parts}"), 0);
    let time = clock.elapsed().as_micros() as u64 * 3 / 2;
    let (mut after_shards, mut after_marks) = (0, 0);
    while kills < effort::times(KILLS) {
        run += 1;
        let out = format!("out{run}");
        loop {
            let number = 1 + rng.below(3);
            let mut children: Vec<Child> = (0..number)
                .map(|_| {
                    let part = 1 + rng.below(parts);
                    case.spawn(&out, &format!("--part {part}/{parts}"))
                })
                .collect();
            for child in &mut children {
                if rng.one_in(2) {
                    sleep(Duration::from_micros(rng.below(time)));
                    child.kill().unwrap();
                    kills += 1;
                    let directory = case.path(&out).join(".zarrs-cuda-run");
                    let stored = files(&case.path(&out)).into_iter();
                    let mut shards = stored.filter(|file| !file.starts_with(&directory));
                    after_shards += u32::from(shards.next().is_some());
                    after_marks += u32::from(files(&directory).len() > 1);
                }
            }
            for child in children {
                let output = child.wait_with_output().unwrap();
                let errors = String::from_utf8_lossy(&output.stderr);
                let is_killed =
                    std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
                assert!(output.status.success() || is_killed, "{errors}");
            }
            let is_shown = case.path(&out).join("zarr.json").exists();
            if is_shown || run == 40 {
                break;
            }
        }
        for part in 1..=parts {
            case.run(&out, &format!("--part {part}/{parts}"), 0);
        }
        case.must_be_complete(&out);
    }
    assert!(
        after_shards > 0 && after_marks > 0,
        "{after_shards}, {after_marks}"
    );
}

#[test]
fn both_last_parts_at_once() {
    let case = Case::new();
    case.run("consolidated", "--consolidate-metadata", 0);
    for run in 0..10 {
        let out = format!("out{run}");
        let (more, one) = match run % 2 {
            0 => ("", "one"),
            _ => ("--consolidate-metadata", "consolidated"),
        };
        case.run(&out, &format!("{more} --part 2/3"), 0);
        let children =
            ["1/3", "3/3", "1/3"].map(|part| case.spawn(&out, &format!("{more} --part {part}")));
        for child in children {
            let output = child.wait_with_output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
        }
        case.must_be_complete_as(&out, one);
    }
}

/// A process that was killed between two of the last steps: any part, and `status --finish`, do the others.
#[test]
fn interrupted_at_the_end() {
    let case = Case::new();
    let directory = case.path("out/.zarrs-cuda-run");
    let copy = case.path("kept");
    fs::create_dir(&copy).unwrap();
    let keep = || {
        for file in files(&directory) {
            fs::copy(&file, copy.join(file.file_name().unwrap())).unwrap();
        }
    };
    let mark = |part: &str| {
        let mut marks = files(&directory).into_iter();
        marks
            .find(|file| file.to_str().unwrap().ends_with(part))
            .unwrap()
    };
    case.run("out", "--part 1/2", 0);
    keep();
    fs::remove_file(mark("-1")).unwrap();
    case.run("out", "--part 2/2", 0);
    keep();
    case.run("out", "--part 1/2", 0);
    case.must_be_complete("out");
    assert_eq!(files(&copy).len(), 3);
    // The steps: arrays, groups, the root, the record, the plan, the marks.
    let metadata = [
        "a/zarr.json",
        "c/zarr.json",
        "deep/b/zarr.json",
        "deep/zarr.json",
        "zarr.json",
    ];
    for steps in 0..=metadata.len() + 1 {
        for finish in [true, false] {
            for name in metadata.iter().skip(steps) {
                fs::remove_file(case.path("out").join(name)).unwrap();
            }
            if steps <= metadata.len() {
                fs::remove_file(directory.join("done.json")).unwrap();
            }
            for file in files(&copy) {
                fs::copy(&file, directory.join(file.file_name().unwrap())).unwrap();
            }
            if finish {
                let said = said(&[&"status", &case.path("out"), &"--finish"], 0);
                assert!(said.contains("can be read"), "{said}");
            } else {
                case.run("out", "--part 2/2", 0);
            }
            case.must_be_complete("out");
        }
    }
    // A record without an output is not believed.
    for file in files(&case.path("out")) {
        if !file.starts_with(&directory) {
            fs::remove_file(file).unwrap();
        }
    }
    for said in [
        case.run("out", "--part 1/2", 1),
        said(&[&"status", &case.path("out")], 1),
    ] {
        assert!(said.contains("delete OUT as a whole"), "{said}");
    }
}

/// Shards that are deleted, or damaged, after their part was made: the output is not shown before they are made again.
#[test]
fn shards_that_are_lost_after_their_mark() {
    let case = Case::new();
    for damage in ["delete", "empty", "all"] {
        let out = format!("out-{damage}");
        case.run(&out, "--part 1/3", 0);
        let shards = case.output(&out);
        let (first, _) = shards.iter().next().unwrap();
        let shard = case.path(&out).join(first);
        match damage {
            "delete" => fs::remove_file(&shard).unwrap(),
            "empty" => fs::write(&shard, "").unwrap(),
            _ => {
                for name in shards.keys() {
                    fs::remove_file(case.path(&out).join(name)).unwrap();
                }
            }
        }
        case.run(&out, "--part 3/3", 0);
        let said = case.run(&out, "--part 2/3", 3);
        assert!(said.contains("of the parts 1"), "{said}");
        assert!(!case.path(&out).join("zarr.json").exists());
        if damage == "empty" {
            let said = case.run(&out, "--part 1/3", 3);
            assert!(
                said.contains("is not whole") && said.contains("delete the shard"),
                "{said}"
            );
            fs::remove_file(&shard).unwrap();
        }
        case.run(&out, "--part 1/3", 0);
        case.must_be_complete(&out);
    }
}

/// Shards that are lost after the end: a run of the same command with `--resume` makes them again, and no others.
#[test]
fn shards_that_are_lost_after_the_end() {
    let case = Case::new();
    let said = case.run("one", "--resume", 1);
    assert!(said.contains("holds a Zarr group"), "{said}"); // no record says what IN was
    for part in ["1/3", "2/3", "3/3"] {
        case.run("out", &format!("--part {part}"), 0);
    }
    let said = case.run("out", "--resume", 0);
    assert!(said.contains("each index is whole"), "{said}");
    case.must_be_complete("out");
    let verify = |more: &[&str], code| {
        let mut command = program();
        command
            .args(["verify", "--recursive"])
            .arg(case.path("out"));
        said_with_code(&command.args(more).output().unwrap(), code)
    };
    let input = case.path("in").display().to_string();
    let said = verify(&["--against", &input], 0);
    assert!(
        said.contains("all are well") && !said.contains("no checksum"),
        "{said}"
    );
    assert!(verify(&[], 0).contains("have no checksum"));
    // A subchunk that does not decode, below an index that does.
    let damaged = case.path("out/a/c/1/0");
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[..8].fill(0xff);
    fs::write(&damaged, &bytes).unwrap();
    let said = verify(&[], 3);
    assert!(
        said.contains("1 not well") && said.contains("--resume --verify"),
        "{said}"
    );
    let said = case.run("out", "--resume", 0);
    assert!(said.contains("--verify decodes the subchunks"), "{said}");
    let said = case.run("out", "--resume --verify", 0);
    assert!(
        said.contains("1 shard of ") && said.contains("is made again"),
        "{said}"
    );
    let said = case.run("out", "--resume --verify", 0);
    assert!(said.contains("each subchunk decodes"), "{said}");
    // An array without its metadata is of one group only, until they are stored again.
    fs::remove_file(case.path("out/deep/b/zarr.json")).unwrap();
    let said = verify(&["--against", &input], 3);
    assert!(said.contains("has none there"), "{said}");
    let said = case.run("out", "--resume", 0);
    assert!(said.contains("was missing, and is stored again"), "{said}");
    case.must_be_complete("out");
    let [cut, gone] = ["a/c/1/0", "deep/b/c/1/0"].map(|name| case.path("out").join(name));
    let whole = fs::read(&cut).unwrap();
    fs::write(&cut, &whole[..whole.len() - 9]).unwrap();
    fs::remove_file(&gone).unwrap();
    let time = || {
        let stays = fs::metadata(case.path("out/a/c/2/0")).unwrap();
        stays.modified().unwrap()
    };
    let before = time();
    let said = case.run("out", "--part 1/3", 0);
    assert!(said.contains("nothing was changed"), "{said}");
    for command in ["verify", "recover"] {
        let output = program().arg(command).arg(case.path("out/a")).output();
        let said = said_with_code(&output.unwrap(), 3);
        assert!(
            said.contains("with --resume --verify if OUT was made in parts"),
            "{said}"
        );
    }
    for dry in ["", " --dry-run"] {
        let said = case.run("out", &format!("--resume --codec zstd:5{dry}"), 1);
        assert!(said.contains("--codec is zstd:3 there"), "{said}");
    }
    let stored = case.output("out");
    let said = case.run("out", "--resume --dry-run", 0);
    let kept = stored.len() - 5 - 1; // without metadata, and the shard that was cut
    assert!(
        said.contains("2 shards of 3 arrays would be made in ")
            && said.contains(&format!(", and {kept} kept")),
        "{said}"
    );
    assert!(case.output("out") == stored, "a dry run wrote something");
    let said = case.run("out", "--resume --verify", 0);
    assert!(
        said.contains("2 shards of ") && said.contains("are made again"),
        "{said}"
    );
    case.must_be_complete("out");
    assert_eq!(time(), before);
    let said = case.run("out", "--resume --dry-run", 0);
    assert!(
        said.contains("and nothing would be: ") && said.contains("complete already"),
        "{said}"
    );
    // One array.
    let run = |more: &str, code| case.run_array(more, code);
    run("--part 1/1", 0);
    fs::remove_file(case.path("array/c/0/0")).unwrap();
    let said = run("--resume", 0);
    assert!(
        said.contains("1 shard of ") && said.contains("is made again"),
        "{said}"
    );
    assert!(case.path("array/c/0/0").exists());
}

/// A chunk of IN that cannot be read is named, and no command that would fail again is offered.
#[test]
fn a_broken_chunk_is_named() {
    let case = Case::new();
    let chunk = case.path("in/a/c/7/0");
    let whole = fs::read(&chunk).unwrap();
    fs::write(&chunk, &whole[1..]).unwrap();
    for (out, more) in [("single", ""), ("out", "--part 1/1")] {
        let said = case.run(out, more, 1);
        assert!(said.contains("in/a, of the chunk c/7/0: "), "{said}");
        assert!(
            said.contains("help: ") && said.contains("when the cause is gone"),
            "{said}"
        );
    }
    fs::write(&chunk, whole).unwrap();
    case.run("out", "--part 1/1", 0);
    case.must_be_complete("out");
}

/// Chunks of IN that are not there any more are no fill values.
#[test]
fn an_input_that_shrinks_is_refused() {
    let case = Case::new();
    case.run("out", "--part 1/2", 0);
    fs::remove_file(case.path("in/a/c/9/0")).unwrap();
    let said = case.run("out", "--part 2/2", 1);
    assert!(
        said.contains("stored chunks of IN/a is 10 there, and 9 here"),
        "{said}"
    );
}

/// What a run in parts has stored is replaced by a plan.
#[test]
fn an_unfinished_output_is_replaced() {
    let case = Case::new();
    for first in ["--part 1/3", "--prepare 3"] {
        let out = format!("out{}", first.len());
        case.run(&out, first, 0);
        let said = case.run(&out, "--codec zstd:5 --part 1/2", 1);
        assert!(said.contains("--prepare with --overwrite"), "{said}");
        case.run(&out, "--prepare 2 --overwrite --codec zstd:5", 0);
        assert!(case.output(&out).is_empty());
        for part in ["1/2", "2/2"] {
            case.run(&out, &format!("--codec zstd:5 --part {part}"), 0);
        }
        assert_eq!(case.status(&out)["is_complete"], true);
    }
}

/// A run without parts, and a plan, at the same time: one of both withdraws. Temporaries and a mark of another run do not
/// count.
#[test]
fn beside_others() {
    let case = Case::new();
    fs::create_dir_all(case.path("out/.zarrs-cuda-run")).unwrap();
    fs::write(
        case.path("out/zarr.json.incomplete.0000000000000001-2-3-4.tmp"),
        "",
    )
    .unwrap();
    fs::write(case.path("out/.zarrs-cuda-run/part-0123456789abcdef-1"), "").unwrap();
    case.run("out", "--part 1/2", 0);
    let finish = said(&[&"status", &case.path("out"), &"--finish"], 3);
    assert!(finish.contains("1 part is missing: 2"), "{finish}");
    case.run("out", "--part 2/2", 0);
    assert_eq!(case.status("out")["is_complete"], true);
    for run in 0..6 {
        let out = format!("both{run}");
        let children = ["", "--part 1/1"].map(|more| case.spawn(&out, more));
        let codes = children.map(|child| child.wait_with_output().unwrap().status.code());
        assert!(
            codes.iter().filter(|code| **code == Some(0)).count() <= 1,
            "{codes:?}"
        );
    }
}

/// Arrays that are left out are named by each part, and by the status.
#[test]
fn arrays_that_are_left_out_are_named() {
    let case = Case::new();
    let metadata = case.path("in/c/zarr.json");
    let text = fs::read_to_string(&metadata).unwrap();
    fs::write(&metadata, text.replace("\"bytes\"", "\"unknown\"")).unwrap();
    let said = case.run("out", "--part 1/2", 1);
    assert!(said.contains("nothing was written"), "{said}");
    case.run("out", "--part 1/2 --keep-going", 1);
    let said = case.run("out", "--part 2/2 --keep-going", 1);
    assert!(said.contains("can be read, without c"), "{said}");
    assert_eq!(case.status("out")["left_out"], serde_json::json!(["c"]));
}

#[test]
fn other_runs_are_refused_by_name() {
    let case = Case::new();
    case.run("out", "--part 1/3", 0);
    let before = case.output("out");
    for (more, name) in [
        ("--part 1/4", "the number of parts is 3 there, and 4 here"),
        (
            "--part 2/3 --codec zstd:5",
            "--codec is zstd:3 there, and zstd:5 here",
        ),
        (
            "--part 2/3 --index start",
            "--index is end there, and start here",
        ),
        ("--prepare 2", "the number of parts is 3 there, and 2 here"),
        ("", "holds an unfinished run in 3 parts"),
        ("--resume", "holds an unfinished run in 3 parts"),
    ] {
        let said = case.run("out", more, 1);
        assert!(said.contains(name), "{said}");
        assert!(said.contains("help: "), "{said}");
    }
    for more in [
        "--part 1/3 --overwrite",
        "--part 1/3 --resume",
        "--part 1/3 --verify",
        "--part 4/3",
    ] {
        case.run("out", more, 2);
    }
    // An array of IN has other metadata, and IN is another group.
    let text = fs::read_to_string(case.path("in/a/zarr.json")).unwrap();
    fs::write(
        case.path("in/a/zarr.json"),
        text.replace("\"attributes\": {}", "\"attributes\": {\"n\": 1}")
            .replace("\"fill_value\": 0", "\"fill_value\": 3"),
    )
    .unwrap();
    let said = case.run("out", "--part 2/3", 1);
    assert!(said.contains("metadata"), "{said}");
    fs::write(case.path("in/a/zarr.json"), text).unwrap();
    group(&case.path("in2"));
    let mut arguments = case.arguments("out", "--part 2/3");
    arguments[1] = case.path("in2").into();
    let output = program().args(arguments).output().unwrap();
    let said = said_with_code(&output, 1);
    assert!(said.contains("IN is ") && said.contains("in2"), "{said}");
    assert_eq!(case.output("out"), before);
    // A shard that is not whole is not replaced.
    let shard = case
        .output("out")
        .into_keys()
        .find(|name| !name.ends_with("zarr.json"));
    let shard = case.path("out").join(shard.unwrap());
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, "").unwrap();
    let said = case.run("out", "--part 1/3", 3);
    assert!(
        said.contains("is not whole") && said.contains("delete the shard"),
        "{said}"
    );
    fs::write(&shard, bytes).unwrap();
    // A plan that cannot be read.
    let plan = case.path("out/.zarrs-cuda-run/plan.json");
    let text = fs::read(&plan).unwrap();
    case.run("out", "--part 1/65537", 2);
    case.run("out", "--prepare 0", 2);
    for (wrong, name) in [
        ("", "understand"),
        ("{}", "version"),
        ("[1]", "version"),
        (r#"{"zarrs_cuda_run": 2}"#, "version 2"),
    ] {
        fs::write(&plan, wrong).unwrap();
        let said = case.run("out", "--part 2/3", 1);
        assert!(said.contains("plan.json") && said.contains(name), "{said}");
    }
    fs::write(&plan, text).unwrap();
    for part in 1..=3 {
        case.run("out", &format!("--part {part}/3"), 0);
    }
    case.must_be_complete("out");
}

#[test]
fn an_output_is_replaced_by_a_plan() {
    let case = Case::new();
    for name in ["one", "out"] {
        case.run(name, "--codec zstd:5 --overwrite", 0);
    }
    let said = case.run("out", "--part 1/2", 1);
    assert!(
        said.contains("holds a Zarr") && said.contains("--prepare"),
        "{said}"
    );
    let said = case.run("out", "--prepare 2 --overwrite --codec zstd:5", 0);
    assert!(said.contains("planned in 2 parts"), "{said}");
    assert!(case.output("out").is_empty());
    for part in ["1/2", "2/2"] {
        case.run("out", &format!("--codec zstd:5 --part {part}"), 0);
    }
    case.must_be_complete("out");
    // One run replaces the output of parts, and a part does not take it for its own.
    case.run("out", "--codec zstd:5 --overwrite", 0);
    assert!(!case.path("out/.zarrs-cuda-run/done.json").exists());
    let said = case.run("out", "--codec zstd:5 --part 1/2", 1);
    assert!(said.contains("holds a Zarr"), "{said}");
    said_with_code(
        &program()
            .arg("status")
            .arg(case.path("out"))
            .output()
            .unwrap(),
        1,
    );
}

/// Files of others in groups stay. A file in the directory of an array is a reason to refuse, as for a run without parts,
/// before anything is deleted: also in an output whose parts are not all made.
#[test]
fn an_output_with_files_of_others_is_replaced_or_stays() {
    let case = Case::new();
    let again = "--prepare 2 --overwrite --codec zstd:5";
    for (number, foreign) in ["notes.txt", "deep/notes.txt"].into_iter().enumerate() {
        for first in ["", "--part 1/3"] {
            let out = format!("out{number}{}", first.len());
            case.run(&out, first, 0);
            let note = case.path(&out).join(foreign);
            fs::create_dir_all(note.parent().unwrap()).unwrap();
            fs::write(&note, "mine").unwrap();
            let said = case.run(&out, again, 0);
            assert!(said.contains("planned in 2 parts"), "{said}");
            assert_eq!(
                case.output(&out).into_keys().collect::<Vec<_>>(),
                [Path::new(foreign)]
            );
            // The same again, for a plan and for an output that are there.
            case.run(&out, again, 0);
            for part in ["1/2", "2/2"] {
                case.run(&out, &format!("--codec zstd:5 --part {part}"), 0);
            }
            assert_eq!(case.status(&out)["is_complete"], true);
            case.run(&out, again, 0);
            assert_eq!(fs::read_to_string(&note).unwrap(), "mine");
        }
    }
    for first in ["", "--part 1/3"] {
        let out = format!("refused{}", first.len());
        case.run(&out, first, 0);
        let note = case.path(&out).join("a/notes.txt");
        fs::write(&note, "mine").unwrap();
        let all = || {
            let files = files(&case.path(&out)).into_iter();
            files
                .map(|file| (fs::read(&file).unwrap(), file))
                .collect::<Vec<_>>()
        };
        let before = all();
        for more in [again, "--overwrite"] {
            let said = case.run(&out, more, 1);
            let reason = match (first, more) {
                ("--part 1/3", "--overwrite") => "holds an unfinished run in 3 parts",
                _ => "a/notes.txt is not a part of the array",
            };
            assert!(said.contains(reason), "{said}");
            assert!(all() == before, "{more}: files were deleted or made");
        }
        fs::remove_file(note).unwrap();
        case.run(&out, again, 0);
    }
    // One array, whose parts are not all made.
    let run = |more: &str, code| case.run_array(more, code);
    run("--part 1/3", 0);
    fs::write(case.path("array/notes.txt"), "mine").unwrap();
    let mut before = files(&case.path("array"));
    before.sort();
    for more in ["--prepare 2 --overwrite", "--overwrite"] {
        run(more, 1);
        let mut after = files(&case.path("array"));
        after.sort();
        assert_eq!(after, before, "{more}");
    }
}

/// The job of the example for Slurm.
#[test]
fn the_job_of_the_example() {
    let case = Case::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let bin = Path::new(env!("CARGO_BIN_EXE_zarrs-cuda"))
        .parent()
        .unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let job = |part: &str, last: &str, parts: Option<&str>, code| {
        let mut job = std::process::Command::new("sh");
        job.arg(root.join("examples/many_machines/reencode.sbatch"));
        job.env("PATH", &path).env("NO_COLOR", "1");
        job.env("IN", case.path("in")).env("OUT", case.path("out"));
        job.env("SLURM_ARRAY_TASK_ID", part)
            .env("SLURM_ARRAY_TASK_MAX", last);
        match parts {
            Some(parts) => job.env("PARTS", parts),
            None => job.env_remove("PARTS"),
        };
        said_with_code(&job.env("MEMORY", "64MiB").output().unwrap(), code)
    };
    // The array of jobs says how many parts there are. One that is submitted again has to be told.
    job("4", "4", None, 0);
    job("1", "4", None, 0);
    job("3", "4", None, 0);
    let said = job("2", "2", None, 1);
    assert!(
        said.contains("the number of parts is 4 there, and 2 here"),
        "{said}"
    );
    assert_eq!(case.status("out")["is_complete"], false);
    job("2", "2", Some("4"), 0);
    assert_eq!(case.status("out")["is_complete"], true);
}

/// One array, and shards that are made in boxes because they do not fit the memory.
#[test]
fn one_array_in_boxes() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    group(&path("in"));
    let run = |out: &str, more: &[&str]| {
        let mut command = program();
        command
            .arg("reencode")
            .arg(path("in/a"))
            .arg(path(out))
            .args(more);
        let rest = "--shard 40,8 --subchunk 4,4 --threads 1 --memory 2KiB";
        said_with_code(&command.args(rest.split(' ')).output().unwrap(), 0)
    };
    run("one", &[]);
    for part in ["3/3", "1/3", "2/3", "2/3"] {
        run("out", &["--part", part]);
    }
    let read = |out: &str| fs::read(path(out).join("c/0/0")).unwrap();
    assert_eq!(read("out"), read("one"));
}

/// Parts on a server of S3 with conditional writes, with kills.
#[cfg(feature = "remote")]
#[test]
fn on_a_server() {
    use std::process::Command;
    use zarrs_cuda_object_store_tests::Server;

    let case = Case::new();
    let server = Server::start();
    let with_server = |arguments: &[std::ffi::OsString]| -> Command {
        let mut command = program();
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            command.env_remove(name);
        }
        command
            .env("AWS_ENDPOINT_URL", format!("http://{}", server.address()))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_SKIP_SIGNATURE", "true")
            .env("NO_PROXY", "127.0.0.1")
            .args(arguments);
        command
    };
    let mut rng = Rng(effort::seed());
    for run in 0..4 {
        let out = format!("s3://arrays/out{run}");
        let part = |part: &str| {
            let mut arguments = case.arguments("unused", &format!("--part {part}"));
            arguments[2] = out.clone().into();
            with_server(&arguments)
        };
        for _ in 0..8 {
            let number = 1 + rng.below(3);
            let mut command = part(&format!("{number}/3"));
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let mut child = child.unwrap();
            sleep(Duration::from_micros(rng.below(60_000)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let status = with_server(&["status".into(), out.clone().into(), "--json".into()]).output();
        let status = status.unwrap();
        // Nothing may be stored yet.
        if status.status.code() != Some(1) {
            let json: Value = serde_json::from_slice(&status.stdout).unwrap();
            assert_eq!(json["status"]["parts"], 3);
            if json["status"]["is_complete"] == false {
                let mut arguments = case.arguments("unused", "--overwrite");
                arguments[2] = out.clone().into();
                let said = said_with_code(&with_server(&arguments).output().unwrap(), 1);
                assert!(
                    said.contains("holds an unfinished run in 3 parts: ")
                        && said.contains(&format!(" {out} --shard 8,8 ")),
                    "{said}"
                );
            }
        }
        let children = ["2/3", "1/3", "3/3", "3/3"].map(|number| {
            let mut command = part(number);
            command
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        });
        for child in children {
            let output = child.wait_with_output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
        }
        let root = server.bucket().join(format!("out{run}"));
        let found = files(&root).into_iter();
        let found = found.map(|file| (file.strip_prefix(&root).unwrap().to_path_buf(), file));
        let found = found.filter(|(name, _)| !name.starts_with(".zarrs-cuda-run"));
        let found: BTreeMap<PathBuf, Vec<u8>> = found
            .map(|(name, file)| (name, fs::read(file).unwrap()))
            .collect();
        let one = case.output("one");
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            one.keys().collect::<Vec<_>>()
        );
        assert!(found == one, "objects with other bytes");
        fs::write(root.join("a/c/1/0"), "torn").unwrap();
        let mut arguments = case.arguments("unused", "--resume");
        arguments[2] = out.clone().into();
        let said = said_with_code(&with_server(&arguments).output().unwrap(), 0);
        assert!(said.contains("1 shard of "), "{said}");
        assert_eq!(
            fs::read(root.join("a/c/1/0")).unwrap(),
            one[Path::new("a/c/1/0")]
        );
        let other = part("1/4").output().unwrap();
        let said = said_with_code(&other, 1);
        assert!(said.contains("the number of parts is 3 there"), "{said}");
    }
}

/// What a dry run says is what the run does, and nothing is written.
#[test]
fn a_dry_run_says_what_the_parts_do() {
    let case = Case::new();
    for parts in [1_u64, 3, 7] {
        let json = |more: &str| {
            let output = program()
                .args(case.arguments(&format!("out{parts}"), more))
                .arg("--json")
                .output()
                .unwrap();
            said_with_code(&output, 0);
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        };
        let dry = json(&format!("--prepare {parts} --dry-run"));
        assert!(!case.path(&format!("out{parts}")).exists());
        let sum = |works: &Value, name: &str| {
            let works = works.as_array().unwrap().iter();
            works
                .map(|work| work["work"][name].as_u64().unwrap())
                .sum::<u64>()
        };
        for name in ["shards", "bytes_decoded", "reads"] {
            assert_eq!(sum(&dry["arrays"], name), sum(&dry["parts"], name));
        }
        // 40, 12 and 8 rows in chunks of four, and in shards of eight.
        assert_eq!(sum(&dry["parts"], "reads"), 10 + 3 + 2);
        assert_eq!(sum(&dry["parts"], "shards"), 5 + 2 + 1);
        for (number, part) in (1..).zip(dry["parts"].as_array().unwrap()) {
            let this = json(&format!("--part {number}/{parts} --dry-run"));
            assert_eq!(this["parts"], Value::Array(vec![part.clone()]));
            let made = json(&format!("--part {number}/{parts}"));
            assert_eq!(made["bytes"], part["work"]["bytes_decoded"]);
        }
    }
}

#[test]
fn a_dry_run_says_what_cannot_be_done() {
    let case = Case::new();
    let said = case.run("out", "--dry-run", 0);
    assert!(
        said.contains("5 shards of 640 B decoded, 10 reads of objects of IN"),
        "{said}"
    );
    assert!(
        said.contains("nothing was written: 3 arrays would be"),
        "{said}"
    );
    fs::write(case.path("in/c/zarr.json"), "{").unwrap();
    let said = case.run("out", "--dry-run", 1);
    assert!(
        said.contains("nothing was written, and nothing would be: 1 of "),
        "{said}"
    );
    assert!(said.contains("--keep-going would write 2 arrays"), "{said}");
    assert!(said.contains("error") && said.contains("in/c"), "{said}");
    let said = case.run("out", "--dry-run --keep-going", 1);
    assert!(
        said.contains("2 arrays would be written") && said.contains("without c"),
        "{said}"
    );
    assert!(!case.path("out").exists());
}

/// A dry run takes and refuses what the run would, in the same words.
#[test]
fn a_dry_run_ends_as_the_run() {
    let case = Case::new();
    let run = |out: &str, more: &str, code: i32| -> Vec<String> {
        let said = case.run(out, more, code);
        let lines = said
            .lines()
            .filter(|line| line.starts_with("error") || line.starts_with("help"));
        lines.map(str::to_owned).collect()
    };
    case.run("begun", "--part 1/3", 0);
    for part in ["1/2", "2/2"] {
        case.run("complete", &format!("--part {part}"), 0);
    }
    fs::create_dir(case.path("other")).unwrap();
    fs::write(case.path("other/notes.txt"), "mine").unwrap();
    case.run("foreign", "", 0);
    fs::write(case.path("foreign/a/notes.txt"), "mine").unwrap();
    let all = || {
        let mut files = files(case.folder.path());
        files.sort();
        files
    };
    let before = all();
    for (out, more, code) in [
        ("one", "", 1),
        ("one", "--part 1/2", 1),
        ("one", "--prepare 2", 1),
        ("begun", "", 1),
        ("begun", "--overwrite", 1),
        ("begun", "--resume", 1),
        ("begun", "--part 1/2", 1),
        ("begun", "--prepare 2", 1),
        ("complete", "", 1),
        ("complete", "--part 1/3", 1),
        ("complete", "--part 1/2 --codec zstd:5", 1),
        ("other", "", 1),
        ("other", "--part 1/2", 1),
        ("other", "--overwrite", 1),
        ("other", "--prepare 2 --overwrite", 1),
        ("foreign", "--overwrite", 1),
        ("foreign", "--prepare 2 --overwrite", 1),
    ] {
        let dry = run(out, &format!("{more} --dry-run"), code);
        assert_eq!(dry, run(out, more, code), "{out} {more}");
        assert!(dry.len() == 2 || out == "foreign", "{out} {more}: {dry:?}");
    }
    let said = case.run("complete", "--part 1/2 --dry-run", 0);
    assert!(
        said.contains("and nothing would be: ") && said.contains("complete already"),
        "{said}"
    );
    for (out, more) in [
        ("one", "--overwrite"),
        ("one", "--prepare 2 --overwrite"),
        ("begun", "--part 2/3"),
        ("begun", "--prepare 3"),
        ("begun", "--prepare 2 --overwrite"),
        ("complete", "--overwrite"),
        ("complete", "--prepare 2 --overwrite"),
    ] {
        let said = case.run(out, &format!("{more} --dry-run"), 0);
        assert!(said.contains("3 arrays would be written"), "{said}");
    }
    assert_eq!(all(), before);
}
