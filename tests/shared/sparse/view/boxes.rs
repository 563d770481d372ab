//! Readers of boxes (`SparseShardStore::reader`): the elements are those that zarrs reads through the
//! adapter, after one listing of each frame.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use zarrs::array::{Array, ArraySubset};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::storage_adapter::sync_to_async::SyncToAsyncStorageAdapter;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, ListableStorageTraits, ReadableWritableListableStorageTraits, StoreKey, StorePrefix,
    WritableStorageTraits,
};
use zarrs_cuda::reader::{ArrayReader, ReaderError, Until};
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty, Operation};
use zarrs_cuda_testing::{Rng, effort, random_box};

use super::stores::{Here, Layout, files};

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
enum Opening {
    InMemory,
    /// `open_renaming`: shards are values of a store.
    Renaming,
    /// `on_filesystem`: shards are files.
    OnFilesystem,
}

#[derive(Clone, Debug)]
enum Step {
    /// A box is stored.
    Write,
    /// A box is stored by this process.
    WriteByOther,
    /// A subchunk is erased.
    Erase,
    /// Half of a new version of a subchunk is stored, by a writer that dies.
    Torn,
    /// The shard of an element is consolidated.
    Consolidate,
    ConsolidateAll,
}

fn layouts() -> impl Strategy<Value = Layout> {
    let shapes = prop_oneof![
        Just((vec![8, 6], vec![4, 4], vec![2, 2])),
        Just((vec![7, 5], vec![4, 2], vec![1, 2])),
        Just((vec![10], vec![4], vec![2])),
        Just((vec![3, 4, 2], vec![2, 2, 2], vec![1, 2, 1])),
        Just((vec![9, 40], vec![8, 32], vec![2, 8])),
    ];
    let bytes = json!({ "name": "bytes", "configuration": { "endian": "little" } });
    let zstd = json!({ "name": "zstd", "configuration": { "level": 1, "checksum": false } });
    let codecs = prop_oneof![
        Just(json!([bytes])),
        Just(json!([bytes, { "name": "crc32c" }])),
        Just(json!([bytes, zstd])),
    ];
    let encodings = prop_oneof![Just("default"), Just("v2")];
    let locations = prop_oneof![Just("start"), Just("end")];
    (shapes, codecs, encodings, locations).prop_map(
        |((shape, shard, subchunk), codecs, encoding, index_location)| Layout {
            encoding,
            codecs,
            index_location,
            ..Layout::new(&shape, &shard, &subchunk)
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Write),
        2 => Just(Step::WriteByOther),
        2 => Just(Step::Erase),
        1 => Just(Step::Torn),
        3 => Just(Step::Consolidate),
        1 => Just(Step::ConsolidateAll),
    ];
    prop::collection::vec(step, 1..16)
}

fn random_index(counts: &[u64], rng: &mut Rng) -> Vec<u64> {
    counts.iter().map(|&count| rng.below(count)).collect()
}

type View<S> = Array<SparseShardStore<S>>;

fn step<S: ReadableWritableListableStorageTraits + ?Sized + 'static>(
    step: &Step,
    store: &S,
    layout: &Layout,
    [one, other]: [&View<S>; 2],
    rng: &mut Rng,
) {
    let write = |view: &View<S>, rng: &mut Rng| {
        let subset = random_box(view.shape(), rng);
        // Some of the elements have the fill value.
        let elements = (0..subset.num_elements()).map(|_| rng.below(9).saturating_sub(3) as u8);
        let elements: Vec<u8> = elements.collect();
        view.store_array_subset(&subset, elements).unwrap();
    };
    match step {
        Step::Write => write(one, rng),
        Step::WriteByOther => write(other, rng),
        Step::Erase => {
            let chunk = random_index(one.chunk_grid_shape(), rng);
            one.erase_chunk(&chunk).unwrap();
        }
        Step::Torn => {
            let shards: Vec<u64> = std::iter::zip(&layout.shape, &layout.shard)
                .map(|(shape, shard)| shape.div_ceil(*shard))
                .collect();
            let shard = random_index(&shards, rng);
            let parts: Vec<String> = shard.iter().map(u64::to_string).collect();
            let c = if layout.encoding == "default" {
                "c/"
            } else {
                ""
            };
            let key = format!(
                "group/array/{c}{}.frame/00000001.00000000000000FF.T{}.chunk",
                parts.join("/"),
                rng.below(1000)
            );
            let key = StoreKey::new(key).unwrap();
            store.set(&key, b"half of".to_vec().into()).unwrap();
        }
        Step::Consolidate => {
            let counts = std::iter::zip(&layout.shape, &layout.shard);
            let counts: Vec<u64> = counts
                .map(|(shape, shard)| shape.div_ceil(*shard))
                .collect();
            let shard = random_index(&counts, rng);
            other.storage().consolidate(&shard).unwrap();
        }
        Step::ConsolidateAll => drop(one.storage().consolidate_all(&|_| {}).unwrap()),
    }
}

