//! Impossible requests are errors when the writer is built. The errors have numbers, and say what
//! to do instead.

use std::sync::Arc;

use serde_json::json;
use zarrs::array::codec::GzipCodec;
use zarrs::array::{Array, ArrayBuilder, FillValue, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs_cuda::writer::{ArrayWriter, ArrayWriterBuilder, WriterError};
use zarrs_cuda::{CudaShardingCodecBuilder, Options};

use super::simple::{array, array_at, array_of, check, shards, slices};
use super::watchdog::within;
use zarrs_cuda_testing::processes::on_its_own;
use zarrs_cuda_testing::{chunk_shape, codecs};

type Store = Arc<MemoryStore>;

fn store() -> Store {
    Arc::new(MemoryStore::new())
}

/// Checks that the errors of building and of estimating contain all of `words`, and that nothing
/// was stored.
#[track_caller]
fn refused(builder: impl Fn() -> ArrayWriterBuilder<MemoryStore>, words: &[&str]) -> WriterError {
    let estimated = builder().memory_estimate().unwrap_err().to_string();
    let Err(error) = builder().build() else {
        panic!("it was built");
    };
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "no {word} in: {text}");
    }
    assert_eq!(estimated, text);
    error
}

#[test]
fn a_start_within_a_shard() {
    let store = store();
    let six = array_at(&store, "/array", 6, Options::default());
    // The array does not end at the border of a shard, which has four slices.
    let words = ["6", "4", "with_start(Resume)"];
    refused(|| ArrayWriter::builder(&six).with_start(6), &words);
    refused(|| ArrayWriter::builder(&six).with_start(3), &["3", "4"]);
    // The starts that the error suggests.
    assert!(ArrayWriter::builder(&six).with_start(4).build().is_ok());
    assert!(ArrayWriter::builder(&six).with_start(0).build().is_ok());
}

/// Slices that were appended behind those of an array that was made with its final shape would be overlooked.
#[test]
fn an_array_of_its_final_shape() {
    let store = store();
    let eight = array_at(&store, "/array", 8, Options::default());
    eight.store_metadata().unwrap();
    let error = ArrayWriter::builder(&eight)
        .build()
        .unwrap_err()
        .to_string();
    let both = ["with_start(0)", "with_start(8)"];
    assert!(both.iter().all(|start| error.contains(start)), "{error}");
    // One of the first shards is enough, or one of the last.
    for at in [0, 1] {
        eight
            .store_chunk(&[at, 1, 0], vec![7_u16; 4 * 3 * 8])
            .unwrap();
        assert!(ArrayWriter::builder(&eight).build().is_ok());
        eight.erase_chunk(&[at, 1, 0]).unwrap();
        assert!(ArrayWriter::builder(&eight).build().is_err());
    }
    for start in [0, 4, 8] {
        assert!(
            ArrayWriter::builder(&eight)
                .with_start(start)
                .build()
                .is_ok()
        );
    }
}

/// Other writers of the process would take a part of the budget.
#[test]
fn a_budget_that_is_too_small() {
    let test = "a_budget_that_is_too_small";
    on_its_own(module_path!(), test, refuse_a_small_budget);
}

