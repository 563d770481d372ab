//! The contenders: our writer with a stream of frames, zarrs shard by shard, and plain writes of
//! prepared bytes.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;
use zarrs::array::codec::ShardingCodec;
use zarrs::array::{ArrayBytes, ArraySubset};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::ReadableWritableStorageTraits;
use zarrs_cuda::writer::WriterReport;
use zarrs_cuda::{Backend, CudaShardingCodec, Options};
use zarrs_cuda_benches::Result;
use zarrs_cuda_benches::chains::configuration;
use zarrs_cuda_benches::clock::{Clock, Cost};
use zarrs_cuda_benches::frames::{Frames, SHARD};
use zarrs_cuda_benches::stream::{append, array, verify};

use zarrs_cuda_benches::discarding::Discarding;

/// The destination of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sink {
    Discarding,
    Filesystem,
}

impl Sink {
    pub(crate) const ALL: [Self; 2] = [Self::Discarding, Self::Filesystem];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Discarding => "discarding",
            Self::Filesystem => "filesystem",
        }
    }
}

/// The data, the method and the destination.
pub(crate) struct Case<'a> {
    pub(crate) frames: &'a Frames,
    /// The shards of a shard epoch, in the form that zarrs needs.
    pub(crate) shards: &'a [([u64; 2], Vec<u8>)],
    pub(crate) chain: &'static str,
    pub(crate) codecs: &'a Value,
    /// Elements of a subchunk along each axis.
    pub(crate) subchunk: u64,
    pub(crate) sink: Sink,
    pub(crate) backend: Backend,
    /// The parent of the folders for files.
    pub(crate) folder: &'a Path,
}

/// The files of shards: their paths in a folder, and their content.
pub(crate) type Files = Vec<(PathBuf, Vec<u8>)>;

/// Creates a new folder in `parent`. Syncs first, so that earlier writes and deletions do not disturb the
/// disk.
pub(crate) fn new_folder(parent: &Path) -> Result<TempDir> {
    File::open(parent)?.sync_all()?;
    Ok(TempDir::new_in(parent)?)
}

impl Case<'_> {
    /// The number of contenders: plain writes take part only with files.
    pub(crate) fn contenders(&self) -> usize {
        match self.sink {
            Sink::Discarding => 2,
            Sink::Filesystem => 3,
        }
    }

    /// Appends frame by frame. Returns the cost from before the writer is built to the end of
    /// `finish`. `look` gets the folder with the files, if any, before it is deleted.
    pub(crate) fn ours(
        &self,
        look: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<(Cost, WriterReport)> {
        let options = Options::default().with_backend(self.backend);
        let configuration = configuration(self.codecs, self.subchunk)?;
        let codec = CudaShardingCodec::new_with_configuration(&configuration, options)?;
        match self.sink {
            Sink::Discarding => {
                let store = Arc::new(Discarding::default());
                let array = array(store.clone(), self.frames, 0, Arc::new(codec))?;
                let measured = append(&array, self.frames, None)?;
                if store.bytes() < measured.1.stored_bytes {
                    return Err("the store was given less than the writer says".into());
                }
                Ok(measured)
            }
            Sink::Filesystem => {
                let folder = new_folder(self.folder)?;
                let store = Arc::new(FilesystemStore::new(folder.path())?);
                let array = array(store.clone(), self.frames, 0, Arc::new(codec))?;
                let measured = append(&array, self.frames, Some(store))?;
                look(folder.path())?;
                Ok(measured)
            }
        }
    }

    /// Stores shard by shard with zarrs' own codec, each as one subset whose elements are prepared.
    /// Returns the cost.
    pub(crate) fn zarrs(&self) -> Result<Cost> {
        let configuration = configuration(self.codecs, self.subchunk)?;
        let codec = Arc::new(ShardingCodec::new_with_configuration(&configuration)?);
        match self.sink {
            Sink::Discarding => self.store(Arc::new(Discarding::default()), codec),
            Sink::Filesystem => {
                let folder = new_folder(self.folder)?;
                self.store(Arc::new(FilesystemStore::new(folder.path())?), codec)
            }
        }
    }

    fn store<S: ReadableWritableStorageTraits + 'static>(
        &self,
        store: Arc<S>,
        codec: Arc<ShardingCodec>,
    ) -> Result<Cost> {
        let array = array(store, self.frames, self.frames.shape()[0], codec)?;
        array.store_metadata()?;
        let clock = Clock::start();
        for epoch in 0..self.frames.epochs() {
            for ([y, x], elements) in self.shards {
                let at = [epoch, *y, *x].map(|index| index * SHARD);
                let region = ArraySubset::new_with_start_shape(at.to_vec(), vec![SHARD; 3])?;
                let elements = ArrayBytes::new_flen(Cow::Borrowed(elements.as_slice()));
                array.store_array_subset(&region, elements)?;
            }
        }
        Ok(clock.stop())
    }

    /// Writes `files` once for each shard epoch, and syncs each, as zarrs' filesystem store does.
    /// Returns the cost.
    pub(crate) fn plain(&self, files: &Files) -> Result<Cost> {
        let folder = new_folder(self.folder)?;
        let clock = Clock::start();
        for epoch in 0..self.frames.epochs() {
            for (path, bytes) in files {
                let path = folder.path().join(epoch.to_string()).join(path);
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent)?;
                }
                let mut file = File::create(path)?;
                file.write_all(bytes)?;
                file.sync_all()?;
            }
        }
        Ok(clock.stop())
    }

    /// Checks the content of `folder`, and returns the files of the first shard epoch.
    pub(crate) fn verify(&self, folder: &Path) -> Result<Files> {
        let store = Arc::new(FilesystemStore::new(folder)?);
        verify(store, self.frames, self.shards)?;
        let mut files = Vec::new();
        for ([y, x], _) in self.shards {
            let path = PathBuf::from(format!("c/0/{y}/{x}"));
            let bytes = fs::read(folder.join(&path))?;
            files.push((path, bytes));
        }
        Ok(files)
    }
}
