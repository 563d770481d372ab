//! Ctrl-C while shards are worked on. (`reencode.rs` and `stream.rs` have their own.)
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs_cuda::storage::SparseShardStore;

use crate::arrays::{open, store};
use crate::program::{files, interrupt, program, said, said_with_code};

const SHARDS: u64 = 2000;

/// An array of many shards, each with a subchunk that waits beside it.
fn array(path: &Path) -> Array<zarrs::filesystem::FilesystemStore> {
    let shape = vec![SHARDS * 8];
    let mut builder = ArrayBuilder::new(shape, vec![8], data_type::uint8(), 0_u8);
    builder.subchunk_shape(vec![2]);
    let array = builder.build(store(path), "/").unwrap();
    array.store_metadata().unwrap();
    array
}

/// Runs `subcommand` and stops it once `begun`. Tries again if it was too fast.
fn stopped(path: &Path, subcommand: &str, begun: impl Fn() -> bool, again: impl Fn()) -> String {
    for _ in 0..5 {
        again();
        let mut child = program()
            .arg(subcommand)
            .arg(path)
            .args(["--threads", "1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while !begun() && child.try_wait().unwrap().is_none() {
            sleep(Duration::from_micros(200));
        }
        if child.try_wait().unwrap().is_none() {
            interrupt(&child);
        }
        let ended = child.wait_with_output().unwrap();
        if ended.status.code() != Some(0) {
            return said_with_code(&ended, 130);
        }
    }
    panic!("{subcommand} was too fast five times");
}

#[test]
fn consolidate() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let shards = array(path);
    let sparse = Arc::new(SparseShardStore::open(store(path), "/").unwrap());
    let subchunks = Array::open(sparse, "/").unwrap();
    let write = || {
        for shard in 0..SHARDS {
            subchunks.store_chunk(&[4 * shard], vec![7_u8; 2]).unwrap();
        }
    };
    let first = path.join(shards.chunk_key(&[0]).as_str());
    let _ = fs::remove_file(&first);
    let text = stopped(path, "consolidate", || first.is_file(), write);
    assert!(text.contains(&format!("of {SHARDS} shards")), "{text}");
    assert!(text.contains("run the same command again"), "{text}");
    let all: Vec<u8> = subchunks
        .retrieve_array_subset(&subchunks.subset_all())
        .unwrap();
    let is_right = |all: &[u8]| all.chunks(8).all(|shard| shard == [7, 7, 0, 0, 0, 0, 0, 0]);
    assert!(is_right(&all), "something was lost");
    said(&[&"consolidate", &path], 0);
    let plain = open(path);
    let all: Vec<u8> = plain.retrieve_array_subset(&plain.subset_all()).unwrap();
    assert!(is_right(&all), "something was lost");
}

#[test]
fn compact() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let array = array(path);
    let values = vec![1_u8; (SHARDS * 8) as usize];
    array
        .store_array_subset(&array.subset_all(), &values)
        .unwrap();
    let key = |shard: u64| path.join(array.chunk_key(&[shard]).as_str());
    let small = fs::read(key(0)).unwrap();
    // Unused bytes between the subchunks and the index, which is at the end.
    let index = 4 * 16 + 4;
    let mut large = small[..8].to_vec();
    large.extend([0xee; 4000]);
    large.extend(&small[small.len() - index..]);
    let spoil = || {
        for shard in 0..SHARDS {
            fs::write(key(shard), &large).unwrap();
        }
    };
    let begun = || fs::metadata(key(0)).is_ok_and(|file| file.len() == small.len() as u64);
    let text = stopped(path, "compact", begun, spoil);
    assert!(text.contains("run the same command again"), "{text}");
    for shard in 0..SHARDS {
        let bytes = fs::read(key(shard)).unwrap();
        assert!(bytes == small || bytes == large, "shard {shard} is torn");
    }
    said(&[&"compact", &path], 0);
    assert!((0..SHARDS).all(|shard| fs::read(key(shard)).unwrap() == small));
    let temporary = |path: &std::path::PathBuf| path.extension().is_some();
    assert_eq!(
        files(&path.join("c"))
            .iter()
            .filter(|path| temporary(path))
            .count(),
        0
    );
}
