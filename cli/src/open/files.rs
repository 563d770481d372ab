//! A directory as a store that never leaves out what it cannot list.
//!
//! zarrs' store of files lists a directory that it may not read as an empty one.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use zarrs::filesystem::FilesystemStore;
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    Bytes, ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits,
};

/// The files of a directory. Values are read and written as by zarrs.
#[derive(Debug)]
pub(super) struct Files(pub(super) Arc<FilesystemStore>);

impl Files {
    /// The keys and prefixes directly below `prefix`, in order. A link is a key or a prefix as its target is.
    fn below(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        let directory = self.0.prefix_to_fs_path(prefix);
        let cannot = |error: io::Error| cannot_list(&directory, &error);
        let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(StoreKeysPrefixes::new(keys, prefixes));
            }
            Err(error) => return Err(cannot(error)),
        };
        for entry in entries {
            let entry = entry.map_err(cannot)?;
            let is_directory = entry.path().is_dir();
            let name = entry.file_name();
            match name.to_str() {
                Some(name) if is_directory => {
                    prefixes.push(StorePrefix::new(format!("{}{name}/", prefix.as_str()))?);
                }
                Some(name) => keys.push(StoreKey::new(format!("{}{name}", prefix.as_str()))?),
                // No key of Zarr has such a name, but a node might be below.
                None if is_directory => {
                    let error = io::Error::other(format!("the name {name:?} in it is not UTF-8"));
                    return Err(cannot(error));
                }
                None => {}
            }
        }
        keys.sort();
        prefixes.sort();
        Ok(StoreKeysPrefixes::new(keys, prefixes))
    }

    /// Calls `found` with each key below `prefix`. Directories that are links are not entered.
    fn walk(
        &self,
        prefix: &StorePrefix,
        found: &mut dyn FnMut(StoreKey) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let mut waiting = vec![prefix.clone()];
        while let Some(prefix) = waiting.pop() {
            let below = self.below(&prefix)?;
            for below in below.prefixes() {
                let path = self.0.prefix_to_fs_path(below);
                let target = fs::symlink_metadata(&path);
                if !target
                    .map_err(|error| cannot_list(&path, &error))?
                    .is_symlink()
                {
                    waiting.push(below.clone());
                }
            }
            for key in below.keys() {
                found(key.clone())?;
            }
        }
        Ok(())
    }
}

fn cannot_list(directory: &Path, error: &io::Error) -> StorageError {
    StorageError::Other(format!(
        "cannot list the directory {}: {error}",
        directory.display()
    ))
}

impl ReadableStorageTraits for Files {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.0.get(key)
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.0.get_partial_many(key, byte_ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.0.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        self.0.supports_get_partial()
    }
}

impl WritableStorageTraits for Files {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.0.set(key, value)
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        parts: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        self.0.set_partial_many(key, parts)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.0.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.0.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        self.0.supports_set_partial()
    }
}

impl ListableStorageTraits for Files {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        let mut keys = Vec::new();
        self.walk(prefix, &mut |key| {
            keys.push(key);
            Ok(())
        })?;
        keys.sort();
        Ok(keys)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.below(prefix)
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        let mut size = 0;
        self.walk(prefix, &mut |key| {
            // A link counts as the file that it names.
            let path = self.0.key_to_fspath(&key);
            match fs::metadata(&path) {
                Ok(file) => size += file.len(),
                // Another process erased it, or it is a dangling link.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(cannot_list(&path, &error)),
            }
            Ok(())
        })?;
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn lists_as_the_store_of_zarrs() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(FilesystemStore::new(directory.path()).unwrap().sorted());
        for key in ["zarr.json", "a/zarr.json", "a/c/0/1", "õ~#%[]/x"] {
            store
                .set(&StoreKey::new(key).unwrap(), "12".into())
                .unwrap();
        }
        let files = Files(store.clone());
        assert_eq!(files.list().unwrap(), store.list().unwrap());
        assert_eq!(files.size().unwrap(), 8);
        for prefix in ["", "a/", "a/c/", "none/"] {
            let prefix = StorePrefix::new(prefix).unwrap();
            assert_eq!(
                files.list_dir(&prefix).unwrap(),
                store.list_dir(&prefix).unwrap()
            );
            assert_eq!(
                files.size_prefix(&prefix).unwrap(),
                store.size_prefix(&prefix).unwrap()
            );
        }
    }

    #[test]
    fn nothing_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let files = Files(Arc::new(FilesystemStore::new(path).unwrap()));
        symlink("nowhere", path.join("dangling")).unwrap();
        assert_eq!(files.list().unwrap(), [StoreKey::new("dangling").unwrap()]);
        // A path that leads through a file is an error, not an empty directory.
        fs::write(path.join("file"), "").unwrap();
        let below = StorePrefix::new("file/").unwrap();
        assert!(files.list_dir(&below).is_err());
        // A loop of links ends.
        fs::create_dir(path.join("a")).unwrap();
        symlink("..", path.join("a/loop")).unwrap();
        assert_eq!(files.list().unwrap().len(), 2);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_directory_whose_name_is_no_text_is_an_error() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let directory = tempfile::tempdir().unwrap();
        let files = Files(Arc::new(FilesystemStore::new(directory.path()).unwrap()));
        let name = directory.path().join(OsStr::from_bytes(b"\xff"));
        fs::write(&name, "").unwrap();
        assert!(files.list().unwrap().is_empty());
        fs::remove_file(&name).unwrap();
        fs::create_dir(&name).unwrap();
        assert!(files.list().is_err());
    }
}
