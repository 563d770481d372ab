//! Compares a shard with its earlier state, and finds its size.
//!
//! A codec cannot ask for the size of a stored value, and reading the end of a value does not tell its
//! offset. But the last update of a shard left a record directly before the last index (or its copy), and the
//! record has its own offset. If there is no record, everything behind the last subchunk is read.
//!
//! When an update is interrupted, the last bytes that it wrote can look like an index: the index of a nested
//! shard. Such an index knows just a part of the shard, and leaves bytes behind its last subchunk unused. If
//! bytes are unused and no record is before the index, all of the shard is searched for the record of an
//! interrupted update.
//!
//! ```text
//! the shard has no room for a record: begin with the tail
//! end        read the last bytes: record and index, or record and copy of the index
//!                the index is another one: the shard has changed
//!                the record is of the last update: it names the size; read the last byte
//!                no such record: read the tail
//! last byte  read from the last byte of that size on
//!                one byte: done
//!                otherwise: read the tail
//! tail       read everything behind the last subchunk
//!                the index is another one: the shard has changed
//!                the record is of the last update, and names this size: done
//!                the index is at the start: done, unless the creation of the shard was interrupted
//!                all bytes are used, or nothing is behind the last subchunk and the index has a checksum: done
//!                otherwise: read the whole shard
//! whole      search the last record
//!                it names a longer shard: an update was interrupted
//!                otherwise: done
//! ```

use std::borrow::Cow;
use std::sync::OnceLock;

use zarrs::array::ArrayBytesRaw;
use zarrs_codec::{CodecError, CodecOptions};
use zarrs_storage::byte_range::ByteRange;

use super::refusal::changed;
use crate::shard::index::ShardIndex;
use crate::shard::reading::entries_of;
use crate::shard::sharding::Sharding;
use zarrs_cuda_engine::layout::{Entries, RECORD_LEN, Record, Space, fingerprint};

/// The index of a shard as it was read.
pub(super) struct StoredIndex {
    pub(super) entries: Entries<'static>,
    /// The encoded index, or `None` if `entries` has its bytes.
    encoded: Option<Vec<u8>>,
    pub(super) space: Space,
    /// The key of this index in the names of turns: equal indices have equal keys.
    pub(super) turn_key: u64,
    /// The fingerprint, computed when a record is compared or written: with millions of entries this takes
    /// longer than all other checks.
    fingerprint: OnceLock<u64>,
}

impl StoredIndex {
    /// Checks and decodes the index `encoded`, which was read without the rest of its shard.
    ///
    /// # Errors
    /// A [`CodecError`] if the index is invalid, or has zeros only because it has not been written yet.
    pub(super) fn new(
        index: &ShardIndex,
        encoded: Vec<u8>,
        options: &CodecOptions,
    ) -> Result<Self, CodecError> {
        let computed = OnceLock::new();
        let turn_key = match encoded.last_chunk::<8>() {
            // The lower half of the last 8 bytes has the checksum of all other bytes.
            Some(end) if index.is_plain() && index.has_checksum() => u64::from_be_bytes(*end),
            _ => *computed.get_or_init(|| fingerprint(&encoded)),
        };
        let is_zero = encoded.iter().all(|&byte| byte == 0);
        let (encoded, copy) = if index.is_plain() {
            (encoded, None)
        } else {
            (encoded.clone(), Some(encoded))
        };
        let entries = entries_of(index, Cow::Owned(encoded), options)?;
        if is_zero {
            return Err(CodecError::Other("it is not written yet".to_string()));
        }
        Ok(Self {
            space: Space::of(entries.iter()),
            turn_key,
            fingerprint: computed,
            entries,
            encoded: copy,
        })
    }

    /// Returns the fingerprint of the index, which is the one that a record stores.
    pub(super) fn fingerprint(&self) -> u64 {
        *self.fingerprint.get_or_init(|| fingerprint(self.encoded()))
    }

    /// Returns the encoded index, as it is stored.
    pub(super) fn encoded(&self) -> &[u8] {
        self.encoded
            .as_deref()
            .unwrap_or_else(|| self.entries.bytes())
    }
}

