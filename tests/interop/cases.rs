//! The exchanged arrays: their metadata, and their values, which follow from the metadata.

use std::{fs, path::Path, sync::LazyLock};

use serde_json::{Map, Value, json};
use zarrs::array::ArraySubset;

type Shape = &'static [u64];

/// One array: its metadata as in `zarr.json`, and its values.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) metadata: Value,
    /// A shard that only holds the fill value; `None` if the array has a single shard.
    pub(crate) empty_shard: Option<Vec<u64>>,
    /// All values in C order, little-endian.
    pub(crate) values: Vec<u8>,
}

impl Case {
    /// Returns the values in a part of the array.
    pub(crate) fn subset(&self, subset: &ArraySubset) -> Vec<u8> {
        let elements: u64 = self.shape.iter().product();
        let size = self.values.len() / usize::try_from(elements).unwrap();
        let mut out = Vec::new();
        for index in subset.indices() {
            let position = index.iter().zip(self.shape);
            let element = position.fold(0, |element, (at, n)| element * n + at);
            let start = usize::try_from(element).unwrap() * size;
            out.extend(&self.values[start..start + size]);
        }
        out
    }
}

/// Writes the scripts' input: `cases.json`, and the values of each case.
pub(crate) fn hand_over(directory: &Path) {
    let mut list = Map::new();
    for case in all() {
        list.insert(case.name.clone(), case.metadata.clone());
        let raw = directory.join(&case.name).with_extension("raw");
        fs::write(raw, &case.values).unwrap();
    }
    let list = serde_json::to_string_pretty(&list).unwrap();
    fs::write(directory.join("cases.json"), list).unwrap();
}

/// A case without its values. The default is a three-dimensional array of 2 × 2 × 2 shards with 2 ×
/// 3 × 2 subchunks each. No edge of the array lies on the border of a shard.
struct Draft {
    shape: Shape,
    shard_shape: Shape,
    subchunk_shape: Shape,
    data_type: &'static str,
    fill_value: Value,
    /// Whether the values of constant subchunks differ from the fill value only in their bits: a
    /// zero of the other sign, or another NaN.
    is_near_fill: bool,
    codecs: Value,
    index_codecs: Value,
    index_location: &'static str,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            shape: &[30, 40, 30],
            shard_shape: &[16, 24, 24],
            subchunk_shape: &[8, 8, 12],
            data_type: "uint16",
            fill_value: json!(0),
            is_near_fill: false,
            codecs: json!([bytes("little")]),
            index_codecs: json!([bytes("little"), crc32c()]),
            index_location: "end",
        }
    }
}

