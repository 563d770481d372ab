//! One shard: its frame, its index, and the elements of the subchunks that are wanted.

mod indexed;

use std::borrow::Cow;
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use zarrs_codec::{CodecError, CodecOptions};
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{StorageError, StoreKey};

use super::cache::{Caches, Index};
use super::error::Damage;
use super::frames::{ListedFrame, ListsFrames, Newest};
use super::metrics::{Counters, add};
use super::output::Place;
use super::request::WantedShard;
use super::source::{Fetched, Source};
use super::threads::{self, Each, Later, Task, decoding};
use super::{ReaderError, Settings};
use crate::plan::host_engine;
use crate::shard::error::{codec_error, engine_is_of_bytes, is_of_bytes, out_of_memory};
use crate::shard::reading::check_memory;
use crate::shard::sharding::Sharding;
use indexed::{Indexed, Keeping};
use zarrs_cuda_engine::contract::{EncodedSubchunk, EngineError, RowSink};
use zarrs_cuda_engine::memory::disjoint::Window;

/// How often a shard is read that is replaced meanwhile.
const ATTEMPTS: usize = 3;

/// Everything that the shards of one call have in common.
pub(super) struct Call<'a, S> {
    pub(super) source: &'a S,
    pub(super) frames: Option<&'a dyn ListsFrames>,
    pub(super) settings: &'a Settings,
    pub(super) caches: &'a Caches,
    pub(super) counters: &'a Counters,
    pub(super) place: &'a Place<'a>,
    pub(super) damaged: &'a Mutex<Vec<Damage>>,
    pub(super) absent: &'a Mutex<Vec<StoreKey>>,
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
    /// The shard was replaced, or its frame was packed into it.
    Changed,
    /// It failed, perhaps because the shard was replaced.
    Unsure(ReaderError),
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

    fn windows(self) -> impl Iterator<Item = usize> + Clone {
        self.0.iter().map(|(_, window)| *window)
    }
}

impl<S: Source> Call<'_, S> {
    /// Whether each request for subchunks reads the index, too, and others read it before and after. An
    /// index that was kept is not used.
    ///
    /// A consolidation may give a shard another index, and the next one the first index again. If other
    /// requests read the index, a subchunk could come from the shard in between.
    fn is_strict(&self) -> bool {
        self.frames.is_some() && !S::STAYS
    }

    /// Read the wanted elements of `shard`.
    pub(super) async fn read(&self, shard: &Shard<'_>) -> Result<(), ReaderError> {
        let mut last = None;
        // With frames one more, which takes each subchunk by itself.
        let attempts = ATTEMPTS + usize::from(self.frames.is_some());
        for number in 0..attempts {
            // A store may have read an index in two versions. A shard of such a store is filled only if its
            // index is bad twice.
            let fills_shard = self.settings.fill_damaged
                && (S::STAYS || matches!(last, Some(ReaderError::Damaged(_))));
            match self.attempt(shard, number, fills_shard).await {
                Ok(()) => return Ok(()),
                // Reading each subchunk by itself says less about a damaged shard.
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

    /// With `fills_shard`, a shard whose index cannot be decoded becomes fill values.
    async fn attempt(
        &self,
        shard: &Shard<'_>,
        number: usize,
        fills_shard: bool,
    ) -> Result<(), Stop> {
        let windows = self.windows(shard)?;
        let wanted = wanted(shard);
        let touched = wanted.chunk_by(|(a, _), (b, _)| a == b).map(Touched);
        let attempt = Attempt {
            call: self,
            shard,
            windows: &windows,
            damaged: Mutex::default(),
            is_absent: AtomicBool::new(false),
        };
        let mut is_framed = false;
        let mut in_shard: Vec<Touched<'_>> = touched.collect();
        // The frame is listed before the shard is read: a consolidation deletes a version only after
        // the shard has it.
        if let Some(frames) = self.frames {
            let frame = frames.list(&shard.key, number > 0).await;
            let frame = frame.map_err(|error| store_error(shard, error))?;
            let each = number == ATTEMPTS;
            is_framed = !frame.is_empty();
            in_shard = attempt.read_frame(&*frame, in_shard, each).await?;
        }
        if !in_shard.is_empty() {
            let read = attempt.read_shard(&in_shard, fills_shard).await;
            read.map_err(|stop| match stop {
                Stop::Error(error) if self.is_strict() => Stop::Unsure(error),
                stop => stop,
            })?;
        }
        attempt.finish(is_framed)
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
        let entries = entries.map_err(|error| not_decoded(shard, None, error))?;
        Ok(Some(Arc::new(Index::new(encoded, entries))))
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
        let len = index.len() as u64;
        let read = match self.request(opened, &range, len, &mut buffer).await {
            Ok(read) => read,
            Err(error) if got_no_answer(&error) => return Err(store_error(shard, error)),
            Err(error) => {
                return Err(match self.source.size(opened).await {
                    Ok(Some(size)) if size < len => {
                        let short = format!("it takes {len} bytes, and the shard has {size}");
                        damage(shard, None, short)
                    }
                    _ => store_error(shard, error),
                });
            }
        };
        let first = |read: Vec<Fetched<'_>>| read.first().map(|read| read.as_ref().to_vec());
        let encoded = read.map(|read| first(read).unwrap_or_default());
        keep_buffer(buffer);
        if let Some(encoded) = &encoded
            && encoded.len() as u64 != len
        {
            // Some stores return what there is of a range, and some return less.
            let got = encoded.len();
            return Err(match self.source.size(opened).await {
                Ok(Some(size)) if size < len => {
                    let short = format!("it takes {len} bytes, and the shard has {size}");
                    damage(shard, None, short)
                }
                _ => store_error(shard, other_bytes(got as u64, len)),
            });
        }
        Ok(encoded)
    }

    /// Read `ranges`, of so many bytes, and count that.
    async fn request<'b>(
        &'b self,
        opened: &'b S::Shard,
        ranges: &'b [ByteRange],
        bytes: u64,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Option<Vec<Fetched<'b>>>, StorageError> {
        let begin = Instant::now();
        let read = self.source.read(opened, ranges, buffer).await;
        self.counters.waited(begin.elapsed());
        add(&self.counters.requests, 1);
        add(&self.counters.ranges, ranges.len());
        if matches!(read, Ok(Some(_))) {
            self.counters.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        }
        read
    }
}

/// An attempt to read a shard and its frame.
struct Attempt<'a, S: Source> {
    call: &'a Call<'a, S>,
    shard: &'a Shard<'a>,
    windows: &'a [Window<'a>],
    /// The subchunks that became fill values, or the shard.
    damaged: Mutex<Vec<Damage>>,
    /// Whether the store has neither the shard nor a frame.
    is_absent: AtomicBool,
}