/// Reads the shard once more, a few bytes at a time.
pub(super) struct Comparison<'a> {
    target: &'a Sharding,
    before: &'a StoredIndex,
    /// The offset from which the tail is read: behind the last subchunk, or in a tiny shard behind the index
    /// at the start.
    tail_start: usize,
    next: Next,
}

/// The part of the shard to read next.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// The end of the shard: a record, and the index or its copy.
    End,
    /// The last byte of a shard whose size is `size` by its record, and all bytes behind it: there should be
    /// none.
    LastByte { size: usize },
    /// Everything behind the last subchunk.
    Tail,
    /// The whole shard, of `size` bytes.
    Whole { size: usize },
    /// Nothing is left to read: the size of the shard is `size`.
    Done { size: usize },
}

impl<'a> Comparison<'a> {
    pub(super) fn new(target: &'a Sharding, before: &'a StoredIndex) -> Self {
        // Stores fail, or panic, when they are asked for more bytes at the end than the value has.
        let (first, _) = target.index.room();
        let is_long_enough = before.space.end() >= RECORD_LEN + first;
        Self {
            target,
            before,
            tail_start: if is_long_enough {
                before.space.end()
            } else {
                first
            },
            next: if is_long_enough {
                Next::End
            } else {
                Next::Tail
            },
        }
    }

    /// Returns the byte ranges to read next. If nothing is left to read, returns the size of the shard as
    /// `Err`.
    pub(super) fn next(&self) -> Result<Vec<ByteRange>, usize> {
        let index_len = self.target.index.len() as u64;
        let index = ByteRange::FromStart(0, Some(index_len));
        let with_index = |range| {
            if self.at_end() {
                vec![range]
            } else {
                vec![index, range]
            }
        };
        match self.next {
            Next::End => Ok(with_index(ByteRange::Suffix(index_len + RECORD_LEN as u64))),
            Next::LastByte { size } => Ok(vec![ByteRange::FromStart(
                size.saturating_sub(1) as u64,
                None,
            )]),
            Next::Tail => Ok(with_index(ByteRange::FromStart(
                self.tail_start as u64,
                None,
            ))),
            Next::Whole { .. } => Ok(vec![ByteRange::FromStart(0, None)]),
            Next::Done { size } => Err(size),
        }
    }

    /// Returns whether another part can be read after a read that failed, and makes that part the next. An
    /// index or a record may be wrong about the end of a shard, so that reading the end fails.
    pub(super) fn falls_back(&mut self) -> bool {
        let can = matches!(self.next, Next::End | Next::LastByte { .. });
        if can {
            self.next = Next::Tail;
        }
        can
    }

    /// Evaluates the bytes `read` of the ranges that [`next`](Self::next) returned, and decides what to read
    /// next.
    ///
    /// # Errors
    /// A [`CodecError`] if the shard has changed, or an update of it was interrupted.
    pub(super) fn answer(
        &mut self,
        read: Option<Vec<ArrayBytesRaw<'_>>>,
    ) -> Result<(), CodecError> {
        let read = read.ok_or_else(changed)?;
        self.next = match (self.next, read.as_slice()) {
            (Next::End, [.., end]) => {
                self.compare_index(&read, end)?;
                let len = RECORD_LEN + self.target.index.len();
                let record = Record::before_index(end, self.target.index.len());
                match record.filter(|_| end.len() == len) {
                    Some(record) if self.is_of_last_update(&record, end)? => Next::LastByte {
                        size: usize::try_from(record.new_end).map_err(|_| changed())?,
                    },
                    _ => Next::Tail,
                }
            }
            (Next::LastByte { size }, [byte]) => match byte.len() {
                1 => {
                    self.check_end(size)?;
                    Next::Done { size }
                }
                _ => Next::Tail,
            },
            (Next::Tail, [.., tail]) => {
                self.compare_index(&read, tail)?;
                self.after_tail(tail)?
            }
            (Next::Whole { size }, [object]) => {
                if object.len() != size {
                    return Err(changed());
                }
                // The last record in the shard counts, as it does for `recover`.
                let last = Record::all(object, self.target.index.len()).next();
                match last.filter(|record| record.new_end > size as u64) {
                    Some(record) => return Err(interrupted(size, &record)),
                    None => Next::Done { size },
                }
            }
            _ => return Err(changed()),
        };
        Ok(())
    }

