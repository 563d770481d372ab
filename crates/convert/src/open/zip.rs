//! Arrays and groups in a zip file, as `.zarr.zip` and `.ozx`. They are read, and never written.
//!
//! The place in a zip file is an address, `zip://FILE/PATH`, which people see as the path `FILE/PATH`.

//! rc-zip reads the directory of the file. `zarrs_zip` 0.5 is not used: it returns memory that nothing has written for
//! deflated entries of more than 64 KiB.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use libdeflater::Decompressor;
use rc_zip::fsm::{ArchiveFsm, FsmResult};
use rc_zip::parse::Method;
use zarrs_cuda::storage::within;
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    Bytes, ListableStorageTraits, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits,
    StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
};

use super::place::{Place, path_in_zip};
use crate::failure::Failure;

/// The documents of an array or a group.
const DOCUMENTS: [&str; 3] = ["zarr.json", ".zarray", ".zgroup"];
/// The directory that macOS adds to zip files.
const OF_MACOS: &str = "__MACOSX";

/// The flag of an entry that is encrypted.
const ENCRYPTED: u16 = 1;
/// The number of bytes of the header in front of an entry, without its name and its extra fields.
const HEADER: usize = 30;
/// The most bytes that a byte of a deflated stream stands for.
const DEFLATE_RATIO: u64 = 1032;

/// An entry of a zip file. Sizes are in bytes.
#[derive(Debug)]
struct Entry {
    is_deflated: bool,
    crc: u32,
    /// The size in the file, and the size of the content.
    stored: u64,
    size: u64,
    /// The position of the header in front of the entry.
    header: u64,
}

/// A zip file that is open.
struct Archive {
    file: File,
    path: PathBuf,
    /// The entries by their names, without those of directories.
    entries: BTreeMap<String, Entry>,
}

/// A directory in a zip file, as a store.
pub(super) struct ZipStore {
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
    // Some programs pack the directory of the array, and not only what is in it.
    let only = archive.only_directory();
    let prefix = if within.is_empty() {
        only
    } else if archive.has_below(&format!("{within}/")) {
        format!("{within}/")
    } else {
        format!("{only}{within}/")
    };
    Ok(ZipStore { archive, prefix })
}

/// Opens a zip file, or returns it from the files that are in use. Reading the directory of a zip file takes long, and
/// each array of a group is a place of its own.
fn archive(path: &Path) -> Result<Arc<Archive>, String> {
    type Version = (PathBuf, u64, Option<SystemTime>);
    static OPEN: Mutex<Vec<(Version, Weak<Archive>)>> = Mutex::new(Vec::new());
    let failed = |error: io::Error| error.to_string();
    let path = std::path::absolute(path).map_err(failed)?;
    let mut file = File::open(&path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let version = (path.clone(), found.len(), found.modified().ok());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(_, archive)| archive.strong_count() > 0);
    let known = open.iter().find(|(known, _)| *known == version);
    if let Some(archive) = known.and_then(|(_, archive)| archive.upgrade()) {
        return Ok(archive);
    }
    let entries = entries(&mut file, found.len())?;
    let archive = Arc::new(Archive {
        file,
        path,
        entries,
    });
    open.push((version, Arc::downgrade(&archive)));
    Ok(archive)
}

