//! Shards in stores are compacted and recovered. zarrs' own codec reads them before and after.

use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::codec::ShardingIndexLocation::{self, End, Start};
use zarrs::array::{Array, ArrayBuilder, ArrayMetadata, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::storage_adapter::atomic_write::AtomicWriteStorageAdapter;
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{
    AsyncReadableStorageTraits, AsyncWritableStorageTraits, Bytes, MaybeBytesIterator,
    OffsetBytesIterator, ReadableStorageTraits, ReadableWritableListableStorageTraits,
    StorageError, StoreKey, StorePrefix, WritableStorageTraits,
};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};
use zarrs_cuda::maintenance::{
    ExtentProblem, RecoveryOutcome, ShardFormat, SubchunkState, async_compact, async_inspect,
    async_recover,
};
use zarrs_cuda::{
    CudaShardingCodec, Error, Options, WriteStrategy, compact, inspect, maintenance, recover,
};

use zarrs_cuda_testing::index::{EMPTY, IndexLayout};
use zarrs_cuda_testing::{Rng, Shards, chunk_shape, codecs, effort};

type Store = dyn ReadableWritableListableStorageTraits;

/// Shards of 4 × 6 elements of two bytes, with six subchunks.
fn shards(codecs: Vec<Value>, location: ShardingIndexLocation, checksum: bool) -> Shards {
    Shards {
        shape: vec![4, 6],
        subchunk: vec![2, 2],
        data_type: data_type::uint16(),
        fill: vec![0, 0],
        codecs,
        index: IndexLayout {
            location,
            big_endian: false,
            checksum,
        },
    }
}

fn format_of(shards: &Shards) -> ShardFormat {
    let (data_type, fill_value) = (shards.data_type.clone(), shards.fill_value());
    ShardFormat::new(shards.ours(), shards.chunk_shape(), data_type, fill_value).unwrap()
}

fn kinds() -> Vec<Shards> {
    let mut kinds = Vec::new();
    for location in [Start, End] {
        for checksum in [false, true] {
            let zstd = vec![codecs::bytes("little"), codecs::zstd(1, true)];
            kinds.push(shards(zstd, location, checksum));
            let plain = vec![codecs::bytes("big")];
            kinds.push(shards(plain, location, checksum));
        }
    }
    kinds
}

/// Programs that move bytes themselves: where the subchunks of boxes are, and what is left out of a copy.
#[test]
fn ranges_and_packing_of_a_shard() {
    for seed in effort::seeds(200) {
        let mut rng = Rng(seed);
        let kinds = kinds();
        let shards = &kinds[rng.below(kinds.len() as u64) as usize];
        let subchunks: Vec<_> = (0..shards.num_subchunks())
            .map(|number| {
                let bytes = vec![number as u8; rng.below(5) as usize + 1];
                (rng.below(3) as usize, (rng.below(4) > 0).then_some(bytes))
            })
            .collect();
        let shard = shards.index.shard(&subchunks);
        let format = format_of(shards);
        let range = format.index_range(shard.len() as u64).unwrap();
        let index = &shard[range.start as usize..range.end as usize];
        let place = match format.index_location() {
            Start => 0,
            End => usize::MAX,
        };
        assert_eq!(format.index_range(format.index_len() - 1), None);

        let shape = [rng.below(5), rng.below(7)];
        let start = [rng.below(5 - shape[0]), rng.below(7 - shape[1])];
        let to_usize = |numbers: [u64; 2]| numbers.map(|number| number as usize).to_vec();
        let mut met: Vec<usize> = zarrs_cuda_testing::all_indices(&shape)
            .map(|at| shards.subchunk_of(&[start[0] + at[0], start[1] + at[1]]))
            .collect();
        met.sort_unstable();
        met.dedup();
        let expected = met
            .into_iter()
            .filter_map(|number| subchunks[number].1.clone());
        let ranges = format
            .ranges_of_boxes(index, &[to_usize(start)], &to_usize(shape))
            .unwrap();
        let found = ranges
            .iter()
            .map(|range| shard[range.start as usize..range.end as usize].to_vec());
        assert_eq!(
            found.collect::<Vec<_>>(),
            expected.collect::<Vec<_>>(),
            "{seed}"
        );
        let outside = format.ranges_of_boxes(index, &[vec![0, 0], vec![1, 0]], &[4, 1]);
        assert!(
            outside
                .unwrap_err()
                .to_string()
                .contains("is not within a shard")
        );

        let dense: Vec<_> = subchunks
            .iter()
            .map(|(_, bytes)| (0, bytes.clone()))
            .collect();
        let dense = shards.index.shard(&dense);
        match format.packing(index, shard.len()).unwrap() {
            None => assert_eq!(shard, dense, "{seed}"),
            Some(packing) => {
                let parts = packing.parts.iter().map(|part| &shard[part.clone()]);
                let mut parts: Vec<&[u8]> = parts.collect();
                parts.insert(place.min(parts.len()), &packing.index);
                assert_eq!(parts.concat(), dense, "{seed}");
            }
        }
    }
}

