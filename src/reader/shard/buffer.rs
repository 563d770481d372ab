//! The buffer into which a thread reads files.

use std::cell::Cell;

thread_local! {
    /// The buffer into which this thread reads files.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

pub(super) fn take_buffer() -> Vec<u8> {
    BUFFER.take()
}

pub(super) fn keep_buffer(buffer: Vec<u8>) {
    /// The capacity in bytes above which a buffer is freed, and not kept for the next read.
    const KEEP: usize = 16 << 20;
    if buffer.capacity() <= KEEP {
        BUFFER.set(buffer);
    }
}
