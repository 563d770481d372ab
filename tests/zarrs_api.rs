//! Nothing in zarrs behaves differently because the codec is ours: the same calls on an array of
//! ours and on one of zarrs', over the same store.
#![allow(clippy::unwrap_used)]

use std::num::NonZeroU64;
use std::sync::{Arc, Once};

use zarrs::array::chunk_cache::{
    ChunkCache, ChunkCacheDecodedLruChunkLimit, ChunkCacheEncodedLruSizeLimit,
    ChunkCachePartialDecoderLruChunkLimit,
};
use zarrs::array::codec::{
    BytesCodec, GzipCodec, ShardingCodecBuilder, ShardingIndexLocation, TransposeCodec,
    TransposeOrder, ZstdCodec,
};
use zarrs::array::{
    Array, ArrayBuilder, ArrayMetadataOptions, ArrayShardedExt, ArrayShardedReadableExt,
    ArrayShardedReadableExtCache, ArraySubset, CodecOptions, data_type,
};
use zarrs::group::{Group, GroupBuilder};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ReadableStorageTraits, StoreKey, WritableStorageTraits};
use zarrs_codec::{ArrayCodecTraits, ArrayToArrayCodecTraits, BytesToBytesCodecTraits};
use zarrs_cuda::{Options, explain};

const SHAPE: [u64; 2] = [20, 24];

fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| zarrs_cuda::register(Options::default()).unwrap().leak());
}

/// What the arrays vary.
#[derive(Clone)]
struct Kind {
    name: &'static str,
    inner: Vec<Arc<dyn BytesToBytesCodecTraits>>,
    index_location: ShardingIndexLocation,
    /// Codecs around the sharding codec.
    before: Vec<Arc<dyn ArrayToArrayCodecTraits>>,
    after: Vec<Arc<dyn BytesToBytesCodecTraits>>,
}

fn kinds() -> Vec<Kind> {
    let plain = Kind {
        name: "plain",
        inner: vec![],
        index_location: ShardingIndexLocation::End,
        before: vec![],
        after: vec![],
    };
    let transpose = TransposeCodec::new(TransposeOrder::new(&[1, 0]).unwrap());
    vec![
        plain.clone(),
        Kind {
            name: "zstd, index at the start",
            inner: vec![Arc::new(ZstdCodec::new(3, true))],
            index_location: ShardingIndexLocation::Start,
            ..plain.clone()
        },
        Kind {
            name: "transposed before sharding",
            before: vec![Arc::new(transpose)],
            ..plain.clone()
        },
        Kind {
            name: "compressed after sharding",
            after: vec![Arc::new(GzipCodec::new(1).unwrap())],
            ..plain
        },
    ]
}

fn edge(n: u64) -> Vec<NonZeroU64> {
    vec![NonZeroU64::new(n).unwrap(); 2]
}

fn builder(kind: &Kind) -> ArrayBuilder {
    let sharding = ShardingCodecBuilder::new(edge(4), &data_type::int32())
        .array_to_bytes_codec(Arc::new(BytesCodec::big()))
        .bytes_to_bytes_codecs(kind.inner.clone())
        .index_location(kind.index_location)
        .build_arc();
    let mut builder = ArrayBuilder::new(SHAPE.to_vec(), vec![8, 8], data_type::int32(), -1_i32);
    builder
        .array_to_array_codecs(kind.before.clone())
        .array_to_bytes_codec(sharding)
        .bytes_to_bytes_codecs(kind.after.clone())
        .dimension_names(["y", "x"].into());
    builder
}

/// Ours, and zarrs', on one store.
fn pair(kind: &Kind) -> (Array<MemoryStore>, Array<MemoryStore>) {
    register();
    let store = Arc::new(MemoryStore::new());
    let metadata = builder(kind).build_metadata().unwrap();
    let ours = Array::new_with_metadata(store.clone(), "/array", metadata.into()).unwrap();
    let zarrs = builder(kind).build(store, "/array").unwrap();
    assert!(explain(&ours).is_ok());
    assert!(explain(&zarrs).is_err());
    (ours, zarrs)
}

