//! The host memory of the open writers of this process.
//!
//! A writer *reserves* its smallest buffers when it is made: with these it can always go on alone.
//! Further buffers are *lent* to it from the rest of the memory that its options allow, when there is
//! any, and given back. So no writer waits for the buffers of another one.
//!
//! Lent buffers are not called back while they are in use. A writer that is made meanwhile may let all
//! writers have more than the limit, until these buffers come back.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::process::per_process::PerProcess;

static ACCOUNT: PerProcess<Mutex<Account>> = PerProcess::new(Mutex::default);

/// The memory of all open writers, in bytes.
#[derive(Default)]
struct Account {
    writers: usize,
    reserved: usize,
    lent: usize,
    debtors: Vec<Weak<dyn Debtor>>,
}

/// A pool with buffers that were lent.
pub trait Debtor: fmt::Debug + Send + Sync {
    /// Returns whether buffers are lent to it.
    fn has_lent(&self) -> bool;

    /// Frees the lent buffers that are not in use.
    fn give_back(&self);

    /// Frees all buffers that are not in use.
    fn free_all(&self);
}

/// The memory that open writers have reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    pub writers: usize,
    /// In bytes.
    pub bytes: usize,
}

/// Returns the memory that open writers have reserved.
pub fn reserved() -> Reserved {
    let account = lock();
    Reserved {
        writers: account.writers,
        bytes: account.reserved,
    }
}

/// The memory that a writer has reserved, until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    bytes: usize,
    process: u32,
}

impl Reservation {
    /// Reserves `bytes`, if all open writers then have at most `limit` bytes.
    ///
    /// # Errors
    /// They would have more: what they have now.
    pub fn take(bytes: usize, limit: usize) -> Result<Self, Reserved> {
        let mut account = lock();
        let sum = account.reserved.checked_add(bytes);
        if sum.is_none_or(|sum| sum > limit) {
            return Err(Reserved {
                writers: account.writers,
                bytes: account.reserved,
            });
        }
        account.reserved += bytes;
        account.writers += 1;
        Ok(Self {
            bytes,
            process: std::process::id(),
        })
    }

    /// Lets it be at least `bytes`.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub fn extend(&mut self, bytes: usize, limit: usize) -> Result<(), Reserved> {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else {
            return Ok(());
        };
        let mut more = Self::take(more, limit)?;
        self.bytes += std::mem::take(&mut more.bytes);
        // The writer that `more` counts is this one.
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // A forked child has an account of its own.
        if self.process == std::process::id() {
            let mut account = lock();
            account.reserved -= self.bytes;
            account.writers -= 1;
        }
    }
}

/// Lends buffers to the pools of a writer.
#[derive(Clone, Copy, Debug)]
pub struct Lender {
    /// The most bytes of all open writers for which this one is lent a buffer.
    limit: usize,
    process: u32,
}

impl Lender {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            process: std::process::id(),
        }
    }

    /// Notes a pool that gives back what it does not use when another one wants it.
    pub(crate) fn note(debtor: Weak<dyn Debtor>) {
        let mut account = lock();
        account.debtors.retain(|debtor| debtor.strong_count() > 0);
        account.debtors.push(debtor);
    }

    /// Lends a buffer of `bytes`. Returns whether there is memory for it.
    pub(crate) fn lend(&self, bytes: usize) -> bool {
        let mut account = lock();
        let all = account.reserved.checked_add(account.lent);
        let fits = all
            .and_then(|all| all.checked_add(bytes))
            .is_some_and(|all| all <= self.limit);
        if fits {
            account.lent += bytes;
        }
        fits
    }

    /// Takes back `bytes` that were lent.
    pub(crate) fn take_back(&self, bytes: usize) {
        // A forked child has an account of its own.
        if bytes > 0 && self.process == std::process::id() {
            lock().lent -= bytes;
        }
    }

    /// Lets all pools give back what they do not use. No pool may be locked.
    pub(crate) fn call_back() {
        let debtors: Vec<_> = lock().debtors.iter().filter_map(Weak::upgrade).collect();
        for debtor in debtors {
            debtor.give_back();
        }
    }
}

fn lock() -> MutexGuard<'static, Account> {
    let account = ACCOUNT.get();
    account.lock().unwrap_or_else(PoisonError::into_inner)
}
