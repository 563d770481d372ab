//! Pools of host buffers of one size, to which used buffers come back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::contract::EngineError;
use crate::contract::stream::{BatchOutput, Returned};
use crate::memory::allocate;
use crate::process::account::{Debtor, Lender};

/// A pool of buffers of one size. Buffers are allocated when they are first needed, and kept.
#[derive(Debug)]
pub struct Pool {
    /// The size of each buffer in bytes.
    len: usize,
    contents: Contents,
    /// The most buffers that can be in use at the same time.
    most: usize,
    /// The number of buffers that the pool owns, and the lender of the others; `None` if it owns all.
    own: Option<(usize, Lender)>,
    huge_pages: bool,
    state: Mutex<PoolState>,
    returned: Arc<Returned>,
}

#[derive(Debug, Default)]
struct PoolState {
    free: Vec<Vec<u8>>,
    in_use: usize,
    /// The number of buffers that are lent to the pool, in use or free.
    lent: usize,
    /// Whether a store kept the last buffer that came out of use. Then the next buffer in use will probably
    /// not come back, either.
    kept: bool,
}

/// The contents of a new buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Zeros, as many as the capacity. A used buffer keeps its contents.
    Zeros,
    /// No bytes. A used buffer is emptied. The buffer may grow beyond its first capacity.
    Nothing,
}

/// A buffer in use. Dropping it gives it back to the pool.
#[derive(Debug)]
pub struct Lease {
    buffer: Vec<u8>,
    pool: Arc<Pool>,
    is_new: bool,
    /// Whether a store keeps the buffer, so that it does not go back to the pool.
    forgotten: AtomicBool,
}

impl Pool {
    /// Returns a pool that owns all of its buffers.
    #[cfg(any(test, feature = "fakes"))]
    pub fn new(
        len: usize,
        contents: Contents,
        most: usize,
        huge_pages: bool,
        returned: Arc<Returned>,
    ) -> Arc<Self> {
        Self::lending(len, contents, most, None, huge_pages, returned)
    }

    /// Returns a pool that owns `own` buffers. Others are lent to it while there is memory.
    pub fn lending(
        len: usize,
        contents: Contents,
        most: usize,
        own: Option<(usize, Lender)>,
        huge_pages: bool,
        returned: Arc<Returned>,
    ) -> Arc<Self> {
        let pool = Arc::new(Self {
            len,
            contents,
            most: most.max(1),
            own: own.filter(|(own, _)| *own < most),
            huge_pages,
            state: Mutex::default(),
            returned,
        });
        if pool.own.is_some() {
            let debtor: Arc<dyn Debtor> = pool.clone();
            Lender::note(Arc::downgrade(&debtor));
        }
        pool
    }

    fn state(&self) -> std::sync::MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a buffer; returns `None` if all are in use, or there is no memory to lend another one. Unless
    /// `new`, it also returns `None` instead of allocating a buffer, if one is in use that will probably come
    /// back.
    pub fn take(self: &Arc<Self>, new: bool) -> Result<Option<Lease>, EngineError> {
        let mut has_called = false;
        let free = loop {
            let mut state = self.state();
            let comes_back = state.in_use > 0 && !state.kept;
            let waits = state.free.is_empty() && comes_back && !new;
            if waits || state.in_use >= self.most {
                return Ok(None);
            }
            if state.free.is_empty()
                && let Some((own, lender)) = self.own
                && state.in_use >= own
            {
                if lender.lend(self.len) {
                    state.lent += 1;
                } else if has_called {
                    return Ok(None);
                } else {
                    drop(state);
                    Lender::call_back();
                    has_called = true;
                    continue;
                }
            }
            state.in_use += 1;
            break state.free.pop();
        };
        let is_new = free.is_none();
        let mut lease = Lease {
            buffer: free.unwrap_or_default(),
            pool: self.clone(),
            is_new,
            forgotten: AtomicBool::new(false),
        };
        if is_new {
            let new = match self.contents {
                Contents::Zeros => allocate::zeroed,
                Contents::Nothing => allocate::with_capacity,
            };
            lease.buffer = new(self.len, "a buffer of a stream", self.huge_pages)?;
        }
        match self.contents {
            Contents::Zeros => lease.buffer.resize(self.len, 0),
            Contents::Nothing => lease.buffer.clear(),
        }
        Ok(Some(lease))
    }

