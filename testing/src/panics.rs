//! Panics, also caught ones.

use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

/// The locations where this crate's own code has panicked.
static OURS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records panics of this crate from now on, and silences panics of other code. zarrs' code panics
/// on some inputs; these panics become errors or are expected.
pub fn watch() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let file = panic.location().map_or("", |location| location.file());
            if Path::new(file).is_absolute() {
                return;
            }
            if file.starts_with("src") {
                let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
                ours.push(panic.to_string());
            }
            report(panic);
        }));
    });
}

/// Fails if this crate has panicked since [`watch`] was called, whether or not the panic was
/// caught.
pub fn assert_none(what: &str) {
    let ours = OURS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(ours.is_empty(), "{what}: {ours:?}");
}