/// A store of each kind, with its temporary folder if there is one.
fn stores() -> Vec<(Arc<Store>, Option<tempfile::TempDir>)> {
    let directory = || tempfile::tempdir().unwrap();
    let (plain, atomic) = (directory(), directory());
    let filesystem = |at: &tempfile::TempDir| Arc::new(FilesystemStore::new(at.path()).unwrap());
    vec![
        (Arc::new(MemoryStore::new()), None),
        (filesystem(&plain), Some(plain)),
        (
            Arc::new(AtomicWriteStorageAdapter::new(filesystem(&atomic))),
            Some(atomic),
        ),
    ]
}

/// An array of 2 × 2 such shards, opened with zarrs' codec.
fn array(store: Arc<Store>, shards: &Shards, outer: &[Value]) -> Array<Store> {
    let sharding = json!({ "name": "sharding_indexed", "configuration": shards.json() });
    array_of(store, shards, &[&[sharding], outer].concat())
}

fn array_of(store: Arc<Store>, shards: &Shards, codecs: &[Value]) -> Array<Store> {
    let shape: Vec<u64> = shards.shape.iter().map(|d| 2 * d).collect();
    let metadata: ArrayMetadata = serde_json::from_value(json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "uint16",
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": shards.shape } },
        "chunk_key_encoding": { "name": "default" },
        "fill_value": 0,
        "codecs": codecs,
    }))
    .unwrap();
    Array::new_with_metadata(store, "/", metadata).unwrap()
}

/// Reads a shard with zarrs' own codec.
fn read(array: &Array<Store>, shard: &[u64]) -> Vec<u16> {
    array.retrieve_chunk(shard).unwrap()
}

/// A shard with unused bytes between its subchunks. Two subchunks are empty.
fn with_holes(shards: &Shards, rng: &mut Rng) -> Vec<u8> {
    let element = |_| rng.next().to_le_bytes();
    let data: Vec<u8> = (0..shards.num_elements())
        .map(element)
        .flat_map(|bytes| [bytes[0], 1])
        .collect();
    let options = CodecOptions::default();
    let encoded = shards.encode(&*shards.stock(), &data, &options).unwrap();
    let subchunks = shards.index.subchunks(&encoded, shards.num_subchunks());
    let holes = subchunks.into_iter().enumerate().map(|(number, bytes)| {
        let bytes = bytes.filter(|_| number != 1 && number != 4);
        (3 * number, bytes)
    });
    shards.index.shard(&holes.collect::<Vec<_>>())
}

#[test]
fn compaction_keeps_what_readers_read() {
    for shards in kinds() {
        for (store, _directory) in stores() {
            let array = array(store.clone(), &shards, &[]);
            let format = ShardFormat::of(&array, &[1, 0]).unwrap();
            let key = array.chunk_key(&[1, 0]);
            assert_eq!(compact(&*store, &key, &format).unwrap(), None);

            let shard = with_holes(&shards, &mut Rng(1));
            store.set(&key, shard.clone().into()).unwrap();
            let before = read(&array, &[1, 0]);
            assert!(before.iter().any(|&element| element != 0));
            let compaction = compact(&*store, &key, &format).unwrap().unwrap();
            // Subchunks 0, 2, 3 and 5 are stored, each after a gap.
            assert_eq!(compaction.before, shard.len() as u64);
            assert_eq!(
                compaction.after,
                compaction.before - 3 * (1 + 2 + 3 + 4 + 5)
            );
            assert_eq!(store.size_key(&key).unwrap(), Some(compaction.after));
            assert_eq!(read(&array, &[1, 0]), before);

            let compaction = compact(&*store, &key, &format).unwrap().unwrap();
            assert_eq!(compaction.before, compaction.after);
        }
    }
}

#[test]
fn a_shard_of_empty_subchunks_is_erased() {
    for shards in kinds() {
        for (store, _directory) in stores() {
            let array = array(store.clone(), &shards, &[]);
            let format = ShardFormat::of(&array, &[0, 0]).unwrap();
            let key = array.chunk_key(&[0, 0]);
            let empty = vec![(0, None); shards.num_subchunks()];
            store.set(&key, shards.index.shard(&empty).into()).unwrap();
            let compaction = compact(&*store, &key, &format).unwrap().unwrap();
            assert_eq!(compaction.after, 0);
            assert_eq!(store.size_key(&key).unwrap(), None);
        }
    }
}

