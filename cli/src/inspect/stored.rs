//! Which objects an array has, by a listing.

use std::fs;
use std::path::{Path, PathBuf};

use zarrs::array::ChunkKeyEncoding;

/// The suffix of the directory in which subchunks wait for a consolidation.
pub(crate) const FRAME: &str = ".frame";
/// What the name of each subchunk there ends in.
const CHUNK: &str = "chunk";

/// Understands the keys of an array's chunks, or shards.
pub(crate) struct Keys<'a> {
    encoding: &'a ChunkKeyEncoding,
    rank: usize,
    /// The number of chunks along each axis.
    grid: &'a [u64],
}

impl<'a> Keys<'a> {
    pub(crate) fn new(encoding: &'a ChunkKeyEncoding, grid: &'a [u64]) -> Self {
        Self {
            encoding,
            rank: grid.len(),
            grid,
        }
    }

    /// Whether keys spell out indices in decimal digits, so that they can be understood.
    pub(crate) fn are_known(&self) -> bool {
        let indices: Vec<u64> = (0..self.rank as u64).map(|axis| 10 + axis).collect();
        self.parse(self.encoding.encode(&indices).as_str()).as_ref() == Some(&indices)
    }

    /// The indices of the chunk with this key, in the grid or not; `None` if it is no chunk's.
    pub(crate) fn parse(&self, key: &str) -> Option<Vec<u64>> {
        let numbers: Vec<u64> = key
            .split(|c: char| !c.is_ascii_digit())
            .filter(|digits| !digits.is_empty())
            .map(|digits| digits.parse().ok())
            .collect::<Option<_>>()?;
        // A prefix or suffix may have digits, too.
        let mut candidates = (0..=numbers.len().checked_sub(self.rank)?)
            .map(|first| &numbers[first..first + self.rank]);
        let indices = candidates.find(|indices| self.encoding.encode(indices).as_str() == key)?;
        Some(indices.to_vec())
    }

    /// The indices of the chunk with this key, if it is in the grid.
    pub(crate) fn in_grid(&self, key: &str) -> Option<Vec<u64>> {
        let indices = self.parse(key)?;
        let is_within = indices.iter().zip(self.grid).all(|(i, n)| i < n);
        is_within.then_some(indices)
    }

    /// The indices of the shard in whose frame the object with this key lies.
    pub(crate) fn framed(&self, key: &str) -> Option<Vec<u64>> {
        let (directory, name) = key.rsplit_once('/')?;
        let (_, kind) = name.rsplit_once('.')?;
        let shard = directory.strip_suffix(FRAME).filter(|_| kind == CHUNK)?;
        self.parse(shard)
    }
}

/// The files in `root` and below, by their keys, in any order. Names that are not UTF-8 are no keys.
///
/// # Errors
/// The directory that cannot be read, and why.
pub(crate) fn files(
    root: &Path,
    mut on_file: impl FnMut(String, &fs::DirEntry),
) -> Result<(), String> {
    let mut directories: Vec<(PathBuf, String)> = vec![(root.to_path_buf(), String::new())];
    while let Some((directory, prefix)) = directories.pop() {
        let cannot = |error: &dyn std::fmt::Display| {
            format!("cannot list the directory {}: {error}", directory.display())
        };
        for entry in fs::read_dir(&directory).map_err(|error| cannot(&error))? {
            let entry = entry.map_err(|error| cannot(&error))?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let mut kind = entry.file_type().map_err(|error| cannot(&error))?;
            if kind.is_symlink() {
                match fs::metadata(entry.path()) {
                    Ok(metadata) => kind = metadata.file_type(),
                    Err(_) => continue, // a link that leads nowhere
                }
            }
            let key = format!("{prefix}{name}");
            if kind.is_dir() {
                directories.push((entry.path(), key + "/"));
            } else if kind.is_file() {
                on_file(key, &entry);
            }
        }
    }
    Ok(())
}
