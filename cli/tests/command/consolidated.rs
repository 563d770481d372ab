//! Consolidated metadata: the copies that a group has of the metadata of its members.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::{ArrayBuilder, data_type};

use crate::arrays::store;
use crate::program::{program, said_with_code};

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn write(path: &Path, value: &Value) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, value.to_string()).unwrap();
}

fn array(root: &Path, path: &str) {
    let array = ArrayBuilder::new(vec![8, 8], vec![4, 4], data_type::uint8(), 0_u8)
        .build(store(root), path)
        .unwrap();
    array.store_metadata().unwrap();
    let elements: Vec<u8> = (0..64).collect();
    array
        .store_array_subset(&array.subset_all(), &elements)
        .unwrap();
}

/// As zarr-python writes them.
fn inline(metadata: &Value) -> Value {
    json!({ "kind": "inline", "must_understand": false, "metadata": metadata })
}

fn group(root: &Path, consolidated: Option<Value>) {
    let mut metadata = json!({
        "zarr_format": 3, "node_type": "group", "attributes": { "big": 1e300, "wide": 1 },
    });
    if let Some(consolidated) = consolidated {
        metadata["consolidated_metadata"] = consolidated;
    }
    write(&root.join("zarr.json"), &metadata);
}

/// Checks that the group `root` has copies of exactly the metadata of `members`, as they are.
fn check_copies(root: &Path, members: &[&str]) {
    let consolidated = &json_of(&root.join("zarr.json"))["consolidated_metadata"];
    assert_eq!(consolidated["kind"], "inline");
    assert_eq!(consolidated["must_understand"], false);
    let copies: BTreeMap<String, Value> =
        serde_json::from_value(consolidated["metadata"].clone()).unwrap();
    let expected = members.iter().map(|member| {
        let mut metadata = json_of(&root.join(member).join("zarr.json"));
        if metadata["node_type"] == "group" {
            metadata["consolidated_metadata"] = inline(&json!({}));
        }
        ((*member).to_string(), metadata)
    });
    assert_eq!(copies, expected.collect());
}

fn run(folder: &Path, line: &str, code: i32) -> String {
    let mut command = program();
    command.args(line.split_whitespace()).current_dir(folder);
    said_with_code(&command.output().unwrap(), code)
}

#[test]
fn reencode_writes_them_if_the_input_has_them() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("in");
    group(&input, None);
    group(&input.join("a"), None);
    array(&input, "/x");
    array(&input, "/a/y");
    run(folder.path(), "reencode in plain --recursive", 0);
    let plain = json_of(&folder.path().join("plain/zarr.json"));
    assert!(plain.get("consolidated_metadata").is_none());

    // The copies of the input, whose codecs are not those of the output.
    let x = json_of(&input.join("x/zarr.json"));
    group(&input, Some(inline(&json!({ "x": x }))));
    run(folder.path(), "reencode in out --recursive", 0);
    check_copies(&folder.path().join("out"), &["a", "a/y", "x"]);
    let inner = json_of(&folder.path().join("out/a/zarr.json"));
    assert!(inner.get("consolidated_metadata").is_none());

    // In a group within, and with an array that is left out.
    group(&input.join("a"), Some(inline(&json!({}))));
    fs::write(input.join("x/zarr.json"), "{").unwrap();
    run(
        folder.path(),
        "reencode in some --recursive --keep-going",
        1,
    );
    check_copies(&folder.path().join("some/a"), &["y"]);
    let copies = &json_of(&folder.path().join("some/zarr.json"))["consolidated_metadata"];
    assert!(copies["metadata"].get("x").is_none());
    assert!(copies["metadata"].get("a/y").is_some());
}

