//! Nothing in zarrs behaves differently because the codec is ours: every way of reading and writing
//! arrays, tested against zarrs' own codec.
//!
//! Arrays are opened twice from the same metadata, once while our codec is registered and once
//! while it is not. What is done to one is done to the other, and has to give the same, down to the
//! messages of errors.

#![allow(
    clippy::unwrap_used,
    deprecated,
    reason = "a test fails by panicking, and says where; zarrs' deprecated methods are tested, too"
)]

mod common;

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ndarray::ArrayD;
use serde_json::{Value, json};
use zarrs::array::chunk_cache::{
    ChunkCache, ChunkCacheDecodedLruChunkLimit, ChunkCacheDecodedLruChunkLimitThreadLocal,
    ChunkCacheDecodedLruSizeLimit, ChunkCacheDecodedLruSizeLimitThreadLocal,
    ChunkCacheEncodedLruChunkLimit, ChunkCacheEncodedLruChunkLimitThreadLocal,
    ChunkCacheEncodedLruSizeLimit, ChunkCacheEncodedLruSizeLimitThreadLocal,
    ChunkCachePartialDecoderLruChunkLimit, ChunkCachePartialDecoderLruChunkLimitThreadLocal,
    ChunkCachePartialDecoderLruSizeLimit, ChunkCachePartialDecoderLruSizeLimitThreadLocal,
};
use zarrs::array::codec::{
    Crc32cCodec, GzipCodec, ShardingCodecBuilder, ShardingCodecOptions, ShardingIndexLocation,
    SubchunkWriteOrder, TransposeCodec, ZstdCodec,
};
use zarrs::array::{
    Array, ArrayBuilder, ArrayBytes, ArrayMetadata, ArrayMetadataOptions, ArrayShardedExt,
    ArrayShardedReadableExt, ArrayShardedReadableExtCache, ArraySubset,
    AsyncArrayShardedReadableExt, AsyncArrayShardedReadableExtCache, Indexer, data_type,
};
use zarrs::config::MetadataConvertVersion;
use zarrs::group::Group;
use zarrs::hierarchy::Hierarchy;
use zarrs::metadata_ext::codec::transpose::TransposeOrder;
use zarrs::node::Node;
use zarrs::storage::storage_adapter::performance_metrics::PerformanceMetricsStorageAdapter;
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{
    AsyncListableStorageTraits, AsyncReadableStorageTraits, AsyncWritableStorageTraits,
    ListableStorageTraits, ReadableStorageTraits, WritableStorageTraits,
};
use zarrs_codec::{
    ArrayToArrayCodecTraits, ArrayToBytesCodecTraits, BytesToBytesCodecTraits,
    CodecMetadataOptions, CodecOptions, CodecSpecificOptions,
};
use zarrs_cuda::{CudaShardingCodecBuilder, Error, Options, Registration, explain, register};

use common::{Rng, chunk_shape, codecs};

/// One test at a time: registration is for the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn registered() -> Registration {
    register(Options::default()).unwrap()
}

// ---------------------------------------------------------------------------------------------
// Arrays

/// An array, as metadata.
#[derive(Clone)]
struct Config {
    name: &'static str,
    shape: Vec<u64>,
    shard: Vec<u64>,
    codecs: Vec<Value>,
    /// The same elements have one encoding.
    canonical: bool,
}

fn sharding(chunk_shape: &[u64], codecs: &[Value]) -> Value {
    let mut sharding = codecs::sharding(chunk_shape, codecs);
    sharding["configuration"]["index_location"] = json!("end");
    sharding
}

/// Two-dimensional arrays of 9 × 10 elements, in shards of 4 × 6: the last ones leave the array.
fn configs() -> Vec<Config> {
    let little = || codecs::bytes("little");
    let plain = || sharding(&[2, 3], &[little()]);
    let mut at_start = sharding(&[2, 3], &[codecs::bytes("big"), codecs::crc32c()]);
    at_start["configuration"]["index_location"] = json!("start");
    at_start["configuration"]["index_codecs"] = json!([codecs::bytes("big")]);
    let zstd = vec![little(), codecs::zstd(3, false), codecs::crc32c()];
    let nested = codecs::sharding(&[1, 3], &[little()]);
    let list: Vec<(&'static str, Vec<Value>, bool)> = vec![
        ("plain", vec![plain()], true),
        ("index at the start", vec![at_start], true),
        ("zstd", vec![sharding(&[2, 3], &zstd)], false),
        (
            "blosc",
            vec![sharding(
                &[2, 3],
                &[little(), codecs::blosc("lz4", 5, "shuffle", 2)],
            )],
            false,
        ),
        (
            "transposed subchunks",
            vec![sharding(&[2, 3], &[codecs::transpose(&[1, 0]), little()])],
            true,
        ),
        (
            "transposed shards",
            vec![codecs::transpose(&[1, 0]), sharding(&[3, 2], &[little()])],
            true,
        ),
        ("compressed shards", vec![plain(), codecs::gzip(5)], false),
        ("checked shards", vec![plain(), codecs::crc32c()], true),
        (
            "sharding in sharding",
            vec![sharding(&[2, 3], &[nested])],
            false,
        ),
        (
            "unknown codecs",
            vec![sharding(&[2, 3], &[little(), codecs::shuffle(2)])],
            true,
        ),
        ("one subchunk", vec![sharding(&[4, 6], &[little()])], true),
    ];
    list.into_iter()
        .map(|(name, codecs, canonical)| Config {
            name,
            shape: vec![9, 10],
            shard: vec![4, 6],
            codecs,
            canonical,
        })
        .collect()
}

/// Arrays of other dimensionalities.
fn other_shapes() -> Vec<Config> {
    let zstd = [codecs::bytes("little"), codecs::zstd(1, false)];
    let of = |name, shape: &[u64], shard: &[u64], subchunk: &[u64]| Config {
        name,
        shape: shape.to_vec(),
        shard: shard.to_vec(),
        codecs: vec![sharding(subchunk, &zstd)],
        canonical: false,
    };
    vec![
        of("no dimensions", &[], &[], &[]),
        of("one dimension", &[50], &[20], &[5]),
        of("three dimensions", &[5, 7, 3], &[4, 4, 2], &[2, 1, 2]),
        of("nothing in it", &[0, 6], &[4, 6], &[2, 3]),
    ]
}

impl Config {
    fn json(&self) -> Value {
        json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": self.shape,
            "data_type": "uint16",
            "chunk_grid": {
                "name": "regular",
                "configuration": { "chunk_shape": self.shard },
            },
            "chunk_key_encoding": { "name": "default", "configuration": { "separator": "/" } },
            "fill_value": FILL,
            "codecs": self.codecs,
            "attributes": { "answer": 42 },
            "dimension_names": self.shape.iter().map(|d| format!("d{d}")).collect::<Vec<_>>(),
        })
    }

    fn metadata(&self) -> ArrayMetadata {
        serde_json::from_value(self.json()).unwrap()
    }

    /// zarrs' codec. Subchunks lie in C order, as ours always do.
    fn stock<S: ?Sized>(&self, store: &Arc<S>) -> Array<S> {
        let order =
            ShardingCodecOptions::default().with_subchunk_write_order(SubchunkWriteOrder::C);
        let options = CodecSpecificOptions::default().with_option(order);
        let array = Array::new_with_metadata(store.clone(), PATH, self.metadata()).unwrap();
        assert!(explain(&array).is_err());
        array.with_codec_specific_options(&options)
    }

    fn ours<S: ?Sized>(&self, store: &Arc<S>) -> Array<S> {
        let _registration = registered();
        let array = Array::new_with_metadata(store.clone(), PATH, self.metadata()).unwrap();
        assert!(explain(&array).is_ok());
        array
    }

    /// A value for each element; every third subchunk or so is empty, and the last shard is.
    fn elements(&self) -> Vec<u16> {
        common::all_indices(&self.shape)
            .map(|indices| {
                let place = indices
                    .iter()
                    .zip(&self.shard)
                    .map(|(i, d)| (i / d, i % d / 2));
                let hash = place.fold(self.shape.len() as u64, |hash, (shard, within)| {
                    hash.wrapping_mul(31) + 7 * shard + within
                });
                let last = !indices.is_empty()
                    && std::iter::zip(&indices, &self.shape)
                        .zip(&self.shard)
                        .all(|((i, n), d)| i / d == (n - 1) / d);
                if hash % 3 == 0 || last {
                    FILL
                } else {
                    u16::try_from(indices.iter().fold(1, |n, i| 13 * n + i) % 50).unwrap()
                }
            })
            .collect()
    }
}

