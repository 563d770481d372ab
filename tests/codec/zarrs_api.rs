//! zarrs behaves the same with our codec: every way of reading and writing arrays is compared with
//! zarrs' own codec.
//!
//! Arrays are opened twice from the same metadata, once while our codec is registered and once
//! while it is not. Each operation is done to both, and must have the same result, down to error
//! messages.

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};

use futures::FutureExt;
use ndarray::ArrayD;
use serde_json::{Value, json};
use zarrs::array::chunk_cache::{
    ChunkCache, ChunkCacheDecodedLruChunkLimit, ChunkCacheDecodedLruChunkLimitThreadLocal,
    ChunkCacheDecodedLruSizeLimit, ChunkCacheDecodedLruSizeLimitThreadLocal,
    ChunkCacheEncodedLruChunkLimit, ChunkCacheEncodedLruChunkLimitThreadLocal,
    ChunkCacheEncodedLruSizeLimit, ChunkCacheEncodedLruSizeLimitThreadLocal,
    ChunkCachePartialDecoderLruChunkLimit, ChunkCachePartialDecoderLruChunkLimitThreadLocal,
    ChunkCachePartialDecoderLruSizeLimit, ChunkCachePartialDecoderLruSizeLimitThreadLocal,
    ChunkCacheTypeDecoded,
};
use zarrs::array::codec::{
    Crc32cCodec, GzipCodec, ShardingCodecBuilder, ShardingCodecOptions, ShardingIndexLocation,
    SubchunkWriteOrder, TransposeCodec, ZstdCodec,
};
use zarrs::array::{
    Array, ArrayBuilder, ArrayBytes, ArrayError, ArrayMetadata, ArrayMetadataOptions,
    ArrayShardedExt, ArrayShardedReadableExt, ArrayShardedReadableExtCache, ArraySubset,
    ArraySubsetTraits, AsyncArrayShardedReadableExt, AsyncArrayShardedReadableExtCache, Indexer,
    data_type,
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
    ListableStorageTraits, ReadableStorageTraits, StoreKey, WritableStorageTraits,
};
use zarrs_codec::{
    ArrayToArrayCodecTraits, ArrayToBytesCodecTraits, BytesToBytesCodecTraits,
    CodecMetadataOptions, CodecOptions, CodecSpecificOptions,
};
use zarrs_cuda::{CudaShardingCodecBuilder, Error, Options, Registration, explain, register};

use zarrs_cuda_testing::{Rng, chunk_shape, codecs, panics};

/// A lock: registration affects the whole process.
fn alone() -> MutexGuard<'static, ()> {
    panics::watch();
    crate::alone()
}

fn registered() -> Registration {
    register(Options::default()).unwrap()
}

// ---------------------------------------------------------------------------------------------
// Arrays

/// The metadata of an array.
#[derive(Clone)]
struct Config {
    name: &'static str,
    shape: Vec<u64>,
    shard: Vec<u64>,
    codecs: Vec<Value>,
    /// Whether equal elements always have the same encoding.
    canonical: bool,
}

fn sharding(chunk_shape: &[u64], codecs: &[Value]) -> Value {
    let mut sharding = codecs::sharding(chunk_shape, codecs);
    sharding["configuration"]["index_location"] = json!("end");
    sharding
}

