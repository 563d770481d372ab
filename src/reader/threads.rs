//! The threads of readers. They are not rayon's: an application may read from all of rayon's
//! threads, and rayon could give a waiting reader other work that waits for this one.

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use super::ReaderError;
#[cfg(feature = "async")]
use crate::store::all;
use crate::store::now;
use zarrs_cuda_engine::process::crew::Crew;
use zarrs_cuda_engine::process::per_process::PerProcess;

/// A future that may move between threads. It is boxed, because a compiler that is asked whether the
/// future of a generic function may move cannot always say.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A part of a call.
pub(super) type Task<'a> = Later<'a, Result<(), ReaderError>>;

/// Does `one(0)`, …, `one(count - 1)`, at most so many of them at once. After an error no more are
/// begun.
pub(super) type Each =
    for<'a> fn(usize, NonZeroUsize, &'a (dyn Fn(usize) -> Task<'a> + Sync)) -> Task<'a>;

/// [`Each`] for requests that block, each on one thread.
pub(super) fn blocking<'a>(
    count: usize,
    at_once: NonZeroUsize,
    one: &'a (dyn Fn(usize) -> Task<'a> + Sync),
) -> Task<'a> {
    Box::pin(async move { each(count, at_once, |number| now(one(number))) })
}

/// [`Each`] for requests that are awaited.
#[cfg(feature = "async")]
pub(super) fn awaited<'a>(
    count: usize,
    at_once: NonZeroUsize,
    one: &'a (dyn Fn(usize) -> Task<'a> + Sync),
) -> Task<'a> {
    Box::pin(all((0..count).map(one), at_once.get(), drop))
}

/// The most threads of a call, with the one that calls; the others are shared by all readers. Those
/// that wait for a store take no time of the processors.
const MOST: usize = 256;

/// The threads that all readers of this process share.
#[derive(Debug)]
struct Threads {
    crew: Crew,
    /// How many threads may still begin to decode.
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

/// Returns how many threads decode at once, in all readers.
pub(super) fn cores() -> NonZeroUsize {
    static CORES: OnceLock<NonZeroUsize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
}

/// Does `one(0)`, …, `one(count - 1)`, at most `at_once` of them at once, each on one thread. After an error
/// no more are begun.
pub(super) fn each(
    count: usize,
    at_once: NonZeroUsize,
    one: impl Fn(usize) -> Result<(), ReaderError> + Sync,
) -> Result<(), ReaderError> {
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

/// Decodes on this thread, when as many threads as there are cores do not decode already. More would only
/// take the caches from each other.
pub(super) fn decoding<T>(decode: impl FnOnce() -> T) -> T {
    /// Gives the place back, also after a panic.
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
