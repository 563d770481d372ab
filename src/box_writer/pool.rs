//! The threads that encode a shard together while its writer holds the lock of the shard.
//!
//! They are rayon's threads, as the host engine needs, and of a pool of their own. On rayon's global pool, all
//! threads could wait for the lock whose holder waits for them.

use rayon::{ThreadPool, ThreadPoolBuilder};
use zarrs_cuda_engine::process::per_process::PerProcess;

use crate::reader::threads::cores;

/// Calls `encode` with the number of threads that it may use: `threads`, on a pool of this module, or 1, on this
/// thread.
pub(super) fn encoding<T: Send>(threads: usize, encode: impl FnOnce(usize) -> T + Send) -> T {
    static POOL: PerProcess<Option<ThreadPool>> = PerProcess::new(|| {
        let pool = ThreadPoolBuilder::new()
            .num_threads(cores().get())
            .thread_name(|number| format!("zarrs_cuda encoder {number}"));
        // Without the pool, each shard is encoded by one thread.
        pool.build().ok()
    });
    // A thread of another pool would do other work of that pool while it waits for this pool. That work may
    // wait for the lock that this thread holds.
    if rayon::current_thread_index().is_some() {
        return encode(1);
    }
    // Code of zarrs calls rayon for one thread, too. Rayon's global pool does not run in a forked child.
    match POOL.get() {
        Some(pool) => pool.install(|| encode(threads)),
        None => encode(1),
    }
}
