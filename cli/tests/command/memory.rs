//! `--memory`: no subcommand takes more than it says, and 64 MiB for everything that is no buffer.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayMetadata, ArraySubset};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::SparseShardStore;

use crate::arrays::{open, store};
use crate::measured::{said_within, within};
use crate::program::{files, program, said_with_code};

/// The budgets, in MiB.
const BUDGETS: [u64; 2] = [64, 256];
/// 256 MiB of `uint16`.
const SHAPE: [u64; 3] = [128, 1024, 1024];

/// The arrays of all tests. They stay for the next run of this program.
struct Arrays(PathBuf);

static ARRAYS: LazyLock<Arrays> = LazyLock::new(|| {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let arrays = all.join("memory-1"); // another number for other arrays
    if arrays.exists() {
        return Arrays(arrays);
    }
    fs::create_dir_all(all).unwrap();
    let directory = tempfile::tempdir_in(all).unwrap();
    let root = directory.path();
    // Chunks of 2 MiB of Zarr v2.
    let v2 = |chunks: [u64; 3]| {
        json!({
            "zarr_format": 2, "shape": SHAPE, "chunks": chunks, "dtype": "<u2", "fill_value": 0,
            "order": "C", "filters": null,
            "compressor": { "id": "zstd", "level": 1, "checksum": false },
        })
    };
    let small = [16, 256, 256];
    fill(&root.join("v2"), &v2(small), small);
    // One chunk, which has to be decoded as a whole.
    fill(&root.join("one"), &v2(SHAPE), SHAPE);
    fill(
        &root.join("sharded"),
        &sharded([16, 64, 64]),
        [64, 1024, 1024],
    );
    let made = fs::rename(root, &arrays);
    assert!(made.is_ok() || arrays.exists(), "{made:?}"); // another process was faster
    Arrays(arrays)
});

impl Arrays {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// The metadata of an array in shards of 128 MiB.
fn sharded(subchunk: [u64; 3]) -> Value {
    let bytes = json!({ "name": "bytes", "configuration": { "endian": "little" } });
    json!({
        "zarr_format": 3, "node_type": "array", "shape": SHAPE, "data_type": "uint16", "fill_value": 0,
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [64, 1024, 1024] } },
        "chunk_key_encoding": { "name": "default" },
        "codecs": [{ "name": "sharding_indexed", "configuration": {
            "chunk_shape": subchunk,
            "codecs": [bytes, { "name": "zstd", "configuration": { "level": 1, "checksum": false } }],
            "index_location": "end",
            "index_codecs": [bytes, { "name": "crc32c" }],
        } }],
    })
}

/// Makes an array of elements that compress to about half.
fn fill(path: &Path, metadata: &Value, chunk: [u64; 3]) -> Array<FilesystemStore> {
    let metadata: ArrayMetadata = serde_json::from_value(metadata.clone()).unwrap();
    let array = Array::new_with_metadata(store(path), "/", metadata).unwrap();
    array.store_metadata().unwrap();
    let counts = std::iter::zip(SHAPE, chunk).map(|(all, one)| all / one);
    let counts = ArraySubset::new_with_shape(counts.collect());
    let mut elements = Vec::new();
    for indices in &counts.indices() {
        let first: Vec<u64> = std::iter::zip(&indices, chunk)
            .map(|(i, c)| i * c)
            .collect();
        elements.clear();
        for z in first[0]..first[0] + chunk[0] {
            for y in first[1]..first[1] + chunk[1] {
                let row = (z * SHAPE[1] + y) * SHAPE[2];
                let row = row + first[2]..row + first[2] + chunk[2];
                elements.extend(row.map(|at| noise(at) & 0xff));
            }
        }
        array.store_chunk(&indices, &elements).unwrap();
    }
    array
}

