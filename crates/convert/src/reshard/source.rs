//! Reads encoded subchunks of IN from files.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use zarrs::array::ChunkKeyEncoding;
use zarrs_cuda::maintenance::ShardFormat;

use crate::grid::indices_of;

/// The stored objects of IN.
pub(super) struct Objects<'a> {
    pub(super) root: &'a Path,
    pub(super) keys: &'a ChunkKeyEncoding,
    pub(super) grid: &'a [u64],
    /// The format of the objects as shards; `None` if the objects are chunks.
    pub(super) format: Option<&'a ShardFormat>,
    /// The positions of the stored objects in the grid, sorted.
    pub(super) stored: &'a [u64],
}

/// The object in which an encoded subchunk lies, and its bytes there.
#[derive(Clone, Debug)]
pub(super) struct SubchunkPlace {
    /// The position of the object in the grid.
    pub(super) object: u64,
    /// The range of bytes in a shard; `None` for the whole of a chunk.
    pub(super) bytes: Option<Range<u64>>,
}

/// Reads the objects of IN for one thread.
pub(super) struct Source<'a> {
    objects: &'a Objects<'a>,
    /// The extents of the subchunks in each shard that was read for the current piece, by the position of the
    /// shard.
    shards: HashMap<u64, Vec<Option<Range<u64>>>>,
    /// The open files of objects, the one opened first in front.
    open: VecDeque<Open>,
}

/// An object that is open.
struct Open {
    object: u64,
    /// The file. Its buffer reads ahead, for small subchunks that follow one another.
    file: BufReader<File>,
    /// The position of the reader in the file.
    at: u64,
}

/// The number of objects that a thread has open at once.
const OPEN: usize = 32;
/// The number of bytes that are read ahead where subchunks are smaller.
const AHEAD: usize = 64 << 10;

impl<'a> Source<'a> {
    pub(super) fn new(objects: &'a Objects<'a>) -> Self {
        Self {
            objects,
            shards: HashMap::new(),
            open: VecDeque::new(),
        }
    }

    /// Forgets the shards of the previous piece.
    pub(super) fn begin(&mut self) {
        self.shards.clear();
        self.open.clear();
    }

    /// Returns the key of the object at the position `object`.
    pub(super) fn key(&self, object: u64) -> String {
        let indices = indices_of(object, self.objects.grid);
        self.objects.keys.encode(&indices).to_string()
    }

    fn path(&self, object: u64) -> PathBuf {
        self.objects.root.join(self.key(object))
    }

    /// Returns the place of a subchunk, by the position of its object and its position in that object; `None`
    /// if the subchunk is empty.
    pub(super) fn find(
        &mut self,
        (object, number): (u64, u64),
    ) -> Result<Option<SubchunkPlace>, String> {
        if self.objects.stored.binary_search(&object).is_err() {
            return Ok(None);
        }
        let Some(format) = self.objects.format else {
            return Ok(Some(SubchunkPlace {
                object,
                bytes: None,
            }));
        };
        if !self.shards.contains_key(&object) {
            let subchunks = self.subchunks(object, format)?;
            self.shards.insert(object, subchunks);
        }
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let bytes = self.shards.get(&object).and_then(|shard| shard.get(number));
        Ok(bytes.cloned().flatten().map(|bytes| SubchunkPlace {
            object,
            bytes: Some(bytes),
        }))
    }

    /// Reads the index of a shard, and returns the extents of its subchunks.
    fn subchunks(
        &mut self,
        object: u64,
        format: &ShardFormat,
    ) -> Result<Vec<Option<Range<u64>>>, String> {
        let size = self.size(object)?;
        let range = format
            .index_range(size)
            .ok_or_else(|| self.cannot("read", object, &"it is shorter than its index"))?;
        let len = usize::try_from(range.end - range.start);
        let len = len.map_err(|error| self.cannot("read the index of", object, &error))?;
        let mut index = vec![0; len];
        self.read(object, range.start, &mut index)?;
        format
            .decode_index(&index, size)
            .map_err(|error| self.cannot("use the index of", object, &error))
    }

    /// Returns the open file of an object. Opens it if necessary.
    fn file(&mut self, object: u64) -> Result<&mut Open, String> {
        let found = self.open.iter().position(|open| open.object == object);
        let at = if let Some(at) = found {
            at
        } else {
            let file = File::open(self.path(object));
            let file = file.map_err(|error| self.cannot("open", object, &error))?;
            if self.open.len() == OPEN {
                self.open.pop_front();
            }
            self.open.push_back(Open {
                object,
                file: BufReader::with_capacity(AHEAD, file),
                at: 0,
            });
            self.open.len() - 1
        };
        Ok(&mut self.open[at])
    }

    /// Returns the size of an object in bytes.
    fn size(&mut self, object: u64) -> Result<u64, String> {
        let metadata = self.file(object)?.file.get_ref().metadata();
        let metadata = metadata.map_err(|error| self.cannot("look at", object, &error))?;
        Ok(metadata.len())
    }

    /// Returns the range of bytes of a subchunk in its object.
    pub(super) fn bytes(&mut self, place: &SubchunkPlace) -> Result<Range<u64>, String> {
        match &place.bytes {
            Some(bytes) => Ok(bytes.clone()),
            None => Ok(0..self.size(place.object)?),
        }
    }

    /// Reads bytes of an object from `start` on, until `buffer` is full.
    pub(super) fn read(
        &mut self,
        object: u64,
        start: u64,
        buffer: &mut [u8],
    ) -> Result<(), String> {
        let Open { file, at, .. } = self.file(object)?;
        let moved = start.checked_signed_diff(*at);
        *at = start.saturating_add(buffer.len() as u64);
        moved
            .ok_or(io::ErrorKind::InvalidInput.into())
            .and_then(|moved| file.seek_relative(moved))
            .and_then(|()| file.read_exact(buffer))
            .map_err(|error| self.cannot("read", object, &error))
    }

    fn cannot(&self, doing: &str, object: u64, reason: &dyn fmt::Display) -> String {
        let kind = match self.objects.format {
            Some(_) => "shard",
            None => "chunk",
        };
        let path = self.path(object);
        format!("cannot {doing} the {kind} {}: {reason}", path.display())
    }
}
