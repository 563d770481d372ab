//! Reads directories and files without zarrs.
//!
//! zarrs' `FilesystemStore` lists nothing, without an error, if it cannot open a directory: a process with
//! too many open files takes a full directory for an empty one. It panics at a name that is not UTF-8. It
//! finds nothing under a link that leads nowhere, and waits for the other end of a pipe. This module returns
//! each error, and looks at a file before it reads the file.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
#[cfg(unix)]
use std::time::{Duration, UNIX_EPOCH};

use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix};

use super::temporary_keys::is_lock_file;
use super::times::{Stamp, Times};

type Result<T> = std::result::Result<T, StorageError>;

/// The character that replaces each part of a name that is not UTF-8.
pub(crate) const NOT_UTF_8: char = char::REPLACEMENT_CHARACTER;

/// The directory of a store whose keys are paths.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    root: PathBuf,
}

/// An entry of a directory.
struct Entry {
    /// The name of the entry, with [`NOT_UTF_8`] where it is not UTF-8.
    name: String,
    is_directory: bool,
    is_link: bool,
}

fn failed(doing: &str, path: &Path, error: &io::Error) -> StorageError {
    // The error number alone says that there are too many open files.
    let advice = if error.kind() == ErrorKind::PermissionDenied {
        "see to it that this process may"
    } else {
        "see whether the process has too many open files (`ulimit -n`), and try again"
    };
    StorageError::Other(format!(
        "cannot {doing} {}: {error}; {advice}",
        path.display()
    ))
}

/// Returns whether `error` says that nothing exists at a path.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Returns whether `error` says that a link leads to nothing, or to itself.
fn leads_nowhere(error: &io::Error) -> bool {
    // The `ErrorKind` of a loop of links has no stable name.
    #[cfg(target_os = "linux")]
    let is_loop = error.raw_os_error() == Some(libc::ELOOP);
    #[cfg(not(target_os = "linux"))]
    let is_loop = false;
    is_loop || is_missing(error)
}

/// Returns the time at which the inode was changed, for example by renaming.
#[cfg(unix)]
#[cfg_attr(
    not(feature = "filesystem"),
    allow(dead_code, reason = "of a store that has them")
)]
fn changed(metadata: &fs::Metadata) -> Option<SystemTime> {
    use std::os::unix::fs::MetadataExt;

    let seconds = u64::try_from(metadata.ctime()).ok()?;
    let nanoseconds = u32::try_from(metadata.ctime_nsec()).ok()?;
    UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
}

#[cfg(not(unix))]
#[cfg_attr(
    not(feature = "filesystem"),
    allow(dead_code, reason = "of a store that has them")
)]
fn changed(_: &fs::Metadata) -> Option<SystemTime> {
    None
}

/// Returns the directory whose files are the values of `store`; `None` if it is not zarrs' store of files.
#[cfg(feature = "filesystem")]
pub(crate) fn directory_of<S: ?Sized + 'static>(store: &Arc<S>) -> Option<PathBuf> {
    let store: &dyn std::any::Any = store;
    let store = store.downcast_ref::<Arc<zarrs_filesystem::FilesystemStore>>()?;
    Some(store.prefix_to_fs_path(&StorePrefix::root()))
}

/// Returns `None`: without the feature `filesystem`, zarrs' store of files is not known.
#[cfg(not(feature = "filesystem"))]
pub(crate) fn directory_of<S: ?Sized + 'static>(_store: &Arc<S>) -> Option<PathBuf> {
    None
}

