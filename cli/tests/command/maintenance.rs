//! `zarrs-cuda verify`, `recover`, `compact` and `consolidate`.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tempfile::TempDir;
use zarrs::array::codec::ZstdCodec;
use zarrs::array::{Array, ArrayBuilder, CodecOptions, data_type};
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::maintenance::{ArrayLease, Shards};
use zarrs_cuda::storage::SparseShardStore;

use crate::arrays::{chain, open, sharded, store, unsharded, update, values};
use crate::program::{json, said};

/// Numbers of chance. The seed is in every message of a failing test.
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        Self(since.as_nanos() as u64 | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % end
    }
}

/// The bytes of the shard with these indices that its index or a subchunk uses, and the number of the
/// subchunk.
fn referenced(path: &Path, shard: &[u64]) -> Vec<(Option<usize>, Range<u64>)> {
    let array = open(path);
    let found = Shards::of(&array).unwrap().inspect(shard).unwrap().unwrap();
    let subchunks = found.subchunks.iter().enumerate();
    let subchunks = subchunks.filter_map(|(number, subchunk)| {
        let subchunk = subchunk.as_ref()?;
        Some((
            Some(number),
            subchunk.offset..subchunk.offset + subchunk.size,
        ))
    });
    subchunks.chain([(None, found.index.unwrap())]).collect()
}

#[test]
fn every_flipped_bit_is_found() {
    for compressor in [
        None,
        Some(json!({ "name": "gzip", "configuration": { "level": 1 } })),
    ] {
        let folder = TempDir::new().unwrap();
        let path = folder.path();
        let crc32c = json!({ "name": "crc32c" });
        let codecs: Vec<_> = compressor.into_iter().chain([crc32c]).collect();
        sharded(path, &chain(&codecs));
        let whole = json(&[&"verify", &path], 0);
        assert_eq!(
            (&whole["stored"], &whole["subchunks"]),
            (&json!(4), &json!(16))
        );
        assert_eq!(whole["damaged"], json!([]));
        let mut chance = Chance::new();
        for _ in 0..50 {
            let seed = chance.0;
            let shard = [chance.below(2), chance.below(2)];
            let ranges = referenced(path, &shard);
            let all: u64 = ranges
                .iter()
                .map(|(_, range)| range.end - range.start)
                .sum();
            let mut at = chance.below(all);
            let (subchunk, at) = ranges
                .iter()
                .find_map(|(subchunk, range)| {
                    let len = range.end - range.start;
                    if at < len {
                        return Some((subchunk, range.start + at));
                    }
                    at -= len;
                    None
                })
                .unwrap();
            let file = path.join(format!("c/{}/{}", shard[0], shard[1]));
            let right = fs::read(&file).unwrap();
            let mut wrong = right.clone();
            wrong[at as usize] ^= 1 << chance.below(8);
            fs::write(&file, wrong).unwrap();
            let found = json(&[&"verify", &path], 3);
            let damaged = found["damaged"].as_array().unwrap();
            assert_eq!(damaged.len(), 1, "seed {seed}: {found}");
            assert_eq!(damaged[0]["shard"], json!(shard), "seed {seed}: {found}");
            match subchunk {
                None => assert!(damaged[0]["problem"].is_string(), "seed {seed}: {found}"),
                Some(number) => {
                    assert_eq!(
                        damaged[0]["subchunks"][0]["subchunk"],
                        json!([number / 2, number % 2]),
                        "seed {seed}: {found}"
                    );
                    assert_eq!(damaged[0]["subchunks"].as_array().unwrap().len(), 1);
                }
            }
            fs::write(&file, right).unwrap();
        }
        json(&[&"verify", &path], 0);
    }
}

