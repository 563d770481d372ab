//! Places that hold something that the command cannot understand: it is never taken for nothing.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::arrays::{chain, sharded, unsharded, values};
use crate::program::{files, json, said};

/// What is in a file, or where a link leads; nothing for a directory.
fn content(path: &Path) -> Vec<u8> {
    match fs::read_link(path) {
        Ok(target) => target.into_os_string().into_encoded_bytes(),
        Err(_) => fs::read(path).unwrap_or_default(),
    }
}

/// Every file and link below `path`, with its content.
fn tree(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files(path)
        .into_iter()
        .map(|file| (file.clone(), content(&file)))
        .collect()
}

/// Changes `text` in the file `path`.
fn edit(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replace(from, to)).unwrap();
}

type Damage = fn(&Path);

/// Ways in which the metadata of the array at a path cannot be understood.
const DAMAGE: [(&str, Damage); 11] = [
    ("empty", |path| {
        fs::write(path.join("zarr.json"), "").unwrap();
    }),
    ("cut off", |path| {
        let file = path.join("zarr.json");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, &text[..text.len() / 2]).unwrap();
    }),
    ("zeros", |path| {
        fs::write(path.join("zarr.json"), [0; 300]).unwrap();
    }),
    ("a list", |path| {
        fs::write(path.join("zarr.json"), "[1, 2]").unwrap();
    }),
    ("another object", |path| {
        fs::write(path.join("zarr.json"), "{}").unwrap();
    }),
    ("another node", |path| {
        edit(&path.join("zarr.json"), "\"array\"", "\"tree\"");
    }),
    ("Latin-1", |path| {
        fs::write(path.join("zarr.json"), b"{\"a\": \"\xe9\"}").unwrap();
    }),
    ("a page of HTML", |path| {
        fs::write(path.join("zarr.json"), "<html></html>").unwrap();
    }),
    ("a directory", |path| {
        fs::remove_file(path.join("zarr.json")).unwrap();
        fs::create_dir(path.join("zarr.json")).unwrap();
        fs::write(path.join("zarr.json/inner"), "1").unwrap();
    }),
    ("a dangling link", |path| {
        fs::remove_file(path.join("zarr.json")).unwrap();
        symlink("moved.json", path.join("zarr.json")).unwrap();
    }),
    ("v2, cut off", |path| {
        fs::remove_file(path.join("zarr.json")).unwrap();
        fs::write(path.join(".zarray"), "{\"zarr_format\": 2, \"sha").unwrap();
    }),
];

/// Runs the subcommand, which has to fail with a remedy and leave everything below `folder` as it is.
fn refused(folder: &Path, arguments: &[&dyn AsRef<OsStr>], what: &str) -> String {
    let before = tree(folder);
    let mut command = crate::program::program();
    command.args(arguments).stdin(std::process::Stdio::null());
    let output = command.output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let code = output.status.code().unwrap();
    assert!(code == 1 || code == 2, "{what}: exit {code}: {text}");
    assert!(text.contains("\nhelp: "), "{what}: {text}");
    assert!(!text.contains("panicked"), "{what}: {text}");
    assert_eq!(tree(folder), before, "{what}: {text}");
    text
}

#[test]
fn is_not_taken_for_nothing() {
    for (what, damage) in DAMAGE {
        let folder = TempDir::new().unwrap();
        let folder = folder.path();
        let (array, other) = (folder.join("array"), folder.join("other"));
        let frames = folder.join("frames");
        sharded(&array, &chain(&[]));
        sharded(&other, &chain(&[]));
        damage(&array);
        fs::write(&frames, [0; 256]).unwrap();
        let frame = ["--frame-shape", "4,4", "--dtype", "uint8"];
        let [shape, four, dtype, uint8] = frame;
        refused(
            folder,
            &[&"stream", &array, &frames, &shape, &four, &dtype, &uint8],
            what,
        );
        refused(folder, &[&"demo", &array], what);
        for switch in ["--overwrite", "--resume", "--verify"] {
            refused(folder, &[&"reencode", &other, &array, &switch], what);
            refused(
                folder,
                &[&"reencode", &array, &folder.join("new"), &switch],
                what,
            );
        }
        for subcommand in [
            "recover",
            "compact",
            "consolidate",
            "pyramid",
            "verify",
            "inspect",
        ] {
            let text = refused(folder, &[&subcommand, &array], what);
            let names_it = ["zarr.json", ".zarray"]
                .iter()
                .any(|name| text.contains(name));
            assert!(names_it, "{what}: {subcommand}: {text}");
        }
        refused(folder, &[&"reshard", &array, &folder.join("new")], what);
        assert!(!folder.join("new").exists(), "{what}");
    }
}

