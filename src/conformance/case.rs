//! The parameters that vary between the cases of the suite.

use std::num::NonZeroU64;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use zarrs::array::codec::ShardingCodecConfiguration;
use zarrs::array::{DataType, FillValue, data_type};

/// How much of a shard is the fill value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Filling {
    All,
    None,
    /// Each subchunk-sized stretch of memory with even odds.
    Half,
}

/// A shard, its codecs, and how it is encoded.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) subchunk: Vec<u64>,
    pub(super) counts: Vec<u64>,
    pub(super) data_type: DataType,
    pub(super) fill_value: FillValue,
    pub(super) codecs: Vec<Value>,
    pub(super) index_codecs: Vec<Value>,
    pub(super) index_at_start: bool,
    pub(super) filling: Filling,
    pub(super) store_empty: bool,
    pub(super) threads: usize,
    pub(super) seed: u64,
}

impl Case {
    pub(super) fn shard(&self) -> Vec<NonZeroU64> {
        let extents = self.subchunk.iter().zip(&self.counts).map(|(s, c)| s * c);
        extents
            .map(|n| NonZeroU64::new(n).expect("positive"))
            .collect()
    }

    pub(super) fn configuration(&self) -> ShardingCodecConfiguration {
        serde_json::from_value(json!({
            "chunk_shape": self.subchunk,
            "codecs": self.codecs,
            "index_codecs": self.index_codecs,
            "index_location": if self.index_at_start { "start" } else { "end" },
        }))
        .expect("a legal configuration")
    }

    /// Whether there is one way to encode a subchunk: no compressor, and no nested sharding, whose
    /// subchunks zarrs writes in any order.
    pub(super) fn is_exact(&self) -> bool {
        let exact = ["transpose", "bytes", "crc32c"];
        let is_exact = |codec: &Value| codec["name"].as_str().is_some_and(|n| exact.contains(&n));
        self.codecs.iter().all(is_exact)
    }

    /// The elements of the shard.
    pub(super) fn elements(&self) -> Vec<u8> {
        let fill_value = self.fill_value.as_ne_bytes();
        let stretch = self.subchunk.last().map_or(1, |&n| n.max(1));
        let num_elements: u64 = self.shard().iter().map(|d| d.get()).product();
        let mut state = self.seed | 1;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut filled = false;
        let mut elements = Vec::new();
        for i in 0..num_elements {
            if i % stretch == 0 {
                filled = match self.filling {
                    Filling::All => true,
                    Filling::None => false,
                    Filling::Half => random() % 2 == 0,
                };
            }
            if filled {
                elements.extend_from_slice(fill_value);
            } else {
                // Few different values: something to compress, and now and then the fill value.
                let value = (random() % 7).to_le_bytes();
                elements.extend((0..fill_value.len()).map(|byte| value[byte % 2]));
            }
        }
        elements
    }
}

fn data_types() -> Vec<(DataType, Vec<u8>)> {
    let mut types = vec![
        (data_type::bool(), vec![0]),
        (data_type::uint8(), vec![3]),
        (data_type::int16(), vec![0; 2]),
        (data_type::uint16(), vec![1, 0]),
        (data_type::float16(), vec![0; 2]),
        (data_type::uint32(), vec![0; 4]),
        (data_type::float64(), vec![0; 8]),
        (data_type::complex64(), vec![0; 8]),
        (data_type::complex128(), vec![0; 16]),
        (data_type::raw_bits(3), vec![0; 3]),
        (data_type::raw_bits(20), vec![0; 20]),
    ];
    types.push((data_type::float32(), (-0.0_f32).to_ne_bytes().to_vec()));
    // A NaN with a payload.
    types.push((data_type::float32(), 0x7FC0_1234_u32.to_ne_bytes().to_vec()));
    types
}

fn stage(typesize: usize) -> impl Strategy<Value = Value> {
    let codec =
        |name: &str, configuration: Value| json!({ "name": name, "configuration": configuration });
    let blosc = (
        select(vec!["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"]),
        0..=6,
        select(vec!["noshuffle", "shuffle", "bitshuffle"]),
        select(vec![0, 128]),
    )
        .prop_map(move |(cname, clevel, shuffle, blocksize)| {
            json!({ "name": "blosc", "configuration": {
                "cname": cname, "clevel": clevel, "shuffle": shuffle,
                "typesize": typesize, "blocksize": blocksize,
            }})
        });
    prop_oneof![
        3 => Just(json!({ "name": "crc32c" })),
        2 => (-1..5, any::<bool>()).prop_map(move |(level, checksum)| {
            codec("zstd", json!({ "level": level, "checksum": checksum }))
        }),
        2 => (0..=9).prop_map(move |level| codec("gzip", json!({ "level": level }))),
        3 => blosc,
    ]
}

