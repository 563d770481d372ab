//! Any boxes of any array, also of arrays that zarrs encodes: by all calls, over all kinds of stores.

use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;
use zarrs::array::codec::Endianness;
use zarrs::array::{Array, ArraySubset};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{
    AsyncListableStorageTraits, AsyncReadableStorageTraits, AsyncWritableStorageTraits,
    ListableStorageTraits, ReadableStorageTraits, ReadableWritableListableStorageTraits,
    WritableStorageTraits,
};
use zarrs_cuda::writer::{BoxWriter, BoxWriterErrorKind, Input, ShardUpdate};
use zarrs_cuda_testing::{Rng, effort, random_box};

use super::naive::{Memory, Naive};
use crate::reader::any::{Case, cases};

type Store = Arc<dyn ReadableWritableListableStorageTraits>;

fn elements(rng: &mut Rng) -> Vec<u8> {
    (rng.below(4) as u32 * 7).to_ne_bytes().to_vec()
}

/// Boxes of one shape that do not overlap, or that do.
fn origins(shape: &[u64], rng: &mut Rng) -> (Vec<Vec<u64>>, Vec<u64>, bool) {
    let extents: Vec<u64> = shape.iter().map(|d| 1 + rng.below(*d)).collect();
    let origins: Vec<Vec<u64>> = (0..=rng.below(4))
        .map(|_| {
            std::iter::zip(shape, &extents)
                .map(|(array, extent)| rng.below(array - extent + 1))
                .collect()
        })
        .collect();
    let meet = |one: &Vec<u64>, other: &Vec<u64>| {
        (0..shape.len()).all(|d| one[d].abs_diff(other[d]) < extents[d])
    };
    let overlap = (0..origins.len()).any(|i| (0..i).any(|j| meet(&origins[i], &origins[j])));
    (origins, extents, overlap)
}

fn check(case: &Case) {
    let mut rng = Rng(case.seed | 1);
    let folder = TempDir::new().unwrap();
    let files = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let memory = Arc::new(MemoryStore::new());
    let store: Store = if case.in_files { files } else { memory };
    let metadata = serde_json::from_value(case.metadata()).unwrap();
    let array = Array::new_with_metadata(store, "/a/b", metadata).unwrap();
    array.store_metadata().unwrap();
    let shape = array.shape().to_vec();
    let mut naive = Naive::new(&shape, &7_u32.to_ne_bytes());
    let mut builder = BoxWriter::builder(&array).with_sync(rng.one_in(8));
    if case.in_files && rng.below(4) > 0 {
        builder = builder.on_directory(folder.path().to_owned());
    }
    let writer = builder.build().unwrap();
    assert_eq!(writer.is_by_zarrs(), case.around != "nothing");
    if writer.is_by_zarrs() {
        let in_place = BoxWriter::builder(&array).with_update(ShardUpdate::InPlace);
        assert!(in_place.build().is_err());
    }
    for _ in 0..4 {
        let subset = random_box(&shape, &mut rng);
        let memory = Memory::new(subset.shape(), 4, &mut rng, elements);
        match rng.below(4) {
            0 => {
                let of_u32: Vec<u32> = bytemuck::pod_collect_to_vec(&memory.elements);
                writer.write(&subset, &of_u32).unwrap();
            }
            1 => {
                let mut swapped = memory.elements.clone();
                swapped.chunks_mut(4).for_each(<[u8]>::reverse);
                let order = if cfg!(target_endian = "big") {
                    Endianness::Little
                } else {
                    Endianness::Big
                };
                let input = Input::contiguous(&swapped).with_byte_order(order);
                writer.write_bytes(&subset, input).unwrap();
            }
            2 => {
                let boxes = vec![(subset.clone(), memory.input())];
                writer.write_each(boxes).unwrap();
            }
            _ => drop(writer.write_bytes(&subset, memory.input()).unwrap()),
        }
        naive.write(&subset, &memory.elements);

        let (origins, extents, overlap) = origins(&shape, &mut rng);
        let mut of_all = vec![origins.len() as u64];
        of_all.extend(&extents);
        let memory = Memory::new(&of_all, 4, &mut rng, elements);
        let written = writer.write_boxes_bytes(&origins, &extents, memory.input());
        if let Err(error) = written {
            let is_overlap = matches!(*error.kind, BoxWriterErrorKind::Overlap { .. });
            assert!(is_overlap && overlap, "{error}");
        } else {
            assert!(!overlap, "{origins:?} of {extents:?} overlap");
            let each = extents.iter().product::<u64>() as usize * 4;
            for (origin, elements) in origins.iter().zip(memory.elements.chunks(each)) {
                let subset = ArraySubset::new_with_start_shape(origin.clone(), extents.clone());
                naive.write(&subset.unwrap(), elements);
            }
        }
        let found: Vec<u32> = array.retrieve_array_subset(&array.subset_all()).unwrap();
        assert!(bytemuck::cast_slice::<u32, u8>(&found) == naive.bytes);
    }
    futures::executor::block_on(is_send(awaited(&array, &mut naive, &mut rng)));
}