#[test]
fn reencode_writes_them_if_a_v2_input_has_them() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("in");
    let zarray = json!({
        "zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "order": "C",
        "fill_value": 0, "filters": null, "compressor": null,
    });
    write(&input.join(".zgroup"), &json!({ "zarr_format": 2 }));
    write(&input.join("x/.zarray"), &zarray);
    let copies = json!({ ".zgroup": { "zarr_format": 2 }, "x/.zarray": zarray });
    let consolidated = json!({ "zarr_consolidated_format": 1, "metadata": copies });
    write(&input.join(".zmetadata"), &consolidated);
    fs::write(input.join("x/0"), [1, 2]).unwrap();
    run(folder.path(), "reencode in out --recursive", 0);
    check_copies(&folder.path().join("out"), &["x"]);
}

/// `stream`, `reencode` and `reshard` change an array below a group that is not theirs: they renew its copy.
#[test]
fn others_renew_them() {
    let folder = TempDir::new().unwrap();
    let root = folder.path().join("store");
    group(&root, Some(inline(&json!({}))));
    group(&root.join("deep"), None);
    let command = format!(
        "zarr.consolidate_metadata('{}')",
        root.canonicalize().unwrap().display()
    );
    fs::write(folder.path().join("raw"), vec![1; 64]).unwrap();
    array(&folder.path().join("in"), "/");
    let check = |line: &str, changed: &str| {
        let text = run(folder.path(), line, 0);
        assert!(!text.contains("consolidate_metadata"), "{line}: {text}");
        let copies = &json_of(&root.join("zarr.json"))["consolidated_metadata"]["metadata"];
        let now = json_of(&root.join(changed).join("zarr.json"));
        assert_eq!(copies[changed], now, "{line}");
    };
    for (line, changed) in [
        (
            "stream store/deep/frames raw --frame-shape 4,4 --dtype uint8",
            "deep/frames",
        ),
        ("stream store/deep/frames raw", "deep/frames"),
        ("reencode in store/deep/new", "deep/new"),
        (
            "reencode in store/deep/new --overwrite --shard 8,8 --subchunk 2,2",
            "deep/new",
        ),
        ("reshard store/deep/new store/chunks --chunks", "chunks"),
        ("reencode in store/deep/parts --part 1/1", "deep/parts"),
        (
            "reshard store/deep/new store/shards --shard 8,8 --part 1/1",
            "shards",
        ),
        (
            "reencode store/deep store/all --recursive --part 1/1 --include new",
            "all/new",
        ),
    ] {
        check(line, changed);
    }
    // Not every part, but the one that completes the output.
    run(folder.path(), "reencode in store/two --part 1/2", 0);
    let copies = &json_of(&root.join("zarr.json"))["consolidated_metadata"]["metadata"];
    assert!(copies.get("two").is_none());
    check("reencode in store/two --part 2/2", "two");

    // Copies that are as they should be stay byte for byte.
    let before = fs::read(root.join("zarr.json")).unwrap();
    run(folder.path(), "reencode in store/two --overwrite", 0);
    assert_eq!(fs::read(root.join("zarr.json")).unwrap(), before);

    // Copies of another form are left, and the command is told.
    group(&root, Some(json!({ "kind": "other", "metadata": [] })));
    let text = run(folder.path(), "reencode in store/two --overwrite", 0);
    assert!(
        text.contains(&command) && text.contains("not understood"),
        "{text}"
    );
}

