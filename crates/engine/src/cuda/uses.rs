//! Counts the uses of devices, so that the end of the process can wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of uses of devices at this time: threads on which a context is current, and batches of streams
/// that are under way.
#[derive(Debug, Default)]
pub(super) struct Uses(AtomicUsize);

/// A use of a device, until it is dropped.
#[derive(Debug)]
pub(super) struct Use(Arc<Uses>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Uses {
    /// Begins a use.
    pub(super) fn begin(this: &Arc<Self>) -> Use {
        this.0.fetch_add(1, Ordering::SeqCst);
        Use(this.clone())
    }

    /// Returns whether no device is in use.
    pub(super) fn none(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}