    /// Gives memory back to the lender after the number of buffers became smaller. Lent buffers count as gone
    /// before owned ones.
    fn settle(&self, state: &mut PoolState) {
        let Some((own, lender)) = self.own else {
            return;
        };
        let lent = (state.in_use + state.free.len()).saturating_sub(own);
        lender.take_back(state.lent.saturating_sub(lent) * self.len);
        state.lent = state.lent.min(lent);
    }

    /// Frees unused buffers, until the pool has at most `most` buffers.
    fn shrink(&self, most: usize) {
        let mut state = self.state();
        let surplus = (state.in_use + state.free.len()).saturating_sub(most);
        let left = state.free.len() - surplus.min(state.free.len());
        let freed = state.free.split_off(left);
        self.settle(&mut state);
        drop(state);
        drop(freed);
    }

    /// Takes a buffer; blocks until one is free. Allocates a new buffer instead of blocking, if the pool may
    /// have one more: the buffers in use belong to the caller or to a store, which may keep them for any
    /// time.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`], and [`EngineError::Unsuitable`] if the stream was given up.
    pub fn wait(self: &Arc<Self>) -> Result<Lease, EngineError> {
        loop {
            let seen = self.returned.count();
            self.returned.check()?;
            if let Some(lease) = self.take(true)? {
                return Ok(lease);
            }
            self.returned.wait(seen);
        }
    }
}

/// The time to wait for a used buffer before a new one is allocated. It is about as long as the first writes
/// to a new buffer take, because the system makes each page at the first write.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    begin: Instant,
    time: Duration,
}

impl Patience {
    /// Returns the time for a buffer of `bytes` bytes, which begins now.
    pub fn for_bytes(bytes: usize) -> Self {
        /// The bytes of new pages that the system makes in a microsecond.
        const RATE: usize = 4000;
        Self {
            begin: Instant::now(),
            time: Duration::from_micros((bytes / RATE) as u64),
        }
    }

    /// Returns the time that is left.
    pub fn left(&self) -> Duration {
        self.time.saturating_sub(self.begin.elapsed())
    }

    /// Returns whether no time is left.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}

impl Debtor for Pool {
    fn has_lent(&self) -> bool {
        self.state().lent > 0
    }

    fn free_all(&self) {
        self.shrink(0);
    }

