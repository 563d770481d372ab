//! Trouble of the machine and of stores is never taken for damage: a shard that cannot be read or decoded now is
//! neither called unreadable, nor repaired, nor filled in.

use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayMetadata};
use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey,
    StorePrefix, WritableStorageTraits,
};
use zarrs_cuda::Error;
use zarrs_cuda::maintenance::{RecoveryOutcome, Shards, SubchunkState};
use zarrs_cuda::reader::{ArrayReader, ReaderError};
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty, Operation};
use zarrs_cuda_testing::troubled::{self, while_troubled};

use crate::maintenance::record;

/// An array of one shard of 8 × 8 elements in four subchunks.
fn array<S>(store: Arc<S>, inner: &[&str], index: &[&str]) -> Array<S> {
    let chain = |names: &[&str]| {
        let mut chain = vec![json!({ "name": "bytes", "configuration": { "endian": "little" } })];
        chain.extend(names.iter().map(|name| json!({ "name": name })));
        Value::from(chain)
    };
    let metadata = json!({
        "zarr_format": 3, "node_type": "array", "shape": [8, 8], "data_type": "uint16",
        "fill_value": 9,
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [8, 8] } },
        "chunk_key_encoding": { "name": "default" },
        "codecs": [{ "name": "sharding_indexed", "configuration": {
            "chunk_shape": [4, 4], "codecs": chain(inner), "index_codecs": chain(index),
        } }],
    });
    let metadata: ArrayMetadata = serde_json::from_value(metadata).unwrap();
    Array::new_with_metadata(store, "/", metadata).unwrap()
}

const SHARD: [u64; 2] = [0, 0];

/// Stores a shard, and returns its bytes.
fn stored(array: &Array<MemoryStore>) -> Bytes {
    let elements: Vec<u16> = (100..164).collect();
    array.store_chunk(&SHARD, &elements).unwrap();
    let key = array.chunk_key(&SHARD);
    array.storage().get(&key).unwrap().unwrap()
}

#[test]
fn trouble_of_a_decoder_is_no_damage() {
    let crc32c = "crc32c";
    for (inner, index) in [
        (&[troubled::NAME, crc32c][..], &[crc32c][..]),
        (&[crc32c], &[troubled::NAME, crc32c]),
    ] {
        let is_of_index = index.len() > 1;
        let store = Arc::new(MemoryStore::new());
        let array = array(store.clone(), inner, index);
        let shards = Shards::of(&array).unwrap();
        let key = array.chunk_key(&SHARD);
        let whole = stored(&array);
        // Four entries, and a checksum.
        let index_len = 4 * 16 + 4;
        let index = &whole[whole.len() - index_len..];
        let new_end = whole.len() + 64 + index_len;
        let record = record(whole.len(), Some((whole.len(), index)), new_end, index);
        let with_part = |part: &[u8]| Bytes::from([&whole[..], part].concat());
        // Intact; an update that was torn after its record; and within it. The bytes of the latter two show
        // that they are no index; whether an index lies before the record needs its codecs.
        for (state, outcome, needs_index) in [
            (whole.clone(), RecoveryOutcome::Intact, true),
            (
                with_part(&[&record[..], &index[..9]].concat()),
                RecoveryOutcome::Undone,
                false,
            ),
            (with_part(&record[..40]), RecoveryOutcome::Undone, true),
        ] {
            store.set(&key, state.clone()).unwrap();
            let is_intact = outcome == RecoveryOutcome::Intact;
            let is_undecided = |error: Error| {
                let text = error.to_string();
                assert!(
                    text.contains("may be right") && text.contains("out of memory"),
                    "{text}"
                );
                assert!(
                    matches!(error, Error::Undecided { key: of, .. } if of == key),
                    "{text}"
                );
            };
            while_troubled(|| {
                if is_intact || (is_of_index && needs_index) {
                    is_undecided(shards.verify(&SHARD).unwrap_err());
                }
                if is_of_index && needs_index {
                    is_undecided(shards.inspect(&SHARD).unwrap_err());
                }
                if is_of_index && is_intact {
                    is_undecided(shards.usage(&SHARD).unwrap_err());
                }
                // A repair is not made if what comes of it is not known.
                is_undecided(shards.recover(&SHARD).unwrap_err());
                if is_of_index {
                    shards.compact(&SHARD).unwrap_err();
                }
                let now = store.get(&key).unwrap();
                assert_eq!(now, Some(state.clone()), "it was changed");
                if is_intact {
                    // Neither fill values nor damage.
                    let reader = ArrayReader::builder(&array)
                        .with_damaged_as_fill_value(true)
                        .build()
                        .unwrap();
                    let error = reader.read::<u16>(&array.subset_all()).unwrap_err();
                    assert!(!matches!(error, ReaderError::Damaged(_)), "{error}");
                    assert!(error.to_string().contains("out of memory"), "{error}");
                }
            });
            let recovery = shards.recover(&SHARD).unwrap();
            assert_eq!(recovery.outcome, outcome);
            assert_eq!(recovery.subchunks, vec![SubchunkState::Readable; 4]);
        }
    }
}

