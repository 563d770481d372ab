//! Comparisons with zarrs' own codec. Each codec reads the other's output. Without a compressor
//! both write the same bytes.
//!
//! This process never registers our codec, so that zarrs' codec is zarrs' code entirely, also in
//! nested sharding.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use zarrs::array::codec::{ShardingCodec, ShardingIndexLocation};
use zarrs::array::{
    Array, ArrayBuilder, ArrayBytes, ArraySubset, BytesRepresentation, FillValue, Indexer,
    data_type,
};
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{
    AsyncReadableStorageTraits, AsyncReadableWritableStorage, ReadableStorageTraits,
    ReadableWritableStorage, StoreKey,
};
use zarrs_codec::{
    ArrayCodecTraits, ArrayPartialEncoderTraits, ArrayToBytesCodecTraits, BytesToBytesCodecTraits,
    CodecError, CodecOptions, StoragePartialEncoder,
};
use zarrs_cuda::{CudaShardingCodec, CudaShardingCodecBuilder};

use zarrs_cuda_testing::index::{EMPTY, IndexLayout};
use zarrs_cuda_testing::types::{self, Type};
use zarrs_cuda_testing::{Rng, Shards, all_indices, chunk_shape, codecs, effort};

/// Which subchunks of a shard hold only the fill value.
#[derive(Clone, Copy, Debug)]
enum Empty {
    All,
    Some,
    None,
    /// None, but only a look at every element shows it.
    Almost,
}

/// The fill value.
#[derive(Clone, Copy, Debug)]
enum Fill {
    Zero,
    Random,
    /// Only the last bit of the first or last byte: −0.0 in some types and byte orders.
    SignBit,
    /// A NaN with a payload, in the types that have one.
    Nan,
}

#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    Transpose,
    TwoTransposes,
    FixedScaleOffset,
    Reshape,
    Squeeze,
}

#[derive(Clone, Copy, Debug)]
enum ToBytes {
    Little,
    Big,
    Packbits,
    Sharding,
}

#[derive(Clone, Debug)]
enum After {
    Crc32c,
    Zstd(i32, bool),
    Gzip(u32),
    Blosc(usize, u8, usize, usize),
    Shuffle(usize),
    Xor,
}

/// A shard to encode, and its codecs.
#[derive(Clone, Debug)]
struct Case {
    shards: Shards,
    elements: Vec<u8>,
    /// Whether the codecs are lossless.
    lossless: bool,
    /// Whether equal elements always have the same encoding, with either codec.
    canonical: bool,
    store_empty: bool,
    seed: u64,
}

/// For each axis: the number of subchunks, and the elements of each.
fn axes() -> impl Strategy<Value = Vec<(u64, u64)>> {
    (0..=6_usize).prop_flat_map(|dimensions| {
        let most = [9, 9, 4, 3, 2, 2, 2_u64][dimensions];
        proptest::collection::vec((1..=most, 1..=most), dimensions).prop_map(|mut axes| {
            let mut elements = 1;
            for (count, extent) in &mut axes {
                if elements * *count * *extent > 700 {
                    (*count, *extent) = (1, 1);
                }
                elements *= *count * *extent;
            }
            axes
        })
    })
}

fn before() -> impl Strategy<Value = Before> {
    prop_oneof![
        4 => Just(Before::Nothing),
        3 => Just(Before::Transpose),
        1 => Just(Before::TwoTransposes),
        1 => Just(Before::FixedScaleOffset),
        1 => Just(Before::Reshape),
        1 => Just(Before::Squeeze),
    ]
}

fn to_bytes() -> impl Strategy<Value = ToBytes> {
    prop_oneof![
        3 => Just(ToBytes::Little),
        3 => Just(ToBytes::Big),
        1 => Just(ToBytes::Packbits),
        2 => Just(ToBytes::Sharding),
    ]
}

fn after() -> impl Strategy<Value = After> {
    let zstd = (-5..=9_i32, any::<bool>());
    let blosc = (0..6_usize, 0..=9_u8, 0..3_usize, 1..=16_usize);
    prop_oneof![
        3 => Just(After::Crc32c),
        3 => zstd.prop_map(|(level, checksum)| After::Zstd(level, checksum)),
        3 => (0..=9_u32).prop_map(After::Gzip),
        3 => blosc.prop_map(|(cname, level, shuffle, typesize)| {
            After::Blosc(cname, level, shuffle, typesize)
        }),
        1 => (1..=4_usize).prop_map(After::Shuffle),
        1 => Just(After::Xor),
    ]
}

fn index() -> impl Strategy<Value = IndexLayout> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(start, big_endian, checksum)| {
        IndexLayout {
            location: if start {
                ShardingIndexLocation::Start
            } else {
                ShardingIndexLocation::End
            },
            big_endian,
            checksum,
        }
    })
}

fn case() -> impl Strategy<Value = Case> {
    let contents = (
        prop_oneof![
            1 => Just(Empty::All),
            4 => Just(Empty::Some),
            2 => Just(Empty::None),
            2 => Just(Empty::Almost)
        ],
        prop_oneof![
            Just(Fill::Zero),
            Just(Fill::Random),
            Just(Fill::SignBit),
            Just(Fill::Nan)
        ],
        proptest::bool::weighted(0.2),
        any::<u64>(),
    );
    let chain = (
        before(),
        to_bytes(),
        proptest::collection::vec(after(), 0..=2),
    );
    (0..types::fixed().len(), axes(), chain, index(), contents).prop_map(
        |(data_type, axes, (before, to_bytes, after), index, (empty, fill, store_empty, seed))| {
            let mut rng = Rng(seed);
            let data_type = types::fixed().swap_remove(data_type);
            let subchunk: Vec<u64> = axes.iter().map(|(_, extent)| *extent).collect();
            let chain = Chain::new(&subchunk, &data_type, before, to_bytes, &after, &mut rng);
            let shards = Shards {
                shape: axes.iter().map(|(count, extent)| count * extent).collect(),
                subchunk,
                fill: fill_bytes(&data_type, fill, &mut rng),
                data_type: data_type.data_type.clone(),
                codecs: chain.codecs,
                index,
            };
            Case {
                elements: elements(&shards, &data_type, empty, &mut rng),
                lossless: chain.lossless,
                canonical: chain.canonical && !store_empty,
                shards,
                store_empty,
                seed,
            }
        },
    )
}

