//! A shard that is written to a temporary file from front to back, its index last.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;

use zarrs::array::codec::ShardingIndexLocation;
use zarrs_cuda::maintenance::ShardFormat;
use zarrs_cuda::storage::{Durable, NewFile};

/// A shard that does not have its index yet.
pub(crate) struct ShardFile {
    temporary: NewFile,
    path: PathBuf,
    has_index_first: bool,
}

/// Returns the place of the first byte behind an index that lies in front of the subchunks, or 0.
pub(crate) fn first_byte(format: &ShardFormat) -> u64 {
    match format.index_location() {
        ShardingIndexLocation::Start => format.index_len(),
        ShardingIndexLocation::End => 0,
    }
}

impl ShardFile {
    /// Makes the temporary of the shard `path`, with room for an index in front.
    pub(crate) fn create(path: PathBuf, format: &ShardFormat) -> io::Result<Self> {
        let temporary = NewFile::beside(&path)?;
        temporary.file().seek(SeekFrom::Start(first_byte(format)))?;
        Ok(Self {
            temporary,
            path,
            has_index_first: format.index_location() == ShardingIndexLocation::Start,
        })
    }

    /// The file, to which subchunks are appended.
    pub(crate) fn file(&self) -> &File {
        self.temporary.file()
    }

    /// Writes the index, and replaces the shard. `syncs`: makes it durable before.
    pub(crate) fn finish(self, index: &[u8], syncs: bool) -> io::Result<()> {
        let mut file = self.temporary.file();
        if self.has_index_first {
            file.seek(SeekFrom::Start(0))?;
        }
        file.write_all(index)?;
        let durable = if syncs { Durable::Bytes } else { Durable::No };
        self.temporary.rename_to(&self.path, durable)
    }
}
