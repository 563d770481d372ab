//! Iterates over the slices of an array in order, also while a writer makes the array grow.

use std::fmt;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use zarrs::array::{ArraySubset, Element};
use zarrs_storage::ReadableStorageTraits;

use super::{ArrayReader, ReaderError};

/// The conditions under which an iterator stops to follow an array that grows.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.store_metadata()?;
/// use std::time::{Duration, Instant};
/// use zarrs_cuda::reader::{ArrayReader, Until};
///
/// // 48 slices, or as many as there are if none is new for some time.
/// let until = Until::length(48).or_deadline(Instant::now() + Duration::from_secs(5));
/// let reader = ArrayReader::builder(&array).build()?;
/// let blocks = reader.follow::<u16>(16.try_into()?, Duration::from_millis(100), until)?;
/// assert_eq!(blocks.count(), 3);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Until {
    length: Option<u64>,
    deadline: Option<Instant>,
    cancel: Option<Cancel>,
}

impl Until {
    /// Never stops: the iterator follows the array for ever.
    pub fn forever() -> Self {
        Self::default()
    }

    /// Stops when the iterator has returned `slices` slices, counted from the start of the array.
    pub fn length(slices: u64) -> Self {
        Self::default().or_length(slices)
    }

    /// Also stops when the iterator has returned `slices` slices, counted from the start of the array.
    pub fn or_length(mut self, slices: u64) -> Self {
        self.length = Some(slices);
        self
    }

    /// Also stops if the array has no new slice at `deadline`.
    pub fn or_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Also stops when `cancel` is called. Blocks of slices that were read before are returned first.
    pub fn or_cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }
}

/// Stops iterators that follow an array, from any thread.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.store_metadata()?;
/// use std::time::Duration;
/// use zarrs_cuda::reader::{ArrayReader, Cancel, Until};
///
/// let cancel = Cancel::new();
/// let until = Until::forever().or_cancel(&cancel);
/// let reader = ArrayReader::builder(&array).build()?;
/// let mut blocks = reader.follow::<u16>(16.try_into()?, Duration::from_millis(100), until)?;
/// let first = blocks.next().ok_or("no slices")??;
/// assert_eq!(first.len(), 16 * 64);
/// cancel.cancel(); // from any thread
/// for block in blocks {
///     block?; // the blocks that were read ahead
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<(Mutex<bool>, Condvar)>);

impl Cancel {
    /// Returns a handle that is not cancelled, and that no iterator has yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops the iterators that have this handle.
    pub fn cancel(&self) {
        let (is_cancelled, changed) = &*self.0;
        *is_cancelled.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `end`, or until this handle is cancelled or `stop` is set. Returns whether it is cancelled
    /// or set.
    fn wait(&self, end: Instant, stop: &AtomicBool) -> bool {
        let (is_cancelled, changed) = &*self.0;
        let mut guard = is_cancelled.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if *guard || stop.load(Ordering::Relaxed) {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = changed.wait_timeout(guard, left);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Wakes the threads that wait, so that they check their conditions again.
    fn wake(&self) {
        let (is_cancelled, changed) = &*self.0;
        drop(is_cancelled.lock().unwrap_or_else(PoisonError::into_inner));
        changed.notify_all();
    }
}

/// An iterator over the slices of an array, several at a time. A thread reads one block ahead.
///
/// The iterator ends after an error. It belongs to the process that made it: in a forked child process it
/// returns an error.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::reader::ArrayReader;
///
/// let reader = ArrayReader::builder(&array).build()?;
/// let mut rows = Vec::new();
/// for block in reader.iter_slices::<u16>(24.try_into()?)? {
///     rows.push(block?.len() / 64); // the next block is being read meanwhile
/// }
/// assert_eq!(rows, [24, 24, 16]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct Slices<T> {
    blocks: Receiver<Result<Vec<T>, ReaderError>>,
    stop: Arc<AtomicBool>,
    cancel: Cancel,
    process: u32,
    ended: bool,
}

impl<T> fmt::Debug for Slices<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slices").finish_non_exhaustive()
    }
}

