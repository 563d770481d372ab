//! Streams to append, as data: the array, its content, and the pieces.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;
use zarrs::array::chunk_key_encoding::DefaultChunkKeyEncoding;
use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{Array, ArrayBuilder, ArraySubset, CodecOptions, FillValue};
use zarrs::metadata::ChunkKeySeparator;
use zarrs_codec::ArrayToBytesCodecTraits;
use zarrs_cuda::{Backend, CudaShardingCodec, Options};

use super::content::Density;
use zarrs_cuda_testing::index::IndexLayout;
use zarrs_cuda_testing::types::Type;
use zarrs_cuda_testing::{Rng, Shards, codecs, types};

/// The name of each chain, and whether zarrs' codec encodes it to the same bytes.
pub(crate) const CHAINS: [(&str, bool); 16] = [
    ("none", true),
    ("big-endian", true),
    ("transpose", true),
    ("crc32c", true),
    ("transpose, big-endian, crc32c", true),
    ("crc32c, crc32c", true),
    ("unknown codec", true),
    ("nested", true),
    ("zstd", false),
    ("zstd, crc32c", false),
    ("blosc lz4", false),
    ("blosc zstd", false),
    ("gzip", false),
    ("transpose, zstd", false),
    ("unknown codec without a bound", true),
    ("nested zstd, gzip", false),
];

const DATA_TYPES: [&str; 8] = [
    "uint8",
    "uint16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bool",
    "r24",
];

/// The destination of the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Memory,
    /// A store that keeps the given `Bytes`.
    Kept,
    /// The same store; shards grow in temporaries.
    KeptAndRenamed,
    Files,
    /// Files; shards grow in temporaries.
    FilesRenamed,
}

/// The next piece to append.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece {
    /// This many bytes, ending anywhere.
    Bytes(usize),
    /// This many elements. They are appended as elements unless the last piece ended within one.
    Elements(usize),
    Slices(usize),
    Epochs(usize),
    /// Slices, as an `ndarray` view.
    View(usize),
    /// The remaining bytes, but at most this many, without waiting.
    TryBytes(usize),
    TryElements(usize),
    /// No data: stores everything that is complete.
    Flush,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) shards: Shards,
    pub(crate) chain: usize,
    /// The extents of all axes but the first, in elements.
    pub(crate) inner: Vec<u64>,
    /// The number of slices that the array has before.
    pub(crate) existing: u64,
    /// The first slice; `None` lets the writer choose.
    pub(crate) start: Option<u64>,
    /// Whether the writer goes on behind the existing slices, also within a shard.
    pub(crate) resumes: bool,
    /// The number of slices to append.
    pub(crate) slices: u64,
    pub(crate) density: Density,
    pub(crate) seed: u64,
    pub(crate) store_empty: bool,
    pub(crate) dots: bool,
    pub(crate) epochs_per_batch: Option<usize>,
    pub(crate) store_threads: usize,
    pub(crate) threads: usize,
    /// The pieces, which repeat until everything is appended.
    pub(crate) pieces: Vec<Piece>,
    pub(crate) place: Place,
}

impl Case {
    pub(crate) fn canonical(&self) -> bool {
        CHAINS[self.chain].1
    }

    pub(crate) fn options(&self) -> CodecOptions {
        CodecOptions::default()
            .with_concurrent_target(self.threads)
            .with_store_empty_chunks(self.store_empty)
    }

    /// The shape of an array with this many slices.
    pub(crate) fn shape(&self, slices: u64) -> Vec<u64> {
        std::iter::once(slices).chain(self.inner.clone()).collect()
    }

    pub(crate) fn subset(&self, start: u64, slices: u64) -> ArraySubset {
        let mut ranges = vec![start..start + slices];
        ranges.extend(self.inner.iter().map(|&extent| 0..extent));
        ArraySubset::new_with_ranges(&ranges)
    }

    pub(crate) fn slice_elements(&self) -> usize {
        usize::try_from(self.inner.iter().product::<u64>()).unwrap()
    }

    pub(crate) fn slice_bytes(&self) -> usize {
        self.slice_elements() * self.shards.fill.len()
    }

    /// The name of the data type in metadata.
    pub(crate) fn type_name(&self) -> String {
        let name = self.shards.data_type.name_v3();
        name.unwrap().into_owned()
    }

    /// The index of the first slice to write.
    pub(crate) fn first(&self) -> u64 {
        self.start.unwrap_or(self.existing)
    }

