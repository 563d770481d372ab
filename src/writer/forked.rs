//! A forked child has a copy of the writer, and none of its threads. What it does with the copy leaves the
//! parent's stream as it is.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use zarrs::array::{Array, ArrayBuilder, ArrayBytes, data_type};
use zarrs::filesystem::FilesystemStore;

use super::*;
use crate::codec::CudaShardingCodecBuilder;
use crate::options::{Backend, Options};

/// Slices of a shard. Each is an epoch.
const SHARD: u8 = 4;
/// Bytes of a slice.
const SLICE: usize = 64;

fn slices(count: u8) -> Vec<u8> {
    (1..=count).flat_map(|slice| [slice; SLICE]).collect()
}

/// Calls the writer in the child. Returns the exit status: 0 if each call says that the process was forked,
/// or the number of the first call that does not.
fn in_child(mut writer: ArrayWriter) -> i32 {
    let is_told = |result: Result<(), WriterError>| {
        result.is_err_and(|error| error.to_string().contains("forked"))
    };
    let answers = [
        is_told(writer.append_bytes(&[1; SLICE])),
        is_told(writer.try_append_bytes(&[1; SLICE]).map(drop)),
        is_told(writer.flush()),
        is_told(writer.finish().map(drop)),
        is_told(writer.abort().map(drop)),
    ];
    (1..)
        .zip(answers)
        .find_map(|(number, is_told)| (!is_told).then_some(number))
        .unwrap_or(0)
}

#[test]
fn a_forked_child_leaves_the_stream_of_its_parent_alone() {
    let directory = tempfile::TempDir::new().unwrap();
    let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    let shape = vec![0, 8, 8];
    let subchunk = [1, 8, 8].map(|extent| extent.try_into().unwrap());
    let mut codec = CudaShardingCodecBuilder::new(subchunk.to_vec(), &data_type::uint8());
    codec.options(Options::default().with_backend(Backend::Host));
    let array = ArrayBuilder::new(shape, vec![SHARD.into(), 8, 8], data_type::uint8(), 0_u8)
        .array_to_bytes_codec(codec.build_arc().unwrap())
        .build(store.clone(), "/")
        .unwrap();
    array.store_metadata().unwrap();
    let writer = ArrayWriter::builder(&array).with_epochs_per_batch(1);
    let mut writer = writer.with_atomic_rename(store.clone()).build().unwrap();
    // A shard is in the middle of being written.
    writer.append_bytes(&slices(2)).unwrap();
    let temporary = directory.path().join("c/0/0/0.tmp");
    let begin = Instant::now();
    while !temporary.exists() {
        assert!(begin.elapsed() < Duration::from_mins(1), "no temporary");
        thread::sleep(Duration::from_millis(1));
    }

    // SAFETY: the child takes no lock that another thread may hold but the allocator's, which glibc hands
    // over well. It ends by a signal if it hangs, and without running what the parent has to run at its end.
    #[allow(unsafe_code)]
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            libc::alarm(30);
            libc::_exit(in_child(writer));
        }
    }
    let mut status = 0;
    // SAFETY: the child is this thread's own, and waited for once.
    #[allow(unsafe_code)]
    unsafe {
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert!(libc::WIFEXITED(status), "the child ended with {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "what the child was told");

    assert!(temporary.exists());
    writer.append_bytes(&slices(SHARD)[2 * SLICE..]).unwrap();
    writer.finish().unwrap();
    let array = Array::open(store, "/").unwrap();
    let read: ArrayBytes = array.retrieve_chunk(&[0, 0, 0]).unwrap();
    assert_eq!(read.into_fixed().unwrap(), slices(SHARD));
}