const PATH: &str = "/group/array";

const FILL: u16 = 9;

/// Everything in a store.
fn contents(store: &MemoryStore) -> BTreeMap<String, Vec<u8>> {
    let keys = store.list().unwrap();
    keys.into_iter()
        .map(|key| (key.to_string(), store.get(&key).unwrap().unwrap().to_vec()))
        .collect()
}

fn copy(store: &MemoryStore) -> Arc<MemoryStore> {
    let copy = MemoryStore::new();
    for (key, value) in contents(store) {
        copy.set(&key.try_into().unwrap(), value.into()).unwrap();
    }
    Arc::new(copy)
}

async fn async_copy(store: &MemoryStore) -> Arc<AsyncMemoryStore> {
    let copy = AsyncMemoryStore::new();
    for (key, value) in contents(store) {
        let key = key.try_into().unwrap();
        copy.set(&key, value.into()).await.unwrap();
    }
    Arc::new(copy)
}

async fn async_contents(store: &AsyncMemoryStore) -> BTreeMap<String, Vec<u8>> {
    let mut contents = BTreeMap::new();
    for key in store.list().await.unwrap() {
        let value = store.get(&key).await.unwrap().unwrap();
        contents.insert(key.to_string(), value.to_vec());
    }
    contents
}

/// Two stores with the same elements, written by zarrs' codec and by ours.
fn written(config: &Config) -> [Arc<MemoryStore>; 2] {
    let stores = [MemoryStore::new(), MemoryStore::new()].map(Arc::new);
    for (array, store) in [config.stock(&stores[0]), config.ours(&stores[1])]
        .iter()
        .zip(&stores)
    {
        array.store_metadata().unwrap();
        array
            .store_array_subset(&array.subset_all(), config.elements())
            .unwrap();
        assert!(config.shape.contains(&0) || contents(store).len() > 1);
    }
    stores
}

/// Boxes of an array, and some that are not in it.
fn boxes(shape: &[u64], seed: u64) -> Vec<ArraySubset> {
    let mut rng = Rng(seed);
    let mut boxes = vec![
        ArraySubset::new_with_shape(shape.to_vec()),
        ArraySubset::new_with_shape(shape.iter().map(|d| d.div_ceil(2)).collect()),
        ArraySubset::new_with_shape(shape.iter().map(|d| d + 1).collect()),
        ArraySubset::new_with_ranges(&vec![1..1; shape.len()]),
        ArraySubset::new_with_ranges(&vec![0..1; shape.len() + 1]),
    ];
    for _ in 0..4 {
        let ranges: Vec<Range<u64>> = shape
            .iter()
            .map(|&d| {
                let start = rng.below(d.max(1));
                start..start + 1 + rng.below(d.saturating_sub(start).max(1))
            })
            .collect();
        boxes.push(ArraySubset::new_with_ranges(&ranges));
    }
    boxes
}

// ---------------------------------------------------------------------------------------------
// Transcripts

/// What was called, and what it returned.
#[derive(Default)]
struct Transcript(Vec<(String, String)>);

impl Transcript {
    fn value(&mut self, call: &str, value: impl Debug) {
        self.0.push((call.to_string(), format!("{value:?}")));
    }

    fn result<T: Debug, E: Display>(&mut self, call: &str, result: Result<T, E>) {
        match result {
            Ok(value) => self.value(call, value),
            Err(error) => self.value(call, error.to_string()),
        }
    }
}

/// Note a call, and the value that it has.
macro_rules! note {
    ($to:ident, $call:expr) => {
        $to.value(stringify!($call), $call)
    };
}

/// Note a call, and what it returns or fails with.
macro_rules! attempt {
    ($to:ident, $call:expr) => {
        $to.result(stringify!($call), $call)
    };
}

fn assert_same(what: &str, stock: Transcript, ours: Transcript) {
    assert!(!stock.0.is_empty());
    assert_eq!(stock.0.len(), ours.0.len(), "{what}");
    for ((call, stock), (_, ours)) in stock.0.into_iter().zip(ours.0) {
        assert_eq!(ours, stock, "{what}: {call}");
    }
}

// ---------------------------------------------------------------------------------------------
// Reading

/// Every method of an array that only looks at its metadata.
fn metadata_methods<S: ?Sized>(array: &Array<S>) -> Transcript {
    let mut t = Transcript::default();
    note!(t, array.is_sharded());
    note!(t, array.is_exclusively_sharded());
    note!(t, array.subchunk_shape());
    note!(t, array.effective_subchunk_shape());
    note!(t, array.subchunk_grid().metadata());
    note!(t, array.subchunk_grid_shape());
    note!(t, array.metadata().to_string());
    note!(t, array.builder().build_metadata().unwrap().to_string());
    note!(
        t,
        ArrayBuilder::from_array(array)
            .build_metadata()
            .unwrap()
            .to_string()
    );
    let default = ArrayMetadataOptions::default;
    for options in [
        default(),
        default().with_include_zarrs_metadata(false),
        default().with_convert_aliased_extension_names(true),
        default().with_metadata_convert_version(MetadataConvertVersion::V3),
        default().with_codec_metadata_options(
            CodecMetadataOptions::default().with_codec_store_metadata_if_encode_only(true),
        ),
    ] {
        note!(t, array.metadata_opt(&options).to_string());
    }
    let codec = array.codecs().array_to_bytes_codec().clone();
    for options in [
        CodecMetadataOptions::default(),
        CodecMetadataOptions::default().with_codec_store_metadata_if_encode_only(true),
    ] {
        note!(t, codec.configuration_v3(&options));
        note!(t, codec.configuration_v2(&options));
    }
    note!(t, codec.name_v3());
    note!(t, codec.name_v2());
    note!(t, codec.partial_decoder_capability());
    let shard = array.chunk_shape(&vec![0; array.dimensionality()]).unwrap();
    note!(t, codec.partial_decode_granularity(&shard));
    t
}

