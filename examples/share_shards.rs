//! Many writers update subchunks of the same shards, and none of their updates is lost.
//!
//! `cargo run --release --example share_shards`
//!
//! Here each writer is a thread with an adapter of its own, as each of many processes would have. With
//! zarrs alone, each update would read and store a whole shard, and most updates would be lost.

use std::sync::Arc;
use std::thread;

use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::SparseShardStore;

const WRITERS: u64 = 8;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), AnyError> {
    let directory = tempfile::tempdir()?;
    let store = Arc::new(FilesystemStore::new(directory.path())?);
    let mut builder = ArrayBuilder::new(vec![256, 256], vec![128, 128], data_type::uint16(), 0_u16);
    builder.subchunk_shape(vec![32, 32]);
    builder.build(store.clone(), "/")?.store_metadata()?;

    let writers = (0..WRITERS).map(|writer| {
        let store = store.clone();
        thread::spawn(move || -> Result<(), AnyError> {
            // The array as chunks, one for each subchunk. A write stores an object beside the shard.
            let sparse = SparseShardStore::on_filesystem(store, "/")?;
            let subchunks = Array::open(Arc::new(sparse), "/")?;
            for number in (writer..64).step_by(WRITERS.try_into()?) {
                let value: u16 = (number + 1).try_into()?;
                subchunks.store_chunk(&[number / 8, number % 8], vec![value; 32 * 32])?;
            }
            Ok(())
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.join().map_err(|_| "a writer panicked")??;
    }

    // In one process, while the others may go on: standard shards, for every Zarr reader.
    let sparse = SparseShardStore::on_filesystem(store.clone(), "/")?;
    println!(
        "{}",
        sparse.consolidate_all(&|progress| println!("{progress}"))?
    );

    let shards = Array::open(store, "/")?;
    for number in 0..64_u16 {
        let at = [u64::from(number) / 8 * 32, u64::from(number) % 8 * 32];
        let one: Vec<u16> = shards.retrieve_array_subset(&[at[0]..at[0] + 1, at[1]..at[1] + 1])?;
        assert_eq!(one, [number + 1]);
    }
    Ok(())
}
