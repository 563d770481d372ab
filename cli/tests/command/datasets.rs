//! Groups as data sets: chosen arrays, shapes for each, and consolidated metadata.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, ArrayShardedExt, data_type};
use zarrs::group::GroupBuilder;

use crate::arrays::{open, store, values};
use crate::program::{files, program, said_with_code};

/// The paths of the arrays of IN, their shapes, and the shapes of their chunks.
const ARRAYS: [(&str, &[u64], &[u64]); 4] = [
    ("/t2m", &[40, 16, 16], &[1, 16, 16]),
    ("/time", &[40], &[1]),
    ("/surface/wind", &[40, 16, 16], &[4, 8, 16]),
    ("/surface/deep/mask", &[16, 300, 2], &[16, 300, 2]),
];

struct Case {
    folder: TempDir,
}

impl Case {
    fn new() -> Self {
        let case = Self {
            folder: TempDir::new().unwrap(),
        };
        let store = store(&case.at("in"));
        for group in ["/", "/surface", "/surface/deep", "/empty"] {
            let group = GroupBuilder::new().build(store.clone(), group).unwrap();
            group.store_metadata().unwrap();
        }
        for (path, shape, chunk) in ARRAYS {
            let array =
                ArrayBuilder::new(shape.to_vec(), chunk.to_vec(), data_type::uint16(), 0_u16);
            let array = array.build(store.clone(), path).unwrap();
            array.store_metadata().unwrap();
            let count = shape.iter().product::<u64>();
            let elements: Vec<u16> = (0..count).map(|n| n as u16 + 1).collect();
            array
                .store_array_subset(&array.subset_all(), elements)
                .unwrap();
        }
        case
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, out: &str, options: &[&str], code: i32) -> String {
        let mut command = program();
        command.arg("reencode").arg(self.at("in")).arg(self.at(out));
        command.arg("--recursive").args(options);
        said_with_code(&command.output().unwrap(), code)
    }

    /// Returns the shapes of a shard and of a subchunk of an array of an output.
    fn shapes(&self, array: &str) -> [Vec<u64>; 2] {
        let array: Array<_> = open(&self.at(array));
        let origin = vec![0; array.dimensionality()];
        let edges = |shape: Vec<std::num::NonZeroU64>| shape.iter().map(|e| e.get()).collect();
        [
            edges(array.chunk_shape(&origin).unwrap()),
            edges(array.subchunk_shape().unwrap()),
        ]
    }
}

fn nodes(root: &Path) -> Vec<String> {
    let files = files(root).into_iter();
    let metadata = files.filter(|file| file.ends_with("zarr.json"));
    let node = |file: PathBuf| {
        let parent = file.parent().unwrap().strip_prefix(root).unwrap();
        parent.to_str().unwrap().to_owned()
    };
    let mut nodes: Vec<String> = metadata.map(node).collect();
    nodes.sort();
    nodes
}

#[test]
fn arrays_are_included_with_their_groups() {
    let case = Case::new();
    let said = case.run("out", &["--include", "t2m", "--include", "**/mask"], 0);
    assert!(said.contains("2 of 4 arrays included"), "{said}");
    let all = ["", "surface", "surface/deep", "surface/deep/mask", "t2m"];
    assert_eq!(nodes(&case.at("out")), all);
    for array in ["t2m", "surface/deep/mask"] {
        let [input, output] = ["in", "out"].map(|root| values(&case.at(root).join(array)));
        assert_eq!(input, output);
    }
    let said = case.run("none", &["--include", "*", "--include", "t3m"], 2);
    assert!(
        said.contains("--include t3m is the path of no array"),
        "{said}"
    );
    // What is not included cannot stop the run.
    let wind = case.at("in/surface/wind/zarr.json");
    let whole = fs::read(&wind).unwrap();
    fs::write(&wind, "{").unwrap();
    case.run("other", &["--include", "t2m"], 0);
    case.run("both", &["--include", "*", "--include", "surface/*"], 1);
    fs::write(&wind, whole).unwrap();
    // A directory that cannot be read may have arrays that are to be included.
    fs::rename(case.at("in/surface/deep/zarr.json"), case.at("hidden")).unwrap();
    let said = case.run(
        "hidden-below",
        &["--include", "**/mask", "--include", "t2m"],
        1,
    );
    assert!(said.contains("surface/deep has no metadata"), "{said}");
    assert!(!case.at("hidden-below").exists());
    fs::rename(case.at("hidden"), case.at("in/surface/deep/zarr.json")).unwrap();
    // Other arrays, and other shapes, do not go on.
    let part = |more: &[&str], code| {
        case.run(
            "parts",
            &[&["--include", "*", "--part", "1/2"], more].concat(),
            code,
        )
    };
    part(&[], 0);
    let said = part(&["--include", "**/mask"], 1);
    assert!(said.contains("--include is"), "{said}");
    let said = part(&["--shape-for", "t2m=8,16,16"], 1);
    assert!(said.contains("--shape-for is"), "{said}");
    let said = part(&["--keep-chunks"], 1);
    assert!(said.contains("--keep-chunks is"), "{said}");
    let said = part(&["--consolidate-metadata"], 1);
    assert!(said.contains("--consolidate-metadata is"), "{said}");
}

