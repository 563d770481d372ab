//! A directory as a store that replaces each value in one step, and the temporaries that killed processes
//! left in it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::{Durable, Unfinished, replace};
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    Bytes, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits,
    StorageError, StoreKey, StorePrefix, WritableStorageTraits, store_set_partial_many,
};

use crate::open::{Files, forward_listing};
use crate::stored;
use crate::words::counted;

/// The paths of temporaries that were kept, because their processes may still run.
#[derive(Debug, Default)]
pub struct KeptTemporaries(Vec<PathBuf>);

impl KeptTemporaries {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Deletes `temporary` if its process has certainly ended. Otherwise keeps its path for
    /// [`note`](Self::note).
    pub fn tidy(&mut self, temporary: &Path) -> io::Result<()> {
        let name = temporary.file_name().and_then(|name| name.to_str());
        let unfinished = name.and_then(Unfinished::of);
        if !unfinished.is_some_and(|unfinished| unfinished.is_left()) {
            self.0.push(temporary.to_path_buf());
            return Ok(());
        }
        match fs::remove_file(temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns a line for people about the temporaries that were not deleted; `None` if there are none.
    pub fn note(&self) -> Option<String> {
        let first = self.0.iter().min()?;
        Some(format!(
            "note: {} left, because its process may still run: delete it if no run writes there. The \
             first is {}",
            counted(self.0.len(), "temporary file"),
            first.display()
        ))
    }
}

/// Deletes the temporaries in `output` and below of processes that have ended. Returns the other temporaries.
///
/// # Errors
/// A directory cannot be listed, or a temporary cannot be deleted.
pub(crate) fn tidied(output: &Path) -> Result<KeptTemporaries, String> {
    let mut left = KeptTemporaries::default();
    let mut failed = None;
    stored::files(output, |key, entry| {
        if Unfinished::of(&key).is_some()
            && let Err(error) = left.tidy(&entry.path())
        {
            failed = Some(format!("cannot delete {}: {error}", entry.path().display()));
        }
    })?;
    failed.map_or(Ok(left), Err)
}

/// A directory as a store that replaces each value as a whole: readers see the old or the new value.
pub struct ReplacingFiles {
    files: Files,
}

impl ReplacingFiles {
    pub fn new(files: Arc<FilesystemStore>) -> Self {
        let files = Files::new(files);
        Self { files }
    }
}

type Result<T, E = StorageError> = std::result::Result<T, E>;

impl ReadableStorageTraits for ReplacingFiles {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes> {
        self.files.get(key)
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>> {
        self.files.get_partial_many(key, byte_ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>> {
        self.files.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        self.files.supports_get_partial()
    }
}

impl WritableStorageTraits for ReplacingFiles {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        Ok(replace(&self.files.path(key), &value, Durable::Bytes)?)
    }

    fn set_partial_many(&self, key: &StoreKey, parts: OffsetBytesIterator) -> Result<()> {
        store_set_partial_many(self, key, parts)
    }

    fn erase(&self, key: &StoreKey) -> Result<()> {
        self.files.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<()> {
        self.files.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

forward_listing!(ReplacingFiles, files);

/// Makes everything in the file system of `directory` durable.
#[cfg(target_os = "linux")]
pub(crate) fn sync_all_files(directory: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(directory)?)?)
}

/// Does nothing: each file was synced after it was written.
#[cfg(not(target_os = "linux"))]
#[allow(clippy::unnecessary_wraps, reason = "as elsewhere")]
pub(crate) fn sync_all_files(_directory: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use zarrs_cuda::storage::Owner;

    use super::KeptTemporaries;

    #[test]
    fn temporaries_of_others_are_left() {
        let folder = tempfile::tempdir().unwrap();
        let this = format!("1.{}-3.tmp", Owner::this());
        let elsewhere = "1.0000000000000001-2-3-4.tmp";
        let mut left = KeptTemporaries::default();
        for name in [&*this, elsewhere, "1.tmp"] {
            let path = folder.path().join(name);
            fs::write(&path, "").unwrap();
            left.tidy(&path).unwrap();
            assert!(path.exists());
        }
        let note = left.note().unwrap();
        assert!(note.contains("3 temporary files"), "{note}");

        // A process that has ended.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = child.id();
        child.wait().unwrap();
        let this = Owner::this().to_string();
        let machine = this.split('-').next().unwrap();
        let path = folder.path().join(format!("1.{machine}-{process}-1-0.tmp"));
        fs::write(&path, "").unwrap();
        left.tidy(&path).unwrap();
        assert_eq!(path.exists(), !cfg!(target_os = "linux"));
    }
}
