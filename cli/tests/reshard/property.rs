//! Any layout to any other.

use std::fs;

use serde_json::{Value, json};
use zarrs_cuda_testing::index::{EMPTY, IndexLayout};
use zarrs_cuda_testing::{Rng, codecs, effort};

use crate::arrays::{Layout, elements, every_encoding, files, open, temporary};
use crate::resharded;

/// The values are the same as zarrs reads them, and each encoded subchunk has the same bytes.
#[test]
fn any_layout_to_any_other() {
    for seed in effort::seeds(200) {
        let mut rng = Rng(seed);
        let input = Layout::random(&mut rng);
        let mut output = input.clone();
        output.vary(&mut rng);
        check(&input, &output, &mut rng);
    }
}

#[test]
fn every_encoding_of_keys_to_every_other() {
    let mut rng = Rng(effort::seed());
    for from in every_encoding() {
        for to in every_encoding() {
            let mut input = Layout::random(&mut rng);
            let mut output = input.clone();
            output.vary(&mut rng);
            (input.keys, output.keys) = (from.clone(), to.clone());
            check(&input, &output, &mut rng);
        }
    }
}

fn check(input: &Layout, output: &Layout, rng: &mut Rng) {
    let directory = temporary();
    let [from, to] = ["in", "out"].map(|name| directory.path().join(name));
    input.create(&from, rng);
    let before = files(&from);
    output.describe(&to);
    let threads = (1 + rng.below(4)).to_string();
    let said = resharded(&from, &to, &["--threads", &threads]);
    let context = format!("{input:?} to {output:?}");
    println!("{context}");
    assert_eq!(elements(&from), elements(&to), "{context}");
    let subchunks = input.subchunks(&from);
    assert_eq!(subchunks, output.subchunks(&to), "{context}");
    assert_eq!(said["codec_calls"], json!(0), "{context}");
    assert_eq!(said["subchunks"], json!(subchunks.len()), "{context}");
    assert_eq!(files(&from), before, "IN was changed: {context}");
    // OUT has an object only where there is something in it, and nothing else.
    let mut objects: Vec<_> = subchunks
        .iter()
        .map(|(cell, _)| {
            let counts = output.counts.clone().unwrap_or(vec![1; cell.len()]);
            let object: Vec<u64> = cell.iter().zip(counts).map(|(c, n)| c / n).collect();
            open(&to).chunk_key(&object).as_str().to_owned()
        })
        .collect();
    objects.push("zarr.json".to_owned());
    objects.sort();
    objects.dedup();
    let found: Vec<_> = files(&to).into_iter().map(|(name, _)| name).collect();
    assert_eq!(found, objects, "{context}");
    let metadata = fs::read(to.join("zarr.json")).unwrap();
    let metadata: Value = serde_json::from_slice(&metadata).unwrap();
    assert_eq!(metadata, output.metadata(), "{context}");
}

/// The command line says what OUT is; everything else is as in IN.
#[test]
fn options_describe_the_output() {
    let mut rng = Rng(7);
    let directory = temporary();
    let path = |name: &str| directory.path().join(name);
    let layout = Layout {
        shape: vec![40, 30],
        subchunk: vec![4, 5],
        counts: None,
        data_type: "uint16",
        chain: vec![codecs::bytes("little"), codecs::zstd(1, false)],
        index: IndexLayout::default(),
        keys: every_encoding()[0].clone(),
    };
    layout.create(&path("chunks"), &mut rng);
    let shards = Layout {
        counts: Some(vec![4, 2]),
        ..layout.clone()
    };
    let metadata = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(path(name).join("zarr.json")).unwrap()).unwrap()
    };

    resharded(&path("chunks"), &path("shards"), &["--shard", "16,10"]);
    assert_eq!(metadata("shards"), shards.metadata());

    let options = ["--shard", "8,15", "--index", "start", "--chunk-keys", "v2."];
    resharded(&path("shards"), &path("others"), &options);
    let mut others = Layout {
        counts: Some(vec![2, 3]),
        keys: every_encoding()[3].clone(),
        ..layout.clone()
    };
    others.index.location = zarrs::array::codec::ShardingIndexLocation::Start;
    assert_eq!(metadata("others"), others.metadata());

    resharded(
        &path("others"),
        &path("again"),
        &["--chunks", "--chunk-keys", "default/"],
    );
    assert_eq!(metadata("again"), layout.metadata());
    assert_eq!(files(&path("again")).len(), files(&path("chunks")).len());
    for ((name, bytes), (other, original)) in
        files(&path("again")).iter().zip(&files(&path("chunks")))
    {
        assert_eq!(name, other);
        assert!(name == "zarr.json" || bytes == original, "{name}");
    }
}