/// The subchunks' codecs.
struct Chain {
    codecs: Vec<Value>,
    lossless: bool,
    canonical: bool,
}

impl Chain {
    fn new(
        subchunk: &[u64],
        data_type: &Type,
        before: Before,
        to_bytes: ToBytes,
        after: &[After],
        rng: &mut Rng,
    ) -> Self {
        let mut chain = Self {
            codecs: Vec::new(),
            lossless: true,
            canonical: true,
        };
        // The shape of the encoded subchunk, if it has as many dimensions.
        let mut shape = Some(subchunk.to_vec());
        let transposes = match before {
            // A transpose of no axes is invalid.
            _ if subchunk.is_empty() => 0,
            Before::Transpose => 1,
            Before::TwoTransposes => 2,
            _ => 0,
        };
        for _ in 0..transposes {
            let order = rng.permutation(subchunk.len());
            shape = shape.map(|shape| order.iter().map(|&axis| shape[axis]).collect());
            chain.codecs.push(codecs::transpose(&order));
        }
        match before {
            Before::FixedScaleOffset => {
                if let Some(dtype) = data_type.numpy() {
                    chain.lossless = false;
                    chain.codecs.push(json!({
                        "name": "numcodecs.fixedscaleoffset",
                        "configuration": { "offset": 3, "scale": 2, "dtype": dtype }
                    }));
                }
            }
            Before::Reshape if !subchunk.is_empty() => {
                shape = None;
                let configuration = json!({ "shape": [-1] });
                let reshape = json!({ "name": "reshape", "configuration": configuration });
                chain.codecs.push(reshape);
            }
            Before::Squeeze => {
                shape = None;
                let squeeze = json!({ "name": "zarrs.squeeze", "configuration": {} });
                chain.codecs.push(squeeze);
            }
            _ => {}
        }
        chain.codecs.push(match (to_bytes, shape) {
            (ToBytes::Little, _) => codecs::bytes("little"),
            (ToBytes::Sharding, Some(shape)) => {
                let inner: Vec<u64> = shape.iter().map(|&d| divisor(d, rng)).collect();
                let mut nested = vec![codecs::bytes("little")];
                if rng.one_in(2) {
                    nested.push(codecs::zstd(1, false));
                    chain.canonical = false;
                }
                codecs::sharding(&inner, &nested)
            }
            (ToBytes::Packbits, _) => codecs::packbits(),
            (ToBytes::Big | ToBytes::Sharding, _) => codecs::bytes("big"),
        });
        for codec in after {
            if matches!(codec, After::Shuffle(_)) && !chain.canonical {
                // Whether a shuffle fails depends on the size of its input, which varies here.
                continue;
            }
            chain.canonical &= matches!(codec, After::Crc32c | After::Shuffle(_) | After::Xor);
            chain.codecs.push(match *codec {
                After::Crc32c => codecs::crc32c(),
                After::Zstd(level, checksum) => codecs::zstd(level, checksum),
                After::Gzip(level) => codecs::gzip(level),
                After::Blosc(cname, level, shuffle, typesize) => codecs::blosc(
                    codecs::BLOSC_COMPRESSORS[cname],
                    level,
                    codecs::BLOSC_SHUFFLES[shuffle],
                    typesize,
                ),
                After::Shuffle(size) if data_type.size().is_multiple_of(size) => {
                    codecs::shuffle(size)
                }
                After::Shuffle(_) => codecs::shuffle(data_type.size()),
                After::Xor => codecs::xor(),
            });
        }
        chain
    }
}

/// A random divisor of `n`.
fn divisor(n: u64, rng: &mut Rng) -> u64 {
    let divisors: Vec<u64> = (1..=n).filter(|d| n.is_multiple_of(*d)).collect();
    divisors[usize::try_from(rng.below(divisors.len() as u64)).unwrap()]
}

fn fill_bytes(data_type: &Type, fill: Fill, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = match fill {
        Fill::Zero => vec![0; data_type.size()],
        Fill::Random => data_type.element(rng),
        Fill::SignBit => {
            let mut bytes = vec![0; data_type.size()];
            *bytes.last_mut().unwrap() = 0x80;
            bytes
        }
        Fill::Nan => {
            let mut bytes = vec![0xFF; data_type.size()];
            bytes[0] = rng.byte() | 1;
            bytes
        }
    };
    data_type.normalise(&mut bytes);
    bytes
}

fn elements(shards: &Shards, data_type: &Type, empty: Empty, rng: &mut Rng) -> Vec<u8> {
    let stored: Vec<bool> = (0..shards.num_subchunks())
        .map(|_| match empty {
            Empty::All => false,
            Empty::Some => rng.one_in(2),
            Empty::None | Empty::Almost => true,
        })
        .collect();
    // Few different values, so that they compress, and zeros of both signs.
    let mut values: Vec<Vec<u8>> = (0..6).map(|_| data_type.element(rng)).collect();
    values.push(fill_bytes(data_type, Fill::Zero, rng));
    values.push(fill_bytes(data_type, Fill::SignBit, rng));
    all_indices(&shards.shape)
        .flat_map(|indices| {
            let keep = matches!(empty, Empty::Almost) && !rng.one_in(16);
            if keep || !stored[shards.subchunk_of(&indices)] {
                shards.fill.clone()
            } else {
                values[usize::try_from(rng.below(values.len() as u64)).unwrap()].clone()
            }
        })
        .collect()
}