/// A number that looks random, the same for the same element.
fn noise(at: u64) -> u16 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed >> 40) as u16
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn reencode() {
    let out = tempfile::tempdir().unwrap();
    let [v2, sharded] = ["v2", "sharded"].map(|name| ARRAYS.path(name));
    for (number, (input, options)) in [
        (
            &v2,
            "--shard 64,1024,1024 --subchunk 16,64,64 --codec zstd:1 --verify",
        ),
        (
            &sharded,
            "--shard 128,512,1024 --subchunk 32,32,32 --codec none",
        ),
        (
            &sharded,
            "--shard 100,1000,1000 --subchunk 10,100,100 --codec crc32c --index start",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut made = Vec::new();
        for budget in BUDGETS {
            let path = out.path().join(format!("{number}-{budget}"));
            let mut arguments = vec!["reencode", text(input), text(&path)];
            arguments.extend(options.split(' '));
            said_within(budget, &arguments, 0);
            assert!(
                files(&path)
                    .iter()
                    .all(|file| file.extension().is_none_or(|e| e != "tmp"))
            );
            made.push(path);
        }
        for path in &made {
            said_within(256, &["verify", text(path), "--against", text(input)], 0);
            fs::remove_dir_all(path).unwrap();
        }
    }
}

#[test]
fn a_shard_in_parts_has_the_bytes_of_a_whole_one() {
    let directory = tempfile::tempdir().unwrap();
    let [input, whole, parts] = ["in", "whole", "parts"].map(|name| directory.path().join(name));
    let metadata = json!({
        "zarr_format": 2, "shape": [70, 90, 110], "chunks": [8, 16, 16], "dtype": "<u2",
        "fill_value": 7, "order": "F", "filters": null, "compressor": null,
    });
    let metadata: ArrayMetadata = serde_json::from_value(metadata).unwrap();
    let array = Array::new_with_metadata(store(&input), "/", metadata).unwrap();
    array.store_metadata().unwrap();
    let elements: Vec<u16> = (0..70 * 90 * 110_u32)
        .map(|at| if at % 90_000 < 30_000 { 7 } else { at as u16 })
        .collect();
    array
        .store_array_subset(&array.subset_all(), &elements)
        .unwrap();
    for codec in ["none", "zstd:3"] {
        for index in ["start", "end"] {
            let run = |output: &Path, memory: &str| {
                let mut command = program();
                command.arg("reencode").args([&input, output]);
                command.args(["--shard", "40,48,64", "--subchunk", "8,16,16"]);
                command.args([
                    "--overwrite",
                    "--verify",
                    "--codec",
                    codec,
                    "--index",
                    index,
                ]);
                command.args(["--memory", memory]);
                said_with_code(&command.output().unwrap(), 0)
            };
            assert!(!run(&whole, "64MiB").contains("in parts of"));
            let said = run(&parts, "256KiB");
            assert!(said.contains("in parts of"), "{said}");
            let (a, b) = (files(&whole), files(&parts));
            assert_eq!(a.len(), b.len());
            for file in a {
                let same = parts.join(file.strip_prefix(&whole).unwrap());
                assert!(
                    fs::read(&file).unwrap() == fs::read(&same).unwrap(),
                    "{}",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn a_run_in_parts_that_was_killed_goes_on() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("out");
    let v2 = ARRAYS.path("v2");
    let arguments = [
        "reencode",
        text(&v2),
        text(&path),
        "--shard",
        "64,1024,1024",
        "--memory",
        "64MiB",
    ];
    let mut child = program()
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let is_begun = || {
        files(&path.join("c"))
            .iter()
            .any(|file| file.extension().is_some_and(|e| e == "tmp"))
    };
    while !is_begun() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_begun() && !path.join("zarr.json").exists());
    let mut again = arguments.to_vec();
    again.extend(["--resume", "--verify"]);
    said_with_code(&program().args(again).output().unwrap(), 0);
    assert!(!is_begun());
}

#[test]
fn what_cannot_fit_is_refused_before_anything_is_written() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("out");
    let one = ARRAYS.path("one");
    let said = said_within(64, &["reencode", text(&one), text(&path)], 1);
    assert!(
        said.contains("256.00 MiB decoded") && said.contains("give --memory 76"),
        "{said}"
    );
    assert!(!path.join("zarr.json.incomplete").exists());
    let sharded = ARRAYS.path("sharded");
    let said = said_within(64, &["verify", text(&sharded), "--against", text(&one)], 1);
    assert!(said.contains("give --memory 76"), "{said}");
}

#[test]
fn maintenance() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("array");
    let array = fill(&path, &sharded([16, 64, 64]), [64, 1024, 1024]);
    // Subchunks that wait beside the shard, and a shard whose index is invalid.
    let sparse = SparseShardStore::on_filesystem(store(&path), "/").unwrap();
    let small = Array::open(std::sync::Arc::new(sparse), "/").unwrap();
    small
        .store_chunk(&[0, 0, 0], vec![1_u16; 16 * 64 * 64])
        .unwrap();
    let array_text = text(&path);
    for budget in BUDGETS {
        for (arguments, code) in [
            (&["inspect", array_text][..], 0),
            (&["inspect", array_text, "--all"], 0),
            (&["inspect", array_text, "0,0,0", "--summary"], 0),
            (&["explain", array_text], 0),
            (&["verify", array_text], 0),
            (&["verify", array_text, "--against", array_text], 0),
            (&["recover", array_text, "--dry-run"], 0),
            (&["recover", array_text], 0),
        ] {
            said_within(budget, arguments, code);
        }
        // The shard, and what becomes of it: only as a whole.
        let is_enough = budget > 64;
        for what in ["consolidate", "compact"] {
            let mut arguments = vec![what, array_text];
            if what == "compact" {
                arguments.extend(["--unused", "0"]);
                waste(&path);
            } else {
                // The shard was changed after the subchunks were stored beside it.
                arguments.push("--over-changed");
            }
            let said = said_within(budget, &arguments, i32::from(!is_enough));
            assert!(is_enough || said.contains("give --memory"), "{said}");
        }
        if budget == 64 {
            continue;
        }
        let shard = path.join(array.chunk_key(&[1, 0, 0]).as_str());
        let len = fs::metadata(&shard).unwrap().len();
        fs::OpenOptions::new()
            .write(true)
            .open(&shard)
            .unwrap()
            .set_len(len - 1)
            .unwrap();
        said_within(budget, &["verify", array_text], 3);
        said_within(budget, &["recover", array_text], 3);
    }
    // A large shard without a valid index is read as a whole, or not at all.
    let said = said_within(32, &["verify", array_text], 1);
    assert!(said.contains("give --memory"), "{said}");
}

/// Lets the first shard have bytes that nothing uses, in front of its index.
fn waste(path: &Path) {
    let array = open(path);
    let shard = path.join(array.chunk_key(&[0, 0, 0]).as_str());
    let mut bytes = fs::read(&shard).unwrap();
    let index = bytes.split_off(bytes.len() - (4 * 16 * 16 * 16 + 4));
    bytes.extend(vec![0; 4096]);
    bytes.extend(index);
    fs::write(&shard, bytes).unwrap();
}

#[test]
fn large_shards_are_verified_in_pieces_as_well_as_whole() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("array");
    let array = fill(&path, &sharded([16, 64, 64]), [64, 1024, 1024]);
    let shard = path.join(array.chunk_key(&[0, 0, 0]).as_str());
    let mut bytes = fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 200_000].fill(0xff);
    fs::write(&shard, bytes).unwrap();
    let verify = |memory: &str| {
        let mut command = program();
        command.args(["verify", text(&path), "--json", "--memory", memory]);
        said_with_code(&command.output().unwrap(), 3)
    };
    let (pieces, whole) = (verify("8MiB"), verify("2GiB"));
    assert_eq!(pieces, whole);
    assert!(pieces.contains("\"subchunk\""), "{pieces}");
}

