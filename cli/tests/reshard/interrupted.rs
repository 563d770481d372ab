//! Runs that are killed, and run again.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zarrs_cuda_testing::{Rng, codecs, effort};

use crate::arrays::{Layout, elements, every_encoding, files, temporary};
use crate::{command, resharded, run};

pub(crate) fn layout(counts: Option<Vec<u64>>) -> Layout {
    Layout {
        shape: vec![128, 128],
        subchunk: vec![2, 4],
        counts,
        data_type: "uint16",
        chain: vec![codecs::bytes("little")],
        index: zarrs_cuda_testing::index::IndexLayout::default(),
        keys: every_encoding()[0].clone(),
    }
}

/// An array of which every subchunk is stored.
pub(crate) fn create(layout: &Layout, path: &Path) {
    layout.describe(path);
    let array = crate::arrays::open(path);
    let values: Vec<u16> = (1..=128 * 128).map(|n| (n % 60_000) as u16).collect();
    array
        .store_array_subset(&array.subset_all(), values)
        .unwrap();
}

/// Lets a run begin and store nothing: its first object cannot be made. Returns its marker.
fn begun(input: &Path, output: &Path, options: &[&str]) -> Vec<u8> {
    fs::create_dir_all(output).unwrap();
    let first = output.join("c");
    // A socket is neither a file nor a directory of OUT.
    let _socket = std::os::unix::net::UnixListener::bind(&first).unwrap();
    let done = run(input, output, options);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    fs::remove_file(first).unwrap();
    fs::read(output.join("zarr.json.reshard")).unwrap()
}

/// How often a run is killed before one may end.
const KILLS: u64 = 12;

/// Objects of IN that were deleted since a run began leave nothing in OUT.
#[test]
fn objects_of_chunks_that_were_deleted_go() {
    let directory = temporary();
    let (input, output) = (directory.path().join("in"), directory.path().join("out"));
    create(&layout(None), &input);
    let options = ["--shard", "64,64"];
    let marker = begun(&input, &output, &options);
    assert!(run(&input, &output, &options).status.success());
    let objects = || files(&output).len();
    let whole = objects();
    // The run was killed just before it completed the output.
    fs::remove_file(output.join("zarr.json")).unwrap();
    fs::write(output.join("zarr.json.reshard"), marker).unwrap();
    let array = crate::arrays::open(&input);
    for row in 0..32 {
        for column in 0..16 {
            array.erase_chunk(&[row, column]).unwrap();
        }
    }
    let done = run(&input, &output, &options);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert_eq!(objects(), whole - 1);
    assert_eq!(elements(&output), elements(&input));
}