/// A shard that cannot become smaller is not stored: this store would reject it.
#[test]
fn a_compact_shard_is_not_stored_again() {
    let shards = &kinds()[0];
    let inner = Arc::new(MemoryStore::new());
    let array = array(inner.clone(), shards, &[]);
    array.store_chunk(&[0, 0], vec![7_u16; 24]).unwrap();
    let key = array.chunk_key(&[0, 0]);
    let format = ShardFormat::of(&array, &[0, 0]).unwrap();
    let store = ReadOnly(inner);
    let compaction = compact(&store, &key, &format).unwrap().unwrap();
    assert_eq!(compaction.before, compaction.after);
    assert_eq!(
        recover(&store, &key, &format).unwrap().outcome,
        RecoveryOutcome::Intact
    );

    let empty = vec![(0, None); shards.num_subchunks()];
    store
        .0
        .set(&key, shards.index.shard(&empty).into())
        .unwrap();
    let error = compact(&store, &key, &format).unwrap_err().to_string();
    assert_eq!(error, "cannot erase c/0/0: read only");
}

/// The record that `docs/reference/updates.md` describes.
pub(crate) fn record(
    offset: usize,
    old: Option<(usize, &[u8])>,
    new_end: usize,
    new: &[u8],
) -> Vec<u8> {
    let print = twox_hash::XxHash3_64::oneshot;
    let (old_end, old_index) = old.map_or((0, 0), |(end, index)| (end, print(index)));
    let mut record = b"\x89zcupd\r\n".to_vec();
    for number in [
        offset as u64,
        old_end as u64,
        old_index,
        new.len() as u64,
        new_end as u64,
        print(new),
    ] {
        record.extend(number.to_le_bytes());
    }
    record.extend([0; 4]);
    record.extend(crc32c::crc32c(&record).to_le_bytes());
    assert_eq!(record.len(), 64);
    record
}

fn index_of(shards: &Shards, shard: &[u8]) -> Vec<u8> {
    let len = shards.index.size(shards.num_subchunks());
    match shards.index.location {
        Start => shard[..len].to_vec(),
        End => shard[shard.len() - len..].to_vec(),
    }
}

#[test]
fn a_torn_update_is_undone_or_completed() {
    for shards in kinds() {
        for (store, _directory) in stores() {
            let array = array(store.clone(), &shards, &[]);
            let format = ShardFormat::of(&array, &[0, 1]).unwrap();
            let key = array.chunk_key(&[0, 1]);
            assert_eq!(
                recover(&*store, &key, &format).unwrap().outcome,
                RecoveryOutcome::Absent
            );

            // Subchunk 1 was empty. The update appends a copy of subchunk 0 for it.
            let shard = with_holes(&shards, &mut Rng(2));
            let old_index = index_of(&shards, &shard);
            let mut entries = shards.index.entries(&shard, 6);
            assert_eq!(entries[1], EMPTY);
            let start = usize::try_from(entries[0][0]).unwrap();
            let data = shard[start..][..usize::try_from(entries[0][1]).unwrap()].to_vec();
            let data_at = shard.len() + 64;
            entries[1] = [data_at as u64, data.len() as u64];
            let new_index = shards.index.encode(&entries);
            let new_end = data_at + data.len() + new_index.len();
            let record = record(
                shard.len(),
                Some((shard.len(), &old_index)),
                new_end,
                &new_index,
            );

            store.set(&key, shard.clone().into()).unwrap();
            let before = read(&array, &[0, 1]);
            let mut after = before.clone();
            for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                after[6 * row + column + 2] = before[6 * row + column];
            }
            assert_ne!(before, after);

            let grown = [&shard[..], &record, &data, &new_index].concat();
            for len in [shard.len() + 5, shard.len() + 70, new_end - 1, new_end] {
                store.set(&key, grown[..len].to_vec().into()).unwrap();
                let recovery = recover(&*store, &key, &format).unwrap();
                let (outcome, now) = match shards.index.location {
                    Start if len < new_end => (RecoveryOutcome::Intact, &before),
                    // The new index at the start was not written, so the old one is valid.
                    Start => (RecoveryOutcome::Intact, &before),
                    End if len < new_end => (RecoveryOutcome::Undone, &before),
                    End => (RecoveryOutcome::Intact, &after),
                };
                assert_eq!(recovery.outcome, outcome, "{len} of {new_end}");
                assert_eq!(&read(&array, &[0, 1]), now);
                let states: Vec<bool> = recovery
                    .subchunks
                    .iter()
                    .map(|s| *s == SubchunkState::Readable)
                    .collect();
                assert_eq!(states, [true, *now == after, true, true, false, true]);
                let again = recover(&*store, &key, &format).unwrap();
                assert_eq!(again.outcome, RecoveryOutcome::Intact);
            }
            if shards.index.location == Start {
                let mut torn = grown;
                // Half of the changed entry.
                torn[..24].copy_from_slice(&new_index[..24]);
                store.set(&key, torn.into()).unwrap();
                let error = compact(&*store, &key, &format).unwrap_err().to_string();
                assert!(
                    error.contains("`recover`") && error.contains("c/0/1"),
                    "{error}"
                );
                let recovery = recover(&*store, &key, &format).unwrap();
                assert_eq!(recovery.outcome, RecoveryOutcome::Completed);
                assert_eq!(read(&array, &[0, 1]), after);
            }
            // The remains of the update are unused bytes.
            compact(&*store, &key, &format).unwrap();
            let again = recover(&*store, &key, &format).unwrap();
            assert_eq!(again.outcome, RecoveryOutcome::Intact);
        }
    }
}