/// Some shards are missing, some subchunks empty, the last shards reach over the edge.
fn fill(array: &Array<MemoryStore>) {
    let elements: Vec<i32> = (0..SHAPE[0] * SHAPE[1])
        .map(|i| {
            let (y, x) = (i / SHAPE[1], i % SHAPE[1]);
            let empty = (y < 8 && x >= 16) || (y / 4 + x / 4) % 3 == 0;
            if empty { -1 } else { i32::try_from(i).unwrap() }
        })
        .collect();
    let all = ArraySubset::new_with_shape(SHAPE.to_vec());
    array.store_array_subset(&all, elements).unwrap();
}

/// Every kind, filled through either array: `(name, ours, zarrs)`.
fn for_each(check: impl Fn(&str, &Array<MemoryStore>, &Array<MemoryStore>)) {
    for kind in kinds() {
        let (ours, zarrs) = pair(&kind);
        fill(&ours);
        check(kind.name, &ours, &zarrs);
        fill(&zarrs);
        check(kind.name, &ours, &zarrs);
    }
}

/// `Result` without an error type that can be compared.
fn text<T, E: ToString>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn subsets() -> Vec<ArraySubset> {
    vec![
        ArraySubset::new_with_shape(SHAPE.to_vec()),
        ArraySubset::new_with_ranges(&[0..8, 8..16]),
        ArraySubset::new_with_ranges(&[3..17, 5..23]),
        ArraySubset::new_with_ranges(&[7..8, 0..24]),
        ArraySubset::new_with_ranges(&[19..20, 23..24]),
        ArraySubset::new_with_ranges(&[2..2, 3..9]),
    ]
}

#[test]
fn metadata_is_equal_byte_for_byte() {
    for kind in kinds() {
        let (ours, zarrs) = pair(&kind);
        let json = |array: &Array<MemoryStore>| serde_json::to_string(array.metadata()).unwrap();
        assert_eq!(json(&ours), json(&zarrs), "{}", kind.name);
        let json = |array: &Array<MemoryStore>| {
            let options = ArrayMetadataOptions::default().with_include_zarrs_metadata(false);
            serde_json::to_string_pretty(&array.metadata_opt(&options)).unwrap()
        };
        assert_eq!(json(&ours), json(&zarrs), "{}", kind.name);
        let stored = |array: &Array<MemoryStore>| {
            array.store_metadata().unwrap();
            let key = StoreKey::new("array/zarr.json").unwrap();
            array.storage().get(&key).unwrap().unwrap()
        };
        assert_eq!(stored(&ours), stored(&zarrs), "{}", kind.name);
    }
}

#[test]
fn sharded_ext() {
    for_each(|name, ours, zarrs| {
        assert_eq!(ours.is_sharded(), zarrs.is_sharded(), "{name}");
        assert_eq!(
            ours.is_exclusively_sharded(),
            zarrs.is_exclusively_sharded(),
            "{name}"
        );
        assert_eq!(ours.subchunk_shape(), zarrs.subchunk_shape(), "{name}");
        assert_eq!(
            ours.effective_subchunk_shape(),
            zarrs.effective_subchunk_shape(),
            "{name}"
        );
        assert_eq!(
            ours.subchunk_grid_shape(),
            zarrs.subchunk_grid_shape(),
            "{name}"
        );
        assert!(ours.is_sharded());
    });
}

