//! Copies encoded subchunks from the objects of IN to the objects of OUT.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::evidence::Changes;
use crate::replace::Temporary;
use crate::stored::{self, Keys};
use zarrs::array::ChunkKeyEncoding;
use zarrs::array::codec::ShardingIndexLocation;
use zarrs_cuda::maintenance::ShardFormat;

use super::plan::{Piece, Plan};
use super::source::{Objects, Place, Source};
use crate::watcher::{Event, Watcher};

/// Bytes of a file that are written together. With 2 MiB, ext4 took up to six times as long: it asks for
/// page cache in pieces of the size of a write, and large ones are not always to be had.
const BUFFER: usize = 256 << 10;

/// A chunk of more bytes is copied without being in memory as a whole.
const LARGE: u64 = 4 << 20;

/// The objects of OUT.
pub(super) struct Target<'a> {
    pub(super) root: &'a Path,
    pub(super) keys: &'a ChunkKeyEncoding,
    /// `None` if the objects are chunks.
    pub(super) format: Option<&'a ShardFormat>,
    /// Whether objects may be there already, from a run that was killed.
    pub(super) resumes: bool,
    /// The keys of IN that were written since that run began.
    pub(super) changes: Option<&'a Changes>,
}

/// The counts of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copied {
    /// Objects of OUT that were written.
    pub(super) written: u64,
    /// Objects of OUT that were there already, and whole.
    pub(super) kept: u64,
    /// Subchunks of the objects that were written, and their bytes.
    pub(super) subchunks: u64,
    pub(super) bytes: u64,
}

impl std::ops::AddAssign for Copied {
    fn add_assign(&mut self, other: Self) {
        self.written += other.written;
        self.kept += other.kept;
        self.subchunks += other.subchunks;
        self.bytes += other.bytes;
    }
}

/// Copies all `pieces`, on `threads` threads. Stops early if the user asks to.
///
/// # Errors
/// The first of any thread.
pub(super) fn copy(
    plan: &Plan,
    pieces: &[Piece],
    objects: &Objects<'_>,
    target: &Target<'_>,
    threads: usize,
    watcher: &dyn Watcher,
) -> Result<Copied, String> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let result = Mutex::new(Ok(Copied::default()));
    let work = || {
        let mut thread = Thread {
            source: Source::new(objects),
            target,
            buffer: Vec::new(),
            places: Vec::new(),
            copied: Copied::default(),
        };
        let mut run = || {
            while !failed.load(Ordering::Relaxed)
                && !watcher.is_stopping()
                && let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed))
            {
                thread.source.begin();
                for object in plan.objects(piece) {
                    if watcher.is_stopping() {
                        break;
                    }
                    thread.object(plan, &object)?;
                }
                watcher.hear(Event::Advance(1));
            }
            Ok(())
        };
        let ended = run();
        let Ok(mut result) = result.lock() else {
            return; // another thread panicked, and the scope does
        };
        match (&mut *result, ended) {
            (Ok(all), Ok(())) => *all += thread.copied,
            (Ok(_), Err(error)) => {
                failed.store(true, Ordering::Relaxed);
                *result = Err(error);
            }
            (Err(_), _) => {}
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(pieces.len()) {
            scope.spawn(work);
        }
        work();
    });
    result.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The state of one thread of a copy.
struct Thread<'a> {
    source: Source<'a>,
    target: &'a Target<'a>,
    /// Bytes of the shard that is written.
    buffer: Vec<u8>,
    /// The places of the subchunks of the object that is written.
    places: Vec<Option<Place>>,
    copied: Copied,
}

/// Deletes objects of OUT for which no object of IN is stored any more: an earlier run, which this one goes on
/// with, made them.
///
/// # Errors
/// The file that cannot be deleted, or the directory that cannot be listed.
pub(super) fn delete_stale(
    plan: &Plan,
    objects: &Objects<'_>,
    target: &Target<'_>,
) -> Result<(), String> {
    let keys = Keys::new(target.keys, &plan.output.grid);
    let mut stale = Vec::new();
    stored::files(target.root, |key, entry| {
        let Some(indices) = keys.in_grid(&key) else {
            return;
        };
        let mut sources = plan.sources(&indices).flatten();
        let is_stored = sources.any(|(object, _)| objects.stored.binary_search(&object).is_ok());
        if !is_stored {
            stale.push(entry.path());
        }
    })?;
    stale.iter().try_for_each(|path| delete(path))
}