#[test]
fn streams_and_pyramids() {
    let out = tempfile::tempdir().unwrap();
    let frames = out.path().join("frames.raw");
    let piece = vec![7_u8; 4 << 20];
    let mut file = fs::File::create(&frames).unwrap();
    for _ in 0..64 {
        file.write_all(&piece).unwrap();
    }
    drop(file);
    for budget in BUDGETS {
        let image = out.path().join(format!("image-{budget}"));
        fs::create_dir(&image).unwrap();
        let level = image.join("0");
        let shape =
            "--frame-shape 1024,1024 --dtype uint16 --shard 16,1024,1024 --subchunk 2,128,128";
        let mut arguments = vec!["stream", text(&level)];
        arguments.extend(shape.split(' '));
        said_with_code(&within(budget, &arguments, Some(&frames)), 0);
        // The last layer of shards is not complete: its frames are read again.
        let more = ["stream", text(&level), "-", "--frames", "5"];
        said_with_code(&within(budget, &more, Some(&frames)), 0);
        said_with_code(&within(budget, &more, Some(&frames)), 0);
        let axes = "--axis z,factor=1 --axis y --axis x";
        let mut arguments = vec!["pyramid", text(&image)];
        arguments.extend(axes.split(' '));
        said_within(budget, &arguments, 0);
        fs::remove_dir_all(&image).unwrap();
    }
}