    /// The border of a shard from which on the writer writes shards.
    pub(crate) fn border(&self) -> u64 {
        self.first() / self.shards.shape[0] * self.shards.shape[0]
    }

    /// The slices of the shards that the writer writes: those that are appended, and those that are read back.
    pub(crate) fn rewritten(&self) -> std::ops::Range<u64> {
        let end = self.first() + self.slices;
        if self.slices == 0 {
            end..end
        } else {
            self.border()..end
        }
    }

    /// The array with this many slices, with zarrs' codec.
    pub(crate) fn stock<S: ?Sized>(&self, store: &Arc<S>, slices: u64) -> Array<S> {
        self.array(store, slices, self.shards.stock())
    }

    /// The array with this many slices, with our codec.
    pub(crate) fn ours<S: ?Sized>(&self, store: &Arc<S>, slices: u64) -> Array<S> {
        let options = Options::default().with_backend(Backend::Host);
        let codec =
            CudaShardingCodec::new_with_configuration(&self.shards.configuration(), options);
        self.array(store, slices, Arc::new(codec.unwrap()))
    }

    fn array<S: ?Sized>(
        &self,
        store: &Arc<S>,
        slices: u64,
        codec: Arc<dyn ArrayToBytesCodecTraits>,
    ) -> Array<S> {
        let separator = if self.dots {
            ChunkKeySeparator::Dot
        } else {
            ChunkKeySeparator::Slash
        };
        let attributes = serde_json::json!({ "made": "by hand", "numbers": [1, 2.5] });
        ArrayBuilder::new(
            self.shape(slices),
            self.shards.shape.clone(),
            self.shards.data_type.clone(),
            FillValue::new(self.shards.fill.clone()),
        )
        .array_to_bytes_codec(codec)
        .chunk_key_encoding(DefaultChunkKeyEncoding::new(separator))
        .attributes(attributes.as_object().unwrap().clone())
        .build(store.clone(), "/array")
        .unwrap()
    }
}

/// The codecs of a chain, as metadata.
fn chain(name: &str, subchunk: &[u64], element_size: usize) -> Vec<Value> {
    let little = codecs::bytes("little");
    let zstd = codecs::zstd(1, false);
    let reverse: Vec<usize> = (0..subchunk.len()).rev().collect();
    // Halves if the extent is even.
    let half = |d: &u64| if d.is_multiple_of(2) { d / 2 } else { *d };
    let half: Vec<u64> = subchunk.iter().map(half).collect();
    match name {
        "none" => vec![little],
        "big-endian" => vec![codecs::bytes("big")],
        "transpose" => vec![codecs::transpose(&reverse), little],
        "crc32c" => vec![little, codecs::crc32c()],
        "crc32c, crc32c" => vec![little, codecs::crc32c(), codecs::crc32c()],
        "transpose, big-endian, crc32c" => vec![
            codecs::transpose(&reverse),
            codecs::bytes("big"),
            codecs::crc32c(),
        ],
        "unknown codec" => vec![little, codecs::xor()],
        "nested" => vec![codecs::sharding(&half, &[little])],
        "zstd" => vec![little, zstd],
        "zstd, crc32c" => vec![little, zstd, codecs::crc32c()],
        "blosc lz4" => vec![little, codecs::blosc("lz4", 5, "shuffle", element_size)],
        "blosc zstd" => vec![little, codecs::blosc("zstd", 1, "bitshuffle", element_size)],
        "gzip" => vec![little, codecs::gzip(3)],
        "transpose, zstd" => vec![codecs::transpose(&reverse), little, zstd],
        "unknown codec without a bound" => vec![little, codecs::padding()],
        "nested zstd, gzip" => vec![codecs::sharding(&half, &[little, zstd]), codecs::gzip(1)],
        other => panic!("no chain {other}"),
    }
}

/// For each axis: extent, subchunk, subchunks per shard. The first extent is the number of slices
/// to append.
fn axes() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    let first = (0..=26_u64, 1..=4_u64, prop_oneof![1..=4_u64, 5..=12_u64]);
    let other = prop_oneof![
        5 => (1..=13_u64, 1..=5_u64, 1..=3_u64),
        1 => (Just(1_u64), 1..=5_u64, 1..=3_u64),
    ];
    (first, proptest::collection::vec(other, 0..=3)).prop_map(|(first, mut inner)| {
        // Limits the numbers of elements in the array and in a shard.
        let (mut elements, mut shard) = (1, 1);
        for (extent, subchunk, per_shard) in &mut inner {
            if elements * *extent > 130 {
                *extent = 1;
            }
            if shard * *subchunk * *per_shard > 130 {
                (*subchunk, *per_shard) = (1, 1);
            }
            elements *= *extent;
            shard *= *subchunk * *per_shard;
        }
        std::iter::once(first).chain(inner).collect()
    })
}

