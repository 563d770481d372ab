//! Devices that a user has named by number, and that this process cannot find. Under `Backend::Auto` the host
//! does their work, so users are told.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use zarrs_cuda_engine::process::per_process::PerProcess;

/// The reason for each missing device, by number.
static MISSING: PerProcess<Mutex<BTreeMap<usize, String>>> = PerProcess::new(Mutex::default);

/// Notes that the device `number`, which the setting `by` names, cannot be used, for the reason `why`. Logs the
/// first note about each device.
pub(super) fn note(number: usize, by: &str, why: impl FnOnce() -> String) {
    let mut missing = MISSING.get().lock().unwrap_or_else(PoisonError::into_inner);
    missing.entry(number).or_insert_with(|| {
        let text = format!(
            "CUDA device {number}, which was named by {by}, cannot be used, and the host does its work: {}",
            why()
        );
        tracing::warn!("{text}");
        text
    });
}

/// Returns the reasons why named devices cannot be used, by their numbers. Each reason names the setting that
/// names the device, and the devices that there are.
pub(crate) fn missing_devices() -> BTreeMap<usize, String> {
    let missing = MISSING.get().lock();
    missing.unwrap_or_else(PoisonError::into_inner).clone()
}