#[test]
fn sharded_readable_ext() {
    let options = CodecOptions::default();
    for_each(|name, ours, zarrs| {
        let caches = [ours, zarrs].map(ArrayShardedReadableExtCache::new);
        let [ours_cache, zarrs_cache] = &caches;
        assert_eq!(
            ours_cache.array_is_sharded(),
            zarrs_cache.array_is_sharded()
        );
        assert_eq!(
            ours_cache.array_is_exclusively_sharded(),
            zarrs_cache.array_is_exclusively_sharded()
        );
        let grid = ours.subchunk_grid_shape();
        for y in 0..=grid[0] {
            for x in 0..=grid[1] {
                let at = [y, x];
                assert_eq!(
                    text(ours.retrieve_subchunk_opt::<Vec<i32>>(ours_cache, &at, &options)),
                    text(zarrs.retrieve_subchunk_opt::<Vec<i32>>(zarrs_cache, &at, &options)),
                    "{name} {at:?}"
                );
                // Of an empty subchunk, zarrs adds the two words of its index entry, and overflows.
                let elements = ours.retrieve_subchunk_opt::<Vec<i32>>(ours_cache, &at, &options);
                if elements.is_ok_and(|elements| elements.iter().all(|&e| e == -1)) {
                    continue;
                }
                assert_eq!(
                    text(ours.retrieve_encoded_subchunk(ours_cache, &at)).ok(),
                    text(zarrs.retrieve_encoded_subchunk(zarrs_cache, &at)).ok(),
                    "{name} {at:?}"
                );
                assert_eq!(
                    text(ours.subchunk_byte_range(ours_cache, &at)),
                    text(zarrs.subchunk_byte_range(zarrs_cache, &at)),
                    "{name} {at:?}"
                );
            }
        }
        let subchunks = ArraySubset::new_with_ranges(&[1..4, 0..5]);
        assert_eq!(
            text(ours.retrieve_subchunks_opt::<Vec<i32>>(ours_cache, &subchunks, &options)),
            text(zarrs.retrieve_subchunks_opt::<Vec<i32>>(zarrs_cache, &subchunks, &options)),
            "{name}"
        );
        for subset in subsets() {
            let read = |array: &Array<MemoryStore>, cache| {
                text(array.retrieve_array_subset_sharded_opt::<Vec<i32>>(cache, &subset, &options))
            };
            assert_eq!(
                read(ours, ours_cache),
                read(zarrs, zarrs_cache),
                "{name} {subset}"
            );
        }
        assert_eq!(ours_cache.len(), zarrs_cache.len(), "{name}");
        ours_cache.clear();
        assert!(ours_cache.is_empty());
    });
}

#[test]
#[allow(deprecated)]
fn deprecated_methods() {
    let options = CodecOptions::default();
    for_each(|name, ours, zarrs| {
        let caches = [ours, zarrs].map(ArrayShardedReadableExtCache::new);
        let subset = ArraySubset::new_with_ranges(&[3..17, 5..23]);
        let chunks = ArraySubset::new_with_ranges(&[0..2, 1..3]);
        let read = |array: &Array<MemoryStore>, cache| {
            (
                array
                    .retrieve_subchunk_elements_opt::<i32>(cache, &[1, 1], &options)
                    .unwrap(),
                array
                    .retrieve_subchunk_ndarray_opt::<i32>(cache, &[1, 1], &options)
                    .unwrap(),
                array
                    .retrieve_subchunks_elements_opt::<i32>(cache, &chunks, &options)
                    .unwrap(),
                array
                    .retrieve_subchunks_ndarray_opt::<i32>(cache, &chunks, &options)
                    .unwrap(),
                array
                    .retrieve_array_subset_elements_sharded_opt::<i32>(cache, &subset, &options)
                    .unwrap(),
                array
                    .retrieve_array_subset_ndarray_sharded_opt::<i32>(cache, &subset, &options)
                    .unwrap(),
            )
        };
        assert_eq!(read(ours, &caches[0]), read(zarrs, &caches[1]), "{name}");
    });
}

#[test]
fn array_reads() {
    for_each(|name, ours, zarrs| {
        for subset in subsets() {
            assert_eq!(
                text(ours.retrieve_array_subset::<Vec<i32>>(&subset)),
                text(zarrs.retrieve_array_subset::<Vec<i32>>(&subset)),
                "{name} {subset}"
            );
        }
        for y in 0..3 {
            for x in 0..3 {
                let read = |array: &Array<MemoryStore>| {
                    let part = ArraySubset::new_with_ranges(&[1..6, 2..8]);
                    (
                        array.retrieve_chunk::<Vec<i32>>(&[y, x]).unwrap(),
                        array.retrieve_chunk_if_exists::<Vec<i32>>(&[y, x]).unwrap(),
                        array
                            .retrieve_chunk_subset::<Vec<i32>>(&[y, x], &part)
                            .unwrap(),
                    )
                };
                assert_eq!(read(ours), read(zarrs), "{name} {y} {x}");
            }
        }
        let options = CodecOptions::default();
        let codecs = |array: &Array<MemoryStore>| {
            let shape = array.chunk_shape(&[0, 0]).unwrap();
            let codec = array.codecs();
            let concurrency = codec
                .recommended_concurrency(&shape, array.data_type())
                .unwrap();
            (concurrency.min(), concurrency.max())
        };
        assert_eq!(codecs(ours), codecs(zarrs), "{name}");
        // A partial decoder, with single elements in any order.
        let points = vec![vec![7_u64, 0], vec![0, 7], vec![3, 3], vec![3, 3]];
        let read = |array: &Array<MemoryStore>| {
            let decoder = array.partial_decoder(&[1, 1]).unwrap();
            decoder
                .partial_decode(&points, &options)
                .unwrap()
                .into_fixed()
                .unwrap()
                .into_owned()
        };
        assert_eq!(read(ours), read(zarrs), "{name}");
    });
}

