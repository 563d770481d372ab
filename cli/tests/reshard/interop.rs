//! zarr-python and tensorstore read what is written.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use zarrs::array::codec::ShardingIndexLocation;
use zarrs_cuda_testing::index::IndexLayout;
use zarrs_cuda_testing::{Rng, codecs};

use crate::arrays::{Layout, elements, every_encoding, temporary};
use crate::environment::Tool;
use crate::resharded;

#[test]
fn others_read_the_result() {
    let mut rng = Rng(11);
    let directory = temporary();
    let inputs = directory.path().join("inputs");
    let outputs = directory.path().join("outputs");
    let mut cases: BTreeMap<String, Value> = BTreeMap::new();
    let blosc = codecs::blosc("lz4", 5, "shuffle", 4);
    for (chain_name, data_type, chain) in [
        ("plain", "uint16", vec![codecs::bytes("big")]),
        (
            "zstd",
            "uint16",
            vec![codecs::bytes("little"), codecs::zstd(3, false)],
        ),
        (
            "transpose_blosc",
            "float32",
            vec![codecs::transpose(&[1, 0]), codecs::bytes("little"), blosc],
        ),
        (
            "gzip_crc32c",
            "uint8",
            vec![codecs::bytes("little"), codecs::gzip(5), codecs::crc32c()],
        ),
    ] {
        let shards = |counts: Option<[u64; 2]>, keys: usize, location| Layout {
            shape: vec![37, 29],
            subchunk: vec![4, 3],
            counts: counts.map(Vec::from),
            data_type,
            chain: chain.clone(),
            index: IndexLayout {
                location,
                ..IndexLayout::default()
            },
            keys: every_encoding()[keys].clone(),
        };
        let (start, end) = (ShardingIndexLocation::Start, ShardingIndexLocation::End);
        for (name, from, to) in [
            (
                "to_shards",
                shards(None, 0, end),
                shards(Some([3, 4]), 0, end),
            ),
            (
                "to_shards_start",
                shards(None, 3, end),
                shards(Some([2, 2]), 3, start),
            ),
            (
                "to_chunks",
                shards(Some([3, 4]), 0, start),
                shards(None, 1, end),
            ),
            (
                "to_others",
                shards(Some([3, 4]), 2, start),
                shards(Some([4, 3]), 2, end),
            ),
        ] {
            let name = format!("{chain_name}_{name}");
            let [input, output] = [&inputs, &outputs].map(|folder| folder.join(&name));
            from.create(&input, &mut rng);
            to.describe(&output);
            resharded(&input, &output, &[]);
            let values = elements(&input).into_fixed().unwrap();
            fs::write(outputs.join(format!("{name}.raw")), values).unwrap();
            cases.insert(name, to.metadata());
        }
    }
    let list = serde_json::to_vec(&cases).unwrap();
    fs::write(outputs.join("cases.json"), list).unwrap();
    for tool in [Tool::ZarrPython, Tool::Tensorstore] {
        tool.reads_all(&outputs, cases.len());
    }
}
