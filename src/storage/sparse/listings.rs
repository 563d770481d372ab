//! What was listed of frames lately.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zarrs_storage::StoreKey;

use super::frame::Listing;
use crate::storage::turns::{STRIPES, stripe};

/// Listings that may be used for some time.
#[derive(Debug)]
pub(super) struct Listings {
    age: Duration,
    /// The last of each stripe.
    slots: [Mutex<Slot>; STRIPES],
}

#[derive(Debug, Default)]
struct Slot {
    kept: Option<Kept>,
    /// Listings that began before this are not used: something was written here.
    written: Option<Instant>,
}

#[derive(Debug)]
struct Kept {
    shard: StoreKey,
    /// When it began.
    begin: Instant,
    listing: Arc<Listing>,
}

/// What is known of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recent {
    /// Nothing is ever kept.
    Off,
    Unknown,
    Known(Arc<Listing>),
}

impl Default for Listings {
    fn default() -> Self {
        Self::new(Duration::ZERO)
    }
}

impl Listings {
    /// Listings that are used until they are of this age.
    pub(super) fn new(age: Duration) -> Self {
        Self {
            age,
            slots: [const {
                Mutex::new(Slot {
                    kept: None,
                    written: None,
                })
            }; STRIPES],
        }
    }

    fn slot(&self, shard: &StoreKey) -> MutexGuard<'_, Slot> {
        self.slots[stripe(shard)]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A listing of the frame of `shard` that may be used.
    pub(super) fn recent(&self, shard: &StoreKey) -> Recent {
        if self.age.is_zero() {
            return Recent::Off;
        }
        match &self.slot(shard).kept {
            Some(kept) if kept.shard == *shard && kept.begin.elapsed() <= self.age => {
                Recent::Known(kept.listing.clone())
            }
            _ => Recent::Unknown,
        }
    }

    /// Keep a listing of the frame of `shard`, which began then.
    pub(super) fn keep(&self, shard: &StoreKey, begin: Instant, listing: &Arc<Listing>) {
        let mut slot = self.slot(shard);
        if slot.written.is_none_or(|written| written < begin) {
            slot.kept = Some(Kept {
                shard: shard.clone(),
                begin,
                listing: listing.clone(),
            });
        }
    }

    /// Something was written to the frame of `shard`.
    pub(super) fn forget(&self, shard: &StoreKey) {
        if !self.age.is_zero() {
            self.slot(shard).forget();
        }
    }

    /// Something was written to any frame.
    pub(super) fn forget_all(&self) {
        for slot in &self.slots {
            slot.lock().unwrap_or_else(PoisonError::into_inner).forget();
        }
    }
}

impl Slot {
    fn forget(&mut self) {
        self.kept = None;
        self.written = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_used_until_they_are_old_or_wrong() {
        let shard = StoreKey::new("c/0").unwrap();
        let listing = Arc::<Listing>::default();
        let off = Listings::default();
        off.keep(&shard, Instant::now(), &listing);
        assert_eq!(off.recent(&shard), Recent::Off);

        let listings = Listings::new(Duration::from_secs(1000));
        let before = Instant::now();
        assert_eq!(listings.recent(&shard), Recent::Unknown);
        listings.keep(&shard, before, &listing);
        assert_eq!(listings.recent(&shard), Recent::Known(listing.clone()));
        listings.forget(&shard);
        // One that began before the write may not have it.
        listings.keep(&shard, before, &listing);
        assert_eq!(listings.recent(&shard), Recent::Unknown);
        std::thread::sleep(Duration::from_millis(1));
        listings.keep(&shard, Instant::now(), &listing);
        assert_eq!(listings.recent(&shard), Recent::Known(listing.clone()));
        listings.forget_all();
        assert_eq!(listings.recent(&shard), Recent::Unknown);

        let short = Listings::new(Duration::from_nanos(1));
        short.keep(&shard, before, &listing);
        assert_eq!(short.recent(&shard), Recent::Unknown);
    }
}