fn piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        1 => (1..=9_usize).prop_map(Piece::Bytes),
        3 => (1..=3000_usize).prop_map(Piece::Bytes),
        2 => (1..=700_usize).prop_map(Piece::Elements),
        3 => (1..=9_usize).prop_map(Piece::Slices),
        3 => (1..=9_usize).prop_map(Piece::Epochs),
        1 => (1..=9_usize).prop_map(Piece::View),
        1 => (1..=3000_usize).prop_map(Piece::TryBytes),
        1 => (1..=700_usize).prop_map(Piece::TryElements),
        1 => Just(Piece::Flush),
    ]
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        3 => Just(Place::Memory),
        3 => Just(Place::Kept),
        3 => Just(Place::KeptAndRenamed),
        1 => Just(Place::Files),
        1 => Just(Place::FilesRenamed),
    ]
}

fn fill(data_type: &Type, kind: u8, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = match kind {
        0 => vec![0; data_type.size()],
        1 => data_type.element(rng),
        // -0.0
        2 => {
            let mut bytes = vec![0; data_type.size()];
            *bytes.last_mut().unwrap() = 0x80;
            bytes
        }
        // A NaN with a payload.
        _ => {
            let mut bytes = vec![0xFF; data_type.size()];
            bytes[0] = rng.byte() | 1;
            bytes
        }
    };
    data_type.normalise(&mut bytes);
    bytes
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    let elements = (
        0..DATA_TYPES.len(),
        0..=3_u8,
        prop_oneof![
            1 => Just(Density::Empty),
            5 => Just(Density::Holes),
            4 => Just(Density::Full),
        ],
        any::<u64>(),
    );
    let layout = (
        0..CHAINS.len(),
        any::<[bool; 4]>(),
        proptest::bool::weighted(0.15),
    );
    // In slices and in shard epochs: the existing slices, and the first slice to write; `None` to resume.
    let before = prop_oneof![
        3 => Just((0_u64, Some(0_u64))),
        3 => (0..=20_u64, (0..=3_u64).prop_map(Some)),
        4 => (0..=20_u64, Just(None)),
    ];
    let writer = (
        proptest::option::weighted(0.7, 1..=14_usize),
        1..=4_usize,
        1..=3_usize,
        proptest::collection::vec(piece(), 1..=6),
        place(),
    );
    (axes(), elements, layout, before, writer).prop_map(
        |(axes, (data_type, fill_kind, density, seed), layout, before, writer)| {
            let (chain_number, [start, big_endian, checksum, dots], store_empty) = layout;
            let (epochs_per_batch, store_threads, threads, pieces, place) = writer;
            let data_type = types::named(DATA_TYPES[data_type]);
            let subchunk: Vec<u64> = axes.iter().map(|(_, extent, _)| *extent).collect();
            let shards = Shards {
                shape: axes.iter().map(|(_, extent, per)| extent * per).collect(),
                fill: fill(&data_type, fill_kind, &mut Rng(seed)),
                codecs: chain(CHAINS[chain_number].0, &subchunk, data_type.size()),
                subchunk,
                data_type: data_type.data_type,
                index: IndexLayout {
                    location: if start {
                        ShardingIndexLocation::Start
                    } else {
                        ShardingIndexLocation::End
                    },
                    big_endian,
                    checksum,
                },
            };
            let (existing, start) = before;
            let whole = existing / shards.shape[0];
            let begin = start.map(|start| start.min(whole) * shards.shape[0]);
            Case {
                inner: axes[1..].iter().map(|(extent, ..)| *extent).collect(),
                existing,
                start: begin.filter(|begin| *begin != existing || start == Some(3)),
                resumes: start.is_none(),
                slices: axes[0].0,
                shards,
                chain: chain_number,
                density,
                seed,
                store_empty,
                dots,
                epochs_per_batch,
                store_threads,
                threads,
                pieces,
                place,
            }
        },
    )
}
