//! Devices that a user has named by number, and that this process cannot find. Under `Backend::Auto` the host
//! does their work, so users are told.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zarrs_cuda_engine::process::per_process::PerProcess;

/// The reason for each missing device, by number.
static MISSING: PerProcess<Mutex<BTreeMap<usize, String>>> = PerProcess::new(Mutex::default);

/// Notes that the device `number`, which the setting `by` names, cannot be used, for the reason `why`. Logs the
/// first note about each device.
pub(super) fn note(number: usize, by: &str, why: impl FnOnce() -> String) {
    if missing().contains_key(&number) {
        return;
    }
    let text = format!(
        "CUDA device {number}, which was named by {by}, cannot be used, and the host does its work: {}",
        why()
    );
    let is_first = missing().insert(number, text.clone()).is_none();
    // A logger may ask for the missing devices, so the lock is free.
    if is_first {
        tracing::warn!("{text}");
    }
}

/// Returns the reasons why named devices cannot be used, by their numbers. Each reason names the setting that
/// names the device, and the devices that there are.
pub(crate) fn missing_devices() -> BTreeMap<usize, String> {
    missing().clone()
}

fn missing() -> MutexGuard<'static, BTreeMap<usize, String>> {
    MISSING.get().lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread;
    use std::time::Duration;

    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;

    /// A logger that asks for the missing devices, as one that sends the metrics does. Another thread asks, so that
    /// a lock is a failure and no hang.
    struct Asking(Sender<BTreeMap<usize, String>>);

    impl Subscriber for Asking {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &Event<'_>) {
            let (sender, receiver) = channel();
            thread::spawn(move || sender.send(missing_devices()));
            let missing = receiver.recv_timeout(Duration::from_mins(1)).unwrap();
            self.0.send(missing).unwrap();
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn the_first_note_is_logged_while_the_notes_can_be_read() {
        const NUMBER: usize = 70_001;
        let (sender, receiver) = channel();
        tracing::subscriber::with_default(Asking(sender), || {
            for why in ["there is none", "there is still none"] {
                note(NUMBER, "the test", || why.to_string());
            }
        });
        let logged: Vec<_> = receiver.iter().collect();
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(logged[0][&NUMBER].ends_with("its work: there is none"));
    }
}
