//! Shards that are replaced as a whole.

use std::fs;
use std::io;
use std::sync::Arc;

use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::maintenance::{Compaction, Recovery, Shards};
use zarrs_storage::storage_adapter::atomic_write::AtomicWriteStorageAdapter;

use crate::failure::Failure;
use crate::open::{Opened, Store};

/// The array, whose shards are replaced as a whole.
pub(crate) enum Replacing<'a> {
    /// In temporaries that are renamed.
    Files {
        array: Box<Array<AtomicWriteStorageAdapter<FilesystemStore>>>,
        files: Arc<FilesystemStore>,
    },
    /// A value of an object store is replaced at once.
    Objects(&'a Array<Store>),
}

impl<'a> Replacing<'a> {
    pub(crate) fn of(opened: &'a Opened) -> Result<Self, Failure> {
        let Some(files) = &opened.files else {
            return Ok(Self::Objects(&opened.array));
        };
        let store = Arc::new(AtomicWriteStorageAdapter::new(files.clone()));
        let metadata = opened.array.metadata().clone();
        let array = Array::new_with_metadata(store, "/", metadata)
            .map_err(|error| Failure::failed(format!("cannot open {}: {error}", opened.place)))?;
        Ok(Self::Files {
            array: Box::new(array),
            files: files.clone(),
        })
    }

    /// Compacts a shard.
    pub(crate) fn compact(&self, shard: &[u64]) -> Result<Option<Compaction>, Failure> {
        match self {
            Self::Files { array, .. } => {
                self.delete_remains(shard)?;
                Ok(Shards::of(array)?.compact(shard)?)
            }
            Self::Objects(array) => Ok(Shards::of(*array)?.compact(shard)?),
        }
    }

    /// Recovers a shard.
    pub(crate) fn recover(&self, shard: &[u64]) -> Result<Recovery, Failure> {
        match self {
            Self::Files { array, .. } => {
                self.delete_remains(shard)?;
                Ok(Shards::of(array)?.recover(shard)?)
            }
            Self::Objects(array) => Ok(Shards::of(*array)?.recover(shard)?),
        }
    }

    /// The names that the file of a shard has: several if it is hard-linked, and 1 if that is not known.
    pub(crate) fn names(&self, shard: &[u64]) -> u64 {
        match self {
            #[cfg(unix)]
            Self::Files { array, files } => {
                use std::os::unix::fs::MetadataExt;
                let file = files.key_to_fspath(&array.chunk_key(shard));
                fs::metadata(file).map_or(1, |found| found.nlink())
            }
            _ => 1,
        }
    }

    /// Deletes what a process left beside a shard that was killed: the adapter would not replace it.
    fn delete_remains(&self, shard: &[u64]) -> Result<(), Failure> {
        let Self::Files { array, files } = self else {
            return Ok(());
        };
        let file = files.key_to_fspath(&array.chunk_key(shard));
        let mut temporary = file.into_os_string();
        temporary.push(".tmp");
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::failed(format!(
                "cannot delete {}, which a process left that was killed: {error}",
                temporary.display()
            ))),
            _ => Ok(()),
        }
    }
}