#[test]
fn broken_frames_without_checksums_are_listed() {
    let zstd = json!({ "name": "zstd", "configuration": { "level": 1, "checksum": false } });
    let gzip = json!({ "name": "gzip", "configuration": { "level": 1 } });
    let blosc = json!({ "name": "blosc", "configuration": {
        "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0,
    } });
    for codec in [zstd, gzip, blosc] {
        let folder = TempDir::new().unwrap();
        let path = folder.path();
        sharded(path, &chain(std::slice::from_ref(&codec)));
        let ranges = referenced(path, &[1, 0]);
        let file = path.join("c/1/0");
        let mut bytes = fs::read(&file).unwrap();
        let (_, frame) = &ranges[2];
        bytes[frame.start as usize..frame.end as usize].fill(0xa5);
        fs::write(&file, bytes).unwrap();
        let text = said(&[&"verify", &path], 3);
        assert!(
            text.contains("shard 1,0: damage in 1 subchunk"),
            "{codec}: {text}"
        );
        assert!(text.contains("subchunk 1,0: "), "{codec}: {text}");
        // Only the others.
        said(&[&"verify", &path, &"0,0", &"0/1"], 0);
        said(&[&"verify", &path, &"--part", &"2/2"], 0);
        said(&[&"verify", &path, &"--part", &"1/2"], 3);
    }
}

#[test]
fn truncated_and_absent_shards() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    sharded(path, &chain(&[]));
    fs::remove_file(path.join("c/0/0")).unwrap();
    let text = said(&[&"verify", &path], 0);
    assert!(text.contains("4 shards, 3 stored"), "{text}");
    fs::write(path.join("c/0/1"), b"short").unwrap();
    let text = said(&[&"verify", &path], 3);
    assert!(text.contains("shard 0,1: the index is invalid"), "{text}");
    fs::remove_file(path.join("c/1/0")).unwrap();
    fs::create_dir(path.join("c/1/0")).unwrap();
    // A shard that cannot be read shows no damage.
    let text = said(&[&"verify", &path], 1);
    assert!(text.contains("shard 0,1: the index is invalid"), "{text}");
    assert!(!text.contains("shard 1,0: "), "{text}");
    assert!(
        text.contains("c/1/0 is a directory, where a file should be"),
        "{text}"
    );
}

#[test]
fn two_arrays_are_compared() {
    let folder = TempDir::new().unwrap();
    let [one, other, plain] = ["one", "other", "plain"].map(|name| folder.path().join(name));
    sharded(&one, &chain(&[json!({ "name": "crc32c" })]));
    sharded(&other, &chain(&[]));
    unsharded(&plain);
    for equal in [&other, &plain] {
        let text = said(&[&"verify", &one, &"--against", equal], 0);
        assert!(
            text.contains("\nequal to") && text.contains("bit for bit"),
            "{text}"
        );
        // A part, and some shards, are not taken for the array.
        let text = said(
            &[&"verify", &one, &"--against", equal, &"--part", &"1/2"],
            0,
        );
        assert!(
            text.contains("\npart 1/2 of the shards is equal to")
                && text.contains("others were not"),
            "{text}"
        );
        let text = said(&[&"verify", &one, &"1,1", &"--against", equal], 0);
        assert!(text.contains("\nthe named shards are equal to"), "{text}");
    }
    for command in ["verify", "recover", "compact", "consolidate"] {
        let text = said(&[&command, &one, &"--part", &"2/2"], 0);
        assert!(
            text.contains("this is part 2/2 of the shards"),
            "{command}: {text}"
        );
        let found = json(&[&command, &one, &"--part", &"2/2"], 0);
        assert_eq!(found["part"], "2/2", "{command}");
        let text = said(&[&command, &one], 0);
        assert!(!text.contains("part"), "{command}: {text}");
        assert!(json(&[&command, &one], 0)["part"].is_null(), "{command}");
    }
    let array = open(&other);
    array
        .store_array_subset(&[20..21, 9..10], &[7_u16])
        .unwrap();
    let text = said(&[&"verify", &one, &"--against", &other], 3);
    assert!(text.contains("shard 1,0: 1 subchunk not equal"), "{text}");
    assert!(
        text.contains("elements [16..24, 8..16]: they differ"),
        "{text}"
    );
    assert!(text.contains("in 1 shard"), "{text}");

    // A damaged shard there, and an absent one, which reads as the fill value.
    fs::write(other.join("c/0/0"), b"x").unwrap();
    fs::remove_file(other.join("c/1/1")).unwrap();
    let found = json(&[&"verify", &one, &"--against", &other], 3);
    let different = found["different"].as_array().unwrap();
    assert_eq!(different.len(), 3, "{found}");
    assert_eq!(different[0]["subchunks"].as_array().unwrap().len(), 4);
    assert_eq!(found["damaged"], json!([]));

    // Zeros of both signs, and other types and shapes.
    let floats = |name: &str, value: f32| {
        let path = folder.path().join(name);
        let mut builder = ArrayBuilder::new(vec![4], vec![4], data_type::float32(), 1.0_f32);
        builder.subchunk_shape(vec![2]);
        let array = builder.build(store(&path), "/").unwrap();
        array.store_metadata().unwrap();
        array.store_chunk(&[0], vec![value; 4]).unwrap();
        path
    };
    let (plus, minus) = (floats("plus", 0.0), floats("minus", -0.0));
    said(&[&"verify", &plus, &"--against", &minus], 3);
    said(&[&"verify", &plus, &"--against", &plus], 0);
    let text = said(&[&"verify", &plus, &"--against", &one], 3);
    assert!(text.contains("the shapes are [4] and [32, 32]"), "{text}");
}