#[test]
fn a_shard_that_was_being_created_is_erased() {
    let shards = shards(vec![codecs::bytes("little")], End, true);
    for (store, _directory) in stores() {
        let array = array(store.clone(), &shards, &[]);
        let format = ShardFormat::of(&array, &[0, 0]).unwrap();
        let key = array.chunk_key(&[0, 0]);
        let whole = with_holes(&shards, &mut Rng(3));
        let index = index_of(&shards, &whole);
        let record = record(0, None, 64 + whole.len(), &index);
        for len in [1, 63, 64, 64 + whole.len() - 1] {
            let object = [&record[..], &whole].concat();
            store.set(&key, object[..len].to_vec().into()).unwrap();
            let recovery = recover(&*store, &key, &format).unwrap();
            assert_eq!(recovery.outcome, RecoveryOutcome::Erased);
            assert_eq!(recovery.subchunks, []);
            assert_eq!(store.size_key(&key).unwrap(), None);
        }
    }
}

#[test]
fn what_cannot_be_recovered_is_reported_and_kept() {
    let shards = shards(vec![codecs::bytes("little"), codecs::crc32c()], End, true);
    let store: Arc<Store> = Arc::new(MemoryStore::new());
    let array = array(store.clone(), &shards, &[]);
    let format = ShardFormat::of(&array, &[0, 0]).unwrap();
    let key = array.chunk_key(&[0, 0]);
    let whole = with_holes(&shards, &mut Rng(4));

    for torn in [&[][..], &[0; 300], &whole[..whole.len() - 1], &whole[..7]] {
        store.set(&key, torn.to_vec().into()).unwrap();
        let recovery = recover(&*store, &key, &format).unwrap();
        let RecoveryOutcome::Unrecoverable { reason } = &recovery.outcome else {
            panic!("{recovery}");
        };
        assert_eq!(reason.contains("empty"), torn.is_empty(), "{reason}");
        assert_eq!(recovery.subchunks.len(), 6);
        assert!(
            recovery.to_string().contains("6 unreadable\n  all: "),
            "{recovery}"
        );
        assert_eq!(store.get(&key).unwrap().unwrap(), torn);
        let error = compact(&*store, &key, &format).unwrap_err();
        assert!(matches!(error, Error::UpdatePending { .. }), "{error}");
    }

    // One subchunk has a wrong checksum. The others are readable.
    let mut broken = whole.clone();
    let [offset, _] = shards.index.entries(&whole, 6)[2];
    broken[usize::try_from(offset).unwrap()] ^= 1;
    store.set(&key, broken.into()).unwrap();
    let recovery = recover(&*store, &key, &format).unwrap();
    assert_eq!(recovery.outcome, RecoveryOutcome::Intact);
    use SubchunkState::{Empty, Readable};
    let [
        Readable,
        Empty,
        SubchunkState::Unreadable { .. },
        Readable,
        Empty,
        Readable,
    ] = &recovery.subchunks[..]
    else {
        panic!("{recovery}");
    };
    assert!(
        recovery
            .to_string()
            .contains("3 subchunks readable, 2 empty, 1 unreadable: they are lost, until a write covers each of them whole\n  subchunk 2: ")
    );
}

#[test]
fn arrays_that_do_not_store_shards_are_refused() {
    let shards = &kinds()[0];
    let store: Arc<Store> = Arc::new(MemoryStore::new());
    let outer = array(store.clone(), shards, &[codecs::gzip(1)]);
    let error = ShardFormat::of(&outer, &[0, 0]).unwrap_err();
    assert!(
        matches!(error, Error::NotShards { .. })
            && error.to_string().contains("gzip encoded once more"),
        "{error}"
    );
    let plain = array_of(store.clone(), shards, &[codecs::bytes("little")]);
    let error = ShardFormat::of(&plain, &[0, 0]).unwrap_err();
    assert!(
        matches!(error, Error::NotShards { .. }) && error.to_string().contains("`bytes`"),
        "{error}"
    );
    let error = ShardFormat::of(&array(store, shards, &[]), &[0, 2]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no shard [0, 2] in a grid of [2, 2]"),
        "{error}"
    );
}