fn refuse_a_small_budget() {
    let store = store();
    let build = |bytes| {
        let options = Options::default().with_host_memory(bytes);
        array_at(&store, "/array", 0, options)
    };
    let small = build(1);
    let error = refused(|| ArrayWriter::builder(&small), &["budget is 1:"]);
    assert!(matches!(error, WriterError::Memory { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("with_host_memory"), "{text}");
    // One of the numbers is the required budget: it is enough, and one byte less is not.
    let numbers: Vec<usize> = text
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect();
    let enough = |bytes: usize| {
        let array = build(bytes);
        ArrayWriter::builder(&array).build().is_ok()
    };
    let needed = numbers
        .iter()
        .copied()
        .filter(|&bytes| bytes > 1 && enough(bytes));
    let needed = needed
        .min()
        .unwrap_or_else(|| panic!("no number of {text} is enough"));
    assert!(!enough(needed - 1), "{needed} is not the least: {text}");
    let array = build(needed);
    let mut writer = ArrayWriter::builder(&array).build().unwrap();
    assert!(writer.memory_estimate().host <= needed);
    writer.append(&slices(0..23)).unwrap();
    writer.finish().unwrap();
    check(&store, 23);
}

#[test]
fn more_epochs_than_the_budget_has_room_for() {
    let test = "more_epochs_than_the_budget_has_room_for";
    on_its_own(module_path!(), test, refuse_many_epochs);
}

fn refuse_many_epochs() {
    let store = store();
    let options = Options::default().with_host_memory(1 << 20);
    let array = array_at(&store, "/array", 0, options);
    assert!(ArrayWriter::builder(&array).build().is_ok());
    let error = refused(
        || ArrayWriter::builder(&array).with_epochs_per_batch(1 << 20),
        &["1048576"],
    );
    assert!(matches!(error, WriterError::Memory { .. }), "{error:?}");
    assert!(error.to_string().contains("epochs_per_batch"), "{error}");
}

#[test]
fn a_codec_of_somebody_else() {
    let store = store();
    let stock = ArrayBuilder::new(vec![0, 8], vec![4, 8], data_type::uint16(), 0_u16)
        .subchunk_shape(vec![2, 4])
        .build(store.clone(), "/stock")
        .unwrap();
    refused(
        || ArrayWriter::builder(&stock),
        &["sharding_indexed", "register"],
    );
    let bytes = ArrayBuilder::new(vec![0, 8], vec![4, 8], data_type::uint16(), 0_u16)
        .build(store.clone(), "/bytes")
        .unwrap();
    refused(|| ArrayWriter::builder(&bytes), &["bytes"]);
}

/// An array of two axes with our codec, changed by `change`.
fn ours(
    store: &Store,
    shape: Vec<u64>,
    shard: &[u64],
    subchunk: &[u64],
    change: impl Fn(&mut ArrayBuilder),
) -> Array<MemoryStore> {
    let codec = CudaShardingCodecBuilder::new(chunk_shape(subchunk), &data_type::uint16());
    let mut builder = ArrayBuilder::new(shape, shard.to_vec(), data_type::uint16(), 0_u16);
    builder.array_to_bytes_codec(codec.build_arc().unwrap());
    change(&mut builder);
    builder.build(store.clone(), "/array").unwrap()
}

#[test]
fn codecs_around_the_shards() {
    let store = store();
    let gzip = ours(&store, vec![0, 8], &[4, 8], &[2, 4], |builder| {
        builder.bytes_to_bytes_codecs(vec![Arc::new(GzipCodec::new(1).unwrap())]);
    });
    refused(|| ArrayWriter::builder(&gzip), &["gzip"]);
    let order = zarrs::metadata_ext::codec::transpose::TransposeOrder::new(&[1, 0]).unwrap();
    let transpose = zarrs::array::codec::TransposeCodec::new(order);
    // The codec sees the shards with their axes reversed.
    let transposed = ours(&store, vec![0, 8], &[4, 8], &[4, 2], |builder| {
        builder.array_to_array_codecs(vec![Arc::new(transpose.clone())]);
    });
    refused(|| ArrayWriter::builder(&transposed), &["transpose"]);
}

#[test]
fn elements_without_a_size() {
    let store = store();
    let codec = CudaShardingCodecBuilder::new(chunk_shape(&[2]), &data_type::string());
    let array = ArrayBuilder::new(vec![0], vec![4], data_type::string(), "")
        .array_to_bytes_codec(codec.build_arc().unwrap())
        .build(store, "/array")
        .unwrap();
    refused(|| ArrayWriter::builder(&array), &["string"]);
}

#[test]
fn arrays_without_axes_or_with_empty_slices() {
    let store = store();
    let scalar = ours(&store, vec![], &[], &[], |_| {});
    refused(|| ArrayWriter::builder(&scalar), &["append"]);
    let empty = ours(&store, vec![0, 0], &[4, 8], &[2, 4], |_| {});
    refused(|| ArrayWriter::builder(&empty), &["axis 1"]);
}

#[test]
fn shards_of_different_sizes() {
    let store = store();
    let codec = CudaShardingCodecBuilder::new(chunk_shape(&[2, 2]), &data_type::uint16());
    let grid = json!({
        "name": "rectangular",
        "configuration": { "chunk_shape": [[4, 4], [2, 6]] }
    });
    let array = ArrayBuilder::new(vec![8, 8], grid.to_string(), data_type::uint16(), 0_u16)
        .array_to_bytes_codec(codec.build_arc().unwrap())
        .build(store, "/array")
        .unwrap();
    refused(
        || ArrayWriter::builder(&array).with_start(0),
        &["rectangular"],
    );
}

#[test]
fn numbers_that_make_no_sense() {
    let _watchdog = within(20, "planning a writer");
    let store = store();
    let array = array(&store);
    // Zeros are taken as one or rejected. The writer neither hangs nor panics.
    for builder in [
        ArrayWriter::builder(&array).with_epochs_per_batch(0),
        ArrayWriter::builder(&array).with_store_threads(0),
    ] {
        match builder.build() {
            Err(error) => assert!(error.to_string().contains('0'), "{error}"),
            Ok(mut writer) => {
                writer.append(&slices(0..5)).unwrap();
                writer.finish().unwrap();
                check(&store, 5);
            }
        }
    }
    for epochs in [usize::MAX, usize::MAX / 2, 1 << 50, 1 << 40] {
        let builder = ArrayWriter::builder(&array).with_epochs_per_batch(epochs);
        assert!(builder.memory_estimate().is_err());
        assert!(builder.build().is_err());
    }
}

/// No shard fits after the last index.
#[test]
fn a_start_at_the_end_of_all_numbers() {
    let store = store();
    let array = array(&store);
    let builder = ArrayWriter::builder(&array).with_start(u64::MAX - 3);
    // Nothing can be appended there: building, appending or finishing fails.
    if let Ok(mut writer) = builder.build() {
        assert!(writer.append(&slices(0..8)).is_err() || writer.finish().is_err());
    }
    check(&store, 0);
}

/// Small slices do not need large tables, neither in the estimate nor outside of it.
#[test]
fn small_slices_take_little() {
    let _watchdog = within(20, "a writer of small slices");
    let store = store();
    let codec = CudaShardingCodecBuilder::new(chunk_shape(&[1]), &data_type::uint8());
    let array = ArrayBuilder::new(vec![0], vec![4], data_type::uint8(), 0_u8)
        .array_to_bytes_codec(codec.build_arc().unwrap())
        .build(store.clone(), "/array")
        .unwrap();
    array.store_metadata().unwrap();
    let mut writer = ArrayWriter::builder(&array).build().unwrap();
    writer.append(&[7_u8; 10]).unwrap();
    writer.finish().unwrap();
    let array = Array::open(store, "/array").unwrap();
    let read = array.retrieve_array_subset::<Vec<u8>>(&array.subset_all());
    assert_eq!(read.unwrap(), [7; 10]);
}

/// Slices so large that no machine can hold an epoch.
#[test]
fn slices_that_cannot_be_addressed() {
    let _watchdog = within(20, "planning a writer");
    let store = store();
    for extent in [1 << 40, 1 << 62, u64::MAX / 8] {
        let array = ours(&store, vec![0, extent], &[4, 8], &[2, 4], |_| {});
        let error = ArrayWriter::builder(&array).build().err().unwrap();
        assert!(!error.to_string().is_empty());
        assert!(ArrayWriter::builder(&array).memory_estimate().is_err());
    }
}

/// The estimate equals the writer's own statement, and does not depend on the store.
#[test]
fn the_estimate_is_known_before() {
    let store = store();
    let shards = shards(vec![codecs::bytes("little"), codecs::zstd(1, false)]);
    let array = array_of(&shards, &store, "/array", 0, Options::default());
    let estimate = ArrayWriter::builder(&array).memory_estimate().unwrap();
    let writer = ArrayWriter::builder(&array).build().unwrap();
    let told = writer.memory_estimate();
    assert_eq!(
        (told.host, told.pinned, told.device),
        (estimate.host, estimate.pinned, estimate.device)
    );
    assert!(estimate.host > 0);
    assert_eq!((estimate.pinned, estimate.device), (0, 0));
    writer.abort().unwrap();
}

/// Fill values of any bytes, which the builder keeps unchanged.
#[test]
fn a_fill_value_of_any_bytes() {
    let store = store();
    let nan = f32::from_bits(0x7FC0_1234);
    let codec = CudaShardingCodecBuilder::new(chunk_shape(&[2, 2]), &data_type::float32());
    let fill = FillValue::new(nan.to_ne_bytes().to_vec());
    let array = ArrayBuilder::new(vec![0, 4], vec![4, 4], data_type::float32(), fill)
        .array_to_bytes_codec(codec.build_arc().unwrap())
        .build(store.clone(), "/array")
        .unwrap();
    array.store_metadata().unwrap();
    let mut writer = ArrayWriter::builder(&array).build().unwrap();
    // Another NaN is not the fill value.
    let other = f32::from_bits(0x7FC0_1235);
    writer.append(&[nan; 16]).unwrap();
    writer.append(&[other; 16]).unwrap();
    let report = writer.finish().unwrap();
    assert_eq!((report.shards, report.shards_empty), (1, 1));
    let read = Array::open(store, "/array").unwrap();
    let read = read
        .retrieve_array_subset::<Vec<f32>>(&read.subset_all())
        .unwrap();
    let bits: Vec<u32> = read.iter().map(|element| element.to_bits()).collect();
    assert_eq!(bits[..16], [nan.to_bits(); 16]);
    assert_eq!(bits[16..], [other.to_bits(); 16]);
}
