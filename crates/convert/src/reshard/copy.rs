//! Copies encoded subchunks from the objects of IN to the objects of OUT.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use zarrs::array::ChunkKeyEncoding;
use zarrs_cuda::maintenance::ShardFormat;

use super::plan::{BlockPiece, Plan};
use super::source::{Objects, Source, SubchunkPlace};
use crate::evidence::Changes;
use crate::grid::number_of;
use crate::shard_file::{ShardFile, first_byte};
use crate::shared_run::{Part, SharedRun};
use crate::stored::{self, Keys};
use crate::watcher::{Event, Watcher};

/// The number of bytes that are written to a file at once. With 2 MiB, ext4 took up to six times as long: it
/// requests page cache in units of the size of a write, and large units are not always free.
const BUFFER: usize = 256 << 10;

/// The extents of the subchunks in an object of OUT, in C order; `None` for an empty subchunk.
type Extents = Vec<Option<Range<u64>>>;

/// The directory of OUT, and how its objects are stored.
pub(super) struct Target<'a> {
    pub(super) root: &'a Path,
    pub(super) keys: &'a ChunkKeyEncoding,
    /// The format of the objects as shards; `None` if the objects are chunks.
    pub(super) format: Option<&'a ShardFormat>,
    /// The positions in the grid of the objects to make.
    pub(super) within: Range<u64>,
    pub(super) existing: Existing<'a>,
}

/// The treatment of objects of OUT that exist.
pub(super) enum Existing<'a> {
    /// The run replaces them.
    Replaced,
    /// The run continues an interrupted one. It keeps those that are whole, unless IN has changed since that run
    /// began: at these keys.
    Kept(Option<&'a Changes>),
    /// Several processes make OUT. They keep those that are whole, and replace none.
    Shared(InParts<'a>),
}

/// A run of several processes, and the part of this process.
pub(super) struct InParts<'a> {
    pub(super) run: &'a SharedRun,
    pub(super) part: Part,
    /// Whether there is an object that is not whole.
    pub(super) is_torn: AtomicBool,
}

/// The numbers of objects and subchunks that were copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copied {
    /// The number of objects of OUT that were written.
    pub(super) written: u64,
    /// The number of objects of OUT that existed already and were whole.
    pub(super) kept: u64,
    /// The number of subchunks in the written objects. `bytes` is their size.
    pub(super) subchunks: u64,
    pub(super) bytes: u64,
}

impl std::ops::Add for Copied {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            written: self.written + other.written,
            kept: self.kept + other.kept,
            subchunks: self.subchunks + other.subchunks,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Copies all `pieces` on `threads` threads. Stops early if `watcher` asks for it.
///
/// # Errors
/// The first failure of any thread.
pub(super) fn copy(
    plan: &Plan,
    pieces: &[BlockPiece],
    objects: &Objects<'_>,
    target: &Target<'_>,
    threads: usize,
    watcher: &dyn Watcher,
) -> Result<Copied, String> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut thread = Thread {
            source: Source::new(objects),
            target,
            buffer: Vec::new(),
            places: Vec::new(),
            copied: Copied::default(),
        };
        while !watcher.is_stopping()
            && let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed))
        {
            thread.source.begin();
            let objects = plan.objects(piece).filter(|object| {
                let number = number_of(object, &plan.output.grid);
                target.within.contains(&number)
            });
            for object in objects.take_while(|_| !watcher.is_stopping()) {
                // After a failure, no thread takes another piece.
                let written = thread.object(plan, &object);
                written.inspect_err(|_| next.store(pieces.len(), Ordering::Relaxed))?;
            }
            watcher.hear(Event::Advance(1));
        }
        Ok::<_, String>(thread.copied)
    };
    std::thread::scope(|scope| {
        let others = 1..threads.min(pieces.len());
        let others: Vec<_> = others.map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for other in others {
            let copied = other
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all = all.and_then(|all| Ok(all + copied?));
        }
        all
    })
}

/// The state of one thread of a copy.
struct Thread<'a> {
    source: Source<'a>,
    target: &'a Target<'a>,
    /// The bytes that are collected for one write to the file.
    buffer: Vec<u8>,
    /// The places in IN of the subchunks of the object that is being written.
    places: Vec<Option<SubchunkPlace>>,
    copied: Copied,
}

