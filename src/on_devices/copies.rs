//! The copies of encoded bytes on the host on their way to a device: none from files, one from other stores.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ReadableStorageTraits, ReadableWritableStorageTraits};
use zarrs_cuda_engine::fakes::Numbers;

use super::reading::{OnDevice, SHAPE, array_of, bytes, bytes_of, fill, options, some_box, zstd};
use super::*;
use crate::codec::CudaShardingCodec;
use crate::options::{Backend, Options};
use crate::reader::ArrayReader;
use crate::writer::{BoxWriter, ShardUpdate};
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
    counted(on, || {
        for subset in &boxes {
            let tensor = reader.read_device(subset).expect("reads");
            let expected: Vec<u16> = reader.read(subset).expect("reads");
            assert!(on.bytes(&tensor) == bytes_of(&expected), "{subset}");
        }
    })
}

fn counted(on: &OnDevice, work: impl FnOnce()) -> Counted {
    let before = on.counts();
    work();
    let after = on.counts();
    assert_eq!(after.subchunks_read_on_host, before.subchunks_read_on_host);
    let decoded = |counts: &DeviceMetrics| counts.coded_bytes.decode_in;
    Counted {
        copied: after.read_bytes_copied - before.read_bytes_copied,
        decoded: decoded(&after) - decoded(&before),
    }
}

/// Where the bytes of files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFiles {
    /// In page-locked memory, from which all of them are copied.
    Slabs,
    /// In page-locked memory, of which no bytes that lie together are enough to be copied from there.
    Scattered,
    /// In other memory.
    Elsewhere,
}

/// Reads the array of `chain` from files and from memory, and compares the counts.
fn check(
    schedule: Schedule,
    (codecs, is_frame): &(Value, bool),
    options: &Options,
    place: InFiles,
) {
    let least_direct = match place {
        InFiles::Scattered => Tuning::DEFAULT.least_direct,
        _ => 1,
    };
    let tuning = Tuning {
        least_direct,
        ..Tuning::TINY
    };
    let on = OnDevice::on(&simulation(schedule), tuning);
    let options = options.clone().with_device_decode(true);
    let in_memory = Arc::new(MemoryStore::new());
    fill(&in_memory, codecs);
    let array = array_of(&in_memory, codecs, options.clone(), on.engines.clone());
    let mut counts = Vec::new();
    for gap in [0, 1 << 20] {
        let reader = ArrayReader::builder(&array).with_gap(gap).build();
        counts.push(read(&on, &reader.expect("suits")));
    }
    let [from_memory, with_gaps] = &counts[..] else {
        panic!("two reads");
    };
    assert_eq!(with_gaps.copied, from_memory.copied, "{with_gaps:?}");
    drop(array);

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
        // Values are copied to page-locked memory or, without it, to other memory.
        let (caller, ring) = (
            from_memory.decoded,
            from_memory.copied - from_memory.decoded,
        );
        let is_once = match (place, is_frame) {
            (InFiles::Slabs, _) => ring == 0,
            (_, true) => ring == caller,
            // Checksums behind elements stay on the host.
            (_, false) => (caller * 9 / 10..=caller).contains(&ring),
        };
        assert!(is_once && caller > 0, "{what}");
        let expected = match place {
            InFiles::Slabs => 0,
            InFiles::Scattered => ring,
            InFiles::Elsewhere => caller + ring,
        };
        assert_eq!(from_files.copied, expected, "{what}");
    }
    drop(array);
    on.end();
}

#[test]
fn bytes_of_files_are_not_copied_and_those_of_other_stores_once() {
    for chain in &chains() {
        for schedule in [Schedule::Eager, Schedule::Latest] {
            check(schedule, chain, &options(), InFiles::Slabs);
        }
    }
}

#[test]
fn few_bytes_that_lie_apart_are_copied_once() {
    for chain in &chains() {
        check(Schedule::Latest, chain, &options(), InFiles::Scattered);
    }
}

/// A quarter of the page-locked memory has no room for a page.
#[test]
fn without_room_in_page_locked_memory_bytes_are_copied() {
    for chain in &chains() {
        let options = options().with_pinned_memory((16 << 10) - 1);
        check(Schedule::Latest, chain, &options, InFiles::Elsewhere);
    }
}