/// Every method of an array that reads.
fn reads<S: ?Sized + ReadableStorageTraits + 'static>(array: &Array<S>) -> Transcript {
    let mut t = Transcript::default();
    let grid = array.chunk_grid_shape().to_vec();
    let options = CodecOptions::default();
    let mut chunks: Vec<Vec<u64>> = common::all_indices(&grid).collect();
    chunks.push(vec![77; grid.len()]);
    chunks.push(vec![0; grid.len() + 1]);
    for chunk in &chunks {
        attempt!(t, array.retrieve_chunk_if_exists::<Vec<u16>>(chunk));
        attempt!(
            t,
            array.retrieve_chunk_if_exists_opt::<ArrayBytes>(chunk, &options)
        );
        attempt!(t, array.retrieve_chunk_elements_if_exists::<u16>(chunk));
        attempt!(
            t,
            array.retrieve_chunk_elements_if_exists_opt::<u16>(chunk, &options)
        );
        attempt!(t, array.retrieve_chunk_ndarray_if_exists::<u16>(chunk));
        attempt!(
            t,
            array.retrieve_chunk_ndarray_if_exists_opt::<u16>(chunk, &options)
        );
        attempt!(t, array.retrieve_chunk::<Vec<u16>>(chunk));
        attempt!(t, array.retrieve_chunk_opt::<ArrayD<u16>>(chunk, &options));
        attempt!(t, array.retrieve_chunk_elements::<u16>(chunk));
        attempt!(t, array.retrieve_chunk_elements_opt::<u16>(chunk, &options));
        attempt!(t, array.retrieve_chunk_ndarray::<u16>(chunk));
        attempt!(t, array.retrieve_chunk_ndarray_opt::<u16>(chunk, &options));
        attempt!(
            t,
            array
                .retrieve_encoded_chunk(chunk)
                .map(|chunk| chunk.is_some())
        );
        // Of another type.
        attempt!(t, array.retrieve_chunk::<Vec<f32>>(chunk));

        attempt!(
            t,
            array
                .partial_decoder(chunk)
                .map(|decoder| decoder.exists().unwrap())
        );
        let shard = array.chunk_shape_usize(&vec![0; grid.len()]).unwrap();
        let shard: Vec<u64> = shard.iter().map(|&d| d as u64).collect();
        for subset in boxes(&shard, 3) {
            attempt!(t, array.retrieve_chunk_subset::<Vec<u16>>(chunk, &subset));
            attempt!(
                t,
                array.retrieve_chunk_subset_opt::<ArrayBytes>(chunk, &subset, &options)
            );
            attempt!(
                t,
                array.retrieve_chunk_subset_elements::<u16>(chunk, &subset)
            );
            attempt!(
                t,
                array.retrieve_chunk_subset_elements_opt::<u16>(chunk, &subset, &options)
            );
            attempt!(
                t,
                array.retrieve_chunk_subset_ndarray::<u16>(chunk, &subset)
            );
            attempt!(
                t,
                array.retrieve_chunk_subset_ndarray_opt::<u16>(chunk, &subset, &options)
            );
            if let Ok(decoder) = array.partial_decoder_opt(chunk, &options)
                && subset.inbounds_shape(&shard)
            {
                attempt!(t, decoder.partial_decode(&subset, &options));
                let points: Vec<Vec<u64>> = subset.iter_indices().map(|i| i.to_vec()).collect();
                if !points.is_empty() {
                    attempt!(t, decoder.partial_decode(&points, &options));
                }
            }
        }
    }
    for subset in boxes(&grid, 5) {
        attempt!(t, array.retrieve_chunks::<Vec<u16>>(&subset));
        attempt!(
            t,
            array.retrieve_chunks_opt::<ArrayD<u16>>(&subset, &options)
        );
        attempt!(t, array.retrieve_chunks_elements::<u16>(&subset));
        attempt!(
            t,
            array.retrieve_chunks_elements_opt::<u16>(&subset, &options)
        );
        attempt!(t, array.retrieve_chunks_ndarray::<u16>(&subset));
        attempt!(
            t,
            array.retrieve_chunks_ndarray_opt::<u16>(&subset, &options)
        );
        attempt!(
            t,
            array
                .retrieve_encoded_chunks(&subset, &options)
                .map(|chunks| chunks.len())
        );
    }
    for subset in boxes(array.shape(), 7) {
        attempt!(t, array.retrieve_array_subset::<Vec<u16>>(&subset));
        attempt!(t, array.retrieve_array_subset_elements::<u16>(&subset));
        attempt!(t, array.retrieve_array_subset_ndarray::<u16>(&subset));
        for target in [1, 2, 0] {
            let options = options.with_concurrent_target(target);
            attempt!(
                t,
                array.retrieve_array_subset_opt::<ArrayBytes>(&subset, &options)
            );
            attempt!(
                t,
                array.retrieve_array_subset_elements_opt::<u16>(&subset, &options)
            );
            attempt!(
                t,
                array.retrieve_array_subset_ndarray_opt::<u16>(&subset, &options)
            );
        }
    }
    t
}

/// Every method of `ArrayShardedReadableExt` and its cache.
fn subchunk_reads<S: ?Sized + ReadableStorageTraits + 'static>(array: &Array<S>) -> Transcript {
    let mut t = Transcript::default();
    let options = CodecOptions::default();
    let cache = ArrayShardedReadableExtCache::new(array);
    note!(t, cache.array_is_sharded());
    note!(t, cache.array_is_exclusively_sharded());
    note!(t, cache.is_empty());
    let grid = array.subchunk_grid_shape();
    let mut subchunks: Vec<Vec<u64>> = common::all_indices(&grid).collect();
    subchunks.push(vec![77; grid.len()]);
    for subchunk in &subchunks {
        attempt!(t, array.subchunk_byte_range(&cache, subchunk));
        attempt!(t, array.retrieve_encoded_subchunk(&cache, subchunk));
        attempt!(
            t,
            array.retrieve_subchunk_opt::<Vec<u16>>(&cache, subchunk, &options)
        );
        attempt!(
            t,
            array.retrieve_subchunk_opt::<ArrayBytes>(&cache, subchunk, &options)
        );
        attempt!(
            t,
            array.retrieve_subchunk_elements_opt::<u16>(&cache, subchunk, &options)
        );
        attempt!(
            t,
            array.retrieve_subchunk_ndarray_opt::<u16>(&cache, subchunk, &options)
        );
    }
    note!(t, cache.len());
    cache.clear();
    note!(t, cache.len());
    for subset in boxes(&grid, 1) {
        attempt!(
            t,
            array.retrieve_subchunks_opt::<Vec<u16>>(&cache, &subset, &options)
        );
        attempt!(
            t,
            array.retrieve_subchunks_elements_opt::<u16>(&cache, &subset, &options)
        );
        attempt!(
            t,
            array.retrieve_subchunks_ndarray_opt::<u16>(&cache, &subset, &options)
        );
        note!(t, cache.len());
    }
    cache.clear();
    for subset in boxes(array.shape(), 2) {
        type Elements = Vec<u16>;
        let (a, c, s, o) = (array, &cache, &subset, &options);
        attempt!(t, a.retrieve_array_subset_sharded_opt::<Elements>(c, s, o));
        attempt!(
            t,
            a.retrieve_array_subset_sharded_opt::<ArrayBytes>(c, s, o)
        );
        attempt!(
            t,
            a.retrieve_array_subset_elements_sharded_opt::<u16>(c, s, o)
        );
        attempt!(
            t,
            a.retrieve_array_subset_ndarray_sharded_opt::<u16>(c, s, o)
        );
        note!(t, cache.len());
    }
    t
}

/// Every method of `ChunkCache`, twice: from the store, and from the cache.
fn cached_reads(cache: &impl ChunkCache, shape: &[u64], shard: &[u64]) -> Transcript {
    let mut t = Transcript::default();
    let options = CodecOptions::default();
    let grid = cache.array().chunk_grid_shape().to_vec();
    for _ in 0..2 {
        for chunk in common::all_indices(&grid) {
            attempt!(t, cache.retrieve_chunk_bytes(&chunk, &options));
            attempt!(t, cache.retrieve_chunk::<Vec<u16>>(&chunk, &options));
            attempt!(t, cache.retrieve_chunk_elements::<u16>(&chunk, &options));
            attempt!(t, cache.retrieve_chunk_ndarray::<u16>(&chunk, &options));
            for subset in boxes(shard, 3)
                .into_iter()
                .filter(|s| s.inbounds_shape(shard))
            {
                attempt!(
                    t,
                    cache.retrieve_chunk_subset_bytes(&chunk, &subset, &options)
                );
                attempt!(
                    t,
                    cache.retrieve_chunk_subset::<Vec<u16>>(&chunk, &subset, &options)
                );
                attempt!(
                    t,
                    cache.retrieve_chunk_subset_elements::<u16>(&chunk, &subset, &options)
                );
                attempt!(
                    t,
                    cache.retrieve_chunk_subset_ndarray::<u16>(&chunk, &subset, &options)
                );
            }
            note!(t, cache.len() > 0);
        }
        for subset in boxes(shape, 5) {
            attempt!(t, cache.retrieve_array_subset_bytes(&subset, &options));
            attempt!(
                t,
                cache.retrieve_array_subset::<Vec<u16>>(&subset, &options)
            );
            attempt!(
                t,
                cache.retrieve_array_subset_elements::<u16>(&subset, &options)
            );
            attempt!(
                t,
                cache.retrieve_array_subset_ndarray::<u16>(&subset, &options)
            );
        }
        for subset in boxes(&grid, 7)
            .into_iter()
            .filter(|s| s.inbounds_shape(&grid))
        {
            attempt!(t, cache.retrieve_chunks_bytes(&subset, &options));
            attempt!(t, cache.retrieve_chunks::<Vec<u16>>(&subset, &options));
            attempt!(t, cache.retrieve_chunks_elements::<u16>(&subset, &options));
            attempt!(t, cache.retrieve_chunks_ndarray::<u16>(&subset, &options));
        }
    }
    t
}