/// Random boxes of an array.
fn subsets(shape: &[u64], number: usize, rng: &mut Rng) -> Vec<ArraySubset> {
    (0..number)
        .map(|_| {
            let ranges: Vec<_> = shape
                .iter()
                .map(|&d| {
                    let start = rng.below(d + 1);
                    // Sometimes the box is empty.
                    let least = u64::from(start < d && !rng.one_in(20));
                    start..start + least + rng.below(d - start + 1 - least)
                })
                .collect();
            ArraySubset::new_with_ranges(&ranges)
        })
        .collect()
}

/// Random elements of an array, in random order and with repetitions.
fn points(shape: &[u64], number: u64, rng: &mut Rng) -> Vec<Vec<u64>> {
    (0..=rng.below(number))
        .map(|_| shape.iter().map(|&d| rng.below(d)).collect())
        .collect()
}

/// Indexers for parts of an array.
fn indexers(shape: &[u64], rng: &mut Rng) -> Vec<Box<dyn Indexer>> {
    let mut indexers: Vec<Box<dyn Indexer>> = vec![
        Box::new(ArraySubset::new_with_shape(shape.to_vec())),
        Box::new(points(shape, 9, rng)),
        Box::new(points(shape, 99, rng)),
        Box::new(subsets(shape, 3, rng)),
    ];
    for subset in subsets(shape, 4, rng) {
        indexers.push(Box::new(subset));
    }
    indexers
}

/// Whether the error is a known bug: zarrs allocates too little memory for the subchunks of some
/// codecs.
fn is_stock_bug(error: &CodecError) -> bool {
    error
        .to_string()
        .contains("did not allocate a large enough buffer")
}

/// zarrs' options, for shards that are the same in every run.
fn options(case: &Case) -> CodecOptions {
    CodecOptions::default()
        .with_concurrent_target(1)
        .with_store_empty_chunks(case.store_empty)
}

fn check(case: &Case) {
    let Case { shards, .. } = case;
    let options = options(case);
    let (ours, stock) = match (shards.try_ours(), shards.try_stock()) {
        (Ok(ours), Ok(stock)) => (ours, stock),
        (ours, stock) => {
            assert_eq!(ours.is_ok(), stock.is_ok(), "{ours:?}\n{stock:?}");
            return;
        }
    };
    let by_ours = shards.encode(ours.as_ref(), &case.elements, &options);
    let by_stock = shards.encode(stock.as_ref(), &case.elements, &options);
    let (by_ours, by_stock) = match (by_ours, by_stock) {
        (Ok(by_ours), Ok(by_stock)) => (by_ours, Some(by_stock)),
        (Ok(by_ours), Err(error)) if is_stock_bug(&error) => (by_ours, None),
        (by_ours, by_stock) => {
            // If a chain cannot encode this type, neither codec can. zarrs does not notice if it
            // has nothing to store.
            let agreed = by_ours.is_err() && (by_stock.is_err() || case.store_empty);
            assert!(agreed, "{by_ours:?}\n{by_stock:?}");
            return;
        }
    };
    if let (true, Some(by_stock)) = (case.canonical, &by_stock) {
        assert_eq!(by_ours, *by_stock, "the same bytes");
    }
    check_layout(case, &by_ours);
    check_deterministic(case, &ours, &by_ours);
    check_sizes(case, &ours, &stock, &by_ours);

    let read = shards.decode(stock.as_ref(), &by_ours, &options).unwrap();
    if case.lossless {
        assert_eq!(read, case.elements, "what was encoded");
    }
    for encoded in [Some(by_ours), by_stock].into_iter().flatten() {
        let decoded = shards.decode(stock.as_ref(), &encoded, &options).unwrap();
        // Lossy codecs also change stored fill values, and zarrs never stores these.
        if case.lossless || !case.store_empty {
            assert_eq!(decoded, read, "what the other one wrote");
        }
        check_decode(case, &ours, &encoded, &decoded);
        check_compact(case, &ours, &stock, &encoded, &decoded);
    }
}

/// Checks that subchunks lie densely in C order, and that empty ones are stored only on request.
fn check_layout(case: &Case, encoded: &[u8]) {
    let Case { shards, .. } = case;
    let entries = shards.index.entries(encoded, shards.num_subchunks());
    let mut empty = vec![true; shards.num_subchunks()];
    let elements = case.elements.chunks(shards.element_size());
    for (element, indices) in elements.zip(all_indices(&shards.shape)) {
        empty[shards.subchunk_of(&indices)] &= element == shards.fill;
    }
    let index_size = shards.index.size(entries.len()) as u64;
    let (mut next, tail) = match shards.index.location {
        ShardingIndexLocation::Start => (index_size, 0),
        ShardingIndexLocation::End => (0, index_size),
    };
    for (entry, empty) in entries.into_iter().zip(empty) {
        if empty && !case.store_empty {
            assert_eq!(entry, EMPTY);
        } else {
            assert_eq!(entry[0], next);
            next += entry[1];
        }
    }
    assert_eq!(next + tail, encoded.len() as u64);
}

/// Checks that the bytes are the same for any number of threads.
fn check_deterministic(case: &Case, ours: &CudaShardingCodec, encoded: &[u8]) {
    for target in [2, 7, 0] {
        let options = options(case).with_concurrent_target(target);
        let again = case.shards.encode(ours, &case.elements, &options).unwrap();
        assert_eq!(again, encoded, "{target} threads");
    }
}