#[test]
fn writes_of_parts_and_erasure() {
    for kind in kinds() {
        let (ours, ours_on_zarrs) = pair(&kind);
        let (twin, zarrs) = pair(&kind);
        fill(&ours);
        fill(&zarrs);
        let part = ArraySubset::new_with_ranges(&[6..11, 2..21]);
        let options = CodecOptions::default().with_experimental_partial_encoding(true);
        for (array, reader) in [(&ours, &ours_on_zarrs), (&zarrs, &twin)] {
            array
                .store_array_subset_opt(&part, vec![5_i32; 95], &options)
                .unwrap();
            array
                .store_chunk_subset(
                    &[2, 2],
                    &ArraySubset::new_with_ranges(&[0..1, 0..8]),
                    vec![6_i32; 8],
                )
                .unwrap();
            // All fill values: the shard goes away.
            array.store_chunk(&[0, 0], vec![-1_i32; 64]).unwrap();
            assert!(array.retrieve_encoded_chunk(&[0, 0]).unwrap().is_none());
            array.erase_chunk(&[1, 0]).unwrap();
            let all = ArraySubset::new_with_shape(SHAPE.to_vec());
            assert_eq!(
                array.retrieve_array_subset::<Vec<i32>>(&all).unwrap(),
                reader.retrieve_array_subset::<Vec<i32>>(&all).unwrap(),
                "{}",
                kind.name
            );
        }
        let all = ArraySubset::new_with_shape(SHAPE.to_vec());
        assert_eq!(
            ours.retrieve_array_subset::<Vec<i32>>(&all).unwrap(),
            zarrs.retrieve_array_subset::<Vec<i32>>(&all).unwrap(),
            "{}",
            kind.name
        );
    }
}

#[test]
fn compact_chunk() {
    let kind = &kinds()[0];
    let (ours, zarrs) = pair(kind);
    fill(&ours);
    let options = CodecOptions::default();
    assert!(
        !ours.compact_chunk(&[1, 1], &options).unwrap(),
        "it is compact"
    );
    // zarrs' partial encoder appends, and leaves what it replaces.
    let grow = || {
        let options = options.with_experimental_partial_encoding(true);
        for value in 1..4 {
            let part = ArraySubset::new_with_ranges(&[0..2, 0..2]);
            zarrs
                .store_chunk_subset_opt(&[1, 1], &part, vec![value; 4], &options)
                .unwrap();
        }
        zarrs.retrieve_encoded_chunk(&[1, 1]).unwrap().unwrap()
    };
    let size = |array: &Array<MemoryStore>| {
        array
            .retrieve_encoded_chunk(&[1, 1])
            .unwrap()
            .unwrap()
            .len()
    };
    let grown = grow();
    let expected = zarrs.retrieve_chunk::<Vec<i32>>(&[1, 1]).unwrap();
    assert!(zarrs.compact_chunk(&[1, 1], &options).unwrap());
    let (zarrs_size, key) = (size(&zarrs), ours.chunk_key(&[1, 1]));
    ours.storage().set(&key, grown.into()).unwrap();
    assert!(ours.compact_chunk(&[1, 1], &options).unwrap());
    assert_eq!(size(&ours), zarrs_size);
    assert_eq!(zarrs.retrieve_chunk::<Vec<i32>>(&[1, 1]).unwrap(), expected);
}

