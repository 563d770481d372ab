//! Arrays of vast grids, of which next to nothing is stored: work follows a listing.

use std::sync::Arc;

use zarrs::array::chunk_key_encoding::{DefaultChunkKeyEncoding, V2ChunkKeyEncoding};
use zarrs::array::{Array, ArrayBuilder, ChunkKeyEncoding, CodecOptions, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{
    AsyncWritableStorageTraits, ReadableStorageTraits, ReadableWritableListableStorageTraits,
    StoreKey, WritableStorageTraits,
};
use zarrs_cuda::maintenance::Shards;
use zarrs_cuda::{CudaShardingCodecBuilder, Options, WriteStrategy};

/// An array with so many shards of 4 along each axis, in subchunks of 2.
fn builder(counts: &[u64], encoding: ChunkKeyEncoding) -> ArrayBuilder {
    let shape: Vec<u64> = counts.iter().map(|count| count * 4).collect();
    let rank = counts.len();
    let mut builder = ArrayBuilder::new(shape, vec![4; rank], data_type::uint8(), 0_u8);
    builder.subchunk_shape(vec![2; rank]);
    builder.chunk_key_encoding(encoding);
    builder
}

fn grids() -> [(Vec<u64>, ChunkKeyEncoding); 3] {
    let default: ChunkKeyEncoding = DefaultChunkKeyEncoding::new_slash().into();
    [
        (vec![1 << 40], default.clone()),
        (vec![1 << 20, 1 << 20], V2ChunkKeyEncoding::new_dot().into()),
        (vec![1 << 40, 1 << 40], default),
    ]
}

/// The first shard, one in the middle, and the last.
fn ends(counts: &[u64]) -> [Vec<u64>; 3] {
    let at = |part: fn(u64) -> u64| counts.iter().map(|&count| part(count)).collect();
    [at(|_| 0), at(|count| count / 2), at(|count| count - 1)]
}

#[test]
fn stored_shards_are_listed() {
    for (counts, encoding) in grids() {
        let folder = tempfile::tempdir().unwrap();
        let files = Arc::new(FilesystemStore::new(folder.path()).unwrap());
        let stores: [Arc<dyn ReadableWritableListableStorageTraits>; 2] =
            [Arc::new(MemoryStore::new()), files];
        for store in stores {
            let array = builder(&counts, encoding.clone())
                .build(store.clone(), "/group/array")
                .unwrap();
            array.store_metadata().unwrap();
            let all = Shards::of(&array).unwrap();
            assert!(all.stored().unwrap().is_empty());
            let mut expected = Vec::new();
            for shard in ends(&counts) {
                let elements = vec![5_u8; 4_usize.pow(counts.len() as u32)];
                array.store_chunk(&shard, elements).unwrap();
                let size = store.size_key(&array.chunk_key(&shard)).unwrap().unwrap();
                expected.push((shard, size));
            }
            // A shard outside of the grid, and what is no shard.
            let mut outside = counts.clone();
            outside[0] += 1;
            let key = array.chunk_key(&outside);
            store.set(&key, vec![1].into()).unwrap();
            let other = format!("{}.tmp", array.chunk_key(&expected[0].0));
            store
                .set(&StoreKey::new(other).unwrap(), vec![1].into())
                .unwrap();
            assert_eq!(all.stored().unwrap(), expected);
            assert!(all.pending().unwrap().is_empty());
            assert!(all.compact_pending().unwrap().is_empty());
            // Without a listing, a walk begins at once.
            assert_eq!(all.stored_by_asking().next().unwrap().unwrap(), expected[0]);
        }
    }
}

#[tokio::test]
async fn stored_shards_are_listed_in_an_asynchronous_store() {
    for (counts, encoding) in grids() {
        let store = Arc::new(AsyncMemoryStore::new());
        let array = builder(&counts, encoding)
            .build(store.clone(), "/group/array")
            .unwrap();
        let all = Shards::of(&array).unwrap();
        let [_, middle, last] = ends(&counts);
        for shard in [&last, &middle] {
            store
                .set(&array.chunk_key(shard), vec![1; 9].into())
                .await
                .unwrap();
        }
        let stored = all.async_stored().await.unwrap();
        assert_eq!(stored, [(middle, 9), (last, 9)]);
        // Their indices are invalid.
        assert!(all.async_pending().await.unwrap().is_empty());
        assert!(all.async_compact_pending().await.unwrap().is_empty());
    }
}

/// Shards behind a link to a directory are found, and a link that leads up has an end.
#[cfg(unix)]
#[test]
fn links_to_directories_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let store = Arc::new(FilesystemStore::new(path.join("array")).unwrap());
    let array = builder(
        &[1 << 20, 1 << 20],
        DefaultChunkKeyEncoding::new_slash().into(),
    )
    .build(store, "/")
    .unwrap();
    array.store_metadata().unwrap();
    array.store_chunk(&[7, 8], vec![5_u8; 16]).unwrap();
    std::fs::rename(path.join("array/c"), path.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(path.join("elsewhere"), path.join("array/c")).unwrap();
    for link in ["elsewhere/9", "elsewhere/7/9"] {
        std::os::unix::fs::symlink(path, path.join(link)).unwrap();
    }
    let stored = Shards::of(&array).unwrap().stored().unwrap();
    let shards: Vec<_> = stored.into_iter().map(|(shard, _)| shard).collect();
    assert_eq!(shards, [[7, 8]]);
}

/// An index or a record of the shard knows the bytes that updates leave, and no bytes of others.
#[test]
fn bytes_that_no_index_knows_are_counted() {
    for strategy in [WriteStrategy::Append, WriteStrategy::Auto] {
        let codec = CudaShardingCodecBuilder::new(vec![2.try_into().unwrap()], &data_type::uint8())
            .options(Options::default().with_write_strategy(strategy))
            .build_arc()
            .unwrap();
        let store = Arc::new(MemoryStore::new());
        let array: Array<MemoryStore> =
            ArrayBuilder::new(vec![8], vec![8], data_type::uint8(), 0_u8)
                .array_to_bytes_codec(codec)
                .build(store.clone(), "/")
                .unwrap();
        let options = CodecOptions::default().with_experimental_partial_encoding(true);
        array.store_chunk(&[0], vec![1_u8; 8]).unwrap();
        for value in 2..9_u8 {
            array
                .store_array_subset_opt(&[2..4], vec![value; 2], &options)
                .unwrap();
        }
        let all = Shards::of(&array).unwrap();
        let key = array.chunk_key(&[0]);
        let before = store.get(&key).unwrap().unwrap();
        let preview = all.preview_compact(&[0]).unwrap().unwrap();
        assert_eq!(preview.before, before.len() as u64);
        assert_eq!(preview.unknown, 0, "{strategy:?}");
        assert_eq!(store.get(&key).unwrap().unwrap(), before, "it was changed");
        let small = preview.after;
        assert_eq!(all.compact(&[0]).unwrap(), Some(preview));
        let whole = store.get(&key).unwrap().unwrap();
        assert_eq!(whole.len() as u64, small);

        // Between the subchunks and the index, of 4 × 16 bytes and a checksum.
        let (data, index) = whole.split_at(whole.len() - 68);
        for (gap, unknown) in [(vec![7; 100], 100), (vec![0; 100], 0)] {
            let large = [data, &gap, index].concat();
            store.set(&key, large.into()).unwrap();
            let compaction = all.compact(&[0]).unwrap().unwrap();
            assert_eq!((compaction.after, compaction.unknown), (small, unknown));
        }
        // Nothing is lost where nothing is stored again.
        assert_eq!(all.compact(&[0]).unwrap().unwrap().unknown, 0);
        // A shard without subchunks is erased, with what else is in it.
        let empty = [&[7; 9][..], &index_of_nothing()].concat();
        store.set(&key, empty.into()).unwrap();
        let compaction = all.compact(&[0]).unwrap().unwrap();
        assert_eq!((compaction.after, compaction.unknown), (0, 9));
        assert_eq!(store.get(&key).unwrap(), None);
    }
}

/// The index of a shard with four empty subchunks.
fn index_of_nothing() -> Vec<u8> {
    let entries = [0xFF; 64];
    let checksum = zarrs_cuda_testing::index::IndexLayout::default().shard(&vec![(0, None); 4]);
    assert_eq!(checksum[..64], entries);
    checksum
}
