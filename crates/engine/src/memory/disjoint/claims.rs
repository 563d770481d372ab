//! Claims on subchunks: only one writer can claim each subchunk.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::contract::EngineError;

/// A flag for every subchunk of a shard: whether it is claimed.
#[derive(Debug)]
pub(crate) struct Claims {
    num_subchunks: usize,
    words: Vec<AtomicU64>,
}

impl Claims {
    /// Returns the flags of `num_subchunks` subchunks, none of which is claimed.
    pub(crate) fn new(num_subchunks: usize) -> Self {
        let words = num_subchunks.div_ceil(64);
        Self {
            num_subchunks,
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Claims subchunk `number`. This succeeds only once.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the subchunk was claimed before, or does not exist.
    pub(crate) fn claim(&self, number: usize) -> Result<(), EngineError> {
        let bit = 1 << (number % 64);
        let free = number < self.num_subchunks
            && self.words[number / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0;
        free.then_some(())
            .ok_or(EngineError::Internal("a subchunk was decoded twice"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_each() {
        let claims = Claims::new(65);
        for number in [0, 63, 64] {
            assert!(claims.claim(number).is_ok());
            assert!(claims.claim(number).is_err());
        }
        assert!(claims.claim(65).is_err(), "there is no such subchunk");
    }
}