/// Compares `reader` with the array over the adapter.
fn check<S: ReadableWritableListableStorageTraits + ?Sized + 'static>(
    reader: &ArrayReader<S>,
    view: &View<S>,
    rng: &mut Rng,
) {
    let all: Vec<u8> = view.retrieve_array_subset(&view.subset_all()).unwrap();
    assert_eq!(reader.read::<u8>(&view.subset_all()).unwrap(), all);
    let subset = random_box(view.shape(), rng);
    let expected: Vec<u8> = view.retrieve_array_subset(&subset).unwrap();
    assert_eq!(reader.read::<u8>(&subset).unwrap(), expected, "{subset}");

    let shape: Vec<u64> = view.shape().iter().map(|d| 1 + rng.below(*d)).collect();
    let origin = |rng: &mut Rng| {
        let room = std::iter::zip(view.shape(), &shape).map(|(all, part)| all - part + 1);
        room.map(|room| rng.below(room)).collect::<Vec<u64>>()
    };
    let origins = [origin(rng), origin(rng), origin(rng)];
    let len = shape.iter().product::<u64>() as usize;
    let mut output = vec![0_u8; 3 * len];
    reader.read_boxes(&origins, &shape, &mut output).unwrap();
    for (origin, found) in origins.iter().zip(output.chunks(len)) {
        let subset = ArraySubset::new_with_start_shape(origin.clone(), shape.clone()).unwrap();
        let expected: Vec<u8> = view.retrieve_array_subset(&subset).unwrap();
        assert_eq!(found, expected, "{subset}, of several boxes");
    }
    let slices = reader.iter_slices::<u8>(NonZeroU64::MIN).unwrap();
    let slices: Vec<Vec<u8>> = slices.collect::<Result<_, _>>().unwrap();
    assert_eq!(slices.concat(), all);
}

/// The same, of a store that is awaited.
async fn check_awaited(memory: Arc<MemoryStore>, layout: &Layout, all: &[u8], rng: &mut Rng) {
    let store = Arc::new(SyncToAsyncStorageAdapter::new(memory, Here));
    let sparse = SparseShardStore::async_open(store, layout.path).await;
    let reader = sparse.unwrap().async_reader().await.unwrap();
    let reader = reader.with_requests(1 + rng.below(4) as usize).build();
    let reader = reader.unwrap();
    let subset = reader.array().subset_all();
    assert_eq!(reader.async_read::<u8>(&subset).await.unwrap(), all);
}

fn run<S: ReadableWritableListableStorageTraits + ?Sized + 'static>(
    store: &Arc<S>,
    layout: &Layout,
    open: impl Fn() -> SparseShardStore<S>,
    steps: &[Step],
    rng: &mut Rng,
) -> Vec<u8> {
    let views = [(); 2].map(|()| Array::open(Arc::new(open()), layout.path).unwrap());
    let mut builder = open().reader().unwrap();
    if rng.one_in(3) {
        // Requests of single subchunks.
        builder = builder.with_memory(rng.below(100) as usize).with_gap(0);
    }
    if rng.one_in(4) {
        builder = builder.with_requests(1).with_index_cache(0);
    }
    let reader = builder.build().unwrap();
    for next in steps {
        step(next, &**store, layout, [&views[0], &views[1]], rng);
        check(&reader, &views[0], rng);
    }
    let view = &views[1];
    view.retrieve_array_subset(&view.subset_all()).unwrap()
}

