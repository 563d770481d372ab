//! Counts the bytes of the subchunks that an engine encodes and decodes.

use std::sync::atomic::{AtomicU64, Ordering};

use super::EncodedSubchunk;
use super::stream::EncodedPart;
use crate::layout::Extent;

/// Bytes of stored subchunks. Subchunks that are equal to the fill value are not stored, and do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodedBytes {
    /// The decoded bytes that were encoded, and the encoded bytes that they became.
    pub encode_in: u64,
    pub encode_out: u64,
    /// The encoded bytes that were decoded, and the decoded bytes that they became.
    pub decode_in: u64,
    pub decode_out: u64,
}

/// The sizes of the stored subchunks of a shard, of a batch, or of a part of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredBytes {
    decoded: u64,
    encoded: u64,
}

impl StoredBytes {
    /// Adds up stored subchunks of `subchunk_bytes` decoded bytes each, whose encoded lengths are `encoded`.
    pub(crate) fn new(subchunk_bytes: usize, encoded: impl Iterator<Item = usize>) -> Self {
        encoded.fold(Self::default(), |sum, len| Self {
            decoded: sum.decoded.saturating_add(subchunk_bytes as u64),
            encoded: sum.encoded.saturating_add(len as u64),
        })
    }

    pub(crate) fn of_extents(subchunk_bytes: usize, extents: &[Extent]) -> Self {
        let stored = extents.iter().flatten();
        Self::new(subchunk_bytes, stored.map(ExactSizeIterator::len))
    }

    pub(crate) fn of_parts(subchunk_bytes: usize, parts: &[EncodedPart]) -> Self {
        let sizes = parts.iter().flat_map(|part| &part.sizes);
        Self::new(subchunk_bytes, sizes.flatten().copied())
    }

    pub(crate) fn of_subchunks(subchunk_bytes: usize, subchunks: &[EncodedSubchunk<'_>]) -> Self {
        let stored = subchunks.iter().filter_map(|subchunk| subchunk.bytes);
        Self::new(subchunk_bytes, stored.map(<[u8]>::len))
    }
}

/// The sums of an engine.
#[derive(Debug)]
pub(crate) struct CodedBytesCounter {
    encode_in: AtomicU64,
    encode_out: AtomicU64,
    decode_in: AtomicU64,
    decode_out: AtomicU64,
}

impl Default for CodedBytesCounter {
    fn default() -> Self {
        Self::new()
    }
}

impl CodedBytesCounter {
    pub(crate) const fn new() -> Self {
        Self {
            encode_in: AtomicU64::new(0),
            encode_out: AtomicU64::new(0),
            decode_in: AtomicU64::new(0),
            decode_out: AtomicU64::new(0),
        }
    }

    pub(crate) fn encoded(&self, bytes: StoredBytes) {
        self.encode_in.fetch_add(bytes.decoded, Ordering::Relaxed);
        self.encode_out.fetch_add(bytes.encoded, Ordering::Relaxed);
    }

    pub(crate) fn decoded(&self, bytes: StoredBytes) {
        self.decode_in.fetch_add(bytes.encoded, Ordering::Relaxed);
        self.decode_out.fetch_add(bytes.decoded, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> CodedBytes {
        CodedBytes {
            encode_in: self.encode_in.load(Ordering::Relaxed),
            encode_out: self.encode_out.load(Ordering::Relaxed),
            decode_in: self.decode_in.load(Ordering::Relaxed),
            decode_out: self.decode_out.load(Ordering::Relaxed),
        }
    }
}
