//! A forked child has a copy of a reader, and none of the threads.

use std::sync::Arc;
use std::time::Duration;

use zarrs::array::{ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;

use super::*;
use crate::codec::CudaShardingCodecBuilder;

#[test]
fn a_reader_works_in_a_forked_child() {
    let directory = tempfile::TempDir::new().unwrap();
    let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    let subchunk = [16, 16].map(|extent| extent.try_into().unwrap()).to_vec();
    let mut codec = CudaShardingCodecBuilder::new(subchunk, &data_type::uint16());
    codec.bytes_to_bytes_codecs(vec![Arc::new(zarrs::array::codec::ZstdCodec::new(
        1, false,
    ))]);
    let array = ArrayBuilder::new(vec![256, 256], vec![64, 64], data_type::uint16(), 0_u16)
        .array_to_bytes_codec(codec.build_arc().unwrap())
        .build(store.clone(), "/")
        .unwrap();
    array.store_metadata().unwrap();
    let elements: Vec<u16> = (0..=u16::MAX).collect();
    array
        .store_array_subset(&array.subset_all(), &elements)
        .unwrap();
    // Files are read without a lock of the store.
    let builder = ArrayReader::builder(&array).on_filesystem(&store);
    let reader = builder.with_subchunk_cache(1 << 14).build().unwrap();
    let mut slices = reader.iter_slices::<u16>(32.try_into().unwrap()).unwrap();
    let is_read = || {
        reader
            .read::<u16>(&array.subset_all())
            .is_ok_and(|read| read == elements)
    };

    // Threads of the parent are in the middle of reading, and hold its locks.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(is_read());
                }
            });
        }
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(3));
            // SAFETY: the child takes no lock that another thread may hold but those that this test
            // is about, and the allocator's, which glibc hands over well. It ends by a signal if it
            // hangs, and without running what the parent has to run at its end.
            #[allow(unsafe_code)]
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above.
                #[allow(unsafe_code)]
                unsafe {
                    libc::alarm(30);
                }
                let is_refused = slices.next().is_some_and(|block| block.is_err());
                let status = i32::from(!is_read()) + 2 * i32::from(!is_refused);
                // SAFETY: as above.
                #[allow(unsafe_code)]
                unsafe {
                    libc::_exit(status);
                }
            }
            let mut status = 0;
            // SAFETY: the child is this thread's own, and waited for once.
            #[allow(unsafe_code)]
            unsafe {
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            }
            assert!(libc::WIFEXITED(status), "the child ended with {status:#x}");
            assert_eq!(libc::WEXITSTATUS(status), 0, "what the child read");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(slices.next().unwrap().unwrap(), elements[..32 * 256]);
}