/// Checks the methods that zarrs calls before it encodes.
fn check_sizes(case: &Case, ours: &CudaShardingCodec, stock: &ShardingCodec, encoded: &[u8]) {
    let Case { shards, .. } = case;
    let (shape, fill_value) = (shards.chunk_shape(), shards.fill_value());
    let bound = ours
        .encoded_representation(&shape, &shards.data_type, &fill_value)
        .unwrap();
    let theirs = stock
        .encoded_representation(&shape, &shards.data_type, &fill_value)
        .unwrap();
    match bound {
        BytesRepresentation::FixedSize(size) => assert_eq!(encoded.len() as u64, size),
        BytesRepresentation::BoundedSize(size) => assert!(encoded.len() as u64 <= size),
        BytesRepresentation::UnboundedSize => assert_eq!(theirs.size(), None),
    }
    let ours_wants = ours.recommended_concurrency(&shape, &shards.data_type);
    let stock_wants = stock.recommended_concurrency(&shape, &shards.data_type);
    let (ours_wants, stock_wants) = (ours_wants.unwrap(), stock_wants.unwrap());
    assert_eq!(ours_wants.min(), stock_wants.min());
    assert_eq!(ours_wants.max(), stock_wants.max());
    assert_eq!(
        ours.partial_decode_granularity(&shape),
        stock.partial_decode_granularity(&shape)
    );
}

/// Checks that every way of decoding returns `decoded`, or a part of it.
fn check_decode(case: &Case, ours: &Arc<CudaShardingCodec>, encoded: &[u8], decoded: &[u8]) {
    let Case { shards, .. } = case;
    let options = options(case);
    for target in [1, 2, 0] {
        let options = options.with_concurrent_target(target);
        assert_eq!(
            shards.decode(ours.as_ref(), encoded, &options).unwrap(),
            decoded,
            "decode on {target} threads"
        );
    }
    assert_eq!(
        shards.decode_into(ours.clone(), encoded, &options).unwrap(),
        decoded,
        "decode_into"
    );
    let mut rng = Rng(case.seed);
    for indexer in indexers(&shards.shape, &mut rng) {
        let indexer = indexer.as_ref();
        let expected = shards.slice(decoded, indexer);
        let sync = shards.partial_decode(ours.clone(), encoded, indexer, &options);
        assert_eq!(sync.unwrap(), expected, "partial_decode");
        let asynchronous = shards.async_partial_decode(ours.clone(), encoded, indexer, &options);
        assert_eq!(asynchronous.unwrap(), expected, "async partial_decode");
    }
}

/// Checks that a dense shard needs no compaction. One with gaps is compacted to the same bytes as
/// by zarrs.
fn check_compact(
    case: &Case,
    ours: &Arc<CudaShardingCodec>,
    stock: &Arc<ShardingCodec>,
    encoded: &[u8],
    decoded: &[u8],
) {
    let Case { shards, .. } = case;
    let options = options(case);
    let compact = |codec: &dyn ArrayToBytesCodecTraits, encoded: &[u8]| {
        codec
            .compact(
                encoded.to_vec().into(),
                &shards.chunk_shape(),
                &shards.data_type,
                &shards.fill_value(),
                &options,
            )
            .unwrap()
            .map(std::borrow::Cow::into_owned)
    };
    assert_eq!(compact(ours.as_ref(), encoded), None);

    let mut rng = Rng(case.seed);
    let subchunks = shards.index.subchunks(encoded, shards.num_subchunks());
    let gaps = subchunks
        .iter()
        .cloned()
        .map(|bytes| (usize::try_from(rng.below(5)).unwrap(), bytes));
    let with_gaps = shards.index.shard(&gaps.collect::<Vec<_>>());
    assert_eq!(
        shards.decode(ours.as_ref(), &with_gaps, &options).unwrap(),
        decoded
    );
    assert_eq!(
        compact(ours.as_ref(), &with_gaps),
        compact(stock.as_ref(), &with_gaps)
    );
    assert_eq!(
        compact(ours.as_ref(), &with_gaps).is_some(),
        with_gaps.len() > encoded.len()
    );
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        max_shrink_iters: 500,
        ..effort::config(cases)
    }
}

proptest! {
    #![proptest_config(config(750))]

    /// Our codec and zarrs' agree for random chains, shapes, types, fill values and indices.
    #[test]
    fn ours_and_stock_agree(case in case()) {
        check(&case);
    }
}

/// A small shard of a type. Some subchunks are empty, and some have zeros of both signs.
fn small(data_type: &Type, codecs: Vec<Value>, seed: u64) -> Case {
    let mut rng = Rng(seed);
    let shards = Shards {
        shape: vec![6, 4],
        subchunk: vec![3, 2],
        data_type: data_type.data_type.clone(),
        fill: fill_bytes(data_type, Fill::SignBit, &mut rng),
        codecs,
        index: IndexLayout::default(),
    };
    Case {
        elements: elements(&shards, data_type, Empty::Some, &mut rng),
        shards,
        lossless: true,
        canonical: false,
        store_empty: false,
        seed,
    }
}

/// Every data type of a fixed size, in both byte orders, with and without a transpose.
#[test]
fn every_data_type() {
    for (seed, data_type) in (0..).zip(types::fixed()) {
        for endian in ["little", "big"] {
            for order in [None, Some(codecs::transpose(&[1, 0]))] {
                let codecs = order.into_iter().chain([codecs::bytes(endian)]);
                let mut case = small(&data_type, codecs.collect(), seed);
                case.canonical = true;
                check(&case);
                let encoded = case.shards.encode(
                    case.shards.ours().as_ref(),
                    &case.elements,
                    &CodecOptions::default(),
                );
                encoded.unwrap_or_else(|error| panic!("{}: {error}", data_type.data_type));
            }
        }
    }
}

/// `packbits` with the types that it supports.
#[test]
fn packbits() {
    for name in ["bool", "int2", "uint4", "int16", "float32", "complex64"] {
        let data_type = types::named(name);
        let mut case = small(&data_type, vec![codecs::packbits()], 5);
        case.canonical = true;
        check(&case);
        let options = CodecOptions::default();
        let ours = case.shards.ours();
        assert!(
            case.shards
                .encode(ours.as_ref(), &case.elements, &options)
                .is_ok()
        );
    }
}

