//! `reencode --resume` and runs that are refused: no two inputs are mixed, and nothing is left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;

use crate::arrays::{open, store, values};
use crate::program::{files, program, said_with_code};

const SHAPES: &str = "--shard 10,10 --subchunk 5,5";

/// An array of 40 × 40 in chunks of 10 × 10, whose elements begin at `first`.
fn create(path: &Path, first: u16) -> Array<FilesystemStore> {
    let array = ArrayBuilder::new(vec![40, 40], vec![10, 10], data_type::uint16(), 0_u16)
        .build(store(path), "/")
        .unwrap();
    array.store_metadata().unwrap();
    let elements: Vec<u16> = (0..1600).map(|element| first + element).collect();
    array
        .store_array_subset(&array.subset_all(), &elements)
        .unwrap();
    array
}

struct Case {
    folder: TempDir,
}

impl Case {
    fn new() -> Self {
        let case = Self {
            folder: TempDir::new().unwrap(),
        };
        create(&case.at("a"), 1);
        create(&case.at("b"), 10_000);
        case
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, line: &str, code: i32) -> String {
        let mut command = program();
        command.arg("reencode").args(line.split_whitespace());
        command.current_dir(self.folder.path());
        said_with_code(&command.output().unwrap(), code)
    }

    /// Breaks off a run of `a`: its last chunk cannot be read meanwhile. It is not as it was afterwards
    /// by its time alone.
    fn break_off(&self, options: &str) {
        let chunk = self.at("a/c/3/3");
        let whole = fs::read(&chunk).unwrap();
        fs::write(&chunk, &whole[..whole.len() - 1]).unwrap();
        let text = self.run(&format!("a out {options}"), 1);
        assert!(text.contains("--resume"), "{text}");
        fs::write(&chunk, whole).unwrap();
        assert!(!self.at("out/zarr.json").exists());
        assert_eq!(files(&self.at("out/c")).len(), 15);
    }

    /// The files of OUT and their bytes.
    fn output(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = files(&self.at("out"));
        files.sort();
        let with_bytes = |path: PathBuf| {
            let bytes = fs::read(&path).unwrap();
            (path, bytes)
        };
        files.into_iter().map(with_bytes).collect()
    }
}

#[test]
fn another_input_is_refused() {
    let case = Case::new();
    case.break_off(SHAPES);
    let before = case.output();
    let text = case.run(&format!("b out {SHAPES} --resume"), 1);
    assert!(
        text.contains("another input: IN was")
            && text.contains("/a, and is")
            && text.contains("/b"),
        "{text}"
    );
    // Another array in the place of the input.
    fs::rename(case.at("a"), case.at("old")).unwrap();
    let b = create(&case.at("a"), 10_000);
    let mut changed = b.metadata().clone();
    if let zarrs::array::ArrayMetadata::V3(metadata) = &mut changed {
        metadata.attributes.insert("unit".to_string(), "mm".into());
    }
    let changed = serde_json::to_vec(&changed).unwrap();
    fs::write(case.at("a/zarr.json"), changed).unwrap();
    let text = case.run(&format!("a out {SHAPES} --resume"), 1);
    assert!(
        text.contains("metadata of") && text.contains("changed"),
        "{text}"
    );
    assert_eq!(case.output(), before);

    // Equal metadata, other chunks: none of the old shards is kept.
    b.store_metadata().unwrap();
    let text = case.run(&format!("a out {SHAPES} --resume"), 0);
    assert!(text.contains("16 chunks of a changed since"), "{text}");
    assert_eq!(values(&case.at("out")), values(&case.at("b")));
}