/// Deletes objects of OUT for which IN has no stored object any more. The interrupted run, which this run
/// continues, wrote them.
///
/// # Errors
/// A file cannot be deleted, or a directory cannot be listed.
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
    /// Writes an object of OUT, unless a whole one exists already, or all of its subchunks are empty.
    fn object(&mut self, plan: &Plan, indices: &[u64]) -> Result<(), String> {
        if let Existing::Shared(InParts { run, .. }) = &self.target.existing
            && !run.goes_on().map_err(|failure| failure.to_string())?
        {
            return Ok(()); // another process has completed the run
        }
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        for source in plan.sources(indices) {
            let place = source.map(|source| self.source.find(source)).transpose()?;
            places.push(place.flatten());
        }
        if places.iter().any(Option::is_some) {
            let path = self.path(indices);
            if self.is_kept(plan, indices, &path, &places)? {
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
        } else if let Existing::Kept(_) = self.target.existing {
            // The interrupted run may have written this object from subchunks that IN had then.
            delete(&self.path(indices))?;
        }
        self.places = places;
        Ok(())
    }

    fn path(&self, indices: &[u64]) -> PathBuf {
        let key = self.target.keys.encode(indices);
        self.target.root.join(key.as_str())
    }

    /// Returns whether the object of OUT exists, and is kept.
    ///
    /// # Errors
    /// The object is not whole, and may not be replaced.
    fn is_kept(
        &mut self,
        plan: &Plan,
        indices: &[u64],
        path: &Path,
        places: &[Option<SubchunkPlace>],
    ) -> Result<bool, String> {
        match &self.target.existing {
            Existing::Replaced => Ok(false),
            Existing::Kept(changes) => {
                Ok(!self.is_changed(*changes, plan, indices) && self.is_whole(path, places)?)
            }
            Existing::Shared(InParts { run, part, is_torn }) => {
                if size_of(path)?.is_none() {
                    return Ok(false);
                }
                if self.is_whole(path, places)? {
                    return Ok(true);
                }
                is_torn.store(true, Ordering::Relaxed);
                // The part may have been marked when the shard was whole.
                run.unmark(part.number())
                    .map_err(|failure| failure.to_string())?;
                Err(format!(
                    "the shard {} is not whole, and a run in parts replaces no shard",
                    path.display()
                ))
            }
        }
    }

    /// Returns whether an object of IN that goes into this object of OUT was written since the interrupted
    /// run began.
    fn is_changed(&self, changes: Option<&Changes>, plan: &Plan, indices: &[u64]) -> bool {
        changes.is_some_and(|changes| {
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

    /// Returns whether an object of OUT exists and is whole: its size is that of its subchunks and its index,
    /// and the index has these subchunks in C order without gaps.
    fn is_whole(&mut self, path: &Path, places: &[Option<SubchunkPlace>]) -> Result<bool, String> {
        let Some(found) = size_of(path)? else {
            return Ok(false);
        };
        let first = self.target.format.map_or(0, first_byte);
        let (extents, end) = self.extents(places, first)?;
        let Some(format) = self.target.format else {
            return Ok(found == end);
        };
        let (at, size) = match first {
            0 => (end, end.saturating_add(format.index_len())),
            _ => (0, end),
        };
        if found != size {
            return Ok(false);
        }
        let index = index_at(path, at, format.index_len());
        let index = index.map_err(|error| cannot("read", path, &error))?;
        let decoded = format.decode_index(&index, size);
        Ok(decoded.is_ok_and(|decoded| decoded == extents))
    }

    /// Returns the extents of subchunks in an object of OUT, one after the other from `first` on, and the end
    /// of the last.
    fn extents(
        &mut self,
        places: &[Option<SubchunkPlace>],
        first: u64,
    ) -> Result<(Extents, u64), String> {
        let mut end = first;
        let extents = places.iter().map(|place| {
            let Some(place) = place else {
                return Ok(None);
            };
            let bytes = self.source.bytes(place)?;
            let start = end;
            end = end.saturating_add(bytes.end - bytes.start);
            Ok(Some(start..end))
        });
        let extents = extents.collect::<Result<_, String>>()?;
        Ok((extents, end))
    }

    /// Writes a chunk from front to back. If the process is killed, the chunk stays shorter than its
    /// subchunk, so that a later run sees that it is not whole. Returns its size.
    fn chunk(&mut self, path: &Path, places: &[Option<SubchunkPlace>]) -> Result<u64, String> {
        let failed = |error: io::Error| cannot("write the chunk", path, &error);
        let file = created(path).map_err(failed)?;
        let size = self.append(places, &mut Vec::new(), 0, &file, &failed)?;
        if SYNCS {
            file.sync_all().map_err(failed)?;
        }
        Ok(size)
    }

    /// Writes a shard. Returns the number of bytes of its subchunks.
    fn shard(
        &mut self,
        path: &Path,
        format: &ShardFormat,
        places: &[Option<SubchunkPlace>],
    ) -> Result<u64, String> {
        let failed = |error: io::Error| cannot("write the shard", path, &error);
        let shard = ShardFile::create(path.to_path_buf(), format).map_err(failed)?;
        let first = first_byte(format);
        let mut extents = Vec::with_capacity(places.len());
        let end = self.append(places, &mut extents, first, shard.file(), &failed)?;
        let index = format
            .encode_index(&extents)
            .map_err(|error| format!("cannot write the shard {}: {error}", path.display()))?;
        match &self.target.existing {
            Existing::Shared(InParts { run, .. }) => run
                .watch()
                .create_shard(shard, &index)
                .map_err(|error| format!("cannot write the shard {}: {error}", path.display()))?,
            _ => shard.finish(&index, SYNCS).map_err(failed)?,
        }
        Ok(end - first)
    }

    /// Appends subchunks to `file`, behind its first `end` bytes. Adds their extents to `extents`, and
    /// returns the end of the last one. `failed` makes the message for an error of `file`.
    fn append(
        &mut self,
        places: &[Option<SubchunkPlace>],
        extents: &mut Extents,
        mut end: u64,
        file: &File,
        failed: &impl Fn(io::Error) -> String,
    ) -> Result<u64, String> {
        self.buffer.resize(BUFFER, 0);
        let mut writer = Writer {
            file,
            failed,
            buffer: &mut self.buffer,
            len: 0,
        };
        // Subchunks that follow one another in IN and in OUT are copied as one range.
        let mut run: Option<(u64, Range<u64>)> = None;
        for place in places {
            let Some(place) = place else {
                extents.push(None);
                continue;
            };
            let bytes = self.source.bytes(place)?;
            let start = end;
            end += bytes.end - bytes.start;
            extents.push(Some(start..end));
            match &mut run {
                Some((object, run)) if *object == place.object && run.end == bytes.start => {
                    run.end = bytes.end;
                }
                run => {
                    let before = run.replace((place.object, bytes));
                    writer.append(&mut self.source, before)?;
                }
            }
        }
        writer.append(&mut self.source, run)?;
        writer.flush()?;
        Ok(end)
    }
}

/// Writes a file from front to back through a buffer.
struct Writer<'a, F> {
    file: &'a File,
    /// A function that makes the message for an error of the file.
    failed: &'a F,
    buffer: &'a mut [u8],
    /// The number of bytes in the buffer that are not written to the file yet.
    len: usize,
}

impl<F: Fn(io::Error) -> String> Writer<'_, F> {
    /// Copies the range of bytes of an object of IN in `run`; does nothing for `None`.
    fn append(
        &mut self,
        source: &mut Source<'_>,
        run: Option<(u64, Range<u64>)>,
    ) -> Result<(), String> {
        let Some((object, bytes)) = run else {
            return Ok(());
        };
        let mut from = bytes.start;
        while from < bytes.end {
            if self.len == self.buffer.len() {
                self.flush()?;
            }
            let rest = usize::try_from(bytes.end - from).unwrap_or(usize::MAX);
            let end = self.buffer.len().min(self.len.saturating_add(rest));
            source.read(object, from, &mut self.buffer[self.len..end])?;
            from += (end - self.len) as u64;
            self.len = end;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        let written = self.file.write_all(&self.buffer[..self.len]);
        self.len = 0;
        written.map_err(self.failed)
    }
}

/// Whether each file is synced after it is written. On Linux, the whole file system is synced at the end
/// instead.
const SYNCS: bool = !cfg!(target_os = "linux");

/// Creates the file at `path`, and its directory if that does not exist.
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

/// Reads `len` bytes of a file from `start` on, which are the index.
fn index_at(path: &Path, start: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut index = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut index)?;
    Ok(index)
}

/// Returns the size of a file; `None` if it does not exist.
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
