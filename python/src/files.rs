//! A store of zarrs over the files of zarr-python's `LocalStore`.
//!
//! zarrs' own store of files does not fit: it syncs each write, does not replace a file at once, and keeps a
//! lock for each key that it has used, which a forked child process may find locked.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs_storage::{
    AtomicRenameStorageTraits, ListableStorageTraits, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits,
};

use zarrs_cuda::storage::{Durable, LockFile, NewFile, in_place, within};
use zarrs_cuda_engine::memory::allocate::with_capacity;

/// The files below a directory, as a store.
#[derive(Debug)]
pub(crate) struct Files {
    root: PathBuf,
    /// Whether each change is on the disk when a call returns.
    sync: bool,
}

impl Files {
    pub(crate) fn new(root: PathBuf, sync: bool) -> Self {
        Self { root, sync }
    }

    pub(crate) fn syncs(&self) -> bool {
        self.sync
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    /// Replaces the file of `key` at once by the bytes that `write` writes: readers see the old value or the
    /// new one.
    pub(crate) fn replace(
        &self,
        key: &str,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let path = &self.path(key);
        let mut new = NewFile::beside(path)?;
        write(new.file_mut())?;
        let durable = if self.sync {
            Durable::Below(&self.root)
        } else {
            Durable::No
        };
        new.rename_to(path, durable)
    }

    /// Syncs the directory of `path` to the disk, so that its names survive a power failure.
    fn sync_parent(&self, path: &Path) -> io::Result<()> {
        let Some(parent) = path.parent().filter(|_| self.sync) else {
            return Ok(());
        };
        match File::open(parent).and_then(|directory| directory.sync_all()) {
            // Another process has removed the directory.
            Err(error) if is_missing(&error) => Ok(()),
            done => done,
        }
    }

    pub(crate) fn remove(&self, key: &str) -> io::Result<()> {
        let path = self.path(key);
        match fs::remove_file(&path) {
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.sync_parent(&path),
        }
    }

    /// Returns the whole value of `key`, or `None` if the file does not exist.
    pub(crate) fn whole(&self, key: &str) -> io::Result<Option<Vec<u8>>> {
        let Some((mut file, len)) = self.open_sized(key)? else {
            return Ok(None);
        };
        let len = usize::try_from(len).unwrap_or(0);
        // The extra byte lets the read see the end of the file. Large values are read faster into huge pages.
        let mut value = with_capacity(len + 1, "a shard", true)
            .map_err(|error| io::Error::new(ErrorKind::OutOfMemory, error.to_string()))?;
        file.read_to_end(&mut value)?;
        Ok(Some(value))
    }

    /// Returns the file of `key`, and its size in bytes, or `None` if the file does not exist.
    pub(crate) fn open_sized(&self, key: &str) -> io::Result<Option<(File, u64)>> {
        let opened = File::open(self.path(key)).and_then(|file| Ok((file.metadata()?, file)));
        match opened {
            Ok((metadata, _)) if metadata.is_dir() => Ok(None),
            Ok((metadata, file)) => Ok(Some((file, metadata.len()))),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn walk(&self, prefix: &str, keys: &mut StoreKeys) -> Result<(), StorageError> {
        let listed = self.list_dir(&StorePrefix::new(prefix)?)?;
        keys.extend(listed.keys().iter().cloned());
        for prefix in listed.prefixes() {
            self.walk(prefix.as_str(), keys)?;
        }
        Ok(())
    }
}

/// Returns the key of the directory of the subchunks that are stored beside the shard `key`.
pub(crate) fn frame_directory(key: &str) -> String {
    format!("{key}.frame")
}

/// Returns whether `error` means that there is no value. zarr-python takes a directory for no value, too.
fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory
    )
}

fn read_range(file: &File, size: u64, range: ByteRange) -> Result<Bytes, StorageError> {
    let range = within(range, size)?;
    let mut bytes = vec![0; usize::try_from(range.end - range.start).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes.into())
}

impl ReadableStorageTraits for Files {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        // During an update of the shard, its file is locked from the first read on.
        in_place::hold(&self.path(key.as_str()))?;
        let Some((file, size)) = self.open_sized(key.as_str())? else {
            return Ok(None);
        };
        let file = Arc::new(file);
        Ok(Some(Box::new(
            byte_ranges.map(move |range| read_range(&file, size, range)),
        )))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        match fs::metadata(self.path(key.as_str())) {
            Ok(metadata) => Ok(metadata.is_file().then_some(metadata.len())),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Files {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        Ok(self.replace(key.as_str(), |file| file.write_all(&value))?)
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        let values: Vec<_> = offset_values.collect();
        let path = self.path(key.as_str());
        let synced_below = self.sync.then_some(&*self.root);
        Ok(in_place::write(&path, &values, synced_below)?)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        Ok(self.remove(key.as_str())?)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        let path = self.path(prefix.as_str());
        match fs::remove_dir_all(&path) {
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(self.sync_parent(&path)?),
        }
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}

impl AtomicRenameStorageTraits for Files {
    fn rename(&self, source: &StoreKey, destination: &StoreKey) -> Result<(), StorageError> {
        let (source, destination) = (self.path(source.as_str()), self.path(destination.as_str()));
        fs::rename(source, &destination)?;
        Ok(self.sync_parent(&destination)?)
    }
}

impl ListableStorageTraits for Files {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        let mut keys = StoreKeys::new();
        self.walk(prefix.as_str(), &mut keys)?;
        keys.sort();
        Ok(keys)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
        let entries = match fs::read_dir(self.path(prefix.as_str())) {
            Ok(entries) => entries,
            Err(error) if is_missing(&error) => {
                return Ok(StoreKeysPrefixes::new(keys, prefixes));
            }
            Err(error) => return Err(error.into()),
        };
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                // zarr-python has no key with a name that is not valid UTF-8.
                continue;
            };
            let path = format!("{prefix}{name}");
            // A link to a directory counts as a directory.
            let kind = entry.file_type()?;
            let is_dir = kind.is_dir() || (kind.is_symlink() && entry.path().is_dir());
            if is_dir {
                prefixes.push(StorePrefix::new(path + "/")?);
            } else if !LockFile::is_key(&path) {
                keys.push(StoreKey::new(path)?);
            }
        }
        keys.sort();
        prefixes.sort();
        Ok(StoreKeysPrefixes::new(keys, prefixes))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        let keys = self.list_prefix(prefix)?;
        let sizes = keys.iter().map(|key| Ok(self.size_key(key)?.unwrap_or(0)));
        sizes.sum()
    }
}