/// Every compressor and filter of Blosc, typed and untyped.
#[test]
fn every_blosc() {
    let data_type = types::named("uint16");
    for cname in codecs::BLOSC_COMPRESSORS {
        for shuffle in codecs::BLOSC_SHUFFLES {
            for typesize in [1, 2, 7, 255] {
                for level in [0, 1, 5, 9] {
                    let blosc = codecs::blosc(cname, level, shuffle, typesize);
                    check(&small(&data_type, vec![codecs::bytes("little"), blosc], 7));
                }
            }
        }
    }
}

/// Subchunks of more than 64 KiB, which zarrs' partial decoders read in part.
#[test]
fn large_subchunks() {
    let data_type = types::named("uint32");
    let little = || codecs::bytes("little");
    let chains = [
        vec![little()],
        vec![codecs::bytes("big")],
        vec![codecs::transpose(&[1, 0]), little()],
        vec![little(), codecs::crc32c()],
        vec![little(), codecs::crc32c(), codecs::crc32c()],
        vec![codecs::sharding(&[100, 20], &[little()])],
        vec![codecs::sharding(
            &[100, 20],
            &[little(), codecs::zstd(1, false)],
        )],
        vec![codecs::packbits()],
        vec![little(), codecs::zstd(1, true)],
    ];
    for (seed, codecs) in (0..).zip(chains) {
        let mut rng = Rng(seed);
        let mut shards = small(&data_type, codecs, seed).shards;
        shards.shape = vec![400, 200];
        shards.subchunk = vec![200, 100];
        let elements = elements(&shards, &data_type, Empty::Some, &mut rng);
        let options = CodecOptions::default();
        let (ours, stock) = (shards.ours(), shards.stock());
        let encoded = shards.encode(stock.as_ref(), &elements, &options).unwrap();
        for indexer in indexers(&shards.shape, &mut rng) {
            let indexer = indexer.as_ref();
            let expected = shards.slice(&elements, indexer);
            let decoded = shards.partial_decode(ours.clone(), &encoded, indexer, &options);
            assert!(decoded.unwrap() == expected, "{:?}", shards.codecs);
            let decoded = shards.async_partial_decode(ours.clone(), &encoded, indexer, &options);
            assert!(decoded.unwrap() == expected, "{:?}", shards.codecs);
        }
    }
}

/// A missing shard reads as the fill value.
#[test]
fn a_missing_shard() {
    let Case { shards, .. } = small(&types::named("int16"), vec![codecs::bytes("little")], 1);
    let options = CodecOptions::default();
    let (shape, fill_value) = (shards.chunk_shape(), shards.fill_value());
    let key = StoreKey::new("shard").unwrap();
    let indexer = ArraySubset::new_with_ranges(&[1..4, 0..2]);
    let expected = shards.fill.repeat(6);

    let store = Arc::new(MemoryStore::new());
    let input = Arc::new(zarrs_codec::StoragePartialDecoder::new(store, key.clone()));
    let decoder = shards
        .ours()
        .partial_decoder(input, &shape, &shards.data_type, &fill_value, &options)
        .unwrap();
    assert!(!decoder.exists().unwrap());
    let decoded = decoder.partial_decode(&indexer, &options).unwrap();
    assert_eq!(*decoded.into_fixed().unwrap(), *expected);

    futures::executor::block_on(async {
        let store = Arc::new(AsyncMemoryStore::new());
        let input = Arc::new(zarrs_codec::AsyncStoragePartialDecoder::new(store, key));
        let decoder = shards
            .ours()
            .async_partial_decoder(input, &shape, &shards.data_type, &fill_value, &options)
            .await
            .unwrap();
        assert!(!decoder.exists().await.unwrap());
        let decoded = decoder.partial_decode(&indexer, &options).await.unwrap();
        assert_eq!(*decoded.into_fixed().unwrap(), *expected);
    });
}

/// Requests that do not fit the shard are errors.
#[test]
fn requests_outside_of_the_shard() {
    let Case {
        shards, elements, ..
    } = small(&types::named("int16"), vec![codecs::bytes("little")], 1);
    let options = CodecOptions::default();
    let ours = shards.ours();
    let encoded = shards.encode(ours.as_ref(), &elements, &options).unwrap();
    let outside: Vec<Box<dyn Indexer>> = vec![
        Box::new(ArraySubset::new_with_ranges(&[0..7, 0..4])),
        Box::new(ArraySubset::new_with_ranges(&[6..7, 0..4])),
        Box::new(ArraySubset::new_with_ranges(&[0..6])),
        Box::new(ArraySubset::new_with_ranges(&[0..6, 0..4, 0..1])),
        Box::new(vec![vec![0, 0], vec![0, 4]]),
        Box::new(vec![vec![0, 0, 0]]),
        Box::new(vec![vec![u64::MAX, u64::MAX]]),
    ];
    for indexer in &outside {
        let indexer = indexer.as_ref();
        // zarrs panics on some of these.
        let decoded = shards.partial_decode(ours.clone(), &encoded, indexer, &options);
        assert!(decoded.is_err());
        let decoded = shards.async_partial_decode(ours.clone(), &encoded, indexer, &options);
        assert!(decoded.is_err());
    }
}

