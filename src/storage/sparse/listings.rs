//! Keeps recent listings of frames.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zarrs_storage::StoreKey;

use super::frame::Listing;
use crate::store::key_locks::{STRIPES, stripe};

/// Listings of frames that readers may use until they are too old.
#[derive(Debug)]
pub(super) struct Listings {
    age: Duration,
    /// The listing that was kept last for each stripe of shards.
    slots: [Mutex<Option<KeptListing>>; STRIPES],
}

#[derive(Debug)]
struct KeptListing {
    shard: StoreKey,
    /// The time at which the listing began.
    begin: Instant,
    listing: Arc<Listing>,
}

/// The kept listing of a frame, if there is one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recent {
    /// Listings are never kept.
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
    /// Makes a store of listings that may be used until they are of this age.
    pub(super) fn new(age: Duration) -> Self {
        Self {
            age,
            slots: [const { Mutex::new(None) }; STRIPES],
        }
    }

    /// Returns whether listings are never kept.
    pub(super) fn is_off(&self) -> bool {
        self.age.is_zero()
    }

    fn slot(&self, shard: &StoreKey) -> MutexGuard<'_, Option<KeptListing>> {
        self.slots[stripe(shard)]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the kept listing of the frame of `shard`, if it may still be used.
    pub(super) fn recent(&self, shard: &StoreKey) -> Recent {
        if self.is_off() {
            return Recent::Off;
        }
        match &*self.slot(shard) {
            Some(kept) if kept.shard == *shard && kept.begin.elapsed() <= self.age => {
                Recent::Known(kept.listing.clone())
            }
            _ => Recent::Unknown,
        }
    }

    /// Keeps a listing of the frame of `shard`. The listing began at the time `begin`.
    pub(super) fn keep(&self, shard: &StoreKey, begin: Instant, listing: &Arc<Listing>) {
        *self.slot(shard) = Some(KeptListing {
            shard: shard.clone(),
            begin,
            listing: listing.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_used_until_they_are_old() {
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
        assert_eq!(
            listings.recent(&StoreKey::new("c/1").unwrap()),
            Recent::Unknown
        );

        let short = Listings::new(Duration::from_nanos(1));
        short.keep(&shard, before, &listing);
        std::thread::sleep(Duration::from_nanos(2));
        assert_eq!(short.recent(&shard), Recent::Unknown);
    }
}
