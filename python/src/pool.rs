//! Threads of this package: of each process, made when they are first needed. rayon's global pool is never
//! used: a forked child would wait for threads that it does not have.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, PoisonError, RwLock};

use rayon::{ThreadPool, ThreadPoolBuilder};
use zarrs_cuda::internals::PerProcess;

use crate::error::Error;

type Pools = RwLock<HashMap<NonZeroUsize, Arc<ThreadPool>>>;

/// The pools of this process, by how many threads they have.
static POOLS: PerProcess<Pools> = PerProcess::new(Pools::default);

/// Run `work` on a pool of `threads` threads, so that what uses rayon uses that pool.
pub(crate) fn run<T: Send>(
    threads: NonZeroUsize,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    Ok(pool(threads)?.install(work))
}

fn pool(threads: NonZeroUsize) -> Result<Arc<ThreadPool>, Error> {
    let pools = POOLS.get();
    if let Some(pool) = pools
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&threads)
    {
        return Ok(pool.clone());
    }
    let mut pools = pools.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pools.get(&threads) {
        return Ok(pool.clone());
    }
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads.get())
        .thread_name(|number| format!("zarrs_cuda {number}"))
        .build();
    let pool = pool.map_err(|error| {
        Error::Other(format!(
            "cannot start {threads} threads: {error}; set `codec_pipeline.max_workers` to fewer"
        ))
    })?;
    let pool = Arc::new(pool);
    pools.insert(threads, pool.clone());
    Ok(pool)
}
