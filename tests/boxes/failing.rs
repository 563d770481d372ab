//! Stores that fail, calls that are cancelled, and calls that are refused: each shard is old or new, the report
//! says which are new, and the call can be repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ReadableStorageTraits, StoreKey};
use zarrs_cuda::reader::Cancel;
use zarrs_cuda::writer::{BoxReport, BoxWriter, BoxWriterErrorKind, Input, ShardUpdate};
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty, Operation};

fn array<S: ?Sized>(store: &Arc<S>) -> Array<S> {
    let mut builder = ArrayBuilder::new(vec![8, 12], vec![4, 4], data_type::uint16(), 0_u16);
    builder.subchunk_shape(vec![2, 2]);
    builder.build(store.clone(), "/a").unwrap()
}

fn shards(store: &impl ReadableStorageTraits, array: &Array<MemoryStore>) -> Vec<Vec<u16>> {
    let indices = (0..2).flat_map(|i| (0..3).map(move |j| [i, j]));
    let at = |indices: [u64; 2]| {
        let key = array.chunk_key(&indices);
        let value = store.get(&key).unwrap();
        let alone = Arc::new(MemoryStore::new());
        if let Some(value) = value {
            zarrs::storage::WritableStorageTraits::set(&*alone, &key, value).unwrap();
        }
        array.with_storage(alone).retrieve_chunk(&indices).unwrap()
    };
    indices.map(at).collect()
}

/// Recovers all shards, as `zarrs-cuda recover` does.
fn recover(array: &Array<MemoryStore>) {
    let shards = zarrs_cuda::maintenance::Shards::of(array).unwrap();
    for (shard, _) in shards.stored().unwrap() {
        shards.recover(&shard).unwrap();
    }
}

/// Each request of a call fails in turn.
#[test]
fn each_shard_is_old_or_new() {
    for update in [ShardUpdate::Rewrite, ShardUpdate::InPlace] {
        let mut requests = 0;
        for number in 0.. {
            // A torn value is the fault of a store whose `set` is not atomic, and no writer can mend that.
            for fault in [Fault::Refused, Fault::Denied] {
                let inner = Arc::new(MemoryStore::new());
                let store = Arc::new(Faulty::new(inner.clone()));
                let array = array(&store);
                array.store_metadata().unwrap();
                array
                    .store_array_subset(&array.subset_all(), &[1_u16; 96])
                    .unwrap();
                let plain = array.with_storage(inner.clone());
                let old = shards(&*inner, &plain);
                let new: Vec<u16> = (0..7 * 10).map(|n| 100 + n).collect();
                let writer = BoxWriter::builder(&array)
                    .with_update(update)
                    .with_requests(1)
                    .build()
                    .unwrap();
                store.fail_at(number, fault);
                let written = writer.write(&[1..8, 0..10], &new);
                requests = store.requests().len();
                store.work();
                if update == ShardUpdate::InPlace {
                    recover(&plain);
                }
                let now = shards(&*inner, &plain);
                let again = writer.write(&[1..8, 0..10], &new).unwrap();
                assert_eq!(again.wanted, 6);
                let expected = shards(&*inner, &plain);
                let whole: Vec<u16> = plain.retrieve_array_subset(&[1..8, 0..10]).unwrap();
                assert_eq!(whole, new);
                for (n, now) in now.iter().enumerate() {
                    assert!(
                        *now == old[n] || *now == expected[n],
                        "{update:?}, {fault:?} at {number}: shard {n} is {now:?}"
                    );
                }
                let Err(error) = written else { continue };
                let report = &error.report;
                let listed: Vec<&StoreKey> = report.stored.iter().chain(&report.empty).collect();
                for (n, now) in now.iter().enumerate() {
                    let key = plain.chunk_key(&[n as u64 / 3, n as u64 % 3]);
                    if listed.contains(&&key) {
                        assert_eq!(*now, expected[n], "{key} is listed");
                    }
                }
                if listed.is_empty() {
                    continue;
                }
                let text = error.to_string();
                assert!(text.contains(&format!("{} of 6", listed.len())), "{text}");
            }
            if number >= requests {
                break;
            }
        }
        assert!(requests > 10, "{requests} requests");
    }
}

