//! One shard: its index, the bytes of the subchunks that are wanted, and their elements.

use std::borrow::Cow;
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zarrs_codec::CodecOptions;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{StorageError, StoreKey};

use super::cache::{Caches, Index, Subchunk};
use super::error::Damage;
use super::metrics::{Counters, add};
use super::output::Place;
use super::request::WantedShard;
use super::source::{Fetched, Source};
use super::threads::{self, Each, Task, decoding};
use super::{ReaderError, Settings};
use crate::codec::partial_decoder::{check_last_bytes, check_memory, last_bytes};
use crate::codec::sharding::Sharding;
use crate::engine::disjoint::Window;
use crate::engine::{EncodedSubchunk, EngineError, RowSink};
use crate::plan::host_engine;
use crate::store::ranges::Merged;

/// How often a shard is read that is replaced meanwhile.
const ATTEMPTS: usize = 3;

/// Everything that the shards of one call have in common.
pub(super) struct Call<'a, S> {
    pub(super) source: &'a S,
    pub(super) settings: &'a Settings,
    pub(super) caches: &'a Caches,
    pub(super) counters: &'a Counters,
    pub(super) place: &'a Place<'a>,
    pub(super) damaged: &'a Mutex<Vec<Damage>>,
    /// Makes several requests at once.
    pub(super) each: Each,
    /// How many requests to make at once.
    pub(super) requests: NonZeroUsize,
    /// How many of them for one shard.
    pub(super) requests_of_shard: NonZeroUsize,
}

/// A shard to read.
pub(super) struct Shard<'a> {
    pub(super) key: StoreKey,
    pub(super) sharding: Arc<Sharding>,
    pub(super) wanted: &'a WantedShard,
}

/// Why an attempt to read a shard ended.
enum Stop {
    /// The shard was replaced.
    Changed,
    Error(ReaderError),
}

impl From<ReaderError> for Stop {
    fn from(error: ReaderError) -> Self {
        Self::Error(error)
    }
}

/// A subchunk that is wanted, and the windows that want it: pairs of the number of the subchunk, which
/// is the same in all of them, and of a window.
#[derive(Clone, Copy)]
struct Touched<'p>(&'p [(usize, usize)]);

impl Touched<'_> {
    fn number(self) -> usize {
        // There is at least one pair.
        self.0.first().map_or(0, |(number, _)| *number)
    }

    fn windows(self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|(_, window)| *window)
    }
}

/// A subchunk that is to be read.
struct Stored<'p> {
    touched: Touched<'p>,
    /// The bytes of the shard to read.
    extent: Range<usize>,
    /// Where they begin in the subchunk, if they are a part of it that needs no decoding.
    part: Option<usize>,
}

