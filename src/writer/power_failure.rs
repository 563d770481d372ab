//! Readers after a power failure at any moment of a stream, and of an image.

use std::sync::Arc;
use std::time::Duration;

use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs_cuda_testing::stores::disk::Disk;
use zarrs_cuda_testing::stores::renaming::RenamingStore;
use zarrs_storage::{ListableStorageTraits, ReadableStorageTraits, WritableStorageTraits};

use super::{ArrayWriter, Resume};
use crate::codec::CudaShardingCodecBuilder;
use crate::options::{Backend, Options};
use crate::pyramid::tests::small;

/// So many disks after an event, at most.
const MOST: usize = 48;
const SLICE: usize = 4;
const SLICES: usize = 9;

/// An array of slices of 4 elements, two shards of two slices side by side.
fn array<S: ?Sized>(store: &Arc<S>, slices: usize) -> Array<S> {
    let data_type = data_type::uint8();
    let subchunk = [1, 2].map(|extent: u64| extent.try_into().unwrap());
    let codec = CudaShardingCodecBuilder::new(subchunk.to_vec(), &data_type)
        .options(Options::default().with_backend(Backend::Host))
        .build()
        .unwrap();
    let shape = vec![slices as u64, SLICE as u64];
    ArrayBuilder::new(shape, vec![2, 2], data_type, 0_u8)
        .array_to_bytes_codec(Arc::new(codec))
        .build(store.clone(), "/a")
        .unwrap()
}

/// One of the shards has nothing but the fill value.
fn elements() -> Vec<u8> {
    let element = |n: usize| match (n / SLICE, n % SLICE) {
        (4..6, 0..2) => 0,
        _ => n as u8 + 1,
    };
    (0..SLICES * SLICE).map(element).collect()
}

fn stored<S>(store: &Arc<S>, path: &str) -> Vec<u8>
where
    S: ?Sized + ReadableStorageTraits + 'static,
{
    let array = Array::open(store.clone(), path).unwrap();
    array.retrieve_array_subset(&array.subset_all()).unwrap()
}

/// Another process goes on with what the disk has.
fn go_on(disk: &MemoryStore, elements: &[u8]) {
    let store = Arc::new(RenamingStore::default());
    for key in disk.list().unwrap() {
        store.set(&key, disk.get(&key).unwrap().unwrap()).unwrap();
    }
    let slices = stored(&store, "/a").len() / SLICE;
    let mut writer = ArrayWriter::builder(&array(&store, slices))
        .with_start(Resume)
        .with_atomic_rename(store.clone())
        .build()
        .unwrap();
    writer.append_bytes(&elements[slices * SLICE..]).unwrap();
    writer.finish().unwrap();
    assert_eq!(stored(&store, "/a"), elements);
}

/// Calls `check` with each disk after each event from event number `begin` on. Returns the last of them: after
/// the end.
fn for_each_disk(disk: &Disk, begin: usize, check: impl Fn(&Arc<MemoryStore>)) -> Vec<MemoryStore> {
    let mut count = 0;
    for events in begin..=disk.events() {
        for disk in disk.after_power_failure(events, MOST) {
            count += 1;
            check(&Arc::new(disk));
        }
    }
    println!("{count} disks");
    disk.after_power_failure(disk.events(), MOST)
}

#[test]
fn a_stream_covers_no_shard_that_the_disk_lacks() {
    let disk = Arc::new(Disk::default());
    array(&disk, 0).store_metadata().unwrap();
    disk.sync_all();
    let begin = disk.events();
    let elements = elements();
    let mut writer = ArrayWriter::builder(&array(&disk, 0))
        .with_atomic_rename(disk.clone())
        .with_metadata_interval(Duration::ZERO)
        .with_store_threads(2)
        .build()
        .unwrap();
    for (number, slice) in elements.chunks(SLICE).enumerate() {
        writer.append_bytes(slice).unwrap();
        if number % 4 == 3 {
            writer.flush().unwrap();
        }
    }
    writer.finish().unwrap();
    let last = for_each_disk(&disk, begin, |disk| {
        let stored = stored(disk, "/a");
        assert_eq!(stored, elements[..stored.len()]);
    });
    for disk in last {
        assert_eq!(stored(&Arc::new(disk), "/a"), elements, "after `finish`");
    }
    for events in begin..=disk.events() {
        let disks = disk.after_power_failure(events, MOST);
        go_on(&disks[0], &elements);
    }
}

