//! The threads of readers, and of writers of boxes. They are not rayon's threads: an application may read from
//! all of rayon's threads, and rayon could give a waiting reader other work that waits for this reader.

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

#[cfg(feature = "async")]
use crate::store::all;
use crate::store::now;
use zarrs_cuda_engine::process::crew::Crew;
use zarrs_cuda_engine::process::per_process::PerProcess;

/// A future that may move between threads. It is boxed, because the compiler cannot always prove that the
/// future of a generic function is `Send`.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One part of the work of a call.
pub(crate) type Task<'a, E> = Later<'a, Result<(), E>>;

/// Calls `one(0)`, …, `one(count - 1)`, at most the given number of them at once. After an error, no more
/// calls begin.
pub(crate) type Each<E> =
    for<'a> fn(usize, NonZeroUsize, &'a (dyn Fn(usize) -> Task<'a, E> + Sync)) -> Task<'a, E>;

/// Is an [`Each`] for requests that block: each call of `one` takes a thread.
pub(crate) fn blocking<'a, E: Send + 'static>(
    count: usize,
    at_once: NonZeroUsize,
    one: &'a (dyn Fn(usize) -> Task<'a, E> + Sync),
) -> Task<'a, E> {
    Box::pin(async move { each(count, at_once, |number| now(one(number))) })
}

/// Is an [`Each`] for requests that are awaited.
#[cfg(feature = "async")]
pub(crate) fn awaited<'a, E: Send + 'static>(
    count: usize,
    at_once: NonZeroUsize,
    one: &'a (dyn Fn(usize) -> Task<'a, E> + Sync),
) -> Task<'a, E> {
    Box::pin(all((0..count).map(one), at_once.get(), drop))
}

/// The largest number of threads of a call, including the calling thread. All readers share the other
/// threads. Threads that wait for a store take no time of the processors.
const MOST: usize = 256;

/// The threads that all readers of this process share.
#[derive(Debug)]
struct Threads {
    crew: Crew,
    /// The number of threads that may begin to decode now.
    free: Mutex<usize>,
    freed: Condvar,
}

fn threads() -> &'static Threads {
    static THREADS: PerProcess<Threads> = PerProcess::new(|| Threads {
        crew: Crew::of("zarrs_cuda reader", cores().get().max(MOST) - 1),
        free: Mutex::new(cores().get()),
        freed: Condvar::new(),
    });
    THREADS.get()
}

/// Returns the number of threads that may decode at once, in all readers.
pub(crate) fn cores() -> NonZeroUsize {
    static CORES: OnceLock<NonZeroUsize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
}

/// Calls `one(0)`, …, `one(count - 1)`, at most `at_once` of them at once, each on one thread. After an
/// error, no more calls begin.
pub(super) fn each<E: Send>(
    count: usize,
    at_once: NonZeroUsize,
    one: impl Fn(usize) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let (failed, first) = (AtomicBool::new(false), Mutex::new(None));
    threads().crew.run(count, at_once, &|number| {
        if failed.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = one(number) {
            failed.store(true, Ordering::Relaxed);
            let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(error);
        }
    });
    let first = first.into_inner().unwrap_or_else(PoisonError::into_inner);
    first.map_or(Ok(()), Err)
}

/// Waits until fewer threads decode or encode than there are cores, and calls `decode` on this thread. More threads would only
/// compete for the caches of the processor.
pub(crate) fn decoding<T>(decode: impl FnOnce() -> T) -> T {
    /// Lets another thread decode when it is dropped, also after a panic.
    struct DecodingPermit(&'static Threads);
    impl Drop for DecodingPermit {
        fn drop(&mut self) {
            *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            self.0.freed.notify_one();
        }
    }
    let threads = threads();
    let mut free = threads.free.lock().unwrap_or_else(PoisonError::into_inner);
    while *free == 0 {
        let woken = threads.freed.wait(free);
        free = woken.unwrap_or_else(PoisonError::into_inner);
    }
    *free -= 1;
    drop(free);
    let _place = DecodingPermit(threads);
    decode()
}