proptest! {
    #![proptest_config(effort::config(100))]

    #[test]
    fn any_boxes_after_any_steps(
        layout in layouts(),
        opening in prop_oneof![
            4 => Just(Opening::InMemory),
            1 => Just(Opening::Renaming),
            1 => Just(Opening::OnFilesystem),
        ],
        steps in steps(),
        seed: u64,
    ) {
        let mut rng = Rng(seed | 1);
        let rng = &mut rng;
        if matches!(opening, Opening::InMemory) {
            let store = Arc::new(MemoryStore::new());
            layout.create(&*store);
            let open = || SparseShardStore::open(store.clone(), layout.path).unwrap();
            let all = run(&store, &layout, open, &steps, rng);
            futures::executor::block_on(check_awaited(store.clone(), &layout, &all, rng));
            return Ok(());
        }
        let (_folder, store) = files();
        layout.create(&*store);
        run(&store, &layout, || match opening {
            Opening::OnFilesystem => SparseShardStore::on_filesystem(store.clone(), layout.path),
            _ => SparseShardStore::open_renaming(store.clone(), layout.path, store.clone()),
        }.unwrap(), &steps, rng);
    }
}

type Watched = Faulty<FilesystemStore>;

/// Four shards of 16 subchunks: without a frame, with one, with nothing but one, and none at all.
fn watched() -> (tempfile::TempDir, Arc<Watched>, Layout, Vec<u8>) {
    let (folder, store) = files();
    let layout = Layout::new(&[8, 8], &[4, 4], &[1, 1]);
    layout.create(&*store);
    let view = Array::open(layout.open(&store), layout.path).unwrap();
    let mut all = vec![0; 64];
    let mut write = |rows: Range<u64>, columns: Range<u64>, element: u8| {
        for row in rows {
            for column in columns.clone() {
                view.store_chunk(&[row, column], vec![element]).unwrap();
                all[(row * 8 + column) as usize] = element;
            }
        }
    };
    write(0..4, 4..8, 1);
    write(4..8, 0..3, 2);
    view.storage().consolidate_all(&|_| {}).unwrap();
    write(0..2, 0..2, 3);
    write(4..5, 2..4, 4);
    (folder, Arc::new(Faulty::new(store)), layout, all)
}

fn open(store: &Arc<Watched>, layout: &Layout) -> SparseShardStore<Watched> {
    SparseShardStore::open(store.clone(), layout.path).unwrap()
}

/// The prefixes that were listed since the store was configured, in order.
fn listed(store: &Watched) -> Vec<String> {
    let mut listed: Vec<_> = store
        .requests()
        .into_iter()
        .filter(|request| request.operation == Operation::List)
        .map(|request| request.key)
        .collect();
    listed.sort();
    store.work();
    listed
}

#[test]
fn one_listing_for_each_frame_and_call() {
    let (_folder, store, layout, all) = watched();
    let frames = |shards: &[&str]| -> Vec<String> {
        let frames = shards.iter();
        frames
            .map(|shard| format!("group/array/c/{shard}.frame/"))
            .collect()
    };
    let reader = open(&store, &layout).reader().unwrap().build().unwrap();
    assert!(reader.explain().contains("frame"), "{}", reader.explain());
    store.work();
    for _ in 0..2 {
        assert_eq!(reader.read::<u8>(&[0..8, 0..8]).unwrap(), all);
        assert_eq!(listed(&store), frames(&["0/0", "0/1", "1/0", "1/1"]));
    }
    reader.read::<u8>(&[3..5, 2..4]).unwrap();
    assert_eq!(listed(&store), frames(&["0/0", "1/0"]));
    let mut output = [0; 12];
    let origins = [[4, 4], [5, 5], [6, 6]];
    reader
        .read_boxes::<u8>(&origins, &[2, 2], &mut output)
        .unwrap();
    assert_eq!(listed(&store), frames(&["1/1"]));
    // All that is wanted is in the frame: the shard is not read.
    store.work();
    assert_eq!(reader.read::<u8>(&[0..2, 0..2]).unwrap(), [3; 4]);
    let requests = store.requests();
    assert_eq!(
        requests.len(),
        5,
        "a listing and four objects: {requests:?}"
    );
    // An adapter with a listing age shares its listings.
    let old = open(&store, &layout).with_listing_age(Duration::from_hours(1));
    let reader = old.reader().unwrap().build().unwrap();
    store.work();
    for expected in [4, 0] {
        assert_eq!(reader.read::<u8>(&[0..8, 0..8]).unwrap(), all);
        assert_eq!(listed(&store).len(), expected);
    }
    // The listed versions are gone: the frames are listed again.
    open(&store, &layout).consolidate_all(&|_| {}).unwrap();
    store.work();
    assert_eq!(reader.read::<u8>(&[0..8, 0..8]).unwrap(), all);
    assert_eq!(listed(&store), frames(&["0/0", "1/0"]));
}

