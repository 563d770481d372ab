//! The files below a directory, as a store of zarrs.
//!
//! zarrs' `FilesystemStore` writes into a file while readers may read it, syncs each write, and keeps a lock for
//! each key. This store replaces a file at once ([`NewFile`]), and updates parts of it in place
//! ([`in_place`](super::in_place)). It syncs if it is told to.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs_storage::{
    AtomicRenameStorageTraits, ListableStorageTraits, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits,
};

use super::durable::sync_names_beside;
use super::files::{Files, is_missing};
use super::replace::{Durable, NewFile};
use super::{hold, in_place};

/// The files below a directory.
#[derive(Debug)]
pub(crate) struct FileStore {
    root: PathBuf,
    files: Files,
    /// Whether each change is on the disk when a call returns.
    syncs: bool,
    /// The directories below the root whose names this store has synced.
    synced: Mutex<HashSet<PathBuf>>,
}

impl FileStore {
    pub(crate) fn new(root: PathBuf, syncs: bool) -> Self {
        let files = Files::new(root.clone());
        Self {
            root,
            files,
            syncs,
            synced: Mutex::default(),
        }
    }

    /// Returns the directory of the store.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns whether each change is on the disk when a call returns.
    pub(crate) fn syncs(&self) -> bool {
        self.syncs
    }

    /// Returns the path of the file of `key`.
    pub(crate) fn path(&self, key: &StoreKey) -> PathBuf {
        self.root.join(key.as_str())
    }

    /// Makes a new file with the bytes that `write` writes, beside the file of `key`. The new file has still to be
    /// renamed: readers see the old value until then.
    ///
    /// # Errors
    /// The error of the file system, or of `write`.
    pub(crate) fn new_file(
        &self,
        key: &StoreKey,
        write: impl FnOnce(&mut fs::File) -> io::Result<()>,
    ) -> io::Result<NewFile> {
        let mut new = NewFile::beside(&self.path(key))?;
        write(new.file_mut())?;
        Ok(new)
    }

    /// Returns the part of a change that outlasts a power failure.
    pub(crate) fn durable(&self) -> Durable<'_> {
        if self.syncs {
            Durable::Below(&self.root)
        } else {
            Durable::No
        }
    }

    /// Gives `new`, which was made for `key`, its name, and syncs the names above it if this store syncs.
    ///
    /// # Errors
    /// The error of the file system.
    pub(crate) fn rename_new(&self, key: &StoreKey, new: NewFile) -> io::Result<()> {
        new.rename_to(&self.path(key), self.durable())?;
        self.sync_directories(key)
    }

    /// Syncs the names of the directories above `key` that this store has not synced yet. Another thread or process
    /// may have made them, and not have synced them yet.
    ///
    /// # Errors
    /// The error of the file system.
    pub(crate) fn sync_directories(&self, key: &StoreKey) -> io::Result<()> {
        if !self.syncs {
            return Ok(());
        }
        let path = self.path(key);
        let above = path.ancestors().skip(1);
        for directory in
            above.take_while(|above| above.starts_with(&self.root) && *above != self.root)
        {
            let synced = || self.synced.lock().unwrap_or_else(PoisonError::into_inner);
            if !synced().contains(directory) {
                sync_names_beside(directory)?;
                synced().insert(directory.to_path_buf());
            }
        }
        Ok(())
    }

    /// Opens the file of `key`; `None` if there is no file.
    ///
    /// # Errors
    /// The error of the file system.
    pub(crate) fn open(&self, key: &StoreKey) -> io::Result<Option<fs::File>> {
        match fs::File::open(self.path(key)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Syncs the names beside `path`, if this store syncs.
    fn sync_names(&self, path: &Path) -> io::Result<()> {
        if self.syncs {
            sync_names_beside(path)
        } else {
            Ok(())
        }
    }
}

impl ReadableStorageTraits for FileStore {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        // During an update of the shard, its file is locked from the first read on.
        hold(&self.path(key))?;
        let Some(file) = self.files.open(key)? else {
            return Ok(None);
        };
        let read = move |range: ByteRange| {
            let mut buffer = Vec::new();
            file.read(&[range], &mut buffer)?;
            Ok(buffer.into())
        };
        Ok(Some(Box::new(byte_ranges.map(read))))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        match fs::metadata(self.path(key)) {
            Ok(metadata) => Ok(metadata.is_file().then_some(metadata.len())),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for FileStore {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        let new = self.new_file(key, |file| file.write_all(&value))?;
        Ok(self.rename_new(key, new)?)
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        let values: Vec<_> = offset_values.collect();
        let synced_below = self.syncs.then_some(&*self.root);
        Ok(in_place::write(&self.path(key), &values, synced_below)?)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        let path = self.path(key);
        match fs::remove_file(&path) {
            Ok(()) => Ok(self.sync_names(&path)?),
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        let path = self.root.join(prefix.as_str());
        match fs::remove_dir_all(&path) {
            Ok(()) => Ok(self.sync_names(&path)?),
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}

impl AtomicRenameStorageTraits for FileStore {
    fn rename(&self, source: &StoreKey, to: &StoreKey) -> Result<(), StorageError> {
        let (source, destination) = (self.path(source), self.path(to));
        if self.syncs {
            fs::File::open(&source)?.sync_all()?;
        }
        fs::rename(source, &destination)?;
        self.sync_names(&destination)?;
        Ok(self.sync_directories(to)?)
    }
}

impl ListableStorageTraits for FileStore {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.files.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.files.list_prefix(prefix)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.files.list_dir(prefix)
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        let keys = self.list_prefix(prefix)?;
        let sizes = keys.iter().map(|key| Ok(self.size_key(key)?.unwrap_or(0)));
        sizes.sum()
    }
}
