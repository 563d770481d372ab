//! The bytes that undo an update which made a shard longer and did not come to its end.
//!
//! The rules are those of `docs/reference/updates.md`, for an index at the end of its shard.

use super::{RECORD_LEN, Record, fingerprint};

/// Returns the writes, in this order, that make a shard of `size` bytes end with its index `old` again,
/// after the update of `record` was torn. The record itself is whole. `tail` is how the shard ends now.
///
/// The shard does not get longer each time that these writes are torn.
pub fn undo_growth(
    record: Record,
    old: &[u8],
    (size, tail): (u64, Option<&[u8]>),
) -> Vec<(u64, Vec<u8>)> {
    let index_len = old.len() as u64;
    let mut writes = Vec::new();
    // Over what the update wrote, and behind the record that says so.
    let behind = record.offset.saturating_add(RECORD_LEN as u64);
    let end = size.max(behind.saturating_add(index_len));
    let is_there = end == size && tail == Some(old);
    if !is_there {
        writes.push((end - index_len, old.to_vec()));
    }
    // Last of all: a record that is whole, and says that the object should be longer, must not be
    // found by a later recovery. It is its checksum that goes: another record that is written here
    // and torn would bring back its first bytes.
    let bytes = record.to_bytes();
    let (content, checksum) = bytes.split_at(RECORD_LEN - 4);
    let no_checksum = checksum.iter().map(|byte| !byte).collect();
    writes.push((record.offset + content.len() as u64, no_checksum));
    writes
}

/// Returns a record at `offset` and `index`: an update, of a shard that ends at `old_end`, which changes
/// nothing and is whole.
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
