//! Reads one shard: its newer subchunks, its index, and the elements of its wanted subchunks.
//!
//! ```text
//! read, at most 3 times, and in an array with newer subchunks once more, by single subchunks
//!     attempt
//!         list the newer subchunks, in an array that may have them: before the shard is read
//!         newer subchunks: get the newest version, decode
//!         the other subchunks:
//!             open the shard; there is none: fill values
//!             take the index from the cache, or request and decode it
//!             empty subchunks: fill values; kept subchunks: copy
//!             the rest is one group: request the group and the index, compare the index, decode
//!             several groups: request and decode each; request the index again, and compare
//!             keep the index and the decoded subchunks
//!         check that all wanted elements were written
//!     the attempt succeeded: done
//!     the shard was replaced, or a newer subchunk is gone: forget the index
//!     the error may come from a replaced shard: keep the error
//!     any other error: return it
//! return the error that was kept, or `Changing`
//! ```
//!
//! A call is strict if consolidations may give a shard another index and then the first index again. In a
//! strict call no index comes from the cache, and each request for a group also reads and compares the index.

mod buffer;
mod decode;
mod device;
mod errors;
mod index;
mod indexed;
mod newer;
mod windows;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use zarrs_storage::StoreKey;

use super::cache::Caches;
use super::error::Damage;
use super::metrics::{Counters, add};
use super::newer_subchunks::ListsNewerSubchunks;
use super::request::WantedShard;
use super::source::ShardSource;
use super::threads::{Each, Later, Task};
use super::{OutputPlace, ReaderError, Settings};
use crate::plan::ReadySubchunk;
use crate::shard::sharding::Sharding;
use errors::{damage, store_error};
use indexed::Indexed;
use windows::{WantedSubchunk, wanted};
use zarrs_cuda_engine::contract::{EngineError, NeighbourSink};
use zarrs_cuda_engine::memory::disjoint::Window;

/// The number of attempts to read a shard that is replaced during each attempt.
const ATTEMPTS: usize = 3;

/// The data that a call shares among all of its shards.
pub(super) struct ReadCall<'a, S> {
    pub(super) source: &'a S,
    pub(super) newer_subchunks: Option<&'a dyn ListsNewerSubchunks>,
    pub(super) settings: &'a Settings,
    pub(super) caches: &'a Caches,
    pub(super) counters: &'a Counters,
    pub(super) place: OutputPlace<'a>,
    pub(super) damaged: &'a Mutex<Vec<Damage>>,
    pub(super) absent: &'a Mutex<Vec<StoreKey>>,
    /// The function that makes several requests at once.
    pub(super) each: Each<ReaderError>,
    /// The number of requests that the call makes at once.
    pub(super) requests: NonZeroUsize,
    /// The number of requests for one shard that the call makes at once.
    pub(super) requests_of_shard: NonZeroUsize,
}

/// A shard to read.
pub(super) struct ShardToRead<'a> {
    pub(super) key: StoreKey,
    pub(super) sharding: Arc<Sharding>,
    pub(super) wanted: &'a WantedShard,
}

/// The reason why an attempt to read a shard stopped.
enum Stop {
    /// The shard was replaced, or newer subchunks were packed into the shard.
    Changed,
    /// The attempt failed, perhaps because the shard was replaced.
    Unsure(ReaderError),
    Error(ReaderError),
}

impl From<ReaderError> for Stop {
    fn from(error: ReaderError) -> Self {
        Self::Error(error)
    }
}