#[test]
fn a_store_that_replaces_whole_values_is_not_updated_in_place() {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())).without_parts());
    let array = array(&store);
    array.store_metadata().unwrap();
    let writer = BoxWriter::builder(&array).with_update(ShardUpdate::InPlace);
    let writer = writer.build().unwrap();
    let error = writer.write(&[0..4, 0..3], &[1_u16; 12]).unwrap_err();
    assert!(error.to_string().contains("Rewrite"), "{error}");
    // The call is refused as a whole, before its covered shards are written.
    let error = writer.write(&[0..8, 0..12], &[2_u16; 96]).unwrap_err();
    assert_eq!(error.report.stored.len(), 0, "{error}");
}

#[test]
fn a_cancelled_call_says_how_far_it_came() {
    let store = Arc::new(MemoryStore::new());
    let array = array(&store);
    let cancel = Cancel::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let writer = BoxWriter::builder(&array)
        .with_requests(1)
        .with_cancel(cancel.clone())
        .with_progress({
            let (calls, cancel) = (calls.clone(), cancel.clone());
            move |report| {
                assert_eq!(
                    report.stored.len(),
                    calls.fetch_add(1, Ordering::SeqCst) + 1
                );
                if report.stored.len() == 2 {
                    cancel.cancel();
                }
            }
        })
        .build()
        .unwrap();
    let error = writer.write(&array.subset_all(), &[1_u16; 96]).unwrap_err();
    assert!(matches!(*error.kind, BoxWriterErrorKind::Cancelled));
    assert_eq!((error.report.stored.len(), error.report.wanted), (2, 6));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert!(error.to_string().contains("2 of 6"), "{error}");
}

/// Nothing is written by a call that is refused.
#[test]
fn refused_calls() {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    let array = array(&store);
    let writer = BoxWriter::builder(&array).build().unwrap();
    store.work();
    let refused = |result: Result<_, zarrs_cuda::writer::BoxWriterError>, parts: &[&str]| {
        let text = result.unwrap_err().to_string();
        for part in parts {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    };
    refused(
        writer.write(&[0..9, 0..12], &[1_u16; 108]),
        &["[8, 12]", "with_growth"],
    );
    let text = writer
        .write(&[0..8, 0..13], &[1_u16; 104])
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("[8, 12]") && !text.contains("with_growth"),
        "{text}"
    );
    // A box without elements may have any stride.
    let none = Input::strided(&[], &[usize::MAX, 1, 1]);
    let report = writer.write_boxes_bytes(&[[0, 0], [0, 0], [1, 1]], &[0, 2], none);
    assert_eq!(report.unwrap().wanted, 0);
    refused(
        writer.write(&[0..8], &[1_u16; 8]),
        &["one number for each of the 2 axes"],
    );
    refused(
        writer.write(&[0..2, 0..2], &[1_u16; 3]),
        &["6 bytes", "take 8"],
    );
    refused(writer.write(&[0..2, 0..2], &[1_u32; 4]), &["u32", "uint16"]);
    let input = Input::strided(&[0; 10], &[4, 2]);
    refused(
        writer.write_bytes(&[0..2, 0..4], input),
        &["ends at byte 12", "10 bytes"],
    );
    let origins = [[0, 0], [1, 1]];
    refused(
        writer.write_boxes(&origins, &[2, 2], &[1_u16; 8]),
        &["overlap", "a/c/0/0"],
    );
    refused(
        writer.write_boxes(&origins, &[8, 8], &[1_u16; 128]),
        &["origin 1", "[8, 12]"],
    );
    let locks = BoxWriter::builder(&array).with_locks(std::time::Duration::ZERO);
    refused(
        locks.build().map(|_| BoxReport::default()),
        &["with_locks", "on_filesystem"],
    );
    let asked = store.requests();
    let written = |operation| {
        matches!(
            operation,
            Operation::Set | Operation::SetPartial | Operation::Erase
        )
    };
    assert!(
        !asked.iter().any(|request| written(request.operation)),
        "{asked:?}"
    );
    // No element is written, and that is no error.
    let report = writer.write::<u16>(&[3..3, 0..12], &[]).unwrap();
    assert_eq!(report.wanted, 0);
    let none: [[u64; 2]; 0] = [];
    assert_eq!(
        writer
            .write_boxes::<u16>(&none, &[2, 2], &[])
            .unwrap()
            .wanted,
        0
    );
}

