//! A store over the directory of an array. It returns every error of the file system.
//!
//! If zarrs' `FilesystemStore` cannot read, it reports that nothing is there, or lists nothing. A process
//! without permission, or with too many open files, would take stored shards for missing ones.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::{LockFile, within};
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs_storage::{
    Bytes, ListableStorageTraits, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits,
    StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
};

type Result<T> = std::result::Result<T, StorageError>;

/// The system's error number for too many open files in this process.
const MANY_FILES: i32 = rustix::io::Errno::MFILE.raw_os_error();

/// A directory as a store that returns every error.
pub struct Files(Arc<FilesystemStore>);

/// Returns whether `error` says that nothing is at a path, or only a link that leads nowhere.
pub fn is_missing(error: &io::Error) -> bool {
    let is_loop = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    is_loop || matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn failed(doing: &str, path: &Path, error: &io::Error) -> StorageError {
    StorageError::Other(format!("cannot {doing} {}: {error}", path.display()))
}

/// Returns the metadata of the file at `path`, or of the file to which links there lead; `None` if there is
/// none.
fn look(path: &Path) -> Result<Option<fs::Metadata>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(failed("look at", path, &error)),
    }
}

/// Returns the message that a directory, a pipe, a socket or a device is at `path`, where a file should be.
pub fn no_file(path: &Path) -> String {
    let is = match fs::metadata(path).map(|found| found.file_type()) {
        Ok(kind) if kind.is_dir() => "a directory",
        _ => "a pipe, a socket or a device",
    };
    let path = path.display();
    format!("{path} is {is}, where a file should be: move it away")
}

/// Reads the file at `path`. Refuses a pipe, on which it would wait for another process to write.
///
/// # Errors
/// The system's error, or `path` is no file.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other(no_file(path)));
    }
    fs::read(path)
}

impl Files {
    pub fn new(files: Arc<FilesystemStore>) -> Self {
        Self(files)
    }

    /// Returns the path of the file with the key `key`.
    pub fn path(&self, key: &StoreKey) -> PathBuf {
        self.0.key_to_fspath(key)
    }

    /// Returns the entries of the directory of `prefix`: the name, whether the entry itself is a directory,
    /// and the metadata of the file to which links lead. Returns none if the directory does not exist.
    fn entries(&self, prefix: &str) -> Result<Vec<(String, bool, fs::Metadata)>> {
        let directory = self.0.prefix_to_fs_path(&StorePrefix::new(prefix)?);
        let cannot = |error: &io::Error| failed("list the directory", &directory, error);
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if is_missing(&error) => return Ok(Vec::new()),
            Err(error) => return Err(cannot(&error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| cannot(&error))?;
            // The entry may have been deleted meanwhile, or be a link that leads nowhere.
            if let Some(metadata) = look(&entry.path())? {
                let kind = entry.file_type().map_err(|error| cannot(&error))?;
                match entry.file_name().into_string() {
                    Ok(name) if !metadata.is_dir() && LockFile::is_key(&name) => {} // no value
                    Ok(name) => found.push((name, kind.is_dir(), metadata)),
                    // A name that is not UTF-8 is no key. But an array below such a directory would be left
                    // out silently.
                    Err(name) if metadata.is_dir() => {
                        let why = format!("the name {} in it is not UTF-8", name.display());
                        return Err(cannot(&io::Error::other(why)));
                    }
                    Err(_) => {}
                }
            }
        }
        found.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        Ok(found)
    }

    /// Calls `on_file` with the key of each file below `prefix`, and its size in bytes. Does not follow links
    /// to directories.
    fn below(&self, prefix: &StorePrefix, mut on_file: impl FnMut(String, u64)) -> Result<()> {
        let mut left = vec![prefix.as_str().to_string()];
        while let Some(prefix) = left.pop() {
            for (name, is_directory, metadata) in self.entries(&prefix)? {
                if is_directory {
                    left.push(format!("{prefix}{name}/"));
                } else if metadata.is_file() {
                    on_file(format!("{prefix}{name}"), metadata.len());
                }
            }
        }
        Ok(())
    }

    /// Reads a range of the open file at `path`, whose size is `size` bytes.
    fn read(file: &File, path: &Path, size: u64, range: ByteRange) -> Result<Bytes> {
        let range = within(range, size)?;
        let (start, len) = (range.start, range.end - range.start);
        let mut bytes = Vec::new();
        let reserved = usize::try_from(len)
            .ok()
            .filter(|len| bytes.try_reserve_exact(*len).is_ok());
        let len = reserved.ok_or_else(|| {
            let path = path.display();
            StorageError::Other(format!("there is no memory for {len} bytes of {path}"))
        })?;
        bytes.resize(len, 0);
        let mut at = file;
        at.seek(SeekFrom::Start(start))
            .and_then(|_| at.read_exact(&mut bytes))
            .map_err(|error| failed("read", path, &error))?;
        Ok(bytes.into())
    }
}