impl<S: ShardSource> ReadCall<'_, S> {
    /// Returns whether the call is strict: each request for subchunks also reads the index, and no kept index
    /// is used. In other calls, the index is read before and after the subchunks.
    ///
    /// A consolidation may give a shard another index, and the next consolidation the first index again. If
    /// the index were read by separate requests, a subchunk could come from the shard between the two
    /// consolidations.
    fn is_strict(&self) -> bool {
        self.newer_subchunks.is_some() && !S::STAYS
    }

    /// Reads the wanted elements of `shard`.
    pub(super) async fn read(&self, shard: &ShardToRead<'_>) -> Result<(), ReaderError> {
        let mut last = None;
        // An array with newer subchunks gets one more attempt, which reads each subchunk by itself.
        let attempts = ATTEMPTS + usize::from(self.newer_subchunks.is_some());
        for number in 0..attempts {
            // A store may have returned parts of two versions of an index. So a shard of such a store becomes
            // fill values only if its index cannot be decoded in two attempts.
            let fills_shard = self.settings.fill_damaged
                && (S::STAYS || matches!(last, Some(ReaderError::Damaged(_))));
            match self.attempt(shard, number, fills_shard).await {
                Ok(()) => return Ok(()),
                // The last attempt, which reads each subchunk by itself, tells less about a damaged shard.
                Err(Stop::Error(error)) if number == ATTEMPTS => return Err(last.unwrap_or(error)),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Unsure(error)) => last = Some(error),
                Err(Stop::Changed) => {
                    last = None;
                    add(&self.counters.replaced, 1);
                    self.caches.indices.forget(&shard.key);
                }
            }
        }
        Err(last.unwrap_or(ReaderError::Changing {
            key: shard.key.clone(),
            attempts,
        }))
    }

    /// Tries once to read the wanted elements of `shard`. If `fills_shard`, a shard whose index cannot be
    /// decoded becomes fill values.
    async fn attempt(
        &self,
        shard: &ShardToRead<'_>,
        number: usize,
        fills_shard: bool,
    ) -> Result<(), Stop> {
        let windows = self.windows(shard)?;
        let wanted = wanted(shard);
        let touched = wanted.chunk_by(|(a, _), (b, _)| a == b).map(WantedSubchunk);
        let attempt = Attempt {
            call: self,
            shard,
            windows: &windows,
            damaged: Mutex::default(),
            is_absent: AtomicBool::new(false),
            held: Mutex::default(),
        };
        let mut has_newer = false;
        let mut in_shard: Vec<WantedSubchunk<'_>> = touched.collect();
        // Newer subchunks are listed before the shard is read, because a consolidation deletes a version only
        // after it has packed the version into the shard.
        if let Some(newer_subchunks) = self.newer_subchunks {
            let newer = newer_subchunks.list(&shard.key, number > 0).await;
            let newer = newer.map_err(|error| store_error(shard, error))?;
            let each = number == ATTEMPTS;
            has_newer = !newer.is_empty();
            in_shard = attempt.read_newer(&*newer, in_shard, each).await?;
        }
        if !in_shard.is_empty() {
            let read = attempt.read_shard(&in_shard, fills_shard).await;
            read.map_err(|stop| match stop {
                Stop::Error(error) if self.is_strict() => Stop::Unsure(error),
                stop => stop,
            })?;
        }
        attempt.finish(has_newer)
    }

    /// Returns the windows of the output for the wanted boxes of `shard`; none if the output is on a device.
    fn windows<'w>(&'w self, shard: &'w ShardToRead<'_>) -> Result<Vec<Window<'w>>, ReaderError> {
        let OutputPlace::Host(place) = self.place else {
            return Ok(Vec::new());
        };
        let order = shard.sharding.order();
        let parts = shard.wanted.parts.iter();
        let windows = parts.map(|part| {
            let window = (part.start.clone(), part.shape.clone());
            let (grid, strides) = (&shard.sharding.grid, place.strides.clone());
            let memory = place.from(part.offset);
            // SAFETY: `ArrayInMemory` has room for all elements of the call, and no two of them overlap. Each
            // part of the call writes other elements. Attempts are made one after the other.
            unsafe { Window::over(grid, &order, window, memory, strides) }
        });
        let windows: Result<_, EngineError> = windows.collect();
        windows.map_err(|error| damage(shard, None, error))
    }
}

/// An attempt to read a shard and its newer subchunks.
struct Attempt<'a, S: ShardSource> {
    call: &'a ReadCall<'a, S>,
    shard: &'a ShardToRead<'a>,
    windows: &'a [Window<'a>],
    /// The damaged subchunks that became fill values, or the damaged shard.
    damaged: Mutex<Vec<Damage>>,
    /// Whether the store has neither the shard nor newer subchunks.
    is_absent: AtomicBool,
    /// The subchunks for a device, with the numbers of their wanted elements. They are sent when the attempt has
    /// succeeded.
    held: Mutex<Vec<(ReadySubchunk, usize)>>,
}

