//! A small array whose elements encode their positions, for tests of the writer's behaviour.

use std::sync::Arc;

use serde_json::Value;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::storage::{ReadableStorageTraits, ReadableWritableStorageTraits};
use zarrs_cuda::writer::{ArrayWriter, ArrayWriterBuilder};
use zarrs_cuda::{Backend, CudaShardingCodec, Options};

use zarrs_cuda_testing::index::IndexLayout;
use zarrs_cuda_testing::{Shards, codecs};

/// Slices in a shard epoch, and in an epoch.
pub(crate) const SHARD: u64 = 4;
pub(crate) const EPOCH: u64 = 2;
/// Elements in a slice, which is 6 × 8.
pub(crate) const SLICE: usize = 48;
/// Shards in a shard epoch.
pub(crate) const SHARDS: u64 = 2;
/// Bytes in a slice.
pub(crate) const SLICE_BYTES: u64 = 2 * SLICE as u64;

pub(crate) fn shards(codecs: Vec<Value>) -> Shards {
    Shards {
        shape: vec![SHARD, 3, 8],
        subchunk: vec![EPOCH, 3, 4],
        data_type: data_type::uint16(),
        fill: vec![0, 0],
        codecs,
        index: IndexLayout::default(),
    }
}

/// Creates the array at `path` with this many slices, and stores its metadata.
pub(crate) fn array_at<S>(store: &Arc<S>, path: &str, slices: u64, options: Options) -> Array<S>
where
    S: ?Sized + ReadableWritableStorageTraits + 'static,
{
    array_of(
        &shards(vec![codecs::bytes("little")]),
        store,
        path,
        slices,
        options,
    )
}

/// The same with other shards.
pub(crate) fn array_of<S>(
    shards: &Shards,
    store: &Arc<S>,
    path: &str,
    slices: u64,
    options: Options,
) -> Array<S>
where
    S: ?Sized + ReadableWritableStorageTraits + 'static,
{
    let options = options.with_backend(Backend::Host);
    let codec = CudaShardingCodec::new_with_configuration(&shards.configuration(), options);
    let shape = vec![slices, 6, 8];
    let mut builder = ArrayBuilder::new(shape, shards.shape.clone(), data_type::uint16(), 0_u16);
    let array = builder
        .array_to_bytes_codec(Arc::new(codec.unwrap()))
        .build(store.clone(), path)
        .unwrap();
    array.store_metadata().unwrap();
    array
}

/// Creates an empty array of this kind.
pub(crate) fn array<S>(store: &Arc<S>) -> Array<S>
where
    S: ?Sized + ReadableWritableStorageTraits + 'static,
{
    array_at(store, "/array", 0, Options::default())
}

/// A writer of an empty array, with batches of one epoch and one storing thread.
pub(crate) fn builder<S>(array: &Array<S>) -> ArrayWriterBuilder<S>
where
    S: ?Sized + ReadableWritableStorageTraits + 'static,
{
    ArrayWriter::builder(array)
        .with_epochs_per_batch(1)
        .with_store_threads(1)
}

/// The elements of slices. Nearby elements differ, and none is the fill value.
pub(crate) fn slices(slices: std::ops::Range<u64>) -> Vec<u16> {
    let elements = slices.start * SLICE as u64..slices.end * SLICE as u64;
    elements
        .map(|number| u16::try_from(number % 65_521).unwrap() + 1)
        .collect()
}

/// Checks that zarrs reads exactly this many slices at `path`, with the expected elements.
#[track_caller]
pub(crate) fn check_at<S>(store: &Arc<S>, path: &str, length: u64)
where
    S: ?Sized + ReadableStorageTraits + 'static,
{
    let array = Array::open(store.clone(), path).unwrap();
    assert_eq!(array.shape(), [length, 6, 8]);
    let all = array.subset_all();
    let read = array.retrieve_array_subset::<Vec<u16>>(&all).unwrap();
    assert!(read == slices(0..length), "the elements of {path}");
}

#[track_caller]
pub(crate) fn check<S>(store: &Arc<S>, length: u64)
where
    S: ?Sized + ReadableStorageTraits + 'static,
{
    check_at(store, "/array", length);
}
