//! The runtime on which a process waits for its requests.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::{Builder, Runtime};
use zarrs_cuda_engine::process::per_process::PerProcess;

static RUNTIME: PerProcess<Mutex<Option<Arc<Runtime>>>> = PerProcess::new(Mutex::default);

/// Returns the runtime of this process.
pub(super) fn runtime() -> io::Result<Arc<Runtime>> {
    let mut runtime = RUNTIME.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = &*runtime {
        return Ok(runtime.clone());
    }
    // The calling threads do most of the work. The threads of the runtime only handle the data that arrives.
    let made = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("zarrs_cuda objects")
        .enable_all()
        .build()
        .map_err(|error| {
            let what = format!("cannot start threads for requests: {error}");
            io::Error::new(error.kind(), what)
        })?;
    Ok(runtime.insert(Arc::new(made)).clone())
}