impl<S: ShardSource> Attempt<'_, S> {
    /// Runs `count` parts of the attempt, several of them at once. After a part has found that the shard
    /// changed, no other part begins.
    async fn each<'p>(
        &'p self,
        count: usize,
        part: &'p (dyn Fn(usize) -> Later<'p, Result<(), Stop>> + Sync),
    ) -> Result<(), Stop> {
        let changed = AtomicBool::new(false);
        let is_changed = &changed;
        let task = |number: usize| -> Task<'_, ReaderError> {
            Box::pin(async move {
                if is_changed.load(Ordering::Relaxed) {
                    return Ok(());
                }
                match part(number).await {
                    Ok(()) => Ok(()),
                    Err(Stop::Error(error) | Stop::Unsure(error)) => Err(error),
                    Err(Stop::Changed) => {
                        is_changed.store(true, Ordering::Relaxed);
                        Ok(())
                    }
                }
            })
        };
        (self.call.each)(count, self.call.requests_of_shard, &task).await?;
        if changed.into_inner() {
            return Err(Stop::Changed);
        }
        Ok(())
    }

    /// Reads the subchunks `touched` from the shard, and writes their elements. If `fills_shard` and the
    /// index cannot be decoded, writes fill values.
    async fn read_shard(
        &self,
        touched: &[WantedSubchunk<'_>],
        fills_shard: bool,
    ) -> Result<(), Stop> {
        let (call, shard) = (self.call, self.shard);
        let opened = call.source.open(&shard.key).await;
        let Some(opened) = opened.map_err(|error| store_error(shard, error))? else {
            return Ok(self.fill_absent(touched)?);
        };
        let kept = call.caches.indices.get(&shard.key);
        let (index, is_fresh) = match kept.filter(|_| !call.is_strict()) {
            Some(index) => {
                add(&call.counters.index_hits, 1);
                (index, false)
            }
            None => match call.index(shard, &opened).await {
                Ok(Some(index)) => (index, true),
                Ok(None) => return Ok(self.fill_absent(touched)?),
                Err(ReaderError::Damaged(damage)) if fills_shard => {
                    lock(&self.damaged).push(damage);
                    return Ok(self.fill(touched.iter().copied())?);
                }
                // Some stores request the size of a shard first, and then its ranges. The shard may be
                // replaced between these requests.
                Err(error @ ReaderError::Damaged(_)) if !S::STAYS => {
                    return Err(Stop::Unsure(error));
                }
                Err(error) => return Err(error.into()),
            },
        };
        let indexed = Indexed {
            attempt: self,
            opened: &opened,
            index: &index,
            decoded: Mutex::default(),
            range_cost: OnceLock::new(),
        };
        let stored = match indexed.stored(touched).await {
            Err(Stop::Error(error)) if !is_fresh => {
                // The index came from the cache, and may be older than the shard.
                indexed.check_index().await?;
                return Err(Stop::Error(error));
            }
            stored => stored?,
        };
        if !stored.is_empty() {
            indexed.read(&stored).await?;
        }
        // The index is compared here if no request has compared it, or if bytes seem damaged: they may be of
        // another shard.
        if (stored.is_empty() && !is_fresh) || !lock(&self.damaged).is_empty() {
            indexed.check_index().await?;
        }
        indexed.keep();
        Ok(())
    }

    /// Writes the fill value to all wanted elements of `touched`, because the store does not have the shard.
    fn fill_absent(&self, touched: &[WantedSubchunk<'_>]) -> Result<(), ReaderError> {
        self.is_absent.store(true, Ordering::Relaxed);
        self.fill(touched.iter().copied())
    }

    /// Writes the fill value to all wanted elements of `touched`.
    fn fill<'p>(
        &self,
        touched: impl IntoIterator<Item = WantedSubchunk<'p>>,
    ) -> Result<(), ReaderError> {
        let element = self.shard.sharding.fill_value.as_ne_bytes();
        if let OutputPlace::Device(sink) = self.call.place {
            for touched in touched {
                self.fill_on_device(sink, touched);
            }
            return Ok(());
        }
        for touched in touched {
            let number = touched.number();
            for window in touched.windows() {
                let filled = self.windows[window].fill_neighbours(number, 1, element);
                filled.map_err(|error| damage(self.shard, Some(number), error))?;
            }
        }
        Ok(())
    }

    /// Checks that all elements were written. Reports the damage, and whether the shard is absent.
    fn finish(self, has_newer: bool) -> Result<(), Stop> {
        if !self.windows.iter().all(Window::is_complete) {
            let missing = EngineError::Internal("a subchunk was not decoded");
            return Err(damage(self.shard, None, missing).into());
        }
        if let OutputPlace::Device(sink) = self.call.place {
            self.send_held(sink)?;
        }
        let mut damaged = self
            .damaged
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        add(&self.call.counters.damaged, damaged.len());
        lock(self.call.damaged).append(&mut damaged);
        if self.is_absent.into_inner() && !has_newer {
            lock(self.call.absent).push(self.shard.key.clone());
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
