//! Keeps the memory of encoded shards for the next shards, which then need no new pages.

use std::sync::{Mutex, PoisonError};

/// Buffers that are not in use. There are never more buffers, in use and not in use, than were in use at once.
#[derive(Debug, Default)]
pub struct Spares(Mutex<Buffers>);

#[derive(Debug, Default)]
struct Buffers {
    free: Vec<Vec<u8>>,
    /// The number of buffers that were taken, or allocated instead, and did not come back.
    in_use: usize,
}

impl Spares {
    /// Keeps `buffer`, whose bytes are not needed any more, in the place of a buffer that was taken. Frees it if
    /// there is none: its encoder takes no buffers.
    pub fn give(&self, buffer: Vec<u8>) {
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(others) = buffers.in_use.checked_sub(1) else {
            return;
        };
        buffers.in_use = others;
        buffers.free.push(buffer);
    }

    /// Returns an empty buffer with room for `capacity` bytes. Without such a buffer, another one is freed, because
    /// the caller allocates one.
    pub(crate) fn take(&self, capacity: usize) -> Option<Vec<u8>> {
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.in_use += 1;
        let free = &mut buffers.free;
        // The buffer that came back last is in the caches.
        let fits = |buffer: &Vec<u8>| buffer.capacity() >= capacity;
        let Some(at) = free.iter().rposition(fits) else {
            let freed = free.pop();
            drop(buffers);
            drop(freed);
            return None;
        };
        let mut buffer = free.swap_remove(at);
        buffer.clear();
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_empty_and_never_pile_up() {
        let spares = Spares::default();
        assert_eq!(spares.take(1), None);
        for len in 1..100 {
            // Each buffer is too small for the next one.
            assert!(spares.take(len).is_none());
            spares.give(vec![7; len]);
            assert_eq!(spares.0.lock().unwrap().free.len(), 1);
        }
        let spare = spares.take(50).unwrap();
        assert!(spare.is_empty() && spare.capacity() >= 99);
        assert_eq!(spares.take(0), None);
    }

    #[test]
    fn buffers_that_were_not_taken_are_freed() {
        let spares = Spares::default();
        spares.give(vec![7; 10]);
        assert_eq!(spares.take(0), None);
        spares.give(vec![7; 10]);
        spares.give(vec![7; 10]);
        assert!(spares.take(10).is_some());
        assert_eq!(spares.take(10), None);
    }
}