/// `transpose*`, `bytes`, stages; sometimes a codec that no engine knows, or nested sharding.
fn codecs(subchunk: Vec<u64>, typesize: usize) -> impl Strategy<Value = Vec<Value>> {
    let order: Vec<usize> = (0..subchunk.len()).collect();
    // zarrs has no transpose of zero dimensions.
    let most_transposes = order.len().min(2);
    let transpose = Just(order)
        .prop_shuffle()
        .prop_map(|order| json!({ "name": "transpose", "configuration": { "order": order } }));
    let bytes = select(vec!["little", "big"])
        .prop_map(|endian| json!({ "name": "bytes", "configuration": { "endian": endian } }));
    let nested = bytes.clone().prop_map(move |bytes| {
        json!({ "name": "sharding_indexed", "configuration": {
            "chunk_shape": vec![1; subchunk.len()],
            "codecs": [bytes],
            "index_codecs": [{ "name": "bytes", "configuration": { "endian": "little" } }],
        }})
    });
    let array_to_bytes = prop_oneof![6 => bytes, 1 => nested];
    (
        proptest::collection::vec(transpose, 0..=most_transposes),
        array_to_bytes,
        proptest::collection::vec(stage(typesize), 0..=3),
    )
        .prop_map(|(mut codecs, array_to_bytes, stages)| {
            let nested = array_to_bytes["name"] == "sharding_indexed";
            if nested {
                codecs.clear();
            }
            codecs.push(array_to_bytes);
            codecs.extend(stages);
            codecs
        })
}

/// `transpose*`, `bytes`, and stages that a device runs: one compressor, and checksums in front of it
/// and behind it.
fn codecs_of_devices(dimensions: usize) -> impl Strategy<Value = Vec<Value>> {
    let codec =
        |name: &str, configuration: Value| json!({ "name": name, "configuration": configuration });
    // The levels that go to a device by default.
    let cname = prop_oneof![
        (1..=5).prop_map(|clevel| ("lz4", clevel)),
        (1..=2).prop_map(|clevel| ("zstd", clevel)),
    ];
    let blosc = (
        cname,
        select(vec!["noshuffle", "shuffle", "bitshuffle"]),
        select(vec![1, 2, 3, 4, 7, 8, 16, 20, 255]),
        select(vec![0, 1, 2, 5, 1 << 12]),
    )
        .prop_map(move |((cname, clevel), shuffle, typesize, groups)| {
            codec(
                "blosc",
                json!({
                    "cname": cname, "clevel": clevel, "shuffle": shuffle,
                    "typesize": typesize, "blocksize": groups * 16 * typesize,
                }),
            )
        });
    let compressor = prop_oneof![
        2 => (-3..=3).prop_map(move |level| {
            codec("zstd", json!({ "level": level, "checksum": false }))
        }),
        2 => (1..=9).prop_map(move |level| codec("gzip", json!({ "level": level }))),
        5 => blosc,
    ];
    let checksums = || {
        let number = prop_oneof![4 => Just(0), 2 => Just(1), 1 => Just(2)];
        number.prop_map(|number| vec![json!({ "name": "crc32c" }); number])
    };
    let order: Vec<usize> = (0..dimensions).collect();
    let most_transposes = order.len().min(2);
    let transpose = Just(order)
        .prop_shuffle()
        .prop_map(|order| json!({ "name": "transpose", "configuration": { "order": order } }));
    let bytes = select(vec!["little", "big"])
        .prop_map(|endian| json!({ "name": "bytes", "configuration": { "endian": endian } }));
    (
        proptest::collection::vec(transpose, 0..=most_transposes),
        bytes,
        checksums(),
        compressor,
        checksums(),
    )
        .prop_map(|(mut codecs, bytes, before, compressor, after)| {
            codecs.push(bytes);
            codecs.extend(before);
            codecs.push(compressor);
            codecs.extend(after);
            codecs
        })
}

/// Every case.
pub(super) fn cases() -> impl Strategy<Value = Case> {
    cases_with(codecs)
}

/// Every case with a compressor that a device has.
pub(super) fn compressed_cases() -> impl Strategy<Value = Case> {
    cases_with(|subchunk, _| codecs_of_devices(subchunk.len()))
}

/// `codecs` chooses those of a subchunk's shape, for elements of so many bytes.
fn cases_with<S: Strategy<Value = Vec<Value>>>(
    codecs: fn(Vec<u64>, usize) -> S,
) -> impl Strategy<Value = Case> {
    let axis = (1..=5_u64, 1..=3_u64);
    (
        proptest::collection::vec(axis, 0..=4),
        select(data_types()),
        any::<(bool, bool, bool, bool, u64)>(),
        select(vec![Filling::All, Filling::None, Filling::Half]),
        1..=5_usize,
    )
        .prop_flat_map(
            move |(axes, (data_type, fill_value), flags, filling, threads)| {
                let (subchunk, counts): (Vec<u64>, Vec<u64>) = axes.into_iter().unzip();
                let (index_at_start, index_is_big, index_has_checksum, store_empty, seed) = flags;
                let endian = if index_is_big { "big" } else { "little" };
                let mut index_codecs =
                    vec![json!({ "name": "bytes", "configuration": { "endian": endian } })];
                if index_has_checksum {
                    index_codecs.push(json!({ "name": "crc32c" }));
                }
                codecs(subchunk.clone(), fill_value.len()).prop_map(move |codecs| Case {
                    subchunk: subchunk.clone(),
                    counts: counts.clone(),
                    data_type: data_type.clone(),
                    fill_value: FillValue::new(fill_value.clone()),
                    codecs,
                    index_codecs: index_codecs.clone(),
                    index_at_start,
                    filling,
                    store_empty,
                    threads,
                    seed,
                })
            },
        )
}