    fn at_end(&self) -> bool {
        self.target.index.is_at_end()
    }

    /// Checks that no subchunk ends behind a shard of `size` bytes, or in the index of the shard.
    fn check_end(&self, size: usize) -> Result<(), CodecError> {
        let index_len = if self.at_end() {
            self.target.index.len()
        } else {
            0
        };
        match size.checked_sub(index_len) {
            Some(data_end) if self.before.space.end() <= data_end => Ok(()),
            _ => Err(reaches_into_index()),
        }
    }

    /// Checks that the index of the shard is the one that was read before. An index at the end of the shard
    /// is at the end of `end`; an index at the start is the first element of `read`.
    fn compare_index(&self, read: &[ArrayBytesRaw<'_>], end: &[u8]) -> Result<(), CodecError> {
        let index_len = self.target.index.len();
        let index = match read {
            [_] if self.at_end() => {
                let start = end.len().checked_sub(index_len);
                &end[start.ok_or_else(reaches_into_index)?..]
            }
            [index, _] if !self.at_end() => {
                if self.before.space.start() < index_len {
                    return Err(reaches_into_index());
                }
                index
            }
            _ => return Err(changed()),
        };
        if index == self.before.encoded() {
            Ok(())
        } else {
            Err(changed())
        }
    }

    /// Returns whether the last update of the shard wrote `record`, which lies before the last index.
    fn is_of_last_update(&self, record: &Record, end: &[u8]) -> Result<bool, CodecError> {
        let index = self.before.fingerprint();
        // A rewrite of an index at the end writes the index twice: until the second write, the stored index
        // is the old one.
        let has_copy = if self.at_end() {
            record.old_end == record.new_end
        } else {
            let copy = &end[end.len() - self.target.index.len()..];
            fingerprint(copy) == record.new_index
        };
        let is_old = record.old_end > 0 && index == record.old_index;
        if index == record.new_index || (is_old && (has_copy || !self.at_end())) {
            return Ok(true);
        }
        if has_copy && !self.target.index.has_checksum() {
            // An update was interrupted while it overwrote the index.
            let size = usize::try_from(record.new_end).unwrap_or(usize::MAX);
            return Err(interrupted(size, record));
        }
        // Other software wrote the index after the update that left this record.
        Ok(!self.at_end())
    }

    fn after_tail(&self, tail: &[u8]) -> Result<Next, CodecError> {
        let index_len = self.target.index.len();
        let size = self.tail_start + tail.len();
        self.check_end(size)?;
        let record =
            Record::before_index(tail, index_len).filter(|record| record.new_end == size as u64);
        if let Some(record) = record
            && self.is_of_last_update(&record, tail)?
        {
            return Ok(Next::Done { size });
        }
        if !self.at_end() {
            // The index was read from the start of the shard. But if the creation of the shard was
            // interrupted, zeros or an old index may be there.
            let last = Record::all_at(tail, self.tail_start, index_len).next();
            return match last {
                Some(record) if record.old_end == 0 && record.new_end > size as u64 => {
                    Err(interrupted(size, &record))
                }
                _ => Ok(Next::Done { size }),
            };
        }
        let data_end = size - index_len;
        let nothing_behind = self.before.space.end() == data_end;
        let is_sure = self.before.space.used() == data_end
            || (nothing_behind && self.target.index.has_checksum());
        Ok(if is_sure {
            Next::Done { size }
        } else {
            Next::Whole { size }
        })
    }
}

/// Returns the error for a byte that belongs to the index and to a subchunk: writing one would change the
/// other.
fn reaches_into_index() -> CodecError {
    CodecError::Other(
        "a subchunk of the shard reaches into the shard's index, so that neither can be updated: the shard may be corrupted; write it as a whole".to_string(),
    )
}

fn interrupted(size: usize, record: &Record) -> CodecError {
    CodecError::Other(format!(
        "an earlier update of the shard was interrupted: it has {size} bytes, and should have {}, with another index; call zarrs_cuda::recover before writing to it",
        record.new_end
    ))
}