/// A shard that cannot be understood is an error, and stays; a box that covers it replaces it.
#[test]
fn a_damaged_shard() {
    let store = Arc::new(MemoryStore::new());
    let array = array(&store);
    let key = array.chunk_key(&[0, 0]);
    for damaged in [&b""[..], b"torn", &[0xFF; 300]] {
        let value = damaged.to_vec().into();
        zarrs::storage::WritableStorageTraits::set(&*store, &key, value).unwrap();
        for update in [ShardUpdate::Rewrite, ShardUpdate::InPlace] {
            let writer = BoxWriter::builder(&array)
                .with_update(update)
                .build()
                .unwrap();
            let error = writer.write(&[0..1, 0..1], &[1_u16]).unwrap_err();
            assert!(error.to_string().contains("a/c/0/0"), "{error}");
            assert_eq!(store.get(&key).unwrap().unwrap(), damaged);
        }
        let writer = BoxWriter::builder(&array).build().unwrap();
        writer.write(&[0..4, 0..4], &[3_u16; 16]).unwrap();
        assert_eq!(array.retrieve_chunk::<Vec<u16>>(&[0, 0]).unwrap(), [3; 16]);
    }
}

#[test]
fn the_memory_of_a_call_is_estimated() {
    let store = Arc::new(MemoryStore::new());
    let array = array(&store);
    let shard = 16 * 2;
    let estimate = |memory: usize| {
        let builder = BoxWriter::builder(&array).with_memory(memory);
        builder.build().unwrap().memory_estimate()
    };
    assert!(estimate(0) > shard && estimate(0) < 20 * shard, "one shard");
    assert_eq!(estimate(usize::MAX), 16 * estimate(0));
    assert_eq!(estimate(3 * estimate(0)), 3 * estimate(0));
}

/// Arrays that this writer does not take are refused when the writer is built, or by the first call.
#[test]
fn refused_arrays() {
    use serde_json::{Value, json};

    let open = |data_type: Value, grid: Value, fill: Value, shape: Value| {
        let metadata = json!({
            "zarr_format": 3, "node_type": "array", "data_type": data_type, "fill_value": fill,
            "shape": shape, "chunk_grid": grid, "chunk_key_encoding": { "name": "default" },
            "codecs": [{ "name": "bytes", "configuration": { "endian": "little" } }],
        });
        let metadata = serde_json::from_value(metadata).unwrap();
        Array::new_with_metadata(Arc::new(MemoryStore::new()), "/a", metadata).unwrap()
    };
    let regular = json!({ "name": "regular", "configuration": { "chunk_shape": [4] } });
    let numbers = open(json!("uint16"), regular.clone(), json!(0), json!([8]));
    assert!(BoxWriter::builder(&numbers).with_growth().build().is_ok());
    // An array without axes has one element, and cannot grow.
    let none = json!({ "name": "regular", "configuration": { "chunk_shape": [] } });
    let scalar = open(json!("uint16"), none, json!(0), json!([]));
    assert!(BoxWriter::builder(&scalar).with_growth().build().is_err());
    let writer = BoxWriter::builder(&scalar).build().unwrap();
    let everything: [std::ops::Range<u64>; 0] = [];
    writer.write(&everything, &[7_u16]).unwrap();
    let found: Vec<u16> = scalar.retrieve_array_subset(&scalar.subset_all()).unwrap();
    assert_eq!(found, [7]);
    // No element.
    let empty = open(json!("uint16"), regular, json!(0), json!([0]));
    let writer = BoxWriter::builder(&empty).build().unwrap();
    assert_eq!(writer.write::<u16>(&[0..0], &[]).unwrap().wanted, 0);
}
