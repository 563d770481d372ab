//! `reencode --recursive` with members that cannot be done.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;
use zarrs::array::{ArrayBuilder, data_type};

use crate::arrays::{open, store, values};
use crate::program::{files, program, said_with_code};

/// A group with the arrays `a`, `b` and `deep/c`, whose elements begin at `first`.
pub(crate) fn create(path: &Path, first: u16) {
    for group in ["", "deep"] {
        let metadata = json!({ "zarr_format": 3, "node_type": "group", "attributes": {} });
        fs::create_dir_all(path.join(group)).unwrap();
        fs::write(path.join(group).join("zarr.json"), metadata.to_string()).unwrap();
    }
    for array in ["a", "b", "deep/c"] {
        let array = ArrayBuilder::new(vec![20, 20], vec![10, 10], data_type::uint16(), 0_u16)
            .build(store(path), &format!("/{array}"))
            .unwrap();
        array.store_metadata().unwrap();
        let elements: Vec<u16> = (0..400).map(|element| first + element).collect();
        array
            .store_array_subset(&array.subset_all(), &elements)
            .unwrap();
    }
}

struct Case {
    folder: TempDir,
}

impl Case {
    fn new() -> Self {
        let case = Self {
            folder: TempDir::new().unwrap(),
        };
        create(&case.at("one"), 1);
        create(&case.at("two"), 10_000);
        case
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, line: &str, code: i32) -> String {
        let mut command = program();
        command.args(["reencode", "--recursive", "--shard=10,10", "--subchunk=5,5"]);
        command.args(line.split_whitespace());
        command.current_dir(self.folder.path());
        said_with_code(&command.output().unwrap(), code)
    }

    fn check_equal(&self, input: &str) {
        for array in ["a", "b", "deep/c"] {
            let [input, output] = [input, "out"].map(|root| values(&self.at(root).join(array)));
            assert_eq!(input, output, "{array}");
        }
        for group in ["out", "out/deep"] {
            assert!(self.at(group).join("zarr.json").exists(), "{group}");
        }
        let left = files(&self.at("out"));
        let is_marker = |file: &PathBuf| file.ends_with("zarr.json.incomplete");
        assert!(!left.iter().any(is_marker));
    }
}

/// All that cannot be done is told before the first byte. The rest can be done without it, and the missing
/// can be added.
/// A run that goes on without what cannot be done replaces nothing: it could delete what it does not make.
#[test]
fn going_on_replaces_nothing() {
    let said = crate::program::said(
        &[
            &"reencode",
            &"in",
            &"out",
            &"--recursive",
            &"--keep-going",
            &"--overwrite",
        ],
        2,
    );
    assert!(said.contains("cannot be used with"), "{said}");
}

/// A link to a group that contains the link does not make endless copies.
#[test]
#[cfg(unix)]
fn loops_of_links_end() {
    let folder = tempfile::TempDir::new().unwrap();
    let root = folder.path().join("in");
    let group = r#"{"zarr_format": 3, "node_type": "group"}"#;
    for path in [root.clone(), root.join("inner")] {
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("zarr.json"), group).unwrap();
    }
    crate::arrays::unsharded(&root.join("inner/array"));
    for (name, goal) in [("one", ".."), ("two", "../inner")] {
        std::os::unix::fs::symlink(goal, root.join("inner").join(name)).unwrap();
    }
    let out = folder.path().join("out");
    let said = crate::program::said(&[&"reencode", &root, &out, &"--recursive"], 1);
    assert!(said.contains("leads back to"), "{said}");
    assert!(!out.exists(), "{said}");
}

#[test]
fn what_cannot_be_planned() {
    let case = Case::new();
    let [b, c] = ["one/b/zarr.json", "one/deep/c/zarr.json"].map(|name| case.at(name));
    let (whole_b, whole_c) = (fs::read(&b).unwrap(), fs::read(&c).unwrap());
    fs::write(&b, "{ torn").unwrap();
    let unknown = String::from_utf8(whole_c.clone()).unwrap();
    fs::write(&c, unknown.replace("\"bytes\"", "\"mystery\"")).unwrap();
    for options in ["", "--resume", "--overwrite"] {
        let text = case.run(&format!("one out {options}"), 1);
        for words in [
            "nothing was written: 2 of 5",
            "one/b",
            "one/deep/c",
            "mystery",
            "--keep-going",
        ] {
            assert!(text.contains(words), "no {words} in {text}");
        }
        assert!(!case.at("out").exists());
    }
    let text = case.run("one out --keep-going", 1);
    assert!(
        text.contains("1 arrays and 2 groups")
            && text.contains("2 are missing")
            && text.contains("mystery"),
        "{text}"
    );
    assert_eq!(values(&case.at("out/a")), values(&case.at("one/a")));
    assert!(!case.at("out/b").exists() && !case.at("out/deep/c").exists());
    assert!(case.at("out/zarr.json").exists() && case.at("out/zarr.json.incomplete").exists());

    // The missing are added when the cause is gone.
    fs::write(&b, whole_b).unwrap();
    fs::write(&c, whole_c).unwrap();
    let text = case.run("one out", 1);
    assert!(text.contains("--resume"), "{text}");
    let text = case.run("two out --resume", 1);
    assert!(text.contains("another input"), "{text}");
    let text = case.run("one out --resume", 0);
    assert_eq!(text.matches("done before").count(), 1, "{text}");
    case.check_equal("one");
}

