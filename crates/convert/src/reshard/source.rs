//! Encoded subchunks of IN, read from files.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use zarrs::array::ChunkKeyEncoding;
use zarrs_cuda::maintenance::ShardFormat;

use super::plan;

/// The stored objects of IN.
pub(super) struct Objects<'a> {
    pub(super) root: &'a Path,
    pub(super) keys: &'a ChunkKeyEncoding,
    pub(super) grid: &'a [u64],
    /// `None` if the objects are chunks.
    pub(super) format: Option<&'a ShardFormat>,
    /// The numbers of the objects, in order.
    pub(super) stored: &'a [u64],
}

/// Where an encoded subchunk lies.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The number of its object.
    pub(super) object: u64,
    /// Its bytes in a shard; `None` for all bytes of a chunk.
    pub(super) bytes: Option<Range<u64>>,
}

/// The objects that one thread reads.
pub(super) struct Source<'a> {
    objects: &'a Objects<'a>,
    /// Where the subchunks of a shard lie, of the shards of a piece, by their numbers.
    shards: HashMap<u64, Vec<Option<Range<u64>>>>,
    /// Open shards, the oldest first.
    open: VecDeque<(u64, File)>,
    /// Bytes of one object that were read together.
    window: Window,
}

#[derive(Default)]
struct Window {
    object: Option<u64>,
    start: u64,
    bytes: Vec<u8>,
}

/// Shards that a thread has open at once.
const OPEN: usize = 32;
/// Bytes that are read together.
const WINDOW: u64 = 1 << 20;

impl<'a> Source<'a> {
    pub(super) fn new(objects: &'a Objects<'a>) -> Self {
        Self {
            objects,
            shards: HashMap::new(),
            open: VecDeque::new(),
            window: Window::default(),
        }
    }

    /// Forgets the shards of the piece before.
    pub(super) fn begin(&mut self) {
        self.shards.clear();
        self.open.clear();
        self.window.object = None;
    }

    /// The key of an object, by its number.
    pub(super) fn key(&self, object: u64) -> String {
        let indices = plan::indices(object, self.objects.grid);
        self.objects.keys.encode(&indices).to_string()
    }

    fn path(&self, object: u64) -> PathBuf {
        self.objects.root.join(self.key(object))
    }

    /// Where a subchunk lies, by the number of its object and its own number there; `None` if it is
    /// empty.
    pub(super) fn find(&mut self, (object, number): (u64, u64)) -> Result<Option<Place>, String> {
        if self.objects.stored.binary_search(&object).is_err() {
            return Ok(None);
        }
        let Some(format) = self.objects.format else {
            return Ok(Some(Place {
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
        Ok(bytes.cloned().flatten().map(|bytes| Place {
            object,
            bytes: Some(bytes),
        }))
    }

    /// Where the subchunks of a shard lie.
    fn subchunks(
        &mut self,
        object: u64,
        format: &ShardFormat,
    ) -> Result<Vec<Option<Range<u64>>>, String> {
        let mut file = self.shard(object)?;
        let read = file.metadata().and_then(|metadata| {
            let size = metadata.len();
            let range = format.index_range(size).ok_or(ErrorKind::UnexpectedEof)?;
            let len = usize::try_from(range.end - range.start);
            let mut index = vec![0; len.map_err(io::Error::other)?];
            file.seek(SeekFrom::Start(range.start))?;
            file.read_exact(&mut index)?;
            Ok((index, size))
        });
        let (index, size) = read.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                self.cannot("read", object, &"it is shorter than its index")
            }
            _ => self.cannot("read the index of", object, &error),
        })?;
        format
            .decode_index(&index, size)
            .map_err(|error| self.cannot("use the index of", object, &error))
    }

    /// The file of a shard.
    fn shard(&mut self, object: u64) -> Result<&File, String> {
        if let Some(at) = self.open.iter().position(|(open, _)| *open == object) {
            return Ok(&self.open[at].1);
        }
        let file = self.file(object)?;
        if self.open.len() == OPEN {
            self.open.pop_front();
        }
        self.open.push_back((object, file));
        Ok(&self.open[self.open.len() - 1].1)
    }

    fn file(&self, object: u64) -> Result<File, String> {
        File::open(self.path(object)).map_err(|error| self.cannot("open", object, &error))
    }

    /// The size of a subchunk.
    pub(super) fn size(&self, place: &Place) -> Result<u64, String> {
        if let Some(bytes) = &place.bytes {
            return Ok(bytes.end - bytes.start);
        }
        let metadata = self.path(place.object).metadata();
        let metadata = metadata.map_err(|error| self.cannot("look at", place.object, &error))?;
        Ok(metadata.len())
    }

    /// Reads bytes of a shard into `buffer`.
    pub(super) fn read(
        &mut self,
        object: u64,
        start: u64,
        buffer: &mut [u8],
    ) -> Result<(), String> {
        let mut file = self.shard(object)?;
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.read_exact(buffer))
            .map_err(|error| self.cannot("read", object, &error))
    }

    /// Hands the bytes of a chunk to `sink`, from the front to the back: it fills a buffer of the
    /// wanted size, as far as the sink has one, again and again. Returns the size of the chunk.
    pub(super) fn read_chunk(
        &mut self,
        object: u64,
        mut sink: impl FnMut(usize, &mut dyn FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<usize>,
    ) -> Result<u64, String> {
        let mut file = self.file(object)?;
        let read = file.metadata().and_then(|metadata| {
            let mut rest = usize::try_from(metadata.len()).map_err(io::Error::other)?;
            while rest > 0 {
                rest -= sink(rest, &mut |buffer| file.read_exact(buffer))?;
            }
            Ok(metadata.len())
        });
        read.map_err(|error| self.cannot("copy", object, &error))
    }

    /// The bytes of a subchunk. In a shard the bytes behind it are read with it.
    pub(super) fn bytes(&mut self, place: &Place) -> Result<&[u8], String> {
        let mut window = std::mem::take(&mut self.window);
        let read = self.fill(&mut window, place);
        self.window = window;
        let range = read?;
        Ok(&self.window.bytes[range])
    }

    /// Reads a subchunk into the window, unless it is there. Returns where it is.
    fn fill(&mut self, window: &mut Window, place: &Place) -> Result<Range<usize>, String> {
        let object = place.object;
        let Some(Range { start, end }) = place.bytes else {
            window.object = None;
            window.bytes.clear();
            let mut file = self.file(object)?;
            let read = file.read_to_end(&mut window.bytes);
            let len = read.map_err(|error| self.cannot("read", object, &error))?;
            return Ok(0..len);
        };
        let is_in = window.object == Some(object)
            && window.start <= start
            && end <= window.start + window.bytes.len() as u64;
        if !is_in {
            window.object = None;
            let mut file = self.shard(object)?;
            let read = file.metadata().and_then(|metadata| {
                let rest = metadata.len().saturating_sub(start);
                let len = (end - start).max(WINDOW.min(rest));
                let len = usize::try_from(len).map_err(io::Error::other)?;
                window.bytes.resize(len, 0);
                file.seek(SeekFrom::Start(start))?;
                file.read_exact(&mut window.bytes)
            });
            read.map_err(|error| self.cannot("read", object, &error))?;
            (window.object, window.start) = (Some(object), start);
        }
        // They are in the window, which is in memory.
        let at = |offset: u64| usize::try_from(offset - window.start).unwrap_or(usize::MAX);
        Ok(at(start)..at(end))
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
