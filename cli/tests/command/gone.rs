//! Chunks that are gone after they were counted: an error that names one, and no fill value.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use zarrs::array::{ArrayBuilder, data_type};
use zarrs_cuda_object_store_tests::Server;

use crate::arrays::{chain, sharded, store, unsharded};
use crate::chunks_remote::Bucket;
use crate::program::{files, program, said_with_code};

impl Bucket {
    /// Puts a link that leads nowhere in the place of an object: the server lists it and does not have it.
    fn hide(&self, key: &str) {
        let file = self.0.bucket().join(key);
        fs::rename(&file, self.0.bucket().with_extension("hidden")).unwrap();
        symlink("nowhere", &file).unwrap();
    }

    fn show(&self, key: &str) {
        let file = self.0.bucket().join(key);
        fs::remove_file(&file).unwrap();
        fs::rename(self.0.bucket().with_extension("hidden"), &file).unwrap();
    }
}

#[test]
fn objects_that_a_store_lists_and_does_not_have() {
    let bucket = Bucket(Server::start());
    let root = bucket.0.bucket();
    unsharded(&root.join("chunks"));
    sharded(&root.join("shards"), &chain(&[json!({ "name": "crc32c" })]));
    let folder = TempDir::new().unwrap();
    let place = folder.path().join("out");
    let out = place.display();
    let shapes = "--shard 16,16 --subchunk 8,8";
    let whole = format!("reencode s3://arrays/chunks {out} {shapes}");
    bucket.said(&whole, 0);
    fs::remove_dir_all(&place).unwrap();
    for key in ["chunks/c/0/0", "chunks/c/3/2", "shards/c/1/1"] {
        bucket.hide(key);
        let array = key.split('/').next().unwrap();
        let line = format!("reencode s3://arrays/{array} {out} {shapes}");
        let said = bucket.said(&line, 1);
        assert!(said.contains(&format!("{key} was stored when")), "{said}");
        assert!(!place.join("zarr.json").exists());
        bucket.show(key);
        if place.exists() {
            bucket.said(&format!("{line} --resume"), 0);
            fs::remove_dir_all(&place).unwrap();
        }
    }
    bucket.said(&whole, 0);
    for key in ["chunks/c/0/0", "chunks/c/3/2"] {
        bucket.hide(key);
        let said = bucket.said(&format!("verify {out} --against s3://arrays/chunks"), 1);
        assert!(said.contains(&format!("{key} was stored when")), "{said}");
        bucket.show(key);
    }
    bucket.hide("shards/c/1/1");
    for line in [
        "verify s3://arrays/shards",
        "verify s3://arrays/shards --against s3://arrays/chunks",
    ] {
        let said = bucket.said(line, 1);
        assert!(said.contains("shards/c/1/1 was stored when"), "{said}");
    }
}

/// Deletes what `goes` names as soon as `begun` says that the command has begun its work, which is not done then.
fn deleted_meanwhile(mut command: Command, goes: &Path, begun: impl Fn() -> bool) -> String {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let begin = Instant::now();
    while !begun() {
        assert!(begin.elapsed() < Duration::from_mins(1), "it did not begin");
        sleep(Duration::from_millis(1));
    }
    fs::rename(goes, goes.with_extension("gone")).unwrap();
    let said = said_with_code(&child.wait_with_output().unwrap(), 1);
    fs::rename(goes.with_extension("gone"), goes).unwrap();
    said
}

/// The chunks of a directory go while its shards are written.
#[test]
fn files_that_are_deleted_meanwhile() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let shape = vec![400, 256, 256];
    let level = ArrayBuilder::new(shape, vec![4, 256, 256], data_type::uint8(), 0_u8)
        .subchunk_shape(vec![2, 256, 256])
        .build(store(&path.join("image")), "/0")
        .unwrap();
    level.store_metadata().unwrap();
    for shard in 0..100 {
        level
            .store_chunk(&[shard, 0, 0], vec![7_u8; 4 * 256 * 256])
            .unwrap();
    }

    let is_begun = |out: &str| {
        let out = path.join(out);
        move || {
            files(&out)
                .iter()
                .any(|file| file.parent().is_some_and(|c| c.ends_with("0")))
        }
    };
    let mut reencode = program();
    let line = "reencode image/0 out --shard 4,256,256 --subchunk 2,256,256 --threads 1";
    reencode.args(line.split(' ')).current_dir(path);
    let chunks = path.join("image/0/c");
    let said = deleted_meanwhile(reencode, &chunks, is_begun("out/c"));
    assert!(said.contains("was stored when the chunks"), "{said}");
    assert!(!path.join("out/zarr.json").exists());

    let mut pyramid = program();
    // With more memory, level 0 is read before the first shard is stored.
    let line = "pyramid image --axis z --axis y --axis x --levels 2 --threads 1 --memory 4MiB";
    pyramid.args(line.split(' ')).current_dir(path);
    let said = deleted_meanwhile(pyramid, &chunks, is_begun("image/1/c"));
    assert!(said.contains("was stored when the chunks"), "{said}");
}