proptest! {
    #![proptest_config(config(30))]

    /// Arrays of several shards, where zarrs decodes into parts of its own output. Any box of an
    /// array reads the same with either writer and either reader.
    #[test]
    fn arrays_of_several_shards(
        axes in proptest::collection::vec((1..=3_u64, 1..=3_u64, 1..=20_u64), 1..=3),
        compress in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let subchunk: Vec<u64> = axes.iter().map(|(_, extent, _)| *extent).collect();
        let shard: Vec<u64> = axes.iter().map(|(count, extent, _)| count * extent).collect();
        // The array may end within a shard.
        let shape: Vec<u64> = axes.iter().map(|(_, _, extent)| *extent).collect();
        let b2b: Vec<Arc<dyn zarrs_codec::BytesToBytesCodecTraits>> = if compress {
            vec![Arc::new(zarrs::array::codec::ZstdCodec::new(1, false))]
        } else {
            vec![]
        };
        let store = Arc::new(MemoryStore::new());
        let mut builder = ArrayBuilder::new(shape.clone(), shard, data_type::int32(), -1_i32);
        builder.bytes_to_bytes_codecs(b2b.clone()).subchunk_shape(subchunk.clone());
        let stock = builder.build(store.clone(), "/array").unwrap();
        builder.subchunk_shape(None).bytes_to_bytes_codecs(vec![]).array_to_bytes_codec(
            CudaShardingCodecBuilder::new(chunk_shape(&subchunk), &data_type::int32())
                .bytes_to_bytes_codecs(b2b)
                .build_arc()
                .unwrap(),
        );
        let ours = builder.build(store, "/array").unwrap();
        prop_assert!(zarrs_cuda::explain(&ours).is_ok());
        prop_assert!(zarrs_cuda::explain(&stock).is_err());

        let mut model = vec![-1_i32; usize::try_from(shape.iter().product::<u64>()).unwrap()];
        for (round, subset) in (0..).zip(subsets(&shape, 4, &mut rng)) {
            let array = if rng.one_in(2) { &ours } else { &stock };
            let values: Vec<i32> = (0..subset.num_elements())
                .map(|_| if rng.one_in(3) { -1 } else { round })
                .collect();
            array.store_array_subset(&subset, values.as_slice()).unwrap();
            let positions = subset.linearised_indices(&shape).unwrap();
            for (position, value) in positions.into_iter().zip(values) {
                model[usize::try_from(position).unwrap()] = value;
            }
            for subset in subsets(&shape, 4, &mut rng) {
                let positions = subset.linearised_indices(&shape).unwrap().into_iter();
                let expected: Vec<i32> =
                    positions.map(|p| model[usize::try_from(p).unwrap()]).collect();
                let read = |array: &Array<MemoryStore>| {
                    array.retrieve_array_subset::<Vec<i32>>(&subset).unwrap()
                };
                prop_assert_eq!(read(&ours), expected.clone());
                prop_assert_eq!(read(&stock), expected);
            }
        }
    }
}

/// A change to a shard.
#[derive(Clone, Debug)]
enum Change {
    /// Writes a box of new values, or of the fill value.
    Subset {
        fill: bool,
        seed: u64,
    },
    /// Writes single elements.
    Points {
        seed: u64,
    },
    Erase,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (proptest::bool::weighted(0.4), any::<u64>())
            .prop_map(|(fill, seed)| Change::Subset { fill, seed }),
        2 => any::<u64>().prop_map(|seed| Change::Points { seed }),
        1 => Just(Change::Erase),
    ]
}

/// The shard to change.
fn changed_shards(codec: u8, index: IndexLayout) -> (Shards, Type) {
    let data_type = types::named("float32");
    let little = codecs::bytes("little");
    let shards = Shards {
        shape: vec![6, 8],
        subchunk: vec![3, 2],
        data_type: data_type.data_type.clone(),
        fill: (-0.0_f32).to_ne_bytes().to_vec(),
        codecs: match codec {
            0 => vec![little],
            1 => vec![little, codecs::zstd(3, false)],
            2 => vec![little, codecs::xor()],
            _ => vec![codecs::sharding(&[3, 1], &[little])],
        },
        index,
    };
    (shards, data_type)
}

impl Change {
    /// The place and the values to write; `None` to erase.
    fn writes(&self, shards: &Shards, data_type: &Type) -> Option<(Box<dyn Indexer>, Vec<u8>)> {
        let (indexer, mut rng, fill): (Box<dyn Indexer>, _, _) = match *self {
            Self::Subset { fill, seed } => {
                let mut rng = Rng(seed);
                let subset = subsets(&shards.shape, 1, &mut rng).swap_remove(0);
                (Box::new(subset), rng, fill)
            }
            Self::Points { seed } => {
                let mut rng = Rng(seed);
                let mut points = points(&shards.shape, 9, &mut rng);
                points.sort();
                points.dedup();
                (Box::new(points), rng, false)
            }
            Self::Erase => return None,
        };
        let values = (0..indexer.len()).flat_map(|_| {
            if fill {
                shards.fill.clone()
            } else {
                data_type.element(&mut rng)
            }
        });
        let values = values.collect();
        Some((indexer, values))
    }
}

/// Applies a write to `model`.
fn apply(shards: &Shards, model: &mut [u8], indexer: &dyn Indexer, values: &[u8]) {
    let size = shards.element_size();
    for (indices, value) in indexer.iter_indices().zip(values.chunks(size)) {
        let number = indices
            .iter()
            .zip(&shards.shape)
            .fold(0, |number, (i, d)| number * d + i);
        let start = usize::try_from(number).unwrap() * size;
        model[start..start + size].copy_from_slice(value);
    }
}

/// Checks that every reader reads `model` from the stored shard.
fn check_stored(
    shards: &Shards,
    stored: Option<&[u8]>,
    model: &[u8],
    store_empty: bool,
    seed: u64,
) {
    let options = CodecOptions::default();
    let Some(stored) = stored else {
        assert_eq!(model, shards.fill.repeat(shards.num_elements()), "erased");
        return;
    };
    assert!(
        store_empty || model != shards.fill.repeat(shards.num_elements()),
        "an empty shard is not stored"
    );
    let (ours, stock) = (shards.ours(), shards.stock());
    assert_eq!(
        shards.decode(stock.as_ref(), stored, &options).unwrap(),
        model
    );
    assert_eq!(
        shards.decode(ours.as_ref(), stored, &options).unwrap(),
        model
    );
    let mut rng = Rng(seed);
    for indexer in indexers(&shards.shape, &mut rng) {
        let decoded = shards.partial_decode(ours.clone(), stored, indexer.as_ref(), &options);
        assert_eq!(decoded.unwrap(), shards.slice(model, indexer.as_ref()));
    }
}

