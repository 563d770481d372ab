//! Shares a list of subchunks among the threads of the current rayon pool.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

use crate::contract::EngineError;
use crate::memory::fresh::Pages;
use crate::subchunk::scratch::Scratch;

/// A list of `items` divided into batches of consecutive items, and the number of threads for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    items: usize,
    batch: usize,
    threads: usize,
}

impl Schedule {
    /// Divides the items, of `item_bytes` each, into batches of about `target` bytes. There are so many
    /// batches that no thread waits long for the last one, and no more threads than there is work for.
    pub(super) fn new(
        items: usize,
        item_bytes: usize,
        target: usize,
        threads: NonZeroUsize,
    ) -> Self {
        /// The number of bytes for which it is worth waking another thread.
        const BYTES_PER_THREAD: usize = 64 << 10;
        /// The least number of batches for each thread: then the last batch is a small part of a thread's
        /// work.
        const BATCHES_PER_THREAD: usize = 4;

        let total = items.saturating_mul(item_bytes);
        let threads = match threads.get() {
            // Do not ask rayon: it could start its threads, or wait for them in a forked child.
            1 => 1,
            threads => threads.min(rayon::current_num_threads()),
        };
        let threads = threads
            .min(total.div_ceil(BYTES_PER_THREAD))
            .min(items)
            .max(1);
        let batch = (target / item_bytes.max(1))
            .min(items.div_ceil(threads * BATCHES_PER_THREAD))
            .max(1);
        Self {
            items,
            batch,
            threads,
        }
    }

    /// Returns the items of batch `number`.
    fn items_of(&self, number: usize) -> Option<Range<usize>> {
        let start = number.checked_mul(self.batch)?;
        (start < self.items).then(|| start..self.items.min(start + self.batch))
    }

    /// Returns the items of each batch, in order.
    pub(super) fn batches(&self) -> impl Iterator<Item = Range<usize>> {
        (0..).map_while(|number| self.items_of(number))
    }

    /// Calls `work` for each batch, with the buffers of the current thread, and the number and the items of
    /// the batch. Batches start in order.
    ///
    /// # Errors
    /// The first error that `work` returned. No batch starts after it.
    pub(super) fn run(
        &self,
        work: impl Fn(&mut Scratch, usize, Range<usize>) -> Result<(), EngineError> + Sync,
    ) -> Result<(), EngineError> {
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let worker = || {
            // The buffers are taken out of the thread, and not borrowed: a codec may call rayon, which may
            // then run another shard on this thread.
            let mut scratch = Scratch::take();
            while !failed.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(items) = self.items_of(number) else {
                    break;
                };
                work(&mut scratch, number, items)
                    .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            }
            Ok(())
        };
        if self.threads == 1 {
            return worker();
        }
        (0..self.threads)
            .into_par_iter()
            .with_max_len(1)
            .try_for_each(|_| worker())
    }
}

/// Makes the pages of the next `len` bytes of `vec`, each huge page by one thread: see
/// [`fresh`](crate::memory::fresh). This is worth it if little else is done with these bytes.
///
/// # Errors
/// The errors of [`Schedule::run`].
pub(super) fn make_pages(
    vec: &mut Vec<u8>,
    len: usize,
    threads: NonZeroUsize,
) -> Result<(), EngineError> {
    let pages = Pages::behind(vec, len);
    if pages.shares() == 0 {
        return Ok(());
    }
    let bytes_of_each = len.div_ceil(pages.shares());
    let schedule = Schedule::new(pages.shares(), bytes_of_each, bytes_of_each, threads);
    schedule.run(|_, _, shares| {
        for number in shares {
            pages.make(number);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_item_is_worked_on_once() {
        for (items, item_bytes, target) in
            [(0, 1, 1), (1, 0, 9), (7, 100_000, 1), (1000, 999, 5000)]
        {
            let schedule = Schedule::new(items, item_bytes, target, NonZeroUsize::MAX);
            let seen = Mutex::new(vec![0; items]);
            let batches = AtomicUsize::new(0);
            schedule
                .run(|_, _, range| {
                    batches.fetch_add(1, Ordering::Relaxed);
                    range.for_each(|i| seen.lock().expect("no panic")[i] += 1);
                    Ok(())
                })
                .expect("no error");
            assert!(seen.into_inner().expect("no panic").iter().all(|&n| n == 1));
            assert_eq!(batches.into_inner(), schedule.batches().count());
        }
    }

    #[test]
    fn an_error_stops_the_rest() {
        let schedule = Schedule::new(1000, 1 << 20, 1, NonZeroUsize::MAX);
        let started = AtomicUsize::new(0);
        let result = schedule.run(|_, _, _| {
            started.fetch_add(1, Ordering::Relaxed);
            Err(EngineError::Internal("a test"))
        });
        assert!(result.is_err());
        assert!(started.into_inner() <= rayon::current_num_threads());
    }
}