impl Draft {
    fn finish(self, name: impl Into<String>) -> Case {
        let sharding = json!({
            "chunk_shape": self.subchunk_shape,
            "codecs": self.codecs,
            "index_codecs": self.index_codecs,
            "index_location": self.index_location,
        });
        let metadata = json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": self.shape,
            "data_type": self.data_type,
            "chunk_grid": named("regular", json!({ "chunk_shape": self.shard_shape })),
            "chunk_key_encoding": named("default", json!({ "separator": "/" })),
            "fill_value": self.fill_value,
            "codecs": [named("sharding_indexed", sharding)],
        });
        Case {
            name: name.into(),
            shape: self.shape,
            metadata,
            empty_shard: self.empty_shard(),
            values: self.values(),
        }
    }

    /// The last shard, if there are several.
    fn empty_shard(&self) -> Option<Vec<u64>> {
        let shard = index_of(self.shape.iter().map(|n| n - 1), self.shard_shape);
        shard.iter().any(|&at| at > 0).then_some(shard)
    }

    /// The values of each subchunk are one of: only the fill value, one other value, a ramp, noise.
    fn values(&self) -> Vec<u8> {
        let fill = self.fill_element();
        let constant = self.constant_element();
        let empty_shard = self.empty_shard();
        let mut out = Vec::new();
        let indices = ArraySubset::new_with_shape(self.shape.to_vec()).indices();
        for (number, index) in (0..).zip(&indices) {
            let shard = index_of(index.iter().copied(), self.shard_shape);
            let subchunk = index_of(index.iter().copied(), self.subchunk_shape);
            match subchunk.iter().fold(7, |hash, at| mix(hash ^ at)) % 4 {
                _ if Some(shard) == empty_shard => out.extend(&fill),
                0 => out.extend(&fill),
                1 => out.extend(&constant),
                2 => out.extend(self.element(index.iter().sum::<u64>() * 3)),
                _ => out.extend(self.element(mix(number) >> 16)),
            }
        }
        out
    }

    fn element(&self, number: u64) -> Vec<u8> {
        #[expect(clippy::cast_precision_loss, reason = "any value will do")]
        let float = (number % 0xff_ffff) as f64 / 64.0 - 1000.0;
        #[expect(clippy::cast_possible_truncation, reason = "any value will do")]
        let single = float as f32;
        match self.data_type {
            "bool" => vec![u8::from(number % 3 == 1)],
            "uint8" => number.to_le_bytes()[..1].to_vec(),
            "int16" | "uint16" => number.to_le_bytes()[..2].to_vec(),
            "uint32" => number.to_le_bytes()[..4].to_vec(),
            "int64" => number.to_le_bytes().to_vec(),
            "float32" => single.to_le_bytes().to_vec(),
            "float64" => float.to_le_bytes().to_vec(),
            "complex64" => [single.to_le_bytes(), (-single).to_le_bytes()].concat(),
            other => panic!("no values for {other}"),
        }
    }

    fn fill_element(&self) -> Vec<u8> {
        let double = |value: &Value| match value.as_str() {
            Some(text) => text.parse().unwrap(),
            None => value.as_f64().unwrap(),
        };
        let single = |value: &Value| match value.as_str().and_then(|text| text.strip_prefix("0x")) {
            Some(bits) => u32::from_str_radix(bits, 16).unwrap().to_le_bytes(),
            #[expect(clippy::cast_possible_truncation, reason = "written for this type")]
            None => (double(value) as f32).to_le_bytes(),
        };
        match (self.data_type, &self.fill_value) {
            ("bool", value) => vec![u8::from(value.as_bool().unwrap())],
            ("float32", value) => single(value).to_vec(),
            ("float64", value) => double(value).to_le_bytes().to_vec(),
            ("complex64", value) => [single(&value[0]), single(&value[1])].concat(),
            (_, value) => {
                let size = self.element(0).len();
                value.as_i64().unwrap().to_le_bytes()[..size].to_vec()
            }
        }
    }

    fn constant_element(&self) -> Vec<u8> {
        let mut element = self.fill_element();
        let sign = element.last_mut().unwrap();
        match (self.data_type, self.is_near_fill) {
            // From the fill value 0 to 2, or from NaN to 1.5.
            ("float32" | "float64" | "complex64", false) => *sign ^= 0x40,
            // From 0.0 to -0.0, or to another NaN.
            ("float32" | "float64" | "complex64", true) => *sign ^= 0x80,
            _ => element[0] ^= 1,
        }
        element
    }
}

/// Every case. The name says what is special.
pub(crate) fn all() -> &'static [Case] {
    static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
        let shaped = shapes().chain(indexes()).chain(nested());
        chains().chain(data_types()).chain(shaped).collect()
    });
    &CASES
}