fn is_send<T: Send>(future: T) -> T {
    future
}

/// The same array in a store that is awaited.
async fn awaited(
    array: &Array<dyn ReadableWritableListableStorageTraits>,
    naive: &mut Naive,
    rng: &mut Rng,
) {
    let store = Arc::new(AsyncMemoryStore::new());
    let from = array.storage();
    for key in from.list().unwrap() {
        let value = from.get(&key).unwrap().unwrap();
        store.set(&key, value).await.unwrap();
    }
    let copy = array.with_storage(store.clone());
    let mut builder = BoxWriter::builder(&copy).with_requests(3);
    let is_ours = !BoxWriter::builder(&copy).build().unwrap().is_by_zarrs();
    if is_ours && rng.one_in(3) {
        builder = builder.with_update(ShardUpdate::Shared);
    }
    let writer = builder.build().unwrap();
    for _ in 0..2 {
        let subset = random_box(array.shape(), rng);
        let memory = Memory::new(subset.shape(), 4, rng, elements);
        let written = writer.async_write_bytes(&subset, memory.input()).await;
        written.unwrap();
        naive.write(&subset, &memory.elements);
    }
    let (origins, extents, overlap) = origins(array.shape(), rng);
    let len = origins.len() as u64 * extents.iter().product::<u64>();
    let numbers: Vec<u32> = (0..len).map(|_| rng.below(4) as u32).collect();
    let written = writer.async_write_boxes(&origins, &extents, &numbers).await;
    assert_eq!(written.is_err(), overlap);
    if !overlap {
        let each = extents.iter().product::<u64>() as usize;
        for (origin, elements) in origins.iter().zip(numbers.chunks(each)) {
            let subset = ArraySubset::new_with_start_shape(origin.clone(), extents.clone());
            naive.write(&subset.unwrap(), bytemuck::cast_slice(elements));
        }
    }
    // Subchunks that are stored beside their shards are packed in a store that blocks.
    let back = Arc::new(MemoryStore::new());
    for key in store.list().await.unwrap() {
        let value = store.get(&key).await.unwrap().unwrap();
        back.set(&key, value).unwrap();
    }
    if let Ok(sparse) = zarrs_cuda::storage::SparseShardStore::open(back.clone(), "/a/b") {
        sparse.consolidate_all(&|_| {}).unwrap();
    }
    let back = array.with_storage(back);
    let found: Vec<u32> = back.retrieve_array_subset(&back.subset_all()).unwrap();
    assert!(bytemuck::cast_slice::<u32, u8>(&found) == naive.bytes);
}

proptest! {
    #![proptest_config(effort::config(256))]

    #[test]
    fn any_box_of_any_array(case in cases()) {
        check(&case);
    }
}