/// A request that fails is an error, or made again: its subchunks are never fill values.
#[test]
fn stores_that_fail() {
    let (_folder, store, layout, all) = watched();
    let reader = open(&store, &layout).reader().unwrap().build().unwrap();
    let read = || reader.read::<u8>(&[0..8, 0..8]);
    store.work();
    read().unwrap();
    let count = store.requests().len();
    for number in 0..count + 2 {
        store.fail_at(number, Fault::Refused);
        if let Ok(read) = read() {
            assert_eq!(read, all, "{number}");
        }
        store.fail(move |request| (request.number >= number).then_some(Fault::Refused));
        match read() {
            Ok(read) => assert!(number >= count && read == all, "{number}"),
            Err(error) => assert!(matches!(error, ReaderError::Store { .. }), "{error}"),
        }
    }
    for (operation, key) in [
        (Operation::List, "c/1/1.frame"),
        (Operation::Get, ".chunk"),
        (Operation::Get, "c/0/1"),
    ] {
        store.fail(move |request| {
            let is_one = request.operation == operation && request.key.contains(key);
            is_one.then_some(Fault::Refused)
        });
        let error = read().unwrap_err();
        assert!(matches!(error, ReaderError::Store { .. }), "{error}");
    }
    store.work();
    assert_eq!(read().unwrap(), all);
    drop(layout);
}

/// Before any request of a read, shards are consolidated, and subchunks are written and consolidated.
#[test]
fn consolidated_in_the_middle_of_a_read() {
    for writes in [false, true] {
        for renames in [false, true] {
            for number in 0.. {
                let (_folder, store, layout, all) = watched();
                let sparse = if renames {
                    SparseShardStore::open_renaming(store.clone(), layout.path, store.clone())
                        .unwrap()
                } else {
                    open(&store, &layout)
                };
                let reader = sparse.reader().unwrap().build().unwrap();
                assert_eq!(reader.read::<u8>(&[0..8, 0..8]).unwrap(), all);
                // Not through the store that waits for the request.
                let inner = store.inner().clone();
                let other = SparseShardStore::on_filesystem(inner, layout.path).unwrap();
                let view = Array::open(Arc::new(other), layout.path).unwrap();
                let mut after = all.clone();
                if writes {
                    (after[0], after[7], after[4 * 8]) = (9, 0, 9);
                }
                store.fail(move |request| {
                    if request.number == number {
                        if writes {
                            view.store_chunk(&[0, 0], vec![9_u8]).unwrap();
                            view.erase_chunk(&[0, 7]).unwrap();
                            view.store_chunk(&[4, 0], vec![9_u8]).unwrap();
                        }
                        view.storage().consolidate_all(&|_| {}).unwrap();
                    }
                    None
                });
                let read = reader.read::<u8>(&[0..8, 0..8]).unwrap();
                let is_over = store.requests().len() <= number;
                for (at, element) in read.into_iter().enumerate() {
                    assert!([all[at], after[at]].contains(&element), "{number}: {at}");
                }
                if is_over {
                    break;
                }
                assert_eq!(reader.read::<u8>(&[0..8, 0..8]).unwrap(), after);
            }
        }
    }
}

/// At each request for a part of the shard, another shard takes its place.
#[test]
fn replaced_for_ever() {
    let (_folder, store, layout, all) = watched();
    let reader = open(&store, &layout).reader().unwrap().build().unwrap();
    let inner = store.inner().clone();
    let other = SparseShardStore::on_filesystem(inner, layout.path).unwrap();
    let view = Array::open(Arc::new(other), layout.path).unwrap();
    let mut times = 0;
    store.fail(move |request| {
        // Subchunks 0 and 1 of another shard, so that the index changes each time.
        if request.key.ends_with("c/0/1") && times < 12 {
            times += 1;
            for column in 4..6 {
                // One of the two is erased.
                let element = u8::from((times + column) % 2 == 1);
                view.store_chunk(&[0, column], vec![element]).unwrap();
            }
            view.storage().consolidate_all(&|_| {}).unwrap();
        }
        None
    });
    let read = reader.read::<u8>(&[0..4, 4..8]).unwrap();
    assert!(reader.metrics().replaced >= 3, "{:?}", reader.metrics());
    assert!(read[..2].iter().all(|&element| element <= 1));
    assert_eq!(read[2..], [1; 14]);
    assert_eq!(all[6], 1);
}