fn partial_encoder(
    shards: &Shards,
    store: &Arc<MemoryStore>,
    key: &StoreKey,
) -> Arc<dyn ArrayPartialEncoderTraits> {
    let storage: ReadableWritableStorage = store.clone();
    shards
        .ours()
        .partial_encoder(
            Arc::new(StoragePartialEncoder::new(storage, key.clone())),
            &shards.chunk_shape(),
            &shards.data_type,
            &shards.fill_value(),
            &CodecOptions::default(),
        )
        .unwrap()
}

proptest! {
    #![proptest_config(config(30))]

    /// After any sequence of partial writes both codecs can read the shard. It may grow, shrink,
    /// become empty or be erased.
    #[test]
    fn partial_encoding(
        changes in proptest::collection::vec(change(), 1..8),
        codec in 0..4_u8,
        index in index(),
        store_empty in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let (shards, data_type) = changed_shards(codec, index);
        let options = CodecOptions::default().with_store_empty_chunks(store_empty);
        let key = StoreKey::new("c/0").unwrap();
        let mut model = shards.fill.repeat(shards.num_elements());
        let store = Arc::new(MemoryStore::new());
        let encoder = partial_encoder(&shards, &store, &key);
        for change in &changes {
            if let Some((indexer, values)) = change.writes(&shards, &data_type) {
                apply(&shards, &mut model, indexer.as_ref(), &values);
                let values = ArrayBytes::from(values);
                encoder.partial_encode(indexer.as_ref(), &values, &options).unwrap();
            } else {
                model = shards.fill.repeat(shards.num_elements());
                encoder.erase().unwrap();
            }
            let stored = store.get(&key).unwrap();
            prop_assert_eq!(encoder.exists().unwrap(), stored.is_some());
            check_stored(&shards, stored.as_deref(), &model, store_empty, seed);
            // The encoder reads the written elements.
            for indexer in indexers(&shards.shape, &mut Rng(seed)) {
                let decoded = encoder.partial_decode(indexer.as_ref(), &options).unwrap();
                prop_assert_eq!(
                    decoded.into_fixed().unwrap().into_owned(),
                    shards.slice(&model, indexer.as_ref())
                );
            }
        }
    }

    /// The same, asynchronously.
    #[test]
    fn async_partial_encoding(
        changes in proptest::collection::vec(change(), 1..6),
        codec in 0..4_u8,
        index in index(),
        store_empty in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let (shards, data_type) = changed_shards(codec, index);
        let options = CodecOptions::default().with_store_empty_chunks(store_empty);
        let key = StoreKey::new("c/0").unwrap();
        let mut model = shards.fill.repeat(shards.num_elements());
        futures::executor::block_on(async {
            let store = Arc::new(AsyncMemoryStore::new());
            let storage: AsyncReadableWritableStorage = store.clone();
            let handle = Arc::new(StoragePartialEncoder::new(storage, key.clone()));
            let encoder = shards
                .ours()
                .async_partial_encoder(
                    handle,
                    &shards.chunk_shape(),
                    &shards.data_type,
                    &shards.fill_value(),
                    &options,
                )
                .await
                .unwrap();
            for change in &changes {
                if let Some((indexer, values)) = change.writes(&shards, &data_type) {
                    apply(&shards, &mut model, indexer.as_ref(), &values);
                    let values = ArrayBytes::from(values);
                    encoder
                        .partial_encode(indexer.as_ref(), &values, &options)
                        .await
                        .unwrap();
                } else {
                    model = shards.fill.repeat(shards.num_elements());
                    encoder.erase().await.unwrap();
                }
                let stored = store.get(&key).await.unwrap();
                assert_eq!(encoder.exists().await.unwrap(), stored.is_some());
                check_stored(&shards, stored.as_deref(), &model, store_empty, seed);
                let whole = ArraySubset::new_with_shape(shards.shape.clone());
                let decoded = encoder.partial_decode(&whole, &options).await.unwrap();
                assert_eq!(*decoded.into_fixed().unwrap(), *model);
            }
        });
    }
}

/// zarrs' own partial encoder leaves an unreadable shard: the new shard ends before the old end of
/// the value, where readers look for the index. Ours must not.
#[test]
fn a_shard_that_shrinks_keeps_its_index_at_the_end() {
    let shards = Shards {
        shape: vec![4],
        subchunk: vec![1],
        data_type: data_type::uint8(),
        fill: vec![0],
        codecs: vec![codecs::bytes("little")],
        index: IndexLayout::default(),
    };
    let store = Arc::new(MemoryStore::new());
    let key = StoreKey::new("shard").unwrap();
    let encoder = partial_encoder(&shards, &store, &key);
    let options = CodecOptions::default();
    let write = |start: u64, values: &[u8]| {
        let subset = ArraySubset::new_with_ranges(&[start..start + values.len() as u64]);
        let values = ArrayBytes::from(values);
        encoder.partial_encode(&subset, &values, &options).unwrap();
    };
    write(0, &[1]);
    write(1, &[2]);
    write(2, &[3]);
    write(1, &[0, 0]);
    write(3, &[4]);
    let stored = store.get(&key).unwrap().unwrap();
    assert_eq!(
        shards
            .decode(shards.stock().as_ref(), &stored, &options)
            .unwrap(),
        [1, 0, 0, 4]
    );
    assert_eq!(
        shards
            .decode(shards.ours().as_ref(), &stored, &options)
            .unwrap(),
        [1, 0, 0, 4]
    );
}