/// The metadata is the same byte for byte, in memory and in the store, and the arrays describe
/// themselves alike.
#[test]
fn metadata() {
    let _alone = alone();
    for config in configs().into_iter().chain(other_shapes()) {
        let store = Arc::new(MemoryStore::new());
        let (stock, ours) = (config.stock(&store), config.ours(&store));
        assert_same(
            config.name,
            metadata_methods(&stock),
            metadata_methods(&ours),
        );
        assert_eq!(
            serde_json::to_string(ours.metadata()).unwrap(),
            serde_json::to_string(stock.metadata()).unwrap()
        );
        stock.store_metadata().unwrap();
        let by_stock = contents(&store);
        ours.store_metadata().unwrap();
        assert_eq!(contents(&store), by_stock);
        // With our codec registered, too: zarrs makes codecs to find out their names.
        let registration = registered();
        assert_same(
            config.name,
            metadata_methods(&stock),
            metadata_methods(&ours),
        );
        drop(registration);
    }
}

/// Every way of reading an array, whoever wrote it.
#[test]
fn reading() {
    let _alone = alone();
    for config in configs().into_iter().chain(other_shapes()) {
        for store in written(&config) {
            let (stock, ours) = (config.stock(&store), config.ours(&store));
            assert_same(config.name, reads(&stock), reads(&ours));
            let read = ours.retrieve_array_subset::<Vec<u16>>(&ours.subset_all());
            assert_eq!(read.unwrap(), config.elements());
        }
    }
}

/// Every way of reading subchunks, whoever wrote them.
#[test]
fn reading_subchunks() {
    let _alone = alone();
    for config in configs().into_iter().chain(other_shapes()) {
        for store in written(&config) {
            let (stock, ours) = (config.stock(&store), config.ours(&store));
            assert_same(config.name, subchunk_reads(&stock), subchunk_reads(&ours));
        }
    }
}

/// Every chunk cache. Those of partial decoders hold ours.
#[test]
fn reading_through_chunk_caches() {
    let _alone = alone();
    for config in configs() {
        let [_, store] = written(&config);
        let of = |array: Array<MemoryStore>| {
            let readable = Arc::new(array.with_storage::<dyn ReadableStorageTraits>(store.clone()));
            let mut t = Transcript::default();
            macro_rules! with {
                ($($cache:ident($capacity:expr)),*) => {
                    $({
                        let cache = $cache::new(readable.clone(), $capacity);
                        let cached = cached_reads(&cache, &config.shape, &config.shard);
                        let name = stringify!($cache);
                        t.0.extend(cached.0.into_iter().map(|(c, v)| (format!("{name}: {c}"), v)));
                    })*
                };
            }
            with!(
                ChunkCacheDecodedLruChunkLimit(2),
                ChunkCacheDecodedLruChunkLimitThreadLocal(2),
                ChunkCacheDecodedLruSizeLimit(100),
                ChunkCacheDecodedLruSizeLimitThreadLocal(100),
                ChunkCacheEncodedLruChunkLimit(2),
                ChunkCacheEncodedLruChunkLimitThreadLocal(2),
                ChunkCacheEncodedLruSizeLimit(1000),
                ChunkCacheEncodedLruSizeLimitThreadLocal(1000),
                ChunkCachePartialDecoderLruChunkLimit(2),
                ChunkCachePartialDecoderLruChunkLimitThreadLocal(2),
                ChunkCachePartialDecoderLruSizeLimit(1000),
                ChunkCachePartialDecoderLruSizeLimitThreadLocal(1000)
            );
            t
        };
        assert_same(
            config.name,
            of(config.stock(&store)),
            of(config.ours(&store)),
        );
    }
}

