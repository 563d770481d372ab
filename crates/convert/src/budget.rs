//! The budget of memory for the buffers of the process. Code asks the budget before it allocates a large
//! buffer.

use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::failure::Failure;
use crate::words::bytes_text;

/// The bytes of `--memory`, and how many of these bytes are in use.
#[derive(Debug)]
pub struct Budget {
    bytes: u64,
    taken: Mutex<u64>,
    freed: Condvar,
}

/// Bytes taken from a budget. Dropping the value gives them back.
#[derive(Debug)]
pub struct Taken<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            taken: Mutex::new(0),
            freed: Condvar::new(),
        }
    }

    /// Returns the size of the budget in bytes, whether they are in use or free.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns how many buffers of `each` bytes fit beside `fixed` bytes that are always in use: from 1 to
    /// `most`. It is 1 even if that buffer does not fit: [`must_fit`](Self::must_fit) checks this.
    pub fn at_once(&self, fixed: u64, each: u64, most: usize) -> usize {
        let fit = self.bytes.saturating_sub(fixed) / each.max(1);
        usize::try_from(fit)
            .unwrap_or(usize::MAX)
            .clamp(1, most.max(1))
    }

    /// Takes `bytes` from the budget. Waits until they are free.
    ///
    /// # Errors
    /// The whole budget has fewer bytes. The message says that this budget does not let the program do
    /// `doing`.
    pub fn take(&self, doing: impl fmt::Display, bytes: u64) -> Result<Taken<'_>, Failure> {
        self.must_fit(doing, bytes)?;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while taken.saturating_add(bytes) > self.bytes {
            let waited = self.freed.wait(taken);
            taken = waited.unwrap_or_else(PoisonError::into_inner);
        }
        *taken += bytes;
        Ok(Taken {
            budget: self,
            bytes,
        })
    }

    /// Checks that the whole budget has at least `bytes`. `doing` is the work that needs them, as "compact
    /// the shard 0,1".
    pub fn must_fit(&self, doing: impl fmt::Display, bytes: u64) -> Result<(), Failure> {
        if bytes <= self.bytes {
            return Ok(());
        }
        Err(self.refusal(doing, bytes, ""))
    }

    /// Returns the error for work that needs more memory than the budget. The message ends with the
    /// `--memory` that would be enough, and then `or`, as ", or …".
    pub fn refusal(&self, doing: impl fmt::Display, bytes: u64, or: &str) -> Failure {
        Failure::failed(format!(
            "cannot {doing}: that takes {} of memory, and --memory is {}",
            bytes_text(bytes),
            bytes_text(self.bytes)
        ))
        .with_remedy(format!("give --memory {}{or}", argument(bytes)))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let taken = self.budget.taken.lock();
        let mut taken = taken.unwrap_or_else(PoisonError::into_inner);
        *taken = taken.saturating_sub(self.bytes);
        self.budget.freed.notify_all();
    }
}

/// Returns `bytes`, rounded up to whole MiB, as an argument for `--memory` or `--shard-size`.
pub fn argument(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    format!("{}MiB", bytes.div_ceil(MIB).max(1))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::{Budget, argument};

    #[test]
    fn no_more_is_taken_than_there_is() {
        let budget = Budget::new(100);
        let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for bytes in [30, 40, 50, 60, 100, 1] {
                let (budget, now, most) = (&budget, &now, &most);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let taken = budget.take("test", bytes).unwrap();
                        let all = now.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        most.fetch_max(all, Ordering::SeqCst);
                        now.fetch_sub(bytes, Ordering::SeqCst);
                        drop(taken);
                    }
                });
            }
        });
        assert!(most.into_inner() <= 100);
        assert!(budget.take("test", 101).is_err());
    }

    #[test]
    fn at_least_one_is_done_at_once() {
        let budget = Budget::new(100);
        assert_eq!(budget.at_once(0, 30, 8), 3);
        assert_eq!(budget.at_once(50, 30, 8), 1);
        assert_eq!(budget.at_once(0, 1000, 8), 1);
        assert_eq!(budget.at_once(0, 0, 8), 8);
    }

    #[test]
    fn arguments_are_rounded_up() {
        assert_eq!(argument(1), "1MiB");
        assert_eq!(argument((5 << 20) + 1), "6MiB");
    }
}
