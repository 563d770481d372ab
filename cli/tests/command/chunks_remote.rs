//! Chunks that are counted on a server of objects, and on one of HTTP, which lists nothing.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;
use zarrs_cuda_object_store_tests::Server;

use crate::arrays::{chain, open, sharded};
use crate::chunks::{chunks, described, described_v2, elements, key};
use crate::program::{program, said_with_code};

/// A server of objects, and the command with an `s3://` place of it.
pub(crate) struct Bucket(pub(crate) Server);

impl Bucket {
    fn path(&self, array: &str) -> PathBuf {
        self.0.bucket().join(array)
    }

    pub(crate) fn said(&self, line: &str, code: i32) -> String {
        let mut command = program();
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            command.env_remove(name);
        }
        command
            .env("AWS_ENDPOINT_URL", format!("http://{}", self.0.address()))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_SKIP_SIGNATURE", "true")
            .env("NO_PROXY", "127.0.0.1");
        said_with_code(&command.args(line.split(' ')).output().unwrap(), code)
    }
}

#[test]
fn objects() {
    let bucket = Bucket(Server::start());
    let folder = TempDir::new().unwrap();
    let to = folder.path().join("out");
    let shapes = "--shard 4,6 --subchunk 2,3";
    let run = |array: &str, more: &str, code| {
        let line = format!(
            "reencode s3://arrays/{array} {} {shapes}{more}",
            to.display()
        );
        bucket.said(&line, code)
    };
    for own in 0..4 {
        let array = format!("array-{own}");
        let path = bucket.path(&array);
        described(&path, own);
        let text = run(&array, "", 1);
        assert!(
            text.contains("no chunk of") && text.contains("--allow-empty"),
            "{text}"
        );
        let text = run(&array, " --overwrite --allow-empty", 0);
        assert!(text.contains("0 of 4 chunks stored"), "{text}");
        fs::remove_dir_all(&to).unwrap();
        let other = (own + 1) % 4;
        chunks(&path, other);
        let text = run(&array, "", 1);
        assert!(text.contains("4 keys look like chunks"), "{text}");
        assert!(
            text.contains(&format!("has the key {}", key(own, &[0, 0]))),
            "{text}"
        );
        assert!(!to.exists());
        fs::remove_dir_all(&path).unwrap();
        described(&path, own);
        chunks(&path, own);
        fs::remove_file(path.join(key(own, &[1, 1]))).unwrap();
        let text = run(&array, " --verify", 0);
        assert!(text.contains("3 of 4 chunks stored"), "{text}");
        fs::remove_dir_all(&to).unwrap();
    }
    // The separator of Zarr v2.
    let path = bucket.path("old");
    described_v2(&path, None);
    chunks(&path, 2);
    let text = run("old", " --verify", 0);
    assert!(text.contains("have the separator /"), "{text}");
    let array = open(&to);
    let found: Vec<u8> = array.retrieve_array_subset(&array.subset_all()).unwrap();
    assert_eq!(found, elements());
    // A prefix too few.
    described(&bucket.path("images/one"), 0);
    chunks(&bucket.path("images"), 3);
    let text = run("images/one", " --overwrite", 1);
    assert!(
        text.contains("s3://arrays/images/0.0 looks like a chunk"),
        "{text}"
    );
    sharded(&bucket.path("shards"), &chain(&[]));
    let text = bucket.said("verify s3://arrays/shards", 0);
    assert!(text.starts_with("4 of 4 chunks stored\n"), "{text}");
}

#[test]
fn http_cannot_be_counted() {
    let bucket = Bucket(Server::start());
    let folder = TempDir::new().unwrap();
    described(&bucket.path("array"), 0);
    chunks(&bucket.path("array"), 0);
    let from = format!("http://{}/arrays/array", bucket.0.address());
    let to = folder.path().join("out");
    let line = format!(
        "reencode {from} {} --shard 4,6 --subchunk 2,3",
        to.display()
    );
    let text = bucket.said(&line, 0);
    let told = "how many of 4 chunks are stored cannot be counted: HTTP has no listing";
    assert!(text.contains(told), "{text}");
    let text = bucket.said(&format!("verify {} --against {from}", to.display()), 0);
    assert!(text.contains(&format!("of {from}: {told}")), "{text}");
}
