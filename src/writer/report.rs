//! What a writer has done.

use std::fmt;
use std::time::Duration;

/// How far a writer is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// What was appended, in bytes.
    pub appended_bytes: u64,
    /// Of that, whole slices.
    pub appended_slices: u64,
    /// What was encoded, in bytes before encoding.
    pub encoded_bytes: u64,
    /// What that became, in bytes.
    pub packed_bytes: u64,
    /// All slices of the array below this one are stored.
    pub finished_slices: u64,
    /// All slices of the array below this one are covered by the shape in its metadata.
    pub covered_slices: u64,
    /// Shards that were stored.
    pub shards_stored: u64,
    /// Shards that hold nothing but the fill value, which are not stored.
    pub shards_empty: u64,
    /// What the store was given, in bytes.
    pub stored_bytes: u64,
    /// Batches that are full and wait to be encoded.
    pub batches_waiting: usize,
    /// Batches that are being encoded.
    pub batches_encoding: usize,
    /// Shards that wait to be stored, or are being stored.
    pub shards_waiting: usize,
    /// How often an append waited.
    pub waits: u64,
    /// How often an append was asked not to wait, and did not take everything.
    pub refusals: u64,
    /// How long appends waited.
    pub waiting: Duration,
    /// Time of encoding.
    pub encoding: Duration,
    /// Time of storing, of all threads that store.
    pub storing: Duration,
}

impl Progress {
    /// How many bytes were encoded for each that they became; `None` before any became one.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        reason = "a ratio needs no more digits than these"
    )]
    pub fn ratio(&self) -> Option<f64> {
        (self.packed_bytes > 0).then(|| self.encoded_bytes as f64 / self.packed_bytes as f64)
    }
}

/// What a writer did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WriterReport {
    /// The engine that encoded: `host` or `cuda`.
    pub engine: &'static str,
    /// The first slice that was written.
    pub first_slice: u64,
    /// All slices below this one are stored.
    pub finished_slices: u64,
    /// Shards that were stored.
    pub shards: u64,
    /// Shards that hold nothing but the fill value, which are not stored.
    pub shards_empty: u64,
    /// What was appended, in bytes.
    pub raw_bytes: u64,
    /// What the store was given, in bytes.
    pub stored_bytes: u64,
    /// From the first append to the end.
    pub elapsed: Duration,
    /// How long appends waited for the encoder or the store.
    pub waiting: Duration,
    /// Time of encoding.
    pub encoding: Duration,
    /// Time of storing, of all threads that store.
    pub storing: Duration,
}

impl WriterReport {
    /// How many bytes were appended for each that was stored.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        reason = "a ratio needs no more digits than these"
    )]
    pub fn ratio(&self) -> f64 {
        self.raw_bytes as f64 / self.stored_bytes.max(1) as f64
    }
}

impl fmt::Display for WriterReport {
    #[allow(
        clippy::cast_precision_loss,
        reason = "for a person, who needs three digits"
    )]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.raw_bytes as f64 / self.elapsed.as_secs_f64().max(1e-9) / 1e9;
        write!(
            f,
            "slices {} to {} in {:.3} s ({rate:.2} GB/s) by the {} engine: {} shards of {} bytes, ratio {:.2}, {} empty; encoding {:.3} s, storing {:.3} s, appends waited {:.3} s",
            self.first_slice,
            self.finished_slices,
            self.elapsed.as_secs_f64(),
            self.engine,
            self.shards,
            self.stored_bytes,
            self.ratio(),
            self.shards_empty,
            self.encoding.as_secs_f64(),
            self.storing.as_secs_f64(),
            self.waiting.as_secs_f64(),
        )
    }
}
