//! Shards that cannot be decoded, and calls that do not fit the array.

use std::sync::Arc;

use zarrs::array::{Array, ArrayBuilder, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{
    AsyncWritableStorageTraits, ListableStorageTraits, ReadableStorageTraits, StoreKey,
    WritableStorageTraits,
};
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::reader::{ArrayReader, ArrayReaderBuilder, Output, ReadReport, ReaderError};
use zarrs_cuda_testing::index::IndexLayout;
use zarrs_cuda_testing::{Rng, effort};

/// 8 × 8 uint16 in shards of 4 × 8 with four subchunks of 2 × 4, behind which is a checksum.
fn array(store: Arc<MemoryStore>) -> Array<MemoryStore> {
    let subchunk = [2, 4].map(|extent| extent.try_into().unwrap()).to_vec();
    let mut codec = CudaShardingCodecBuilder::new(subchunk, &data_type::uint16());
    codec.bytes_to_bytes_codecs(vec![Arc::new(zarrs::array::codec::Crc32cCodec::new())]);
    let mut builder = ArrayBuilder::new(vec![8, 8], vec![4, 8], data_type::uint16(), 5_u16);
    builder.array_to_bytes_codec(codec.build_arc().unwrap());
    let array = builder.build(store, "/array").unwrap();
    array.store_metadata().unwrap();
    let elements: Vec<u16> = (0..64).collect();
    array
        .store_array_subset(&array.subset_all(), &elements)
        .unwrap();
    array
}

/// Changes a byte of the value at `key`.
fn damage(store: &MemoryStore, key: &StoreKey, at: usize) {
    let mut value = store.get(key).unwrap().unwrap().to_vec();
    let at = if at < value.len() {
        at
    } else {
        value.len() - 1
    };
    value[at] ^= 1;
    store.set(key, value.into()).unwrap();
}

#[test]
fn a_damaged_subchunk_is_named_or_filled() {
    let store = Arc::new(MemoryStore::new());
    let array = array(store.clone());
    let key = array.chunk_key(&[1, 0]);
    // The third of four subchunks of 20 bytes.
    damage(&store, &key, 45);
    let whole = array.subset_all();

    let error = ArrayReader::builder(&array)
        .build()
        .unwrap()
        .read::<u16>(&whole)
        .unwrap_err();
    let ReaderError::Damaged(damage) = &error else {
        panic!("{error}");
    };
    assert_eq!((&damage.key, damage.subchunk), (&key, Some(2)));
    assert!(error.to_string().contains("subchunk 2"), "{error}");

    let reader = ArrayReader::builder(&array).with_damaged_as_fill_value(true);
    let mut elements = vec![0_u16; 64];
    let report = reader
        .build()
        .unwrap()
        .read_into(&whole, &mut elements)
        .unwrap();
    let damaged: Vec<_> = report
        .damaged
        .iter()
        .map(|d| (&d.key, d.subchunk))
        .collect();
    assert_eq!(damaged, [(&key, Some(2))]);
    let expected = |at: u16| if at / 8 >= 6 && at % 8 < 4 { 5 } else { at };
    assert_eq!(elements, (0..64).map(expected).collect::<Vec<_>>());

    // A box without that subchunk is read.
    let reader = ArrayReader::builder(&array).build().unwrap();
    assert_eq!(reader.read::<u16>(&[4..5, 3..6]).unwrap(), [35, 36, 37]);
}

/// Any bytes may be damaged, cut off, or added: every subchunk has its elements or is named.
#[test]
fn any_damage_is_an_error_or_named() {
    let store = Arc::new(MemoryStore::new());
    let array = array(store.clone());
    let whole = array.subset_all();
    let keys = [array.chunk_key(&[0, 0]), array.chunk_key(&[1, 0])];
    let good = keys.each_ref().map(|key| store.get(key).unwrap().unwrap());
    let (mut read, mut refused) = (0, 0);
    for seed in effort::seeds(2000) {
        let mut rng = Rng(seed);
        for (key, good) in keys.iter().zip(&good) {
            let mut value = good.to_vec();
            for _ in 0..rng.below(3) {
                let at = rng.below(value.len() as u64) as usize;
                // Mostly the subchunks, since a damaged index ends everything.
                let at = if rng.one_in(4) { at } else { at % 80 };
                value[at] ^= rng.byte();
            }
            if rng.one_in(20) {
                value.truncate(rng.below(value.len() as u64) as usize);
            }
            store.set(key, value.into()).unwrap();
        }
        let reader = ArrayReader::builder(&array).with_damaged_as_fill_value(true);
        let mut found = vec![0_u16; 64];
        let reader = reader.build().unwrap();
        let report = reader.read_into(&whole, &mut found).unwrap();
        for (number, found) in (0_u16..).zip(found) {
            let (row, column) = (usize::from(number) / 8, usize::from(number) % 8);
            let subchunk = row % 4 / 2 * 2 + column / 4;
            // The subchunk, or its whole shard.
            let mut of_shard = report.damaged.iter().filter(|d| d.key == keys[row / 4]);
            let is_named = of_shard.any(|d| d.subchunk.is_none_or(|number| number == subchunk));
            let expected = if is_named { 5 } else { number };
            assert_eq!(found, expected, "seed {seed}, {:?}", report.damaged);
        }
        // Without fill values it is the same, or an error.
        match ArrayReader::builder(&array)
            .build()
            .unwrap()
            .read::<u16>(&whole)
        {
            Ok(found) => {
                read += 1;
                assert_eq!(found, (0..64).collect::<Vec<_>>(), "seed {seed}");
            }
            Err(ReaderError::Damaged(damage)) => {
                refused += 1;
                assert!(keys.contains(&damage.key), "{damage}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
}

/// A name, a shard, and the numbers of its damaged subchunks, or `None` if the shard has no index.
type Broken = (&'static str, Vec<u8>, Option<Vec<usize>>);

/// Ways to break the shard `good`.
fn broken(good: &[u8]) -> Vec<Broken> {
    let layout = IndexLayout::default();
    let entry = |number: usize, entry: [u64; 2]| {
        let mut entries = layout.entries(good, 4);
        entries[number] = entry;
        layout.replace(good, &entries)
    };
    let mut flipped = good.to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    let len = good.len() as u64;
    vec![
        ("a wrong checksum", flipped, None),
        ("no bytes", vec![], None),
        ("shorter than its index", good[..3].to_vec(), None),
        (
            "an index without its end",
            good[..good.len() - 1].to_vec(),
            None,
        ),
        ("half of it", good[..good.len() / 2].to_vec(), None),
        ("behind the end", entry(2, [len, 20]), Some(vec![2])),
        ("over the end", entry(1, [len - 1, 20]), Some(vec![1])),
        ("far away", entry(0, [1 << 40, 20]), Some(vec![0])),
        ("too long", entry(3, [0, 1 << 40]), Some(vec![3])),
    ]
}

/// What a call with `with_damaged_as_fill_value` gives for `broken`, of 8 × 8 elements.
fn salvaged(damaged: Option<&[usize]>) -> Vec<u16> {
    let is_damaged = |at: u16| {
        let (row, column) = (usize::from(at) / 8, usize::from(at) % 8);
        let subchunk = row % 4 / 2 * 2 + column / 4;
        row < 4 && damaged.is_none_or(|damaged| damaged.contains(&subchunk))
    };
    (0..64)
        .map(|at| if is_damaged(at) { 5 } else { at })
        .collect()
}

/// Checks each blocking call of two readers of the same array. One makes errors of damage.
fn check_salvage<S>(strict: &ArrayReader<S>, salvaging: &ArrayReader<S>, damaged: Option<&[usize]>)
where
    S: ?Sized + ReadableStorageTraits + 'static,
{
    let whole = strict.array().subset_all();
    let key = strict.array().chunk_key(&[0, 0]);
    let error = strict.read::<u16>(&whole).unwrap_err();
    let ReaderError::Damaged(damage) = &error else {
        panic!("{error}");
    };
    let first = damaged.map(|damaged| damaged[0]);
    assert_eq!((&damage.key, damage.subchunk), (&key, first), "{error}");

    let expected = salvaged(damaged);
    let named = |report: &ReadReport| {
        let found = report
            .damaged
            .iter()
            .map(|damage| (&damage.key, damage.subchunk));
        assert_eq!(found.collect::<Vec<_>>(), [(&key, first)]);
    };
    let mut found = vec![0_u16; 64];
    named(&salvaging.read_into(&whole, &mut found).unwrap());
    assert_eq!(found, expected);
    // With the axes in another order.
    let mut bytes = vec![0; 128];
    let output = Output::strided(&mut bytes, &[2, 16]);
    named(&salvaging.read_bytes_into(&whole, output).unwrap());
    assert_eq!(bytes[16..18], expected[1].to_ne_bytes());
    let mut found = vec![0_u16; 64];
    let origins = [[0, 0], [4, 0]];
    named(&salvaging.read_boxes(&origins, &[4, 8], &mut found).unwrap());
    assert_eq!(found, expected);
    let before = salvaging.metrics().damaged;
    assert_eq!(salvaging.read::<u16>(&whole).unwrap(), expected);
    assert_eq!(salvaging.metrics().damaged, before + 1);
    salvaging.read_tensor(&whole).unwrap();
    let slices = salvaging.iter_slices::<u16>(4.try_into().unwrap()).unwrap();
    let slices: Vec<_> = slices.collect::<Result<_, _>>().unwrap();
    assert_eq!(slices.concat(), expected);
}

/// The same for the calls that are awaited.
async fn check_async_salvage(array: &Array<MemoryStore>, damaged: Option<&[usize]>) {
    let store = Arc::new(AsyncMemoryStore::new());
    let from = array.storage();
    for key in from.list().unwrap() {
        let value = from.get(&key).unwrap().unwrap();
        store.set(&key, value).await.unwrap();
    }
    let copy = array.with_storage(store);
    let whole = array.subset_all();
    let strict = ArrayReader::builder(&copy).build().unwrap();
    let error = strict.async_read::<u16>(&whole).await.unwrap_err();
    assert!(matches!(error, ReaderError::Damaged(_)), "{error}");
    let reader = ArrayReader::builder(&copy).with_damaged_as_fill_value(true);
    let reader = reader.build().unwrap();
    let found = reader.async_read::<u16>(&whole).await.unwrap();
    assert_eq!(found, salvaged(damaged));
    let mut found = vec![0_u16; 64];
    let report = reader
        .async_read_boxes(&[[0, 0], [4, 0]], &[4, 8], &mut found)
        .await
        .unwrap();
    assert_eq!(found, salvaged(damaged));
    let first = damaged.map(|damaged| damaged[0]);
    assert_eq!(report.damaged.len(), 1);
    assert_eq!(report.damaged[0].subchunk, first);
}

#[test]
fn a_shard_without_its_index_or_some_bytes_is_named_or_filled() {
    let store = Arc::new(MemoryStore::new());
    let array = array(store.clone());
    let key = array.chunk_key(&[0, 0]);
    let good = store.get(&key).unwrap().unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let files = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    for key in store.list().unwrap() {
        files.set(&key, store.get(&key).unwrap().unwrap()).unwrap();
    }
    let in_files = array.with_storage(files.clone());
    for (what, bad, damaged) in broken(&good) {
        println!("{what}");
        store.set(&key, bad.clone().into()).unwrap();
        files.set(&key, bad.clone().into()).unwrap();
        let damaged = damaged.as_deref();
        let of = |fill| {
            let builder = ArrayReader::builder(&array).with_damaged_as_fill_value(fill);
            builder.build().unwrap()
        };
        check_salvage(&of(false), &of(true), damaged);
        // Without a cache of indices, and one subchunk by each request.
        let of = |fill| {
            let builder = ArrayReader::builder(&array).with_damaged_as_fill_value(fill);
            let builder = builder.with_index_cache(0).with_memory(0).with_gap(0);
            builder.build().unwrap()
        };
        check_salvage(&of(false), &of(true), damaged);
        let of = |fill, on_filesystem| {
            let builder = ArrayReader::builder(&in_files).with_damaged_as_fill_value(fill);
            if on_filesystem {
                builder.on_filesystem(&files).build().unwrap()
            } else {
                builder.build().unwrap()
            }
        };
        check_salvage(&of(false, true), &of(true, true), damaged);
        check_salvage(&of(false, false), &of(true, false), damaged);
        futures::executor::block_on(check_async_salvage(&array, damaged));
    }
}

/// The index of the whole shard was kept.
#[test]
fn a_shard_that_loses_its_index_is_named_or_filled() {
    let store = Arc::new(MemoryStore::new());
    let array = array(store.clone());
    let key = array.chunk_key(&[0, 0]);
    let good = store.get(&key).unwrap().unwrap();
    for (what, bad, damaged) in broken(&good) {
        println!("{what}");
        store.set(&key, good.clone()).unwrap();
        let of = |fill| {
            let builder = ArrayReader::builder(&array).with_damaged_as_fill_value(fill);
            let reader = builder.build().unwrap();
            reader.read::<u16>(&array.subset_all()).unwrap();
            reader
        };
        let (strict, salvaging) = (of(false), of(true));
        store.set(&key, bad.into()).unwrap();
        check_salvage(&strict, &salvaging, damaged.as_deref());
    }
}

#[test]
fn a_shard_without_room_for_an_index_says_so() {
    let store = Arc::new(MemoryStore::new());
    let array = array(store.clone());
    store
        .set(&array.chunk_key(&[0, 0]), vec![1; 3].into())
        .unwrap();
    let reader = ArrayReader::builder(&array).build().unwrap();
    let error = reader.read::<u16>(&[0..1, 0..1]).unwrap_err().to_string();
    // Four entries of 16 bytes, and a checksum.
    assert!(
        error.contains("68 bytes") && error.contains("has 3"),
        "{error}"
    );
}

#[test]
fn calls_that_do_not_fit_are_refused() {
    let array = array(Arc::new(MemoryStore::new()));
    let reader = ArrayReader::builder(&array).build().unwrap();
    let refused = |error: ReaderError, text: &str| {
        assert!(error.to_string().contains(text), "{error}");
    };
    refused(reader.read::<u16>(&[0..9, 0..1]).unwrap_err(), "[8, 8]");
    let other = ArraySubset::new_with_ranges(&[0..1]);
    refused(reader.read::<u16>(&other).unwrap_err(), "[8, 8]");
    let error = reader.read::<i64>(&[0..1, 0..1]).unwrap_err().to_string();
    for text in ["uint16", "`i64`", "8 bytes"] {
        assert!(error.contains(text), "{error}");
    }
    let mut output = [0_u16; 3];
    let error = reader.read_into(&[0..2, 0..2], &mut output).unwrap_err();
    refused(error, "6 bytes");
    for (origins, shape, text) in [
        (
            vec![vec![0, 0], vec![7, 7]],
            [2, 2],
            "origin 1 (counted from 0), [7, 7] is not inside",
        ),
        (
            vec![vec![0, 0], vec![0, 0], vec![7; 3]],
            [1, 1],
            "origin 2 (counted from 0), [7, 7, 7] needs",
        ),
        (
            vec![vec![0, 0], vec![]],
            [1, 1],
            "origin 1 (counted from 0), [] needs",
        ),
    ] {
        let mut output = vec![0_u16; origins.len() * 4];
        let error = reader
            .read_boxes(&origins, &shape, &mut output)
            .unwrap_err();
        refused(error, text);
    }
    let error = reader
        .read_boxes(&[[7, 7]], &[1], &mut [0_u16; 1])
        .unwrap_err();
    refused(error, "the 2 axes of the array");
    let mut bytes = [0; 8];
    let output = Output::strided(&mut bytes, &[2, 2]);
    let error = reader.read_bytes_into(&[0..2, 0..2], output).unwrap_err();
    refused(error, "overlap");
    // Nothing is asked for, and nothing is done.
    assert!(reader.read::<u16>(&[3..3, 0..8]).unwrap().is_empty());
    let nothing: [[u64; 2]; 0] = [];
    reader
        .read_boxes(&nothing, &[2, 2], &mut [0_u16; 0])
        .unwrap();
}

/// The index with the bad entry was kept.
#[test]
fn a_repaired_index_is_read_again() {
    let store = Arc::new(MemoryStore::new());
    let array = array(store.clone());
    let key = array.chunk_key(&[0, 0]);
    let good = store.get(&key).unwrap().unwrap();
    let layout = IndexLayout::default();
    let mut entries = layout.entries(&good, 4);
    entries[3][1] += 1;
    let bad = layout.replace(&good, &entries);
    for fill in [false, true] {
        store.set(&key, bad.clone().into()).unwrap();
        let reader = ArrayReader::builder(&array).with_damaged_as_fill_value(fill);
        let reader = reader.build().unwrap();
        assert_eq!(reader.read::<u16>(&[0..1, 0..2]).unwrap(), [0, 1]);
        store.set(&key, good.clone()).unwrap();
        assert_eq!(reader.read::<u16>(&[3..4, 6..8]).unwrap(), [30, 31]);
        assert_eq!(reader.metrics().damaged, 0);
    }
}

/// In a release build the sum of an origin and an extent would begin again at 0.
#[test]
fn boxes_that_end_behind_all_numbers_are_refused() {
    let array = array(Arc::new(MemoryStore::new()));
    let reader = ArrayReader::builder(&array).build().unwrap();
    let of = |start, extent| ArraySubset::new_with_start_shape(start, vec![extent; 2]).unwrap();
    let refused = |error: ReaderError| {
        assert!(matches!(error, ReaderError::OutOfBounds { .. }), "{error}");
        assert!(error.to_string().contains("[8, 8]"), "{error}");
    };
    for (start, extent) in [
        (u64::MAX, 1),
        (u64::MAX, 2),
        (u64::MAX - 1, 4),
        (3, u64::MAX - 2),
        (1, u64::MAX),
    ] {
        let subset = of(vec![start; 2], extent);
        refused(reader.read::<u16>(&subset).unwrap_err());
        refused(reader.read_tensor(&subset).err().unwrap());
        refused(reader.read_ndarray::<u16>(&subset).unwrap_err());
        let mut output = [0_u16; 16];
        refused(reader.read_into(&subset, &mut output).unwrap_err());
        let mut bytes = [0; 32];
        let output = Output::strided(&mut bytes, &[8, 2]);
        refused(reader.read_bytes_into(&subset, output).unwrap_err());
        let (origins, shape) = ([[0, 0], [start; 2]], [extent; 2]);
        let mut output = [0_u16; 32];
        let error = reader.read_boxes(&origins[1..], &shape, &mut output);
        refused(error.unwrap_err());
        let output = Output::strided(&mut bytes, &[0, 8, 2]);
        let error = reader.read_boxes_bytes_into(&origins[1..], &shape, output);
        refused(error.unwrap_err());
    }
    let subset = of(vec![u64::MAX; 2], 2);
    let mut output = ndarray::Array2::<u16>::zeros((2, 2));
    let error = reader.read_into_ndarray(&subset, output.view_mut());
    refused(error.unwrap_err());

    let copy = array.with_storage(Arc::new(AsyncMemoryStore::new()));
    let reader = ArrayReader::builder(&copy).build().unwrap();
    let mut output = [0_u16; 4];
    futures::executor::block_on(async {
        refused(reader.async_read::<u16>(&subset).await.unwrap_err());
        let error = reader.async_read_into(&subset, &mut output).await;
        refused(error.unwrap_err());
        let error = reader
            .async_read_boxes(&[[u64::MAX; 2]], &[2, 2], &mut output)
            .await;
        refused(error.unwrap_err());
    });
}

/// The last shard of the longest array ends behind all numbers, and its elements do not.
#[test]
fn the_end_of_the_longest_array_is_read() {
    let store = Arc::new(MemoryStore::new());
    let codec = CudaShardingCodecBuilder::new(vec![4.try_into().unwrap()], &data_type::uint16());
    let mut builder = ArrayBuilder::new(vec![u64::MAX], vec![16], data_type::uint16(), 5_u16);
    builder.array_to_bytes_codec(codec.build_arc().unwrap());
    let array = builder.build(store, "/").unwrap();
    let last = u64::MAX / 16;
    array
        .store_chunk(&[last], (0..16).collect::<Vec<u16>>())
        .unwrap();
    let reader = ArrayReader::builder(&array).build().unwrap();
    let found = reader.read::<u16>(&[u64::MAX - 3..u64::MAX]);
    assert_eq!(found.unwrap(), [12, 13, 14]);
    let mut slices = reader
        .iter_slices::<u16>(std::num::NonZeroU64::MAX)
        .unwrap();
    let error = slices.next().unwrap().unwrap_err();
    assert!(matches!(error, ReaderError::Memory { .. }), "{error}");
}

/// A message has those of its causes, and `source` does not have them again.
#[test]
fn chains_of_errors_do_not_repeat_themselves() {
    let store = Arc::new(MemoryStore::new());
    let array = array(store.clone());
    let reader = ArrayReader::builder(&array).build().unwrap();
    let mut errors: Vec<Box<dyn std::error::Error>> = Vec::new();
    errors.push(reader.read::<u8>(&[0..1, 0..1]).unwrap_err().into());
    damage(&store, &array.chunk_key(&[0, 0]), 3);
    let error = reader.read::<u16>(&[0..1, 0..1]).unwrap_err();
    if let ReaderError::Damaged(damage) = error {
        errors.push(damage.into());
    }
    damage(&store, &array.chunk_key(&[1, 0]), usize::MAX);
    errors.push(reader.read::<u16>(&[4..5, 0..1]).unwrap_err().into());
    let files = tempfile::TempDir::new().unwrap();
    let files = Arc::new(FilesystemStore::new(files.path()).unwrap());
    std::fs::create_dir_all(files.key_to_fspath(&array.chunk_key(&[0, 0]))).unwrap();
    let array = array.with_storage(files);
    let reader = ArrayReader::builder(&array).build().unwrap();
    errors.push(reader.read::<u16>(&[0..1, 0..1]).unwrap_err().into());
    assert_eq!(errors.len(), 4);
    for error in errors {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            let more = source.to_string();
            assert!(!text.contains(&more), "{text}: {more}");
            text = more;
            cause = source.source();
        }
    }
}

/// A reader that is slow on files says what would help.
#[test]
fn a_reader_of_files_is_told_of_its_setting() {
    let folder = tempfile::TempDir::new().unwrap();
    let files = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let memory = array(Arc::new(MemoryStore::new()));
    let array = memory.with_storage(files.clone());
    array.store_metadata().unwrap();
    let hint = |builder: ArrayReaderBuilder<FilesystemStore>| {
        let reader = builder.build().unwrap();
        reader.explain().contains("on_filesystem")
    };
    assert!(hint(ArrayReader::builder(&array)));
    assert!(!hint(ArrayReader::builder(&array).on_filesystem(&files)));
    let reader = ArrayReader::builder(&memory).build().unwrap();
    assert!(!reader.explain().contains("on_filesystem"));
}