/// Our codec asks a store for no more than zarrs' does: two requests for a part of a shard, the
/// index and the subchunks, and not a byte more.
#[test]
fn requests_to_the_store() {
    let _alone = alone();
    for config in configs() {
        let [_, store] = written(&config);
        let store = Arc::new(PerformanceMetricsStorageAdapter::new(store));
        let (stock, ours) = (config.stock(&store), config.ours(&store));
        for subset in boxes(&config.shape, 11) {
            let cost = |array: &Array<_>| {
                store.reset();
                let _either = array.retrieve_array_subset::<Vec<u16>>(&subset);
                (store.reads(), store.bytes_read())
            };
            let (stock, ours) = (cost(&stock), cost(&ours));
            let name = config.name;
            assert!(
                ours.0 <= stock.0 && ours.1 <= stock.1,
                "{name}: {ours:?}, {stock:?}"
            );
        }
        if config.name == "plain" {
            store.reset();
            ours.retrieve_array_subset::<Vec<u16>>(&[0..1, 0..2])
                .unwrap();
            assert_eq!(store.reads(), 2);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Writing

/// Two arrays of the same metadata, each in its own store.
struct Pair {
    config: Config,
    stock: Array<MemoryStore>,
    ours: Array<MemoryStore>,
}

impl Pair {
    fn new(config: Config) -> Self {
        let stock = config.stock(&Arc::new(MemoryStore::new()));
        let ours = config.ours(&Arc::new(MemoryStore::new()));
        Self {
            config,
            stock,
            ours,
        }
    }

    /// Do something to both, and compare what it returns and what the stores have then: the same
    /// keys, and the same elements, whoever reads them. The same bytes, too, if they are
    /// `canonical`.
    fn does<T: Debug, E: Display>(
        &self,
        canonical: bool,
        call: &str,
        does: impl Fn(&Array<MemoryStore>) -> Result<T, E>,
    ) {
        let what = format!("{}: {call}", self.config.name);
        let outcome = |array| {
            let mut t = Transcript::default();
            t.result(call, does(array));
            t
        };
        assert_same(&what, outcome(&self.stock), outcome(&self.ours));

        let (by_stock, by_ours) = (self.stock.storage(), self.ours.storage());
        let (in_stock, in_ours) = (contents(&by_stock), contents(&by_ours));
        assert_eq!(
            in_ours.keys().collect::<Vec<_>>(),
            in_stock.keys().collect::<Vec<_>>(),
            "{what}"
        );
        if canonical && self.config.canonical {
            assert_eq!(in_ours, in_stock, "{what}");
        }
        let all = self.stock.subset_all();
        let elements = self.stock.retrieve_array_subset::<Vec<u16>>(&all).unwrap();
        for array in [
            &self.ours,
            &self.stock.with_storage(by_ours),
            &self.ours.with_storage(by_stock),
        ] {
            let other = array.retrieve_array_subset::<Vec<u16>>(&all).unwrap();
            assert_eq!(other, elements, "{what}");
        }
    }
}

/// Do something to both arrays of a pair.
macro_rules! both {
    ($pair:ident, $array:ident, $call:expr) => {
        $pair.does(true, stringify!($call), |$array| $call)
    };
}

/// The same, where zarrs leaves gaps.
macro_rules! both_with_gaps {
    ($pair:ident, $array:ident, $call:expr) => {
        $pair.does(false, stringify!($call), |$array| $call)
    };
}

fn numbers(len: usize, seed: u64) -> Vec<u16> {
    let mut rng = Rng(seed);
    (0..len)
        .map(|_| match rng.below(3) {
            0 => FILL,
            _ => u16::from(rng.byte()),
        })
        .collect()
}

fn array_of(shape: &[usize], seed: u64) -> ArrayD<u16> {
    ArrayD::from_shape_vec(shape, numbers(shape.iter().product(), seed)).unwrap()
}

/// Every way of writing an array.
#[test]
fn writing() {
    let _alone = alone();
    for config in configs() {
        let pair = Pair::new(config);
        let options = CodecOptions::default();
        let empty = vec![FILL; 24];
        both!(pair, a, a.store_metadata());
        both!(
            pair,
            a,
            a.store_metadata_opt(&ArrayMetadataOptions::default())
        );

        both!(pair, a, a.store_chunk(&[0, 0], numbers(24, 1)));
        both!(pair, a, a.store_chunk(&[2, 1], numbers(24, 2)));
        both!(pair, a, a.store_chunk(&[0, 0], numbers(23, 1)));
        both!(pair, a, a.store_chunk(&[0, 0], vec![1.0_f32; 24]));
        both!(pair, a, a.store_chunk(&[0, 0, 0], numbers(24, 1)));
        both!(pair, a, a.store_chunk(&[2, 1], &empty));
        both!(
            pair,
            a,
            a.store_chunk_opt(&[1, 1], numbers(24, 3), &options)
        );
        both!(pair, a, a.store_chunk_elements(&[0, 1], &numbers(24, 4)));
        both!(
            pair,
            a,
            a.store_chunk_elements_opt(&[0, 1], &numbers(24, 5), &options)
        );
        both!(
            pair,
            a,
            a.store_chunk_ndarray(&[1, 0], &array_of(&[4, 6], 6))
        );
        both!(
            pair,
            a,
            a.store_chunk_ndarray_opt(&[1, 0], &array_of(&[4, 6], 7), &options)
        );

        let chunks = ArraySubset::new_with_ranges(&[1..3, 0..2]);
        both!(pair, a, a.store_chunks(&chunks, numbers(96, 8)));
        both!(pair, a, a.store_chunks(&chunks, numbers(95, 8)));
        both!(
            pair,
            a,
            a.store_chunks_opt(&chunks, numbers(96, 9), &options)
        );
        both!(pair, a, a.store_chunks_elements(&chunks, &numbers(96, 10)));
        both!(
            pair,
            a,
            a.store_chunks_elements_opt(&chunks, &numbers(96, 11), &options)
        );
        both!(
            pair,
            a,
            a.store_chunks_ndarray(&chunks, &array_of(&[8, 12], 12))
        );
        both!(
            pair,
            a,
            a.store_chunks_ndarray_opt(&chunks, &array_of(&[8, 12], 13), &options)
        );

        let part = ArraySubset::new_with_ranges(&[1..4, 2..5]);
        let outside = ArraySubset::new_with_ranges(&[1..5, 2..5]);
        both!(
            pair,
            a,
            a.store_chunk_subset(&[0, 0], &part, numbers(9, 14))
        );
        both!(
            pair,
            a,
            a.store_chunk_subset(&[0, 0], &part, numbers(8, 14))
        );
        both!(
            pair,
            a,
            a.store_chunk_subset(&[0, 0], &outside, numbers(12, 14))
        );
        both!(
            pair,
            a,
            a.store_chunk_subset_opt(&[2, 1], &part, numbers(9, 15), &options)
        );
        both!(
            pair,
            a,
            a.store_chunk_subset_elements(&[0, 0], &part, &numbers(9, 16))
        );
        both!(
            pair,
            a,
            a.store_chunk_subset_elements_opt(&[0, 0], &part, &numbers(9, 17), &options)
        );
        both!(
            pair,
            a,
            a.store_chunk_subset_ndarray(&[0, 0], &[1, 0], &array_of(&[2, 6], 18))
        );
        both!(
            pair,
            a,
            a.store_chunk_subset_ndarray_opt(&[0, 0], &[1, 0], &array_of(&[2, 6], 19), &options)
        );

        let part = ArraySubset::new_with_ranges(&[3..9, 2..8]);
        both!(pair, a, a.store_array_subset(&part, numbers(36, 20)));
        both!(pair, a, a.store_array_subset(&part, numbers(35, 20)));
        both!(
            pair,
            a,
            a.store_array_subset_opt(&part, numbers(36, 21), &options)
        );
        both!(
            pair,
            a,
            a.store_array_subset_elements(&part, &numbers(36, 22))
        );
        both!(
            pair,
            a,
            a.store_array_subset_elements_opt(&part, &numbers(36, 23), &options)
        );
        both!(
            pair,
            a,
            a.store_array_subset_ndarray(&[3, 2], &array_of(&[6, 6], 24))
        );
        both!(
            pair,
            a,
            a.store_array_subset_ndarray_opt(&[3, 2], &array_of(&[6, 6], 25), &options)
        );
        both!(
            pair,
            a,
            a.store_array_subset(&a.subset_all(), numbers(90, 26))
        );

        both!(pair, a, a.compact_chunk(&[0, 0], &options));
        both!(pair, a, a.compact_chunk(&[2, 0], &options));
        both!(pair, a, a.erase_chunk(&[0, 0]));
        both!(pair, a, a.compact_chunk(&[0, 0], &options));
        both!(pair, a, a.erase_chunk(&[0, 0]));
        both!(
            pair,
            a,
            a.store_chunk_subset(&[0, 0], &[0..1, 0..1], vec![5_u16])
        );
        both!(
            pair,
            a,
            a.store_chunk_subset(&[0, 0], &[0..1, 0..1], vec![FILL])
        );
        both!(pair, a, a.erase_chunks(&chunks));
        both!(pair, a, a.erase_metadata());
    }
}

/// Options of writing: empty chunks that are stored all the same, and zarrs' partial encoding,
/// which our codec does not take part in.
#[test]
fn writing_with_options() {
    let _alone = alone();
    for config in configs() {
        let pair = Pair::new(config);
        let keep = CodecOptions::default().with_store_empty_chunks(true);
        let empty = vec![FILL; 24];
        both_with_gaps!(pair, a, a.store_chunk_opt(&[0, 0], &empty, &keep));
        both_with_gaps!(pair, a, a.store_chunk_opt(&[1, 0], numbers(24, 1), &keep));
        both_with_gaps!(
            pair,
            a,
            a.store_array_subset_opt(&[2..6, 1..7], &vec![FILL; 24], &keep)
        );

        let partial = CodecOptions::default().with_experimental_partial_encoding(true);
        both_with_gaps!(
            pair,
            a,
            a.store_array_subset_opt(&[0..9, 0..10], numbers(90, 2), &partial)
        );
        both_with_gaps!(
            pair,
            a,
            a.store_array_subset_opt(&[1..3, 1..9], numbers(16, 3), &partial)
        );
        both_with_gaps!(
            pair,
            a,
            a.store_chunk_subset_opt(&[0, 0], &[0..2, 0..3], &vec![FILL; 6], &partial)
        );
        both_with_gaps!(
            pair,
            a,
            a.store_chunk_opt(&[0, 1], numbers(24, 4), &partial)
        );
        // Both are compact now, or again.
        pair.stock.compact_chunk(&[0, 0], &partial).unwrap();
        pair.ours.compact_chunk(&[0, 0], &partial).unwrap();
        both_with_gaps!(pair, a, a.compact_chunk(&[0, 0], &partial));
    }
}

/// `Array::partial_encoder`, which is ours if zarrs' codecs around it let it be.
#[test]
fn partial_encoders() {
    let _alone = alone();
    for config in configs() {
        let pair = Pair::new(config);
        let options = CodecOptions::default();
        let writes: [([Range<u64>; 2], u64); 4] = [
            ([0..4, 0..6], 1),
            ([1..3, 2..5], 2),
            ([0..2, 0..3], 3),
            ([3..4, 5..6], 4),
        ];
        for (ranges, seed) in writes {
            both_with_gaps!(pair, a, {
                let subset = ArraySubset::new_with_ranges(&ranges);
                let elements: Vec<u8> = numbers(subset.num_elements_usize(), seed)
                    .into_iter()
                    .flat_map(u16::to_ne_bytes)
                    .collect();
                let encoder = a.partial_encoder(&[0, 1], &options).unwrap();
                encoder
                    .partial_encode(&subset, &ArrayBytes::from(elements), &options)
                    .map(|()| encoder.exists().unwrap())
            });
        }
        both_with_gaps!(
            pair,
            a,
            a.partial_encoder(&[0, 1], &options).unwrap().erase()
        );
    }
}

/// A shard with gaps, left behind by zarrs' partial encoding, is compacted to the same bytes.
#[test]
fn compacting_what_partial_encoding_left() {
    let _alone = alone();
    for config in configs() {
        let stock = config.stock(&Arc::new(MemoryStore::new()));
        let options = CodecOptions::default().with_experimental_partial_encoding(true);
        let mut writes = 0;
        for seed in 0..6 {
            let subset = ArraySubset::new_with_ranges(&[0..4, 3 * (seed % 2)..3 * (seed % 2) + 3]);
            let elements = numbers(12, seed);
            writes += usize::from(
                stock
                    .store_chunk_subset_opt(&[1, 0], &subset, elements, &options)
                    .is_ok(),
            );
        }
        assert!(writes > 0);
        let before = stock.retrieve_chunk::<Vec<u16>>(&[1, 0]).unwrap();
        let ours = config.ours(&copy(&stock.storage()));
        assert_eq!(
            ours.compact_chunk(&[1, 0], &options).unwrap(),
            stock.compact_chunk(&[1, 0], &options).unwrap(),
            "{}",
            config.name
        );
        assert!(!ours.compact_chunk(&[1, 0], &options).unwrap());
        assert_eq!(ours.retrieve_chunk::<Vec<u16>>(&[1, 0]).unwrap(), before);
        if config.canonical {
            assert_eq!(contents(&ours.storage()), contents(&stock.storage()));
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Builders

/// Arrays from builders: ours mirrors zarrs', gives the same metadata as `subchunk_shape`, and
/// survives being copied from an array.
#[test]
fn builders() {
    let _alone = alone();
    let data_type = data_type::uint16();
    let transpose = || -> Arc<dyn ArrayToArrayCodecTraits> {
        Arc::new(TransposeCodec::new(TransposeOrder::new(&[1, 0]).unwrap()))
    };
    let after = || -> Vec<Arc<dyn BytesToBytesCodecTraits>> {
        vec![
            Arc::new(ZstdCodec::new(3, true)),
            Arc::new(Crc32cCodec::new()),
        ]
    };
    let subchunk = || chunk_shape(&[2, 3]);
    let big: Arc<dyn ArrayToBytesCodecTraits> = Arc::new(zarrs::array::codec::BytesCodec::big());

    let mut builder = ArrayBuilder::new(vec![9, 10], vec![4, 6], data_type.clone(), FILL);
    let stock_default = ShardingCodecBuilder::new(subchunk(), &data_type).build_arc();
    let ours_default = CudaShardingCodecBuilder::new(subchunk(), &data_type).build_arc();
    let mut stock_full = ShardingCodecBuilder::new(subchunk(), &data_type);
    stock_full
        .array_to_array_codecs(vec![transpose()])
        .array_to_bytes_codec(big.clone())
        .bytes_to_bytes_codecs(after())
        .index_array_to_bytes_codec(big.clone())
        .index_bytes_to_bytes_codecs(vec![])
        .index_location(ShardingIndexLocation::Start);
    let mut ours_full = CudaShardingCodecBuilder::new(subchunk(), &data_type);
    ours_full
        .array_to_array_codecs(vec![transpose()])
        .array_to_bytes_codec(big.clone())
        .bytes_to_bytes_codecs(after())
        .index_array_to_bytes_codec(big)
        .index_bytes_to_bytes_codecs(vec![])
        .index_location(ShardingIndexLocation::Start);
    let pairs: [(
        Arc<dyn ArrayToBytesCodecTraits>,
        Arc<dyn ArrayToBytesCodecTraits>,
    ); 2] = [
        (stock_default, ours_default.unwrap()),
        (stock_full.build_arc(), ours_full.build_arc().unwrap()),
    ];
    for (stock, ours) in pairs {
        let store = Arc::new(MemoryStore::new());
        builder.bytes_to_bytes_codecs(vec![Arc::new(GzipCodec::new(1).unwrap())]);
        let stock = builder
            .array_to_bytes_codec(stock)
            .build(store.clone(), PATH)
            .unwrap();
        let ours = builder
            .array_to_bytes_codec(ours)
            .build(store.clone(), PATH)
            .unwrap();
        assert!(explain(&stock).is_err());
        assert_same("built", metadata_methods(&stock), metadata_methods(&ours));
        ours.store_array_subset(&ours.subset_all(), numbers(90, 1))
            .unwrap();
        assert_same("built", reads(&stock), reads(&ours));
        assert_same("built", subchunk_reads(&stock), subchunk_reads(&ours));

        for copied in [
            ours.builder().build(store.clone(), PATH).unwrap(),
            ArrayBuilder::from_array(&ours)
                .build(store.clone(), PATH)
                .unwrap(),
            *Box::new(ours.with_storage(store.clone())),
        ] {
            assert!(explain(&copied).is_ok(), "the codec is ours still");
            assert_same(
                "copied",
                metadata_methods(&stock),
                metadata_methods(&copied),
            );
            assert_same("copied", reads(&stock), reads(&copied));
        }
    }

    // The shorthand of `ArrayBuilder` makes the same metadata as our builder.
    let mut builder = ArrayBuilder::new(vec![9, 10], vec![4, 6], data_type.clone(), FILL);
    builder
        .bytes_to_bytes_codecs(after())
        .subchunk_shape(vec![2, 3]);
    let shorthand = builder.build_metadata().unwrap();
    let ours = CudaShardingCodecBuilder::new(subchunk(), &data_type)
        .bytes_to_bytes_codecs(after())
        .build_arc();
    builder
        .bytes_to_bytes_codecs(vec![])
        .subchunk_shape(None)
        .array_to_bytes_codec(ours.unwrap());
    assert_eq!(builder.build_metadata().unwrap(), shorthand);
}

/// An array that grows reads like zarrs'.
#[test]
fn resizing() {
    let _alone = alone();
    let config = configs().swap_remove(0);
    let [_, store] = written(&config);
    let grown = |mut array: Array<MemoryStore>| {
        array.set_shape(vec![20, 5]).unwrap();
        let mut t = reads(&array);
        t.0.extend(metadata_methods(&array).0);
        t.0.extend(subchunk_reads(&array).0);
        t
    };
    assert_same(
        "grown",
        grown(config.stock(&store)),
        grown(config.ours(&store)),
    );
}

// ---------------------------------------------------------------------------------------------
// Groups, and what is not sharded

/// Groups, nodes and hierarchies are the same with our codec registered, and the arrays that they
/// open are ours.
#[test]
fn groups() {
    let _alone = alone();
    let config = configs().swap_remove(2);
    let [_, store] = written(&config);
    let group = Group::new_with_metadata(
        store.clone(),
        "/group",
        serde_json::from_value(json!({ "zarr_format": 3, "node_type": "group" })).unwrap(),
    );
    group.unwrap().store_metadata().unwrap();

    let look = || {
        let mut t = Transcript::default();
        let group = Group::open(store.clone(), "/group").unwrap();
        attempt!(t, group.child_paths());
        attempt!(t, group.child_array_paths());
        attempt!(t, group.child_group_paths());
        attempt!(t, group.traverse());
        attempt!(t, group.children(true));
        note!(t, Node::open(&store, "/group").unwrap().hierarchy_tree());
        note!(t, Hierarchy::open(&store, "/").unwrap().tree());
        let arrays = group.child_arrays().unwrap();
        assert_eq!(arrays.len(), 1);
        for array in &arrays {
            t.0.extend(reads(array).0);
            t.0.extend(metadata_methods(array).0);
        }
        (t, explain(&arrays[0]).is_ok())
    };
    let (stock, is_ours) = look();
    assert!(!is_ours);
    let registration = registered();
    let (ours, is_ours) = look();
    assert!(is_ours);
    drop(registration);
    assert_same("group", stock, ours);
}

/// Arrays without shards, of Zarr V3 and V2, are none of our codec's business.
#[test]
fn arrays_that_are_not_sharded() {
    let _alone = alone();
    let v2 = json!({
        "zarr_format": 2,
        "shape": [9, 10],
        "chunks": [4, 6],
        "dtype": "<u2",
        "fill_value": FILL,
        "order": "F",
        "filters": null,
        "compressor": { "id": "zlib", "level": 1 },
    });
    // zlib is a feature of zarrs that may be off.
    let mut uncompressed = v2.clone();
    uncompressed["compressor"] = Value::Null;
    let mut v3 = configs().swap_remove(0);
    v3.codecs = vec![codecs::bytes("big"), codecs::gzip(1)];
    for metadata in [uncompressed, v3.json()] {
        let metadata: ArrayMetadata = serde_json::from_value(metadata).unwrap();
        let store = Arc::new(MemoryStore::new());
        let open = || Array::new_with_metadata(store.clone(), PATH, metadata.clone()).unwrap();
        let before = open();
        let registration = registered();
        let during = open();
        drop(registration);
        let whole = during.subset_all();
        during.store_array_subset(&whole, numbers(90, 1)).unwrap();
        assert_same("not sharded", reads(&before), reads(&during));
        assert_same(
            "not sharded",
            subchunk_reads(&before),
            subchunk_reads(&during),
        );
        assert!(matches!(explain(&during), Err(Error::ForeignCodec { .. })));
        let text = |array: Array<MemoryStore>| array.to_v3().unwrap().metadata().to_string();
        assert_eq!(text(during), text(before));
    }
}

// ---------------------------------------------------------------------------------------------
// Asynchronously

/// Every method of an array that reads, asynchronously.
async fn async_reads<S: ?Sized + AsyncReadableStorageTraits + 'static>(
    array: &Array<S>,
) -> Transcript {
    let mut t = Transcript::default();
    let grid = array.chunk_grid_shape().to_vec();
    let options = CodecOptions::default();
    let (a, o) = (array, &options);
    let mut chunks: Vec<Vec<u64>> = common::all_indices(&grid).collect();
    chunks.push(vec![77; grid.len()]);
    chunks.push(vec![0; grid.len() + 1]);
    for c in &chunks {
        attempt!(t, a.async_retrieve_chunk_if_exists::<Vec<u16>>(c).await);
        attempt!(
            t,
            a.async_retrieve_chunk_if_exists_opt::<ArrayBytes>(c, o)
                .await
        );
        attempt!(t, a.async_retrieve_chunk_elements_if_exists::<u16>(c).await);
        attempt!(
            t,
            a.async_retrieve_chunk_elements_if_exists_opt::<u16>(c, o)
                .await
        );
        attempt!(t, a.async_retrieve_chunk_ndarray_if_exists::<u16>(c).await);
        attempt!(
            t,
            a.async_retrieve_chunk_ndarray_if_exists_opt::<u16>(c, o)
                .await
        );
        attempt!(t, a.async_retrieve_chunk::<Vec<u16>>(c).await);
        attempt!(t, a.async_retrieve_chunk_opt::<ArrayD<u16>>(c, o).await);
        attempt!(t, a.async_retrieve_chunk_elements::<u16>(c).await);
        attempt!(t, a.async_retrieve_chunk_elements_opt::<u16>(c, o).await);
        attempt!(t, a.async_retrieve_chunk_ndarray::<u16>(c).await);
        attempt!(t, a.async_retrieve_chunk_ndarray_opt::<u16>(c, o).await);
        attempt!(
            t,
            a.async_retrieve_encoded_chunk(c)
                .await
                .map(|chunk| chunk.is_some())
        );
        let shard = array.chunk_shape_usize(&vec![0; grid.len()]).unwrap();
        let shard: Vec<u64> = shard.iter().map(|&d| d as u64).collect();
        for s in &boxes(&shard, 3) {
            attempt!(t, a.async_retrieve_chunk_subset::<Vec<u16>>(c, s).await);
            attempt!(
                t,
                a.async_retrieve_chunk_subset_opt::<ArrayBytes>(c, s, o)
                    .await
            );
            attempt!(t, a.async_retrieve_chunk_subset_elements::<u16>(c, s).await);
            attempt!(
                t,
                a.async_retrieve_chunk_subset_elements_opt::<u16>(c, s, o)
                    .await
            );
            attempt!(t, a.async_retrieve_chunk_subset_ndarray::<u16>(c, s).await);
            attempt!(
                t,
                a.async_retrieve_chunk_subset_ndarray_opt::<u16>(c, s, o)
                    .await
            );
            if let Ok(decoder) = a.async_partial_decoder_opt(c, o).await
                && s.inbounds_shape(&shard)
            {
                note!(t, decoder.exists().await.unwrap());
                attempt!(t, decoder.partial_decode(s, o).await);
                let points: Vec<Vec<u64>> = s.iter_indices().map(|i| i.to_vec()).collect();
                if !points.is_empty() {
                    attempt!(t, decoder.partial_decode(&points, o).await);
                }
            }
        }
    }
    for s in &boxes(&grid, 5) {
        attempt!(t, a.async_retrieve_chunks::<Vec<u16>>(s).await);
        attempt!(t, a.async_retrieve_chunks_opt::<ArrayD<u16>>(s, o).await);
        attempt!(t, a.async_retrieve_chunks_elements::<u16>(s).await);
        attempt!(t, a.async_retrieve_chunks_elements_opt::<u16>(s, o).await);
        attempt!(t, a.async_retrieve_chunks_ndarray::<u16>(s).await);
        attempt!(t, a.async_retrieve_chunks_ndarray_opt::<u16>(s, o).await);
        attempt!(
            t,
            a.async_retrieve_encoded_chunks(s, o)
                .await
                .map(|chunks| chunks.len())
        );
    }
    for s in &boxes(array.shape(), 7) {
        attempt!(t, a.async_retrieve_array_subset::<Vec<u16>>(s).await);
        attempt!(t, a.async_retrieve_array_subset_elements::<u16>(s).await);
        attempt!(t, a.async_retrieve_array_subset_ndarray::<u16>(s).await);
        attempt!(
            t,
            a.async_retrieve_array_subset_opt::<ArrayBytes>(s, o).await
        );
        attempt!(
            t,
            a.async_retrieve_array_subset_elements_opt::<u16>(s, o)
                .await
        );
        attempt!(
            t,
            a.async_retrieve_array_subset_ndarray_opt::<u16>(s, o).await
        );
    }
    t
}

/// Every method of `AsyncArrayShardedReadableExt` and its cache.
async fn async_subchunk_reads<S: ?Sized + AsyncReadableStorageTraits + 'static>(
    a: &Array<S>,
) -> Transcript {
    let mut t = Transcript::default();
    let options = CodecOptions::default();
    let cache = AsyncArrayShardedReadableExtCache::new(a);
    let (c, o) = (&cache, &options);
    note!(t, cache.array_is_sharded());
    note!(t, cache.array_is_exclusively_sharded());
    note!(t, cache.is_empty().await);
    let grid = a.subchunk_grid_shape();
    let mut subchunks: Vec<Vec<u64>> = common::all_indices(&grid).collect();
    subchunks.push(vec![77; grid.len()]);
    for i in &subchunks {
        attempt!(t, a.async_subchunk_byte_range(c, i).await);
        attempt!(t, a.async_retrieve_encoded_subchunk(c, i).await);
        attempt!(t, a.async_retrieve_subchunk_opt::<Vec<u16>>(c, i, o).await);
        attempt!(
            t,
            a.async_retrieve_subchunk_opt::<ArrayBytes>(c, i, o).await
        );
        attempt!(
            t,
            a.async_retrieve_subchunk_elements_opt::<u16>(c, i, o).await
        );
        attempt!(
            t,
            a.async_retrieve_subchunk_ndarray_opt::<u16>(c, i, o).await
        );
    }
    note!(t, cache.len().await);
    cache.clear().await;
    note!(t, cache.len().await);
    for s in &boxes(&grid, 1) {
        attempt!(t, a.async_retrieve_subchunks_opt::<Vec<u16>>(c, s, o).await);
        attempt!(
            t,
            a.async_retrieve_subchunks_elements_opt::<u16>(c, s, o)
                .await
        );
        attempt!(
            t,
            a.async_retrieve_subchunks_ndarray_opt::<u16>(c, s, o).await
        );
        note!(t, cache.len().await);
    }
    cache.clear().await;
    for s in &boxes(a.shape(), 2) {
        attempt!(
            t,
            a.async_retrieve_array_subset_sharded_opt::<Vec<u16>>(c, s, o)
                .await
        );
        attempt!(
            t,
            a.async_retrieve_array_subset_sharded_opt::<ArrayBytes>(c, s, o)
                .await
        );
        attempt!(
            t,
            a.async_retrieve_array_subset_elements_sharded_opt::<u16>(c, s, o)
                .await
        );
        attempt!(
            t,
            a.async_retrieve_array_subset_ndarray_sharded_opt::<u16>(c, s, o)
                .await
        );
        note!(t, cache.len().await);
    }
    t
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

/// Every way of reading an array asynchronously, whoever wrote it.
#[test]
fn async_reading() {
    let _alone = alone();
    for config in configs().into_iter().chain(other_shapes()) {
        for store in written(&config) {
            block_on(async {
                let store = async_copy(&store).await;
                let (stock, ours) = (config.stock(&store), config.ours(&store));
                assert_same(
                    config.name,
                    async_reads(&stock).await,
                    async_reads(&ours).await,
                );
                let whole = ours.subset_all();
                let read = ours.async_retrieve_array_subset::<Vec<u16>>(&whole).await;
                assert_eq!(read.unwrap(), config.elements());
            });
        }
    }
}

/// Every way of reading subchunks asynchronously, whoever wrote them.
#[test]
fn async_reading_subchunks() {
    let _alone = alone();
    for config in configs().into_iter().chain(other_shapes()) {
        for store in written(&config) {
            block_on(async {
                let store = async_copy(&store).await;
                let (stock, ours) = (config.stock(&store), config.ours(&store));
                let stock = async_subchunk_reads(&stock).await;
                let ours = async_subchunk_reads(&ours).await;
                assert_same(config.name, stock, ours);
            });
        }
    }
}

/// Every way of writing an array asynchronously.
async fn async_writes(a: &Array<AsyncMemoryStore>, canonical: bool) -> Transcript {
    let mut t = Transcript::default();
    let options = CodecOptions::default();
    let o = &options;
    let chunks = ArraySubset::new_with_ranges(&[1..3, 0..2]);
    let part = ArraySubset::new_with_ranges(&[1..4, 2..5]);
    let outside = ArraySubset::new_with_ranges(&[1..5, 2..5]);
    let middle = ArraySubset::new_with_ranges(&[3..9, 2..8]);
    let store = a.storage();
    macro_rules! step {
        ($call:expr) => {
            attempt!(t, $call);
            let contents = async_contents(&store).await;
            note!(t, contents.keys().collect::<Vec<_>>());
            if canonical {
                note!(t, contents);
            }
            attempt!(
                t,
                a.async_retrieve_array_subset::<Vec<u16>>(&a.subset_all())
                    .await
            );
        };
    }
    step!(a.async_store_metadata().await);
    step!(
        a.async_store_metadata_opt(&ArrayMetadataOptions::default())
            .await
    );
    step!(a.async_store_chunk(&[0, 0], numbers(24, 1)).await);
    step!(a.async_store_chunk(&[0, 0], numbers(23, 1)).await);
    step!(a.async_store_chunk_opt(&[2, 1], numbers(24, 2), o).await);
    step!(a.async_store_chunk(&[2, 1], vec![FILL; 24]).await);
    step!(a.async_store_chunk_elements(&[0, 1], &numbers(24, 4)).await);
    step!(
        a.async_store_chunk_elements_opt(&[0, 1], &numbers(24, 5), o)
            .await
    );
    step!(
        a.async_store_chunk_ndarray(&[1, 0], &array_of(&[4, 6], 6))
            .await
    );
    step!(
        a.async_store_chunk_ndarray_opt(&[1, 0], &array_of(&[4, 6], 7), o)
            .await
    );
    step!(a.async_store_chunks(&chunks, numbers(96, 8)).await);
    step!(a.async_store_chunks_opt(&chunks, numbers(96, 9), o).await);
    step!(
        a.async_store_chunks_elements(&chunks, &numbers(96, 10))
            .await
    );
    step!(
        a.async_store_chunks_elements_opt(&chunks, &numbers(96, 11), o)
            .await
    );
    step!(
        a.async_store_chunks_ndarray(&chunks, &array_of(&[8, 12], 12))
            .await
    );
    step!(
        a.async_store_chunks_ndarray_opt(&chunks, &array_of(&[8, 12], 13), o)
            .await
    );
    step!(
        a.async_store_chunk_subset(&[0, 0], &part, numbers(9, 14))
            .await
    );
    step!(
        a.async_store_chunk_subset(&[0, 0], &outside, numbers(12, 14))
            .await
    );
    step!(
        a.async_store_chunk_subset_opt(&[2, 1], &part, numbers(9, 15), o)
            .await
    );
    step!(
        a.async_store_chunk_subset_elements(&[0, 0], &part, &numbers(9, 16))
            .await
    );
    step!(
        a.async_store_chunk_subset_elements_opt(&[0, 0], &part, &numbers(9, 17), o)
            .await
    );
    let wide = array_of(&[2, 6], 18);
    step!(
        a.async_store_chunk_subset_ndarray(&[0, 0], &[1, 0], &wide)
            .await
    );
    step!(
        a.async_store_chunk_subset_ndarray_opt(&[0, 0], &[2, 0], &wide, o)
            .await
    );
    step!(a.async_store_array_subset(&middle, numbers(36, 20)).await);
    step!(a.async_store_array_subset(&middle, numbers(35, 20)).await);
    step!(
        a.async_store_array_subset_opt(&middle, numbers(36, 21), o)
            .await
    );
    step!(
        a.async_store_array_subset_elements(&middle, &numbers(36, 22))
            .await
    );
    step!(
        a.async_store_array_subset_elements_opt(&middle, &numbers(36, 23), o)
            .await
    );
    step!(
        a.async_store_array_subset_ndarray(&[3, 2], &array_of(&[6, 6], 24))
            .await
    );
    step!(
        a.async_store_array_subset_ndarray_opt(&[3, 2], &array_of(&[6, 6], 25), o)
            .await
    );
    step!(a.async_compact_chunk(&[0, 0], o).await);
    step!(a.async_erase_chunk(&[0, 0]).await);
    step!(a.async_compact_chunk(&[0, 0], o).await);
    step!(a.async_erase_chunks(&chunks).await);
    step!(a.async_erase_metadata().await);
    t
}

#[test]
fn async_writing() {
    let _alone = alone();
    for config in configs() {
        block_on(async {
            let stock = config.stock(&Arc::new(AsyncMemoryStore::new()));
            let ours = config.ours(&Arc::new(AsyncMemoryStore::new()));
            let stock = async_writes(&stock, config.canonical).await;
            let ours = async_writes(&ours, config.canonical).await;
            assert_same(config.name, stock, ours);
        });
    }
}

/// `Array::async_partial_encoder`.
#[test]
fn async_partial_encoders() {
    let _alone = alone();
    for config in configs() {
        let name = config.name;
        block_on(async {
            let ours = config.ours(&Arc::new(AsyncMemoryStore::new()));
            let options = CodecOptions::default();
            let encoder = ours.async_partial_encoder(&[0, 1], &options).await.unwrap();
            let mut model = vec![FILL; 24];
            for (rows, columns, seed) in [(0..4, 0..6, 1), (1..3, 2..5, 2), (3..4, 5..6, 3)] {
                let subset = ArraySubset::new_with_ranges(&[rows, columns]);
                let elements = numbers(subset.num_elements_usize(), seed);
                for (indices, element) in subset.indices().into_iter().zip(&elements) {
                    model[usize::try_from(6 * indices[0] + indices[1]).unwrap()] = *element;
                }
                let bytes: Vec<u8> = elements.into_iter().flat_map(u16::to_ne_bytes).collect();
                let bytes = ArrayBytes::from(bytes);
                encoder
                    .partial_encode(&subset, &bytes, &options)
                    .await
                    .unwrap();
                let stock = config.stock(&ours.storage());
                for array in [&stock, &ours] {
                    let read = array.async_retrieve_chunk::<Vec<u16>>(&[0, 1]).await;
                    assert_eq!(read.unwrap(), model, "{name}");
                }
            }
            encoder.erase().await.unwrap();
            assert!(!encoder.exists().await.unwrap());
        });
    }
}