#[test]
fn other_arguments_are_refused() {
    let case = Case::new();
    case.break_off(SHAPES);
    let before = case.output();
    for (options, words) in [
        (
            "--shard 20,20 --subchunk 5,5",
            "--shard was 10,10, and is 20,20",
        ),
        (
            "--shard 10,10 --subchunk 2,2",
            "--subchunk was 5,5, and is 2,2",
        ),
        (
            "--shard 10,10 --subchunk 5,5 --codec zstd:5",
            "--codec was zstd:3, and is zstd:5",
        ),
        (
            "--shard 10,10 --subchunk 5,5 --index start",
            "--index was end, and is start",
        ),
    ] {
        let text = case.run(&format!("a out {options} --resume"), 1);
        assert!(
            text.contains("another command") && text.contains(words),
            "{text}"
        );
    }
    assert_eq!(case.output(), before);
    case.run(&format!("a out {SHAPES} --resume"), 0);
    assert_eq!(values(&case.at("out")), values(&case.at("a")));
}

/// The shards that are whole are kept: their files stay the same.
#[test]
fn only_whole_shards_are_kept() {
    for index in ["start", "end"] {
        let case = Case::new();
        let options = format!("{SHAPES} --codec none --index {index}");
        case.break_off(&options);
        let shard = |name: &str| case.at("out/c").join(name);
        let whole = fs::read(shard("0/0")).unwrap();
        let last = if index == "end" { whole.len() - 1 } else { 0 };
        let mut flipped = whole.clone();
        flipped[last] ^= 1;
        let longer = [&whole[..], &[0]].concat();
        let broken = [
            ("0/0", vec![]),
            ("0/1", whole[..whole.len() - 1].to_vec()),
            ("0/2", whole[1..].to_vec()),
            ("0/3", longer),
            ("1/0", flipped),
            ("1/1", vec![0; whole.len()]),
            ("1/2", whole[..10].to_vec()),
        ];
        for (name, bytes) in &broken {
            fs::write(shard(name), bytes).unwrap();
        }
        let time = |name: &str| fs::metadata(shard(name)).unwrap().modified().unwrap();
        let before = [time("1/3"), time("3/2")];
        case.run(&format!("a out {options} --resume"), 0);
        assert_eq!(values(&case.at("out")), values(&case.at("a")));
        assert_eq!([time("1/3"), time("3/2")], before);
    }
}

/// A dry run tells what the run does then, and writes nothing.
#[test]
fn a_dry_run_tells_what_is_kept() {
    let case = Case::new();
    let options = format!("{SHAPES} --codec crc32c");
    case.break_off(&options);
    let all = || {
        let times = files(case.folder.path()).into_iter().map(|file| {
            let time = fs::metadata(&file).unwrap().modified().unwrap();
            (fs::read(&file).unwrap(), time, file)
        });
        let mut times: Vec<_> = times.collect();
        times.sort();
        times
    };
    let dry = |code: i32| {
        let before = all();
        let said = case.run(&format!("a out {options} --resume --dry-run"), code);
        assert!(all() == before, "a dry run wrote something");
        said
    };
    let said = dry(0);
    assert!(
        said.contains("  1 shard of 200 B decoded, 1 read of objects of IN,")
            && said.contains("of memory, 15 shards kept\n")
            && said.ends_with(
                "nothing was written: 1 shard of 1 array would be made in out, and 15 kept\n"
            ),
        "{said}"
    );
    // Shards that are torn or gone, and one of a chunk that was written since.
    let shard = |name: &str| case.at("out/c").join(name);
    let whole = fs::read(shard("0/0")).unwrap();
    fs::write(shard("0/0"), &whole[1..]).unwrap();
    fs::remove_file(shard("0/1")).unwrap();
    open(&case.at("a"))
        .store_chunk(&[1, 1], vec![7_u16; 100])
        .unwrap();
    let said = dry(0);
    assert!(
        said.contains("4 shards of 1 array would be made in out, and 12 kept"),
        "{said}"
    );
    let mut command = program();
    command
        .arg("reencode")
        .args(format!("a out {options} --resume --dry-run --json").split(' '));
    let json = command.current_dir(case.folder.path()).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["arrays"][0]["shards_kept"], 12);
    assert_eq!(json["arrays"][0]["work"]["shards"], 4);
    assert_eq!(json["is_complete"], false);

    let times = |names: &[&str]| {
        let times = names.iter().map(|name| fs::metadata(shard(name)));
        times
            .map(|found| found.unwrap().modified().unwrap())
            .collect::<Vec<_>>()
    };
    let kept = ["0/2", "1/0", "1/2", "3/2"];
    let before = times(&kept);
    // What the run refuses, the dry run refuses, too.
    let line = format!("a out {SHAPES} --codec zstd:5 --resume");
    let refused = [line.clone(), format!("{line} --dry-run")].map(|line| case.run(&line, 1));
    assert_eq!(refused[0], refused[1]);
    case.run(&format!("a out {options} --resume"), 0);
    assert_eq!(times(&kept), before);
    assert_eq!(values(&case.at("out")), values(&case.at("a")));
    assert!(dry(1).contains("out holds a Zarr array"));
    // Nothing is there.
    let said = case.run(&format!("a new {options} --resume --dry-run"), 0);
    assert!(
        said.contains("16 shards of 1 array would be made in new, and 0 kept"),
        "{said}"
    );
    assert!(!case.at("new").exists());
}