/// An array is replaced behind the back of its group, in other words and in others shapes.
#[test]
fn verify_finds_stale_ones() {
    let folder = TempDir::new().unwrap();
    let root = folder.path().join("store");
    array(&folder.path().join("in"), "/");
    group(&root, None);
    run(
        folder.path(),
        "reencode in store/a --shard 8,8 --subchunk 2,4",
        0,
    );
    let now = json_of(&root.join("a/zarr.json"));
    let verified = |copy: &Value, code: i32| {
        group(&root, Some(inline(&json!({ "a": copy }))));
        run(folder.path(), "verify store --recursive", code)
    };
    // zarr-python writes defaults, and a float as the fill value of floats.
    let mut other = now.clone();
    other["fill_value"] = json!(0.0);
    other["storage_transformers"] = json!([]);
    other["codecs"][0]["configuration"]["codecs"][1]["configuration"]["level"] = json!(9);
    assert!(verified(&other, 0).contains("all are well"));
    let changes: [fn(&mut Value); 4] = [
        |copy| copy["codecs"][0]["configuration"]["chunk_shape"] = json!([4, 2]),
        |copy| copy["codecs"][0]["configuration"]["codecs"][1]["name"] = json!("gzip"),
        |copy| copy["attributes"] = json!({ "scale_factor": 2 }),
        |copy| *copy = Value::Null,
    ];
    for change in changes {
        let mut other = now.clone();
        change(&mut other);
        let text = verified(&other, 3);
        assert!(text.contains("are not those of a:"), "{text}");
        assert!(text.contains("zarr.consolidate_metadata("), "{text}");
    }
}

#[test]
fn pyramid_renews_them() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("store/image");
    array(&folder.path().join("in"), "/");
    run(
        folder.path(),
        "reencode in store/image/0 --shard 4,4 --subchunk 2,2",
        0,
    );
    group(&folder.path().join("store"), Some(inline(&json!({}))));
    group(
        &image,
        Some(inline(&json!({ "labels": { "node_type": "group" } }))),
    );
    let line = "pyramid store/image --axis y --axis x --levels 2";
    let image_alone = fs::read(image.join("zarr.json")).unwrap();
    for part in ["", " --part 1/1"] {
        let text = run(folder.path(), &format!("{line}{part}"), 0);
        assert!(
            !text.contains("zarr.consolidate_metadata('"),
            "{part}: {text}"
        );
        check_levels(&image);
        // Once more, without the level.
        if part.is_empty() {
            fs::remove_dir_all(image.join("1")).unwrap();
            fs::write(image.join("zarr.json"), &image_alone).unwrap();
        }
    }
}

/// Checks that the copies of an image's group are those of its levels.
fn check_levels(image: &Path) {
    let metadata = json_of(&image.join("zarr.json"));
    assert!(metadata["attributes"].get("ome").is_some());
    let copies = &metadata["consolidated_metadata"]["metadata"];
    for level in ["0", "1"] {
        assert_eq!(copies[level], json_of(&image.join(level).join("zarr.json")));
    }
    assert_eq!(copies["labels"]["node_type"], "group", "others stay");
}

/// The Python package zarr, of version 3, reads them.
#[test]
fn zarr_python_reads_them() {
    let script = r"
import sys, warnings
warnings.simplefilter('ignore')
try:
    import zarr
    assert zarr.__version__ >= '3'
except Exception as error:
    print('no zarr:', error)
    sys.exit(77)
group = zarr.open_consolidated(sys.argv[1])
assert sorted(dict(group.members(max_depth=None))) == ['a', 'a/y', 'x']
for name in 'x', 'a/y':
    assert group[name][:].ravel().tolist() == list(range(64))
";
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("in");
    group(&input, Some(inline(&json!({}))));
    group(&input.join("a"), None);
    array(&input, "/x");
    array(&input, "/a/y");
    run(folder.path(), "reencode in out --recursive", 0);
    let python = std::env::var_os("ZARRS_CUDA_TEST_PYTHON").map_or("python3".into(), PathBuf::from);
    let read = Command::new(python)
        .args(["-c", script])
        .arg(folder.path().join("out"))
        .output();
    match read {
        Ok(read) if read.status.code() == Some(0) => {}
        Ok(read) if read.status.code() != Some(77) => {
            panic!("{}", String::from_utf8_lossy(&read.stderr))
        }
        _ => {
            use std::io::Write;
            // Past the harness, which keeps what tests print.
            let _ = writeln!(
                std::io::stderr(),
                "\nCONSOLIDATED METADATA ARE NOT READ BY ZARR-PYTHON: there is none; ZARRS_CUDA_TEST_PYTHON names a Python that has it"
            );
        }
    }
}