impl Files {
    /// Returns the files of the store in `root`.
    #[cfg_attr(
        not(feature = "filesystem"),
        allow(dead_code, reason = "of a store that has them")
    )]
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn entries(&self, prefix: &str) -> Result<Vec<Entry>> {
        let path = self.root.join(prefix);
        let cannot = |error: &io::Error| failed("list the directory", &path, error);
        let directory = match fs::read_dir(&path) {
            Ok(directory) => directory,
            // A directory that does not exist has no entries.
            Err(error) if is_missing(&error) => return Ok(Vec::new()),
            Err(error) => return Err(cannot(&error)),
        };
        let mut entries = Vec::new();
        for entry in directory {
            let entry = entry.map_err(|error| cannot(&error))?;
            let kind = match entry.file_type() {
                Ok(kind) => kind,
                // The entry was deleted meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("look at", &entry.path(), &error)),
            };
            let is_directory = if kind.is_symlink() {
                match fs::metadata(entry.path()) {
                    Ok(metadata) => metadata.is_dir(),
                    Err(error) if leads_nowhere(&error) => false,
                    Err(error) => return Err(failed("follow the link", &entry.path(), &error)),
                }
            } else {
                kind.is_dir()
            };
            let name = entry.file_name().to_string_lossy().into_owned();
            if !is_directory && is_lock_file(&name) {
                continue; // no value
            }
            entries.push(Entry {
                name,
                is_directory,
                is_link: kind.is_symlink(),
            });
        }
        Ok(entries)
    }

    /// Returns a function that tells when files were stored.
    #[cfg_attr(
        not(feature = "filesystem"),
        allow(dead_code, reason = "of a store that has them")
    )]
    pub(crate) fn times(self) -> Times {
        Arc::new(move |key, prefix| {
            let mut times = BTreeMap::new();
            let listed = self.list_dir(prefix)?;
            for key in std::iter::once(key).chain(listed.keys()) {
                if let Some(stamp) = self.stamp(key)? {
                    times.insert(key.clone(), stamp);
                }
            }
            Ok(times)
        })
    }

    /// Returns when the file of `key` was stored; `None` if there is no file.
    ///
    /// # Errors
    /// The error of a file that cannot be looked at, or of a file system that keeps no times.
    #[cfg_attr(
        not(feature = "filesystem"),
        allow(dead_code, reason = "of a store that has them")
    )]
    fn stamp(&self, key: &StoreKey) -> Result<Option<Stamp>> {
        let path = self.root.join(key.as_str());
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if leads_nowhere(&error) => return Ok(None),
            Err(error) => return Err(failed("look at", &path, &error)),
        };
        let written = metadata.modified();
        let written = written.map_err(|error| failed("find the time of", &path, &error))?;
        let placed = changed(&metadata).unwrap_or(written);
        Ok(Some(Stamp { written, placed }))
    }

    /// Returns the keys and prefixes directly under `prefix`, in order.
    ///
    /// # Errors
    /// The error of a directory that cannot be read. A missing directory is no error.
    pub(crate) fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes> {
        let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
        for entry in self.entries(prefix.as_str())? {
            let path = format!("{prefix}{}", entry.name);
            if entry.is_directory {
                prefixes.push(StorePrefix::new(path + "/")?);
            } else {
                keys.push(StoreKey::new(path)?);
            }
        }
        keys.sort();
        prefixes.sort();
        Ok(StoreKeysPrefixes::new(keys, prefixes))
    }

    /// Returns all keys under `prefix`, in order.
    ///
    /// # Errors
    /// The error of a directory that cannot be read. A directory that was deleted is no error.
    pub(crate) fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys> {
        let mut keys = Vec::new();
        let mut left = vec![prefix.as_str().to_owned()];
        while let Some(prefix) = left.pop() {
            for entry in self.entries(&prefix)? {
                let path = format!("{prefix}{}", entry.name);
                if !entry.is_directory {
                    keys.push(StoreKey::new(path)?);
                } else if !entry.is_link || !self.leads_up(&prefix, &path)? {
                    left.push(path + "/");
                }
            }
        }
        keys.sort();
        Ok(keys)
    }

    /// Returns whether a link in a directory leads to this directory or one above it. The keys below such a
    /// link are found already, and so is the link. Also returns true for a link that is gone.
    fn leads_up(&self, directory: &str, link: &str) -> Result<bool> {
        let real = |path: &str| {
            let path = self.root.join(path);
            match fs::canonicalize(&path) {
                Ok(real) => Ok(Some(real)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(failed("follow the links in", &path, &error)),
            }
        };
        let Some(target) = real(link)? else {
            return Ok(true);
        };
        // A directory that a link leads to does not lie where its key says, so the real paths are compared.
        let ends = directory.match_indices('/').map(|(end, _)| end);
        for end in std::iter::once(0).chain(ends) {
            if real(&directory[..end])?.is_some_and(|above| above.starts_with(&target)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether `key` is a regular file of at most `most` bytes, and not, for example, a link, a pipe
    /// or a directory; `None` if nothing is there.
    ///
    /// # Errors
    /// The error of a file that cannot be looked at.
    pub(crate) fn is_file_of(&self, key: &StoreKey, most: u64) -> Result<Option<bool>> {
        let path = self.root.join(key.as_str());
        match fs::symlink_metadata(&path) {
            Ok(metadata) => Ok(Some(metadata.is_file() && metadata.len() <= most)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(failed("look at", &path, &error)),
        }
    }
}

/// A file that is open for reading. It stays the same file if another file takes its name.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    file: fs::File,
    len: u64,
}

impl Files {
    /// Opens the value at `key`; `None` if there is no value.
    ///
    /// # Errors
    /// The error of a value that cannot be opened, or is not a file.
    pub(crate) fn open(&self, key: &StoreKey) -> Result<Option<File>> {
        let path = self.root.join(key.as_str());
        // Opening a pipe would wait for its other end.
        let looked = fs::metadata(&path).and_then(|metadata| {
            let is_file = metadata.is_file();
            is_file
                .then_some(())
                .ok_or(io::Error::other("it is not a file"))
        });
        let opened = looked.and_then(|()| fs::File::open(&path));
        match opened.and_then(|file| Ok((file.metadata()?.len(), file))) {
            Ok((len, file)) => Ok(Some(File { path, file, len })),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(failed("open", &path, &error)),
        }
    }
}

impl File {
    /// Returns the number of bytes of the file now. Another process may have truncated the file.
    ///
    /// # Errors
    /// The error of a file that cannot be looked at.
    pub(crate) fn size(&self) -> Result<u64> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|error| failed("look at", &self.path, &error))?;
        Ok(metadata.len())
    }

    /// Returns whether the byte at `offset` is in the cache of the system, or the file is in memory. False where
    /// the system does not say so, as for files on a network.
    pub(crate) fn is_cached(&self, offset: u64) -> bool {
        #[cfg(target_os = "linux")]
        {
            use rustix::io::{Errno, ReadWriteFlags, preadv2};

            /// The number of a file system in memory (`tmpfs`), which has no cache to ask for.
            const IN_MEMORY: u64 = 0x0102_1994;

            let byte = &mut [0];
            let buffers = &mut [io::IoSliceMut::new(byte)];
            match preadv2(&self.file, buffers, offset, ReadWriteFlags::NOWAIT) {
                Ok(_) => true,
                Err(Errno::AGAIN) => false,
                Err(_) => rustix::fs::fstatfs(&self.file)
                    .is_ok_and(|system| u64::try_from(system.f_type) == Ok(IN_MEMORY)),
            }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = offset;
            false
        }
    }

    /// Returns the bytes of the file that `ranges` name, and their number.
    ///
    /// # Errors
    /// The error of a range that is not in the file, or of more bytes than this machine can address.
    pub(crate) fn find(&self, ranges: &[ByteRange]) -> Result<(Vec<Range<u64>>, usize)> {
        let within = |range: &ByteRange| super::ranges::within(*range, self.len);
        let ranges = ranges.iter().map(within).collect::<Result<Vec<_>>>()?;
        let mut len = 0_usize;
        for range in &ranges {
            let bytes = range.end - range.start;
            len = usize::try_from(bytes)
                .ok()
                .and_then(|bytes| len.checked_add(bytes))
                .ok_or_else(|| self.no_memory(bytes))?;
        }
        Ok((ranges, len))
    }

    /// Returns the error for missing memory for `len` bytes of the file.
    pub(crate) fn no_memory(&self, len: u64) -> StorageError {
        StorageError::Other(format!(
            "out of memory: {len} bytes of {}",
            self.path.display()
        ))
    }

    /// Reads `ranges` of the file, which [`find`](Self::find) has found, to the begin of `to`, one after the other.
    /// Returns the bytes of each.
    ///
    /// # Errors
    /// The error of a file that cannot be read: another process may have truncated it. Also, `to` is too short.
    pub(crate) fn read_to<'b>(
        &self,
        ranges: &[Range<u64>],
        to: &'b mut [u8],
    ) -> Result<Vec<&'b [u8]>> {
        let mut rest = to;
        let mut read = Vec::with_capacity(ranges.len());
        for range in ranges {
            let bytes = range.end - range.start;
            let len = usize::try_from(bytes).ok();
            let (bytes, others) = len
                .and_then(|len| std::mem::take(&mut rest).split_at_mut_checked(len))
                .ok_or_else(|| self.no_memory(bytes))?;
            read_exact_at(&self.file, bytes, range.start)
                .map_err(|error| failed("read", &self.path, &error))?;
            read.push(&*bytes);
            rest = others;
        }
        Ok(read)
    }

    /// Reads `ranges` into `buffer`, one after the other, and returns the bytes of each.
    ///
    /// # Errors
    /// The error of a range that is not in the file, of missing memory, or of a file that cannot be read:
    /// another process may have truncated it.
    pub(crate) fn read<'b>(
        &self,
        ranges: &[ByteRange],
        buffer: &'b mut Vec<u8>,
    ) -> Result<Vec<&'b [u8]>> {
        let (ranges, len) = self.find(ranges)?;
        if let Some(more) = len.checked_sub(buffer.len()) {
            let room = buffer.try_reserve_exact(more);
            room.map_err(|_| self.no_memory(len as u64))?;
            buffer.resize(len, 0);
        }
        self.read_to(&ranges, buffer)
    }
}

#[cfg(unix)]
fn read_exact_at(file: &fs::File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &fs::File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                bytes = &mut bytes[read..];
                offset += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
