//! Works on several shards at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::failure::Failure;

/// Shards that several lanes take one by one.
pub(super) struct Lanes<I> {
    shards: Mutex<I>,
    /// Whether no lane takes another shard, because one of them failed or was asked to stop.
    is_over: AtomicBool,
}

impl<I: Iterator + Send> Lanes<I> {
    /// Calls `lane` on `count` threads. Each lane takes shards with [`next`](Self::next).
    ///
    /// # Errors
    /// The failure of one of the lanes. The others finish the shards that they have taken.
    pub(super) fn run(
        shards: I,
        count: usize,
        lane: impl Fn(&Self) -> Result<(), Failure> + Sync,
    ) -> Result<(), Failure> {
        let lanes = Self {
            shards: Mutex::new(shards),
            is_over: AtomicBool::new(false),
        };
        let run = || lane(&lanes).inspect_err(|_| lanes.stop());
        thread::scope(|scope| {
            let others: Vec<_> = (1..count).map(|_| scope.spawn(run)).collect();
            others.into_iter().fold(run(), |all, other| {
                let other = other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                all.and(other)
            })
        })
    }

    /// Returns the next shard; `None` if there is no other, or the lanes are to stop.
    pub(super) fn next(&self) -> Option<I::Item> {
        if self.is_over.load(Ordering::Relaxed) {
            return None;
        }
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.next()
    }

    /// Lets no lane take another shard.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Barrier, Mutex};

    use super::Lanes;
    use crate::failure::Failure;

    #[test]
    fn each_shard_is_taken_once() {
        let sum = AtomicU64::new(0);
        let all_at_once = Barrier::new(3);
        Lanes::run(1..=100_u64, 3, |lanes| {
            all_at_once.wait();
            while let Some(shard) = lanes.next() {
                sum.fetch_add(shard, Ordering::Relaxed);
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(sum.into_inner(), 5050);
    }

    #[test]
    fn a_failure_stops_all_lanes() {
        let taken = Mutex::new(Vec::new());
        let failed = Lanes::run(0.., 3, |lanes| {
            while let Some(shard) = lanes.next() {
                taken.lock().unwrap().push(shard);
                if shard == 5 {
                    return Err(Failure::failed("the shard 5"));
                }
            }
            Ok(())
        });
        assert_eq!(failed.unwrap_err().to_string(), "the shard 5");
        let mut taken = taken.into_inner().unwrap();
        taken.sort_unstable();
        assert!(taken.iter().copied().eq(0..taken.len()), "{taken:?}");
    }
}