/// Of a group: arrays that are complete, one that was begun, and one that was not.
#[test]
fn a_dry_run_of_a_group_tells_what_is_kept() {
    let case = Case::new();
    fs::create_dir(case.at("in")).unwrap();
    for name in ["a", "b"] {
        fs::rename(case.at(name), case.at("in").join(name)).unwrap();
    }
    create(&case.at("in/c"), 3);
    let group = r#"{"zarr_format": 3, "node_type": "group"}"#;
    fs::write(case.at("in/zarr.json"), group).unwrap();
    let chunk = case.at("in/b/c/3/3");
    let whole = fs::read(&chunk).unwrap();
    fs::write(&chunk, &whole[..whole.len() - 1]).unwrap();
    let line = format!("in out --recursive {SHAPES}");
    case.run(&line, 1);
    fs::write(&chunk, whole).unwrap();
    fs::remove_file(case.at("out/a/c/2/2")).unwrap();
    let before = case.output();
    let said = case.run(&format!("{line} --resume --dry-run"), 0);
    assert!(
        said.ends_with(
            "nothing was written: 18 shards of 3 arrays would be made in out, and 30 kept\n"
        ),
        "{said}"
    );
    assert!(case.output() == before, "a dry run wrote something");
    // An array of which chunks were written since is made as a whole.
    open(&case.at("in/a"))
        .store_chunk(&[1, 1], vec![7_u16; 100])
        .unwrap();
    let said = case.run(&format!("{line} --resume --dry-run"), 0);
    assert!(
        said.contains("33 shards of 3 arrays would be made in out, and 15 kept"),
        "{said}"
    );
    case.run(&format!("{line} --resume"), 0);
    for name in ["a", "b", "c"] {
        let [input, output] = ["in", "out"].map(|root| case.at(root).join(name));
        assert_eq!(values(&output), values(&input));
    }
}

/// A torn shard that leaves the array is made again, too, without a look at what is stored.
#[test]
fn torn_shards_at_the_edge_are_made_again() {
    for index in ["start", "end"] {
        for memory in ["1MiB", "3KiB"] {
            let case = Case::new();
            let options = format!(
                "--shard 15,15 --subchunk 5,5 --codec none --index {index} --memory {memory} --threads 1"
            );
            case.run(&format!("a one {options}"), 0);
            // The last chunk cannot be read, so the other shards are there.
            let last = case.at("a/c/3/3");
            let of_last = fs::read(&last).unwrap();
            fs::write(&last, "").unwrap();
            case.run(&format!("a out {options}"), 1);
            fs::write(&last, of_last).unwrap();
            for (name, cut) in [("0/2", 9), ("2/0", usize::MAX), ("1/2", 1)] {
                let shard = case.at("out/c").join(name);
                let bytes = fs::read(&shard).unwrap();
                fs::write(&shard, &bytes[..bytes.len().saturating_sub(cut)]).unwrap();
            }
            case.run(&format!("a out {options} --resume"), 0);
            assert_eq!(values(&case.at("out")), values(&case.at("a")));
            for name in ["0/2", "2/0", "1/2", "2/2"] {
                let [one, out] = ["one", "out"].map(|root| case.at(root).join("c").join(name));
                assert_eq!(fs::read(out).unwrap(), fs::read(one).unwrap(), "{name}");
            }
        }
    }
}