/// An array fails while it is copied.
#[test]
fn what_fails_late() {
    let case = Case::new();
    let chunk = case.at("one/a/c/1/1");
    let whole = fs::read(&chunk).unwrap();
    fs::write(&chunk, "").unwrap();
    let text = case.run("one out --keep-going", 1);
    assert!(
        text.contains("failed: ") && text.contains("2 arrays and 2 groups"),
        "{text}"
    );
    for array in ["b", "deep/c"] {
        let [input, output] = ["one", "out"].map(|root| values(&case.at(root).join(array)));
        assert_eq!(input, output);
    }
    assert!(!case.at("out/a/zarr.json").exists());
    fs::write(&chunk, whole).unwrap();
    let text = case.run("one out --resume", 0);
    assert_eq!(text.matches("done before").count(), 2, "{text}");
    case.check_equal("one");
}

/// A run that goes on makes shards again that are missing or damaged in arrays that were done. A shard stays that somebody
/// has written since, and one that is not stored because its elements are the fill value is not missing.
#[test]
fn shards_of_arrays_that_were_done_are_looked_at() {
    let case = Case::new();
    let input = open(&case.at("one/b"));
    input.store_chunk(&[1, 1], vec![0_u16; 100]).unwrap();
    let zeros = fs::read(case.at("one/a/c/0/0")).unwrap().len();
    fs::write(case.at("one/b/c/1/1"), vec![0; zeros]).unwrap();
    let chunk = case.at("one/a/c/1/1");
    let whole = fs::read(&chunk).unwrap();
    fs::write(&chunk, "").unwrap();
    case.run("one out --keep-going", 1);
    fs::write(&chunk, whole).unwrap();
    let shard = |name: &str| case.at("out").join(name);
    assert!(!shard("b/c/1/1").exists());
    let bytes = fs::read(shard("deep/c/c/0/0")).unwrap();
    fs::write(shard("deep/c/c/0/0"), &bytes[..bytes.len() - 9]).unwrap();
    fs::write(shard("deep/c/c/1/1"), "").unwrap();
    fs::remove_file(shard("b/c/0/1")).unwrap();
    open(&case.at("out/b"))
        .store_chunk(&[1, 0], vec![7_u16; 100])
        .unwrap();
    let text = case.run("one out --resume --verify", 3);
    assert!(text.contains("1 shard of out/b is made again"), "{text}");
    assert!(text.contains("out/b are not what was read"), "{text}");
    let text = case.run("one out --resume", 0);
    assert!(
        text.contains("2 shards of out/deep/c are made again"),
        "{text}"
    );
    assert_eq!(text.matches("done before").count(), 2, "{text}");
    assert_eq!(
        text.matches("done before, but for 2 shards").count(),
        1,
        "{text}"
    );
    assert_eq!(
        open(&case.at("out/b"))
            .retrieve_chunk::<Vec<u16>>(&[1, 0])
            .unwrap(),
        [7; 100]
    );
    open(&case.at("out/b"))
        .store_chunk(&[1, 0], input.retrieve_chunk::<Vec<u16>>(&[1, 0]).unwrap())
        .unwrap();
    case.check_equal("one");
}

/// What an older run wrote is not taken for what this one did.
#[test]
fn a_replaced_hierarchy_is_not_mixed() {
    let case = Case::new();
    case.run("one out", 0);
    case.check_equal("one");
    let chunk = case.at("two/a/c/1/1");
    let whole = fs::read(&chunk).unwrap();
    fs::write(&chunk, "").unwrap();
    case.run("two out --overwrite", 1);
    for array in ["a", "b", "deep/c"] {
        assert!(!case.at("out").join(array).join("zarr.json").exists());
    }
    let text = case.run("one out --resume", 1);
    assert!(text.contains("another input"), "{text}");
    fs::write(&chunk, whole).unwrap();
    case.run("two out --resume", 0);
    case.check_equal("two");

    // An array that was done, and then changed in the input.
    fs::write(case.at("two/deep/c/zarr.json"), "{").unwrap();
    let other = TempDir::new().unwrap();
    let out = other.path().join("out");
    case.run(&format!("two {} --keep-going", out.display()), 1);
    create(&case.at("two"), 20_000);
    let text = case.run(&format!("two {} --resume", out.display()), 0);
    assert!(!text.contains("done before"), "{text}");
    for array in ["a", "b", "deep/c"] {
        assert_eq!(
            values(&out.join(array)),
            values(&case.at("two").join(array))
        );
    }
}