#[test]
fn chunk_caches() {
    fn check<C: ChunkCache>(name: &str, ours: &C, zarrs: &C) {
        let options = CodecOptions::default();
        for _ in 0..2 {
            for subset in subsets() {
                let read =
                    |cache: &C| text(cache.retrieve_array_subset::<Vec<i32>>(&subset, &options));
                assert_eq!(read(ours), read(zarrs), "{name} {subset}");
            }
            let part = ArraySubset::new_with_ranges(&[1..6, 2..8]);
            let read = |cache: &C| {
                (
                    cache.retrieve_chunk::<Vec<i32>>(&[1, 1], &options).unwrap(),
                    cache
                        .retrieve_chunk_subset::<Vec<i32>>(&[2, 0], &part, &options)
                        .unwrap(),
                )
            };
            assert_eq!(read(ours), read(zarrs), "{name}");
        }
        assert_eq!(ours.len(), zarrs.len(), "{name}");
    }
    for_each(|name, ours, zarrs| {
        let [ours, zarrs] = [ours, zarrs].map(|array| {
            let storage: Arc<dyn ReadableStorageTraits> = array.storage();
            Arc::new(array.with_storage(storage))
        });
        let new = ChunkCacheDecodedLruChunkLimit::new;
        check(name, &new(ours.clone(), 4), &new(zarrs.clone(), 4));
        let new = ChunkCacheEncodedLruSizeLimit::new;
        check(name, &new(ours.clone(), 9999), &new(zarrs.clone(), 9999));
        let new = ChunkCachePartialDecoderLruChunkLimit::new;
        check(name, &new(ours.clone(), 4), &new(zarrs.clone(), 4));
    });
}

#[test]
fn groups_and_zarr_v2_arrays() {
    register();
    let store = Arc::new(MemoryStore::new());
    GroupBuilder::new()
        .build(store.clone(), "/group")
        .unwrap()
        .store_metadata()
        .unwrap();
    let kind = &kinds()[1];
    let metadata = builder(kind).build_metadata().unwrap();
    let array = Array::new_with_metadata(store.clone(), "/group/array", metadata.into()).unwrap();
    array.store_metadata().unwrap();
    fill(&array);
    let group = Group::open(store.clone(), "/group").unwrap();
    let arrays = group.child_arrays().unwrap();
    assert_eq!(arrays.len(), 1);
    assert!(explain(&arrays[0]).is_ok(), "opened through the group");

    let v2 = serde_json::from_str(
        r#"{"zarr_format": 2, "shape": [4, 6], "chunks": [2, 3], "dtype": ">i2", "order": "F",
            "fill_value": 0, "filters": null, "compressor": {"id": "zstd", "level": 1},
            "dimension_separator": "."}"#,
    )
    .unwrap();
    let v2 = Array::new_with_metadata(store.clone(), "/v2", zarrs::array::ArrayMetadata::V2(v2))
        .unwrap();
    let elements: Vec<i16> = (0..24).collect();
    let all = ArraySubset::new_with_shape(vec![4, 6]);
    v2.store_array_subset(&all, &elements).unwrap();
    assert_eq!(
        v2.retrieve_array_subset::<Vec<i16>>(&all).unwrap(),
        elements
    );
    assert!(explain(&v2).is_err(), "no shards, so not ours");
}

#[cfg(feature = "async")]
mod asynchronous {
    use zarrs::array::{AsyncArrayShardedReadableExt, AsyncArrayShardedReadableExtCache};
    use zarrs::storage::AsyncWritableStorageTraits;
    use zarrs::storage::store::AsyncMemoryStore;

    use super::*;

    /// Ours and zarrs' on one asynchronous store, with the shards that `fill` writes.
    async fn pair(kind: &Kind) -> (Array<AsyncMemoryStore>, Array<AsyncMemoryStore>) {
        let (sync, _) = super::pair(kind);
        fill(&sync);
        let store = Arc::new(AsyncMemoryStore::new());
        for y in 0..3 {
            for x in 0..3 {
                if let Some(shard) = sync.retrieve_encoded_chunk(&[y, x]).unwrap() {
                    store
                        .set(&sync.chunk_key(&[y, x]), shard.into())
                        .await
                        .unwrap();
                }
            }
        }
        let metadata = builder(kind).build_metadata().unwrap();
        let ours = Array::new_with_metadata(store.clone(), "/array", metadata.into()).unwrap();
        let zarrs = builder(kind).build(store, "/array").unwrap();
        assert!(explain(&ours).is_ok());
        (ours, zarrs)
    }

