//! The thread pools of this package. Each process makes its own pools when it first needs them. rayon's
//! global pool is never used, because a forked child process would wait for threads that it does not have.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};
use zarrs_cuda_engine::process::per_process::PerProcess;

use crate::error::Error;

/// The pools with one number of threads, each with the number of calls that use it.
type Alike = Vec<Arc<(ThreadPool, AtomicUsize)>>;

/// The pools of this process, by their number of threads.
static POOLS: PerProcess<Mutex<HashMap<NonZeroUsize, Alike>>> = PerProcess::new(Mutex::default);

/// Runs `work` in a pool of `threads` threads. All code in `work` that uses rayon uses this pool.
///
/// Calls at the same time use different pools, as long as all pools with `threads` threads together have no
/// more threads than there are cores.
pub(crate) fn run<T: Send>(
    threads: NonZeroUsize,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    struct Call(Arc<(ThreadPool, AtomicUsize)>);
    impl Drop for Call {
        fn drop(&mut self) {
            self.0.1.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let call = Call(pool(threads)?);
    Ok(call.0.0.install(work))
}

/// Returns the pool of `threads` threads that the fewest calls use, or a new one, and counts one more call
/// for it.
fn pool(threads: NonZeroUsize) -> Result<Arc<(ThreadPool, AtomicUsize)>, Error> {
    let mut pools = POOLS.get().lock().unwrap_or_else(PoisonError::into_inner);
    let alike = pools.entry(threads).or_default();
    let calls = |pool: &Arc<(ThreadPool, AtomicUsize)>| pool.1.load(Ordering::Relaxed);
    let least = alike.iter().min_by_key(|pool| calls(pool)).cloned();
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let most = (cores / threads).max(1);
    let pool = match least {
        Some(pool) if calls(&pool) == 0 || alike.len() >= most => pool,
        _ => {
            let pool = ThreadPoolBuilder::new()
                .num_threads(threads.get())
                .thread_name(|number| format!("zarrs_cuda {number}"))
                .build();
            let pool = pool.map_err(|error| {
                Error::Other(format!(
                    "cannot start {threads} threads: {error}; set `codec_pipeline.max_workers` to fewer"
                ))
            })?;
            let pool = Arc::new((pool, AtomicUsize::new(0)));
            alike.push(pool.clone());
            pool
        }
    };
    pool.1.fetch_add(1, Ordering::Relaxed);
    Ok(pool)
}

/// Calls `one` for each of `items`, on `threads` threads. `one` is also given the number of threads that it
/// may use.
pub(crate) fn each<I: Sync, T: Send>(
    items: &[I],
    threads: NonZeroUsize,
    one: impl Fn(&I, usize) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let share = (threads.get() / items.len().max(1)).max(1);
    if threads.get() == 1 || items.len() == 1 {
        return items.iter().map(|item| one(item, share)).collect();
    }
    let results = items
        .par_iter()
        .with_max_len(1)
        .map(|item| one(item, share));
    results.collect()
}
