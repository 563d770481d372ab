//! Arrays and groups in a zip file, as `.zarr.zip` and `.ozx`. They are read, and never written.
//!
//! The place in a zip file is an address, `zip://FILE/PATH`, which people see as the path `FILE/PATH`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rc_zip::fsm::{ArchiveFsm, FsmResult};
use rc_zip::parse::Method;
use zarrs::filesystem::FilesystemStore;
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    Bytes, ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits,
};
use zarrs_zip::ZipStorageAdapter;

use super::place::{Place, path_in_zip};
use crate::failure::Failure;

/// The documents of an array or a group.
const DOCUMENTS: [&str; 3] = ["zarr.json", ".zarray", ".zgroup"];
/// The directory that macOS adds to zip files.
const OF_MACOS: &str = "__MACOSX/";

/// The flag of an entry that is encrypted.
const ENCRYPTED: u16 = 1;

type Archive = ZipStorageAdapter<FilesystemStore>;

/// A directory in a zip file, as a store.
pub(super) struct ZipStore {
    file: PathBuf,
    archive: Arc<Archive>,
    /// The path of the directory in the file, which ends with a slash, or is empty.
    prefix: String,
}

/// Opens the place with this address.
pub(super) fn open(place: &Place, url: &str) -> Result<ZipStore, Failure> {
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::failed(format!("cannot open {place}: {error}"))
            .with_remedy("name a zip file that has a Zarr array or group at its root")
    };
    let path = Path::new(path_in_zip(url).unwrap_or(url));
    let file = path.ancestors().find(|path| path.is_file());
    let file = file.ok_or_else(|| cannot(&"there is no such file"))?;
    let within = path.strip_prefix(file).unwrap_or(Path::new(""));
    let within = within.to_str().unwrap_or_default();
    let archive = archive(file).map_err(|error| cannot(&error))?;
    let mut store = ZipStore {
        file: file.to_path_buf(),
        archive,
        prefix: String::new(),
    };
    // Some programs pack the directory of the array, and not only what is in it.
    store.prefix = store.only_directory().map_err(|error| cannot(&error))?;
    if !within.is_empty() {
        store.prefix += &format!("{within}/");
    }
    Ok(store)
}

/// Opens a zip file, or returns it from the files that are open. Reading the directory of a zip file takes long, and each
/// array of a group is a place of its own.
fn archive(file: &Path) -> Result<Arc<Archive>, String> {
    type Version = (u64, Option<SystemTime>);
    static OPEN: Mutex<BTreeMap<PathBuf, (Version, Arc<Archive>)>> = Mutex::new(BTreeMap::new());
    let found = fs::metadata(file).map_err(|error| error.to_string())?;
    let version = (found.len(), found.modified().ok());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((before, archive)) = open.get(file)
        && *before == version
    {
        return Ok(archive.clone());
    }
    let path = std::path::absolute(file).map_err(|error| error.to_string())?;
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
    else {
        return Err("its name is not Unicode".to_owned());
    };
    must_be_readable(&path)?;
    let directory = FilesystemStore::new(directory).map_err(|error| error.to_string())?;
    let key = StoreKey::new(name).map_err(|error| error.to_string())?;
    let archive = Archive::new(Arc::new(directory), key)
        .map_err(|error| format!("it is not read as a zip file: {error}"))?;
    let archive = Arc::new(archive);
    open.insert(file.to_path_buf(), (version, archive.clone()));
    Ok(archive)
}

/// Checks that each entry of a zip file is one that is read as it was written. The reader would return encrypted bytes as
/// they are.
fn must_be_readable(file: &Path) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let not_zip = |error: rc_zip::error::Error| format!("it is not read as a zip file: {error}");
    let mut file = File::open(file).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let mut parser = ArchiveFsm::new(size);
    let archive = loop {
        if let Some(offset) = parser.wants_read() {
            file.seek(SeekFrom::Start(offset)).map_err(failed)?;
            let read = file.read(parser.space()).map_err(failed)?;
            parser.fill(read);
        }
        match parser.process().map_err(not_zip)? {
            FsmResult::Continue(next) => parser = next,
            FsmResult::Done(archive) => break archive,
        }
    };
    for entry in archive.entries() {
        if entry.flags & ENCRYPTED != 0 {
            return Err(format!("its entry {} is encrypted", entry.name));
        }
        if !matches!(entry.method, Method::Store | Method::Deflate) {
            return Err(format!(
                "its entry {} is compressed by {:?}, and only stored and deflated entries are read",
                entry.name, entry.method
            ));
        }
    }
    Ok(())
}

