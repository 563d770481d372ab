//! Files that appear at once: they are written as a temporary and then renamed.
//!
//! The name of a temporary says which process writes it, and is used once. So no process writes,
//! renames or deletes the temporary of another one that runs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::{Life, Owner};
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    Bytes, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits,
    StorageError, StoreKey, StorePrefix, WritableStorageTraits, store_set_partial_many,
};

use crate::open::{Files, forward_listing};
use crate::words::counted;

/// The suffix of all temporaries, also of those of other programs.
const SUFFIX: &str = ".tmp";

/// A file that is being written. It is deleted unless it is renamed.
pub struct Temporary {
    file: File,
    path: PathBuf,
}

impl Temporary {
    /// Makes a new temporary of the file `path`, and its directory if there is none.
    pub fn of(path: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}-{number}{SUFFIX}", Owner::this()));
        let temporary = PathBuf::from(name);
        let create = || {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).open(&temporary)
        };
        let file = match create() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if let Some(directory) = path.parent() {
                    fs::create_dir_all(directory)?;
                }
                create()?
            }
            created => created?,
        };
        Ok(Self {
            file,
            path: temporary,
        })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Becomes the file `path`, which it replaces.
    pub fn rename_to(self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        // Nothing is left to delete.
        let mut renamed = self;
        renamed.path = PathBuf::new();
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.path); // the error of the write is the one to tell
        }
    }
}

/// Replaces the file `path` at once, and makes its bytes durable before. The directory is made if there
/// is none.
pub fn file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = Temporary::of(path)?;
    temporary.file().write_all(bytes)?;
    temporary.file().sync_all()?;
    temporary.rename_to(path)
}

/// The name of the file that `name` is a temporary of, and the process that writes it if the name says
/// it. `None` if it is no temporary.
pub fn temporary_of(name: &str) -> Option<(&str, Option<Owner>)> {
    let name = name.strip_suffix(SUFFIX)?;
    let owned = name.rsplit_once('.').and_then(|(of, writer)| {
        let (owner, number) = writer.rsplit_once('-')?;
        number.parse::<u64>().ok()?;
        Some((of, owner.parse().ok()?))
    });
    Some(match owned {
        Some((of, owner)) => (of, Some(owner)),
        None => (name, None),
    })
}

/// Temporaries that were left alone: their processes may run.
#[derive(Debug, Default)]
pub struct Left(Vec<PathBuf>);

impl Left {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Deletes `temporary` if its process has ended for certain. Remembers it otherwise.
    pub fn tidy(&mut self, temporary: &Path) -> io::Result<()> {
        let name = temporary.file_name().and_then(|name| name.to_str());
        let owner = name.and_then(temporary_of).and_then(|(_, owner)| owner);
        match owner.map(|owner| owner.life()) {
            Some(Life::Ended) => match fs::remove_file(temporary) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            },
            _ => self.0.push(temporary.to_path_buf()),
        }
        Ok(())
    }

    /// A line for people, if any are left.
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

/// A directory as a store whose values appear at once, as a whole.
pub struct Replacing {
    files: Files,
}

impl Replacing {
    pub fn new(files: Arc<FilesystemStore>) -> Self {
        let files = Files::new(files);
        Self { files }
    }
}

type Result<T, E = StorageError> = std::result::Result<T, E>;

impl ReadableStorageTraits for Replacing {
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

impl WritableStorageTraits for Replacing {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        file(&self.files.path(key), &value).map_err(StorageError::from)
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

forward_listing!(Replacing, files);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Left, Owner, Temporary, file, temporary_of};

    #[test]
    fn a_temporary_is_deleted_unless_it_is_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c/0/1");
        let names = || -> Vec<_> {
            let entries = fs::read_dir(folder.path().join("c/0")).unwrap();
            entries.map(|entry| entry.unwrap().file_name()).collect()
        };
        file(&path, b"one").unwrap();
        drop(Temporary::of(&path).unwrap());
        let [first, second] = [(); 2].map(|()| Temporary::of(&path).unwrap());
        assert_ne!(first.path, second.path);
        let name = first.path.file_name().unwrap().to_str().unwrap();
        assert_eq!(temporary_of(name), Some(("1", Some(Owner::this().clone()))));
        drop(second);
        first.rename_to(&path).unwrap();
        assert_eq!(names(), ["1"]);
        assert_eq!(fs::read(&path).unwrap(), b"");
        // A file that a directory has the name of.
        assert!(file(&folder.path().join("c"), b"two").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn names_of_temporaries() {
        let owner = Owner::this();
        assert_eq!(temporary_of("c.0.1"), None);
        assert_eq!(temporary_of("c.0.1.tmp"), Some(("c.0.1", None)));
        let owned = format!("c.0.1.{owner}-7.tmp");
        assert_eq!(temporary_of(&owned), Some(("c.0.1", Some(owner.clone()))));
        let other = format!("c.0.1.{owner}-x.tmp");
        assert_eq!(temporary_of(&other).unwrap().1, None);
    }

    #[test]
    fn temporaries_of_others_are_left() {
        let folder = tempfile::tempdir().unwrap();
        let this = format!("1.{}-3.tmp", Owner::this());
        let elsewhere = "1.0000000000000001-2-3-4.tmp";
        let mut left = Left::default();
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