#[test]
fn shards_of_chunks_that_changed_are_written_again() {
    let case = Case::new();
    let options = "--shard 20,20 --subchunk 5,5";
    let chunk = case.at("a/c/3/3");
    let whole = fs::read(&chunk).unwrap();
    fs::write(&chunk, b"").unwrap();
    case.run(&format!("a out {options}"), 1);
    fs::write(&chunk, whole).unwrap();
    // A chunk of a shard that is stored.
    let changed = vec![7_u16; 100];
    open(&case.at("a")).store_chunk(&[0, 1], changed).unwrap();
    let time = |name: &str| {
        fs::metadata(case.at("out/c").join(name))
            .unwrap()
            .modified()
    };
    let (first, second) = (time("0/0").unwrap(), time("0/1").unwrap());
    let text = case.run(&format!("a out {options} --resume"), 0);
    assert!(text.contains("2 chunks of a changed since"), "{text}");
    assert_eq!(values(&case.at("out")), values(&case.at("a")));
    assert_ne!(time("0/0").unwrap(), first);
    assert_eq!(time("0/1").unwrap(), second);
}

/// A shard whose chunks were deleted since is deleted, also where shards are made in parts.
#[test]
fn shards_of_chunks_that_were_deleted_go() {
    for memory in ["1MiB", "3KiB"] {
        let case = Case::new();
        let options = format!("--shard 20,20 --subchunk 5,5 --memory {memory} --threads 1");
        let chunk = case.at("a/c/3/3");
        let whole = fs::read(&chunk).unwrap();
        fs::write(&chunk, b"").unwrap();
        case.run(&format!("a out {options}"), 1);
        fs::write(&chunk, whole).unwrap();
        for chunk in ["0/0", "0/1", "1/0", "1/1"] {
            fs::remove_file(case.at("a/c").join(chunk)).unwrap();
        }
        assert!(case.at("out/c/0/0").exists(), "{memory}");
        case.run(&format!("a out {options} --resume"), 0);
        assert_eq!(values(&case.at("out")), values(&case.at("a")), "{memory}");
        assert!(!case.at("out/c/0/0").exists(), "{memory}");
    }
}

#[test]
fn a_marker_that_says_no_run() {
    let case = Case::new();
    case.break_off(SHAPES);
    let marker = case.at("out/zarr.json.incomplete");
    let text = fs::read_to_string(&marker).unwrap();
    let (_, metadata) = text.split_once('\n').unwrap();
    // Of an older version, torn, or of a run that was stopped as soon as it began.
    for bytes in [
        format!("{{{metadata}"),
        text[..40].to_string(),
        String::new(),
    ] {
        fs::write(&marker, bytes).unwrap();
        let text = case.run(&format!("a out {SHAPES} --resume"), 1);
        assert!(
            text.contains("does not say which input") && text.contains("--overwrite"),
            "{text}"
        );
    }
    // Where nothing is stored, nothing can be of another input.
    fs::remove_dir_all(case.at("out/c")).unwrap();
    case.run(&format!("a out {SHAPES} --resume"), 0);
    assert_eq!(values(&case.at("out")), values(&case.at("a")));
}