    #[tokio::test]
    async fn sharded_readable_ext() {
        let options = CodecOptions::default();
        for kind in kinds() {
            let (ours, zarrs) = pair(&kind).await;
            let ours_cache = AsyncArrayShardedReadableExtCache::new(&ours);
            let zarrs_cache = AsyncArrayShardedReadableExtCache::new(&zarrs);
            let grid = ours.subchunk_grid_shape();
            for y in 0..grid[0] {
                for x in 0..grid[1] {
                    let at = [y, x];
                    assert_eq!(
                        text(
                            ours.async_retrieve_subchunk_opt::<Vec<i32>>(
                                &ours_cache,
                                &at,
                                &options
                            )
                            .await
                        ),
                        text(
                            zarrs
                                .async_retrieve_subchunk_opt::<Vec<i32>>(
                                    &zarrs_cache,
                                    &at,
                                    &options
                                )
                                .await
                        ),
                        "{} {at:?}",
                        kind.name
                    );
                    // As above.
                    let elements = ours
                        .async_retrieve_subchunk_opt::<Vec<i32>>(&ours_cache, &at, &options)
                        .await;
                    if elements.is_ok_and(|elements| elements.iter().all(|&e| e == -1)) {
                        continue;
                    }
                    assert_eq!(
                        text(ours.async_retrieve_encoded_subchunk(&ours_cache, &at).await).ok(),
                        text(
                            zarrs
                                .async_retrieve_encoded_subchunk(&zarrs_cache, &at)
                                .await
                        )
                        .ok(),
                        "{} {at:?}",
                        kind.name
                    );
                    assert_eq!(
                        text(ours.async_subchunk_byte_range(&ours_cache, &at).await),
                        text(zarrs.async_subchunk_byte_range(&zarrs_cache, &at).await),
                        "{} {at:?}",
                        kind.name
                    );
                }
            }
            let subchunks = ArraySubset::new_with_ranges(&[1..4, 0..5]);
            assert_eq!(
                text(
                    ours.async_retrieve_subchunks_opt::<Vec<i32>>(
                        &ours_cache,
                        &subchunks,
                        &options
                    )
                    .await
                ),
                text(
                    zarrs
                        .async_retrieve_subchunks_opt::<Vec<i32>>(
                            &zarrs_cache,
                            &subchunks,
                            &options
                        )
                        .await
                ),
                "{}",
                kind.name
            );
            for subset in subsets() {
                assert_eq!(
                    text(
                        ours.async_retrieve_array_subset_sharded_opt::<Vec<i32>>(
                            &ours_cache,
                            &subset,
                            &options
                        )
                        .await
                    ),
                    text(
                        zarrs
                            .async_retrieve_array_subset_sharded_opt::<Vec<i32>>(
                                &zarrs_cache,
                                &subset,
                                &options
                            )
                            .await
                    ),
                    "{} {subset}",
                    kind.name
                );
            }
        }
    }

    #[tokio::test]
    async fn reads_and_writes() {
        for kind in kinds() {
            let (ours, zarrs) = pair(&kind).await;
            for subset in subsets() {
                assert_eq!(
                    text(ours.async_retrieve_array_subset::<Vec<i32>>(&subset).await),
                    text(zarrs.async_retrieve_array_subset::<Vec<i32>>(&subset).await),
                    "{} {subset}",
                    kind.name
                );
            }
            let points = vec![vec![7_u64, 0], vec![0, 7], vec![3, 3], vec![3, 3]];
            let options = CodecOptions::default();
            let mut read = Vec::new();
            for array in [&ours, &zarrs] {
                let decoder = array.async_partial_decoder(&[1, 1]).await.unwrap();
                let bytes = decoder.partial_decode(&points, &options).await.unwrap();
                read.push(bytes.into_owned().into_fixed().unwrap().into_owned());
            }
            assert_eq!(read[0], read[1], "{}", kind.name);

            let part = ArraySubset::new_with_ranges(&[6..11, 2..21]);
            ours.async_store_array_subset(&part, vec![5_i32; 95])
                .await
                .unwrap();
            assert_eq!(
                zarrs
                    .async_retrieve_array_subset::<Vec<i32>>(&part)
                    .await
                    .unwrap(),
                vec![5; 95],
                "{}",
                kind.name
            );
        }
    }
}