impl<S: Source> Call<'_, S> {
    /// Read the wanted elements of `shard`.
    pub(super) async fn read(&self, shard: &Shard<'_>) -> Result<(), ReaderError> {
        for _ in 0..ATTEMPTS {
            match self.attempt(shard).await {
                Ok(()) => return Ok(()),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Changed) => {
                    add(&self.counters.replaced, 1);
                    self.caches.indices.forget(&shard.key);
                }
            }
        }
        Err(ReaderError::Changing {
            key: shard.key.clone(),
            attempts: ATTEMPTS,
        })
    }

    async fn attempt(&self, shard: &Shard<'_>) -> Result<(), Stop> {
        let windows = self.windows(shard)?;
        let wanted = wanted(shard);
        let touched = || wanted.chunk_by(|(a, _), (b, _)| a == b).map(Touched);
        let opened = self.source.open(&shard.key).await;
        let Some(opened) = opened.map_err(|error| store_error(shard, error))? else {
            return Ok(Self::fill(shard, &windows, touched())?);
        };
        let (index, is_fresh) = match self.caches.indices.get(&shard.key) {
            Some(index) => {
                add(&self.counters.index_hits, 1);
                (index, false)
            }
            None => match self.index(shard, &opened).await? {
                Some(index) => (index, true),
                None => return Ok(Self::fill(shard, &windows, touched())?),
            },
        };
        let attempt = Attempt {
            call: self,
            shard,
            opened: &opened,
            windows: &windows,
            index: &index,
            damaged: Mutex::default(),
            decoded: Mutex::default(),
        };
        let stored = attempt.stored(touched()).await?;
        if stored.is_empty() {
            if !is_fresh {
                // The shard may be another one by now.
                attempt.check_index().await?;
            }
        } else {
            attempt.read(&stored).await?;
        }
        attempt.finish()
    }

    /// The places of the wanted boxes of `shard`.
    fn windows<'w>(&'w self, shard: &'w Shard<'_>) -> Result<Vec<Window<'w>>, ReaderError> {
        let order = shard.sharding.order();
        let parts = shard.wanted.parts.iter();
        let windows = parts.map(|part| {
            let window = (part.start.clone(), part.shape.clone());
            let (grid, strides) = (&shard.sharding.grid, self.place.strides.clone());
            let memory = self.place.from(part.offset);
            // SAFETY: `Place` has room for all elements of the call, none of which overlap. Each
            // part of the call has others. Of several attempts, one is made at a time.
            unsafe { Window::over(grid, &order, window, memory, strides) }
        });
        let windows: Result<_, EngineError> = windows.collect();
        windows.map_err(|error| damage(shard, None, error))
    }

    /// Read and decode the index; `None` if there is no shard.
    async fn index(
        &self,
        shard: &Shard<'_>,
        opened: &S::Shard,
    ) -> Result<Option<Arc<Index>>, ReaderError> {
        let index = &shard.sharding.index;
        check_memory(index.len()).map_err(|error| failed(shard, None, error))?;
        let Some(encoded) = self.encoded_index(shard, opened).await? else {
            return Ok(None);
        };
        let options = &self.settings.codec_options;
        let entries = index.decode(Cow::Owned(encoded.clone()), i64::MAX as u64, options);
        let entries = entries.map_err(|error| damage(shard, None, error))?;
        Ok(Some(Arc::new(Index { encoded, entries })))
    }

    /// Read the index as it is stored; `None` if there is no shard.
    async fn encoded_index(
        &self,
        shard: &Shard<'_>,
        opened: &S::Shard,
    ) -> Result<Option<Vec<u8>>, ReaderError> {
        let index = &shard.sharding.index;
        let range = [index.byte_range()];
        let mut buffer = take_buffer();
        let read = self.source.read(opened, &range, &mut buffer).await;
        self.count(&range, index.len() as u64);
        let read = read.map_err(|error| store_error(shard, error))?;
        let first = |read: Vec<Fetched<'_>>| read.first().map(|read| read.as_ref().to_vec());
        let encoded = read.map(|read| first(read).unwrap_or_default());
        keep_buffer(buffer);
        Ok(encoded)
    }

    /// Counts a request for `ranges`, of so many bytes.
    fn count(&self, ranges: &[ByteRange], bytes: u64) {
        add(&self.counters.requests, 1);
        add(&self.counters.ranges, ranges.len());
        self.counters.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Write the fill value to all that is wanted of `touched`.
    fn fill<'p>(
        shard: &Shard<'_>,
        windows: &[Window<'_>],
        touched: impl IntoIterator<Item = Touched<'p>>,
    ) -> Result<(), ReaderError> {
        let element = shard.sharding.fill_value.as_ne_bytes();
        for touched in touched {
            let number = touched.number();
            for window in touched.windows() {
                let filled = windows[window].fill_row(number, 1, element);
                filled.map_err(|error| damage(shard, Some(number), error))?;
            }
        }
        Ok(())
    }
}

/// An attempt to read a shard.
struct Attempt<'a, S: Source> {
    call: &'a Call<'a, S>,
    shard: &'a Shard<'a>,
    opened: &'a S::Shard,
    windows: &'a [Window<'a>],
    index: &'a Arc<Index>,
    /// The subchunks that became fill values.
    damaged: Mutex<Vec<Damage>>,
    /// Decoded subchunks to keep, by number.
    decoded: Mutex<Vec<(usize, Arc<Subchunk>)>>,
}

