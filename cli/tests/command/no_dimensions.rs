//! Arrays without dimensions, which have one element.

use std::fs;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;
use zarrs::array::{ArrayBuilder, data_type};

use crate::arrays::{open, store};
use crate::chunks::write;
use crate::program::{files, program, said_with_code};

fn run(path: &Path, line: &str, code: i32) -> String {
    let mut command = program();
    command.args(line.split(' ')).current_dir(path);
    said_with_code(&command.output().unwrap(), code)
}

fn element(path: &Path) -> i32 {
    let array = open(path);
    let elements: Vec<i32> = array.retrieve_array_subset(&array.subset_all()).unwrap();
    elements[0]
}

#[test]
fn of_zarr_v2_in_both_orders() {
    for order in ["C", "F"] {
        for has_chunk in [true, false] {
            let folder = TempDir::new().unwrap();
            let path = folder.path();
            let metadata = json!({
                "zarr_format": 2, "shape": [], "chunks": [], "dtype": "<i4", "fill_value": 5,
                "order": order, "filters": null, "compressor": null,
            });
            write(&path.join("in/.zarray"), metadata.to_string().as_bytes());
            if has_chunk {
                write(&path.join("in/0"), &7_i32.to_le_bytes());
            }
            let expected = if has_chunk { 7 } else { 5 };
            run(path, "reencode in out --verify --allow-empty", 0);
            assert_eq!(element(&path.join("out")), expected, "{order}");
            run(path, "verify out --against in", 0);
            run(path, "inspect out", 0);
        }
    }
}

/// Every subcommand ends, with a result or a refusal, and without a panic.
#[test]
fn of_zarr_v3_in_all_subcommands() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let array = ArrayBuilder::new(vec![], Vec::<u64>::new(), data_type::int32(), 0_i32)
        .build(store(path), "/plain")
        .unwrap();
    array.store_metadata().unwrap();
    array.store_chunk(&[], vec![9_i32]).unwrap();
    run(path, "reencode plain sharded --verify", 0);
    assert_eq!(element(&path.join("sharded")), 9);
    for line in [
        "verify sharded",
        "verify sharded --against plain",
        "inspect sharded",
        "explain sharded",
        "compact sharded",
        "recover sharded",
        "consolidate sharded",
        "reshard sharded chunks --chunks",
        "reshard plain shards --shard",
        "pyramid sharded",
        "stream sharded plain/zarr.json",
        "stream new plain/zarr.json --frame-shape 1 --dtype uint8",
    ] {
        let mut command = program();
        command.args(line.split(' ')).current_dir(path);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            matches!(output.status.code(), Some(0..=3)),
            "{line}: {text}"
        );
        assert!(!text.contains("panicked"), "{line}: {text}");
        assert_eq!(element(&path.join("sharded")), 9, "{line}");
    }
    assert_eq!(element(&path.join("chunks")), 9);
    assert!(!files(&path.join("sharded")).is_empty());
    fs::remove_dir_all(path.join("chunks")).unwrap();
}
