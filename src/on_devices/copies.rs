//! The copies of encoded bytes on the host on their way to a device: none from files, one from other stores.

use serde_json::{Value, json};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::ReadableStorageTraits;
use zarrs::storage::store::MemoryStore;
use zarrs_cuda_engine::fakes::Numbers;

use super::reading::{OnDevice, SHAPE, array_of, bytes, bytes_of, fill, options, some_box, zstd};
use super::*;
use crate::options::Options;
use crate::reader::ArrayReader;
use zarrs_cuda_engine::cuda::DeviceMetrics;

/// Chains whose encoded subchunks go to the device as they are, and whether they are frames.
fn chains() -> [(Value, bool); 4] {
    let crc32c = || json!({ "name": "crc32c" });
    [
        (json!([bytes("little")]), false),
        (json!([bytes("big"), crc32c()]), false),
        (json!([bytes("little"), zstd()]), true),
        (json!([bytes("little"), zstd(), crc32c()]), true),
    ]
}

/// The counts of reads.
#[derive(Debug)]
struct Counted {
    /// The bytes that the host copied, and those of the subchunks that devices decoded.
    copied: u64,
    decoded: u64,
}

/// Reads boxes of an array to the device, some of them twice, and compares them with those of the host.
fn read<S: ?Sized + ReadableStorageTraits + 'static>(
    on: &OnDevice,
    reader: &ArrayReader<S>,
) -> Counted {
    let mut numbers = Numbers::new(7);
    let whole = reader.array().subset_all();
    let mut boxes = vec![whole.clone(), whole];
    boxes.extend((0..6).map(|_| some_box(SHAPE, &mut numbers)));
    let before = on.counts();
    for subset in boxes {
        let tensor = reader.read_device(&subset).expect("reads");
        let expected: Vec<u16> = reader.read(&subset).expect("reads");
        assert!(on.bytes(&tensor) == bytes_of(&expected), "{subset}");
    }
    let after = on.counts();
    assert_eq!(after.subchunks_read_on_host, before.subchunks_read_on_host);
    let decoded = |counts: &DeviceMetrics| counts.coded_bytes.decode_in;
    Counted {
        copied: after.read_bytes_copied - before.read_bytes_copied,
        decoded: decoded(&after) - decoded(&before),
    }
}

/// Reads the array of `chain` from files and from memory, and compares the counts.
fn check(
    schedule: Schedule,
    (codecs, is_frame): &(Value, bool),
    options: &Options,
    has_slabs: bool,
) {
    let on = OnDevice::new(schedule);
    let options = options.clone().with_device_decode(true);
    let in_memory = Arc::new(MemoryStore::new());
    fill(&in_memory, codecs);
    let array = array_of(&in_memory, codecs, options.clone(), on.engines.clone());
    let reader = ArrayReader::builder(&array).build().expect("suits");
    let from_memory = read(&on, &reader);
    drop((reader, array));

    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    fill(&files, codecs);
    let array = array_of(&files, codecs, options.clone(), on.engines.clone());
    // Each subchunk of a range of its own, or several in one.
    for gap in [0, 100, 1 << 20] {
        let reader = ArrayReader::builder(&array)
            .on_filesystem(&files)
            .with_gap(gap)
            .build()
            .expect("suits");
        let from_files = read(&on, &reader);
        let what = format!("{codecs}, {gap}: {from_files:?} and {from_memory:?}");
        assert_eq!(from_files.decoded, from_memory.decoded, "{what}");
        if has_slabs {
            assert_eq!(from_files.copied, 0, "{what}");
        } else {
            assert_eq!(from_files.copied, from_memory.copied, "{what}");
        }
        // Checksums behind elements stay on the host.
        let is_once = if *is_frame {
            from_memory.copied == from_memory.decoded
        } else {
            (from_memory.decoded * 9 / 10..=from_memory.decoded).contains(&from_memory.copied)
        };
        assert!(is_once && from_memory.copied > 0, "{what}");
    }
    drop(array);
    on.end();
}

#[test]
fn bytes_of_files_are_not_copied_and_those_of_other_stores_once() {
    for chain in &chains() {
        for schedule in [Schedule::Eager, Schedule::Latest] {
            check(schedule, chain, &options(), true);
        }
    }
}

/// The budget of page-locked memory has no room for bytes of files.
#[test]
fn without_room_in_page_locked_memory_bytes_are_copied_once() {
    for chain in &chains() {
        let options = options().with_pinned_memory(8 << 20);
        check(Schedule::Latest, chain, &options, false);
    }
}

/// With memory for one shard at a time, and for a few subchunks, so that some bytes find room and others do not.
#[test]
fn many_readers_share_little_page_locked_memory() {
    let on = OnDevice::new(Schedule::Latest);
    let codecs = json!([bytes("little"), zstd()]);
    let options = options()
        .with_device_decode(true)
        .with_pinned_memory((8 << 20) + (80 << 10));
    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    fill(&files, &codecs);
    let array = array_of(&files, &codecs, options, on.engines.clone());
    let whole = array.subset_all();
    let by_host = ArrayReader::builder(&array).build().expect("suits");
    let expected = bytes_of(&by_host.read::<u16>(&whole).expect("reads"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let reader = ArrayReader::builder(&array).on_filesystem(&files);
                let reader = reader.build().expect("suits");
                for _ in 0..4 {
                    let tensor = reader.read_device(&whole).expect("reads");
                    assert!(on.bytes(&tensor) == expected);
                }
            });
        }
    });
    let counts = on.counts();
    let all = counts.coded_bytes.decode_in;
    assert!(counts.read_bytes_copied < all, "{counts:?}");
    drop((by_host, array));
    on.end();
}