impl<S: Source> Attempt<'_, S> {
    /// The subchunks of `touched` that are to be read, and where they lie. The elements of the others
    /// are written: of subchunks that are not stored, that were kept, or that are damaged.
    async fn stored<'p>(
        &self,
        touched: impl Iterator<Item = Touched<'p>> + Send,
    ) -> Result<Vec<Stored<'p>>, Stop> {
        let Call { settings, .. } = self.call;
        let limit = self.shard.sharding.subchunk_len();
        let limit = limit.map_err(|error| damage(self.shard, None, error))?;
        let (mut stored, mut filled) = (Vec::new(), Vec::new());
        for touched in touched {
            let number = touched.number();
            let Some(extent) = self.index.entries.get(number) else {
                filled.push(touched);
                continue;
            };
            if let Err(error) = limit.check(number, extent.len()) {
                let key = self.shard.key.clone();
                let damage = Damage::new(key, Some(number), error);
                if !settings.fill_damaged {
                    return Err(ReaderError::Damaged(damage).into());
                }
                lock(&self.damaged).push(damage);
                filled.push(touched);
            } else if !self.write_kept(touched)? {
                stored.push(self.narrowed(touched, extent));
            }
        }
        Call::<S>::fill(self.shard, self.windows, filled)?;
        if !limit.is_bounded() {
            self.check_ends(&stored).await?;
        }
        Ok(stored)
    }

    /// What to read of the subchunk at `extent`: of a long one without a codec but `bytes`, only the
    /// bytes between the first and the last element that are wanted.
    fn narrowed<'p>(&self, touched: Touched<'p>, extent: Range<usize>) -> Stored<'p> {
        /// Fewer bytes than this cost about as much as one.
        const SHORT: usize = 64 << 10;
        let sharding = &self.shard.sharding;
        let chain = sharding.known();
        let is_plain = chain.is_ok_and(|chain| chain.stages.is_empty() && chain.swap == 1);
        let is_long = extent.len() > SHORT && extent.len() == sharding.grid.subchunk_bytes();
        let whole = |extent| Stored {
            touched,
            extent,
            part: None,
        };
        if !is_plain || !is_long || self.call.settings.subchunk_cache > 0 {
            return whole(extent);
        }
        let number = touched.number();
        let spans = touched
            .windows()
            .map(|window| self.windows[window].span(number));
        let span = spans.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        match span {
            Some(span) if span.len() + SHORT <= extent.len() => Stored {
                touched,
                extent: extent.start + span.start..extent.start + span.end,
                part: Some(span.start),
            },
            _ => whole(extent),
        }
    }

    /// Read the subchunks `stored` and write their elements, and read the index again.
    async fn read(&self, stored: &[Stored<'_>]) -> Result<(), Stop> {
        let Call {
            settings, requests, ..
        } = self.call;
        let share = settings.memory / *requests;
        let groups = groups(stored, S::REQUEST_BYTES.min(share), settings.gap);
        if let [group] = &*groups {
            return self.read_group(group, true).await;
        }
        let changed = AtomicBool::new(false);
        let (groups, is_changed) = (&*groups, &changed);
        let read = |number: usize| -> Task<'_> {
            Box::pin(async move {
                if is_changed.load(Ordering::Relaxed) {
                    return Ok(());
                }
                match self.read_group(groups[number], false).await {
                    Err(Stop::Error(error)) => Err(error),
                    Err(Stop::Changed) => {
                        is_changed.store(true, Ordering::Relaxed);
                        Ok(())
                    }
                    Ok(()) => Ok(()),
                }
            })
        };
        (self.call.each)(groups.len(), self.call.requests_of_shard, &read).await?;
        if changed.into_inner() {
            return Err(Stop::Changed);
        }
        self.check_index().await
    }

    /// Keeps what was read: the shard was the same from the first byte to the last.
    fn finish(self) -> Result<(), Stop> {
        let Call {
            settings,
            caches,
            counters,
            ..
        } = self.call;
        if !self.windows.iter().all(Window::is_complete) {
            let missing = EngineError::Internal("a subchunk was not decoded");
            return Err(damage(self.shard, None, missing).into());
        }
        let mut damaged = self
            .damaged
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        add(&counters.damaged, damaged.len());
        lock(self.call.damaged).append(&mut damaged);
        let decoded = self
            .decoded
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        for (number, subchunk) in decoded {
            let key = (self.shard.key.clone(), number);
            caches
                .subchunks
                .keep(key, &subchunk, settings.subchunk_cache);
        }
        let key = self.shard.key.clone();
        caches.indices.keep(key, self.index, settings.index_cache);
        Ok(())
    }

    /// Write the elements of a subchunk that was kept. Returns false if it was not.
    fn write_kept(&self, touched: Touched<'_>) -> Result<bool, ReaderError> {
        if self.call.settings.subchunk_cache == 0 {
            return Ok(false);
        }
        let number = touched.number();
        let key = (self.shard.key.clone(), number);
        let kept = self.call.caches.subchunks.get(&key);
        let Some(kept) = kept.filter(|kept| Arc::ptr_eq(&kept.index, self.index)) else {
            return Ok(false);
        };
        add(&self.call.counters.subchunk_hits, 1);
        for window in touched.windows() {
            let window = &self.windows[window];
            let written = window.write_row(number, &[&kept.elements], &mut Vec::new());
            written.map_err(|error| damage(self.shard, Some(number), error))?;
        }
        Ok(true)
    }

    /// Look for the last byte of each long subchunk: if the store has it, then the stored bytes justify
    /// the memory that the index asks for.
    async fn check_ends(&self, stored: &[Stored<'_>]) -> Result<(), Stop> {
        let ranges = stored.iter().map(|Stored { extent, .. }| {
            ByteRange::FromStart(extent.start as u64, Some(extent.len() as u64))
        });
        let ranges = last_bytes(&ranges.collect::<Vec<_>>());
        if ranges.is_empty() {
            return Ok(());
        }
        let mut buffer = Vec::new();
        let read = self
            .call
            .source
            .read(self.opened, &ranges, &mut buffer)
            .await;
        self.call.count(&ranges, ranges.len() as u64);
        match read {
            Ok(None) => Err(Stop::Changed),
            Ok(read) => {
                let checked = check_last_bytes(ranges.len(), read);
                Ok(checked.map_err(|error| damage(self.shard, None, error))?)
            }
            Err(error) => {
                self.check_index().await?;
                Err(damage(self.shard, None, error).into())
            }
        }
    }

    /// Read the index again, and compare.
    async fn check_index(&self) -> Result<(), Stop> {
        match self.call.encoded_index(self.shard, self.opened).await? {
            Some(encoded) if encoded == self.index.encoded => Ok(()),
            _ => Err(Stop::Changed),
        }
    }

    /// Read the subchunks of `group`, and write their elements. With `and_index` the index is read
    /// by the same request, and compared.
    async fn read_group(&self, group: &[Stored<'_>], and_index: bool) -> Result<(), Stop> {
        let to_u64 = |extent: &Range<usize>| extent.start as u64..extent.end as u64;
        let merged = Merged::near(
            self.call.settings.gap,
            group.iter().map(|stored| to_u64(&stored.extent)),
        );
        let mut ranges = merged.byte_ranges();
        let mut bytes = merged.total();
        if and_index {
            ranges.push(self.shard.sharding.index.byte_range());
            bytes += self.index.encoded.len() as u64;
        }
        let mut buffer = take_buffer();
        let source = self.call.source;
        let read = source.read(self.opened, &ranges, &mut buffer).await;
        self.call.count(&ranges, bytes);
        add(&self.call.counters.subchunks_read, group.len());
        let done = match read {
            Err(error) => {
                // Perhaps the shard is another one, and shorter.
                self.check_index().await?;
                Err(Stop::Error(store_error(self.shard, error)))
            }
            Ok(None) => Err(Stop::Changed),
            Ok(Some(mut read)) => {
                let index = if and_index { read.pop() } else { None };
                let is_same = index.is_none_or(|index| index.as_ref() == self.index.encoded);
                if is_same {
                    let decoded = self.decode(group, &merged, &read);
                    // A shard that was replaced is no damaged one. The store may have read its ranges from
                    // several versions.
                    if decoded.is_err() {
                        self.check_index().await?;
                    }
                    decoded.map_err(Stop::Error)
                } else {
                    Err(Stop::Changed)
                }
            }
        };
        keep_buffer(buffer);
        done
    }

    /// Decode the subchunks of `group` from the bytes of the ranges `merged` that were `read`.
    fn decode(
        &self,
        group: &[Stored<'_>],
        merged: &Merged,
        read: &[Fetched<'_>],
    ) -> Result<(), ReaderError> {
        /// Fewer bytes than this are decoded sooner than another thread is woken.
        const AT_ONCE: usize = 512 << 10;
        let mut subchunks = Vec::with_capacity(group.len());
        for stored in group {
            let (touched, extent) = (stored.touched, &stored.extent);
            let range = extent.start as u64..extent.end as u64;
            let place = if range.is_empty() {
                Some(&[][..])
            } else {
                merged
                    .place(read, &range)
                    .and_then(|(at, place)| read.get(at)?.as_ref().get(place))
            };
            let missing = || {
                let source = StorageError::Other("the store returned other bytes".to_string());
                store_error(self.shard, source)
            };
            let (number, bytes) = (touched.number(), place.ok_or_else(missing)?);
            match stored.part {
                None => subchunks.push(EncodedSubchunk {
                    number,
                    bytes: Some(bytes),
                }),
                Some(first) => touched
                    .windows()
                    .try_for_each(|window| self.windows[window].write_span(number, bytes, first))
                    .map_err(|error| failed(self.shard, Some(number), error))?,
            }
        }
        let bytes = self.shard.sharding.grid.subchunk_bytes();
        let share = (AT_ONCE / bytes).max(1);
        let several = Several {
            windows: self.windows,
            group,
        };
        let mut sink: &dyn RowSink = match (self.windows, &several) {
            ([window], _) => window,
            (_, several) => several,
        };
        let keeping = Keeping {
            attempt: self,
            sink,
        };
        if self.call.settings.subchunk_cache > 0 {
            sink = &keeping;
        }
        let options = self.call.settings.codec_options.with_concurrent_target(1);
        let shares: Vec<&[EncodedSubchunk<'_>]> = subchunks.chunks(share).collect();
        let (shares, options) = (&*shares, &options);
        if let [share] = shares {
            return decoding(|| self.decode_share(share, sink, options));
        }
        threads::each(shares.len(), threads::cores(), |number| {
            decoding(|| self.decode_share(shares[number], sink, options))
        })
    }

    /// Decode some subchunks on this thread.
    fn decode_share(
        &self,
        subchunks: &[EncodedSubchunk<'_>],
        sink: &dyn RowSink,
        options: &CodecOptions,
    ) -> Result<(), ReaderError> {
        self.shard.sharding.with_job(options, |job| {
            if !self.call.settings.fill_damaged {
                let decoded = host_engine().decode_some(job, subchunks, sink);
                let Err(error) = decoded else {
                    return Ok(());
                };
                if matches!(error, EngineError::OutOfMemory { .. }) {
                    return Err(failed(self.shard, None, error));
                }
                // Which one it is: without the elements that were written already.
                for subchunk in subchunks {
                    let one = std::slice::from_ref(subchunk);
                    if let Err(error) = host_engine().decode_each(job, one, &|_, _| Ok(())) {
                        return Err(failed(self.shard, Some(subchunk.number), error));
                    }
                }
                return Err(failed(self.shard, None, error));
            }
            for subchunk in subchunks {
                let one = std::slice::from_ref(subchunk);
                if let Err(error) = host_engine().decode_some(job, one, sink) {
                    let number = subchunk.number;
                    if matches!(error, EngineError::OutOfMemory { .. }) {
                        return Err(failed(self.shard, Some(number), error));
                    }
                    let damage = Damage::new(self.shard.key.clone(), Some(number), error);
                    let filled = sink.fill_row(number, 1, job.fill_value);
                    filled.map_err(|error| self::damage(self.shard, Some(number), error))?;
                    lock(&self.damaged).push(damage);
                }
            }
            Ok(())
        })
    }
}

/// Keeps a copy of each subchunk that goes to `sink`.
struct Keeping<'a, S: Source> {
    attempt: &'a Attempt<'a, S>,
    sink: &'a dyn RowSink,
}

impl<S: Source> RowSink for Keeping<'_, S> {
    fn row_len(&self, first: usize, count: usize) -> usize {
        self.sink.row_len(first, count)
    }

    fn most_bytes(&self) -> usize {
        self.sink.most_bytes()
    }

    fn write_row(
        &self,
        first: usize,
        sources: &[&[u8]],
        buffer: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let (index, most) = (
            self.attempt.index,
            self.attempt.call.settings.subchunk_cache,
        );
        for (number, source) in (first..).zip(sources) {
            let mut decoded = lock(&self.attempt.decoded);
            // More than is kept need not be copied.
            if (decoded.len() + 1).saturating_mul(source.len()) <= most {
                let subchunk = Subchunk {
                    index: Arc::clone(index),
                    elements: source.to_vec(),
                };
                decoded.push((number, Arc::new(subchunk)));
            }
        }
        self.sink.write_row(first, sources, buffer)
    }

    fn fill_row(&self, first: usize, count: usize, element: &[u8]) -> Result<(), EngineError> {
        self.sink.fill_row(first, count, element)
    }
}

/// Several windows that want the same subchunks.
struct Several<'a> {
    windows: &'a [Window<'a>],
    /// The subchunks, by ascending number.
    group: &'a [Stored<'a>],
}

