//! Tells when values were stored, for stores that know it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use zarrs_storage::{StorageError, StoreKey, StorePrefix};

/// The times at which a value was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The time at which its bytes were written.
    pub(crate) written: SystemTime,
    /// The time at which it got its key: a file is written under another name first.
    pub(crate) placed: SystemTime,
}

impl Stamp {
    /// Makes the stamp of a value in a store that knows only one time.
    pub(crate) fn at(time: SystemTime) -> Self {
        Self {
            written: time,
            placed: time,
        }
    }

    /// Returns `true` if the value was stored after the value of `other`. Both times must be later: a copy, a
    /// change of access rights, or a file that waits for its name moves only one of them.
    pub(crate) fn is_after(&self, other: &Self) -> bool {
        self.written > other.written && self.placed > other.placed
    }
}

/// Returns the times of a value and of the values directly under a prefix. Values that do not exist are left
/// out.
pub(crate) type Times = Arc<
    dyn Fn(&StoreKey, &StorePrefix) -> Result<BTreeMap<StoreKey, Stamp>, StorageError>
        + Send
        + Sync,
>;

/// Returns a time in UTC as text for people.
pub(crate) fn utc_text(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // If years begin in March, the leap day is their last day. 400 years are 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:03} UTC",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        since.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_told_in_utc() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00.250 UTC"),
            (951_782_399, "2000-02-28 23:59:59.250 UTC"),
            (951_782_400, "2000-02-29 00:00:00.250 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59.250 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00.250 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59.250 UTC"),
        ] {
            let time = UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 250);
            assert_eq!(utc_text(time), expected);
        }
    }

    #[test]
    fn both_times_are_later() {
        let at = |written, placed| Stamp {
            written: UNIX_EPOCH + Duration::from_secs(written),
            placed: UNIX_EPOCH + Duration::from_secs(placed),
        };
        assert!(at(2, 2).is_after(&at(1, 1)));
        assert!(!at(1, 2).is_after(&at(1, 1)));
        // A change of rights, and a file that was copied with its time.
        assert!(!at(1, 9).is_after(&at(2, 2)));
        assert!(!at(9, 1).is_after(&at(2, 2)));
    }
}