/// Array-to-array codecs before the sharding codec change the shape of the shard.
#[test]
fn the_shard_of_a_transposed_array() {
    let shards = Shards {
        shape: vec![6, 4],
        ..kinds()[0].clone()
    };
    let store: Arc<Store> = Arc::new(MemoryStore::new());
    let sharding = json!({ "name": "sharding_indexed", "configuration": shards.json() });
    let in_array = Shards {
        shape: vec![4, 6],
        ..shards.clone()
    };
    let array = array_of(
        store.clone(),
        &in_array,
        &[codecs::transpose(&[1, 0]), sharding],
    );
    let format = ShardFormat::of(&array, &[0, 0]).unwrap();
    assert_eq!(format.shape(), chunk_shape(&[6, 4]));
    let key = array.chunk_key(&[0, 0]);
    store
        .set(&key, with_holes(&shards, &mut Rng(5)).into())
        .unwrap();
    let before = read(&array, &[0, 0]);
    let compaction = compact(&*store, &key, &format).unwrap().unwrap();
    assert!(compaction.after < compaction.before);
    assert_eq!(read(&array, &[0, 0]), before);
}

/// Elements of variable size, which zarrs' codec decodes.
#[test]
fn strings() {
    let shards = Shards {
        data_type: data_type::string(),
        fill: b"".to_vec(),
        codecs: vec![json!({ "name": "vlen-utf8" })],
        ..kinds()[1].clone()
    };
    let store = MemoryStore::new();
    let key = StoreKey::new("shard").unwrap();
    let format = format_of(&shards);
    let elements: Vec<String> = (0..24).map(|n| "x".repeat(n)).collect();
    let bytes =
        <String as zarrs::array::Element>::into_array_bytes(&shards.data_type, elements).unwrap();
    let encoded = shards
        .ours()
        .encode(
            bytes,
            &shards.chunk_shape(),
            &shards.data_type,
            &shards.fill_value(),
            &CodecOptions::default(),
        )
        .unwrap();
    let subchunks = shards.index.subchunks(&encoded, 6);
    let mut holes: Vec<_> = subchunks.into_iter().map(|bytes| (9, bytes)).collect();
    holes[2].1 = Some(vec![0xFF; 40]);
    store.set(&key, shards.index.shard(&holes).into()).unwrap();
    let recovery = recover(&store, &key, &format).unwrap();
    assert_eq!(recovery.outcome, RecoveryOutcome::Intact);
    for (number, state) in recovery.subchunks.iter().enumerate() {
        assert_eq!(*state == SubchunkState::Readable, number != 2, "{state:?}");
    }
    let compaction = compact(&store, &key, &format).unwrap().unwrap();
    assert_eq!(compaction.after, compaction.before - 6 * 9);
    assert_eq!(recover(&store, &key, &format).unwrap(), recovery);
}

