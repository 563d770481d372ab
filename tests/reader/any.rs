//! Any array, any boxes and any strides: the elements are those that zarrs reads.

use std::num::NonZeroU64;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::{Array, ArraySubset};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{
    AsyncWritableStorageTraits, ListableStorageTraits, ReadableStorageTraits,
    ReadableWritableListableStorageTraits,
};
use zarrs_cuda::reader::{ArrayReader, Output};
use zarrs_cuda_testing::{Rng, effort, random_box};

/// An array of uint32 with 1 to 3 axes.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// For each axis: the subchunk's extent, subchunks in a shard, and the extent of the array.
    pub(crate) axes: Vec<(u64, u64, u64)>,
    order: Vec<usize>,
    codecs: Value,
    index_at_start: bool,
    /// Of eight regions, which are written.
    written: u8,
    /// How shards are encoded: by sharding alone, or something that this crate leaves to zarrs.
    pub(crate) around: &'static str,
    pub(crate) in_files: bool,
    pub(crate) seed: u64,
}

pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let axis = (1_u64..6, 1_u64..5)
        .prop_flat_map(|(subchunk, count)| (Just(subchunk), Just(count), 1..=3 * subchunk * count));
    let chain = prop_oneof![
        2 => Just(json!([])),
        1 => Just(json!([{ "name": "crc32c" }])),
        2 => Just(json!([{ "name": "zstd", "configuration": { "level": 1, "checksum": false } }])),
        1 => Just(json!([
            { "name": "gzip", "configuration": { "level": 1 } }, { "name": "crc32c" }
        ])),
    ];
    let around = prop_oneof![
        8 => Just("nothing"),
        1 => Just("crc32c"),
        1 => Just("transpose"),
        1 => Just("no shards"),
    ];
    let orders = Just(vec![0, 1, 2]).prop_shuffle();
    (
        prop::collection::vec(axis, 1..4),
        orders,
        chain,
        (
            any::<bool>(),
            any::<u8>(),
            around,
            any::<bool>(),
            any::<u64>(),
        ),
    )
        .prop_map(|(axes, order, codecs, rest)| Case {
            order: order
                .into_iter()
                .filter(|axis| *axis < axes.len())
                .collect(),
            axes,
            codecs,
            index_at_start: rest.0,
            written: rest.1,
            around: rest.2,
            in_files: rest.3,
            seed: rest.4,
        })
}

impl Case {
    fn each(&self, f: impl Fn(&(u64, u64, u64)) -> u64) -> Vec<u64> {
        self.axes.iter().map(f).collect()
    }

    pub(crate) fn metadata(&self) -> Value {
        let transpose = json!({ "name": "transpose", "configuration": { "order": self.order } });
        let bytes = json!({ "name": "bytes", "configuration": { "endian": "big" } });
        let mut inner = vec![transpose.clone(), bytes.clone()];
        inner.extend(self.codecs.as_array().unwrap().iter().cloned());
        let sharding = json!({ "name": "sharding_indexed", "configuration": {
            "chunk_shape": self.each(|axis| axis.0),
            "codecs": inner,
            "index_codecs": [bytes, { "name": "crc32c" }],
            "index_location": if self.index_at_start { "start" } else { "end" },
        }});
        let codecs = match self.around {
            "nothing" => json!([sharding]),
            "crc32c" => json!([sharding, { "name": "crc32c" }]),
            // A shard of another shape than the chunk is no shard of these subchunks.
            "transpose" => {
                let order: Vec<usize> = (0..self.axes.len()).collect();
                json!([{ "name": "transpose", "configuration": { "order": order } }, sharding])
            }
            _ => json!(inner),
        };
        json!({
            "zarr_format": 3, "node_type": "array", "data_type": "uint32", "fill_value": 7,
            "shape": self.each(|axis| axis.2),
            "chunk_grid": { "name": "regular", "configuration": {
                "chunk_shape": self.each(|axis| axis.0 * axis.1),
            }},
            "chunk_key_encoding": { "name": "default" },
            "codecs": codecs,
        })
    }
}

type Store = Arc<dyn ReadableWritableListableStorageTraits>;

fn check(case: &Case) {
    let mut rng = Rng(case.seed | 1);
    let folder = TempDir::new().unwrap();
    let files = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let store: Store = if case.in_files {
        files.clone()
    } else {
        Arc::new(MemoryStore::new())
    };
    let metadata = serde_json::from_value(case.metadata()).unwrap();
    let array = Array::new_with_metadata(store, "/a/b", metadata).unwrap();
    array.store_metadata().unwrap();
    let shape = array.shape().to_vec();
    for _ in 0..case.written.count_ones() {
        let subset = random_box(&shape, &mut rng);
        let elements: Vec<u32> = (0..subset.num_elements())
            .map(|_| rng.below(40) as u32)
            .collect();
        array.store_array_subset(&subset, &elements).unwrap();
    }

    let mut builder = ArrayReader::builder(&array);
    if case.in_files && rng.below(4) > 0 {
        builder = builder.on_filesystem(&files);
    }
    if rng.one_in(4) {
        builder = builder.with_index_cache(0);
    }
    if rng.one_in(3) {
        builder = builder.with_subchunk_cache(rng.below(4000) as usize);
    }
    if rng.one_in(3) {
        // Requests of single subchunks, and of whole shards.
        builder = builder.with_memory(rng.below(2000) as usize);
        builder = builder.with_gap(rng.below(100));
    }
    if rng.one_in(8) {
        builder = builder.with_damaged_as_fill_value(true);
    }
    let reader = builder.build().unwrap();
    assert_eq!(reader.is_by_zarrs(), case.around != "nothing");
    for _ in 0..4 {
        let subset = random_box(&shape, &mut rng);
        let expected: Vec<u32> = array.retrieve_array_subset(&subset).unwrap();
        assert_eq!(reader.read::<u32>(&subset).unwrap(), expected, "{subset}");
        strided(&reader, &subset, &expected, &mut rng);
    }
    boxes(&array, &reader, &mut rng);
    slices(&array, &reader, &mut rng);
    futures::executor::block_on(is_send(awaited(&array, &mut rng)));
}

