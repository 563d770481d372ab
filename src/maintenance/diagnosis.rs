//! Diagnoses a stored shard, and makes the bytes that repair it, by the rules of `docs/reference/updates.md`.
//!
//! Nothing here reads or writes a store. If a write of the repair is torn at any byte, the shard that it
//! leaves is repaired to the same final state by the same rules.

use zarrs::array::codec::ShardingIndexLocation;

use zarrs_cuda_engine::layout::{RECORD_LEN, Record, fingerprint, undo_growth, update_of_nothing};

/// The number of bytes at the begin of a record that prove that it is one: they have the whole magic.
const CERTAIN: usize = 8;

/// The facts about a kind of shard that the rules need.
pub(crate) struct Geometry<'a> {
    pub(crate) location: ShardingIndexLocation,
    /// The size of the encoded index, in bytes.
    pub(crate) index_len: usize,
    /// Whether decoding fails when a bit of the encoded index changes.
    pub(crate) checksum: bool,
    /// Returns whether an encoded index decodes, and all of its extents are inside an object of the given
    /// size in bytes.
    pub(crate) is_index: &'a dyn Fn(&[u8], u64) -> bool,
}

/// The diagnosis of an object, with its repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Diagnosis {
    /// The object needs no repair: every update is complete, or is not visible.
    Intact,
    /// These writes, in this order, restore the object to its state before its last update.
    Undo(Vec<(u64, Vec<u8>)>),
    /// These writes, in this order, complete the last update of the object.
    Complete(Vec<(u64, Vec<u8>)>),
    /// The creation of the shard was interrupted: the object should be erased.
    Erase,
    /// The right state is unknown, for the given reason.
    Unrecoverable(String),
}

/// Returns the diagnosis of `object`.
pub(crate) fn diagnose(object: &[u8], geometry: &Geometry<'_>) -> Diagnosis {
    let last = Record::all(object, geometry.index_len).next();
    match geometry.location {
        ShardingIndexLocation::Start => at_start(object, geometry, last),
        ShardingIndexLocation::End => at_end(object, geometry, last),
    }
}

fn at_end(object: &[u8], geometry: &Geometry<'_>, last: Option<Record>) -> Diagnosis {
    let size = object.len() as u64;
    if let Some(record) = last.filter(|record| size < record.new_end) {
        // The object would have grown up to the last byte of the new index, and it is shorter than that.
        return undo(object, geometry, record);
    }
    if let (Some(record), Some(tail)) = (last, index_before(object, geometry, size)) {
        let found = fingerprint(tail);
        let in_place = record.old_end == record.new_end && record.new_end == size;
        if found == record.new_index || (in_place && found == record.old_index) {
            return Diagnosis::Intact;
        }
        if in_place && !(geometry.checksum && is_index(geometry, tail, size)) {
            let copy = index_before(object, geometry, record.offset);
            if let Some(copy) = copy.filter(|copy| fingerprint(copy) == record.new_index) {
                let offset = size - geometry.index_len as u64;
                return Diagnosis::Complete(vec![(offset, copy.to_vec())]);
            }
        }
    }
    no_index_at_end(object, geometry, last)
}

/// Returns the diagnosis of an object for which the last record, if any, does not explain the bytes at its
/// end.
fn no_index_at_end(object: &[u8], geometry: &Geometry<'_>, last: Option<Record>) -> Diagnosis {
    let size = object.len() as u64;
    let tail = index_before(object, geometry, size);
    let decodes = tail.is_some_and(|tail| is_index(geometry, tail, size));
    if decodes && geometry.checksum {
        return Diagnosis::Intact;
    }
    let begun = begun_record(object, geometry, last.as_ref())
        .map(|begun| (begun.is_certain, begun.diagnosis))
        .or_else(|| {
            let first = first_that_is_not_zero(object)?;
            let begun = last.is_none() && begins_a_shard(object, first);
            begun.then_some((object.len() - first >= CERTAIN, Diagnosis::Erase))
        });
    match begun {
        Some((is_certain, diagnosis)) if is_certain || !decodes => diagnosis,
        _ if !decodes && let Some(written_over) = written_over(object, geometry, last) => {
            written_over
        }
        Some(_) => Diagnosis::Unrecoverable(format!(
            "the {} bytes at the end are an index, and the bytes before them are one followed by the beginning of a record of an update: without a checksum of the index it cannot be told which is right",
            geometry.index_len
        )),
        None if decodes => Diagnosis::Intact,
        None => Diagnosis::Unrecoverable(no_index(object, geometry, "end")),
    }
}