#[test]
fn an_inspection() {
    for location in [Start, End] {
        let shards = shards(vec![codecs::bytes("little")], location, true);
        let store: Arc<Store> = Arc::new(MemoryStore::new());
        let array = array(store.clone(), &shards, &[]);
        let all = maintenance::Shards::of(&array).unwrap();
        assert_eq!(all.inspect(&[0, 0]).unwrap(), None);
        let shard = with_holes(&shards, &mut Rng(6));
        let key = array.chunk_key(&[0, 0]);
        store.set(&key, shard.clone().into()).unwrap();

        let found = all.inspect(&[0, 0]).unwrap().unwrap();
        let index_len = 6 * 16 + 4;
        assert_eq!(found.size, shard.len() as u64);
        let index = match location {
            Start => 0..index_len,
            End => found.size - index_len..found.size,
        };
        assert_eq!(found.index, Some(index));
        assert_eq!(found.index_problem, None);
        assert_eq!(found.grid, [2, 3]);
        assert_eq!(found.decoded_size, Some(8));
        assert_eq!((found.num_stored(), found.subchunks.len()), (4, 6));
        assert_eq!((found.live, found.unused()), (4 * 8 + index_len, 45));
        let size = f64::from(u32::try_from(found.size).unwrap());
        assert!((found.unused_fraction() - 45.0 / size).abs() < 1e-9);
        assert_eq!(found.records, []);
        let verified = all.verify(&[0, 0]).unwrap().unwrap();
        assert_eq!(verified.inspection, found);
        let usage = all.usage(&[0, 0]).unwrap().unwrap();
        assert_eq!((usage.size, usage.unused), (found.size, Some(45)));
        assert_eq!(all.usage(&[1, 1]).unwrap(), None);
        assert_eq!(all.verify(&[1, 1]).unwrap(), None);
        for (found, state) in found.subchunks.iter().zip(&verified.subchunks) {
            let expected = match found {
                None => SubchunkState::Empty,
                Some(_) => SubchunkState::Readable,
            };
            assert_eq!(*state, expected);
        }
        for (found, [offset, size]) in found.subchunks.iter().zip(shards.index.entries(&shard, 6)) {
            match found {
                None => assert_eq!([offset, size], EMPTY),
                Some(found) => assert_eq!(
                    ([found.offset, found.size], found.problem),
                    ([offset, size], None)
                ),
            }
        }
        let text = found.to_string();
        for line in [
            "subchunks 2 × 3: 4 stored, 2 empty",
            "recovery  nothing to do",
            "records   none",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert!(!found.summary().to_string().contains("ratio") && text.contains("ratio"));
        assert!(
            text.lines()
                .any(|line| line.split_whitespace().eq(["4", "1,1", "empty"])),
            "{text}"
        );
    }
}

#[test]
fn an_inspection_of_what_is_broken() {
    for location in [Start, End] {
        let shards = shards(vec![codecs::bytes("little")], location, true);
        let store: Arc<Store> = Arc::new(MemoryStore::new());
        let array = array(store.clone(), &shards, &[]);
        let all = maintenance::Shards::of(&array).unwrap();
        let shard = with_holes(&shards, &mut Rng(6));
        let key = array.chunk_key(&[0, 0]);

        // The record of an unfinished update.
        let mut entries = shards.index.entries(&shard, 6);
        let index = shards.index.encode(&entries);
        let record = record(
            shard.len(),
            Some((shard.len(), &index)),
            shard.len() + 1000,
            &index,
        );
        store
            .set(&key, [&shard[..], &record].concat().into())
            .unwrap();
        let found = all.inspect(&[0, 0]).unwrap().unwrap();
        assert_eq!(found.records.len(), 1);
        assert_eq!(found.records[0].is_pending, location == End);
        assert_eq!(found.records[0].offset, shard.len() as u64);
        assert_eq!(found.index_problem.is_some(), location == End);
        assert_eq!(found.to_string().contains("PENDING"), location == End);

        // Entries that overlap each other, overlap the index, or lie outside.
        entries[1] = [entries[0][0] + 2, 8];
        entries[2] = [u64::MAX - 2, 8];
        let in_index = match location {
            Start => 4,
            End => shard.len() as u64 - 4,
        };
        entries[3] = [in_index, 4];
        store
            .set(&key, shards.index.replace(&shard, &entries).into())
            .unwrap();
        let found = all.inspect(&[0, 0]).unwrap().unwrap();
        let problems: Vec<_> = found
            .subchunks
            .iter()
            .map(|s| s.and_then(|s| s.problem))
            .collect();
        use ExtentProblem::{Outside, Over, OverIndex};
        // Both of a pair that overlap.
        let expected = [
            Some(Over(1)),
            Some(Over(0)),
            Some(Outside),
            Some(OverIndex),
            None,
            None,
        ];
        assert_eq!(problems, expected);
        assert!(
            found
                .index_problem
                .as_ref()
                .is_some_and(|p| p.contains("out-of-bounds"))
        );
        let text = found.to_string();
        assert!(
            text.contains("4 of them overlap") && text.contains("has bytes of subchunk 0"),
            "{text}"
        );

        // The shard is too short for an index.
        store.set(&key, shard[..7].to_vec().into()).unwrap();
        let found = all.inspect(&[0, 0]).unwrap().unwrap();
        assert_eq!(
            (found.index.clone(), found.subchunks.len(), found.live),
            (None, 0, 0)
        );
        assert!(found.to_string().contains("INVALID"), "{found}");
        assert_eq!(all.usage(&[0, 0]).unwrap().unwrap().unused, None);
        let verified = all.verify(&[0, 0]).unwrap().unwrap();
        assert_eq!(verified.subchunks.len(), 6);
        let is_unreadable =
            |state: &SubchunkState| matches!(state, SubchunkState::Unreadable { .. });
        assert!(verified.subchunks.iter().all(is_unreadable));
        store.set(&key, Vec::new().into()).unwrap();
        assert_eq!(all.inspect(&[0, 0]).unwrap().unwrap().size, 0);
    }
}

#[test]
fn shards_with_many_unused_bytes_are_pending() {
    for location in [Start, End] {
        let shards = shards(vec![codecs::bytes("little")], location, false);
        let store: Arc<Store> = Arc::new(MemoryStore::new());
        let array = array(store.clone(), &shards, &[]);
        let all = maintenance::Shards::of(&array).unwrap();
        // 96 bytes of index, and 48 of data. An update needs 160 unused bytes, and 48 are a
        // quarter.
        let with_gap = |gap| {
            let subchunks = (0..6).map(|n| (if n == 5 { gap } else { 0 }, Some(vec![n; 8])));
            shards.index.shard(&subchunks.collect::<Vec<_>>())
        };
        for (shard, gap) in [([0, 0], 160), ([0, 1], 161), ([1, 1], 0)] {
            store
                .set(&array.chunk_key(&shard), with_gap(gap).into())
                .unwrap();
        }
        let sizes = [(vec![0, 0], 304), (vec![0, 1], 305), (vec![1, 1], 144)];
        assert_eq!(all.stored().unwrap(), sizes);
        assert_eq!(all.pending().unwrap(), [[0, 1]]);
        let before = read(&array, &[0, 1]);
        let compacted = all.compact_pending().unwrap();
        assert_eq!(compacted.len(), 1);
        assert_eq!((compacted[0].1.before, compacted[0].1.after), (305, 144));
        assert_eq!(all.pending().unwrap(), Vec::<Vec<u64>>::new());
        assert_eq!(read(&array, &[0, 1]), before);

        // A broken index needs recovery, not compaction.
        let mut broken = with_gap(1000);
        let [at, _] = [broken.len() - 96, 0];
        let at = if location == Start { 0 } else { at };
        broken[at..at + 8].fill(0xEE);
        store.set(&array.chunk_key(&[1, 0]), broken.into()).unwrap();
        assert_eq!(all.pending().unwrap(), Vec::<Vec<u64>>::new());

        // The codec's options determine how many unused bytes are allowed.
        store
            .set(&array.chunk_key(&[1, 1]), with_gap(200).into())
            .unwrap();
        for (options, pending) in [
            (Options::default(), 1),
            (Options::default().with_max_dead_fraction(0.6), 0),
            (Options::default().with_max_dead_fraction(0.55), 1),
            (
                Options::default().with_write_strategy(WriteStrategy::Slots),
                0,
            ),
        ] {
            let codec = CudaShardingCodec::new_with_configuration(&shards.configuration(), options);
            let array = ArrayBuilder::new(vec![8, 12], vec![4, 6], data_type::uint16(), 0_u16)
                .array_to_bytes_codec(Arc::new(codec.unwrap()))
                .build(store.clone(), "/")
                .unwrap();
            let all = maintenance::Shards::of(&array).unwrap();
            assert_eq!(all.pending().unwrap().len(), pending);
        }
    }
}

#[tokio::test]
async fn asynchronously() {
    let shards = shards(vec![codecs::bytes("little")], End, true);
    let store = AsyncMemoryStore::new();
    let key = StoreKey::new("shard").unwrap();
    let format = format_of(&shards);
    assert_eq!(async_compact(&store, &key, &format).await.unwrap(), None);
    assert_eq!(async_inspect(&store, &key, &format).await.unwrap(), None);
    let recovery = async_recover(&store, &key, &format).await.unwrap();
    assert_eq!(recovery.outcome, RecoveryOutcome::Absent);

    let shard = with_holes(&shards, &mut Rng(7));
    let index = index_of(&shards, &shard);
    let record = record(
        shard.len(),
        Some((shard.len(), &index)),
        shard.len() + 1000,
        &index,
    );
    let torn = [&shard[..], &record, &[1, 2, 3]].concat();
    store.set(&key, torn.into()).await.unwrap();
    let error = async_compact(&store, &key, &format).await.unwrap_err();
    assert!(matches!(error, Error::UpdatePending { .. }));
    let recovery = async_recover(&store, &key, &format).await.unwrap();
    assert_eq!(recovery.outcome, RecoveryOutcome::Undone);
    let found = async_inspect(&store, &key, &format).await.unwrap().unwrap();
    assert_eq!(found.recovery, RecoveryOutcome::Intact);
    let compaction = async_compact(&store, &key, &format).await.unwrap().unwrap();
    assert_eq!(compaction.after, 4 * 8 + index.len() as u64);
    let object = store.get(&key).await.unwrap().unwrap();
    assert_eq!(
        shards.index.subchunks(&object, 6),
        shards.index.subchunks(&shard, 6)
    );
}

/// The shards of an array are the same in an asynchronous store as in a blocking one.
#[tokio::test]
async fn the_shards_of_an_array_asynchronously() {
    for location in [Start, End] {
        let shards = shards(vec![codecs::bytes("little")], location, true);
        let blocking: Arc<Store> = Arc::new(MemoryStore::new());
        let awaited = Arc::new(AsyncMemoryStore::new());
        let codec = shards.ours();
        let array_in = || {
            let mut builder =
                ArrayBuilder::new(vec![8, 12], vec![4, 6], data_type::uint16(), 0_u16);
            builder.array_to_bytes_codec(codec.clone());
            builder
        };
        let array = array_in().build(blocking.clone(), "/").unwrap();
        let expected = maintenance::Shards::of(&array).unwrap();
        let array = array_in().build(awaited.clone(), "/").unwrap();
        let all = maintenance::Shards::of(&array).unwrap();

        let intact = with_holes(&shards, &mut Rng(8));
        let index = index_of(&shards, &intact);
        let (size, new_end) = (intact.len(), intact.len() + 1000);
        let record = record(size, Some((size, &index)), new_end, &index);
        let torn = [&intact[..], &record, &[1, 2, 3]].concat();
        let subchunks = (0..6).map(|n| (if n == 5 { 400 } else { 0 }, Some(vec![n; 8])));
        let unused = shards.index.shard(&subchunks.collect::<Vec<_>>());
        for (shard, object) in [([0, 0], unused), ([0, 1], torn), ([1, 1], intact)] {
            let key = array.chunk_key(&shard);
            blocking.set(&key, object.clone().into()).unwrap();
            awaited.set(&key, object.into()).await.unwrap();
        }
        assert_eq!(
            all.async_stored().await.unwrap(),
            expected.stored().unwrap()
        );
        assert_eq!(all.async_stored().await.unwrap().len(), 3);
        // The update did not touch an index at the start.
        if location == End {
            let error = all.async_compact(&[0, 1]).await.unwrap_err();
            assert!(matches!(error, Error::UpdatePending { .. }), "{error}");
        }
        for shard in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            let recovery = all.async_recover(&shard).await.unwrap();
            assert_eq!(recovery, expected.recover(&shard).unwrap());
            let inspection = all.async_inspect(&shard).await.unwrap();
            assert_eq!(inspection, expected.inspect(&shard).unwrap());
        }
        let pending = all.async_pending().await.unwrap();
        assert_eq!(pending, expected.pending().unwrap());
        assert!(pending.contains(&vec![0, 0]), "{pending:?}");
        let compacted = all.async_compact_pending().await.unwrap();
        assert_eq!(compacted, expected.compact_pending().unwrap());
        assert_eq!(all.async_pending().await.unwrap(), Vec::<Vec<u64>>::new());
        for shard in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            let compaction = all.async_compact(&shard).await.unwrap();
            assert_eq!(compaction, expected.compact(&shard).unwrap());
            let key = array.chunk_key(&shard);
            let object = awaited.get(&key).await.unwrap();
            assert_eq!(object, blocking.get(&key).unwrap());
        }
        let error = all.async_inspect(&[2, 0]).await.unwrap_err();
        assert!(matches!(error, Error::Codec(_)), "{error}");
    }
}