/// Reads the directory of a zip file of `size` bytes. If a name is there twice, the last entry counts, as for
/// zarr-python, which replaces values so.
///
/// # Errors
/// The file is no zip file, or has an entry that cannot be read as it was written.
fn entries(file: &mut File, size: u64) -> Result<BTreeMap<String, Entry>, String> {
    let failed = |error: io::Error| error.to_string();
    let not_zip = |error: rc_zip::error::Error| format!("it is not read as a zip file: {error}");
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
    let mut entries = BTreeMap::new();
    for entry in archive.entries() {
        let name = &entry.name;
        if entry.flags & ENCRYPTED != 0 {
            return Err(format!("its entry {name} is encrypted"));
        }
        let is_deflated = match entry.method {
            Method::Store => false,
            Method::Deflate => true,
            other => {
                return Err(format!(
                    "its entry {name} is compressed by {other:?}, and only stored and deflated entries are read"
                ));
            }
        };
        let (stored, content) = (entry.compressed_size, entry.uncompressed_size);
        let is_possible = if is_deflated {
            content <= stored.saturating_mul(DEFLATE_RATIO)
        } else {
            content == stored
        };
        if !is_possible || entry.header_offset.saturating_add(stored) > size {
            return Err(format!(
                "its entry {name} is damaged: {content} bytes cannot be stored as {stored} bytes behind byte {} of {size}",
                entry.header_offset
            ));
        }
        // Names that are no keys are not Zarr's, for example those of directories.
        if !name.ends_with('/') && StoreKey::new(name.clone()).is_ok() {
            let entry = Entry {
                is_deflated,
                crc: entry.crc32,
                stored,
                size: content,
                header: entry.header_offset,
            };
            entries.insert(name.clone(), entry);
        }
    }
    Ok(entries)
}

impl Archive {
    /// Returns the entries whose names begin with `prefix`, with the rest of their names.
    fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        let from = self.entries.range(prefix.to_owned()..);
        from.map_while(move |(name, entry)| Some((name.strip_prefix(prefix)?, entry)))
    }

    fn has_below(&self, prefix: &str) -> bool {
        self.below(prefix).next().is_some()
    }

    /// Returns the only directory of the file if the file has no array or group at its root; otherwise an empty path.
    fn only_directory(&self) -> String {
        let mut only = "";
        for name in self.entries.keys() {
            let Some((directory, _)) = name.split_once('/') else {
                if DOCUMENTS.contains(&&**name) {
                    return String::new();
                }
                continue;
            };
            if directory == OF_MACOS || directory == only {
                continue;
            }
            if !only.is_empty() {
                return String::new();
            }
            only = directory;
        }
        if only.is_empty() {
            String::new()
        } else {
            format!("{only}/")
        }
    }

    /// Reads `len` bytes from byte `at` of the stored bytes of `entry` on.
    fn stored(&self, entry: &Entry, at: u64, len: u64) -> Result<Vec<u8>, String> {
        let mut header = [0; HEADER];
        let damaged = |error: &dyn std::fmt::Display| {
            format!("the header of its entry, at byte {}: {error}", entry.header)
        };
        read_at(&self.file, &mut header, entry.header).map_err(|error| damaged(&error))?;
        if !header.starts_with(b"PK\x03\x04") {
            return Err(damaged(&"it is no header"));
        }
        let number = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let before = HEADER as u64 + number(26) + number(28);
        let start = entry.header.saturating_add(before).saturating_add(at);
        let mut bytes = zeros(len)?;
        let read = read_at(&self.file, &mut bytes, start);
        read.map_err(|error| format!("{len} bytes at {start}: {error}"))?;
        Ok(bytes)
    }

    /// Returns the content of `entry`, whose checksum is compared.
    fn whole(&self, entry: &Entry) -> Result<Vec<u8>, String> {
        let mut bytes = self.stored(entry, 0, entry.stored)?;
        if entry.is_deflated {
            let mut content = zeros(entry.size)?;
            let inflated = Decompressor::new().deflate_decompress(&bytes, &mut content);
            let inflated = inflated.map_err(|error| format!("it does not inflate: {error}"))?;
            if inflated as u64 != entry.size {
                let size = entry.size;
                return Err(format!("it inflates to {inflated} bytes instead of {size}"));
            }
            bytes = content;
        }
        let crc = crc32fast::hash(&bytes);
        if crc != entry.crc {
            let wanted = entry.crc;
            return Err(format!(
                "its bytes are damaged: their CRC-32 is {crc:08x}, and should be {wanted:08x}"
            ));
        }
        Ok(bytes)
    }

    /// Returns an error about the entry `name`.
    fn error(&self, name: &str, reason: &str) -> StorageError {
        let path = self.path.display();
        StorageError::Other(format!(
            "cannot read {name} in the zip file {path}: {reason}; test the file with `unzip -t`"
        ))
    }
}