impl ReadableStorageTraits for Files {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>> {
        let path = self.path(key);
        // Check first that a file is there: opening a pipe would wait for a process that writes to it.
        if self.size_key(key)?.is_none() {
            return Ok(None);
        }
        // Read without zarrs' store, which keeps a lock in memory for each key.
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (size, file) = match opened {
            Ok(opened) => opened,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) if error.raw_os_error() == Some(MANY_FILES) => {
                let path = path.display();
                return Err(StorageError::Other(format!(
                    "cannot open {path}: {error}; let it have more (`ulimit -n`), or fewer threads"
                )));
            }
            Err(error) => return Err(failed("open", &path, &error)),
        };
        let parts = byte_ranges.map(move |range| Self::read(&file, &path, size, range));
        Ok(Some(Box::new(parts)))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>> {
        let path = self.0.key_to_fspath(key);
        match look(&path)? {
            Some(found) if !found.is_file() => Err(StorageError::Other(no_file(&path))),
            found => Ok(found.map(|found| found.len())),
        }
    }

    fn supports_get_partial(&self) -> bool {
        self.0.supports_get_partial()
    }
}

impl WritableStorageTraits for Files {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        self.0.set(key, value)
    }

    fn set_partial_many(&self, key: &StoreKey, parts: OffsetBytesIterator) -> Result<()> {
        self.0.set_partial_many(key, parts)
    }

    fn erase(&self, key: &StoreKey) -> Result<()> {
        self.0.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<()> {
        self.0.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        self.0.supports_set_partial()
    }
}

impl ListableStorageTraits for Files {
    fn list(&self) -> Result<StoreKeys> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys> {
        let mut found = Vec::new();
        self.below(prefix, |key, _| found.push(key))?;
        found.sort();
        let keys: std::result::Result<StoreKeys, _> =
            found.into_iter().map(StoreKey::new).collect();
        Ok(keys?)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes> {
        let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
        for (name, _, metadata) in self.entries(prefix.as_str())? {
            let path = format!("{prefix}{name}");
            if metadata.is_dir() {
                prefixes.push(StorePrefix::new(path + "/")?);
            } else {
                keys.push(StoreKey::new(path)?);
            }
        }
        Ok(StoreKeysPrefixes::new(keys, prefixes))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64> {
        let mut all = 0_u64;
        self.below(prefix, |_, size| all = all.saturating_add(size))?;
        Ok(all)
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
        let files = Files::new(store.clone());
        let listed = store.list().unwrap();
        let lock = directory.path().join("a/c/0/1.__lock");
        fs::write(&lock, "1").unwrap();
        assert_eq!(files.list().unwrap(), listed);
        assert_eq!(files.size().unwrap(), 8);
        fs::remove_file(&lock).unwrap();
        for prefix in ["", "a/", "a/c/", "none/"] {
            let prefix = StorePrefix::new(prefix).unwrap();
            let (below, size) = (store.list_dir(&prefix), store.size_prefix(&prefix).unwrap());
            fs::write(&lock, "1").unwrap();
            assert_eq!(files.list_dir(&prefix).unwrap(), below.unwrap());
            assert_eq!(files.size_prefix(&prefix).unwrap(), size);
            fs::remove_file(&lock).unwrap();
        }
    }

    #[test]
    fn loops_of_links_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let files = Files::new(Arc::new(FilesystemStore::new(path).unwrap()));
        fs::write(path.join("file"), "").unwrap();
        fs::create_dir(path.join("a")).unwrap();
        symlink("..", path.join("a/loop")).unwrap();
        assert_eq!(files.list().unwrap().len(), 1);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_directory_whose_name_is_no_text_is_an_error() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let directory = tempfile::tempdir().unwrap();
        let files = Files::new(Arc::new(FilesystemStore::new(directory.path()).unwrap()));
        let name = directory.path().join(OsStr::from_bytes(b"\xff"));
        fs::write(&name, "").unwrap();
        assert!(files.list().unwrap().is_empty());
        fs::remove_file(&name).unwrap();
        fs::create_dir(&name).unwrap();
        assert!(files.list().is_err());
    }
}
