//! Keeps the memory of encoded shards for the next shards, which then need no new pages.

use std::sync::{Mutex, PoisonError};

/// Buffers that are not in use. There are never more buffers, in use and not in use, than were in use at once.
#[derive(Debug, Default)]
pub struct Spares(Mutex<Vec<Vec<u8>>>);

impl Spares {
    /// Keeps `buffer`, whose bytes are not needed any more.
    pub fn give(&self, buffer: Vec<u8>) {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spares.push(buffer);
    }

    /// Returns an empty buffer with room for `capacity` bytes. Without such a buffer, another one is freed, because
    /// the caller allocates one.
    pub(crate) fn take(&self, capacity: usize) -> Option<Vec<u8>> {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |spare: &Vec<u8>| spare.capacity() >= capacity;
        let Some(at) = spares.iter().position(fits) else {
            let freed = spares.pop();
            drop(spares);
            drop(freed);
            return None;
        };
        let mut spare = spares.swap_remove(at);
        spare.clear();
        Some(spare)
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
            assert_eq!(spares.0.lock().unwrap().len(), 1);
        }
        let spare = spares.take(50).unwrap();
        assert!(spare.is_empty() && spare.capacity() >= 99);
        assert_eq!(spares.take(0), None);
    }
}