/// xarray reads nodes that only the consolidated metadata list, so they are not left out without a word.
#[test]
fn nodes_that_only_consolidated_metadata_list() {
    let folder = TempDir::new().unwrap();
    let root = folder.path().join("in");
    crate::arrays::unsharded(&root.join("a"));
    let out = folder.path().join("out");
    let metadata = json!({ "zarr_format": 3, "node_type": "group", "consolidated_metadata": {
        "kind": "inline", "must_understand": false, "metadata": { "a": {}, "b": {} },
    } });
    fs::write(root.join("zarr.json"), metadata.to_string()).unwrap();
    let said = crate::program::said(&[&"reencode", &root, &out, &"--recursive"], 1);
    assert!(said.contains("list b, and there is no such node"), "{said}");
    assert!(!out.exists(), "{said}");
    fs::remove_file(root.join("zarr.json")).unwrap();
    fs::write(root.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let metadata = json!({ "metadata": { ".zgroup": {}, "c/d/.zarray": {}, "a/.zattrs": {} } });
    fs::write(root.join(".zmetadata"), metadata.to_string()).unwrap();
    let said = crate::program::said(&[&"reencode", &root, &out, &"--recursive"], 1);
    assert!(
        said.contains("list c/d, and there is no such node"),
        "{said}"
    );
}

/// Files that are no part of the hierarchy are not copied, and told.
#[test]
fn files_of_others_are_told() {
    let folder = TempDir::new().unwrap();
    let root = folder.path().join("in");
    crate::arrays::unsharded(&root.join("a"));
    fs::write(
        root.join("zarr.json"),
        r#"{"zarr_format": 3, "node_type": "group"}"#,
    )
    .unwrap();
    fs::create_dir(root.join("OME")).unwrap();
    fs::write(root.join("OME/METADATA.ome.xml"), "<OME/>").unwrap();
    fs::write(root.join("notes.txt"), "1").unwrap();
    let out = folder.path().join("out");
    let said = crate::program::said(&[&"reencode", &root, &out, &"--recursive"], 0);
    assert!(said.contains("note: 2 paths of"), "{said}");
    assert!(said.contains("hierarchy: OME, and others"), "{said}");
}

/// A reader that goes away, as `head` does, does not end the work, nor change how it ended.
#[test]
#[cfg(unix)]
fn a_reader_that_goes_away() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("in");
    crate::arrays::unsharded(&path);
    let out = folder.path().join("out");
    let mut command = program();
    command.arg("reencode").arg(&path).arg(&out);
    let (reader, writer) = std::io::pipe().unwrap();
    let (reader_of_errors, writer_of_errors) = std::io::pipe().unwrap();
    drop((reader, reader_of_errors));
    command.stdout(writer).stderr(writer_of_errors);
    assert_eq!(command.status().unwrap().code(), Some(0));
    assert_eq!(values(&out), values(&path));
    // A failure has its exit code.
    assert_eq!(command.status().unwrap().code(), Some(1));
}

/// An array has no members, and a node in its directory is not left out without a word.
#[test]
fn nodes_within_an_array() {
    let case = Case::new();
    crate::arrays::unsharded(&case.at("one/a/inner/b"));
    let text = case.run("one out", 1);
    assert!(
        text.contains("one/a/inner/b in its directory would be left out"),
        "{text}"
    );
    assert!(!case.at("out").exists(), "{text}");
    let text = case.run("one out --keep-going", 1);
    assert!(text.contains("one/a/inner/b"), "{text}");
    assert!(!case.at("out/a/inner").exists());
    assert_eq!(values(&case.at("out/a")), values(&case.at("one/a")));
    let mut command = program();
    command
        .args(["reencode", "one/a", "alone"])
        .current_dir(case.folder.path());
    let text = said_with_code(&command.output().unwrap(), 0);
    assert!(
        text.contains("note: inner/b in the directory of the array"),
        "{text}"
    );
}

/// What a killed run left of its marker is no array, and is deleted.
#[test]
#[cfg(target_os = "linux")]
fn temporaries_of_a_marker() {
    // A process of this number that began at another time has ended.
    let this = zarrs_cuda::storage::Owner::this().to_string();
    let machine = this.split('-').next().unwrap();
    let name = format!(
        "zarr.json.incomplete.{machine}-{}-1-1.tmp",
        std::process::id()
    );
    for (is_whole, line, directory) in [
        (false, "reencode --recursive one out", "out"),
        (false, "reencode one/a out", "out"),
        (true, "reencode --recursive one out --overwrite", "out/deep"),
        (true, "reencode --recursive one out --overwrite", "out"),
    ] {
        let case = Case::new();
        if is_whole {
            case.run("one out", 0);
        }
        let temporary = case.at(directory).join(&name);
        fs::create_dir_all(temporary.parent().unwrap()).unwrap();
        fs::write(&temporary, "").unwrap();
        let mut command = program();
        command
            .args(line.split(' '))
            .current_dir(case.folder.path());
        said_with_code(&command.output().unwrap(), 0);
        assert!(!temporary.exists(), "{line}, {directory}");
    }
}
