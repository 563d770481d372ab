//! Shards that are replaced while they are read.

use std::sync::Arc;

use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    ReadableStorageTraits, ReadableWritableStorageTraits, StoreKey, WritableStorageTraits,
};
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::reader::{ArrayReader, ReaderError};
use zarrs_cuda_testing::stores::watched::Watched;

/// Two subchunks of zstd in one shard.
fn array<S: ReadableWritableStorageTraits + 'static>(store: Arc<S>) -> Array<S> {
    let mut codec =
        CudaShardingCodecBuilder::new(vec![64.try_into().unwrap()], &data_type::uint16());
    codec.bytes_to_bytes_codecs(vec![Arc::new(zarrs::array::codec::ZstdCodec::new(
        1, false,
    ))]);
    let mut builder = ArrayBuilder::new(vec![128], vec![128], data_type::uint16(), 0_u16);
    builder.array_to_bytes_codec(codec.build_arc().unwrap());
    let array = builder.build(store, "/").unwrap();
    array.store_metadata().unwrap();
    array
}

/// Elements that compress to fewer bytes for a smaller `noise`.
fn elements(noise: u16) -> Vec<u16> {
    (0..128_u16)
        .map(|n| n.wrapping_mul(40503) % (noise + 1) + 1)
        .collect()
}

#[test]
fn a_shard_that_is_replaced_is_read_again() {
    let memory = Arc::new(MemoryStore::new());
    let watched = Arc::new(Watched::new(memory.clone()));
    let (writer, array) = (array(memory), array(watched.clone()));
    let write = |noise| writer.store_chunk(&[0], elements(noise)).unwrap();
    let [forgets, keeps] = [0, 1 << 20].map(|bytes| {
        let builder = ArrayReader::builder(&array).with_index_cache(bytes);
        builder.build().unwrap()
    });
    let read = || keeps.read::<u16>(&array.subset_all());
    write(3);
    for noise in [7, 200, 0, 30_000, 2] {
        // Between the index and the subchunks.
        let writer = writer.with_storage(writer.storage());
        watched.after_next_read(move || writer.store_chunk(&[0], elements(noise)).unwrap());
        let found = forgets.read::<u16>(&array.subset_all()).unwrap();
        assert_eq!(found, elements(noise), "noise of {noise}");
        // Between two calls: the index that is kept is an old one.
        write(noise / 2);
        assert_eq!(read().unwrap(), elements(noise / 2));
    }
    // An erased shard has no elements, although its index is kept.
    writer.erase_chunk(&[0]).unwrap();
    assert_eq!(read().unwrap(), [0; 128]);
    write(9);
    assert_eq!(read().unwrap(), elements(9));
}

/// Replaces the shard at each read, until it was replaced `times` times.
fn replace_at_each_read(watched: &Arc<Watched>, writer: Arc<Array<MemoryStore>>, times: u16) {
    if times == 0 {
        return;
    }
    let next = watched.clone();
    watched.after_next_read(move || {
        writer.store_chunk(&[0], elements(times * 50)).unwrap();
        replace_at_each_read(&next, writer, times - 1);
    });
}

#[test]
fn a_shard_that_is_replaced_for_ever_is_an_error() {
    let memory = Arc::new(MemoryStore::new());
    let watched = Arc::new(Watched::new(memory.clone()));
    let (writer, array) = (Arc::new(array(memory)), array(watched.clone()));
    writer.store_chunk(&[0], elements(1)).unwrap();
    let reader = ArrayReader::builder(&array).build().unwrap();
    replace_at_each_read(&watched, writer, 20);
    let error = reader.read::<u16>(&array.subset_all()).unwrap_err();
    assert!(
        matches!(error, ReaderError::Changing { attempts: 3, .. }),
        "{error}"
    );
}

#[test]
fn files_of_another_folder_are_refused() {
    let folders = [(); 2].map(|()| tempfile::TempDir::new().unwrap());
    let stores = folders
        .each_ref()
        .map(|f| Arc::new(FilesystemStore::new(f.path()).unwrap()));
    let array = array(stores[0].clone());
    let build = |store| ArrayReader::builder(&array).on_filesystem(store).build();
    assert!(build(&stores[0]).is_ok());
    let refused = || {
        let error = build(&stores[1]).unwrap_err().to_string();
        assert!(error.contains("same root"), "{error}");
    };
    refused();
    // Another array has the same path there.
    let other = ArrayBuilder::new(vec![128], vec![64], data_type::uint16(), 0_u16);
    let other = other.build(stores[1].clone(), "/").unwrap();
    other.store_metadata().unwrap();
    refused();
    // The same array, longer.
    let key = StoreKey::new("zarr.json").unwrap();
    let metadata = stores[0].get(&key).unwrap().unwrap();
    let longer = String::from_utf8(metadata.to_vec()).unwrap();
    let longer = longer.replacen("128", "256", 1);
    stores[1].set(&key, longer.into()).unwrap();
    assert!(build(&stores[1]).is_ok());
    stores[1].set(&key, "{".into()).unwrap();
    refused();
}
