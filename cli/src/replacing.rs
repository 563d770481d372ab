//! Replaces shards as a whole, so that no reader sees half of a shard.

use std::path::Path;
use std::sync::Arc;

use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::maintenance::{Compaction, Recovery, Shards};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::open::{Opened, Place, Store};
use zarrs_cuda_convert::replace::{self, KeptTemporaries};
use zarrs_cuda_convert::stored::readable_files;

/// An array, whose shards are replaced as a whole.
pub(crate) enum ReplacedShards<'a> {
    /// An array of files. A shard is written to a temporary file, which is then renamed.
    Files {
        array: Box<Array<replace::ReplacingFiles>>,
        files: Arc<FilesystemStore>,
    },
    /// An array in an object store, where each value is replaced as a whole anyway.
    Objects(&'a Array<Store>),
}

impl<'a> ReplacedShards<'a> {
    pub(crate) fn of(opened: &'a Opened) -> Result<Self, Failure> {
        let (Some(files), Place::Directory(path)) = (&opened.stores.files, &opened.place) else {
            return Ok(Self::Objects(&opened.array));
        };
        delete_remains(path)?;
        let store = Arc::new(replace::ReplacingFiles::new(files.clone()));
        let metadata = opened.array.metadata().clone();
        let array = Array::new_with_metadata(store, "/", metadata)
            .map_err(Failure::to(format_args!("open {}", opened.place)))?;
        Ok(Self::Files {
            array: Box::new(array),
            files: files.clone(),
        })
    }

    /// Compacts a shard.
    pub(crate) fn compact(&self, shard: &[u64]) -> Result<Option<Compaction>, Failure> {
        match self {
            Self::Files { array, .. } => Ok(Shards::of(array)?.compact(shard)?),
            Self::Objects(array) => Ok(Shards::of(*array)?.compact(shard)?),
        }
    }

    /// Recovers a shard.
    pub(crate) fn recover(&self, shard: &[u64]) -> Result<Recovery, Failure> {
        match self {
            Self::Files { array, .. } => Ok(Shards::of(array)?.recover(shard)?),
            Self::Objects(array) => Ok(Shards::of(*array)?.recover(shard)?),
        }
    }

    /// Returns the number of hard links of a shard's file; 1 if it is not known.
    pub(crate) fn names(&self, shard: &[u64]) -> u64 {
        match self {
            #[cfg(unix)]
            Self::Files { array, files } => {
                use std::os::unix::fs::MetadataExt;
                let file = files.key_to_fspath(&array.chunk_key(shard));
                std::fs::metadata(file).map_or(1, |found| found.nlink())
            }
            _ => 1,
        }
    }
}

/// Deletes the temporaries of processes that have ended, and keeps those of other processes.
fn delete_remains(root: &Path) -> Result<(), Failure> {
    let mut left = KeptTemporaries::default();
    let mut failed = None;
    readable_files(root, |_, entry| {
        let path = entry.path();
        let is_temporary = path.extension().is_some_and(|suffix| suffix == "tmp");
        if is_temporary && let Err(error) = left.tidy(&path) {
            failed = Some(Failure::failed(format!(
                "cannot delete {}, which a process left that was killed: {error}",
                path.display()
            )));
        }
    });
    if let Some(note) = left.note() {
        tell!("{note}");
    }
    failed.map_or(Ok(()), Err)
}
