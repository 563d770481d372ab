//! The `stream_frames` example, run like a user's program. zarrs' own codecs read its output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use tempfile::TempDir;
use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda_testing::processes;

/// The number of pictures after which the camera repeats.
const PICTURES: usize = 8;
/// The number of elements at the start of each frame that hold its number.
const STAMP: usize = 4;
/// Frames of 40 × 24, in shards of 12 × 24 × 16 with subchunks of 4 × 8 × 8.
const SHAPES: &str = "--shape 40,24 --subchunk 4,8,8 --shard 12,24,16";

fn program() -> PathBuf {
    processes::example("stream_frames")
}

fn command(folder: &Path, options: &str) -> Command {
    let mut command = Command::new(program());
    command.arg(folder).args(options.split_whitespace());
    command
}

/// Runs the example, checks the exit code, and returns its output, stdout first.
fn run(folder: &Path, options: &str, code: i32) -> String {
    said(&command(folder, options).output().unwrap(), code)
}

fn said(ended: &Output, code: i32) -> String {
    let said = [&ended.stdout[..], &ended.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert_eq!(ended.status.code(), Some(code), "{said}");
    said
}

/// The frames of the array in `folder`.
fn frames(folder: &Path) -> Vec<Vec<u16>> {
    let array = Array::open(Arc::new(FilesystemStore::new(folder).unwrap()), "/").unwrap();
    let elements: Vec<u16> = array.retrieve_array_subset(&array.subset_all()).unwrap();
    let [_, height, width] = array.shape() else {
        panic!("{:?}", array.shape());
    };
    elements
        .chunks(usize::try_from(height * width).unwrap())
        .map(<[u16]>::to_vec)
        .collect()
}

fn number(frame: &[u16]) -> u64 {
    let parts = frame[..STAMP].iter().enumerate();
    parts.fold(0, |number, (part, element)| {
        number | u64::from(*element) << (16 * part)
    })
}

/// Checks that each frame is whole, and returns the numbers of the frames.
fn numbers(folder: &Path) -> Vec<u64> {
    let frames = frames(folder);
    let mut pictures = vec![None; PICTURES];
    for frame in &frames {
        let pixels = &frame[STAMP..];
        let picture = usize::try_from(number(frame)).unwrap() % PICTURES;
        // Frames of the same picture have the same pixels.
        assert_eq!(*pictures[picture].get_or_insert(pixels), pixels);
    }
    let pictures: Vec<_> = pictures.into_iter().flatten().collect();
    for (picture, pixels) in pictures.iter().enumerate() {
        assert!(!pictures[..picture].contains(pixels));
    }
    // Only the array is left.
    assert!(leftovers(folder).is_empty(), "{:?}", leftovers(folder));
    frames.iter().map(|frame| number(frame)).collect()
}

/// Files that do not belong to an array.
fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        if path.is_dir() {
            found.extend(leftovers(&path));
        } else if name != "zarr.json" && !name.bytes().all(|byte| byte.is_ascii_digit()) {
            found.push(path);
        }
    }
    found
}

#[test]
fn all_frames_in_order() {
    for codec in ["none", "zstd", "blosc"] {
        let folder = TempDir::new().unwrap();
        let options = format!("{SHAPES} --frames 50 --codec {codec} --backend host");
        let said = run(folder.path(), &options, 0);
        assert!(said.contains("50 frames taken, 0 dropped"), "{said}");
        // 5 layers of 2 × 2 shards; the last layer has 2 frames.
        assert!(said.contains("20 shards stored"), "{said}");
        assert_eq!(numbers(folder.path()), (0..50).collect::<Vec<_>>());
    }
}

#[test]
fn goes_on_where_an_array_ends() {
    let folder = TempDir::new().unwrap();
    let run = |frames| run(folder.path(), &format!("{SHAPES} --frames {frames}"), 0);
    run(24); // complete layers of shards
    let said = run(7); // a part of a layer
    assert!(said.contains("behind the 24 that are there"), "{said}");
    run(1); // within the same layer
    run(16); // beyond the layer
    assert_eq!(numbers(folder.path()), (0..48).collect::<Vec<_>>());
}

#[test]
fn a_rate_is_kept() {
    let folder = TempDir::new().unwrap();
    let start = std::time::Instant::now();
    let said = run(
        folder.path(),
        &format!("{SHAPES} --frames 31 --rate 100 --wait"),
        0,
    );
    // The last frame is exposed 0.3 s after the first.
    assert!(start.elapsed().as_millis() >= 300, "{said}");
    assert_eq!(numbers(folder.path()), (0..31).collect::<Vec<_>>());
}

#[test]
fn what_is_dropped_is_counted() {
    // 128 MiB of frames at once, with a buffer of 8 MiB. zstd takes seconds for them.
    let folder = TempDir::new().unwrap();
    let options = "--shape 256,256 --subchunk 4,64,64 --shard 4,256,256 --codec zstd:19 \
                   --frames 1000 --rate 1000000 --backend host --memory 8";
    let said = run(folder.path(), options, 0);
    let numbers = numbers(folder.path());
    let dropped = 1000 - numbers.len();
    let counts = format!("{} frames taken, {dropped} dropped", numbers.len());
    assert!(said.contains(&counts), "{counts}: {said}");
    assert!(dropped > 0, "{said}");
    assert!(numbers.is_sorted_by(|a, b| a < b));
}

#[test]
#[cfg(unix)]
fn ctrl_c_finishes_the_array() {
    let folder = TempDir::new().unwrap();
    let mut process = command(folder.path(), &format!("{SHAPES} --rate 200"))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Once the array exists, the program runs and accepts commands.
    while !folder.path().join("zarr.json").exists() {
        assert!(process.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let kill = Command::new("kill")
        .args(["-INT", &process.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let said = said(&process.wait_with_output().unwrap(), 0);
    let numbers = numbers(folder.path());
    assert!(!numbers.is_empty(), "{said}");
    let counts = format!("{} frames taken", numbers.len());
    assert!(said.contains(&counts), "{counts}: {said}");
}

#[test]
fn wrong_usage() {
    let folder = TempDir::new().unwrap();
    for options in [
        "--shape 1,2,3",
        "--shape 0,2",
        "--rate -1",
        "--rate NaN",
        "--backend tpu",
        "--frames x",
        "another",
    ] {
        let said = run(folder.path(), options, 2);
        assert!(said.contains("--help"), "{options}: {said}");
    }
    let said = run(folder.path(), "--codec gzip:99", 1);
    assert!(said.contains("gzip"), "{said}");
    // A directory with another array.
    run(
        folder.path(),
        "--frames 1 --shape 8,8 --subchunk 1,8,8 --shard 1,8,8",
        0,
    );
    let metadata = folder.path().join("zarr.json");
    let text = fs::read_to_string(&metadata).unwrap();
    fs::write(&metadata, text.replace("uint16", "int16")).unwrap();
    let said = run(folder.path(), "--frames 1", 1);
    assert!(said.contains("int16"), "{said}");
}
