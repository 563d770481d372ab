//! Buffers of one size that come back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::EngineError;
use crate::engine::host::memory;
use crate::engine::stream::Returned;

/// Buffers of one size, allocated when they are first needed, and kept.
#[derive(Debug)]
pub(super) struct Pool {
    /// In bytes.
    len: usize,
    /// How many there can be.
    most: usize,
    huge_pages: bool,
    state: Mutex<State>,
    returned: Arc<Returned>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Vec<u8>>,
    in_use: usize,
}

/// A buffer in use. It goes back when this is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    buffer: Vec<u8>,
    pool: Arc<Pool>,
    is_new: bool,
    /// Whether it does not go back.
    forgotten: AtomicBool,
}

impl Pool {
    pub(super) fn new(
        len: usize,
        most: usize,
        huge_pages: bool,
        returned: Arc<Returned>,
    ) -> Arc<Self> {
        Arc::new(Self {
            len,
            most: most.max(1),
            huge_pages,
            state: Mutex::default(),
            returned,
        })
    }

    /// Bytes of a buffer.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer; `None` if all are in use.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`].
    pub(super) fn take(self: &Arc<Self>) -> Result<Option<Lease>, EngineError> {
        let free = {
            let mut state = self.state();
            if state.in_use >= self.most {
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
            lease.buffer = memory::with_capacity(self.len, "a batch of a stream", self.huge_pages)?;
            lease.buffer.resize(self.len, 0);
        }
        Ok(Some(lease))
    }

    /// The same, once there is one.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`].
    pub(super) fn wait(self: &Arc<Self>) -> Result<Lease, EngineError> {
        loop {
            let seen = self.returned.count();
            if let Some(lease) = self.take()? {
                return Ok(lease);
            }
            self.returned.wait(seen);
        }
    }
}

impl Lease {
    /// Whether nobody had it before.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// It does not come back: there can be another one now.
    pub(super) fn forget(&self) {
        if !self.forgotten.swap(true, Ordering::Relaxed) {
            self.pool.state().in_use -= 1;
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
        // One that could not be allocated is none.
        if self.buffer.len() >= self.pool.len && self.pool.len > 0 {
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
