//! A disk that is full. What was whole stays so, and the same command goes on.
#![cfg(unix)]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::json;
use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::SparseShardStore;

use crate::arrays::{chain, open, sharded, store, update, values};
use crate::program::{program, said, said_with_code};

/// Runs the program where no file may grow beyond `blocks` of 512 bytes. (As on a full disk, a write
/// fails; the signal that would end the process is ignored.)
fn with_small_files(blocks: u32, arguments: &[&Path], code: i32) -> String {
    let mut command = Command::new("sh");
    let script = format!("ulimit -f {blocks}; trap '' XFSZ; exec \"$0\" \"$@\"");
    command
        .args(["-c", &script])
        .arg(program().get_program())
        .args(arguments);
    command.env("NO_COLOR", "1");
    said_with_code(&command.output().unwrap(), code)
}

/// A command that runs another one, its arguments, where it may mount file systems that nobody else sees. Returns
/// `None`, and says `untested`, where this process may not do so.
pub(crate) fn with_mounts(untested: &str) -> Option<Command> {
    let command = |options: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(options).arg("--mount");
        unshare
    };
    for options in [&[][..], &["--map-root-user"]] {
        let mut may = command(options);
        may.args(["mount", "-t", "tmpfs", "none", "/mnt"]);
        if may.output().is_ok_and(|may| may.status.success()) {
            return Some(command(options));
        }
    }
    // Past the harness, which keeps what tests print.
    let message = format!("{untested}: this process may not mount a file system");
    let _ = writeln!(std::io::stderr(), "\n{message}");
    None
}

/// Runs the program in the directory `work` on a new file system that has room for what `work` has and
/// `kib` KiB more, then the words `again` with room, and puts what is there back into `work`. Returns what
/// the first run says. The first run has to fail. Returns `None`, and says so, where this process may not
/// mount a file system.
fn on_small_disk(work: &Path, kib: u32, first: &[&str], again: &[&str]) -> Option<String> {
    let mut command = with_mounts("NO FULL DISK IS TESTED")?;
    let script = r#"
        set -e
        mount -t tmpfs -o size=64m none /mnt
        cp -r "$WORK/." /mnt
        used=$(df -k --output=used /mnt | tail -1)
        mount -o remount,size=$((used + KIB))k /mnt
        cd /mnt
        code=0
        sh -c "exec $PROGRAM $FIRST" >"$WORK.said" 2>&1 || code=$?
        test $code = 1 || { echo "the first run ended with $code"; cat "$WORK.said"; exit 1; }
        mount -o remount,size=64m /mnt
        sh -c "exec $PROGRAM $AGAIN"
        rm -r "$WORK"
        cp -r /mnt "$WORK"
    "#;
    command.args(["sh", "-c", script]);
    command
        .env("WORK", work)
        .env("KIB", kib.to_string())
        .env("PROGRAM", program().get_program())
        .env("FIRST", first.join(" "))
        .env("AGAIN", again.join(" "))
        .env("NO_COLOR", "1");
    said_with_code(&command.output().unwrap(), 0);
    let text = fs::read_to_string(work.with_extension("said")).unwrap();
    assert!(text.contains("No space left"), "{text}");
    Some(text)
}

fn path(text: &str) -> &Path {
    Path::new(text)
}

#[test]
fn reencode_goes_on_later() {
    let folder = TempDir::new().unwrap();
    let [input, output, work] = ["in", "out", "work"].map(|name| folder.path().join(name));
    sharded(&input, &chain(&[]));
    // One shard of 2048 bytes and its index, which does not fit.
    let base = [
        path("reencode"),
        &input,
        &output,
        path("--shard=32,32"),
        path("--subchunk=8,8"),
        path("--codec=none"),
    ];
    let text = with_small_files(3, &base, 1);
    assert!(text.contains("cannot write the shard"), "{text}");
    assert!(text.contains("--resume"), "{text}");
    assert!(!output.join("zarr.json").exists());
    let mut again = base.to_vec();
    again.push(path("--resume"));
    let words: Vec<&dyn AsRef<std::ffi::OsStr>> = again.iter().map(|word| word as _).collect();
    said(&words, 0);
    assert_eq!(values(&output), values(&input));

    let first = "reencode in out --shard 32,32 --subchunk 8,8 --codec none";
    let again = format!("{first} --resume");
    sharded(&work.join("in"), &chain(&[]));
    if let Some(text) = on_small_disk(&work, 4, &[first], &[&again]) {
        assert!(text.contains("--resume"), "{text}");
        assert_eq!(values(&work.join("out")), values(&input));
    }
}

