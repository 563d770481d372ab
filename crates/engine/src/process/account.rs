//! The account of the host memory of all open writers of this process.
//!
//! A writer *reserves* its smallest buffers when it is made, and can always go on with them alone. It may be
//! *lent* further buffers, which it gives back, from the rest of the memory that its options allow. So no
//! writer waits for the buffers of another one.
//!
//! A lent buffer in use cannot be called back. If another writer is made meanwhile, all writers together may
//! have more than the limit until the buffer comes back.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::process::per_process::PerProcess;

static ACCOUNT: PerProcess<Mutex<Account>> = PerProcess::new(Mutex::default);

/// The memory of all open writers: what they have reserved, what they are lent, and their pools.
#[derive(Default)]
struct Account {
    writers: usize,
    reserved: usize,
    lent: usize,
    debtors: Vec<Weak<dyn Debtor>>,
}

/// A pool that may have lent buffers.
pub trait Debtor: fmt::Debug + Send + Sync {
    /// Returns whether the pool has buffers that were lent to it.
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
    /// The number of bytes that they have reserved.
    pub bytes: usize,
}

/// Returns the number of open writers, and the memory that they have reserved.
pub fn reserved() -> Reserved {
    let account = lock();
    Reserved {
        writers: account.writers,
        bytes: account.reserved,
    }
}

/// The memory that a writer has reserved. Dropping the value frees it.
#[derive(Debug)]
pub struct Reservation {
    bytes: usize,
    process: u32,
}

impl Reservation {
    /// Reserves `bytes`, if all open writers together then have reserved at most `limit` bytes.
    ///
    /// # Errors
    /// The writers would have more than `limit`. The error is the memory that they have reserved so far.
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

    /// Increases the reservation to `bytes`, if it is smaller.
    ///
    /// # Errors
    /// The errors of [`take`](Self::take).
    pub fn extend(&mut self, bytes: usize, limit: usize) -> Result<(), Reserved> {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else {
            return Ok(());
        };
        let mut more = Self::take(more, limit)?;
        self.bytes += std::mem::take(&mut more.bytes);
        // `more` counts a second writer, and subtracts it again when it is dropped here.
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // A forked child has its own account.
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
    /// The most bytes that all open writers together may have after a buffer is lent.
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

    /// Remembers a pool, which [`call_back`](Self::call_back) asks to give back unused buffers.
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

    /// Takes back `bytes` bytes that were lent.
    pub(crate) fn take_back(&self, bytes: usize) {
        // A forked child has its own account.
        if bytes > 0 && self.process == std::process::id() {
            lock().lent -= bytes;
        }
    }

    /// Makes all pools give back their unused lent buffers. The caller holds no lock of a pool.
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
