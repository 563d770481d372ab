//! The buffer that a thread reads files into.

use std::cell::Cell;

thread_local! {
    /// The buffer that this thread reads files into.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

pub(super) fn take_buffer() -> Vec<u8> {
    BUFFER.take()
}

pub(super) fn keep_buffer(buffer: Vec<u8>) {
    /// Longer ones are given back.
    const KEEP: usize = 16 << 20;
    if buffer.capacity() <= KEEP {
        BUFFER.set(buffer);
    }
}
