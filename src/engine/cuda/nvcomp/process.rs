//! The libraries of this process: each is loaded once, when it is first asked for.

use super::{Nvcomp, Search};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

type Loaded = Result<Arc<Nvcomp>, String>;

/// By the file that the options name.
static LOADED: Mutex<Option<HashMap<Option<PathBuf>, Loaded>>> = Mutex::new(None);

/// The library that is `file`, or that is [found](Search::new).
///
/// # Errors
/// As of [`Search::load`]. It is not looked for again.
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

/// Hold the lock while `work` runs.
#[cfg(test)]
pub(crate) fn while_locked(work: impl FnOnce()) {
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    work();
    drop(loaded);
}
