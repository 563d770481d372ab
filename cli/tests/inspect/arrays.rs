//! Arrays with shards in every state.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, CodecOptions, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda_testing::{Rng, chunk_shape};

/// An array of this process's codec, which updates shards where they are stored.
fn create(path: &Path, shape: &[u64], shard: &[u64], subchunk: &[u64]) -> Array<FilesystemStore> {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        zarrs_cuda::register(zarrs_cuda::Options::default())
            .unwrap()
            .leak();
    });
    let store = Arc::new(FilesystemStore::new(path).unwrap());
    let codec = CudaShardingCodecBuilder::new(chunk_shape(subchunk), &data_type::uint16())
        .bytes_to_bytes_codecs(vec![Arc::new(zarrs::array::codec::ZstdCodec::new(
            1, false,
        ))])
        .build_arc()
        .unwrap();
    let mut builder = ArrayBuilder::new(shape.to_vec(), shard.to_vec(), data_type::uint16(), 0_u16);
    builder.array_to_bytes_codec(codec);
    let names = ["z", "y", "x"];
    builder.dimension_names(Some(names[3 - shape.len()..].iter().copied()));
    builder
        .build(store.clone(), "/")
        .unwrap()
        .store_metadata()
        .unwrap();
    Array::open(store, "/").unwrap()
}

/// Values that compress more or less: noise of `amplitude` below 65 536.
fn values(rng: &mut Rng, count: u64, amplitude: u64) -> Vec<u16> {
    (0..count)
        .map(|n| (1 + n % 7 + rng.below(amplitude.max(1))) as u16)
        .collect()
}

/// Four shards: whole; half empty; updated again and again, so that it has unused bytes and records;
/// with a broken index.
pub(crate) fn four(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("volume.zarr");
    let array = create(&path, &[128, 96], &[64, 64], &[16, 16]);
    let mut rng = Rng(5);
    let options = CodecOptions::default().with_experimental_partial_encoding(true);
    array
        .store_chunk(&[0, 0], values(&mut rng, 64 * 64, 300))
        .unwrap();
    array
        .store_chunk_subset(&[0, 1], &[0..40, 0..32], values(&mut rng, 40 * 32, 40))
        .unwrap();
    for update in 0..40 {
        let row = 16 * (update % 4);
        let subset = [row..row + 16, 0..48];
        let values = values(&mut rng, 16 * 48, 2 << (update % 12));
        array
            .store_chunk_subset_opt(&[1, 0], &subset, values, &options)
            .unwrap();
    }
    array
        .store_chunk(&[1, 1], values(&mut rng, 64 * 64, 3))
        .unwrap();
    let broken = path.join("c/1/1");
    let mut bytes = fs::read(&broken).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 0x55;
    fs::write(broken, bytes).unwrap();
    path
}

/// Many small shards, some of them missing; a shard whose last update was torn; a subchunk that waits.
pub(crate) fn many(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("many.zarr");
    let array = create(&path, &[24, 160, 250], &[8, 16, 16], &[4, 8, 8]);
    let mut rng = Rng(8);
    for z in 0..3 {
        for y in 0..10 {
            for x in 0..16 {
                let (dy, dx) = (y as f64 - 4.5, x as f64 - 7.5);
                let distance = (dy * dy + 0.4 * dx * dx).sqrt();
                if distance < 5.2 {
                    let amplitude = (600.0 * (-0.3 * distance).exp()) as u64 + 2;
                    let values = values(&mut rng, 8 * 16 * 16, amplitude);
                    array.store_chunk(&[z, y, x], values).unwrap();
                }
            }
        }
    }
    let options = CodecOptions::default().with_experimental_partial_encoding(true);
    let update = values(&mut rng, 4 * 8 * 8, 3);
    let subset = [0..4, 0..8, 0..8];
    array
        .store_chunk_subset_opt(&[1, 4, 7], &subset, update, &options)
        .unwrap();
    // The update did not come to its end.
    let torn = path.join("c/1/4/7");
    let bytes = fs::read(&torn).unwrap();
    fs::write(torn, &bytes[..bytes.len() - 9]).unwrap();
    let sparse = SparseShardStore::on_filesystem(array.storage(), "/").unwrap();
    let subchunks = Array::open(Arc::new(sparse), "/").unwrap();
    subchunks
        .store_chunk(&[0, 0, 0], vec![7_u16; 4 * 8 * 8])
        .unwrap();
    path
}