fn is_send<T: Send>(future: T) -> T {
    future
}

/// The same array in a store that is awaited.
async fn awaited(array: &Array<dyn ReadableWritableListableStorageTraits>, rng: &mut Rng) {
    let store = Arc::new(AsyncMemoryStore::new());
    let from = array.storage();
    for key in from.list().unwrap() {
        let value = from.get(&key).unwrap().unwrap();
        store.set(&key, value).await.unwrap();
    }
    let copy = array.with_storage(store);
    let reader = ArrayReader::builder(&copy)
        .with_requests(3)
        .build()
        .unwrap();
    for _ in 0..2 {
        let subset = random_box(array.shape(), rng);
        let expected: Vec<u32> = array.retrieve_array_subset(&subset).unwrap();
        let found = reader.async_read::<u32>(&subset).await.unwrap();
        assert_eq!(found, expected, "{subset}, awaited");
    }
    let shape: Vec<u64> = array
        .shape()
        .iter()
        .map(|extent| extent.div_ceil(3))
        .collect();
    let origins = [
        vec![0; shape.len()],
        shape.iter().map(|extent| extent / 2).collect(),
    ];
    let mut output = vec![0; 2 * shape.iter().product::<u64>() as usize];
    reader
        .async_read_boxes(&origins, &shape, &mut output)
        .await
        .unwrap();
    let expected = origins.map(|origin| {
        let subset = ArraySubset::new_with_start_shape(origin, shape.clone()).unwrap();
        array.retrieve_array_subset::<Vec<u32>>(&subset).unwrap()
    });
    assert_eq!(output, expected.concat(), "boxes, awaited");
}

/// Reads all slices in order, some at a time.
fn slices(
    array: &Array<dyn ReadableWritableListableStorageTraits>,
    reader: &ArrayReader<dyn ReadableWritableListableStorageTraits>,
    rng: &mut Rng,
) {
    let expected: Vec<u32> = array.retrieve_array_subset(&array.subset_all()).unwrap();
    let at_once = NonZeroU64::MIN.saturating_add(rng.below(array.shape()[0] + 3));
    let blocks = reader.iter_slices::<u32>(at_once).unwrap();
    let blocks: Vec<Vec<u32>> = blocks.collect::<Result<_, _>>().unwrap();
    let per_slice = array.shape()[1..].iter().product::<u64>();
    let len = (at_once.get() * per_slice) as usize;
    let cut: Vec<&[u32]> = expected.chunks(len).collect();
    assert_eq!(blocks, cut, "{at_once} slices at a time");
}

/// Reads into an output with gaps between elements, with the axes in any order.
fn strided(
    reader: &ArrayReader<dyn ReadableWritableListableStorageTraits>,
    subset: &ArraySubset,
    expected: &[u32],
    rng: &mut Rng,
) {
    let shape: Vec<usize> = subset.shape().iter().map(|&d| d as usize).collect();
    let mut strides = vec![0; shape.len()];
    let mut span = 4;
    for axis in rng.permutation(shape.len()) {
        strides[axis] = span + rng.below(3) as usize;
        span += strides[axis] * shape[axis].saturating_sub(1);
    }
    let mut bytes = vec![0xEE; span];
    let output = Output::strided(&mut bytes, &strides);
    reader.read_bytes_into(subset, output).unwrap();
    let mut touched = vec![0xEE; span];
    for (number, element) in expected.iter().enumerate() {
        let (mut rest, mut at) = (number, 0);
        for axis in (0..shape.len()).rev() {
            at += rest % shape[axis] * strides[axis];
            rest /= shape[axis];
        }
        touched[at..at + 4].copy_from_slice(&element.to_ne_bytes());
    }
    assert_eq!(bytes, touched, "strides {strides:?}");
}

/// Reads several boxes at once, some of which overlap.
fn boxes(
    array: &Array<dyn ReadableWritableListableStorageTraits>,
    reader: &ArrayReader<dyn ReadableWritableListableStorageTraits>,
    rng: &mut Rng,
) {
    let shape: Vec<u64> = array.shape().iter().map(|d| 1 + rng.below(*d)).collect();
    let origins: Vec<Vec<u64>> = (0..rng.below(12))
        .map(|_| {
            std::iter::zip(array.shape(), &shape)
                .map(|(array, extent)| rng.below(array - extent + 1))
                .collect()
        })
        .collect();
    let len = shape.iter().product::<u64>() as usize;
    let mut output = vec![0_u32; len * origins.len()];
    reader.read_boxes(&origins, &shape, &mut output).unwrap();
    for (origin, found) in origins.iter().zip(output.chunks(len)) {
        let subset = ArraySubset::new_with_start_shape(origin.clone(), shape.clone()).unwrap();
        let expected: Vec<u32> = array.retrieve_array_subset(&subset).unwrap();
        assert_eq!(found, expected, "{subset}");
    }
}

proptest! {
    #![proptest_config(effort::config(256))]

    #[test]
    fn any_box_of_any_array(case in cases()) {
        check(&case);
    }
}