fn at_start(object: &[u8], geometry: &Geometry<'_>, last: Option<Record>) -> Diagnosis {
    let size = object.len() as u64;
    let Some(head) = object.get(..geometry.index_len) else {
        return Diagnosis::Unrecoverable(no_index(object, geometry, "start"));
    };
    let found = fingerprint(head);
    let known = |record: Record| {
        found == record.new_index || (record.old_end > 0 && found == record.old_index)
    };
    let decodes = is_index(geometry, head, size);
    if last.is_some_and(known) || (decodes && geometry.checksum) {
        return Diagnosis::Intact;
    }
    let being_created = match last {
        Some(record) => record.old_end == 0 && size < record.new_end,
        None => first_that_is_not_zero(object).is_some_and(|first| begins_a_shard(object, first)),
    };
    if being_created && is_zero(head) {
        return Diagnosis::Erase;
    }
    if let Some(record) = last.filter(|record| record.new_end == size) {
        let copy = index_before(object, geometry, size);
        if let Some(copy) = copy.filter(|copy| fingerprint(copy) == record.new_index) {
            return Diagnosis::Complete(vec![(0, copy.to_vec())]);
        }
    }
    if decodes {
        return Diagnosis::Intact;
    }
    Diagnosis::Unrecoverable(no_index(object, geometry, "start"))
}

/// Undoes the growth that `record` announced, because it was interrupted.
fn undo(object: &[u8], geometry: &Geometry<'_>, record: Record) -> Diagnosis {
    let size = object.len() as u64;
    if record.old_end == 0 {
        return Diagnosis::Erase;
    }
    let old = index_before(object, geometry, record.old_end)
        .filter(|old| fingerprint(old) == record.old_index);
    let Some(old) = old else {
        return Diagnosis::Unrecoverable(format!(
            "an update was to make it {} bytes long, and it has {size}; the index that it had before, which ended at {}, is not there any more",
            record.new_end, record.old_end
        ));
    };
    let tail = index_before(object, geometry, size);
    Diagnosis::Undo(undo_growth(record, old, (size, tail)))
}

/// Looks for an update that was complete, and whose index is now followed by bytes that are no index. Such
/// bytes are the rest of a longer update that another process wrote at the same place.
fn written_over(object: &[u8], geometry: &Geometry<'_>, last: Option<Record>) -> Option<Diagnosis> {
    let record = last?;
    let size = object.len() as u64;
    let candidates = [
        (record.new_end, record.new_index),
        (record.old_end, record.old_index),
    ];
    candidates.into_iter().find_map(|(end, print)| {
        let index = index_before(object, geometry, end)?;
        if fingerprint(index) != print || !is_index(geometry, index, end) {
            return None;
        }
        let update = update_of_nothing(index, (size, end));
        Some(Diagnosis::Undo(vec![(size, update)]))
    })
}

/// The begin of a record at the end of an object, without the rest of the record.
struct BegunRecord {
    is_certain: bool,
    diagnosis: Diagnosis,
}

/// Looks for a shard that is followed by the begin of a record, and by nothing else.
fn begun_record(
    object: &[u8],
    geometry: &Geometry<'_>,
    last: Option<&Record>,
) -> Option<BegunRecord> {
    /// The number of bytes of a record before its first field that depends on the index.
    const PLACE: usize = 24;
    (1..RECORD_LEN.min(object.len())).find_map(|len| {
        let (shard, rest) = object.split_at(object.len() - len);
        let end = shard.len() as u64;
        // Most positions fail this test, before the index is looked at.
        if !Record::begins_with(&rest[..len.min(PLACE)], end, end, 0) {
            return None;
        }
        let index = index_before(object, geometry, end)?;
        let print = fingerprint(index);
        if !Record::begins_with(rest, end, end, print) || !is_index(geometry, index, end) {
            return None;
        }
        let is_known = last.is_some_and(|record| {
            let prints = [record.new_index, record.old_index];
            record.new_end == end && prints.contains(&print)
        });
        let update = update_of_nothing(index, (end, end));
        Some(BegunRecord {
            is_certain: is_known || len >= CERTAIN,
            diagnosis: Diagnosis::Undo(vec![(end, update)]),
        })
    })
}

/// Returns whether `object` is zeros up to `first`, followed by the begin of the record of a shard that is
/// being created.
fn begins_a_shard(object: &[u8], first: usize) -> bool {
    Record::begins_with(&object[first..], first as u64, 0, 0)
}

fn first_that_is_not_zero(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte != 0)
}

/// Returns the bytes at the place of the index in an object that ends at `end`. Returns `None` if it is too
/// short.
fn index_before<'b>(object: &'b [u8], geometry: &Geometry<'_>, end: u64) -> Option<&'b [u8]> {
    let end = usize::try_from(end).ok()?;
    object.get(end.checked_sub(geometry.index_len)?..end)
}

/// Returns whether `bytes` are the index of an object of `size` bytes. Zeros are not an index: a file system
/// leaves them where nothing was written.
fn is_index(geometry: &Geometry<'_>, bytes: &[u8], size: u64) -> bool {
    !is_zero(bytes) && (geometry.is_index)(bytes, size)
}

fn is_zero(bytes: &[u8]) -> bool {
    first_that_is_not_zero(bytes).is_none()
}

/// Returns the reason why an object without an index cannot be repaired.
fn no_index(object: &[u8], geometry: &Geometry<'_>, place: &str) -> String {
    if object.is_empty() {
        return "the object is empty: whatever stored it died before it wrote a byte, and it is not known whether a shard was there before".to_string();
    }
    format!(
        "the {} bytes at its {place} are no index of an object of {} bytes, and no record of an update says what they should be",
        geometry.index_len,
        object.len()
    )
}

#[cfg(test)]
mod tests;