impl Several<'_> {
    /// The windows that want subchunk `number`.
    fn windows(&self, number: usize) -> impl Iterator<Item = &Window<'_>> {
        let found = self
            .group
            .binary_search_by_key(&number, |stored| stored.touched.number());
        let touched = found.ok().map(|at| self.group[at].touched);
        let windows = touched.into_iter().flat_map(Touched::windows);
        windows.map(|window| &self.windows[window])
    }
}

impl RowSink for Several<'_> {
    fn row_len(&self, _first: usize, _count: usize) -> usize {
        1
    }

    fn write_row(
        &self,
        first: usize,
        sources: &[&[u8]],
        buffer: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        for (number, source) in (first..).zip(sources) {
            for window in self.windows(number) {
                window.write_row(number, &[source], buffer)?;
            }
        }
        Ok(())
    }

    fn fill_row(&self, first: usize, count: usize, element: &[u8]) -> Result<(), EngineError> {
        (first..first + count).try_for_each(|number| {
            self.windows(number)
                .try_for_each(|window| window.fill_row(number, 1, element))
        })
    }
}

/// The subchunks that the windows of `shard` meet, by ascending number: pairs of a subchunk and a
/// window.
fn wanted(shard: &Shard<'_>) -> Vec<(usize, usize)> {
    let parts = shard.wanted.parts.iter().enumerate();
    let mut pairs: Vec<(usize, usize)> = parts
        .flat_map(|(window, part)| {
            let numbers = shard.sharding.grid.numbers_in(&part.start, &part.shape);
            numbers.into_iter().map(move |number| (number, window))
        })
        .collect();
    pairs.sort_unstable();
    pairs
}