/// Writes that do not fit the shard are errors, and change nothing.
#[test]
fn partial_writes_that_do_not_fit() {
    let (shards, _) = changed_shards(0, IndexLayout::default());
    let store = Arc::new(MemoryStore::new());
    let key = StoreKey::new("shard").unwrap();
    let encoder = partial_encoder(&shards, &store, &key);
    let options = CodecOptions::default();
    let write = |ranges: &[std::ops::Range<u64>], elements: usize| {
        let values = ArrayBytes::from(vec![1; 4 * elements]);
        encoder.partial_encode(&ArraySubset::new_with_ranges(ranges), &values, &options)
    };
    write(&[0..6, 0..8], 48).unwrap();
    let before = store.get(&key).unwrap();
    assert!(write(&[0..1, 0..1], 2).is_err(), "too many elements");
    assert!(write(&[0..1, 0..2], 1).is_err(), "too few elements");
    assert!(write(&[5..7, 0..1], 2).is_err(), "outside of the shard");
    assert!(write(&[0..1], 1).is_err(), "of another dimensionality");
    assert_eq!(store.get(&key).unwrap(), before);
}

/// A fill value of the wrong size is an error on reading, with zarrs' codec and with ours.
#[test]
fn a_fill_value_of_another_type() {
    let Case {
        shards, elements, ..
    } = small(&types::named("int16"), vec![codecs::bytes("little")], 1);
    let encoded = shards.ours().encode(
        ArrayBytes::from(elements),
        &shards.chunk_shape(),
        &shards.data_type,
        &FillValue::from(1_u8),
        &CodecOptions::default(),
    );
    assert!(encoded.unwrap_err().to_string().contains("fill value"));
}

/// zstd frames in the style of other encoders.
fn zstd_frames(content: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    use zstd_safe::{CCtx, CParameter, compress_bound};
    let compress = |content: &[u8], parameters: &[CParameter]| {
        let mut context = CCtx::create();
        for parameter in parameters {
            context.set_parameter(*parameter).unwrap();
        }
        let mut frame = vec![0; compress_bound(content.len())];
        let len = context.compress2(&mut frame[..], content).unwrap();
        frame.truncate(len);
        frame
    };
    let (first, second) = content.split_at(content.len() / 3);
    let skippable = [&[0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3][..]];
    let no_size = [CParameter::ContentSizeFlag(false)];
    vec![
        ("without the content size", compress(content, &no_size)),
        (
            "with a checksum",
            compress(content, &[CParameter::ChecksumFlag(true)]),
        ),
        (
            "at another level",
            compress(content, &[CParameter::CompressionLevel(19)]),
        ),
        (
            "in two frames",
            [compress(first, &[]), compress(second, &[])].concat(),
        ),
        (
            "in two frames without the content size",
            [compress(first, &no_size), compress(second, &no_size)].concat(),
        ),
        (
            "after a skippable frame",
            [skippable.concat(), compress(content, &[])].concat(),
        ),
        (
            "before an empty frame",
            [compress(content, &[]), compress(&[], &[])].concat(),
        ),
    ]
}

/// gzip members in the style of other encoders.
fn gzip_members(content: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let member = |content: &[u8], flags: u8, fields: &[u8]| {
        let level = libdeflater::CompressionLvl::new(6).unwrap();
        let mut compressor = libdeflater::Compressor::new(level);
        let mut body = vec![0; compressor.deflate_compress_bound(content.len())];
        let len = compressor.deflate_compress(content, &mut body).unwrap();
        let mut member = vec![0x1F, 0x8B, 8, flags, 1, 2, 3, 4, 0, 3];
        member.extend(fields);
        member.extend(&body[..len]);
        member.extend(libdeflater::crc32(content).to_le_bytes());
        member.extend(u32::try_from(content.len()).unwrap().to_le_bytes());
        member
    };
    vec![
        ("bare", member(content, 0, &[])),
        ("with a name", member(content, 8, b"subchunk\0")),
        ("with a comment", member(content, 16, b"no comment\0")),
        ("with an extra field", member(content, 4, &[3, 0, 1, 2, 3])),
        (
            "with all of these",
            member(content, 4 | 8 | 16, &[&[1, 0, 9][..], b"n\0c\0"].concat()),
        ),
    ]
}

/// Blosc frames in the style of other encoders: with another compressor, filter and type.
fn blosc_frames(content: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut frames = Vec::new();
    for cname in codecs::BLOSC_COMPRESSORS {
        for (shuffle, typesize, blocksize) in [
            ("noshuffle", 1, 0),
            ("shuffle", 4, 64),
            ("bitshuffle", 2, 0),
        ] {
            let blosc = json!({
                "cname": cname,
                "clevel": 9,
                "shuffle": shuffle,
                "typesize": typesize,
                "blocksize": blocksize,
            });
            let configuration = serde_json::from_value(blosc).unwrap();
            let codec = zarrs::array::codec::BloscCodec::new_with_configuration(&configuration);
            let options = CodecOptions::default();
            let frame = codec.unwrap().encode(content.into(), &options).unwrap();
            frames.push((cname, frame.into_owned()));
        }
    }
    frames
}

/// The codecs' parameters in the metadata only affect writing. Frames with other parameters are
/// readable, and frames with optional parts of the format that neither zarrs nor we write.
#[test]
fn frames_of_other_writers() {
    let content: Vec<u8> = (0..600_u32)
        .map(|i| (i * i / 50 % 251).to_le_bytes()[0])
        .collect();
    let little = || codecs::bytes("little");
    let options = CodecOptions::default();
    for (codec, frames) in [
        (codecs::zstd(1, false), zstd_frames(&content)),
        (codecs::gzip(1), gzip_members(&content)),
        (
            codecs::blosc("lz4", 5, "shuffle", 2),
            blosc_frames(&content),
        ),
    ] {
        let mut shards = small(&types::named("uint16"), vec![little(), codec], 1).shards;
        shards.shape = vec![300];
        shards.subchunk = vec![300];
        for (what, frame) in frames {
            let shard = shards.index.shard(&[(0, Some(frame))]);
            for codec in [
                shards.stock() as Arc<dyn ArrayToBytesCodecTraits>,
                shards.ours(),
            ] {
                let decoded = shards.decode(codec.as_ref(), &shard, &options);
                let decoded = decoded.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(decoded, content, "{what}");
            }
        }
    }
}