fn delete(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("cannot delete {}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

impl Thread<'_> {
    /// Writes an object of OUT, unless it is there already or would be empty.
    fn object(&mut self, plan: &Plan, indices: &[u64]) -> Result<(), String> {
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        for source in plan.sources(indices) {
            let place = source.map(|source| self.source.find(source)).transpose()?;
            places.push(place.flatten());
        }
        if places.iter().any(Option::is_some) {
            let path = self.path(indices);
            if self.target.resumes
                && !self.is_changed(plan, indices)
                && self.is_whole(&path, &places)?
            {
                self.copied.kept += 1;
            } else {
                let bytes = match self.target.format {
                    Some(format) => self.shard(&path, format, &places)?,
                    None => self.chunk(&path, &places)?,
                };
                self.copied.written += 1;
                self.copied.subchunks += places.iter().flatten().count() as u64;
                self.copied.bytes += bytes;
            }
        } else if self.target.resumes {
            // An earlier run may have made one of subchunks that were there then.
            delete(&self.path(indices))?;
        }
        self.places = places;
        Ok(())
    }

    fn path(&self, indices: &[u64]) -> PathBuf {
        let key = self.target.keys.encode(indices);
        self.target.root.join(key.as_str())
    }

    /// Whether an object of IN that this object of OUT is made of was written since the run began that is
    /// gone on with.
    fn is_changed(&self, plan: &Plan, indices: &[u64]) -> bool {
        self.target.changes.is_some_and(|changes| {
            let objects: BTreeSet<u64> = plan
                .sources(indices)
                .flatten()
                .map(|(object, _)| object)
                .collect();
            objects
                .into_iter()
                .any(|object| changes.has(&self.source.key(object)))
        })
    }

    /// Whether an object of OUT is there, and whole: it has the size of its subchunks and the index, and
    /// the index says that these subchunks lie there one behind the other.
    fn is_whole(&self, path: &Path, places: &[Option<Place>]) -> Result<bool, String> {
        let Some(found) = size_of(path)? else {
            return Ok(false);
        };
        let Some(format) = self.target.format else {
            let size = places.iter().flatten().next();
            return Ok(Some(found) == size.map(|place| self.source.size(place)).transpose()?);
        };
        let index_len = format.index_len();
        let is_first = format.index_location() == ShardingIndexLocation::Start;
        let mut end = if is_first { index_len } else { 0 };
        let mut extents: Vec<Option<Range<u64>>> = Vec::with_capacity(places.len());
        for place in places {
            let Some(place) = place else {
                extents.push(None);
                continue;
            };
            let start = end;
            end = end.saturating_add(self.source.size(place)?);
            extents.push(Some(start..end));
        }
        let at = if is_first { 0 } else { end };
        let size = if is_first {
            end
        } else {
            end.saturating_add(index_len)
        };
        if found != size {
            return Ok(false);
        }
        let index = index_at(path, at, index_len).map_err(|error| cannot("read", path, &error))?;
        let decoded = format.decode_index(&index, size);
        Ok(decoded.is_ok_and(|decoded| decoded == extents))
    }

    /// Writes a chunk from front to back, so that one that a killed run left is shorter than its subchunk.
    /// Returns its size.
    fn chunk(&mut self, path: &Path, places: &[Option<Place>]) -> Result<u64, String> {
        let Some(place) = places.iter().flatten().next() else {
            return Ok(0);
        };
        if self.source.size(place)? > LARGE {
            return self.large_chunk(path, place);
        }
        let bytes = self.source.bytes(place)?;
        let written = created(path).and_then(|mut file| {
            for part in bytes.chunks(BUFFER) {
                file.write_all(part)?;
            }
            written(&file)
        });
        written.map_err(|error| cannot("write the chunk", path, &error))?;
        Ok(bytes.len() as u64)
    }

    /// The same, without the chunk in memory.
    fn large_chunk(&mut self, path: &Path, place: &Place) -> Result<u64, String> {
        let failed = |error: io::Error| cannot("write the chunk", path, &error);
        let file = created(path).map_err(failed)?;
        self.buffer.resize(BUFFER, 0);
        let mut chunk = Writer {
            file: &file,
            buffer: &mut self.buffer,
            len: 0,
        };
        let size = match &place.bytes {
            None => chunk.append_chunk(&mut self.source, place.object)?,
            Some(bytes) => {
                let run = (place.object, bytes.clone());
                let appended = chunk.append(&mut self.source, run);
                appended.map_err(|error| error.told(failed))?;
                bytes.end - bytes.start
            }
        };
        chunk.flush().map_err(failed)?;
        written(&file).map_err(failed)?;
        Ok(size)
    }

    /// Writes a shard, and returns the size of its subchunks.
    fn shard(
        &mut self,
        path: &Path,
        format: &ShardFormat,
        places: &[Option<Place>],
    ) -> Result<u64, String> {
        let failed = |error: io::Error| cannot("write the shard", path, &error);
        let temporary = Temporary::of(path).map_err(failed)?;
        let file = temporary.file();
        let is_first = format.index_location() == ShardingIndexLocation::Start;
        let first = if is_first { format.index_len() } else { 0 };
        self.buffer.resize(BUFFER, 0);
        let mut shard = Writer {
            file,
            buffer: &mut self.buffer,
            len: 0,
        };
        (&*file).seek(SeekFrom::Start(first)).map_err(failed)?;
        let mut extents: Vec<Option<Range<u64>>> = Vec::with_capacity(places.len());
        let mut end = first;
        // Subchunks that follow one another on both sides are read together.
        let mut run: Option<(u64, Range<u64>)> = None;
        for place in places {
            let Some(Place { object, bytes }) = place else {
                extents.push(None);
                continue;
            };
            let start = end;
            match (bytes, &mut run) {
                (None, _) => end += shard.append_chunk(&mut self.source, *object)?,
                (Some(bytes), Some((last, run))) if last == object && run.end == bytes.start => {
                    run.end = bytes.end;
                    end += bytes.end - bytes.start;
                }
                (Some(bytes), run) => {
                    if let Some(run) = run.replace((*object, bytes.clone())) {
                        shard
                            .append(&mut self.source, run)
                            .map_err(|e| e.told(failed))?;
                    }
                    end += bytes.end - bytes.start;
                }
            }
            extents.push(Some(start..end));
        }
        if let Some(run) = run {
            shard
                .append(&mut self.source, run)
                .map_err(|e| e.told(failed))?;
        }
        shard.flush().map_err(failed)?;
        let index = format
            .encode_index(&extents)
            .map_err(|error| format!("cannot write the shard {}: {error}", path.display()))?;
        let finished = (|| {
            if is_first {
                (&*file).seek(SeekFrom::Start(0))?;
            }
            (&*file).write_all(&index)?;
            written(file)
        })();
        finished.map_err(failed)?;
        temporary.rename_to(path).map_err(failed)?;
        Ok(end - first)
    }
}

/// An error of either side of a copy.
enum Failed {
    Reading(String),
    Writing(io::Error),
}

impl Failed {
    fn told(self, writing: impl Fn(io::Error) -> String) -> String {
        match self {
            Self::Reading(message) => message,
            Self::Writing(error) => writing(error),
        }
    }
}

/// Writes a file from front to back.
struct Writer<'a> {
    file: &'a File,
    buffer: &'a mut [u8],
    /// How many bytes of the buffer are to be written.
    len: usize,
}