#[test]
fn torn_updates_are_recovered() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    sharded(path, &chain(&[json!({ "name": "crc32c" })]));
    let file = path.join("c/0/0");
    update(path, 1);
    let (before, expected) = (fs::read(&file).unwrap(), values(path));
    update(path, 2);
    let after = fs::read(&file).unwrap();
    assert!(after.len() > before.len() + 50);
    fs::write(&file, &after[..after.len() - 40]).unwrap();

    let text = said(&[&"verify", &path], 3);
    assert!(text.contains("torn"), "{text}");
    let dry = said(&[&"recover", &path, &"--dry-run"], 0);
    assert!(
        dry.contains("shard 0,0: a torn update is to be undone"),
        "{dry}"
    );
    assert_eq!(fs::read(&file).unwrap().len(), after.len() - 40);
    // The other part of the shards has nothing to do.
    let other = said(&[&"recover", &path, &"--part", &"2/2"], 0);
    assert!(other.contains("2 intact, 0 repaired"), "{other}");
    let done = said(&[&"recover", &path], 0);
    assert!(
        done.contains("shard 0,0: a torn update was undone"),
        "{done}"
    );
    assert!(done.contains("4 stored: 3 intact, 1 repaired"), "{done}");
    assert_eq!(values(path)[16..], expected[16..]);
    said(&[&"verify", &path], 0);

    // Damage that no update left is reported, and left alone.
    let mut bytes = fs::read(path.join("c/1/1")).unwrap();
    bytes[3] ^= 1;
    fs::write(path.join("c/1/1"), &bytes).unwrap();
    let text = said(&[&"recover", &path], 3);
    assert!(text.contains("1 subchunk unreadable"), "{text}");
    assert_eq!(fs::read(path.join("c/1/1")).unwrap(), bytes);
}

/// Compaction, recovery and writers that extend the array refuse each other.
#[test]
fn another_process_has_the_lease() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    sharded(path, &chain(&[json!({ "name": "crc32c" })]));
    update(path, 3);
    let parts = |number| std::num::NonZeroU64::new(number).unwrap();
    let this = format!("process {}", std::process::id());
    for name in ["compact", "recover"] {
        let held = ArrayLease::take(path).unwrap();
        for arguments in [&[][..], &["--part", "1/2"]] {
            let mut all: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&name, &path];
            all.extend(
                arguments
                    .iter()
                    .map(|one| one as &dyn AsRef<std::ffi::OsStr>),
            );
            let text = said(&all, 1);
            assert!(
                text.contains("has the lease") && text.contains(&this),
                "{text}"
            );
        }
        said(&[&name, &path, &"--dry-run"], 0);
        drop(held);
        let held = ArrayLease::take_part(path, 1, parts(2)).unwrap();
        said(&[&name, &path, &"--part", &"1/2"], 0);
        for other in ["2/2", "1/3"] {
            said(&[&name, &path, &"--part", &other], 1);
        }
        said(&[&name, &path], 1);
        drop(held);
        said(&[&name, &path], 0);
    }
    let names = fs::read_dir(path).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        names.iter().all(|name| name == "zarr.json" || name == "c"),
        "{names:?}"
    );
}

