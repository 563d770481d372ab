//! A stored shard of which a part changes: bytes that stay where they are stored, and new bytes over them.
//! Only subchunks that change are in memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use zarrs_cuda::storage::within;
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey,
    StorePrefix, WritableStorageTraits,
};

/// The bytes of a shard before the change.
#[derive(Debug)]
pub(crate) enum Stored {
    /// A file, and its size in bytes. It is this call's own: its position is used.
    File(File, u64),
    Bytes(Bytes),
}

impl Stored {
    fn size(&self) -> u64 {
        match self {
            Self::File(_, size) => *size,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

/// A shard of which a part changes, as a store of this one shard. Its key does not matter.
#[derive(Debug)]
pub(crate) struct Changing(Mutex<Option<Changed>>);

/// A shard after the change.
#[derive(Debug)]
pub(crate) struct Changed {
    stored: Stored,
    /// New bytes, by their offsets. They do not overlap.
    written: BTreeMap<u64, Bytes>,
    size: u64,
}

/// Bytes of a changed shard.
enum Piece {
    Stored(Range<u64>),
    New(Bytes),
}

impl Changing {
    /// Of what is stored, if there is a shard.
    pub(crate) fn new(stored: Option<Stored>) -> Self {
        Self(Mutex::new(stored.map(Changed::new)))
    }

    /// The shard now; `None` if it was erased.
    pub(crate) fn take(&self) -> Option<Changed> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Changed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Changed {
    fn new(stored: Stored) -> Self {
        Self {
            size: stored.size(),
            stored,
            written: BTreeMap::new(),
        }
    }

    /// The size of the shard, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    fn write(&mut self, start: u64, bytes: Bytes) {
        let end = start + bytes.len() as u64;
        let before = self.written.range(..start).next_back();
        let before = before.map(|(&at, _)| at);
        let inside = self.written.range(start..end).map(|(&at, _)| at);
        let others: Vec<u64> = before.into_iter().chain(inside).collect();
        for at in others {
            let Some(old) = self.written.remove(&at) else {
                continue;
            };
            let old_end = at + old.len() as u64;
            if at < start {
                let kept = old.len().min(usize_of(start - at));
                self.written.insert(at, old.slice(..kept));
            }
            if old_end > end {
                self.written.insert(end, old.slice(usize_of(end - at)..));
            }
        }
        if !bytes.is_empty() {
            self.written.insert(start, bytes);
        }
        self.size = self.size.max(end);
    }

    /// Calls `each` with the pieces of `range`, in order.
    fn pieces(
        &self,
        range: Range<u64>,
        mut each: impl FnMut(Piece) -> io::Result<()>,
    ) -> io::Result<()> {
        let Range { start: mut at, end } = range;
        let first = self
            .written
            .range(..=at)
            .next_back()
            .map_or(at, |(&at, _)| at);
        let mut new = self.written.range(first..end).peekable();
        while at < end {
            let until = match new.peek() {
                None => end,
                Some(&(&start, _)) if start > at => start,
                Some(&(&start, bytes)) => {
                    let until = end.min(start + bytes.len() as u64);
                    new.next();
                    if until > at {
                        let range = usize_of(at - start)..usize_of(until - start);
                        each(Piece::New(bytes.slice(range)))?;
                        at = until;
                    }
                    continue;
                }
            };
            let stored = until.min(self.stored.size());
            if at < stored {
                each(Piece::Stored(at..stored))?;
                at = stored;
            }
            if at < until {
                // As in a file: nothing was written here, but behind it.
                each(Piece::New(vec![0; usize_of(until - at)].into()))?;
                at = until;
            }
        }
        Ok(())
    }

    /// The bytes of `range`, in memory.
    pub(crate) fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        let mut read = Vec::with_capacity(usize_of(range.end.saturating_sub(range.start)));
        self.read_to(range, &mut read)?;
        Ok(read.into())
    }

    /// Appends the bytes of `range` to `read`.
    pub(crate) fn read_to(&self, range: Range<u64>, read: &mut Vec<u8>) -> io::Result<()> {
        self.pieces(range, |piece| {
            let range = match piece {
                Piece::New(bytes) => {
                    read.extend_from_slice(&bytes);
                    return Ok(());
                }
                Piece::Stored(range) => range,
            };
            match &self.stored {
                Stored::Bytes(bytes) => read.extend_from_slice(part(bytes, &range)?),
                Stored::File(file, _) => {
                    let from = read.len();
                    read.resize(from + usize_of(range.end - range.start), 0);
                    file.read_exact_at(&mut read[from..], range.start)?;
                }
            }
            Ok(())
        })
    }

    /// Writes the bytes of `range` to `output`.
    pub(crate) fn write_to(&self, range: Range<u64>, output: &mut Output<'_>) -> io::Result<()> {
        self.pieces(range, |piece| {
            let range = match piece {
                Piece::New(bytes) => return output.write(&bytes),
                Piece::Stored(range) => range,
            };
            match &self.stored {
                Stored::Bytes(bytes) => output.write(part(bytes, &range)?),
                Stored::File(file, _) => output.copy(file, range),
            }
        })
    }
}

/// A file that is written from its start. Short pieces are written together.
pub(crate) struct Output<'f> {
    file: &'f mut File,
    short: Vec<u8>,
}

impl<'f> Output<'f> {
    /// So many bytes are sooner copied than the system is called for them.
    const SHORT: usize = 64 << 10;

