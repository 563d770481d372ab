//! Arrays that grow while a reader follows them.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::reader::{ArrayReader, Cancel, ReaderError, Until};
use zarrs_cuda::writer::ArrayWriter;

const SLICE: usize = 6;
const POLL: Duration = Duration::from_millis(5);

fn slices(count: u64) -> NonZeroU64 {
    NonZeroU64::new(count).unwrap()
}

/// An array of no slices, in shards of 8 slices and subchunks of 2.
fn array(store: &Arc<FilesystemStore>) -> Array<FilesystemStore> {
    let subchunk = [2, 3].map(|extent| extent.try_into().unwrap()).to_vec();
    let codec = CudaShardingCodecBuilder::new(subchunk, &data_type::uint16());
    let mut builder = ArrayBuilder::new(vec![0, 6], vec![8, 6], data_type::uint16(), 0_u16);
    builder.array_to_bytes_codec(codec.build_arc().unwrap());
    let array = builder.build(store.clone(), "/stream").unwrap();
    array.store_metadata().unwrap();
    array
}

fn slice(number: u64) -> Vec<u16> {
    vec![number as u16; SLICE]
}

#[test]
fn a_reader_follows_a_writer_to_its_end() {
    let folder = tempfile::TempDir::new().unwrap();
    let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let array = array(&store);
    let reader = ArrayReader::builder(&array)
        .on_filesystem(&store)
        .build()
        .unwrap();
    let followed = reader
        .follow::<u16>(slices(5), POLL, Until::length(43))
        .unwrap();
    let mut writer = ArrayWriter::builder(&array)
        .with_atomic_rename(store)
        .with_metadata_interval(Duration::ZERO)
        .build()
        .unwrap();
    let writing = std::thread::spawn(move || {
        for number in 0..50 {
            writer.append(&slice(number)).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        writer.finish().unwrap();
    });
    let blocks: Vec<Vec<u16>> = followed.collect::<Result<_, _>>().unwrap();
    writing.join().unwrap();
    let lens: Vec<usize> = blocks.iter().map(|block| block.len() / SLICE).collect();
    assert_eq!(lens, [5, 5, 5, 5, 5, 5, 5, 5, 3]);
    let expected: Vec<u16> = (0..43).flat_map(slice).collect();
    assert_eq!(blocks.concat(), expected);
}

#[test]
fn following_ends_at_a_deadline_or_when_it_is_cancelled() {
    let folder = tempfile::TempDir::new().unwrap();
    let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let array = array(&store);
    let mut writer = ArrayWriter::builder(&array).build().unwrap();
    (0..8).for_each(|number| writer.append(&slice(number)).unwrap());
    writer.finish().unwrap();
    let reader = ArrayReader::builder(&array).build().unwrap();

    let deadline = Instant::now() + Duration::from_millis(50);
    let until = Until::forever().or_deadline(deadline);
    let blocks = reader.follow::<u16>(slices(3), POLL, until).unwrap();
    let lens: Vec<usize> = blocks.map(|block| block.unwrap().len() / SLICE).collect();
    assert_eq!(
        lens,
        [3, 3, 2],
        "the last ones, when no more are waited for"
    );
    assert!(Instant::now() >= deadline);

    let cancel = Cancel::new();
    let until = Until::forever().or_cancel(&cancel);
    // Only the end of the poll, or the handle, can wake the thread.
    let mut blocks = reader
        .follow::<u16>(slices(8), Duration::from_hours(1), until)
        .unwrap();
    assert_eq!(blocks.next().unwrap().unwrap().len(), 8 * SLICE);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            cancel.cancel();
        });
        assert!(blocks.next().is_none());
    });
    assert!(begin.elapsed() < Duration::from_mins(1));
    // An iterator that is dropped while its thread waits.
    drop(
        reader
            .follow::<u16>(slices(9), Duration::from_hours(1), Until::forever())
            .unwrap(),
    );
}

#[test]
fn an_array_that_becomes_another_one_is_an_error() {
    let folder = tempfile::TempDir::new().unwrap();
    let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let first = array(&store);
    let reader = ArrayReader::builder(&first).build().unwrap();
    let mut blocks = reader
        .follow::<u16>(slices(1), POLL, Until::forever())
        .unwrap();
    let mut builder = ArrayBuilder::new(vec![4, 7], vec![2, 7], data_type::uint16(), 0_u16);
    builder.subchunk_shape(vec![1, 7]);
    builder
        .build(store, "/stream")
        .unwrap()
        .store_metadata()
        .unwrap();
    let error = blocks.next().unwrap().unwrap_err();
    assert!(matches!(error, ReaderError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("[4, 7]"), "{error}");
    assert!(blocks.next().is_none(), "it ends after an error");
}

#[test]
fn the_longest_blocks_and_waits() {
    let folder = tempfile::TempDir::new().unwrap();
    let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let array = array(&store);
    let mut writer = ArrayWriter::builder(&array).build().unwrap();
    (0..20).for_each(|number| writer.append(&slice(number)).unwrap());
    writer.finish().unwrap();
    let array = Array::open(store.clone(), "/stream").unwrap();
    let reader = ArrayReader::builder(&array).build().unwrap();
    let all: Vec<u16> = (0..20).flat_map(slice).collect();
    let blocks: Vec<Vec<u16>> = reader
        .iter_slices(NonZeroU64::MAX)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(blocks, [all]);

    let cancel = Cancel::default();
    let until = Until::forever().or_cancel(&cancel);
    let mut followed = reader
        .follow::<u16>(slices(10), Duration::MAX, until)
        .unwrap();
    assert_eq!(followed.next().unwrap().unwrap().len(), 10 * SLICE);
    assert_eq!(followed.next().unwrap().unwrap().len(), 10 * SLICE);
    cancel.cancel();
    assert!(followed.next().is_none());
}

/// Metadata that are half written are read again, but not for ever.
#[test]
fn metadata_that_cannot_be_read() {
    let folder = tempfile::TempDir::new().unwrap();
    let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let array = array(&store);
    let reader = ArrayReader::builder(&array).build().unwrap();
    let path = folder.path().join("stream/zarr.json");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let poll = Duration::from_millis(200);
    let mut followed = reader
        .follow::<u16>(slices(2), poll, Until::length(2))
        .unwrap();
    std::thread::sleep(poll / 4);
    std::fs::write(&path, &whole).unwrap();
    let mut writer = ArrayWriter::builder(&array).build().unwrap();
    (0..2).for_each(|number| writer.append(&slice(number)).unwrap());
    writer.finish().unwrap();
    let block = followed.next().unwrap().unwrap();
    assert_eq!(block, [slice(0), slice(1)].concat());

    std::fs::write(&path, "{").unwrap();
    let mut followed = reader
        .follow::<u16>(slices(2), POLL, Until::forever())
        .unwrap();
    assert!(followed.next().unwrap().is_err());
    assert!(followed.next().is_none());
}