#[test]
fn shards_are_compacted() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    sharded(path, &chain(&[json!({ "name": "crc32c" })]));
    let file = path.join("c/0/0");
    let small = fs::metadata(&file).unwrap().len();
    update(path, 8);
    let expected = values(path);
    let large = fs::metadata(&file).unwrap().len();
    assert!(large > 2 * small);

    let dry = json(&[&"compact", &path, &"--dry-run"], 0);
    assert_eq!(dry["compacted"][0]["before"], large);
    assert_eq!(dry["compacted"][0]["after"], small);
    assert_eq!(fs::metadata(&file).unwrap().len(), large);
    said(&[&"compact", &path, &"--part", &"2/2"], 0);
    said(&[&"compact", &path, &"--unused", &"0.99"], 0);
    said(&[&"compact", &path, &"0,1"], 0);
    assert_eq!(fs::metadata(&file).unwrap().len(), large);

    // The remains of a compaction that was killed.
    fs::write(path.join("c/0/0.tmp"), b"half").unwrap();
    let text = said(&[&"compact", &path], 0);
    assert!(text.contains("1 of 4 stored shards compacted"), "{text}");
    assert_eq!(fs::metadata(&file).unwrap().len(), small);
    assert!(path.join("c/0/0.tmp").exists(), "its process may run");
    assert_eq!(values(path), expected);
    said(&[&"verify", &path], 0);

    // A broken shard does not keep the others from being compacted.
    update(path, 8);
    fs::write(path.join("c/1/0"), b"broken").unwrap();
    let text = said(&[&"compact", &path], 1);
    assert!(text.contains("shard 0,0: "), "{text}");
    assert!(text.contains("cannot compact the shard 1,0"), "{text}");
    assert_eq!(fs::metadata(&file).unwrap().len(), small);
}

/// Updates alone leave bytes that no index knows: a later update writes over the index that did.
#[test]
fn bytes_of_updates_are_no_strangers() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let mut chance = Chance::new();
    let codec = CudaShardingCodecBuilder::new(vec![64.try_into().unwrap()], &data_type::uint16())
        .bytes_to_bytes_codecs(vec![Arc::new(ZstdCodec::new(1, false))])
        .build_arc()
        .unwrap();
    let array = ArrayBuilder::new(vec![1024], vec![1024], data_type::uint16(), 0_u16)
        .array_to_bytes_codec(codec)
        .build(store(path), "/")
        .unwrap();
    array.store_metadata().unwrap();
    let partial = CodecOptions::default().with_experimental_partial_encoding(true);
    for _ in 0..400 {
        let start = chance.below(1024 - 60);
        let len = 1 + chance.below(60);
        let elements: Vec<u16> = (0..len).map(|_| chance.below(1 << 16) as u16).collect();
        let subset = [start..start + len];
        array
            .store_array_subset_opt(&subset, elements, &partial)
            .unwrap();
    }
    let dry = json(&[&"compact", &path, &"--dry-run"], 0);
    assert!(dry["unknown"].as_u64().unwrap() > 0, "{dry}");
    let text = said(&[&"compact", &path], 0);
    assert!(
        text.contains("of updates that were interrupted, or whose index was overwritten"),
        "{text}"
    );
    let dry = json(&[&"compact", &path, &"--dry-run", &"--unused", &"0"], 0);
    assert_eq!(dry["unknown"], 0, "{dry}");
}