/// Divides subchunks into groups that take at most about `most` bytes to read, with gaps of up to `gap`
/// bytes between them.
fn groups<'g, 'p>(stored: &'g [Stored<'p>], most: usize, gap: u64) -> Vec<&'g [Stored<'p>]> {
    let gap = usize::try_from(gap).unwrap_or(usize::MAX);
    let mut groups = Vec::new();
    let (mut from, mut sum) = (0, 0_usize);
    let mut end = None;
    for (at, Stored { extent, .. }) in stored.iter().enumerate() {
        let between = end.and_then(|end| extent.start.checked_sub(end));
        let between = between.filter(|between| *between <= gap).unwrap_or(0);
        let cost = extent.len().saturating_add(between);
        if at > from && sum.saturating_add(cost) > most {
            groups.push(&stored[from..at]);
            (from, sum) = (at, extent.len());
        } else {
            sum = sum.saturating_add(cost);
        }
        end = Some(extent.end);
    }
    if from < stored.len() {
        groups.push(&stored[from..]);
    }
    groups
}

fn damage(
    shard: &Shard<'_>,
    subchunk: Option<usize>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> ReaderError {
    ReaderError::Damaged(Damage::new(shard.key.clone(), subchunk, source))
}

/// The error for a subchunk that was not decoded: memory may lack for one that is not damaged.
fn failed(shard: &Shard<'_>, subchunk: Option<usize>, error: EngineError) -> ReaderError {
    match error {
        EngineError::OutOfMemory { what, bytes } => ReaderError::Memory { what, bytes },
        error => damage(shard, subchunk, error),
    }
}

fn store_error(shard: &Shard<'_>, source: StorageError) -> ReaderError {
    ReaderError::Store {
        key: shard.key.clone(),
        source,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The buffer that this thread reads files into.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

fn take_buffer() -> Vec<u8> {
    BUFFER.take()
}

fn keep_buffer(buffer: Vec<u8>) {
    /// Longer ones are given back.
    const KEEP: usize = 16 << 20;
    if buffer.capacity() <= KEEP {
        BUFFER.set(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_count_the_gaps_that_are_read() {
        let touched = Touched(&[(0, 0)]);
        let lens = |extents: &[Range<usize>], most, gap| -> Vec<usize> {
            let stored: Vec<_> = extents
                .iter()
                .map(|extent| Stored {
                    touched,
                    extent: extent.clone(),
                    part: None,
                })
                .collect();
            groups(&stored, most, gap)
                .iter()
                .map(|group| group.len())
                .collect()
        };
        assert_eq!(lens(&[], 9, 9), [0; 0]);
        assert_eq!(lens(&[0..4, 4..8, 8..12], 8, 0), [2, 1]);
        assert_eq!(
            lens(&[0..4, 4..8, 8..12], 0, 0),
            [1, 1, 1],
            "one is always allowed"
        );
        // The bytes between are read where the gap is small enough, and count.
        assert_eq!(lens(&[0..4, 10..14, 20..24], 14, 6), [2, 1]);
        assert_eq!(lens(&[0..4, 10..14, 20..24], 14, 5), [3]);
        assert_eq!(
            lens(&[20..24, 0..4, 4..4, 4..8], 12, 9),
            [4],
            "in any order"
        );
    }
}