#[test]
fn nothing_is_made_among_foreign_files() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let foreign = folder.join("photos");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("cat.jpg"), "1").unwrap();
    sharded(&folder.join("image/0"), &chain(&[]));
    fs::create_dir(folder.join("image/1")).unwrap();
    fs::write(folder.join("image/1/notes.txt"), "1").unwrap();
    sharded(&folder.join("array"), &chain(&[]));
    let array = folder.join("array");
    let frames = folder.join("frames");
    fs::write(&frames, [0; 256]).unwrap();
    let text = refused(
        folder,
        &[
            &"stream",
            &foreign,
            &frames,
            &"--frame-shape",
            &"4,4",
            &"--dtype",
            &"uint8",
        ],
        "stream",
    );
    assert!(text.contains("cat.jpg"), "{text}");
    refused(
        folder,
        &[&"reencode", &array, &foreign, &"--overwrite"],
        "reencode",
    );
    refused(
        folder,
        &[&"reshard", &array, &foreign, &"--chunks"],
        "reshard",
    );
    let text = refused(
        folder,
        &[
            &"pyramid",
            &folder.join("image"),
            &"--axis",
            &"y",
            &"--axis",
            &"x",
        ],
        "pyramid",
    );
    assert!(text.contains("notes.txt"), "{text}");
}

/// zarr-python before 3.0.2, and other writers, put bare `NaN` in attributes.
fn with_bare_numbers(array: &Path) {
    sharded(array, &chain(&[]));
    let attributes = r#""offset": NaN, "range": [-Infinity, Infinity], "text": "NaN""#;
    let file = array.join("zarr.json");
    edit(
        &file,
        "\"attributes\": {",
        &format!("\"attributes\": {{{attributes}, "),
    );
}

#[test]
fn bare_numbers_are_read() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let array = folder.join("0"); // the first level of an image, too
    with_bare_numbers(&array);
    for subcommand in ["inspect", "verify", "explain"] {
        said(&[&subcommand, &array], 0);
    }
    // A subcommand that changes the array refuses, and looks without a change.
    fs::write(folder.join("frames"), [0; 32 * 2]).unwrap();
    for subcommand in ["recover", "compact", "consolidate", "pyramid"] {
        let text = refused(folder, &[&subcommand, &array], subcommand);
        assert!(
            text.contains("`attributes.offset` in zarr.json is NaN"),
            "{text}"
        );
    }
    for subcommand in ["recover", "compact", "consolidate"] {
        said(&[&subcommand, &array, &"--dry-run"], 0);
    }
    let text = refused(
        folder,
        &[&"stream", &array, &folder.join("frames")],
        "stream",
    );
    assert!(
        text.contains("`attributes.range[0]` in zarr.json is -Infinity"),
        "{text}"
    );
}

#[test]
fn bare_numbers_become_strings() {
    let folder = TempDir::new().unwrap();
    let (array, out) = (folder.path().join("array"), folder.path().join("out"));
    with_bare_numbers(&array);
    let text = said(&[&"reencode", &array, &out, &"--verify"], 0);
    assert!(
        text.contains("`attributes.offset` in zarr.json is NaN"),
        "{text}"
    );
    assert_eq!(values(&out), values(&array.with_file_name("out")));
    let metadata: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("zarr.json")).unwrap()).unwrap();
    let attributes = &metadata["attributes"];
    assert_eq!(attributes["offset"], "NaN");
    assert_eq!(
        attributes["range"],
        serde_json::json!(["-Infinity", "Infinity"])
    );
    assert_eq!(attributes["text"], "NaN");
    let object = json(&[&"reencode", &array, &out, &"--overwrite"], 0);
    assert_eq!(object["repaired_metadata"].as_array().unwrap().len(), 3);
}

#[test]
fn a_byte_order_mark_is_read() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let array = folder.join("array");
    sharded(&array, &chain(&[]));
    let file = array.join("zarr.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("\u{feff}{text}")).unwrap();
    said(&[&"verify", &array], 0);
    let text = refused(folder, &[&"compact", &array], "compact");
    assert!(text.contains("byte order mark"), "{text}");
    said(&[&"reencode", &array, &folder.join("out")], 0);
    assert_eq!(values(&folder.join("out")).len(), 32 * 32);
}

