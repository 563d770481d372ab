//! Rights, and symbolic and hard links, of the files that the program writes: `docs/cli.md` has the table.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

use crate::arrays::{chain, sharded, unsharded, update};
use crate::program::{files, said_with_code};

/// Runs the program under a umask, in a directory. Standard input is `input`.
fn run(directory: &Path, umask: &str, line: &str, input: &[u8], code: i32) -> String {
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_zarrs-cuda");
    command
        .args(["-c", &format!("umask {umask}; exec '{program}' {line}")])
        .current_dir(directory)
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A subcommand without an input does not read it.
    let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), input);
    said_with_code(&child.wait_with_output().unwrap(), code)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// All directories below `path`, and itself.
fn directories(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_path_buf()];
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(directories(&path));
        }
    }
    found
}

const STREAM: &str = "stream frames --frame-shape 8,8 --dtype uint8 --shard 4,8,8 --subchunk 2,8,8";

#[test]
fn new_files_and_directories_have_the_rights_of_the_umask() {
    for (umask, of_files, of_directories) in [("027", 0o640, 0o750), ("002", 0o664, 0o775)] {
        let directory = TempDir::new().unwrap();
        let path = directory.path();
        unsharded(&path.join("in"));
        for (line, out) in [
            ("reencode in image/0 --shard 16,16 --subchunk 8,8", "image"),
            ("reshard image/0 moved --chunks", "moved"),
            ("pyramid image --axis y --axis x", "image"),
            (STREAM, "frames"),
        ] {
            run(path, umask, line, &[1; 640], 0);
            let out = path.join(out);
            let found: Vec<_> = files(&out).iter().map(|file| mode(file)).collect();
            assert!(found.len() > 3, "{line}");
            assert!(
                found.iter().all(|mode| *mode == of_files),
                "{line}: {found:?}"
            );
            let found: Vec<_> = directories(&out).iter().map(|path| mode(path)).collect();
            assert!(
                found.iter().all(|mode| *mode == of_directories),
                "{line}: {found:?}"
            );
        }
    }
}

/// A shard that the program writes again, and other names of it.
struct Shard {
    directory: TempDir,
    shard: PathBuf,
    bytes: Vec<u8>,
}

impl Shard {
    /// Makes the array `line` writes, with a shard that has the rights 0604.
    fn new(make: impl Fn(&Path), shard: &str) -> Self {
        let directory = TempDir::new().unwrap();
        make(directory.path());
        let shard = directory.path().join(shard);
        fs::set_permissions(&shard, fs::Permissions::from_mode(0o604)).unwrap();
        let bytes = fs::read(&shard).unwrap();
        Self {
            directory,
            shard,
            bytes,
        }
    }

    fn other(&self) -> PathBuf {
        self.directory.path().join("other")
    }
}

/// Checks what becomes of a shard that is written again, if the file has another name and if it is a symbolic
/// link: `is_new` says for each whether it becomes a new file with the rights of the umask. Otherwise its own
/// file is written.
fn written_again(
    make: impl Fn(&Path),
    shard: &str,
    line: &str,
    input: &[u8],
    [is_new, replaces_link]: [bool; 2],
) {
    let shown = |what: &str| format!("{line}: {what}");
    let one = Shard::new(&make, shard);
    fs::hard_link(&one.shard, one.other()).unwrap();
    run(one.directory.path(), "027", line, input, 0);
    assert_ne!(
        fs::read(&one.shard).unwrap(),
        one.bytes,
        "{}",
        shown("nothing was written")
    );
    let rights = if is_new { 0o640 } else { 0o604 };
    assert_eq!(mode(&one.shard), rights, "{}", shown("rights"));
    let other = fs::read(one.other()).unwrap();
    assert_eq!(
        other == one.bytes,
        is_new,
        "{}",
        shown("the other name of a hard link")
    );

    let one = Shard::new(&make, shard);
    fs::rename(&one.shard, one.other()).unwrap();
    symlink(one.other(), &one.shard).unwrap();
    run(one.directory.path(), "027", line, input, 0);
    assert_ne!(
        fs::read(&one.shard).unwrap(),
        one.bytes,
        "{}",
        shown("nothing was written")
    );
    let is_link = fs::symlink_metadata(&one.shard).unwrap().is_symlink();
    assert_eq!(is_link, !replaces_link, "{}", shown("a symbolic link"));
    let other = fs::read(one.other()).unwrap();
    assert_eq!(
        other == one.bytes,
        replaces_link,
        "{}",
        shown("the end of a symbolic link")
    );
}

fn updated(path: &Path, array: &str) {
    sharded(&path.join(array), &chain(&[json!({ "name": "crc32c" })]));
    update(&path.join(array), 4);
}

#[test]
fn compact_writes_a_new_file() {
    let make = |path: &Path| updated(path, "array");
    written_again(
        make,
        "array/c/0/0",
        "compact array --unused 0.01",
        &[],
        [true, true],
    );
}

#[test]
fn recover_writes_the_file_itself_unless_it_has_other_names() {
    let make = |path: &Path| {
        updated(path, "array");
        let shard = path.join("array/c/0/0");
        let bytes = fs::read(&shard).unwrap();
        fs::write(&shard, &bytes[..bytes.len() - 9]).unwrap();
    };
    written_again(make, "array/c/0/0", "recover array", &[], [true, false]);
}

#[test]
fn stream_writes_a_new_file() {
    let make = |path: &Path| {
        run(path, "027", STREAM, &[1; 64 * 3], 0);
    };
    let line = "stream frames";
    written_again(make, "frames/c/0/0/0", line, &[2; 64 * 3], [true, true]);
    written_again(make, "frames/zarr.json", line, &[2; 64 * 3], [true, true]);
}

#[test]
fn pyramid_writes_a_new_file() {
    let make = |path: &Path| {
        updated(path, "image/0");
        run(path, "027", "pyramid image --axis y --axis x", &[], 0);
        update(&path.join("image/0"), 9);
    };
    let line = "pyramid image --start 0";
    written_again(make, "image/1/c/0/0", line, &[], [true, true]);
}

/// OUT may be a link to a directory. Links in it are not a part of an array.
#[test]
fn links_of_reencode_and_reshard() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    unsharded(&path.join("in"));
    let shapes = "--shard 16,16 --subchunk 8,8";
    for (real, out, line) in [
        ("one", "array", format!("reencode in array {shapes}")),
        ("two", "moved", "reshard in moved --shard 16,16".to_string()),
    ] {
        fs::create_dir(path.join(real)).unwrap();
        symlink(path.join(real), path.join(out)).unwrap();
        run(path, "027", &line, &[], 0);
        assert!(fs::symlink_metadata(path.join(out)).unwrap().is_symlink());
        assert!(path.join(real).join("zarr.json").is_file(), "{line}");
    }
    // A hard link keeps what it has.
    let (shard, other) = (path.join("array/c/0/0"), path.join("other"));
    fs::hard_link(&shard, &other).unwrap();
    let before = fs::read(&other).unwrap();
    let line = format!("reencode in array {shapes} --overwrite --codec none");
    run(path, "022", &line, &[], 0);
    assert_eq!(fs::read(&other).unwrap(), before);
    assert_ne!(fs::read(&shard).unwrap(), before);
    assert_eq!((mode(&other), mode(&shard)), (0o640, 0o644));
    fs::remove_file(&shard).unwrap();
    symlink(&other, &shard).unwrap();
    let text = run(path, "022", &line, &[], 1);
    assert!(text.contains("is not a part of the array"), "{text}");
    assert_eq!(fs::read(&other).unwrap(), before);
}