fn chains() -> impl Iterator<Item = Case> {
    let (little, big) = (bytes("little"), bytes("big"));
    let lz4 = |level| blosc("lz4", level, "shuffle", 2, 0);
    let chains = [
        ("none", json!([little])),
        ("big_endian", json!([big])),
        ("crc32c", json!([little, crc32c()])),
        ("big_endian_crc32c", json!([big, crc32c()])),
        ("zstd_1", json!([little, zstd(1, false)])),
        ("zstd_3", json!([little, zstd(3, false)])),
        ("zstd_1_checksum", json!([little, zstd(1, true)])),
        ("zstd_3_checksum", json!([little, zstd(3, true)])),
        ("zstd_crc32c", json!([little, zstd(3, false), crc32c()])),
        ("gzip_1", json!([little, gzip(1)])),
        ("gzip_6", json!([little, gzip(6)])),
        ("gzip_crc32c", json!([little, gzip(6), crc32c()])),
        ("big_endian_gzip", json!([big, gzip(1)])),
        ("transpose", json!([order([2, 0, 1]), little])),
        ("transpose_reversed", json!([order([2, 1, 0]), little])),
        ("transpose_big_endian", json!([order([1, 0, 2]), big])),
        (
            "transpose_zstd",
            json!([order([1, 2, 0]), little, zstd(1, false)]),
        ),
        ("blosc_level_0", json!([little, lz4(0)])),
        ("blosc_crc32c", json!([little, lz4(5), crc32c()])),
        (
            "blosc_blocks",
            json!([little, blosc("zstd", 9, "shuffle", 2, 512)]),
        ),
    ]
    .map(|(name, codecs)| (name.to_owned(), codecs));
    let compressors = ["lz4", "lz4hc", "blosclz", "zstd", "zlib", "snappy"];
    let every_blosc = compressors.into_iter().flat_map(move |compressor| {
        ["noshuffle", "shuffle", "bitshuffle"].map(|shuffle| {
            let codecs = json!([little, blosc(compressor, 5, shuffle, 2, 0)]);
            (format!("blosc_{compressor}_{shuffle}"), codecs)
        })
    });
    chains.into_iter().chain(every_blosc).map(|(name, codecs)| {
        let draft = Draft {
            codecs,
            ..Draft::default()
        };
        draft.finish(name)
    })
}

fn data_types() -> impl Iterator<Item = Case> {
    [
        ("uint8", "uint8", json!(0)),
        ("uint8_fill", "uint8", json!(255)),
        ("int16", "int16", json!(0)),
        ("int16_fill", "int16", json!(-3)),
        ("uint16_fill", "uint16", json!(258)),
        ("uint32", "uint32", json!(0)),
        ("int64", "int64", json!(-1)),
        ("bool", "bool", json!(false)),
        ("bool_fill", "bool", json!(true)),
        ("float32", "float32", json!(0.0)),
        ("float32_fill", "float32", json!(-1.5)),
        ("float32_near_zero", "float32", json!(0.0)),
        ("float32_near_negative_zero", "float32", json!(-0.0)),
        ("float32_nan", "float32", json!("NaN")),
        ("float32_near_nan", "float32", json!("NaN")),
        ("float32_nan_payload", "float32", json!("0x7fc00123")),
        ("float64", "float64", json!(0.0)),
        ("float64_near_negative_zero", "float64", json!(-0.0)),
        ("float64_nan", "float64", json!("NaN")),
        ("float64_near_nan", "float64", json!("NaN")),
        ("complex64", "complex64", json!([0.0, 0.0])),
        ("complex64_near_zero", "complex64", json!([0.0, 0.0])),
        ("complex64_nan", "complex64", json!([-0.0, "NaN"])),
        ("complex64_near_nan", "complex64", json!([-0.0, "NaN"])),
    ]
    .into_iter()
    .flat_map(|(name, data_type, fill_value)| {
        let typesize = match data_type {
            "bool" | "uint8" => 1,
            "int16" | "uint16" => 2,
            "uint32" | "float32" => 4,
            _ => 8,
        };
        let blosc = blosc("lz4", 5, "bitshuffle", typesize, 0);
        [
            (name.to_owned(), json!([bytes("big")])),
            (format!("{name}_blosc"), json!([bytes("little"), blosc])),
        ]
        .map(|(name, codecs)| {
            let draft = Draft {
                data_type,
                fill_value: fill_value.clone(),
                is_near_fill: name.contains("near"),
                codecs,
                ..Draft::default()
            };
            draft.finish(name)
        })
    })
}