/// Zarr v2 has fill values of any JSON type.
#[test]
fn fill_values_of_v2() {
    for (dtype, fill_value, read) in [
        ("<i4", "\"7\"", "7"),
        ("<u2", "3.0", "3"),
        ("|b1", "1", "true"),
        ("<f4", "\"1.5\"", "1.5"),
        ("<f8", "\"inf\"", "\"Infinity\""),
        ("<c8", "null", "[0.0, 0.0]"),
        ("<f4", "NaN", "\"NaN\""),
    ] {
        let folder = TempDir::new().unwrap();
        let (array, out) = (folder.path().join("array"), folder.path().join("out"));
        fs::create_dir(&array).unwrap();
        let metadata = format!(
            r#"{{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "{dtype}", "order": "C",
                "fill_value": {fill_value}, "compressor": null, "filters": null}}"#
        );
        fs::write(array.join(".zarray"), metadata).unwrap();
        fs::write(array.join("0"), [0; 16]).unwrap();
        let element: usize = dtype[2..].parse().unwrap();
        fs::write(array.join("0"), vec![1; 2 * element]).unwrap();
        said(&[&"reencode", &array, &out], 0);
        let metadata: serde_json::Value =
            serde_json::from_slice(&fs::read(out.join("zarr.json")).unwrap()).unwrap();
        let read: serde_json::Value = serde_json::from_str(read).unwrap();
        assert_eq!(metadata["fill_value"], read, "{dtype} {fill_value}");
    }
}

/// A group whose metadata cannot be understood is neither an image nor a place for arrays.
#[test]
fn groups_are_not_taken_for_nothing() {
    for (what, text) in [
        ("empty", ""),
        ("cut off", r#"{"zarr_format": 3, "node_type": "gro"#),
        ("another node", r#"{"zarr_format": 3, "node_type": "tree"}"#),
    ] {
        let folder = TempDir::new().unwrap();
        let folder = folder.path();
        let (group, input) = (folder.join("group"), folder.join("input"));
        sharded(&group.join("0"), &chain(&[]));
        sharded(&input.join("0"), &chain(&[]));
        fs::write(
            input.join("zarr.json"),
            r#"{"zarr_format": 3, "node_type": "group"}"#,
        )
        .unwrap();
        fs::write(group.join("zarr.json"), text).unwrap();
        refused(folder, &[&"pyramid", &group], what);
        refused(folder, &[&"pyramid", &group.join("0")], what);
        for switch in ["--overwrite", "--resume"] {
            refused(
                folder,
                &[&"reencode", &"--recursive", &input, &group, &switch],
                what,
            );
            refused(
                folder,
                &[
                    &"reencode",
                    &"--recursive",
                    &group,
                    &folder.join("new"),
                    &switch,
                ],
                what,
            );
        }
        assert!(!folder.join("new").exists(), "{what}");
    }
}

/// A fill value of another type is JSON, and such an array has no shards.
#[test]
fn fill_values_of_v2_are_json() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let array = folder.join("array");
    fs::create_dir(&array).unwrap();
    let metadata = r#"{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i4", "order": "C",
        "fill_value": "7", "compressor": null, "filters": null}"#;
    fs::write(array.join(".zarray"), metadata).unwrap();
    for subcommand in ["recover", "compact", "consolidate", "pyramid", "stream"] {
        let text = refused(folder, &[&subcommand, &array], subcommand);
        assert!(!text.contains("no JSON"), "{subcommand}: {text}");
    }
}

/// Members of a group that a reader must understand are refused, as those of an array are.
#[test]
fn members_that_must_be_understood() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let input = folder.join("input");
    unsharded(&input.join("a"));
    let group = |member: &str| {
        let text = format!(r#"{{"zarr_format": 3, "node_type": "group", "later": {member}}}"#);
        fs::write(input.join("zarr.json"), text).unwrap();
    };
    for member in [r#"{"must_understand": true}"#, "{}", "1"] {
        group(member);
        let out = folder.join("out");
        let text = refused(folder, &[&"reencode", &"--recursive", &input, &out], member);
        assert!(text.contains("`later`"), "{text}");
        assert!(!out.exists());
    }
    group(r#"{"must_understand": false}"#);
    said(
        &[&"reencode", &"--recursive", &input, &folder.join("out")],
        0,
    );
}