/// Two-dimensional arrays of 9 × 10 elements, in shards of 4 × 6: the last shards extend beyond the
/// array.
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

    /// Opens the array with zarrs' codec. Subchunks lie in C order, as in our shards.
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

    /// A value for each element. Some subchunks and the last shard are empty.
    fn elements(&self) -> Vec<u16> {
        zarrs_cuda_testing::all_indices(&self.shape)
            .map(|indices| {
                let (rows, columns) = indices.split_at(indices.len().min(1));
                let block = rows.iter().map(|i| i / 2).sum::<u64>()
                    + columns.iter().map(|i| i / 6 * 2).sum::<u64>();
                let shards = indices.iter().zip(&self.shape).zip(&self.shard);
                let in_last = shards.map(|((i, n), d)| i / d == (n - 1) / d);
                if block % 3 == 1 || (!indices.is_empty() && in_last.into_iter().all(|last| last)) {
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

/// Returns everything in a store.
fn contents(store: &MemoryStore) -> BTreeMap<StoreKey, Vec<u8>> {
    let keys = store.list().unwrap();
    keys.into_iter()
        .map(|key| {
            let value = store.get(&key).unwrap().unwrap().to_vec();
            (key, value)
        })
        .collect()
}

fn copy(store: &MemoryStore) -> Arc<MemoryStore> {
    let copy = MemoryStore::new();
    for (key, value) in contents(store) {
        copy.set(&key, value.into()).unwrap();
    }
    Arc::new(copy)
}

async fn async_copy(store: &MemoryStore) -> Arc<AsyncMemoryStore> {
    let copy = AsyncMemoryStore::new();
    for (key, value) in contents(store) {
        copy.set(&key, value.into()).await.unwrap();
    }
    Arc::new(copy)
}

async fn async_contents(store: &AsyncMemoryStore) -> BTreeMap<StoreKey, Vec<u8>> {
    let mut contents = BTreeMap::new();
    for key in store.list().await.unwrap() {
        let value = store.get(&key).await.unwrap().unwrap();
        contents.insert(key, value.to_vec());
    }
    contents
}

/// Two stores with the same elements: one written by zarrs' codec, one by ours.
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

/// Boxes within an array, and some outside of it.
fn boxes(shape: &[u64], seed: u64) -> Vec<ArraySubset> {
    let mut rng = Rng(seed);
    let mut boxes = vec![
        ArraySubset::new_with_shape(shape.to_vec()),
        ArraySubset::new_with_shape(shape.iter().map(|d| d.div_ceil(2)).collect()),
        ArraySubset::new_with_shape(shape.iter().map(|d| d + 1).collect()),
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

/// The calls and their results; `None` if a call panicked.
#[derive(Default)]
struct Transcript(Vec<(String, Option<String>)>);

impl Transcript {
    fn note(&mut self, call: &str, returned: Option<String>) {
        self.0.push((call.to_string(), returned));
    }
}

/// The result or error of a call as text; `None` if the call panicked.
fn text<T: Debug, E: Display>(result: std::thread::Result<Result<T, E>>) -> Option<String> {
    match result.ok()? {
        Ok(value) => Some(format!("{value:?}")),
        // Some of zarrs' errors panic when they are formatted.
        Err(error) => catch_unwind(AssertUnwindSafe(|| error.to_string())).ok(),
    }
}

/// Records a call that cannot fail, and its result.
macro_rules! note {
    ($to:ident, $call:expr) => {
        $to.note(stringify!($call), Some(format!("{:?}", $call)))
    };
}

/// Records a call, and its result or error.
macro_rules! attempt {
    ($to:ident, $call:expr) => {
        $to.note(
            stringify!($call),
            text(catch_unwind(AssertUnwindSafe(|| $call))),
        )
    };
}

/// The same, asynchronously.
macro_rules! attempt_async {
    ($to:ident, $call:expr) => {
        $to.note(
            stringify!($call),
            text(AssertUnwindSafe(async { $call.await }).catch_unwind().await),
        )
    };
}

fn assert_same(what: &str, stock: Transcript, ours: Transcript) {
    assert!(!stock.0.is_empty());
    assert_eq!(stock.0.len(), ours.0.len(), "{what}");
    for ((call, stock), (_, ours)) in stock.0.into_iter().zip(ours.0) {
        // zarrs panics if subchunks are empty and the indexer is a list of elements, or the offset
        // of such a subchunk is requested. With our codec zarrs' code panics as well.
        if stock.is_some() {
            assert_eq!(ours, stock, "{what}: {call}");
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Reading

/// Calls every method of an array that reads only its metadata.
fn metadata_methods<S>(array: &Array<S>) -> Transcript {
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

/// The shape of the shards of an array.
fn shard_shape<S>(array: &Array<S>) -> Vec<u64> {
    let shape = array.chunk_shape(&vec![0; array.dimensionality()]).unwrap();
    shape.iter().map(|d| d.get()).collect()
}

/// The chunks of a grid, and some outside of it.
fn chunks(grid: &[u64]) -> Vec<Vec<u64>> {
    let outside = [vec![77; grid.len()], vec![0; grid.len() + 1]];
    zarrs_cuda_testing::all_indices(grid)
        .chain(outside)
        .collect()
}

/// The indices of the elements of a box.
fn points(subset: &ArraySubset) -> Vec<Vec<u64>> {
    subset.iter_indices().map(|i| i.to_vec()).collect()
}

/// Calls every method of an array that reads.
fn reads(a: &Array<MemoryStore>) -> Transcript {
    let mut t = Transcript::default();
    let o = &CodecOptions::default();
    for c in &chunks(a.chunk_grid_shape()) {
        attempt!(t, a.retrieve_chunk_if_exists::<Vec<u16>>(c));
        attempt!(t, a.retrieve_chunk_if_exists_opt::<Vec<u16>>(c, o));
        attempt!(t, a.retrieve_chunk_elements_if_exists::<u16>(c));
        attempt!(t, a.retrieve_chunk_elements_if_exists_opt::<u16>(c, o));
        attempt!(t, a.retrieve_chunk_ndarray_if_exists::<u16>(c));
        attempt!(t, a.retrieve_chunk_ndarray_if_exists_opt::<u16>(c, o));
        attempt!(t, a.retrieve_chunk::<Vec<u16>>(c));
        attempt!(t, a.retrieve_chunk_opt::<Vec<u16>>(c, o));
        attempt!(t, a.retrieve_chunk_elements::<u16>(c));
        attempt!(t, a.retrieve_chunk_elements_opt::<u16>(c, o));
        attempt!(t, a.retrieve_chunk_ndarray::<u16>(c));
        attempt!(t, a.retrieve_chunk_ndarray_opt::<u16>(c, o));
        attempt!(t, a.retrieve_encoded_chunk(c));
        // The requested type is a wrong one.
        attempt!(t, a.retrieve_chunk::<Vec<f32>>(c));
        attempt!(
            t,
            a.partial_decoder(c)
                .map(|decoder| decoder.exists().unwrap())
        );
        let shard = shard_shape(a);
        for s in &boxes(&shard, 3) {
            attempt!(t, a.retrieve_chunk_subset::<Vec<u16>>(c, s));
            attempt!(t, a.retrieve_chunk_subset_opt::<Vec<u16>>(c, s, o));
            attempt!(t, a.retrieve_chunk_subset_elements::<u16>(c, s));
            attempt!(t, a.retrieve_chunk_subset_elements_opt::<u16>(c, s, o));
            attempt!(t, a.retrieve_chunk_subset_ndarray::<u16>(c, s));
            attempt!(t, a.retrieve_chunk_subset_ndarray_opt::<u16>(c, s, o));
            if let Ok(decoder) = a.partial_decoder_opt(c, o)
                && s.inbounds_shape(&shard)
            {
                attempt!(t, decoder.partial_decode(s, o));
                attempt!(t, decoder.partial_decode(&points(s), o));
            }
        }
    }
    for s in &boxes(a.chunk_grid_shape(), 5) {
        attempt!(t, a.retrieve_chunks::<Vec<u16>>(s));
        attempt!(t, a.retrieve_chunks_opt::<Vec<u16>>(s, o));
        attempt!(t, a.retrieve_chunks_elements::<u16>(s));
        attempt!(t, a.retrieve_chunks_elements_opt::<u16>(s, o));
        attempt!(t, a.retrieve_chunks_ndarray::<u16>(s));
        attempt!(t, a.retrieve_chunks_ndarray_opt::<u16>(s, o));
        attempt!(t, a.retrieve_encoded_chunks(s, o));
    }
    for s in &boxes(a.shape(), 7) {
        attempt!(t, a.retrieve_array_subset::<Vec<u16>>(s));
        attempt!(t, a.retrieve_array_subset::<ArrayBytes>(s));
        attempt!(t, a.retrieve_array_subset_elements::<u16>(s));
        attempt!(t, a.retrieve_array_subset_ndarray::<u16>(s));
        for target in [1, 2, 0] {
            let o = &o.with_concurrent_target(target);
            attempt!(t, a.retrieve_array_subset_opt::<Vec<u16>>(s, o));
            attempt!(t, a.retrieve_array_subset_elements_opt::<u16>(s, o));
            attempt!(t, a.retrieve_array_subset_ndarray_opt::<u16>(s, o));
        }
    }
    t
}

/// Calls every method of `ArrayShardedReadableExt` and its cache.
fn subchunk_reads(a: &Array<MemoryStore>) -> Transcript {
    let mut t = Transcript::default();
    let o = &CodecOptions::default();
    let c = &ArrayShardedReadableExtCache::new(a);
    note!(t, c.array_is_sharded());
    note!(t, c.array_is_exclusively_sharded());
    note!(t, c.is_empty());
    let grid = a.subchunk_grid_shape();
    for i in zarrs_cuda_testing::all_indices(&grid).chain([vec![77; grid.len()]]) {
        let i = i.as_slice();
        attempt!(t, a.subchunk_byte_range(c, i));
        attempt!(t, a.retrieve_encoded_subchunk(c, i));
        attempt!(t, a.retrieve_subchunk_opt::<Vec<u16>>(c, i, o));
        attempt!(t, a.retrieve_subchunk_elements_opt::<u16>(c, i, o));
        attempt!(t, a.retrieve_subchunk_ndarray_opt::<u16>(c, i, o));
    }
    note!(t, c.len());
    c.clear();
    note!(t, c.len());
    for s in &boxes(&grid, 1) {
        attempt!(t, a.retrieve_subchunks_opt::<Vec<u16>>(c, s, o));
        attempt!(t, a.retrieve_subchunks_elements_opt::<u16>(c, s, o));
        attempt!(t, a.retrieve_subchunks_ndarray_opt::<u16>(c, s, o));
        note!(t, c.len());
    }
    c.clear();
    for s in &boxes(a.shape(), 2) {
        attempt!(t, a.retrieve_array_subset_sharded_opt::<Vec<u16>>(c, s, o));
        attempt!(
            t,
            a.retrieve_array_subset_elements_sharded_opt::<u16>(c, s, o)
        );
        attempt!(
            t,
            a.retrieve_array_subset_ndarray_sharded_opt::<u16>(c, s, o)
        );
        note!(t, c.len());
    }
    t
}

/// A chunk cache of any kind.
struct AnyCache(Box<dyn ChunkCache>);

impl ChunkCache for AnyCache {
    fn array(&self) -> Arc<Array<dyn ReadableStorageTraits>> {
        self.0.array()
    }

    fn retrieve_chunk_bytes(
        &self,
        chunk_indices: &[u64],
        options: &CodecOptions,
    ) -> Result<ChunkCacheTypeDecoded, ArrayError> {
        self.0.retrieve_chunk_bytes(chunk_indices, options)
    }

    fn retrieve_chunk_subset_bytes(
        &self,
        chunk_indices: &[u64],
        chunk_subset: &dyn ArraySubsetTraits,
        options: &CodecOptions,
    ) -> Result<ChunkCacheTypeDecoded, ArrayError> {
        self.0
            .retrieve_chunk_subset_bytes(chunk_indices, chunk_subset, options)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Calls every method of `ChunkCache` twice, to read from the store and from the cache.
fn cached_reads(a: &AnyCache, shape: &[u64], shard: &[u64]) -> Transcript {
    let mut t = Transcript::default();
    let o = &CodecOptions::default();
    let grid = a.array().chunk_grid_shape().to_vec();
    for _ in 0..2 {
        for c in zarrs_cuda_testing::all_indices(&grid) {
            let c = c.as_slice();
            attempt!(t, a.retrieve_chunk_bytes(c, o));
            attempt!(t, a.retrieve_chunk::<Vec<u16>>(c, o));
            attempt!(t, a.retrieve_chunk_elements::<u16>(c, o));
            attempt!(t, a.retrieve_chunk_ndarray::<u16>(c, o));
            for s in boxes(shard, 3).iter().filter(|s| s.inbounds_shape(shard)) {
                attempt!(t, a.retrieve_chunk_subset_bytes(c, s, o));
                attempt!(t, a.retrieve_chunk_subset::<Vec<u16>>(c, s, o));
                attempt!(t, a.retrieve_chunk_subset_elements::<u16>(c, s, o));
                attempt!(t, a.retrieve_chunk_subset_ndarray::<u16>(c, s, o));
            }
            note!(t, a.is_empty());
        }
        for s in &boxes(shape, 5) {
            attempt!(t, a.retrieve_array_subset_bytes(s, o));
            attempt!(t, a.retrieve_array_subset::<Vec<u16>>(s, o));
            attempt!(t, a.retrieve_array_subset_elements::<u16>(s, o));
            attempt!(t, a.retrieve_array_subset_ndarray::<u16>(s, o));
        }
        for s in boxes(&grid, 7).iter().filter(|s| s.inbounds_shape(&grid)) {
            attempt!(t, a.retrieve_chunks_bytes(s, o));
            attempt!(t, a.retrieve_chunks::<Vec<u16>>(s, o));
            attempt!(t, a.retrieve_chunks_elements::<u16>(s, o));
            attempt!(t, a.retrieve_chunks_ndarray::<u16>(s, o));
        }
    }
    t
}

/// The metadata are equal byte for byte, in memory and in the store, and the arrays describe
/// themselves in the same way.
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
        // Also while our codec is registered: zarrs creates codecs to find their names.
        let registration = registered();
        assert_same(
            config.name,
            metadata_methods(&stock),
            metadata_methods(&ours),
        );
        drop(registration);
    }
}

/// Every way of reading an array, written by either codec.
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

/// Every way of reading subchunks, written by either codec. zarrs creates codecs for this, which
/// are ours while our codec is registered.
#[test]
fn reading_subchunks() {
    let _alone = alone();
    for config in configs().into_iter().chain(other_shapes()) {
        for store in written(&config) {
            let (stock, ours) = (config.stock(&store), config.ours(&store));
            let stock = subchunk_reads(&stock);
            let registration = registered();
            let ours = subchunk_reads(&ours);
            drop(registration);
            assert_same(config.name, stock, ours);
        }
    }
}

/// Empty reads return nothing. zarrs' partial decoders report some of them as out of bounds.
#[test]
fn reading_nothing() {
    let _alone = alone();
    for config in configs() {
        let [store, _] = written(&config);
        let ours = config.ours(&store);
        for ranges in [[0..0, 0..0], [1..1, 2..5], [4..4, 6..6], [8..8, 9..10]] {
            let subset = ArraySubset::new_with_ranges(&ranges);
            let read = ours.retrieve_array_subset::<Vec<u16>>(&subset);
            assert!(read.unwrap().is_empty(), "{} {subset}", config.name);
        }
        if ours.codecs().array_to_array_codecs().is_empty() {
            let decoder = ours.partial_decoder(&[0, 0]).unwrap();
            for ranges in [[0..0, 0..0], [1..1, 2..5], [4..4, 6..6]] {
                let subset = ArraySubset::new_with_ranges(&ranges);
                let read = decoder.partial_decode(&subset, &CodecOptions::default());
                assert_eq!(read.unwrap().size(), 0, "{} {subset}", config.name);
            }
        }
    }
}

/// All kinds of chunk caches for an array.
fn caches(array: &Arc<Array<dyn ReadableStorageTraits>>) -> Vec<(&'static str, AnyCache)> {
    macro_rules! caches {
        ($($cache:ident($capacity:expr)),*) => {
            vec![$((
                stringify!($cache),
                AnyCache(Box::new($cache::new(array.clone(), $capacity))),
            )),*]
        };
    }
    caches!(
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
    )
}

/// Every kind of chunk cache. Caches of partial decoders hold ours.
#[test]
fn reading_through_chunk_caches() {
    let _alone = alone();
    for config in configs() {
        let [_, store] = written(&config);
        let caches_of = |array: Array<MemoryStore>| {
            let store: Arc<dyn ReadableStorageTraits> = store.clone();
            caches(&Arc::new(array.with_storage(store)))
        };
        let (stock, ours) = (
            caches_of(config.stock(&store)),
            caches_of(config.ours(&store)),
        );
        for ((name, stock), (_, ours)) in stock.iter().zip(&ours) {
            let reads = |cache| cached_reads(cache, &config.shape, &config.shard);
            assert_same(
                &format!("{}, {name}", config.name),
                reads(stock),
                reads(ours),
            );
        }
    }
}

/// Our codec makes no more requests to a store than zarrs': one for a shard's index, and one for
/// its subchunks.
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
            let what = format!("{} {subset}: {ours:?}, {stock:?}", config.name);
            assert!(ours.0 <= stock.0, "{what}");
            // zarrs can read a part of an uncompressed subchunk. A request that is saved reads the bytes between
            // two subchunks, where they are few.
            let compressed = ["zstd", "blosc"].contains(&config.name);
            let between = (stock.0 - ours.0) * (4 << 10);
            assert!(!compressed || ours.1 <= stock.1 + between, "{what}");
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

/// Two arrays with the same metadata, each in its own store.
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

    /// Applies `call` to both arrays. Compares the results, the keys in the stores, and the
    /// elements as both codecs read them. Compares the stored bytes, too, if they are `canonical`.
    fn does(
        &self,
        canonical: bool,
        call: &str,
        does: &dyn Fn(&Array<MemoryStore>) -> Option<String>,
    ) {
        let what = format!("{}: {call}", self.config.name);
        assert_eq!(does(&self.ours), does(&self.stock), "{what}");

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

/// Applies a call to both arrays of a pair.
macro_rules! both {
    ($pair:ident, $array:ident, $call:expr) => {
        $pair.does(true, stringify!($call), &|$array| {
            text(catch_unwind(AssertUnwindSafe(|| $call)))
        })
    };
}

/// The same for calls after which zarrs leaves gaps.
macro_rules! both_with_gaps {
    ($pair:ident, $array:ident, $call:expr) => {
        $pair.does(false, stringify!($call), &|$array| {
            text(catch_unwind(AssertUnwindSafe(|| $call)))
        })
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

/// Every way of writing chunks.
#[test]
fn writing_chunks() {
    let _alone = alone();
    let o = &CodecOptions::default();
    let chunks = &ArraySubset::new_with_ranges(&[1..3, 0..2]);
    for config in configs() {
        let pair = Pair::new(config);
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
        both!(pair, a, a.store_chunk(&[2, 1], vec![FILL; 24]));
        both!(pair, a, a.store_chunk_opt(&[1, 1], numbers(24, 3), o));
        both!(pair, a, a.store_chunk_elements(&[0, 1], &numbers(24, 4)));
        both!(
            pair,
            a,
            a.store_chunk_elements_opt(&[0, 1], &numbers(24, 5), o)
        );
        let chunk = &array_of(&[4, 6], 6);
        both!(pair, a, a.store_chunk_ndarray(&[1, 0], chunk));
        both!(pair, a, a.store_chunk_ndarray_opt(&[1, 1], chunk, o));

        both!(pair, a, a.store_chunks(chunks, numbers(96, 8)));
        both!(pair, a, a.store_chunks(chunks, numbers(95, 8)));
        both!(pair, a, a.store_chunks_opt(chunks, numbers(96, 9), o));
        both!(pair, a, a.store_chunks_elements(chunks, &numbers(96, 10)));
        both!(
            pair,
            a,
            a.store_chunks_elements_opt(chunks, &numbers(96, 11), o)
        );
        both!(
            pair,
            a,
            a.store_chunks_ndarray(chunks, &array_of(&[8, 12], 12))
        );
        both!(
            pair,
            a,
            a.store_chunks_ndarray_opt(chunks, &array_of(&[8, 12], 13), o)
        );
    }
}

/// Every way of writing parts of chunks and of arrays.
#[test]
fn writing_parts() {
    let _alone = alone();
    let o = &CodecOptions::default();
    for config in configs() {
        let pair = Pair::new(config);
        let c = &[0, 0];
        let s = &ArraySubset::new_with_ranges(&[1..4, 2..5]);
        let outside = &ArraySubset::new_with_ranges(&[1..5, 2..5]);
        let part = &array_of(&[2, 6], 1);
        both!(pair, a, a.store_chunk_subset(c, s, numbers(9, 14)));
        both!(pair, a, a.store_chunk_subset(c, s, numbers(8, 14)));
        both!(pair, a, a.store_chunk_subset(c, outside, numbers(12, 14)));
        both!(
            pair,
            a,
            a.store_chunk_subset_opt(&[2, 1], s, numbers(9, 15), o)
        );
        both!(
            pair,
            a,
            a.store_chunk_subset_elements(c, s, &numbers(9, 16))
        );
        both!(
            pair,
            a,
            a.store_chunk_subset_elements_opt(c, s, &numbers(9, 17), o)
        );
        both!(pair, a, a.store_chunk_subset_ndarray(c, &[1, 0], part));
        both!(
            pair,
            a,
            a.store_chunk_subset_ndarray_opt(c, &[2, 0], part, o)
        );

        let s = &ArraySubset::new_with_ranges(&[3..9, 2..8]);
        let part = &array_of(&[6, 6], 2);
        both!(pair, a, a.store_array_subset(s, numbers(36, 20)));
        both!(pair, a, a.store_array_subset(s, numbers(35, 20)));
        both!(pair, a, a.store_array_subset_opt(s, numbers(36, 21), o));
        both!(pair, a, a.store_array_subset_elements(s, &numbers(36, 22)));
        both!(
            pair,
            a,
            a.store_array_subset_elements_opt(s, &numbers(36, 23), o)
        );
        both!(pair, a, a.store_array_subset_ndarray(&[3, 2], part));
        both!(pair, a, a.store_array_subset_ndarray_opt(&[2, 4], part, o));
        both!(
            pair,
            a,
            a.store_array_subset(&a.subset_all(), numbers(90, 26))
        );
    }
}

/// Erases and compacts, also absent chunks, and writes only the fill value.
#[test]
fn erasing() {
    let _alone = alone();
    let o = &CodecOptions::default();
    for config in configs() {
        let pair = Pair::new(config);
        both!(pair, a, a.store_metadata());
        both!(
            pair,
            a,
            a.store_array_subset(&a.subset_all(), numbers(90, 1))
        );
        both!(pair, a, a.compact_chunk(&[0, 0], o));
        both!(pair, a, a.erase_chunk(&[0, 0]));
        both!(pair, a, a.compact_chunk(&[0, 0], o));
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
        both!(pair, a, a.erase_chunks(&[1..3, 0..2]));
        both!(pair, a, a.erase_metadata());
    }
}

/// Options for writing: storing empty chunks, and zarrs' experimental partial encoding, with which
/// zarrs uses our partial encoder.
#[test]
fn writing_with_options() {
    let _alone = alone();
    for config in configs() {
        let pair = Pair::new(config);
        let o = &CodecOptions::default().with_store_empty_chunks(true);
        both_with_gaps!(pair, a, a.store_chunk_opt(&[0, 0], vec![FILL; 24], o));
        both_with_gaps!(pair, a, a.store_chunk_opt(&[1, 0], numbers(24, 1), o));
        both_with_gaps!(
            pair,
            a,
            a.store_array_subset_opt(&[2..6, 1..7], vec![FILL; 24], o)
        );

        let o = &CodecOptions::default().with_experimental_partial_encoding(true);
        both_with_gaps!(
            pair,
            a,
            a.store_array_subset_opt(&a.subset_all(), numbers(90, 2), o)
        );
        both_with_gaps!(
            pair,
            a,
            a.store_array_subset_opt(&[1..3, 1..9], numbers(16, 3), o)
        );
        let (c, s) = (&[0, 0], &[0..2, 0..3]);
        both_with_gaps!(pair, a, a.store_chunk_subset_opt(c, s, vec![FILL; 6], o));
        both_with_gaps!(pair, a, a.store_chunk_opt(&[0, 1], numbers(24, 4), o));
        // Makes both compact.
        pair.stock.compact_chunk(&[0, 0], o).unwrap();
        pair.ours.compact_chunk(&[0, 0], o).unwrap();
        both_with_gaps!(pair, a, a.compact_chunk(&[0, 0], o));
    }
}

/// `Array::partial_encoder`. It is ours if the codecs around the sharding codec allow it.
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

/// A shard with gaps from zarrs' partial encoding is compacted to the same bytes.
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

/// Arrays from builders. Our builder has the same options as zarrs', creates the same metadata as
/// `subchunk_shape`, and can be copied from an array.
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

    // `ArrayBuilder`'s shorthand creates the same metadata as our builder.
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

/// An array that grows reads like the same array with zarrs' codec.
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
// Groups, and unsharded arrays

/// Groups, nodes and hierarchies are the same while our codec is registered. The arrays that they
/// open use our codec.
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
        note!(t, Hierarchy::open(&store, "/group").unwrap().tree());
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

/// Our codec does not affect arrays without shards, of Zarr V3 or V2.
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
    // zlib is an optional feature of zarrs.
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

/// Calls every method of an array that reads, asynchronously.
async fn async_reads(a: &Array<AsyncMemoryStore>) -> Transcript {
    let mut t = Transcript::default();
    let o = &CodecOptions::default();
    for c in &chunks(a.chunk_grid_shape()) {
        attempt_async!(t, a.async_retrieve_chunk_if_exists::<Vec<u16>>(c));
        attempt_async!(t, a.async_retrieve_chunk_if_exists_opt::<Vec<u16>>(c, o));
        attempt_async!(t, a.async_retrieve_chunk_elements_if_exists::<u16>(c));
        attempt_async!(
            t,
            a.async_retrieve_chunk_elements_if_exists_opt::<u16>(c, o)
        );
        attempt_async!(t, a.async_retrieve_chunk_ndarray_if_exists::<u16>(c));
        attempt_async!(t, a.async_retrieve_chunk_ndarray_if_exists_opt::<u16>(c, o));
        attempt_async!(t, a.async_retrieve_chunk::<Vec<u16>>(c));
        attempt_async!(t, a.async_retrieve_chunk_opt::<Vec<u16>>(c, o));
        attempt_async!(t, a.async_retrieve_chunk_elements::<u16>(c));
        attempt_async!(t, a.async_retrieve_chunk_elements_opt::<u16>(c, o));
        attempt_async!(t, a.async_retrieve_chunk_ndarray::<u16>(c));
        attempt_async!(t, a.async_retrieve_chunk_ndarray_opt::<u16>(c, o));
        attempt_async!(t, a.async_retrieve_encoded_chunk(c));
        let shard = shard_shape(a);
        for s in &boxes(&shard, 3) {
            attempt_async!(t, a.async_retrieve_chunk_subset::<Vec<u16>>(c, s));
            attempt_async!(t, a.async_retrieve_chunk_subset_opt::<Vec<u16>>(c, s, o));
            attempt_async!(t, a.async_retrieve_chunk_subset_elements::<u16>(c, s));
            attempt_async!(
                t,
                a.async_retrieve_chunk_subset_elements_opt::<u16>(c, s, o)
            );
            attempt_async!(t, a.async_retrieve_chunk_subset_ndarray::<u16>(c, s));
            attempt_async!(t, a.async_retrieve_chunk_subset_ndarray_opt::<u16>(c, s, o));
            if let Ok(decoder) = a.async_partial_decoder_opt(c, o).await
                && s.inbounds_shape(&shard)
            {
                attempt_async!(t, decoder.exists());
                attempt_async!(t, decoder.partial_decode(s, o));
                let points = points(s);
                attempt_async!(t, decoder.partial_decode(&points, o));
            }
        }
    }
    for s in &boxes(a.chunk_grid_shape(), 5) {
        attempt_async!(t, a.async_retrieve_chunks::<Vec<u16>>(s));
        attempt_async!(t, a.async_retrieve_chunks_opt::<Vec<u16>>(s, o));
        attempt_async!(t, a.async_retrieve_chunks_elements::<u16>(s));
        attempt_async!(t, a.async_retrieve_chunks_elements_opt::<u16>(s, o));
        attempt_async!(t, a.async_retrieve_chunks_ndarray::<u16>(s));
        attempt_async!(t, a.async_retrieve_chunks_ndarray_opt::<u16>(s, o));
        attempt_async!(t, a.async_retrieve_encoded_chunks(s, o));
    }
    for s in &boxes(a.shape(), 7) {
        attempt_async!(t, a.async_retrieve_array_subset::<Vec<u16>>(s));
        attempt_async!(t, a.async_retrieve_array_subset_elements::<u16>(s));
        attempt_async!(t, a.async_retrieve_array_subset_ndarray::<u16>(s));
        attempt_async!(t, a.async_retrieve_array_subset_opt::<Vec<u16>>(s, o));
        attempt_async!(t, a.async_retrieve_array_subset_elements_opt::<u16>(s, o));
        attempt_async!(t, a.async_retrieve_array_subset_ndarray_opt::<u16>(s, o));
    }
    t
}

/// Calls every method of `AsyncArrayShardedReadableExt` and its cache.
async fn async_subchunk_reads(a: &Array<AsyncMemoryStore>) -> Transcript {
    let mut t = Transcript::default();
    let o = &CodecOptions::default();
    let c = &AsyncArrayShardedReadableExtCache::new(a);
    note!(t, c.array_is_sharded());
    note!(t, c.array_is_exclusively_sharded());
    note!(t, c.is_empty().await);
    let grid = a.subchunk_grid_shape();
    for i in zarrs_cuda_testing::all_indices(&grid).chain([vec![77; grid.len()]]) {
        let i = i.as_slice();
        attempt_async!(t, a.async_subchunk_byte_range(c, i));
        attempt_async!(t, a.async_retrieve_encoded_subchunk(c, i));
        attempt_async!(t, a.async_retrieve_subchunk_opt::<Vec<u16>>(c, i, o));
        attempt_async!(t, a.async_retrieve_subchunk_elements_opt::<u16>(c, i, o));
        attempt_async!(t, a.async_retrieve_subchunk_ndarray_opt::<u16>(c, i, o));
    }
    note!(t, c.len().await);
    c.clear().await;
    note!(t, c.len().await);
    for s in &boxes(&grid, 1) {
        attempt_async!(t, a.async_retrieve_subchunks_opt::<Vec<u16>>(c, s, o));
        attempt_async!(t, a.async_retrieve_subchunks_elements_opt::<u16>(c, s, o));
        attempt_async!(t, a.async_retrieve_subchunks_ndarray_opt::<u16>(c, s, o));
        note!(t, c.len().await);
    }
    c.clear().await;
    for s in &boxes(a.shape(), 2) {
        attempt_async!(
            t,
            a.async_retrieve_array_subset_sharded_opt::<Vec<u16>>(c, s, o)
        );
        attempt_async!(
            t,
            a.async_retrieve_array_subset_elements_sharded_opt::<u16>(c, s, o)
        );
        attempt_async!(
            t,
            a.async_retrieve_array_subset_ndarray_sharded_opt::<u16>(c, s, o)
        );
        note!(t, c.len().await);
    }
    t
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

/// Every way of reading an array asynchronously, written by either codec.
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

/// Every way of reading subchunks asynchronously, written by either codec.
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
    let (store, all) = (a.storage(), a.subset_all());
    macro_rules! step {
        ($call:expr) => {
            attempt_async!(t, $call);
            let contents = async_contents(&store).await;
            note!(t, contents.keys().collect::<Vec<_>>());
            if canonical {
                note!(t, contents);
            }
            attempt_async!(t, a.async_retrieve_array_subset::<Vec<u16>>(&all));
        };
    }
    step!(a.async_store_metadata());
    step!(a.async_store_metadata_opt(&ArrayMetadataOptions::default()));
    step!(a.async_store_chunk(&[0, 0], numbers(24, 1)));
    step!(a.async_store_chunk(&[0, 0], numbers(23, 1)));
    step!(a.async_store_chunk_opt(&[2, 1], numbers(24, 2), o));
    step!(a.async_store_chunk(&[2, 1], vec![FILL; 24]));
    step!(a.async_store_chunk_elements(&[0, 1], &numbers(24, 4)));
    step!(a.async_store_chunk_elements_opt(&[0, 1], &numbers(24, 5), o));
    step!(a.async_store_chunk_ndarray(&[1, 0], &array_of(&[4, 6], 6)));
    step!(a.async_store_chunk_ndarray_opt(&[1, 0], &array_of(&[4, 6], 7), o));
    step!(a.async_store_chunks(&chunks, numbers(96, 8)));
    step!(a.async_store_chunks_opt(&chunks, numbers(96, 9), o));
    step!(a.async_store_chunks_elements(&chunks, &numbers(96, 10)));
    step!(a.async_store_chunks_elements_opt(&chunks, &numbers(96, 11), o));
    step!(a.async_store_chunks_ndarray(&chunks, &array_of(&[8, 12], 12)));
    step!(a.async_store_chunks_ndarray_opt(&chunks, &array_of(&[8, 12], 13), o));
    step!(a.async_store_chunk_subset(&[0, 0], &part, numbers(9, 14)));
    step!(a.async_store_chunk_subset(&[0, 0], &outside, numbers(12, 14)));
    step!(a.async_store_chunk_subset_opt(&[2, 1], &part, numbers(9, 15), o));
    step!(a.async_store_chunk_subset_elements(&[0, 0], &part, &numbers(9, 16)));
    step!(a.async_store_chunk_subset_elements_opt(&[0, 0], &part, &numbers(9, 17), o));
    let wide = array_of(&[2, 6], 18);
    step!(a.async_store_chunk_subset_ndarray(&[0, 0], &[1, 0], &wide));
    step!(a.async_store_chunk_subset_ndarray_opt(&[0, 0], &[2, 0], &wide, o));
    step!(a.async_store_array_subset(&middle, numbers(36, 20)));
    step!(a.async_store_array_subset(&middle, numbers(35, 20)));
    step!(a.async_store_array_subset_opt(&middle, numbers(36, 21), o));
    step!(a.async_store_array_subset_elements(&middle, &numbers(36, 22)));
    step!(a.async_store_array_subset_elements_opt(&middle, &numbers(36, 23), o));
    step!(a.async_store_array_subset_ndarray(&[3, 2], &array_of(&[6, 6], 24)));
    step!(a.async_store_array_subset_ndarray_opt(&[3, 2], &array_of(&[6, 6], 25), o));
    step!(a.async_compact_chunk(&[0, 0], o));
    step!(a.async_erase_chunk(&[0, 0]));
    step!(a.async_compact_chunk(&[0, 0], o));
    step!(a.async_erase_chunks(&chunks));
    step!(a.async_erase_metadata());
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