#[test]
fn shapes_for_each_array() {
    let case = Case::new();
    let options = [
        "--shape-for=t2m=8,16,16/4,8,8",
        "--shape-for=**/wind=40,16,16",
        "--shape-for=**=16,300,2",
        "--include=t2m",
        "--include=surface/**",
    ];
    case.run("out", &options, 0);
    assert_eq!(case.shapes("out/t2m"), [vec![8, 16, 16], vec![4, 8, 8]]);
    assert_eq!(case.shapes("out/surface/wind")[0], [40, 16, 16]);
    assert_eq!(case.shapes("out/surface/deep/mask")[0], [16, 300, 2]);
    let not_whole = "--shape-for=t2m=8,16,16/3,16,16";
    for (options, words, code) in [
        (
            "--shape-for=t3m=8,16,16",
            "--shape-for t3m is the path of no array",
            2,
        ),
        (
            "--shape-for=t2m=8,16",
            "--shape-for t2m has 2 dimensions",
            1,
        ),
        ("--shape-for=t2m", "it is a pattern and shapes", 2),
        (not_whole, "--shape-for t2m, for ", 1),
        (
            not_whole,
            "in/t2m: a shard has to be a whole number of subchunks",
            1,
        ),
        (not_whole, "shards of 8,16,16, subchunks of 3,16,16", 1),
        (
            "--shard=100,300,100 --keep-chunks",
            "--shard, --keep-chunks, for ",
            1,
        ),
    ] {
        let options: Vec<&str> = options.split(' ').collect();
        let said = case.run("none", &options, code);
        assert!(said.contains(words), "{options:?}: {said}");
        assert!(!case.at("none").exists());
    }
}

#[test]
fn subchunks_are_the_chunks_of_the_input() {
    let case = Case::new();
    case.run("out", &["--keep-chunks"], 0);
    for (path, _, chunk) in ARRAYS {
        assert_eq!(case.shapes(&format!("out{path}"))[1], chunk, "{path}");
    }
    // IN has shards: its subchunks.
    let out = case.at("out/t2m");
    let again = case.at("again");
    let words = ["--keep-chunks", "--shard-size", "16KiB"];
    let mut command = program();
    command.arg("reencode").arg(&out).arg(&again).args(words);
    said_with_code(&command.output().unwrap(), 0);
    let [shard, subchunk] = case.shapes("again");
    assert_eq!(subchunk, [1, 16, 16]);
    assert!(shard.iter().product::<u64>() <= 8192 && shard != subchunk);
    for other in ["--subchunk=1,16,16", "--subchunk-size=1KiB"] {
        let said = case.run("none", &["--keep-chunks", other], 2);
        assert!(said.contains("cannot be used with"), "{said}");
    }
}

/// An array that is no larger than a subchunk is one chunk, whatever its chunks were.
#[test]
fn small_arrays_are_one_chunk() {
    let case = Case::new();
    case.run("out", &[], 0);
    assert_eq!(case.shapes("out/time"), [vec![40], vec![40]]);
    let mask = vec![16, 300, 2];
    assert_eq!(case.shapes("out/surface/deep/mask"), [mask.clone(), mask]);
}

#[test]
fn metadata_are_consolidated_if_it_is_asked_for() {
    let case = Case::new();
    case.run("plain", &[], 0);
    let root = |out: &str| -> Value {
        let text = fs::read(case.at(out).join("zarr.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    };
    assert_eq!(root("plain").get("consolidated_metadata"), None);
    case.run("out", &["--consolidate-metadata"], 0);
    let consolidated = root("out")["consolidated_metadata"].clone();
    assert_eq!(consolidated["kind"], "inline");
    let listed: Vec<&String> = consolidated["metadata"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    let mut expected = nodes(&case.at("out"));
    expected.retain(|node| !node.is_empty());
    assert_eq!(listed, expected.iter().collect::<Vec<_>>());
    let array = fs::read(case.at("out/t2m/zarr.json")).unwrap();
    let array: Value = serde_json::from_slice(&array).unwrap();
    assert_eq!(consolidated["metadata"]["t2m"], array);
    for part in ["2/2", "1/2"] {
        case.run("parts", &["--consolidate-metadata", "--part", part], 0);
    }
    assert_eq!(root("parts"), root("out"));
    // Without a group, these make no sense.
    for option in [
        "--consolidate-metadata",
        "--include=t2m",
        "--shape-for=t2m=1",
    ] {
        let mut command = program();
        command
            .arg("reencode")
            .arg(case.at("in/t2m"))
            .arg(case.at("x"));
        let said = said_with_code(&command.arg(option).output().unwrap(), 2);
        assert!(said.contains("--recursive"), "{said}");
    }
}