/// The stored slices of the shard that is replaced stay.
#[test]
fn a_stream_that_resumes_loses_no_slice() {
    let disk = Arc::new(Disk::default());
    array(&disk, 0).store_metadata().unwrap();
    let elements = elements();
    let append = |slices: usize, end: usize| {
        let mut writer = ArrayWriter::builder(&array(&disk, slices))
            .with_start(Resume)
            .with_atomic_rename(disk.clone())
            .with_metadata_interval(Duration::ZERO)
            .with_store_threads(2)
            .build()
            .unwrap();
        let slices = slices * SLICE..end * SLICE;
        writer.append_bytes(&elements[slices]).unwrap();
        writer.finish().unwrap();
    };
    append(0, 3);
    disk.sync_all();
    let begin = disk.events();
    append(3, SLICES);
    let last = for_each_disk(&disk, begin, |disk| {
        let stored = stored(disk, "/a");
        assert!(stored.len() >= 3 * SLICE, "{}", stored.len());
        assert_eq!(stored, elements[..stored.len()]);
    });
    for disk in last {
        assert_eq!(stored(&Arc::new(disk), "/a"), elements, "after `finish`");
    }
    for events in begin..=disk.events() {
        let disks = disk.after_power_failure(events, MOST);
        go_on(&disks[0], &elements);
    }
}

#[test]
fn an_image_covers_no_shard_that_the_disk_lacks() {
    let image = small();
    let (disk, whole) = (Arc::new(Disk::default()), Arc::new(MemoryStore::new()));
    image.write(&whole);
    let levels = ["/image/0", "/image/1", "/image/2"];
    let expected = levels.map(|level| stored(&whole, level));
    let builder = image.builder(&disk).with_atomic_rename(disk.clone());
    let mut writer = builder
        .with_metadata_interval(Duration::ZERO)
        .build()
        .unwrap();
    // Each level is there from now on.
    disk.sync_all();
    let begin = disk.events();
    for slice in image.elements.chunks(image.slice()) {
        writer.append_bytes(slice).unwrap();
    }
    writer.finish().unwrap();
    let check = |disk: &Arc<MemoryStore>| {
        for (level, expected) in levels.iter().zip(&expected) {
            let stored = stored(disk, level);
            assert!(expected.starts_with(&stored), "{level}");
        }
    };
    for disk in for_each_disk(&disk, begin, check) {
        image.check(&Arc::new(disk));
    }
}

/// The model of the disk: without a sync, the metadata may be there before the shards.
#[test]
fn names_that_are_not_synced_may_be_missing() {
    let disk = Arc::new(Disk::default());
    array(&disk, 0).store_metadata().unwrap();
    disk.sync_all();
    let array = array(&disk, 2);
    array.store_chunk(&[0, 0], vec![1_u8; 4]).unwrap();
    array.store_chunk(&[0, 1], vec![2_u8; 4]).unwrap();
    array.store_metadata().unwrap();
    let disks = disk.after_power_failure(disk.events(), MOST);
    let stored = disks.into_iter().map(|disk| stored(&Arc::new(disk), "/a"));
    let stored: std::collections::BTreeSet<_> = stored.collect();
    let all = [1, 1, 2, 2, 1, 1, 2, 2];
    let first = [1, 1, 0, 0, 1, 1, 0, 0];
    assert!(
        [&all[..], &first, &[0; 8]]
            .iter()
            .all(|found| stored.contains(*found))
    );
}