/// The shapes of array, shard and subchunk.
const SHAPES: [(&str, Shape, Shape, Shape); 6] = [
    ("one_dimension", &[3000], &[900], &[300]),
    ("two_dimensions", &[70, 90], &[32, 40], &[16, 8]),
    (
        "four_dimensions",
        &[3, 10, 13, 9],
        &[2, 4, 6, 6],
        &[1, 2, 3, 6],
    ),
    ("one_subchunk", &[30, 40], &[8, 12], &[8, 12]),
    ("large_shard", &[30, 40], &[64, 64], &[8, 16]),
    ("small_subchunks", &[20, 20], &[10, 8], &[1, 1]),
];

fn shapes() -> impl Iterator<Item = Case> {
    SHAPES
        .into_iter()
        .flat_map(|(name, shape, shard_shape, subchunk_shape)| {
            let zstd = zstd(1, false);
            [
                (name.to_owned(), json!([bytes("little")])),
                (format!("{name}_zstd"), json!([bytes("little"), zstd])),
            ]
            .map(|(name, codecs)| {
                let draft = Draft {
                    shape,
                    shard_shape,
                    subchunk_shape,
                    codecs,
                    ..Draft::default()
                };
                draft.finish(name)
            })
        })
}

fn indexes() -> impl Iterator<Item = Case> {
    let zstd = json!([bytes("little"), zstd(1, false)]);
    let bare = json!([bytes("little")]);
    let checked = json!([bytes("little"), crc32c()]);
    let big_endian = json!([bytes("big"), crc32c()]);
    [
        ("index_at_start", "start", &bare, &checked),
        ("index_at_start_zstd", "start", &zstd, &checked),
        ("index_at_start_without_crc32c", "start", &bare, &bare),
        ("index_without_crc32c", "end", &bare, &bare),
        ("index_big_endian", "end", &bare, &big_endian),
    ]
    .map(|(name, index_location, codecs, index_codecs)| {
        let draft = Draft {
            codecs: codecs.clone(),
            index_codecs: index_codecs.clone(),
            index_location,
            ..Draft::default()
        };
        draft.finish(name)
    })
    .into_iter()
}

fn nested() -> impl Iterator<Item = Case> {
    [
        ("nested", "end", json!([bytes("little")])),
        (
            "nested_zstd",
            "end",
            json!([bytes("little"), zstd(1, false)]),
        ),
        ("nested_index_at_start", "start", json!([bytes("big")])),
    ]
    .map(|(name, index_location, codecs)| {
        let inner = json!({
            "chunk_shape": [4, 4, 6],
            "codecs": codecs,
            "index_codecs": [bytes("little"), crc32c()],
            "index_location": index_location,
        });
        let draft = Draft {
            codecs: json!([named("sharding_indexed", inner)]),
            index_location,
            ..Draft::default()
        };
        draft.finish(name)
    })
    .into_iter()
}

/// Metadata of an extension, such as a codec.
fn named(name: &str, configuration: Value) -> Value {
    let mut metadata = json!({ "name": name });
    metadata["configuration"] = configuration;
    metadata
}

fn bytes(endian: &str) -> Value {
    named("bytes", json!({ "endian": endian }))
}

fn crc32c() -> Value {
    json!({ "name": "crc32c" })
}

fn order(order: [usize; 3]) -> Value {
    named("transpose", json!({ "order": order }))
}

fn gzip(level: u32) -> Value {
    named("gzip", json!({ "level": level }))
}

fn zstd(level: i32, checksum: bool) -> Value {
    named("zstd", json!({ "level": level, "checksum": checksum }))
}

fn blosc(cname: &str, clevel: u8, shuffle: &str, typesize: usize, blocksize: usize) -> Value {
    let configuration = json!({
        "cname": cname,
        "clevel": clevel,
        "shuffle": shuffle,
        "typesize": typesize,
        "blocksize": blocksize,
    });
    named("blosc", configuration)
}

/// The index of the cell that contains an element.
fn index_of(element: impl Iterator<Item = u64>, cell: &[u64]) -> Vec<u64> {
    element.zip(cell).map(|(at, size)| at / size).collect()
}

/// Pseudorandom numbers (`SplitMix64`).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
