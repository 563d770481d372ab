//! Readers after a power failure at any moment of a consolidation.

use std::sync::Arc;

use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs_cuda_testing::stores::disk::Disk;
use zarrs_storage::{ListableStorageTraits, ReadableStorageTraits};

use super::SparseShardStore;
use crate::store::durable::Names;

/// Returns all elements, as readers through the adapter see them.
fn read<S>(sparse: Arc<SparseShardStore<S>>) -> Vec<u8>
where
    S: ReadableStorageTraits + ListableStorageTraits + 'static,
{
    let array = Array::open(sparse, "/a").unwrap();
    array.retrieve_array_subset(&array.subset_all()).unwrap()
}

#[test]
fn no_version_goes_before_the_disk_has_the_shard() {
    let disk = Arc::new(Disk::default());
    let mut builder = ArrayBuilder::new(vec![4, 4], vec![2, 4], data_type::uint8(), 0_u8);
    builder.subchunk_shape(vec![1, 2]);
    let array = builder.build(disk.clone(), "/a").unwrap();
    array.store_metadata().unwrap();
    // A shard that is replaced, and one that is made.
    array.store_chunk(&[0, 0], vec![9_u8; 8]).unwrap();
    let mut sparse = SparseShardStore::open(disk.clone(), "/a").unwrap();
    sparse.rename_in(disk.clone(), Names::of(&disk));
    let sparse = Arc::new(sparse);
    let subchunks = Array::open(sparse.clone(), "/a").unwrap();
    for (number, at) in [[0, 1], [1, 0], [2, 0], [3, 1]].into_iter().enumerate() {
        for version in 1..3 {
            let value = 10 * version + number as u8;
            subchunks.store_chunk(&at, vec![value; 2]).unwrap();
        }
    }
    disk.sync_all();
    let begin = disk.events();
    let expected = read(sparse.clone());
    sparse.consolidate_all(&|_| ()).unwrap();
    let mut count = 0;
    for events in begin..=disk.events() {
        for disk in disk.after_power_failure(events, 200) {
            count += 1;
            let disk = Arc::new(disk);
            let sparse = Arc::new(SparseShardStore::open(disk.clone(), "/a").unwrap());
            assert_eq!(read(sparse.clone()), expected, "before event {events}");
            sparse.consolidate_all(&|_| ()).unwrap();
            let array = Array::open(disk, "/a").unwrap();
            let shards: Vec<u8> = array.retrieve_array_subset(&array.subset_all()).unwrap();
            assert_eq!(
                shards, expected,
                "consolidated again, before event {events}"
            );
        }
    }
    println!("{count} disks");
    assert!(begin < disk.events());
}
