//! Undoes a torn update that was making a shard longer.
//!
//! The rules are those of `docs/reference/updates.md`, for an index at the end of its shard.

use super::{RECORD_LEN, Record, fingerprint};

/// Returns the writes that undo a torn update, in this order. Afterwards, a shard of `size` bytes ends with
/// its old index, `old`, again. `record` is the record of the update, which is whole. `tail` are the present
/// last bytes of the shard.
///
/// If these writes are torn, too, the next ones do not make the shard longer again.
pub fn undo_growth(
    record: Record,
    old: &[u8],
    (size, tail): (u64, Option<&[u8]>),
) -> Vec<(u64, Vec<u8>)> {
    let index_len = old.len() as u64;
    let mut writes = Vec::new();
    // The old index goes over bytes of the update, behind the record.
    let behind = record.offset.saturating_add(RECORD_LEN as u64);
    let end = size.max(behind.saturating_add(index_len));
    let is_there = end == size && tail == Some(old);
    if !is_there {
        writes.push((end - index_len, old.to_vec()));
    }
    // The last write invalidates the record. Otherwise, a later recovery would find a whole record for a
    // longer object. The write changes the checksum: if another record is written here and torn, it may bring
    // back the first bytes.
    let bytes = record.to_bytes();
    let (content, checksum) = bytes.split_at(RECORD_LEN - 4);
    let no_checksum = checksum.iter().map(|byte| !byte).collect();
    writes.push((record.offset + content.len() as u64, no_checksum));
    writes
}

/// Returns a record at `offset`, followed by `index`: a complete update that changes nothing, of a shard that
/// ends at `old_end`.
pub fn update_of_nothing(index: &[u8], (offset, old_end): (u64, u64)) -> Vec<u8> {
    let index_len = index.len() as u64;
    let print = fingerprint(index);
    let record = Record {
        offset,
        old_end,
        old_index: print,
        index_len,
        new_end: offset + RECORD_LEN as u64 + index_len,
        new_index: print,
    };
    [&record.to_bytes(), index].concat()
}