impl<T> Iterator for Slices<T> {
    type Item = Result<Vec<T>, ReaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = if self.process == std::process::id() {
            self.blocks.recv().ok()
        } else {
            Some(Err(ReaderError::Unsupported {
                reason: "its process was forked after these slices were asked for, and the thread that reads them is the parent's: ask for them again".to_string(),
            }))
        };
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

impl<T> Drop for Slices<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.process == std::process::id() {
            self.cancel.wake();
        }
    }
}

impl<TStorage: ?Sized + ReadableStorageTraits + 'static> ArrayReader<TStorage> {
    /// Returns an iterator over the array from its start, with `slices` slices along the first axis at a
    /// time. The last block may have fewer slices. A thread reads the next block meanwhile.
    ///
    /// The thread reads whole subchunks. It takes the memory of three blocks, each rounded up to the extent
    /// of a subchunk.
    ///
    /// # Errors
    /// - [`ReaderError::Element`] if `T` is not the array's data type.
    /// - [`ReaderError::Unsupported`] if the array has no axis, or no thread can be started.
    ///
    /// The iterator returns the errors of [`read`](Self::read).
    pub fn iter_slices<T: Element + bytemuck::Pod + Send>(
        &self,
        slices: NonZeroU64,
    ) -> Result<Slices<T>, ReaderError> {
        self.slices(slices, None)
    }

    /// Returns slices as [`iter_slices`](Self::iter_slices) does, while the array grows. At the end of the
    /// array, its metadata is read again every `poll`. A block has fewer than `slices` slices only if `until`
    /// ends the iteration.
    ///
    /// # Errors
    /// The errors of [`iter_slices`](Self::iter_slices). The iterator also returns
    /// [`ReaderError::Unsupported`] if the array is replaced by another one, or if its metadata cannot be
    /// read in three successive attempts.
    pub fn follow<T: Element + bytemuck::Pod + Send>(
        &self,
        slices: NonZeroU64,
        poll: Duration,
        until: Until,
    ) -> Result<Slices<T>, ReaderError> {
        self.slices(slices, Some((poll, until)))
    }

    fn slices<T: Element + bytemuck::Pod + Send>(
        &self,
        slices: NonZeroU64,
        follow: Option<(Duration, Until)>,
    ) -> Result<Slices<T>, ReaderError> {
        self.check_type::<T>()?;
        if self.array().dimensionality() == 0 {
            return Err(ReaderError::Unsupported {
                reason: "an array without axes has no slices".to_string(),
            });
        }
        let cancel = follow.as_ref().and_then(|(_, until)| until.cancel.clone());
        let cancel = cancel.unwrap_or_default();
        let stop = Arc::new(AtomicBool::new(false));
        let (send, blocks) = sync_channel(1);
        let ahead = Ahead {
            reader: self.clone(),
            slices: slices.get(),
            follow,
            stop: stop.clone(),
            cancel: cancel.clone(),
            failures: 0,
        };
        let thread = std::thread::Builder::new().name("zarrs_cuda slices".to_string());
        let started = thread.spawn(move || ahead.run(&send));
        started.map_err(|error| ReaderError::Unsupported {
            reason: format!("no thread to read ahead: {error}"),
        })?;
        Ok(Slices {
            blocks,
            stop,
            cancel,
            process: std::process::id(),
            ended: false,
        })
    }
}

/// Reads ahead, on a thread of its own.
struct Ahead<TStorage: ?Sized> {
    reader: ArrayReader<TStorage>,
    slices: u64,
    follow: Option<(Duration, Until)>,
    stop: Arc<AtomicBool>,
    cancel: Cancel,
    /// The number of successive attempts to read the metadata that failed.
    failures: usize,
}

/// The number of successive attempts to read metadata, which may be half written.
const ATTEMPTS: usize = 3;

