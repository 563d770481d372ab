//! Writes a shard to a temporary file from front to back, and its index last.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use zarrs::array::codec::ShardingIndexLocation;
use zarrs_cuda::maintenance::ShardFormat;
use zarrs_cuda::storage::{Durable, NewFile};

/// A shard whose subchunks are being written, and whose index is not.
pub(crate) struct ShardFile {
    temporary: NewFile,
    path: PathBuf,
    has_index_first: bool,
}

/// Returns the position of the first subchunk: the end of an index in front of the subchunks, or 0.
pub(crate) fn first_byte(format: &ShardFormat) -> u64 {
    match format.index_location() {
        ShardingIndexLocation::Start => format.index_len(),
        ShardingIndexLocation::End => 0,
    }
}

impl ShardFile {
    /// Creates the temporary file for the shard `path`, with room for an index in front if the format has it
    /// there.
    pub(crate) fn create(path: PathBuf, format: &ShardFormat) -> io::Result<Self> {
        let temporary = NewFile::beside(&path)?;
        temporary.file().seek(SeekFrom::Start(first_byte(format)))?;
        Ok(Self {
            temporary,
            path,
            has_index_first: format.index_location() == ShardingIndexLocation::Start,
        })
    }

    /// Returns the temporary file, to which the caller appends subchunks.
    pub(crate) fn file(&self) -> &File {
        self.temporary.file()
    }

    /// Returns the path that the shard will have.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn write_index(&self, index: &[u8]) -> io::Result<()> {
        let mut file = self.temporary.file();
        if self.has_index_first {
            file.seek(SeekFrom::Start(0))?;
        }
        file.write_all(index)
    }

    /// Writes the index, makes the file durable, and gives it its path, unless there is a shard. Returns whether it
    /// did.
    pub(crate) fn create_shard(self, index: &[u8]) -> io::Result<bool> {
        self.write_index(index)?;
        self.temporary.create_at(&self.path, Durable::Bytes)
    }

    /// Writes the index, and replaces the shard at its path. If `syncs`, it first makes the file durable.
    pub(crate) fn finish(self, index: &[u8], syncs: bool) -> io::Result<()> {
        self.write_index(index)?;
        let durable = if syncs { Durable::Bytes } else { Durable::No };
        self.temporary.rename_to(&self.path, durable)
    }
}
