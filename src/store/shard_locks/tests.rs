//! Locks of shards, by threads, futures, links, and a forked child.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use zarrs_cuda_testing::{Rng, effort};

use super::*;

fn key(name: &str) -> StoreKey {
    StoreKey::new(name).unwrap()
}

/// A store of no kind that is known.
fn store() -> Arc<Mutex<u64>> {
    Arc::new(Mutex::new(0))
}

/// The lock of `name`, if no other writer has it.
fn at_once(locks: &ShardLocks, name: &str) -> Option<ShardLock> {
    match locks.taking(&key(name)).unwrap().poll(Waker::noop()) {
        Poll::Ready(lock) => Some(lock),
        Poll::Pending => None,
    }
}

fn share(one: &ShardLocks, a: &str, other: &ShardLocks, b: &str) -> bool {
    let lock = at_once(one, a);
    assert!(lock.is_some(), "{a} was not released");
    let is_shared = at_once(other, b).is_none();
    drop(lock);
    assert!(at_once(other, b).is_some());
    is_shared
}

fn waiting(locks: &ShardLocks, name: &str) -> Option<usize> {
    let taking = locks.taking(&key(name)).unwrap();
    let lines = Process::this().lines();
    let line = lines.of_values.get(&taking.value)?;
    Some(line.waiting.len())
}

/// Waits until `count` writers wait for the lock of `name`.
fn until_waiting(locks: &ShardLocks, name: &str, count: usize) {
    while waiting(locks, name) != Some(count) {
        thread::sleep(Duration::from_millis(1));
    }
}

fn work(locks: &ShardLocks, key: &StoreKey, is_awaited: bool, work: impl FnOnce()) {
    #[cfg(feature = "async")]
    if is_awaited {
        futures::executor::block_on(async {
            let _lock = locks.async_lock(key).await.unwrap();
            work();
        });
        return;
    }
    let _ = is_awaited;
    let _lock = locks.lock(key).unwrap();
    work();
}

#[test]
fn one_writer_at_a_time_writes_each_value() {
    const KEYS: usize = 3;
    const THREADS: usize = 8;
    const WRITES: usize = 400;
    let mut rng = Rng(effort::seed());
    let folder = tempfile::tempdir().unwrap();
    for locks in [
        ShardLocks::of(&store()),
        ShardLocks::of_files(folder.path()),
    ] {
        let is_inside = [const { AtomicBool::new(false) }; KEYS];
        let written = [const { AtomicUsize::new(0) }; KEYS];
        let plans: Vec<Vec<(usize, bool)>> = (0..THREADS)
            .map(|_| {
                let mut one = |_| {
                    (
                        usize::try_from(rng.below(KEYS as u64)).unwrap(),
                        rng.one_in(2),
                    )
                };
                (0..WRITES).map(&mut one).collect()
            })
            .collect();
        thread::scope(|scope| {
            for plan in plans {
                let (locks, is_inside, written) = (locks.clone(), &is_inside, &written);
                scope.spawn(move || {
                    for (number, is_awaited) in plan {
                        work(&locks, &key(&format!("c/{number}")), is_awaited, || {
                            assert!(!is_inside[number].swap(true, Ordering::Relaxed));
                            let before = written[number].load(Ordering::Relaxed);
                            thread::yield_now();
                            written[number].store(before + 1, Ordering::Relaxed);
                            assert!(is_inside[number].swap(false, Ordering::Relaxed));
                        });
                    }
                });
            }
        });
        let all: usize = written.iter().map(|n| n.load(Ordering::Relaxed)).sum();
        assert_eq!(all, THREADS * WRITES);
        for number in 0..KEYS {
            assert_eq!(waiting(&locks, &format!("c/{number}")), None);
        }
    }
}

#[test]
fn writers_of_other_values_never_wait() {
    let locks = ShardLocks::of(&store());
    // Many more than any number of stripes.
    let held: Vec<_> = (0..1000)
        .map(|number| at_once(&locks, &format!("c/{number}")))
        .collect();
    assert!(held.iter().all(Option::is_some));
    assert!(at_once(&locks, "c/7").is_none());
    assert!(at_once(&locks, "c/1000").is_some());
}