impl<TStorage: ?Sized + ReadableStorageTraits + 'static> Ahead<TStorage> {
    fn run<T: Element + bytemuck::Pod>(mut self, send: &SyncSender<Result<Vec<T>, ReaderError>>) {
        let mut take = |block| send.send(Ok(block)).is_ok();
        // Without this, the iterator would take a panic for the end of the array.
        let ended = catch_unwind(AssertUnwindSafe(|| self.read_all(&mut take)));
        let panicked = |_| {
            let reason = "a store panicked while slices were read".to_string();
            Err(ReaderError::Unsupported { reason })
        };
        if let Err(error) = ended.unwrap_or_else(panicked) {
            // The iterator may have been dropped.
            let _ = send.send(Err(error));
        }
    }

    /// Gives each block to `take`, until the slices end or `take` returns false.
    fn read_all<T: Element + bytemuck::Pod>(
        &mut self,
        take: &mut dyn FnMut(Vec<T>) -> bool,
    ) -> Result<(), ReaderError> {
        // `take` got the slices before `at`. The slices from `first` to `read_to` are in `pending`.
        let (mut at, mut first, mut read_to) = (0, 0, 0);
        let mut pending = Vec::<T>::new();
        let mut extents = self.reader.array().shape()[1..].iter();
        let per_slice = extents.try_fold(1_u64, |len, extent| len.checked_mul(*extent));
        // Slices that were read are in memory, so a `usize` can count their elements.
        let len = |slices: u64| {
            let len = per_slice.and_then(|per_slice| per_slice.checked_mul(slices));
            len.and_then(|len| usize::try_from(len).ok())
                .unwrap_or(usize::MAX)
        };
        loop {
            if self.stop.load(Ordering::Relaxed) || self.cancel.is_cancelled() {
                return Ok(());
            }
            let length = self.length();
            let is_last = self.slices > length.saturating_sub(at);
            if is_last && self.grows(length)? {
                continue;
            }
            let end = length.min(at.saturating_add(self.slices));
            if at >= end {
                return Ok(());
            }
            if read_to < end {
                // The range ends with a whole subchunk, so that no subchunk is decoded twice.
                let depth = self.reader.depth();
                let whole = end.checked_next_multiple_of(depth);
                let to = whole.unwrap_or(length).min(length);
                let mut ranges: Vec<_> =
                    self.reader.array().shape().iter().map(|d| 0..*d).collect();
                ranges[0] = read_to..to;
                let read = self
                    .reader
                    .read::<T>(&ArraySubset::new_with_ranges(&ranges))?;
                if at == read_to {
                    pending = read;
                } else {
                    pending.drain(..len(at - first));
                    pending.extend_from_slice(&read);
                }
                (first, read_to) = (at, to);
            }
            let block = if (first, read_to) == (at, end) {
                std::mem::take(&mut pending)
            } else {
                pending[len(at - first)..len(end - first)].to_vec()
            };
            if !take(block) {
                return Ok(());
            }
            at = end;
        }
    }

    /// Returns the number of slices to return in total, as far as it is known now.
    fn length(&self) -> u64 {
        let length = self.reader.array().shape()[0];
        let most = self.follow.as_ref().and_then(|(_, until)| until.length);
        most.map_or(length, |most| most.min(length))
    }

    /// Waits, and checks whether the array has more than `length` slices. Returns false if the iterator
    /// returns no more slices.
    fn grows(&mut self, length: u64) -> Result<bool, ReaderError> {
        let Some((poll, until)) = &self.follow else {
            return Ok(false);
        };
        if until.length.is_some_and(|most| most <= length) {
            return Ok(false);
        }
        // The clock is read before the metadata, so that slices which were added before the deadline are
        // returned.
        let is_over = until
            .deadline
            .is_some_and(|deadline| deadline <= Instant::now());
        match self.reader.opened_again() {
            Ok(grown) => {
                self.failures = 0;
                if grown.array().shape()[0] > self.reader.array().shape()[0] {
                    self.reader = grown;
                    return Ok(true);
                }
            }
            Err(error) => {
                self.failures += 1;
                if is_over || self.failures == ATTEMPTS {
                    return Err(error);
                }
            }
        }
        if is_over {
            return Ok(false);
        }
        /// A time that is longer than any wait, and does not overflow an `Instant`.
        const LONG: Duration = Duration::from_secs(1 << 30);
        let mut end = Instant::now() + (*poll).min(LONG);
        if let Some(deadline) = until.deadline {
            end = end.min(deadline);
        }
        Ok(!self.cancel.wait(end, &self.stop))
    }
}