/// Subchunks of 32 KiB and more, with the parameters of GPUs, are not copied wherever they lie.
#[test]
fn large_subchunks_are_not_copied() {
    const EXTENT: u64 = 32;
    let configuration = json!({
        "chunk_shape": [16, 32, 32], "codecs": [bytes("little")],
        "index_codecs": [bytes("little"), { "name": "crc32c" }],
    });
    let configuration = serde_json::from_value(configuration).expect("valid");
    let on = OnDevice::on(&simulation(Schedule::Latest), Tuning::DEFAULT);
    let codec = CudaShardingCodec::new_with_configuration(&configuration, options());
    let codec = codec.expect("valid").with_engines(on.engines.clone());
    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let array = ArrayBuilder::new(
        vec![64, 64, 64],
        vec![64, 64, 64],
        data_type::uint16(),
        0_u16,
    )
    .array_to_bytes_codec(Arc::new(codec))
    .build(files.clone(), "/array")
    .expect("valid");
    array.store_metadata().expect("stores");
    let elements: Vec<u16> = (0..64 * 64 * 64_u32).map(|i| (i / 3 + 1) as u16).collect();
    array
        .store_array_subset(&array.subset_all(), elements)
        .expect("stores");
    for gap in [0, 1 << 20] {
        let reader = ArrayReader::builder(&array)
            .on_filesystem(&files)
            .with_gap(gap)
            .build()
            .expect("suits");
        // One column of subchunks, which lie apart in the shard.
        for y in [0, EXTENT] {
            let subset = [0..64, y..y + 7, 5..9];
            let expected: Vec<u16> = reader.read(&subset).expect("reads");
            let counts = counted(&on, || {
                let tensor = reader.read_device(&subset).expect("reads");
                assert!(on.bytes(&tensor) == bytes_of(&expected));
            });
            assert_eq!(counts.decoded, 4 * (32 << 10), "{counts:?}");
            assert_eq!(counts.copied, 0, "{counts:?}");
        }
    }
    drop(array);
    on.end();
}

/// Fails if `work` does not end.
fn ends(work: impl FnOnce() + Send) {
    let (tell, done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Err(mpsc::RecvTimeoutError::Timeout) = done.recv_timeout(Duration::from_mins(2))
            {
                eprintln!("a reader or a writer waits for ever");
                std::process::abort();
            }
        });
        work();
        drop(tell);
    });
}

fn elements_of<S: ?Sized + ReadableWritableStorageTraits + 'static>(array: &Array<S>) -> Vec<u16> {
    let reader = ArrayReader::builder(array).build().expect("suits");
    reader.read(&array.subset_all()).expect("reads")
}

/// Page-locked memory for a few subchunks, so that some bytes find room and others do not, while writers of the same
/// shards wait for lanes.
#[test]
fn many_readers_and_writers_share_little_page_locked_memory() {
    let on = OnDevice::new(Schedule::Latest);
    let codecs = json!([bytes("little"), zstd()]);
    let options = options()
        .with_backend(Backend::Cuda)
        .with_device_decode(true)
        .with_pinned_memory(80 << 10);
    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    fill(&files, &codecs);
    let array = array_of(&files, &codecs, options, on.engines.clone());
    let whole = array.subset_all();
    let elements = elements_of(&array);
    let expected = bytes_of(&elements);
    let has_read = AtomicBool::new(false);
    ends(|| {
        std::thread::scope(|scope| {
            let writers = scope.spawn(|| {
                let writer = BoxWriter::builder(&array)
                    .on_filesystem(&files)
                    .with_update(ShardUpdate::Rewrite)
                    .with_sync(false)
                    .build()
                    .expect("suits");
                // All shards are rewritten with the elements that they have.
                let part = [1..SHAPE[0], 1..SHAPE[1], 1..SHAPE[2]];
                let of_part: Vec<u16> = {
                    let reader = ArrayReader::builder(&array).build().expect("suits");
                    reader.read(&part).expect("reads")
                };
                while !has_read.load(Ordering::Relaxed) {
                    writer.write(&part, &of_part).expect("writes");
                }
            });
            let readers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let reader = ArrayReader::builder(&array).on_filesystem(&files);
                        let reader = reader.build().expect("suits");
                        for _ in 0..6 {
                            let tensor = reader.read_device(&whole).expect("reads");
                            assert!(on.bytes(&tensor) == expected);
                        }
                    })
                })
                .collect();
            let read = readers.into_iter().map(ScopedJoinHandle::join);
            let read: Vec<_> = read.collect();
            has_read.store(true, Ordering::Relaxed);
            assert!(read.iter().all(Result::is_ok));
            writers.join().expect("no panic");
        });
    });
    let counts = on.counts();
    assert!(counts.read_bytes_copied > 0, "{counts:?}");
    drop(array);
    on.end();
}