    fn give_back(&self) {
        if let Some((own, _)) = self.own {
            self.shrink(own);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some((_, lender)) = self.own {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            lender.take_back(state.lent * self.len);
        }
    }
}

impl Lease {
    /// Returns whether the buffer was newly allocated.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Marks the buffer as kept by a store: it does not go back to the pool, which may allocate another one.
    pub(crate) fn forget(&self) {
        if !self.forgotten.swap(true, Ordering::Relaxed) {
            let mut state = self.pool.state();
            state.in_use -= 1;
            state.kept = true;
            self.pool.settle(&mut state);
            drop(state);
            self.pool.returned.came_back();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if *self.forgotten.get_mut() {
            return;
        }
        let mut state = self.pool.state();
        state.in_use -= 1;
        state.kept = false;
        // Only a buffer whose allocation succeeded goes back to the pool.
        if self.buffer.capacity() >= self.pool.len && self.pool.len > 0 {
            state.free.push(std::mem::take(&mut self.buffer));
        }
        self.pool.settle(&mut state);
        drop(state);
        self.pool.returned.came_back();
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl AsMut<[u8]> for Lease {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

impl BatchOutput for Lease {
    fn keep(&self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_unless_they_are_forgotten() {
        let returned = Arc::new(Returned::default());
        let pool = Pool::new(100, Contents::Zeros, 2, true, returned.clone());
        let mut first = pool.take(true).expect("memory").expect("free");
        assert!(first.is_new());
        assert_eq!(first.as_ref(), [0; 100]);
        first.bytes()[0] = 1;
        assert!(pool.take(false).expect("memory").is_none());
        let second = pool.take(true).expect("memory").expect("free");
        assert!(pool.take(true).expect("memory").is_none());
        let seen = returned.count();
        drop(first);
        assert_ne!(returned.count(), seen);
        let first = pool.take(true).expect("memory").expect("free");
        assert!(!first.is_new());
        assert_eq!(first.as_ref()[..2], [1, 0]);
        // A new buffer takes the place of the buffer that is kept.
        second.forget();
        second.forget();
        let third = pool.take(true).expect("memory").expect("free");
        assert!(third.is_new());
        drop(second);
        assert!(pool.take(true).expect("memory").is_none());
        drop((first, third));
        let again: Vec<_> = (0..3).map(|_| pool.take(true).expect("memory")).collect();
        assert_eq!(again.iter().filter(|lease| lease.is_some()).count(), 2);
    }

    fn lent(len: usize, own: usize, most: usize, limit: usize) -> Arc<Pool> {
        let own = Some((own, Lender::new(limit)));
        Pool::lending(len, Contents::Zeros, most, own, true, Arc::default())
    }

    #[test]
    fn a_pool_always_has_its_own_buffers() {
        // Nothing is lent, whatever others have.
        let pool = lent(100, 2, 4, 0);
        for _ in 0..3 {
            let own = [(); 2].map(|()| pool.take(true).expect("memory").expect("free"));
            assert!(pool.take(true).expect("memory").is_none());
            assert!(!pool.has_lent());
            // A buffer that a store keeps is not the pool's any more.
            own[0].forget();
            let another = pool.take(true).expect("memory").expect("free");
            assert!(pool.take(true).expect("memory").is_none());
            drop((own, another));
        }
    }

    #[test]
    fn lent_buffers_are_kept_until_they_are_wanted() {
        let pool = lent(100, 1, 3, usize::MAX);
        let all = [(); 3].map(|()| pool.take(true).expect("memory").expect("lent"));
        assert!(pool.take(true).expect("memory").is_none());
        // Nothing of it is free.
        pool.give_back();
        drop(all);
        assert!(pool.has_lent());
        let again = [(); 3].map(|()| pool.take(true).expect("memory").expect("free"));
        assert!(again.iter().all(|lease| !lease.is_new()));
        drop(again);
        pool.give_back();
        assert!(!pool.has_lent());
        let two = [(); 2].map(|()| pool.take(true).expect("memory").expect("lent"));
        assert_eq!(two.map(|lease| lease.is_new()), [false, true]);
        pool.shrink(0);
        assert!(!pool.has_lent());
        let new = pool.take(true).expect("memory").expect("its own");
        assert!(new.is_new());
    }

    #[test]
    fn buffers_that_are_kept_are_not_waited_for() {
        let pool = Pool::new(100, Contents::Zeros, 3, true, Arc::default());
        let [first, second] = [(); 2].map(|()| pool.take(true).expect("memory").expect("free"));
        assert!(pool.take(false).expect("memory").is_none());
        first.forget();
        let third = pool.take(false).expect("memory").expect("another one");
        drop((second, third));
        let [_third, _second] = [(); 2].map(|()| pool.take(false).expect("memory").expect("free"));
        assert!(pool.take(false).expect("memory").is_none());
    }

    #[test]
    fn nobody_waits_while_there_can_be_another_one() {
        let pool = Pool::new(100, Contents::Nothing, 2, true, Arc::default());
        let [first, second] = [(); 2].map(|()| pool.wait().expect("memory"));
        std::thread::scope(|scope| {
            let third = scope.spawn(|| pool.wait().expect("memory"));
            std::thread::sleep(Duration::from_millis(5));
            assert!(!third.is_finished());
            drop(first);
            assert!(!third.join().expect("no panic").is_new());
        });
        drop(second);
    }

    #[test]
    fn empty_buffers_come_back_empty() {
        let pool = Pool::new(10, Contents::Nothing, 1, true, Arc::default());
        for _ in 0..2 {
            let mut lease = pool.wait().expect("memory");
            assert!(lease.as_ref().is_empty() && lease.bytes().capacity() >= 10);
            lease.bytes().extend_from_slice(&[7; 30]);
        }
    }
}