impl Writer<'_> {
    /// Copies bytes of a shard.
    fn append(
        &mut self,
        source: &mut Source<'_>,
        (object, bytes): (u64, Range<u64>),
    ) -> Result<(), Failed> {
        let mut from = bytes.start;
        while from < bytes.end {
            let rest = usize::try_from(bytes.end - from).unwrap_or(usize::MAX);
            let room = self.room(rest).map_err(Failed::Writing)?;
            source.read(object, from, room).map_err(Failed::Reading)?;
            let len = room.len();
            self.len += len;
            from += len as u64;
        }
        Ok(())
    }

    /// Copies a chunk, and returns its size.
    fn append_chunk(&mut self, source: &mut Source<'_>, object: u64) -> Result<u64, String> {
        source.read_chunk(object, |rest, read| {
            let room = self.room(rest)?;
            read(room)?;
            let len = room.len();
            self.len += len;
            Ok(len)
        })
    }

    /// Where the next of `rest` bytes go: at least one of them.
    fn room(&mut self, rest: usize) -> io::Result<&mut [u8]> {
        if self.len == self.buffer.len() {
            self.flush()?;
        }
        let end = self.buffer.len().min(self.len.saturating_add(rest));
        Ok(&mut self.buffer[self.len..end])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer[..self.len])?;
        self.len = 0;
        Ok(())
    }
}

/// Completes a file that was written. Linux syncs the whole file system at the end instead.
#[cfg(target_os = "linux")]
#[allow(clippy::unnecessary_wraps, reason = "as elsewhere")]
fn written(_file: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn written(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Opens a new file, and makes its directory if there is none.
fn created(path: &Path) -> io::Result<File> {
    match File::create(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)?;
            }
            File::create(path)
        }
        created => created,
    }
}

/// So many bytes of a file, from `start` on.
fn index_at(path: &Path, start: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut index = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut index)?;
    Ok(index)
}

/// The size of a file, if there is one.
fn size_of(path: &Path) -> Result<Option<u64>, String> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot("look at", path, &error)),
    }
}

fn cannot(doing: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {doing} {}: {error}", path.display())
}
