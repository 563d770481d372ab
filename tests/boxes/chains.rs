//! Any boxes of arrays of every chain and data type: zarrs reads the elements of a naive array.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use tempfile::TempDir;
use zarrs::array::{Array, ArrayBytes, ArraySubset};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    ListableStorageTraits, ReadableStorageTraits, ReadableWritableListableStorageTraits,
};
use zarrs_cuda::writer::{BoxWriter, BoxWriterBuilder, Input, ShardUpdate};
use zarrs_cuda_testing::types::Type;
use zarrs_cuda_testing::{Rng, effort, random_box};

use super::naive::{Memory, Naive};
use crate::writer::case::{Case, Place, case};

/// An element that is often the fill value.
fn element(case: &Case) -> impl FnMut(&mut Rng) -> Vec<u8> {
    let data_type = Type::of(&case.shards.data_type);
    let mut run = (0, true);
    move |rng| {
        if run.0 == 0 {
            run = (1 + rng.below(40), rng.one_in(3));
        }
        run.0 -= 1;
        if run.1 {
            case.shards.fill.clone()
        } else {
            data_type.element(rng)
        }
    }
}

fn settings<S: ?Sized>(
    case: &Case,
    builder: BoxWriterBuilder<S>,
    update: ShardUpdate,
    rng: &mut Rng,
) -> BoxWriterBuilder<S> {
    let mut builder = builder
        .with_update(update)
        .with_sync(false)
        .with_codec_options(case.options())
        .with_threads(case.threads);
    if rng.one_in(4) {
        builder = builder.with_memory(rng.below(4000) as usize);
    }
    builder
}

fn check_on<S>(case: &Case, store: &Arc<S>, slices: u64)
where
    S: ReadableWritableListableStorageTraits + 'static,
{
    let mut rng = Rng(case.seed | 1);
    let ours = case.ours(store, slices);
    ours.store_metadata().unwrap();
    let stock = case.stock(store, slices);
    let shape = ours.shape().to_vec();
    let (size, fill) = (case.shards.fill.len(), &case.shards.fill);
    let mut naive = Naive::new(&shape, fill);
    let mut element = element(case);
    for _ in 0..3 {
        let update = match rng.below(4) {
            0 | 1 => ShardUpdate::Rewrite,
            2 => ShardUpdate::InPlace,
            _ => ShardUpdate::Shared,
        };
        let builder = settings(case, BoxWriter::builder(&ours), update, &mut rng);
        let writer = builder.build().unwrap();
        for _ in 0..2 {
            let subset = match rng.below(4) {
                0 => ArraySubset::new_with_shape(shape.clone()),
                _ => random_box(&shape, &mut rng),
            };
            let memory = Memory::new(subset.shape(), size, &mut rng, &mut element);
            let report = writer.write_bytes(&subset, memory.input()).unwrap();
            assert_eq!(report.wanted, report.stored.len() + report.empty.len());
            naive.write(&subset, &memory.elements);
        }
        if update == ShardUpdate::Shared {
            let sparse = zarrs_cuda::storage::SparseShardStore::open(store.clone(), "/array");
            sparse.unwrap().consolidate_all(&|_| {}).unwrap();
        }
        let found: ArrayBytes = stock
            .retrieve_array_subset_opt(&stock.subset_all(), &case.options())
            .unwrap();
        assert!(
            *found.into_fixed().unwrap() == *naive.bytes,
            "elements after {update:?}"
        );
    }
    // A shard of nothing but the fill value is not stored, unless it was told to be.
    if !case.store_empty {
        let builder = settings(
            case,
            BoxWriter::builder(&ours),
            ShardUpdate::Rewrite,
            &mut rng,
        );
        let all = fill.repeat(naive.bytes.len() / size);
        let writer = builder.build().unwrap();
        let input = Input::contiguous(&all);
        writer.write_bytes(&ours.subset_all(), input).unwrap();
        let keys = store.list().unwrap();
        let shards = keys.iter().filter(|key| key.as_str().contains("/c"));
        assert_eq!(shards.count(), 0, "{keys:?}");
    }
}

fn check(case: &Case) {
    let slices = case.slices.max(1);
    match case.place {
        Place::Files | Place::FilesRenamed => {
            let folder = TempDir::new().unwrap();
            let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
            check_on(case, &store, slices);
        }
        _ => check_on(case, &Arc::new(MemoryStore::new()), slices),
    }
}

proptest! {
    #![proptest_config(effort::config(256))]

    #[test]
    fn any_box_of_any_chain(case in case()) {
        check(&case);
    }
}

/// A covered shard has the same bytes as a shard that the codec encodes.
#[test]
fn covered_shards_are_as_the_codec_stores_them() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..60 {
        let mut case = case().new_tree(&mut runner).unwrap().current();
        case.inner = case.shards.shape[1..].to_vec();
        let slices = case.shards.shape[0];
        let [one, other] = [(); 2].map(|()| Arc::new(MemoryStore::new()));
        let array: Array<MemoryStore> = case.ours(&one, slices);
        let mut rng = Rng(case.seed | 1);
        let memory = Memory::new(
            array.shape(),
            case.shards.fill.len(),
            &mut rng,
            element(&case),
        );
        let writer = BoxWriter::builder(&array).with_codec_options(case.options());
        let writer = writer.build().unwrap();
        writer
            .write_bytes(&array.subset_all(), memory.input())
            .unwrap();
        let by_zarrs = case.ours(&other, slices);
        let elements = ArrayBytes::from(&*memory.elements);
        by_zarrs
            .store_array_subset_opt(&by_zarrs.subset_all(), elements, &case.options())
            .unwrap();
        for key in other.list().unwrap() {
            assert!(one.get(&key).unwrap() == other.get(&key).unwrap(), "{key}");
        }
        assert_eq!(one.list().unwrap(), other.list().unwrap());
    }
}