#[test]
fn trouble_of_a_store_is_no_damage() {
    let memory = Arc::new(MemoryStore::new());
    let whole = stored(&array(memory.clone(), &[], &["crc32c"]));
    let store = Arc::new(Faulty::new(memory.clone()));
    let array = array(store.clone(), &[], &["crc32c"]);
    let shards = Shards::of(&array).unwrap();
    let key = array.chunk_key(&SHARD);
    // Torn: a recovery would cut it.
    memory.set(&key, whole.slice(..whole.len() - 3)).unwrap();
    for number in 0..4 {
        store.fail(move |request| {
            let is_read = matches!(request.operation, Operation::Get | Operation::Size);
            (is_read && request.number == number).then_some(Fault::Refused)
        });
        let is_storage = |result: Result<(), Error>| match result {
            Err(error) => assert!(matches!(error, Error::Storage { .. }), "{error}"),
            Ok(()) => assert!(number > 0),
        };
        is_storage(shards.verify(&SHARD).map(drop));
        store.fail(move |request| {
            (request.operation == Operation::Get && request.number == number)
                .then_some(Fault::Refused)
        });
        is_storage(shards.recover(&SHARD).map(drop));
    }
}

/// Returns less than it is asked for, as a server does whose answers are cut.
#[derive(Debug)]
struct Short(MemoryStore);

impl ReadableStorageTraits for Short {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let parts = self.0.get_partial_many(key, byte_ranges)?;
        let short = |part: Bytes| part.slice(..part.len() - part.len().min(5));
        Ok(parts.map(|parts| {
            let parts = parts.map(move |part| part.map(short));
            Box::new(parts) as Box<dyn Iterator<Item = _>>
        }))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.0.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Short {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.0.set(key, value)
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        parts: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        self.0.set_partial_many(key, parts)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.0.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.0.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}

#[test]
fn short_answers_are_no_damage() {
    let memory = Arc::new(MemoryStore::new());
    let whole = stored(&array(memory, &[], &["crc32c"]));
    let store = Arc::new(Short(MemoryStore::new()));
    let array = array(store.clone(), &[], &["crc32c"]);
    let key = array.chunk_key(&SHARD);
    store.set(&key, whole.clone()).unwrap();
    let reader = |fills: bool| {
        let builder = ArrayReader::builder(&array).with_damaged_as_fill_value(fills);
        builder.build().unwrap().read::<u16>(&array.subset_all())
    };
    for fills in [false, true] {
        let error = reader(fills).unwrap_err();
        assert!(matches!(error, ReaderError::Store { .. }), "{error}");
    }
    let shards = Shards::of(&array).unwrap();
    let error = shards.usage(&SHARD).unwrap_err();
    assert!(matches!(error, Error::Storage { .. }), "{error}");
    // A shard that is shorter than an index is damaged.
    store.set(&key, whole.slice(..20)).unwrap();
    let error = reader(false).unwrap_err();
    assert!(matches!(error, ReaderError::Damaged(_)), "{error}");
}