#[test]
fn a_pyramid_says_what_would_fit() {
    let out = tempfile::tempdir().unwrap();
    let image = out.path().join("image");
    fs::create_dir(&image).unwrap();
    let level = image.join("0");
    let v2 = ARRAYS.path("v2");
    let shape = ["--shard", "64,1024,1024", "--subchunk", "64,64,64"];
    let mut arguments = vec!["reencode", text(&v2), text(&level)];
    arguments.extend(shape);
    said_within(256, &arguments, 0);
    let axes = "--axis z,factor=1 --axis y --axis x --levels 2";
    let mut memory = "16MiB".to_string();
    let mut refusals = 0;
    loop {
        let mut command = program();
        command.args(["pyramid", text(&image), "--memory", &memory]);
        command.args(axes.split(' '));
        let output = command.output().unwrap();
        if output.status.success() {
            break;
        }
        let said = said_with_code(&output, 1);
        assert!(
            !said.contains("budget is 0") && said.contains("--memory is"),
            "{said}"
        );
        let (_, remedy) = said.split_once("give --memory ").unwrap();
        memory = remedy.split([',', '\n']).next().unwrap().to_string();
        // First the blocks of level 0, then the buffers of the other levels.
        refusals += 1;
        assert!(refusals <= 2, "{said}");
    }
    assert!(refusals > 0);
}

#[test]
fn others() {
    let out = tempfile::tempdir().unwrap();
    let demo = out.path().join("demo");
    for budget in BUDGETS {
        said_within(budget, &["demo", text(&demo)], 0);
        said_within(
            budget,
            &["plan", "--shape", "2000,2000,2000", "--dtype", "uint16"],
            0,
        );
        said_within(budget, &["doctor", text(out.path())], 0);
        let bench = ["bench", text(out.path()), "--size", "8MiB", "--rounds", "1"];
        said_within(budget, &bench, 0);
    }
    let said = said_within(64, &["bench", text(out.path())], 1);
    assert!(said.contains("or --size"), "{said}");
    let huge = [
        "plan",
        "--shape",
        "99999,99999,9999",
        "--dtype",
        "uint16",
        "--shard-size",
        "200GiB",
    ];
    let said = said_within(256, &huge, 0);
    assert!(
        said.contains("is more than the 256.00 MiB") && said.contains("would fit"),
        "{said}"
    );
}

#[test]
fn a_limit_of_addresses_is_memory_that_there_is() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("out");
    let [v2, sharded] = ["v2", "sharded"].map(|name| ARRAYS.path(name));
    for arguments in [
        &["verify", text(&sharded), "--against", text(&v2)][..],
        &["reencode", text(&v2), text(&path)],
        &["recover", text(&sharded)],
    ] {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v 250000; exec \"$0\" \"$@\" --threads 2"]);
        command.arg(program().get_program()).args(arguments);
        command.env_remove("MALLOC_ARENA_MAX");
        said_with_code(&command.output().unwrap(), 0);
    }
}