#[test]
fn frames_that_are_empty_or_not_there() {
    for on_filesystem in [false, true] {
        let (_folder, store) = files();
        let layout = Layout::new(&[8], &[4], &[1]);
        layout.create(&*store);
        let sparse = if on_filesystem {
            SparseShardStore::on_filesystem(store.clone(), layout.path).unwrap()
        } else {
            SparseShardStore::open(store.clone(), layout.path).unwrap()
        };
        let reader = sparse.reader().unwrap().build().unwrap();
        let read = || reader.read::<u8>(&[0..8]).unwrap();
        assert_eq!(read(), [0; 8], "nothing is stored");
        let view = Array::open(Arc::new(sparse.clone()), layout.path).unwrap();
        view.store_chunk(&[1], vec![5_u8]).unwrap();
        assert_eq!(read(), [0, 5, 0, 0, 0, 0, 0, 0], "a frame and no shard");
        sparse.consolidate_all(&|_| {}).unwrap();
        let frame = StorePrefix::new("group/array/c/0.frame/").unwrap();
        assert!(store.list_prefix(&frame).unwrap().is_empty());
        assert_eq!(read(), [0, 5, 0, 0, 0, 0, 0, 0], "an empty folder");
        view.erase_chunk(&[1]).unwrap();
        assert_eq!(read(), [0; 8], "a tombstone");
        sparse.consolidate_all(&|_| {}).unwrap();
        assert_eq!(read(), [0; 8], "the shard was erased");
    }
}

#[test]
fn a_version_that_cannot_be_decoded_is_damage() {
    let store = Arc::new(MemoryStore::new());
    let mut layout = Layout::new(&[8], &[4], &[2]);
    layout.codecs = json!([{ "name": "bytes" }, { "name": "crc32c" }]);
    layout.create(&*store);
    let sparse = layout.open(&store);
    let view = Array::open(sparse.clone(), layout.path).unwrap();
    view.store_array_subset(&view.subset_all(), vec![7_u8; 8])
        .unwrap();
    sparse.consolidate(&[1]).unwrap().unwrap();
    // Whole objects, whose content is none of the codecs.
    let chunk = |chunk: u64| StoreKey::new(format!("group/array/c/{chunk}")).unwrap();
    sparse.set(&chunk(1), Bytes::from_static(b"none")).unwrap();
    sparse.set(&chunk(3), Bytes::from_static(b"none")).unwrap();
    sparse.consolidate(&[1]).unwrap().unwrap();
    let reader = sparse.reader().unwrap().build().unwrap();
    for (subset, shard) in [([2..4], "c/0"), ([6..8], "c/1")] {
        let error = reader.read::<u8>(&subset).unwrap_err();
        let ReaderError::Damaged(damage) = error else {
            panic!("{error}");
        };
        assert!(damage.key.as_str().ends_with(shard), "{damage}");
        assert_eq!(damage.subchunk, Some(1), "{damage}");
    }
    let reader = sparse.reader().unwrap().with_damaged_as_fill_value(true);
    let mut elements = [1_u8; 8];
    let report = reader
        .build()
        .unwrap()
        .read_into(&[0..8], &mut elements)
        .unwrap();
    assert_eq!(
        (elements, report.damaged.len()),
        ([7, 7, 0, 0, 7, 7, 0, 0], 2)
    );
}

