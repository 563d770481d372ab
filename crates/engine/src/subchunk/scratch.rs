//! Buffers and contexts of one thread, kept from one shard to the next.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use super::blosc::Blosc;
use super::gzip::Gzip;
use super::zstd::Zstd;

/// The memory that a thread needs to encode or decode subchunks.
#[derive(Default)]
pub(crate) struct ThreadBuffers {
    /// A subchunk as it is stored, before any compression.
    pub(crate) subchunk: Vec<u8>,
    /// Parts of neighbouring subchunks, side by side.
    pub(crate) row: Vec<u8>,
    /// The buffers in which the stages work; two, because they take turns.
    pub(crate) stages: [Vec<u8>; 2],
    pub(crate) contexts: Contexts,
}

/// The compressors' own state.
#[derive(Default)]
pub(crate) struct Contexts {
    pub(super) zstd: Zstd,
    pub(super) gzip: Gzip,
    pub(super) blosc: Blosc,
}

impl ThreadBuffers {
    /// Buffers for subchunks that a thread keeps between shards, beside its contexts.
    const KEEP: usize = 32 << 20;

    fn forget_large_buffers(&mut self) {
        let Self {
            subchunk,
            row,
            stages,
            ..
        } = self;
        let [first, second] = stages;
        let buffers = [subchunk, row, first, second];
        if buffers
            .iter()
            .map(|buffer| buffer.capacity())
            .sum::<usize>()
            > Self::KEEP
        {
            for buffer in buffers {
                *buffer = Vec::new();
            }
        }
    }
}

thread_local! {
    /// More than one only if shards were encoded inside each other on this thread.
    static IDLE: RefCell<Vec<ThreadBuffers>> = const { RefCell::new(Vec::new()) };
}

/// The buffers of this thread, as long as they are in use.
pub(crate) struct Scratch(ThreadBuffers);

impl Scratch {
    /// Takes idle buffers of this thread, or else makes new ones.
    pub(crate) fn take() -> Self {
        let idle = IDLE.with_borrow_mut(Vec::pop);
        Self(idle.unwrap_or_default())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut buffers = std::mem::take(&mut self.0);
        buffers.forget_large_buffers();
        // The thread may be ending, and its storage gone: then the buffers go too.
        let _ = IDLE.try_with(|idle| idle.borrow_mut().push(buffers));
    }
}

impl Deref for Scratch {
    type Target = ThreadBuffers;

    fn deref(&self) -> &ThreadBuffers {
        &self.0
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut ThreadBuffers {
        &mut self.0
    }
}
