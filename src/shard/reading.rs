//! Reads the index and the subchunks of a stored shard in such a way that a hostile index takes no memory.

use std::borrow::Cow;

use zarrs_codec::{CodecError, CodecOptions};
use zarrs_storage::byte_range::ByteRange;

use super::index::ShardIndex;
use zarrs_cuda_engine::contract::EngineError;
use zarrs_cuda_engine::layout::Entries;

/// If nothing bounds the length of a subchunk, and it has more bytes than this, its last byte is read first
/// to see that it exists.
const LONG: u64 = 1 << 20;

/// Checks that this machine could hold an index of `index_len` bytes. Stores allocate the bytes that they are
/// asked to read before they find out that the value is shorter.
pub(crate) fn check_memory(index_len: usize) -> Result<(), EngineError> {
    let mut probe = Vec::<u8>::new();
    let reserved = probe.try_reserve_exact(index_len);
    reserved.map_err(|_| EngineError::OutOfMemory {
        what: "the index of a shard",
        bytes: index_len,
    })
}

/// Checks and decodes an index that was read without the rest of its shard, whose size is unknown. The check
/// refuses entries that overflow; the store refuses to read beyond the end of the shard.
pub(crate) fn entries_of<'b>(
    index: &ShardIndex,
    encoded: Cow<'b, [u8]>,
    options: &CodecOptions,
) -> Result<Entries<'b>, CodecError> {
    index.decode(encoded, i64::MAX as u64, options)
}

/// Returns the last byte of each long range. If a store has this byte, the stored shard justifies memory for
/// the range.
pub(crate) fn last_bytes(ranges: &[ByteRange]) -> Vec<ByteRange> {
    ranges
        .iter()
        .filter_map(|range| match range {
            ByteRange::FromStart(start, Some(len)) if *len > LONG => {
                Some(ByteRange::FromStart(start.checked_add(len - 1)?, Some(1)))
            }
            _ => None,
        })
        .collect()
}

/// Checks that reading the last bytes of `wanted` long subchunks returned one byte for each.
pub(crate) fn check_last_bytes(
    wanted: usize,
    read: Option<Vec<impl AsRef<[u8]>>>,
) -> Result<(), CodecError> {
    match read {
        Some(bytes)
            if bytes.len() == wanted && bytes.iter().all(|byte| byte.as_ref().len() == 1) =>
        {
            Ok(())
        }
        _ => Err(CodecError::Other(
            "the shard index references out-of-bounds bytes: the shard may be corrupted"
                .to_string(),
        )),
    }
}