/// Random objects cause no panic. Maintenance adds only few bytes.
#[test]
fn hostile_objects() {
    let mut all = kinds();
    for inner in [
        vec![codecs::bytes("little"), codecs::gzip(1)],
        vec![
            codecs::bytes("little"),
            codecs::blosc("lz4", 1, "shuffle", 2),
        ],
        vec![codecs::sharding(&[1, 2], &[codecs::bytes("little")])],
    ] {
        all.push(shards(inner, End, false));
    }
    let mut rng = Rng(8);
    let mut seen = [0; 6];
    for shards in all {
        let format = format_of(&shards);
        let store = MemoryStore::new();
        let key = StoreKey::new("shard").unwrap();
        for _ in 0..effort::times(200) {
            let mut object = with_holes(&shards, &mut rng);
            let index = index_of(&shards, &object);
            if rng.one_in(2) {
                let mut number = || usize::try_from(rng.next() >> rng.below(64)).unwrap_or(0);
                let old = (number(), &index[..]);
                let record = record(object.len(), Some(old), number(), &index);
                object.extend(record);
            }
            if rng.one_in(2) {
                let len = rng.below(object.len() as u64);
                object.truncate(usize::try_from(len).unwrap());
            }
            for _ in 0..rng.below(4) {
                let at = usize::try_from(rng.below(object.len().max(1) as u64)).unwrap();
                if let Some(byte) = object.get_mut(at) {
                    *byte = rng.byte();
                }
            }
            store.set(&key, object.clone().into()).unwrap();
            let found = inspect(&store, &key, &format).unwrap().unwrap();
            assert!(found.live <= found.size && !found.to_string().is_empty());
            let recovery = recover(&store, &key, &format).unwrap();
            assert_eq!(recovery.outcome, found.recovery);
            seen[match recovery.outcome {
                RecoveryOutcome::Intact => 0,
                RecoveryOutcome::Undone => 1,
                RecoveryOutcome::Unrecoverable { .. } => 2,
                _ => 3,
            }] += 1;
            let Some(now) = store.get(&key).unwrap() else {
                continue;
            };
            assert!(now.len() <= object.len() + 64 + index.len());
            match compact(&store, &key, &format) {
                Ok(_) => seen[4] += 1,
                Err(_) => seen[5] += 1,
            }
        }
    }
    assert!(
        seen[0] > 0 && seen[1] > 0 && seen[2] > 0 && seen[4] > 0 && seen[5] > 0,
        "{seen:?}"
    );
}

/// A store that rejects changes.
struct ReadOnly(Arc<MemoryStore>);

impl ReadableStorageTraits for ReadOnly {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.0.get_partial_many(key, byte_ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.0.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for ReadOnly {
    fn set(&self, _: &StoreKey, _: Bytes) -> Result<(), StorageError> {
        Err(read_only())
    }

    fn set_partial_many(&self, _: &StoreKey, _: OffsetBytesIterator) -> Result<(), StorageError> {
        Err(read_only())
    }

    fn erase(&self, _: &StoreKey) -> Result<(), StorageError> {
        Err(read_only())
    }

    fn erase_prefix(&self, _: &StorePrefix) -> Result<(), StorageError> {
        Err(read_only())
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}

fn read_only() -> StorageError {
    StorageError::Other("read only".to_string())
}
