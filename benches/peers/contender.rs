//! The contenders that write the array: our writer in this process, or a peer in its own process.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;
use zarrs::array::ArrayMetadataOptions;
use zarrs::array::codec::ShardingCodecConfiguration;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::{Backend, CudaShardingCodec, Options};
use zarrs_cuda_benches::Result;
use zarrs_cuda_benches::clock::Cost;
use zarrs_cuda_benches::frames::Frames;
use zarrs_cuda_benches::keeping::Keeping;
use zarrs_cuda_benches::stream::{append, array, verify};

use crate::worker::{Way, Worker};

/// The data to write, and the destination.
pub(crate) struct Case<'a> {
    pub(crate) frames: &'a Frames,
    /// The shards of a shard epoch, for the comparison.
    pub(crate) shards: &'a [([u64; 2], Vec<u8>)],
    pub(crate) configuration: ShardingCodecConfiguration,
    /// The parent of the folders for files; `None` writes to memory.
    pub(crate) folder: Option<&'a Path>,
}

impl Case<'_> {
    fn codec(&self) -> Result<Arc<CudaShardingCodec>> {
        let options = Options::default().with_backend(Backend::Host);
        let codec = CudaShardingCodec::new_with_configuration(&self.configuration, options)?;
        Ok(Arc::new(codec))
    }

    /// The array's `zarr.json`.
    fn metadata(&self) -> Result<Value> {
        let store = Arc::new(Keeping::default());
        let array = array(store, self.frames, self.frames.shape()[0], self.codec()?)?;
        let options = ArrayMetadataOptions::default().with_include_zarrs_metadata(false);
        Ok(serde_json::to_value(array.metadata_opt(&options))?)
    }

    /// Creates a new folder if files are written. Syncs first, so that earlier deletions do not
    /// disturb the disk.
    fn new_folder(&self) -> Result<Option<TempDir>> {
        let Some(folder) = self.folder else {
            return Ok(None);
        };
        File::open(folder)?.sync_all()?;
        Ok(Some(TempDir::new_in(folder)?))
    }
}

/// A contender.
pub(crate) enum Contender {
    Ours,
    /// A peer, and the ways to try it.
    Peer(Worker, &'static [Way]),
}

impl Contender {
    /// The number of ways in which the contender writes.
    pub(crate) fn ways(&self) -> usize {
        match self {
            Self::Ours => 1,
            Self::Peer(_, ways) => ways.len(),
        }
    }

    /// The name of a way.
    pub(crate) fn way(&self, number: usize) -> Option<&'static str> {
        match self {
            Self::Ours => None,
            Self::Peer(_, ways) => ways.get(number).map(|way| way.name()),
        }
    }

    /// Writes the array, and returns the cost. With `check` the array is read afterwards, and a
    /// difference is an error.
    pub(crate) fn write(&mut self, case: &Case<'_>, way: usize, check: bool) -> Result<Cost> {
        let folder = case.new_folder()?;
        let path = folder.as_ref().map(TempDir::path);
        let cost = match self {
            Self::Peer(worker, ways) => {
                let check_itself = check && path.is_none();
                worker.write(&case.metadata()?, path, ways[way], check_itself)?
            }
            Self::Ours => ours(case, path, check)?,
        };
        if let (Some(path), true) = (path, check) {
            let store = Arc::new(FilesystemStore::new(path)?);
            verify(store, case.frames, case.shards)?;
        }
        Ok(cost)
    }
}

fn ours(case: &Case<'_>, folder: Option<&Path>, check: bool) -> Result<Cost> {
    let Some(folder) = folder else {
        let store = Arc::new(Keeping::default());
        let array = array(store.clone(), case.frames, 0, case.codec()?)?;
        let (cost, _) = append(&array, case.frames, None)?;
        if check {
            verify(store, case.frames, case.shards)?;
        }
        return Ok(cost);
    };
    let store = Arc::new(FilesystemStore::new(folder)?);
    let array = array(store.clone(), case.frames, 0, case.codec()?)?;
    Ok(append(&array, case.frames, Some(store))?.0)
}
