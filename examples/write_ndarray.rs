//! Writes an `ndarray` into a sharded array on disk, and reads a part of it back.
//!
//! `cargo run --release --example write_ndarray`

use std::sync::Arc;

use ndarray::{Array3, ArrayD, s};
use zarrs::array::codec::ZstdCodec;
use zarrs::array::{Array, ArrayBuilder, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::{CudaShardingCodecBuilder, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[allow(clippy::cast_precision_loss)] // small numbers
    let volume = Array3::from_shape_fn((100, 256, 256), |(z, y, x)| {
        let (z, y, x) = (z as f32 - 50.0, y as f32 - 128.0, x as f32 - 128.0);
        (90.0 - (4.0 * z * z + y * y + x * x).sqrt()).max(0.0)
    });

    let sharding = CudaShardingCodecBuilder::new(vec![32.try_into()?; 3], &data_type::float32())
        .bytes_to_bytes_codecs(vec![Arc::new(ZstdCodec::new(3, false))])
        .build_arc()?;

    let directory = tempfile::tempdir()?;
    let store = Arc::new(FilesystemStore::new(directory.path())?);
    let array = ArrayBuilder::new(
        vec![100, 256, 256], // the array
        vec![64, 128, 128],  // a shard
        data_type::float32(),
        0_f32,
    )
    .array_to_bytes_codec(sharding)
    .dimension_names(["z", "y", "x"].into())
    .build(store.clone(), "/")?;
    array.store_metadata()?;
    array.store_array_subset(&array.subset_all(), &volume)?;

    // Any reader can open it. A process that called `register` reads it through this crate.
    let _registration = zarrs_cuda::register(Options::default())?;
    let array = Array::open(store, "/")?;
    let slice = ArraySubset::new_with_ranges(&[50..51, 0..256, 0..256]);
    let slice: ArrayD<f32> = array.retrieve_array_subset(&slice)?;
    assert_eq!(slice, volume.slice(s![50..51, .., ..]).into_dyn());
    println!(
        "the middle slice has a maximum of {}",
        slice.fold(0.0, |a: f32, &b| a.max(b))
    );
    Ok(())
}