impl<S: Source> Attempt<'_, S> {
    /// Runs `count` parts of the attempt, several of them at once. No part begins after one that found
    /// the shard changed.
    async fn each<'p>(
        &'p self,
        count: usize,
        part: &'p (dyn Fn(usize) -> Later<'p, Result<(), Stop>> + Sync),
    ) -> Result<(), Stop> {
        let changed = AtomicBool::new(false);
        let is_changed = &changed;
        let task = |number: usize| -> Task<'_> {
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

    /// Read the subchunks of `touched` that `frame` lists, and write their elements. Returns the other
    /// subchunks. With `each`, read every subchunk by itself, from the frame or from the shard.
    async fn read_frame<'p>(
        &self,
        frame: &dyn ListedFrame,
        touched: Vec<Touched<'p>>,
        each: bool,
    ) -> Result<Vec<Touched<'p>>, Stop> {
        /// The number of bytes that are decoded together, to write long rows of elements.
        const AT_ONCE: usize = 1 << 20;
        let Call {
            settings,
            requests,
            requests_of_shard,
            ..
        } = self.call;
        let is_listed = |touched: &Touched<'_>| each || frame.has(touched.number());
        let (beside, in_shard): (Vec<_>, Vec<_>) = touched.into_iter().partition(is_listed);
        let share = AT_ONCE.min(settings.memory / *requests);
        let most = (share / self.shard.sharding.grid.subchunk_bytes()).max(1);
        let len = beside.len().div_ceil(requests_of_shard.get()).min(most);
        let groups: Vec<&[Touched<'_>]> = beside.chunks(len.max(1)).collect();
        let in_shard = Mutex::new(in_shard);
        let (groups, others) = (&*groups, &in_shard);
        let read = |number: usize| -> Later<'_, Result<(), Stop>> {
            Box::pin(async move {
                let mut in_shard = self.read_objects(frame, groups[number], each).await?;
                lock(others).append(&mut in_shard);
                Ok(())
            })
        };
        self.each(groups.len(), &read).await?;
        let mut in_shard = in_shard
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        in_shard.sort_unstable_by_key(|touched| touched.number());
        Ok(in_shard)
    }

    /// Read the newest versions of `group`, and write their elements. Returns the subchunks without a
    /// version.
    async fn read_objects<'p>(
        &self,
        frame: &dyn ListedFrame,
        group: &[Touched<'p>],
        each: bool,
    ) -> Result<Vec<Touched<'p>>, Stop> {
        let Call { counters, .. } = self.call;
        let (mut found, mut empty, mut in_shard) = (Vec::new(), Vec::new(), Vec::new());
        for &touched in group {
            let number = touched.number();
            let newest = if each {
                let read = frame.read(number).await;
                read.map(|read| read.map_or(Newest::Empty, Newest::Data))
            } else {
                frame.newest(number).await
            };
            match newest.map_err(|error| store_error(self.shard, error))? {
                Newest::Data(bytes) => {
                    add(&counters.requests, 1);
                    add(&counters.ranges, 1);
                    add(&counters.subchunks_read, 1);
                    add(&counters.bytes_read, bytes.len());
                    found.push((touched, bytes));
                }
                Newest::Empty => empty.push(touched),
                Newest::InShard => in_shard.push(touched),
                Newest::Gone => return Err(Stop::Changed),
            }
        }
        self.fill(empty)?;
        let found: Vec<_> = found.iter().map(|(of, bytes)| (*of, &**bytes)).collect();
        self.decode(&found, None)?;
        Ok(in_shard)
    }

    /// Read `touched` from the shard, and write their elements. With `fills_shard`, these are fill
    /// values if the index cannot be decoded.
    async fn read_shard(&self, touched: &[Touched<'_>], fills_shard: bool) -> Result<(), Stop> {
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
                // Some stores ask for the size of a shard first, and then for ranges. Another shard may
                // come in between.
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
        };
        let stored = match indexed.stored(touched).await {
            Err(Stop::Error(error)) if !is_fresh => {
                // The index was kept, and may be an old one.
                indexed.check_index().await?;
                return Err(Stop::Error(error));
            }
            stored => stored?,
        };
        if !stored.is_empty() {
            indexed.read(&stored).await?;
        }
        // Nothing was read that could be compared, or bytes that seem damaged are of another shard.
        if (stored.is_empty() && !is_fresh) || !lock(&self.damaged).is_empty() {
            indexed.check_index().await?;
        }
        indexed.keep();
        Ok(())
    }

    /// There is no shard: write the fill value to all that is wanted of `touched`.
    fn fill_absent(&self, touched: &[Touched<'_>]) -> Result<(), ReaderError> {
        self.is_absent.store(true, Ordering::Relaxed);
        self.fill(touched.iter().copied())
    }

    /// Write the fill value to all that is wanted of `touched`.
    fn fill<'p>(&self, touched: impl IntoIterator<Item = Touched<'p>>) -> Result<(), ReaderError> {
        let element = self.shard.sharding.fill_value.as_ne_bytes();
        for touched in touched {
            let number = touched.number();
            for window in touched.windows() {
                let filled = self.windows[window].fill_row(number, 1, element);
                filled.map_err(|error| damage(self.shard, Some(number), error))?;
            }
        }
        Ok(())
    }

    /// Checks that all elements were written, and reports damage, and that the shard is absent.
    fn finish(self, is_framed: bool) -> Result<(), Stop> {
        if !self.windows.iter().all(Window::is_complete) {
            let missing = EngineError::Internal("a subchunk was not decoded");
            return Err(damage(self.shard, None, missing).into());
        }
        let mut damaged = self
            .damaged
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        add(&self.call.counters.damaged, damaged.len());
        lock(self.call.damaged).append(&mut damaged);
        if self.is_absent.into_inner() && !is_framed {
            lock(self.call.absent).push(self.shard.key.clone());
        }
        Ok(())
    }

    /// Write the wanted elements of the subchunk `touched`. `bytes` are the bytes of the subchunk from
    /// byte `first` on.
    fn write_rows(
        &self,
        touched: Touched<'_>,
        bytes: &[u8],
        first: usize,
    ) -> Result<(), ReaderError> {
        let number = touched.number();
        let mut windows = touched.windows().map(|window| &self.windows[window]);
        let written = windows.try_for_each(|window| window.write_rows(number, bytes, first));
        written.map_err(|error| failed(self.shard, Some(number), error))
    }

    /// Decode encoded `subchunks`, by ascending number, and write their elements. Those of a shard with
    /// an index may be kept.
    fn decode(
        &self,
        subchunks: &[(Touched<'_>, &[u8])],
        indexed: Option<&Indexed<'_, S>>,
    ) -> Result<(), ReaderError> {
        /// Fewer bytes than this are decoded sooner than another thread is woken.
        const AT_ONCE: usize = 512 << 10;
        let several = Several {
            windows: self.windows,
            subchunks,
        };
        let mut sink: &dyn RowSink = match (self.windows, &several) {
            ([window], _) => window,
            (_, several) => several,
        };
        let keeping = indexed.map(|indexed| Keeping { indexed, sink });
        if self.call.settings.subchunk_cache > 0
            && let Some(keeping) = &keeping
        {
            sink = keeping;
        }
        let options = self.call.settings.codec_options.with_concurrent_target(1);
        let encoded = subchunks.iter().map(|(touched, bytes)| EncodedSubchunk {
            number: touched.number(),
            bytes: Some(bytes),
        });
        let encoded: Vec<_> = encoded.collect();
        let bytes = self.shard.sharding.grid.subchunk_bytes();
        let shares = encoded.chunks((AT_ONCE / bytes).max(1));
        let shares: Vec<&[EncodedSubchunk<'_>]> = shares.collect();
        let (shares, options) = (&*shares, &options);
        if let [share] = shares {
            return decoding(|| self.decode_share(share, sink, options));
        }
        threads::each(shares.len(), self.call.settings.threads(), |number| {
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
                if !engine_is_of_bytes(&error) {
                    return Err(failed(self.shard, None, error));
                }
                // Decoding one by one finds the damaged subchunk. No elements are written: some were written
                // already.
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
                    if !engine_is_of_bytes(&error) {
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

/// Several windows that want the same subchunks.
struct Several<'a> {
    windows: &'a [Window<'a>],
    /// By ascending number.
    subchunks: &'a [(Touched<'a>, &'a [u8])],
}

impl Several<'_> {
    /// The windows that want subchunk `number`.
    fn windows(&self, number: usize) -> impl Iterator<Item = &Window<'_>> {
        let found = self
            .subchunks
            .binary_search_by_key(&number, |(touched, _)| touched.number());
        let touched = found.ok().map(|at| self.subchunks[at].0);
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

fn damage(
    shard: &Shard<'_>,
    subchunk: Option<usize>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> ReaderError {
    ReaderError::Damaged(Damage::new(shard.key.clone(), subchunk, source))
}

/// The error for a subchunk that was not decoded. It may be intact, and memory short.
fn failed(shard: &Shard<'_>, subchunk: Option<usize>, error: EngineError) -> ReaderError {
    match error {
        EngineError::OutOfMemory { what, bytes } => ReaderError::Memory { what, bytes },
        error if engine_is_of_bytes(&error) => damage(shard, subchunk, error),
        error => undecided(shard, codec_error(error)),
    }
}

/// The error for an index, or for a subchunk, that codecs did not decode.
fn not_decoded(shard: &Shard<'_>, subchunk: Option<usize>, error: CodecError) -> ReaderError {
    if is_of_bytes(&error) {
        return damage(shard, subchunk, error);
    }
    undecided(shard, error)
}

/// The error for bytes that were not decoded, and may be right.
fn undecided(shard: &Shard<'_>, error: CodecError) -> ReaderError {
    if let Some((what, bytes)) = out_of_memory(&error) {
        return ReaderError::Memory { what, bytes };
    }
    match error {
        CodecError::StorageError(error) => store_error(shard, error),
        error => ReaderError::Undecided {
            key: shard.key.clone(),
            error,
        },
    }
}

/// The error of a store that was asked for `wanted` bytes which it has.
fn other_bytes(got: u64, wanted: u64) -> StorageError {
    StorageError::Other(format!("the store returned {got} bytes of {wanted}"))
}

/// Whether a store was not reached. Another request would wait as long again, and say nothing of the shard.
fn got_no_answer(error: &StorageError) -> bool {
    use std::io::ErrorKind;
    let StorageError::IOError(error) = error else {
        return false;
    };
    matches!(
        error.kind(),
        ErrorKind::TimedOut
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::NotConnected
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    )
}

fn store_error(shard: &Shard<'_>, error: StorageError) -> ReaderError {
    ReaderError::Store {
        key: shard.key.clone(),
        error,
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