/// Killed at any moment and run again until one run ends, the program makes what it makes at once.
#[test]
fn a_killed_run_goes_on() {
    let mut rng = Rng(effort::seed());
    let directory = temporary();
    let shards = Some(vec![16, 8]);
    for (from, to) in [
        (None, shards.clone()),
        (shards.clone(), None),
        (shards, Some(vec![8, 32])),
    ] {
        let [input, output, at_once] =
            ["in", "out", "at once"].map(|name| directory.path().join(name));
        let (from, to) = (layout(from), layout(to));
        create(&from, &input);
        to.describe(&at_once);
        resharded(&input, &at_once, &[]);
        to.describe(&output);
        let mut kills = 0;
        let kept = loop {
            let mut child = command(&input, &output, &["--json"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            // The last run may end.
            if kills < KILLS {
                std::thread::sleep(Duration::from_micros(rng.below(30_000)));
                child.kill().unwrap();
            }
            let done = child.wait_with_output().unwrap();
            if done.status.success() {
                let said: Value = serde_json::from_slice(&done.stdout).unwrap();
                break said["output"]["objects_kept"].as_u64().unwrap();
            }
            let said = String::from_utf8_lossy(&done.stderr);
            if said.contains("already") {
                // The run before was killed when it had done everything.
                break u64::MAX;
            }
            assert!(kills < KILLS, "{said}");
            kills += 1;
        };
        println!("{kills} kills, {kept} objects were there in the end");
        assert_eq!(files(&output), files(&at_once));
        for path in [&input, &output, &at_once] {
            fs::remove_dir_all(path).unwrap();
        }
    }
}

/// What a killed run can leave: objects that are whole, chunks that are not, temporaries, and all of
/// OUT without its metadata.
#[test]
fn what_a_killed_run_leaves() {
    let directory = temporary();
    let [input, output] = ["in", "out"].map(|name| directory.path().join(name));
    create(&layout(Some(vec![16, 8])), &input);
    // Runs that were killed before they began.
    fs::create_dir_all(&output).unwrap();
    let marker_path = output.join("zarr.json.reshard");
    fs::write(&marker_path, "").unwrap();
    resharded(&input, &output, &["--chunks"]);
    let whole = files(&output);
    fs::remove_dir_all(&output).unwrap();
    let marker = begun(&input, &output, &["--chunks"]);
    for (name, bytes) in &whole {
        let path = output.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    fs::remove_file(output.join("zarr.json")).unwrap();
    fs::write(output.join("c/0/0"), "").unwrap();
    fs::write(output.join("c/1/1"), "short").unwrap();
    fs::remove_file(output.join("c/2/2")).unwrap();
    fs::write(output.join("c/3/3.tmp"), "of another program").unwrap();
    let said = resharded(&input, &output, &[]);
    assert_eq!(said["output"]["objects_written"], json!(3));
    assert_eq!(said["output"]["objects_kept"], json!(64 * 32 - 3));
    assert!(said["notes"][0].as_str().unwrap().contains("c/3/3.tmp"));
    fs::remove_file(output.join("c/3/3.tmp")).unwrap();
    assert_eq!(files(&output), whole);
    // It is complete now, so there is nothing to go on with.
    let done = run(&input, &output, &[]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("already"), "{said}");

    // Another input, or other options, do not go on.
    fs::write(&marker_path, &marker).unwrap();
    let other = directory.path().join("other");
    create(&layout(None), &other);
    let done = run(&other, &output, &[]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        said.contains("another input") && said.contains("in"),
        "{said}"
    );
    for options in [
        &["--shard", "4,4"][..],
        &["--chunk-keys", "v2."],
        &["--index", "end"],
    ] {
        let done = run(&input, &output, options);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(said.contains("other options"), "{said}");
    }
    // An older version did not note what the input was.
    fs::write(&marker_path, r#"{ "input": "/in", "metadata": "{}" }"#).unwrap();
    let done = run(&input, &output, &[]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        said.contains("older version") && said.contains("/in"),
        "{said}"
    );
    fs::write(&marker_path, &marker).unwrap();
    resharded(&input, &output, &["--chunks"]);
    assert_eq!(files(&output), whole);
}

/// A shard counts as whole if its index says the subchunks that it has to have; and not if its input was
/// written since.
#[test]
fn only_whole_shards_are_kept() {
    let directory = temporary();
    for location in ["start", "end"] {
        let [input, output] = ["in", "out"].map(|name| directory.path().join(name));
        let from = layout(None);
        create(&from, &input);
        let options = ["--shard", "32,32", "--index", location];
        begun(&input, &output, &options);
        let whole = crate::arrays::open(&input);
        let said = resharded(&input, &output, &[]);
        assert_eq!(said["output"]["objects_written"], json!(16));
        let expected = files(&output);

        fs::remove_dir_all(&output).unwrap();
        begun(&input, &output, &options);
        for (name, bytes) in expected.iter().filter(|(name, _)| name.starts_with('c')) {
            let path = output.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let shard = |name: &str| output.join("c").join(name);
        let bytes = fs::read(shard("0/0")).unwrap();
        // Of the right size.
        fs::write(shard("0/1"), vec![0; bytes.len()]).unwrap();
        let mut flipped = fs::read(shard("0/2")).unwrap();
        let at = if location == "end" {
            bytes.len() - 1
        } else {
            3
        };
        flipped[at] ^= 1;
        fs::write(shard("0/2"), flipped).unwrap();
        // A chunk of the shard 3,3 is written again.
        let chunk = vec![9_u16; 8];
        whole.store_chunk(&[63, 31], chunk).unwrap();
        let said = resharded(&input, &output, &[]);
        assert_eq!(said["output"]["objects_written"], json!(3));
        assert_eq!(said["output"]["objects_kept"], json!(13));
        assert_eq!(elements(&input), elements(&output));
        for path in [&input, &output] {
            fs::remove_dir_all(path).unwrap();
        }
    }
}

/// A run that is on its way.
#[test]
#[cfg(unix)]
fn a_second_run_is_refused() {
    let directory = temporary();
    let [input, output] = ["in", "out"].map(|name| directory.path().join(name));
    create(&layout(Some(vec![16, 8])), &input);
    fs::create_dir_all(output.join("c/0")).unwrap();
    let pipe = output.join("c/0/0");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let mut first = command(&input, &output, &["--chunks", "--threads", "1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let marker = output.join("zarr.json.reshard");
    let begin = Instant::now();
    while fs::read(&marker).unwrap_or_default().is_empty() {
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "it does not begin"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    let second = run(&input, &output, &["--chunks"]);
    first.kill().unwrap();
    first.wait().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("is being written"), "{said}");
    fs::remove_file(pipe).unwrap();
    resharded(&input, &output, &["--chunks"]);
    assert_eq!(elements(&input), elements(&output));
}

/// Ctrl-C: the exit code, and what to do. The first chunk of OUT is a pipe, so that the run waits there
/// for a reader.
#[test]
#[cfg(unix)]
fn an_interrupted_run_says_how_to_go_on() {
    for signal in ["-INT", "-TERM"] {
        stopped_by(signal);
    }
}

#[cfg(unix)]
fn stopped_by(signal: &str) {
    let directory = temporary();
    let [input, output] = ["in", "out"].map(|name| directory.path().join(name));
    create(&layout(Some(vec![16, 8])), &input);
    fs::create_dir_all(output.join("c/0")).unwrap();
    let pipe = output.join("c/0/0");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let mut child = command(&input, &output, &["--chunks", "--threads", "1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let marker = output.join("zarr.json.reshard");
    let begin = Instant::now();
    while !marker.exists() {
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "it does not begin"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    // It listens, and then opens the pipe.
    std::thread::sleep(Duration::from_millis(100));
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args([signal, &id])
            .status()
            .unwrap()
            .success()
    );
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut lines = String::new();
    while !lines.contains("stopping") {
        assert_ne!(said.read_line(&mut lines).unwrap(), 0, "{lines}");
    }
    fs::read(&pipe).unwrap();
    said.read_to_string(&mut lines).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{lines}");
    assert!(
        lines.contains("interrupted: ") && lines.contains("is not complete"),
        "{lines}"
    );
    assert!(
        lines.contains("run the same command again to go on"),
        "{lines}"
    );
    assert!(!output.join("zarr.json").exists());
    fs::remove_file(pipe).unwrap();
    resharded(&input, &output, &[]);
    assert_eq!(elements(&input), elements(&output));
}
