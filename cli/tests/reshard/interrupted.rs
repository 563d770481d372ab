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

fn layout(counts: Option<Vec<u64>>) -> Layout {
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
fn create(layout: &Layout, path: &Path) {
    layout.describe(path);
    let array = crate::arrays::open(path);
    let values: Vec<u16> = (1..=128 * 128).map(|n| (n % 60_000) as u16).collect();
    array
        .store_array_subset(&array.subset_all(), values)
        .unwrap();
}

/// How often a run is killed before one may end.
const KILLS: u64 = 12;

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
    // A run that was killed before it began.
    fs::create_dir_all(&output).unwrap();
    fs::write(output.join("zarr.json.reshard.tmp"), "{").unwrap();
    resharded(&input, &output, &["--chunks"]);
    let whole = files(&output);
    let metadata = fs::read_to_string(output.join("zarr.json")).unwrap();
    let input_path = input.canonicalize().unwrap();
    let marker = json!({ "input": input_path.to_string_lossy(), "metadata": metadata });
    fs::write(output.join("zarr.json.reshard"), marker.to_string()).unwrap();
    fs::remove_file(output.join("zarr.json")).unwrap();
    fs::write(output.join("c/0/0"), "").unwrap();
    fs::write(output.join("c/1/1"), "short").unwrap();
    fs::remove_file(output.join("c/2/2")).unwrap();
    fs::write(output.join("c/3/3.tmp"), "of a shard").unwrap();
    let said = resharded(&input, &output, &[]);
    assert_eq!(said["output"]["objects_written"], json!(3));
    assert_eq!(said["output"]["objects_kept"], json!(64 * 32 - 3));
    assert_eq!(files(&output), whole);
    // It is complete now, so there is nothing to go on with.
    let done = run(&input, &output, &[]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("already"), "{said}");

    // Another input, or other options, do not go on.
    fs::write(output.join("zarr.json.reshard"), marker.to_string()).unwrap();
    let other = directory.path().join("other");
    create(&layout(None), &other);
    let done = run(&other, &output, &[]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        said.contains("another input") && said.contains("in"),
        "{said}"
    );
    let done = run(&input, &output, &["--shard", "4,4"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("other options"), "{said}");
    resharded(&input, &output, &["--chunks"]);
    assert_eq!(files(&output), whole);
}

/// Ctrl-C: the exit code, and what to do. The first chunk of OUT is a pipe, so that the run waits there
/// for a reader.
#[test]
#[cfg(unix)]
fn an_interrupted_run_says_how_to_go_on() {
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
            .args(["-INT", &id])
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