/// What is newer than the shard is read.
#[test]
fn a_shard_without_an_index_is_damage() {
    let store = Arc::new(MemoryStore::new());
    let layout = Layout::new(&[8], &[4], &[2]);
    layout.create(&*store);
    let sparse = layout.open(&store);
    let view = Array::open(sparse.clone(), layout.path).unwrap();
    let all = view.subset_all();
    view.store_array_subset(&all, vec![7_u8; 8]).unwrap();
    sparse.consolidate_all(&|_| {}).unwrap();
    view.store_chunk(&[1], vec![8_u8; 2]).unwrap();
    let shard = StoreKey::new("group/array/c/0").unwrap();
    for bad in [
        "",
        "no index",
        "longer than an index, and none of this shard",
    ] {
        store.set(&shard, bad.into()).unwrap();
        let reader = sparse.reader().unwrap().build().unwrap();
        assert_eq!(reader.read::<u8>(&[2..8]).unwrap(), [8, 8, 7, 7, 7, 7]);
        let error = reader.read::<u8>(&all).unwrap_err();
        let ReaderError::Damaged(damage) = error else {
            panic!("{error}");
        };
        assert_eq!((&damage.key, damage.subchunk), (&shard, None));
        let reader = sparse.reader().unwrap().with_damaged_as_fill_value(true);
        let reader = reader.build().unwrap();
        let mut found = [1_u8; 8];
        let report = reader.read_into(&all, &mut found).unwrap();
        assert_eq!(found, [0, 0, 8, 8, 7, 7, 7, 7]);
        assert_eq!(report.damaged.len(), 1, "{report:?}");
        assert_eq!(report.damaged[0].subchunk, None);
    }
}

#[test]
fn an_array_that_grows_is_followed() {
    let store = Arc::new(MemoryStore::new());
    let layout = Layout::new(&[4, 2], &[4, 2], &[1, 2]);
    layout.create(&*store);
    let sparse = layout.open(&store);
    let mut view = Array::open(sparse.clone(), layout.path).unwrap();
    view.store_array_subset(&view.subset_all(), vec![1_u8; 8])
        .unwrap();
    let reader = sparse.reader().unwrap().build().unwrap();
    let follow = |until| {
        let poll = Duration::from_millis(1);
        reader.follow::<u8>(NonZeroU64::MIN, poll, until).unwrap()
    };
    let mut slices = follow(Until::length(6));
    assert_eq!(slices.next().unwrap().unwrap(), [1, 1]);
    view.set_shape(vec![6, 2]).unwrap();
    view.store_chunk(&[5, 0], vec![2_u8; 2]).unwrap();
    view.store_metadata().unwrap();
    let rest: Vec<u8> = slices.flat_map(Result::unwrap).collect();
    assert_eq!(rest, [1, 1, 1, 1, 1, 1, 0, 0, 2, 2]);
    // Shards of another kind have other frames.
    let mut metadata = layout.metadata();
    metadata["shape"] = json!([8, 2]);
    metadata["codecs"][0]["configuration"]["chunk_shape"] = json!([2, 2]);
    let metadata = serde_json::to_vec(&metadata).unwrap();
    store.set(&layout.key(), metadata.into()).unwrap();
    let error = follow(Until::length(9)).find_map(Result::err).unwrap();
    assert!(error.to_string().contains("sharded differently"), "{error}");
    let error = sparse.reader().unwrap_err().to_string();
    assert!(error.contains("sharded differently"), "{error}");
}

#[test]
fn readers_that_would_not_see_frames_are_refused() {
    let store = Arc::new(MemoryStore::new());
    let layout = Layout::new(&[8], &[4], &[2]);
    layout.create(&*store);
    let sparse = layout.open(&store);
    let reader = sparse.reader().unwrap().with_subchunk_cache(1);
    let error = reader.build().unwrap_err().to_string();
    assert!(error.contains("with_subchunk_cache"), "{error}");
    let mut metadata = layout.metadata();
    metadata["data_type"] = json!("string");
    metadata["fill_value"] = json!("");
    metadata["codecs"][0]["configuration"]["codecs"] = json!([{ "name": "vlen-utf8" }]);
    let metadata = serde_json::to_vec(&metadata).unwrap();
    store.set(&layout.key(), metadata.into()).unwrap();
    let error = layout.open(&store).reader().unwrap().build().unwrap_err();
    assert!(matches!(error, ReaderError::Unsupported { .. }), "{error}");
    store.erase(&layout.key()).unwrap();
    let error = sparse.reader().unwrap_err().to_string();
    assert!(error.contains("group/array/zarr.json"), "{error}");
}
