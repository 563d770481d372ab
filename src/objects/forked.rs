//! A forked child makes an object store of its own, and requests of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{Bytes, ReadableStorageTraits, StoreKey, WritableStorageTraits};

use super::BlockingObjectStore;

fn objects(value: &'static str) -> Arc<dyn ObjectStore> {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let store = BlockingObjectStore::new(objects.clone());
    store
        .set(&key(), Bytes::from_static(value.as_bytes()))
        .unwrap();
    objects
}

fn key() -> StoreKey {
    StoreKey::new("a").unwrap()
}

#[test]
fn a_forked_child_has_requests_of_its_own() {
    let is = |store: &BlockingObjectStore, value: &str| {
        let ranges = [ByteRange::FromStart(0, Some(1)), ByteRange::Suffix(5)];
        let parts = store.get_partial_many(&key(), Box::new(ranges.into_iter()));
        let parts = parts.unwrap().unwrap().collect::<Result<Vec<_>, _>>();
        store.get(&key()).unwrap().unwrap() == value
            && parts.unwrap()[1] == value[value.len() - 5..]
    };
    static MADE: AtomicUsize = AtomicUsize::new(0);
    // Another lock: a thread of the parent may hold the one of its objects.
    let store = BlockingObjectStore::new(objects("of the parent"))
        .made_again_by(|| {
            MADE.fetch_add(1, Ordering::Relaxed);
            Ok(objects("of the child"))
        })
        .with_requests(2.try_into().unwrap());

    // Threads of the parent are in the middle of requests, and hold its permits.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(is(&store, "of the parent"));
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
                let is_read = is(&store, "of the child") && is(&store, "of the child");
                let is_made = MADE.load(Ordering::Relaxed) == 1;
                // SAFETY: as above.
                #[allow(unsafe_code)]
                unsafe {
                    libc::_exit(i32::from(!is_read) + 2 * i32::from(!is_made));
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
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(MADE.load(Ordering::Relaxed), 0);
}