/// Reads `bytes` at the position `at` of a file, on any thread.
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_exact_at(file, bytes, at);
    #[cfg(windows)]
    {
        let (mut rest, mut at) = (bytes, at);
        while !rest.is_empty() {
            let read = std::os::windows::fs::FileExt::seek_read(file, rest, at)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            rest = &mut rest[read..];
            at += read as u64;
        }
        Ok(())
    }
}

/// Allocates `len` zeros.
fn zeros(len: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let size = usize::try_from(len).unwrap_or(usize::MAX);
    let reserved = bytes.try_reserve_exact(size);
    reserved.map_err(|_| format!("there is no memory for {len} bytes"))?;
    bytes.resize(size, 0);
    Ok(bytes)
}

impl ZipStore {
    /// Returns the entry of a key, and its name.
    fn entry(&self, key: &StoreKey) -> Option<(String, &Entry)> {
        let name = format!("{}{key}", self.prefix);
        let entry = self.archive.entries.get(&name)?;
        Some((name, entry))
    }

    /// Returns the key and the size of each object.
    pub(super) fn sizes(&self) -> Vec<(String, u64)> {
        let entries = self.archive.below(&self.prefix);
        let sizes = entries.map(|(key, entry)| (key.to_owned(), entry.size));
        sizes.collect()
    }

    /// Returns the version of all objects: the time at which the file was changed, and its size.
    pub(super) fn version(&self) -> String {
        let found = fs::metadata(&self.archive.path);
        let time = found.as_ref().ok().and_then(|found| found.modified().ok());
        format!("{time:?} {}", found.map_or(0, |found| found.len()))
    }

    fn is_read_only(&self) -> StorageError {
        StorageError::Unsupported(format!(
            "{} is a zip file, which is only read",
            self.archive.path.display()
        ))
    }
}

impl ReadableStorageTraits for ZipStore {
    /// A stored entry is read in parts. A deflated entry is inflated as a whole.
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let Some((name, entry)) = self.entry(key) else {
            return Ok(None);
        };
        let archive = &*self.archive;
        let error = |reason: String| archive.error(&name, &reason);
        let mut whole: Option<Bytes> = None;
        let mut parts = Vec::new();
        for range in byte_ranges {
            let range = within(range, entry.size)?;
            let len = range.end - range.start;
            if !entry.is_deflated && len < entry.size {
                let bytes = archive.stored(entry, range.start, len).map_err(error)?;
                parts.push(Ok(Bytes::from(bytes)));
                continue;
            }
            let content = match &whole {
                Some(content) => content.clone(),
                None => Bytes::from(archive.whole(entry).map_err(error)?),
            };
            let at = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
            parts.push(Ok(content.slice(at(range.start)..at(range.end))));
            whole = Some(content);
        }
        Ok(Some(Box::new(parts.into_iter())))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        Ok(self.entry(key).map(|(_, entry)| entry.size))
    }

    fn supports_get_partial(&self) -> bool {
        true
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
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        let below = format!("{}{prefix}", self.prefix);
        let keys = self.archive.below(&below);
        let keys = keys.map(|(rest, _)| StoreKey::new(format!("{prefix}{rest}")));
        Ok(keys.collect::<Result<_, _>>()?)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        let (mut keys, mut prefixes) = (Vec::new(), Vec::<StorePrefix>::new());
        let below = format!("{}{prefix}", self.prefix);
        for (rest, _) in self.archive.below(&below) {
            match rest.split_once('/') {
                None => keys.push(StoreKey::new(format!("{prefix}{rest}"))?),
                Some((child, _)) => {
                    let child = StorePrefix::new(format!("{prefix}{child}/"))?;
                    if prefixes.last() != Some(&child) {
                        prefixes.push(child);
                    }
                }
            }
        }
        Ok(StoreKeysPrefixes::new(keys, prefixes))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        let below = format!("{}{prefix}", self.prefix);
        let sizes = self.archive.below(&below).map(|(_, entry)| entry.size);
        Ok(sizes.fold(0, u64::saturating_add))
    }
}
