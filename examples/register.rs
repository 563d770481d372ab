//! One line at the start of an application makes its sharded arrays use this crate.
//!
//! `cargo run --release --example register`

use std::sync::Arc;

use zarrs::array::codec::ZstdCodec;
use zarrs::array::{ArrayBuilder, ArraySubset, data_type};
use zarrs::storage::store::MemoryStore;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Register before other threads open arrays. Dropping the registration would end it.
    zarrs_cuda::register(zarrs_cuda::Options::default())?.leak();

    // The rest is zarrs' own interface.
    let (shape, shard) = (vec![512, 512, 512], vec![256, 256, 256]);
    let mut builder = ArrayBuilder::new(shape, shard, data_type::uint16(), 0_u16);
    builder
        .subchunk_shape(vec![32, 32, 32])
        .bytes_to_bytes_codecs(vec![Arc::new(ZstdCodec::new(3, false))]);

    // `builder.build(…)` would create zarrs' own codec, because a subchunk shape is set.
    let store = Arc::new(MemoryStore::new());
    let array = zarrs_cuda::build_sharded(builder, store, "/volume")?;
    array.store_metadata()?;
    println!("{}", zarrs_cuda::explain(&array)?);

    let region = ArraySubset::new_with_ranges(&[0..256, 0..256, 0..512]);
    let values = (0..=u16::MAX).cycle().take(region.num_elements_usize());
    let values: Vec<u16> = values.collect();
    array.store_array_subset(&region, &values)?;

    assert!(array.retrieve_array_subset::<Vec<u16>>(&region)? == values);
    Ok(())
}