    pub(crate) fn new(file: &'f mut File) -> Self {
        let short = Vec::new();
        Self { file, short }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() < Self::SHORT {
            self.short.extend_from_slice(bytes);
            return self.end_of_short();
        }
        self.flush()?;
        self.file.write_all(bytes)
    }

    /// Copies the bytes of `range` of `from`. The system copies long pieces; some file systems let both
    /// files have them.
    fn copy(&mut self, mut from: &File, range: Range<u64>) -> io::Result<()> {
        let len = range.end - range.start;
        if usize_of(len) < Self::SHORT {
            let before = self.short.len();
            self.short.resize(before + usize_of(len), 0);
            from.read_exact_at(&mut self.short[before..], range.start)?;
            return self.end_of_short();
        }
        self.flush()?;
        from.seek(SeekFrom::Start(range.start))?;
        if io::copy(&mut from.take(len), self.file)? == len {
            Ok(())
        } else {
            Err(shrank(&range))
        }
    }

    fn end_of_short(&mut self) -> io::Result<()> {
        if self.short.len() < Self::SHORT {
            return Ok(());
        }
        self.flush()
    }

    /// Writes what is left. Without it, the file is not complete.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.short)?;
        self.short.clear();
        Ok(())
    }
}

/// The bytes of `range`, or that they are not there.
fn part<'b>(bytes: &'b Bytes, range: &Range<u64>) -> io::Result<&'b [u8]> {
    let part = bytes.get(usize_of(range.start)..usize_of(range.end));
    part.ok_or_else(|| shrank(range))
}

fn shrank(Range { start, end }: &Range<u64>) -> io::Error {
    let what =
        format!("bytes {start}..{end} of it are not there any more: it was changed in place");
    io::Error::new(ErrorKind::UnexpectedEof, what)
}

/// An offset in a shard, which is in memory, or is as large as memory at most.
fn usize_of(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl ReadableStorageTraits for Changing {
    fn get_partial_many<'a>(
        &'a self,
        _key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        if self.lock().is_none() {
            return Ok(None);
        }
        Ok(Some(Box::new(byte_ranges.map(move |range| {
            let shard = self.lock();
            let erased = || StorageError::Other("the shard was erased".to_owned());
            let shard = shard.as_ref().ok_or_else(erased)?;
            Ok(shard.read(within(range, shard.size)?)?)
        }))))
    }

    fn size_key(&self, _key: &StoreKey) -> Result<Option<u64>, StorageError> {
        Ok(self.lock().as_ref().map(Changed::size))
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Changing {
    fn set(&self, _key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        *self.lock() = Some(Changed::new(Stored::Bytes(value)));
        Ok(())
    }

    fn set_partial_many(
        &self,
        _key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        let mut shard = self.lock();
        let shard = shard.get_or_insert_with(|| Changed::new(Stored::Bytes(Bytes::new())));
        for (offset, bytes) in offset_values {
            shard.write(offset, bytes);
        }
        Ok(())
    }

    fn erase(&self, _key: &StoreKey) -> Result<(), StorageError> {
        self.take();
        Ok(())
    }

    fn erase_prefix(&self, _prefix: &StorePrefix) -> Result<(), StorageError> {
        self.take();
        Ok(())
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}
