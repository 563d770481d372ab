//! Mistakes of users, and the messages of the command.

use std::fs;

use tempfile::TempDir;

use crate::arrays::{chain, sharded, unsharded};
use crate::program::{json, program, said, said_with_code};

/// Subcommands that take one array.
const OF_AN_ARRAY: [&str; 6] = [
    "inspect",
    "explain",
    "verify",
    "recover",
    "compact",
    "consolidate",
];

#[test]
fn missing_arrays() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("empty")).unwrap();
    fs::write(folder.path().join("file"), "text").unwrap();
    for subcommand in OF_AN_ARRAY {
        for name in ["none", "empty", "file"] {
            let path = folder.path().join(name);
            let text = said(&[&subcommand, &path], 1);
            assert!(
                text.starts_with("error: cannot open"),
                "{subcommand}: {text}"
            );
            assert!(text.contains("\nhelp: "), "{subcommand}: {text}");
            let object = json(&[&subcommand, &path], 1);
            assert!(
                object["error"].as_str().unwrap().contains("cannot open"),
                "{object}"
            );
            assert_eq!(object["exit_code"], 1);
        }
        assert!(!folder.path().join("none").exists());
    }
}

#[test]
fn arrays_that_are_not_sharded() {
    let folder = TempDir::new().unwrap();
    unsharded(folder.path());
    for subcommand in OF_AN_ARRAY {
        let text = said(&[&subcommand, &folder.path()], 1);
        assert!(text.contains("not shard"), "{subcommand}: {text}");
        if subcommand != "inspect" {
            assert!(text.contains("zarrs-cuda reencode"), "{subcommand}: {text}");
        }
    }
}

#[test]
fn wrong_arguments() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    sharded(path, &chain(&[]));
    for arguments in [
        &["--no-such"][..],
        &["--threads", "0"],
        &["--memory", "many"],
        &["--backend", "abacus"],
    ] {
        for subcommand in OF_AN_ARRAY {
            let mut words: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&subcommand, &path];
            words.extend(arguments.iter().map(|word| word as &dyn AsRef<_>));
            let text = said(&words, 2);
            assert!(text.starts_with("error: "), "{subcommand}: {text}");
        }
    }
    for subcommand in ["verify", "recover", "compact", "consolidate"] {
        for part in ["3/2", "1", "0/0", "a/b"] {
            let text = said(&[&subcommand, &path, &"--part", &part], 2);
            assert!(text.contains("I/N"), "{subcommand}: {text}");
        }
        for shard in ["2,0", "0", "0,0,0"] {
            let text = said(&[&subcommand, &path, &shard], 2);
            assert!(text.contains("is not a shard"), "{subcommand}: {text}");
        }
        said(&[&subcommand, &path, &"north"], 2);
    }
    for fraction in ["1.5", "-1", "x"] {
        said(&[&"compact", &path, &"--unused", &fraction], 2);
    }
    said(&[], 2);
    said(&[&"no-such-subcommand"], 2);
}

/// Nothing is written where it does not belong.
#[test]
fn folders_of_others() {
    let folder = TempDir::new().unwrap();
    let array = folder.path().join("array");
    sharded(&array, &chain(&[]));
    let text = said(&[&"demo", &array], 2);
    assert!(text.contains("name another folder"), "{text}");
    assert!(!array.join("bold.zarr").exists());
    let missing = folder.path().join("missing");
    let text = said(&[&"bench", &missing, &"--size", &"1MiB"], 1);
    assert!(text.contains("name a directory with room"), "{text}");
    assert!(!missing.exists());
    let plain = folder.path().join("plain");
    unsharded(&plain);
    let text = said(&[&"stream", &plain, &array.join("zarr.json")], 1);
    assert!(text.contains("name another OUT"), "{text}");
}

/// No device is used on a machine that has one, either.
#[test]
fn a_backend_that_is_not_there() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    sharded(path, &chain(&[]));
    let mut verify = program();
    verify.arg("verify").arg(path).args(["--backend", "cuda"]);
    verify.env("CUDA_VISIBLE_DEVICES", "");
    let text = said_with_code(&verify.output().unwrap(), 1);
    assert!(text.contains("help: `zarrs-cuda doctor`"), "{text}");
}