#[test]
fn the_first_come_is_the_first_served() {
    let locks = ShardLocks::of(&store());
    let (sent, received) = mpsc::channel();
    let lock = locks.lock(&key("c")).unwrap();
    thread::scope(|scope| {
        for number in 0..6 {
            let (locks, sent) = (&locks, sent.clone());
            let is_awaited = number % 2 == 0;
            scope.spawn(move || {
                work(locks, &key("c"), is_awaited, || sent.send(number).unwrap());
            });
            until_waiting(locks, "c", number + 1);
        }
        // The lock may be dropped on another thread.
        scope.spawn(move || drop(lock));
    });
    drop(sent);
    assert_eq!(received.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(waiting(&locks, "c"), None);
}

#[test]
fn a_store_is_known_by_its_address() {
    let (one, two) = (store(), store());
    let any: Arc<dyn std::any::Any + Send + Sync> = one.clone();
    let locks = [&one, &one.clone(), &two].map(ShardLocks::of);
    let any = ShardLocks::of(&any);
    assert!(share(&locks[0], "c/0", &locks[1], "c/0"));
    assert!(share(&locks[0], "c/0", &any, "c/0"));
    assert!(!share(&locks[0], "c/0", &locks[1], "c/1"));
    assert!(!share(&locks[0], "c/0", &locks[2], "c/0"));
}

#[test]
fn an_address_is_not_used_again_while_it_is_locked() {
    let lock = at_once(&ShardLocks::of(&store()), "c");
    for _ in 0..1000 {
        assert!(at_once(&ShardLocks::of(&store()), "c").is_some());
    }
    drop(lock);
}

/// A value at one real path has one lock, through every store, before and after its directories are made.
#[cfg(unix)]
#[test]
fn files_are_known_by_their_real_path() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let files = |path: &str| ShardLocks::of_files(&root.join(path));
    fs::create_dir(root.join("data")).unwrap();
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(root.join(to), root.join(name));
    link("data", "link").unwrap();
    let same = || {
        let real = files("data");
        assert!(share(&real, "a/c/0", &files("link"), "a/c/0"));
        assert!(share(&real, "a/c/0", &files("link/a"), "c/0"));
        assert!(share(&real, "a/c/0", &files("data/a/c"), "0"));
        assert!(share(&real, "a/c/0", &files("none/../data/./a"), "c/0"));
        assert!(share(&files("none/1"), "c", &files("none/2/../1"), "c"));
        assert!(!share(&real, "a/c/0", &files("link"), "a/c/1"));
        assert!(!share(&real, "a/c/0", &files("other"), "a/c/0"));
    };
    same();
    let before = at_once(&files("data"), "a/c/0");
    fs::create_dir_all(root.join("data/a/c")).unwrap();
    fs::write(root.join("data/a/c/0"), "").unwrap();
    assert!(at_once(&files("link"), "a/c/0").is_none());
    drop(before);
    same();
    // The array is a link, too.
    link("data/a", "data/b").unwrap();
    assert!(share(&files("data"), "a/c/0", &files("link"), "b/c/0"));
    // A link that leads to itself has no real path.
    link("loop", "loop").unwrap();
    let error = files("loop").lock(&key("a/c/0")).map(drop).unwrap_err();
    assert!(error.to_string().contains("loop"), "{error}");
}

#[test]
fn relative_paths_are_those_of_this_process() {
    let here = std::env::current_dir().unwrap();
    for path in ["", ".", "none/.."] {
        let relative = ShardLocks::of_files(Path::new(path));
        assert!(share(&relative, "c/0", &ShardLocks::of_files(&here), "c/0"));
    }
}

/// A future that is dropped leaves the line, also if it has got the lock and was not polled since.
#[cfg(feature = "async")]
#[test]
fn futures_that_are_dropped_wait_no_more() {
    use std::pin::pin;
    use std::task::Context;

    let locks = ShardLocks::of(&store());
    let key = key("c");
    let mut context = Context::from_waker(Waker::noop());
    let lock = locks.lock(&key).unwrap();
    {
        let mut first = pin!(locks.async_lock(&key));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(first.as_mut().poll(&mut context).is_pending());
        let mut second = pin!(locks.async_lock(&key));
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert_eq!(waiting(&locks, "c"), Some(2));
    }
    assert_eq!(waiting(&locks, "c"), Some(0));
    let mut third = pin!(locks.async_lock(&key));
    {
        let mut second = Box::pin(locks.async_lock(&key));
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert!(third.as_mut().poll(&mut context).is_pending());
        drop(lock);
        assert!(third.as_mut().poll(&mut context).is_pending());
    }
    let Poll::Ready(lock) = third.as_mut().poll(&mut context) else {
        panic!("the lock was lost");
    };
    drop(lock);
    assert_eq!(waiting(&locks, "c"), None);
}

/// A forked child has none of the locks of its parent, and gives none back.
#[cfg(target_os = "linux")]
#[test]
#[allow(unsafe_code, reason = "fork")]
fn a_forked_child_has_locks_of_its_own() {
    let locks = ShardLocks::of(&store());
    let lock = locks.lock(&key("c")).unwrap();
    let mut taking = locks.taking(&key("c")).unwrap();
    assert!(taking.poll(Waker::noop()).is_pending());
    // The lines are locked, as another thread may have locked them when this one forks.
    let locked = Process::this().lines();
    // SAFETY: the child calls nothing that needs other threads, and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_free = taking.poll(Waker::noop()).is_ready();
        drop((lock, taking));
        let is_free = is_free && at_once(&locks, "c").is_some();
        // SAFETY: it ends this process.
        unsafe { libc::_exit(i32::from(!is_free)) }
    }
    drop(locked);
    let mut status = 0;
    // SAFETY: the child is ours, and `status` is there.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert!(at_once(&locks, "c").is_none());
    drop(lock);
    assert!(taking.poll(Waker::noop()).is_ready());
    assert_eq!(waiting(&locks, "c"), None);
}
