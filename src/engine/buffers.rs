//! Pools of host buffers of one size, which come back after use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::EngineError;
use super::memory;
use super::stream::{Output, Returned};

/// Buffers of one size, allocated when they are first needed, and kept.
#[derive(Debug)]
pub(crate) struct Pool {
    /// In bytes.
    len: usize,
    contents: Contents,
    /// The most buffers that can be in use at once.
    most: usize,
    huge_pages: bool,
    state: Mutex<State>,
    returned: Arc<Returned>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Vec<u8>>,
    in_use: usize,
    /// Whether a store kept the last buffer that was done with. Then waiting for the next one is
    /// probably in vain.
    kept: bool,
}

/// What a new buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Zeros, as many as it has room for. A used buffer keeps its contents.
    Zeros,
    /// Nothing; a used buffer is emptied. It may grow beyond its room.
    Nothing,
}

/// A buffer in use. It goes back to the pool on drop.
#[derive(Debug)]
pub(crate) struct Lease {
    buffer: Vec<u8>,
    pool: Arc<Pool>,
    is_new: bool,
    /// Whether the buffer does not go back to the pool.
    forgotten: AtomicBool,
}

impl Pool {
    pub(crate) fn new(
        len: usize,
        contents: Contents,
        most: usize,
        huge_pages: bool,
        returned: Arc<Returned>,
    ) -> Arc<Self> {
        Arc::new(Self {
            len,
            contents,
            most: most.max(1),
            huge_pages,
            state: Mutex::default(),
            returned,
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a buffer; `None` if all are in use. Unless `new`, no buffer is allocated while another
    /// one is in use that will probably come back; the result is `None` then, too.
    pub(crate) fn take(self: &Arc<Self>, new: bool) -> Result<Option<Lease>, EngineError> {
        let free = {
            let mut state = self.state();
            let comes_back = state.in_use > 0 && !state.kept;
            let waits = state.free.is_empty() && comes_back && !new;
            if waits || state.in_use >= self.most {
                return Ok(None);
            }
            state.in_use += 1;
            state.free.pop()
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
                Contents::Zeros => memory::zeroed,
                Contents::Nothing => memory::with_capacity,
            };
            lease.buffer = new(self.len, "a buffer of a stream", self.huge_pages)?;
        }
        match self.contents {
            Contents::Zeros => lease.buffer.resize(self.len, 0),
            Contents::Nothing => lease.buffer.clear(),
        }
        Ok(Some(lease))
    }

    /// Takes a buffer; blocks until there is one. A new buffer is allocated rather than waiting, if
    /// the pool may have one more. The buffers in use belong to the caller or to a store, which may
    /// keep them for any time.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`], and [`EngineError::Unsuitable`] if the stream was given up.
    pub(crate) fn wait(self: &Arc<Self>) -> Result<Lease, EngineError> {
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

/// How long to wait for a used buffer before another one is allocated. This is about as long as a
/// new buffer takes, since the system makes each of its pages when it is first written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    begin: Instant,
    time: Duration,
}

impl Patience {
    /// For a buffer of `bytes`.
    pub(crate) fn for_bytes(bytes: usize) -> Self {
        /// Bytes of fresh memory that the system makes in a microsecond.
        const RATE: usize = 4000;
        Self {
            begin: Instant::now(),
            time: Duration::from_micros((bytes / RATE) as u64),
        }
    }

    /// The time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.time.saturating_sub(self.begin.elapsed())
    }

    /// Whether no time is left.
    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}

impl Lease {
    /// Whether the buffer was newly allocated.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Marks the buffer as kept: it does not come back, and the pool may allocate another one.
    pub(crate) fn forget(&self) {
        if !self.forgotten.swap(true, Ordering::Relaxed) {
            let mut state = self.pool.state();
            state.in_use -= 1;
            state.kept = true;
            drop(state);
            self.pool.returned.notify();
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
        // A buffer that could not be allocated does not go back.
        if self.buffer.capacity() >= self.pool.len && self.pool.len > 0 {
            state.free.push(std::mem::take(&mut self.buffer));
        }
        drop(state);
        self.pool.returned.notify();
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

impl Output for Lease {
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
        // Another buffer takes the place of one that is kept.
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
