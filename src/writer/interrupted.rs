//! Steps that are interrupted at any call of the store, and repeated, end as if nothing had happened.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tempfile::TempDir;
use zarrs::filesystem::FilesystemStore;
use zarrs_storage::{
    ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKey, WritableStorageTraits,
};

use zarrs_cuda_testing::stores::faulty::{Fault, Faulty};

/// A filesystem that fails when it is told to.
pub(crate) type Files = Faulty<FilesystemStore>;

/// Files of a directory that lives as long as this does.
pub(crate) fn files() -> (TempDir, Arc<Files>) {
    let directory = TempDir::new().unwrap();
    let files = FilesystemStore::new(directory.path()).unwrap();
    (directory, Arc::new(Faulty::new(Arc::new(files))))
}

pub(crate) fn key(key: &str) -> StoreKey {
    StoreKey::new(key).unwrap()
}

pub(crate) fn put(files: &Files, at: &str, value: impl AsRef<[u8]>) {
    let value = Bytes::copy_from_slice(value.as_ref());
    files.inner().set(&key(at), value).unwrap();
}

pub(crate) fn value(files: &Files, at: &str) -> Option<Vec<u8>> {
    let value = files.inner().get(&key(at)).unwrap();
    value.map(|value| value.to_vec())
}

/// Everything that is stored.
pub(crate) fn snapshot(files: &Files) -> BTreeMap<String, Vec<u8>> {
    let keys = files.inner().list().unwrap();
    let keys = keys.iter().map(|key| key.as_str().to_owned());
    keys.map(|key| (key.clone(), value(files, &key).unwrap()))
        .collect()
}

pub(crate) type Step<'a, A> = &'a dyn Fn(&A) -> Result<(), StorageError>;

/// Do `steps` with what is made by `make`, in files as `prepare` leaves them; again and again, so that
/// each request fails once, in each way. A step that fails is repeated. Whenever one has failed,
/// `check` what is stored. Return what is stored in the end, which must be the same each time.
pub(crate) fn interrupted<A>(
    prepare: impl Fn(&Files),
    make: impl Fn(&Arc<Files>) -> A,
    steps: &[Step<'_, A>],
    check: impl Fn(&Files),
) -> BTreeMap<String, Vec<u8>> {
    let (_directory, store) = files();
    prepare(&store);
    let act = make(&store);
    store.work();
    for step in steps {
        step(&act).unwrap();
    }
    let requests = store.requests();
    let expected = snapshot(&store);
    for fault in Fault::ALL {
        for request in &requests {
            let (_directory, store) = files();
            prepare(&store);
            let act = make(&store);
            store.fail_at(request.number, fault);
            for step in steps {
                if step(&act).is_err() {
                    check(&store);
                    let again = step(&act);
                    assert!(again.is_ok(), "{again:?}: {request:?} {fault:?}");
                }
            }
            assert!(store.requests().len() > request.number, "it did not fail");
            assert_eq!(snapshot(&store), expected, "{request:?} {fault:?}");
        }
    }
    expected
}
