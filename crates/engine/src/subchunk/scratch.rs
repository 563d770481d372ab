//! The buffers and contexts of one thread, which are kept from one shard to the next.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use super::blosc::Blosc;
use super::gzip::Gzip;
use super::zstd::Zstd;

/// The memory that a thread needs to encode or decode subchunks.
#[derive(Default)]
pub(crate) struct ThreadBuffers {
    /// A subchunk with its axes and bytes in encoded order, before any compression.
    pub(crate) subchunk: Vec<u8>,
    /// Parts of neighbouring subchunks, which were copied side by side.
    pub(crate) row: Vec<u8>,
    /// The two buffers for the input and the output of a stage, which take turns.
    pub(crate) stages: [Vec<u8>; 2],
    pub(crate) contexts: Contexts,
}

/// The contexts of the compressors.
#[derive(Default)]
pub(crate) struct Contexts {
    pub(super) zstd: Zstd,
    pub(super) gzip: Gzip,
    pub(super) blosc: Blosc,
}

impl ThreadBuffers {
    /// The most bytes of buffers that a thread keeps between shards, besides its contexts.
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
    /// The idle buffers of this thread. There are several only if the thread encoded one shard within
    /// another.
    static IDLE: RefCell<Vec<ThreadBuffers>> = const { RefCell::new(Vec::new()) };
}

/// The buffers of this thread while they are in use.
pub(crate) struct Scratch(ThreadBuffers);

impl Scratch {
    /// Takes idle buffers of this thread, or makes new ones.
    pub(crate) fn take() -> Self {
        let idle = IDLE.with_borrow_mut(Vec::pop);
        Self(idle.unwrap_or_default())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut buffers = std::mem::take(&mut self.0);
        buffers.forget_large_buffers();
        // If the thread is ending, its storage may be gone. Then the buffers are dropped.
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
