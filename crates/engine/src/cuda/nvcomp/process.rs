//! The nvCOMP libraries that this process has loaded. Each library is loaded once, at the first request for
//! it.

use super::{Nvcomp, Search};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

type Loaded = Result<Arc<Nvcomp>, String>;

/// The result of each load, by the file that the options name; the key `None` is for a search.
static LOADED: Mutex<Option<HashMap<Option<PathBuf>, Loaded>>> = Mutex::new(None);

/// Returns the library `file`. If `file` is `None`, returns the library that a [search](Search::new) finds.
///
/// # Errors
/// The errors are those of [`Search::load`]. An error is kept, so that later calls do not search again.
pub fn of_process(file: Option<&Path>) -> Loaded {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = loaded.get_or_insert_default();
    if let Some(known) = loaded.get(&file.map(Path::to_path_buf)) {
        return known.clone();
    }
    let found = Search::new(file).load().map(Arc::new);
    match &found {
        Ok(nvcomp) => {
            tracing::info!(file = %nvcomp.path().display(), version = %nvcomp.version(), "nvCOMP");
        }
        Err(reason) => tracing::info!(reason, "no nvCOMP"),
    }
    loaded.insert(file.map(Path::to_path_buf), found.clone());
    found
}

/// Holds the lock while `work` runs.
#[cfg(test)]
pub fn while_locked(work: impl FnOnce()) {
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    work();
    drop(loaded);
}
