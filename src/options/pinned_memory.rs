//! The default budget of page-locked memory: as much as a stream needs whose batches fill a device.

/// The least default budget, in bytes.
pub(crate) const LEAST_PINNED: usize = 1 << 30;

/// The largest default budget, in bytes: the system cannot use page-locked memory for anything else.
const MOST_PINNED: usize = 4 << 30;

/// The most buffers of a batch that a stream has in page-locked memory: three inputs and three outputs.
const BUFFERS: usize = 6;

/// Returns the largest default budget of a process whose buffers take at most `host_memory` bytes of other
/// memory.
pub(crate) fn most_pinned(host_memory: usize) -> usize {
    MOST_PINNED.min(host_memory).max(LEAST_PINNED)
}

/// Returns the default budget of a device that batches of `batch` bytes keep busy, in a process whose buffers
/// take at most `host_memory` bytes of other memory.
pub(crate) fn default_pinned(batch: usize, host_memory: usize) -> usize {
    // An encoded batch may be longer than its elements, and there is room for indexes.
    let buffer = batch.saturating_add(batch / 8);
    let stream = buffer.saturating_mul(BUFFERS);
    stream.clamp(LEAST_PINNED, most_pinned(host_memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_follows_the_batch_between_its_limits() {
        const GIB: usize = 1 << 30;
        let machine = 16 * GIB;
        for (batch, budget) in [
            (0, GIB),
            (64 << 20, GIB),
            (256 << 20, 6 * (288 << 20)),
            (GIB, 4 * GIB),
            (usize::MAX, 4 * GIB),
        ] {
            assert_eq!(default_pinned(batch, machine), budget, "{batch}");
        }
        // A machine with less memory.
        assert_eq!(default_pinned(usize::MAX, 2 * GIB), 2 * GIB);
        assert_eq!(default_pinned(usize::MAX, 1), GIB);
    }
}