impl ZipStore {
    /// Returns the only directory of the file if the file has no array or group at its root; otherwise an empty path.
    fn only_directory(&self) -> Result<String, StorageError> {
        let entries = self.archive.list_dir(&StorePrefix::root())?;
        let is_node = |key: &StoreKey| DOCUMENTS.contains(&key.as_str());
        if entries.keys().iter().any(is_node) {
            return Ok(String::new());
        }
        let directories = entries.prefixes().iter().map(StorePrefix::as_str);
        let directories: Vec<&str> = directories.filter(|name| *name != OF_MACOS).collect();
        Ok(match directories[..] {
            [only] => only.to_owned(),
            _ => String::new(),
        })
    }

    fn key(&self, key: &StoreKey) -> Result<StoreKey, StorageError> {
        Ok(StoreKey::new(format!("{}{}", self.prefix, key.as_str()))?)
    }

    fn below(&self, prefix: &StorePrefix) -> Result<StorePrefix, StorageError> {
        Ok(StorePrefix::new(format!(
            "{}{}",
            self.prefix,
            prefix.as_str()
        ))?)
    }

    fn relative(&self, keys: &[StoreKey]) -> StoreKeys {
        let keys = keys.iter();
        keys.filter_map(|key| StoreKey::new(key.as_str().strip_prefix(&*self.prefix)?).ok())
            .collect()
    }

    /// Returns the key and the size of each object.
    pub(super) fn sizes(&self) -> Result<Vec<(String, u64)>, StorageError> {
        let keys = self.list()?.into_iter();
        let sizes =
            keys.map(|key| Ok((key.as_str().to_owned(), self.size_key(&key)?.unwrap_or(0))));
        sizes.collect()
    }

    /// Returns the version of all objects: the time at which the file was changed, and its size.
    pub(super) fn version(&self) -> String {
        let found = fs::metadata(&self.file);
        let time = found.as_ref().ok().and_then(|found| found.modified().ok());
        format!("{time:?} {}", found.map_or(0, |found| found.len()))
    }

    fn is_read_only(&self) -> StorageError {
        StorageError::Unsupported(format!(
            "{} is a zip file, which is only read",
            self.file.display()
        ))
    }
}

impl ReadableStorageTraits for ZipStore {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.archive.get(&self.key(key)?)
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.archive.get_partial_many(&self.key(key)?, byte_ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.archive.size_key(&self.key(key)?)
    }

    fn supports_get_partial(&self) -> bool {
        self.archive.supports_get_partial()
    }
}

impl WritableStorageTraits for ZipStore {
    fn set(&self, _key: &StoreKey, _value: Bytes) -> Result<(), StorageError> {
        Err(self.is_read_only())
    }

    fn set_partial_many(
        &self,
        _key: &StoreKey,
        _parts: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        Err(self.is_read_only())
    }

    fn erase(&self, _key: &StoreKey) -> Result<(), StorageError> {
        Err(self.is_read_only())
    }

    fn erase_prefix(&self, _prefix: &StorePrefix) -> Result<(), StorageError> {
        Err(self.is_read_only())
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

impl ListableStorageTraits for ZipStore {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        let keys = self
            .archive
            .list_prefix(&self.below(&StorePrefix::root())?)?;
        Ok(self.relative(&keys))
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        Ok(self.relative(&self.archive.list_prefix(&self.below(prefix)?)?))
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        let found = self.archive.list_dir(&self.below(prefix)?)?;
        let prefixes = found.prefixes().iter();
        let prefixes = prefixes.filter_map(|prefix| {
            StorePrefix::new(prefix.as_str().strip_prefix(&*self.prefix)?).ok()
        });
        Ok(StoreKeysPrefixes::new(
            self.relative(found.keys()),
            prefixes.collect(),
        ))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.archive.size_prefix(&self.below(prefix)?)
    }
}
