//! A disk that is full, and a directory that the process may not write: shards stay as they were.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::writer::{BoxWriter, ShardUpdate};

use crate::in_its_own_process;

fn array(directory: &Path) -> Array<FilesystemStore> {
    let store = Arc::new(FilesystemStore::new(directory).unwrap());
    let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint32(), 0_u32);
    builder.subchunk_shape(vec![8, 8]);
    builder.build(store, "/a").unwrap()
}

/// Limits the size of files that this process writes.
#[allow(unsafe_code)]
fn limit(bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: ignoring the signal only makes writes return an error, and the limit is a number.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
}

fn files(directory: &Path) -> usize {
    let rows = fs::read_dir(directory.join("a/c")).unwrap();
    rows.map(|row| fs::read_dir(row.unwrap().path()).unwrap().count())
        .sum()
}

#[test]
fn a_full_disk() {
    in_its_own_process(module_path!(), "a_full_disk", || {
        // A full disk is also found before parts of a file are written in place: `store/in_place.rs` tests it.
        for update in [ShardUpdate::Rewrite, ShardUpdate::Shared] {
            let folder = TempDir::new().unwrap();
            let array = array(folder.path());
            array.store_metadata().unwrap();
            let by = |update| {
                let builder = BoxWriter::builder(&array).with_update(update);
                builder.build().unwrap()
            };
            by(ShardUpdate::Rewrite)
                .write(&array.subset_all(), &[1_u32; 64 * 64])
                .unwrap();
            let writer = by(update);
            // Each file of a shard has 4 KiB and more.
            limit(200);
            for (rows, columns) in [(0..64, 0..64), (3..40, 5..60)] {
                let elements = ((rows.end - rows.start) * (columns.end - columns.start)) as usize;
                let elements = vec![2_u32; elements];
                let error = writer.write(&[rows, columns], &elements).unwrap_err();
                assert!(error.to_string().contains("a/"), "{error}");
            }
            limit(libc::RLIM_INFINITY);
            let found: Vec<u32> = array.retrieve_array_subset(&array.subset_all()).unwrap();
            assert!(found.iter().all(|element| *element == 1), "{update:?}");
            if update != ShardUpdate::Shared {
                assert_eq!(files(folder.path()), 4, "no temporary is left");
                writer
                    .write(&array.subset_all(), &[3_u32; 64 * 64])
                    .unwrap();
            }
        }
    });
}