/// One run at a time writes an output.
#[cfg(unix)]
#[test]
fn a_second_run_is_refused() {
    let folder = TempDir::new().unwrap();
    let [input, output] = ["in", "out"].map(|name| folder.path().join(name));
    let shape = vec![64, 512, 512];
    let array = ArrayBuilder::new(shape, vec![64, 64, 64], data_type::uint8(), 0_u8)
        .build(store(&input), "/")
        .unwrap();
    array.store_metadata().unwrap();
    let elements: Vec<u8> = (0..64 * 512 * 512_u32)
        .map(|element| (element.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let all = array.subset_all();
    array.store_array_subset(&all, &elements).unwrap();
    let run = |options: &[&str]| {
        let mut command = program();
        command.arg("reencode").args([&input, &output]);
        command.args(["--shard=64,64,64", "--subchunk=32,32,32", "--codec=zstd:19"]);
        command.args(options);
        command
    };
    let mut first = run(&[]).spawn().unwrap();
    let start = Instant::now();
    while files(&output.join("c")).is_empty() {
        assert!(start.elapsed() < Duration::from_mins(1), "nothing happens");
        std::thread::sleep(Duration::from_millis(1));
    }
    for options in [&[][..], &["--resume"], &["--overwrite"]] {
        let text = said_with_code(&run(options).output().unwrap(), 1);
        assert!(first.try_wait().unwrap().is_none(), "it was too fast");
        let process = format!("by the process {} of this machine", first.id());
        assert!(
            text.contains("out is being written") && text.contains(&process),
            "{text}"
        );
    }
    // The lock ends with the process, however it ends.
    first.kill().unwrap();
    first.wait().unwrap();
    let text = said_with_code(&run(&["--resume", "--verify"]).output().unwrap(), 0);
    assert!(!text.contains("temporary"), "{text}");
    let left = files(&output);
    let is_temporary = |file: &&PathBuf| file.extension().is_some_and(|end| end == "tmp");
    assert_eq!(left.iter().filter(is_temporary).count(), 0);
}

/// A call that is refused leaves no file and no directory.
#[test]
fn what_is_refused_leaves_nothing() {
    let case = Case::new();
    fs::create_dir(case.at("empty")).unwrap();
    fs::write(case.at("file"), "mine").unwrap();
    fs::create_dir(case.at("broken")).unwrap();
    fs::write(case.at("broken/zarr.json"), "{").unwrap();
    let mut before = files(case.folder.path());
    before.sort();
    for (line, code) in [
        ("a new/deep/out --shard 10,10,10", 2),
        ("a new/deep/out --shard 10,10 --subchunk 3,3", 2),
        ("a new/deep/out --codec lz4", 2),
        ("a new/deep/out --backend cuda", 1),
        ("a new/deep/out --recursive", 2),
        ("a new/deep/out --keep-going", 2),
        ("a new/deep/out --resume --overwrite", 2),
        ("a new/deep/out --recursive --keep-going --overwrite", 2),
        ("a new/deep/out --resume --dry-run --verify", 2),
        ("a a/new", 2),
        ("missing new/deep/out", 1),
        ("broken new/deep/out", 1),
        ("empty new/deep/out", 1),
        ("missing new/deep/out --recursive", 1),
        ("broken new/deep/out --recursive", 1),
        ("empty new/deep/out --recursive", 1),
        ("a file", 1),
        ("a file/out", 1),
        ("a broken", 1),
        ("a broken --resume", 1),
        ("a broken --overwrite", 1),
    ] {
        case.run(line, code);
        let mut after = files(case.folder.path());
        after.sort();
        assert_eq!(after, before, "{line}");
        assert!(!case.at("new").exists(), "{line}");
        assert!(!case.at("a/new").exists(), "{line}");
    }
    assert_eq!(fs::read_to_string(case.at("file")).unwrap(), "mine");
    assert_eq!(fs::read_dir(case.at("empty")).unwrap().count(), 0);
}