#[test]
fn stream_goes_on_later() {
    let folder = TempDir::new().unwrap();
    let [raw, out, work] = ["raw", "out", "work"].map(|name| folder.path().join(name));
    let elements: Vec<u16> = (0..40 * 1024_u32)
        .map(|element| (element * 31) as u16)
        .collect();
    let bytes: Vec<u8> = elements
        .iter()
        .flat_map(|element| element.to_ne_bytes())
        .collect();
    fs::write(&raw, bytes).unwrap();
    let base = [
        path("stream"),
        &out,
        &raw,
        path("--frame-shape=32,32"),
        path("--dtype=uint16"),
        path("--shard=8,32,32"),
        path("--subchunk=4,16,16"),
        path("--codec=none"),
    ];
    let text = with_small_files(8, &base, 1);
    assert!(text.contains("cannot "), "{text}");
    assert!(text.contains("--skip-stored"), "{text}");
    let mut again = base.to_vec();
    again.push(path("--skip-stored"));
    let words: Vec<&dyn AsRef<std::ffi::OsStr>> = again.iter().map(|word| word as _).collect();
    said(&words, 0);
    assert_eq!(values(&out), elements);

    fs::create_dir(&work).unwrap();
    fs::rename(&raw, work.join("raw")).unwrap();
    let words = "stream out raw --frame-shape 32,32 --dtype uint16 --shard 8,32,32 --subchunk 4,16,16 --codec none";
    let again = format!("{words} --skip-stored");
    if let Some(text) = on_small_disk(&work, 40, &[words], &[&again]) {
        assert!(text.contains("--skip-stored"), "{text}");
        assert_eq!(values(&work.join("out")), elements);
    }
}

#[test]
fn reshard_goes_on_later() {
    let folder = TempDir::new().unwrap();
    let [input, output, work] = ["in", "out", "work"].map(|name| folder.path().join(name));
    sharded(&input, &chain(&[]));
    let base = [path("reshard"), &input, &output, path("--shard=32,32")];
    let text = with_small_files(3, &base, 1);
    assert!(
        text.contains("help: when the cause is gone, run the same command again to go on"),
        "{text}"
    );
    assert!(!output.join("zarr.json").exists());
    said(&[&"reshard", &input, &output], 0);
    assert_eq!(values(&output), values(&input));

    sharded(&work.join("in"), &chain(&[]));
    let words = "reshard in out --chunks";
    if let Some(text) = on_small_disk(&work, 40, &[words], &[words]) {
        assert!(
            text.contains("help: when the cause is gone, run the same command again to go on"),
            "{text}"
        );
        assert_eq!(values(&work.join("out")), values(&input));
    }
}

/// An array of four shards of 32 KiB without a shard, and their subchunks beside.
fn to_consolidate(path: &Path) -> Array<SparseShardStore<FilesystemStore>> {
    let mut builder = ArrayBuilder::new(vec![4 << 15], vec![1 << 15], data_type::uint8(), 0_u8);
    builder.subchunk_shape(vec![1 << 13]);
    let array = builder.build(store(path), "/").unwrap();
    array.store_metadata().unwrap();
    let sparse = Arc::new(SparseShardStore::open(store(path), "/").unwrap());
    let subchunks = Array::open(sparse, "/").unwrap();
    for subchunk in 0..16 {
        let elements = vec![subchunk as u8 + 1; 1 << 13];
        subchunks.store_chunk(&[subchunk], elements).unwrap();
    }
    subchunks
}

fn consolidated() -> Vec<u8> {
    (0..4 << 15)
        .map(|element: u32| (element >> 13) as u8 + 1)
        .collect()
}

#[test]
fn consolidate_goes_on_later() {
    const HELP: &str = "help: nothing is lost: when the cause is gone, run the same command again";
    let folder = TempDir::new().unwrap();
    let [array, work] = ["array", "work"].map(|name| folder.path().join(name));
    let subchunks = to_consolidate(&array);
    let text = with_small_files(20, &[path("consolidate"), &array], 1);
    assert!(text.contains("0 shards, 0 subchunks packed"), "{text}");
    assert!(text.contains(HELP), "{text}");
    let beside: Vec<u8> = subchunks
        .retrieve_array_subset(&subchunks.subset_all())
        .unwrap();
    assert_eq!(beside, consolidated());
    let read = |path: &Path| -> Vec<u8> {
        let array = open(path);
        array.retrieve_array_subset(&array.subset_all()).unwrap()
    };
    said(&[&"consolidate", &array], 0);
    assert_eq!(read(&array), consolidated());

    to_consolidate(&work.join("array"));
    let words = "consolidate array";
    if let Some(text) = on_small_disk(&work, 0, &[words], &[words]) {
        assert!(text.contains(HELP), "{text}");
        assert_eq!(read(&work.join("array")), consolidated());
    }
}

#[test]
fn compact_leaves_whole_shards() {
    const HELP: &str =
        "help: no shard was left torn: when the cause is gone, run the same command again";
    let folder = TempDir::new().unwrap();
    let [array, work] = ["array", "work"].map(|name| folder.path().join(name));
    let array = array.as_path();
    let with_updates = |array: &Path| {
        sharded(array, &chain(&[json!({ "name": "crc32c" })]));
        update(array, 20);
    };
    with_updates(array);
    let expected = values(array);
    let before = fs::read(array.join("c/0/0")).unwrap();
    let text = with_small_files(1, &[path("compact"), array], 1);
    assert!(text.contains("c/0/0"), "{text}");
    assert!(text.contains(HELP), "{text}");
    assert_eq!(fs::read(array.join("c/0/0")).unwrap(), before);
    said(&[&"compact", &array], 0);
    assert!(fs::read(array.join("c/0/0")).unwrap().len() < before.len());
    assert_eq!(values(array), expected);

    with_updates(&work.join("array"));
    let words = "compact array";
    if let Some(text) = on_small_disk(&work, 0, &[words], &[words]) {
        assert!(text.contains(HELP), "{text}");
        let array = work.join("array");
        assert_eq!(values(&array), expected);
        assert!(fs::read(array.join("c/0/0")).unwrap().len() < before.len());
    }
}