#[test]
fn reshard() {
    let out = tempfile::tempdir().unwrap();
    let sharded = ARRAYS.path("sharded");
    for budget in BUDGETS {
        let moved = out.path().join(format!("{budget}"));
        let shape = ["--shard", "128,1024,1024"];
        let mut arguments = vec!["reshard", text(&sharded), text(&moved)];
        arguments.extend(shape);
        said_within(budget, &arguments, 0);
    }
}

#[test]
fn a_large_subchunk_becomes_a_chunk() {
    let out = tempfile::tempdir().unwrap();
    let [input, chunks, shards] = ["in", "chunks", "shards"].map(|name| out.path().join(name));
    let one = [64, 1024, 1024];
    let array = fill(&input, &sharded(one), one);
    said_within(64, &["reshard", text(&input), text(&chunks), "--chunks"], 0);
    let shape = "64,1024,1024";
    said_within(
        64,
        &["reshard", text(&chunks), text(&shards), "--shard", shape],
        0,
    );
    for path in [&chunks, &shards] {
        let made = open(path);
        for chunk in [[0, 0, 0], [1, 0, 0]] {
            let elements: Vec<u16> = array.retrieve_chunk(&chunk).unwrap();
            assert!(made.retrieve_chunk::<Vec<u16>>(&chunk).unwrap() == elements);
        }
    }
}

#[cfg(feature = "remote")]
#[test]
fn objects_fit_or_are_refused() {
    let server = zarrs_cuda_object_store_tests::Server::start();
    let endpoint = format!("http://{}", server.address());
    let environment = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_SKIP_SIGNATURE", "true"),
        ("NO_PROXY", "127.0.0.1"),
    ];
    let said = |arguments: &[&str], code| {
        said_with_code(
            &crate::measured::within_and(64, arguments, None, &environment),
            code,
        )
    };
    let v2 = ARRAYS.path("v2");
    let (v2, there) = (text(&v2), "s3://arrays/array");
    let subchunk = ["--subchunk", "16,64,64", "--codec", "none"];
    let arguments = |size| {
        let mut arguments = vec!["reencode", v2, there, "--shard-size", size];
        arguments.extend(subchunk);
        arguments
    };
    let refused = said(&arguments("128MiB"), 1);
    assert!(refused.contains("sent as a whole"), "{refused}");
    let (_, size) = refused.split_once("--shard-size ").unwrap();
    let size = size.split_whitespace().next().unwrap();
    said(&arguments(size), 0);
    said(&["verify", there, "--against", v2], 0);
    let (back, out) = (tempfile::tempdir().unwrap(), "out");
    let back = back.path().join(out);
    let http = format!("{endpoint}/arrays/array");
    said(
        &["reencode", &http, text(&back), "--shard", "128,512,1024"],
        0,
    );
    said(&["verify", text(&back), "--against", v2], 0);
}

/// Indices of shards with very many subchunks count, and are refused before anything is written.
#[test]
fn indices_of_shards_count() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path();
    let array = zarrs::array::ArrayBuilder::new(
        vec![1 << 20],
        vec![1 << 20],
        zarrs::array::data_type::uint8(),
        0_u8,
    )
    .build(crate::arrays::store(&path.join("in")), "/")
    .unwrap();
    array.store_metadata().unwrap();
    array.store_chunk(&[0], vec![1_u8; 1 << 20]).unwrap();
    let run = |line: &str, code: i32| {
        let mut command = crate::program::program();
        command.args(line.split(' ')).current_dir(path);
        crate::program::said_with_code(&command.output().unwrap(), code)
    };
    run(
        "reencode in shards --shard 1048576 --subchunk 1 --codec none",
        0,
    );
    for line in ["reshard shards out --shard 524288", "verify shards"] {
        let said = run(&format!("{line} --memory 4MiB"), 1);
        assert!(said.contains("--memory is 4.00 MiB"), "{line}: {said}");
        let is_reshard = line.starts_with("reshard");
        assert!(!is_reshard || !path.join("out").exists(), "{line}");
        run(line, 0);
    }
}