/// Levels may differ: OUT takes those of IN. Numbers of the attributes stay as they were written.
#[test]
fn metadata_are_kept() {
    let directory = temporary();
    let [from, to] = ["in", "out"].map(|name| directory.path().join(name));
    let mut layout = Layout::random(&mut Rng(3));
    layout.chain = vec![codecs::bytes("little"), codecs::zstd(7, false)];
    layout.create(&from, &mut Rng(4));
    let text = fs::read_to_string(from.join("zarr.json")).unwrap();
    let number = "1234567890123456789012345678901234567890.50";
    fs::write(from.join("zarr.json"), text.replace("0.1", number)).unwrap();
    let mut output = layout.clone();
    output.chain[1] = codecs::zstd(1, false);
    output.describe(&to);
    let out = fs::read_to_string(to.join("zarr.json")).unwrap();
    fs::write(to.join("zarr.json"), out.replace("0.1", number)).unwrap();
    resharded(&from, &to, &[]);
    let text = fs::read_to_string(to.join("zarr.json")).unwrap();
    assert!(text.contains(number), "{text}");
    let metadata: Value = serde_json::from_str(&text).unwrap();
    let codecs = metadata["codecs"].to_string();
    assert!(codecs.contains("\"level\":7"), "{codecs}");
}

/// Codecs that nobody knows are not called, so they need not be known.
#[test]
fn unknown_codecs() {
    let directory = temporary();
    let [from, to, back] = ["in", "out", "back"].map(|name| directory.path().join(name));
    let mut layout = Layout {
        shape: vec![7, 5],
        subchunk: vec![2, 2],
        counts: None,
        data_type: "uint8",
        chain: vec![
            json!({ "name": "org.example.array", "configuration": { "a": [1] } }),
            json!("org.example.bytes"),
        ],
        index: IndexLayout::default(),
        keys: every_encoding()[1].clone(),
    };
    layout.describe(&from);
    for (key, bytes) in [("c.0.0", "some"), ("c.3.2", "bytes"), ("c.1.2", "")] {
        fs::write(from.join(key), bytes).unwrap();
    }
    // Beyond the end of the array.
    fs::write(from.join("c.4.0"), "old").unwrap();
    let said = resharded(&from, &to, &["--shard", "4,4"]);
    assert_eq!(
        (&said["subchunks"], &said["codec_calls"]),
        (&json!(3), &json!(0))
    );
    layout.counts = Some(vec![2, 2]);
    let shard = fs::read(to.join("c.1.1")).unwrap();
    let entries = layout.index.entries(&shard, 4);
    assert_eq!(entries, [EMPTY, EMPTY, [0, 5], EMPTY]);
    resharded(&to, &back, &["--chunks"]);
    let mut expected = files(&from);
    expected.retain(|(name, _)| name != "c.4.0" && name != "zarr.json");
    let mut found = files(&back);
    found.retain(|(name, _)| name != "zarr.json");
    assert_eq!(found, expected);
}

/// Subchunks that lie in any order, with gaps between them, and the same bytes for two of them.
#[test]
fn shards_of_other_writers() {
    let directory = temporary();
    let [from, to] = ["in", "out"].map(|name| directory.path().join(name));
    let mut layout = Layout {
        shape: vec![6],
        subchunk: vec![1],
        counts: Some(vec![6]),
        data_type: "uint8",
        chain: vec![codecs::bytes("little"), codecs::crc32c()],
        index: IndexLayout::default(),
        keys: every_encoding()[0].clone(),
    };
    layout.create(&from, &mut Rng(0));
    let one = |byte: u8| [&[byte][..], &crc32c(byte)].concat();
    let mut shard = [vec![9; 3], one(1), vec![9; 2], one(2), one(3)].concat();
    let entries = [[10, 5], [3, 5], EMPTY, [3, 5], [15, 5], EMPTY];
    shard.extend(layout.index.encode(&entries));
    fs::create_dir_all(from.join("c")).unwrap();
    fs::write(from.join("c/0"), shard).unwrap();
    resharded(&from, &to, &["--shard", "4"]);
    let subchunks = layout.subchunks(&from);
    layout.counts = Some(vec![4]);
    assert_eq!(layout.subchunks(&to), subchunks);
    assert_eq!(elements(&to), elements(&from));
}

/// The CRC32C of a byte, bit by bit.
fn crc32c(byte: u8) -> [u8; 4] {
    let mut crc = !0_u32 ^ u32::from(byte);
    for _ in 0..8 {
        let carry = crc & 1;
        crc = (crc >> 1) ^ (carry * 0x82F6_3B78);
    }
    (!crc).to_le_bytes()
}