#[test]
fn subchunks_are_consolidated() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let mut builder = ArrayBuilder::new(vec![4, 4], vec![2, 2], data_type::uint8(), 0_u8);
    builder.subchunk_shape(vec![1, 1]);
    let array = builder.build(store(path), "/").unwrap();
    array.store_metadata().unwrap();
    let sparse = Arc::new(SparseShardStore::open(store(path), "/").unwrap());
    let subchunks = Array::open(sparse, "/").unwrap();
    let write = || {
        for (indices, value) in [([0, 0], 1_u8), ([0, 0], 2), ([1, 1], 3), ([2, 3], 4)] {
            subchunks.store_chunk(&indices, vec![value]).unwrap();
        }
    };
    write();
    let text = said(&[&"verify", &path], 0);
    assert!(text.contains("2 shards with subchunks beside"), "{text}");
    let dry = said(&[&"consolidate", &path, &"--dry-run"], 0);
    assert_eq!(dry, "shard 0,0\nshard 1,1\n2 shards to pack\n");
    let read = || -> Vec<u8> {
        let plain = open(path);
        plain.retrieve_array_subset(&plain.subset_all()).unwrap()
    };
    assert_eq!(read(), [0; 16]);
    let first = said(&[&"consolidate", &path, &"--part", &"1/2"], 0);
    assert!(first.starts_with("1 shard, 2 subchunks packed"), "{first}");
    assert_eq!(read(), [2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let rest = said(&[&"consolidate", &path], 0);
    assert!(rest.starts_with("1 shard, 1 subchunk packed"), "{rest}");
    assert_eq!(read(), [2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
    let none = said(&[&"consolidate", &path], 0);
    assert!(none.starts_with("0 shards, 0 subchunks"), "{none}");

    // A damaged shard: its frame stays readable, and the others are packed.
    write();
    fs::write(path.join("c/0/0"), b"no shard").unwrap();
    let text = said(&[&"consolidate", &path], 1);
    assert!(text.contains("c/0/0"), "{text}");
    assert!(text.contains("1 shard, 1 subchunk packed"), "{text}");
    assert_eq!(subchunks.retrieve_chunk::<Vec<u8>>(&[0, 0]).unwrap(), [2]);
}

/// A program that sees no frames has replaced a shard since subchunks were stored beside it.
#[test]
fn shards_that_were_changed_are_reported() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let mut builder = ArrayBuilder::new(vec![4], vec![4], data_type::uint8(), 0_u8);
    builder.subchunk_shape(vec![1]);
    let array = builder.build(store(path), "/").unwrap();
    array.store_metadata().unwrap();
    let sparse = Arc::new(SparseShardStore::open(store(path), "/").unwrap());
    let subchunks = Array::open(sparse, "/").unwrap();
    subchunks.store_chunk(&[1], vec![1_u8]).unwrap();
    assert!(path.join(zarrs_cuda::storage::FRAMES_MARKER).exists());
    let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let mut versions = fs::read_dir(path.join("c/0.frame")).unwrap();
    let version = time(&versions.next().unwrap().unwrap().path());
    // The clock of a file system may stand for some milliseconds.
    loop {
        array.store_chunk(&[0], vec![2_u8; 4]).unwrap();
        if time(&path.join("c/0")) > version {
            break;
        }
    }
    let text = said(&[&"consolidate", &path], 1);
    assert!(text.contains("cannot consolidate the shard c/0"), "{text}");
    assert!(text.matches(" UTC").count() == 2, "{text}");
    assert!(text.contains("--over-changed"), "{text}");
    assert_eq!(array.retrieve_chunk::<Vec<u8>>(&[0]).unwrap(), [2; 4]);
    said(&[&"consolidate", &path, &"--over-changed"], 0);
    assert_eq!(array.retrieve_chunk::<Vec<u8>>(&[0]).unwrap(), [2, 1, 2, 2]);
    // The marker stays, and is no stranger.
    said(&[&"verify", &path], 0);
    said(&[&"inspect", &path], 0);
    said(&[&"compact", &path], 0);
}
