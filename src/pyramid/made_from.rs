//! Computes the fingerprint of the files of level 0 from which the levels of an image were made.
//!
//! The description of the image contains the fingerprint. So a later call notices slices of level 0 that came
//! late, or were replaced. The fingerprint is a hash of the names, sizes and times of the shards' files,
//! which need not be read. The fingerprint has the hash's state after several numbers of slices, and so tells
//! how many of the first slices have not changed.

use std::fs;
use std::hash::Hasher;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use twox_hash::XxHash3_64;
use zarrs::array::Array;
use zarrs_storage::StorageError;

use super::levels::Level;
use zarrs_cuda_engine::layout::c_order;

/// The most states that a fingerprint has, besides the last two.
const STATES: u64 = 64;

/// A fingerprint of the first slices of level 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MadeFrom {
    /// Numbers of slices, in ascending order, each with the state of the hash after these slices.
    states: Vec<(u64, u64)>,
}

impl MadeFrom {
    /// Reads a fingerprint from the description of an image; `None` if there is none.
    pub(super) fn parse(value: &Value) -> Option<Self> {
        let state = |state: &Value| {
            let text = state[1].as_str()?;
            Some((state[0].as_u64()?, u64::from_str_radix(text, 16).ok()?))
        };
        let states: Option<Vec<_>> = value.as_array()?.iter().map(state).collect();
        Some(Self { states: states? })
    }

    /// Returns the fingerprint in the form in which the description of an image contains it.
    pub(super) fn to_json(&self) -> Value {
        let states = self.states.iter();
        states
            .map(|(slices, state)| json!([slices, format!("{state:016x}")]))
            .collect()
    }
}

/// Notes in the description of an image from which files its levels were made.
pub(super) type Note = Box<dyn Fn(&MadeFrom) + Send>;

/// The files of level 0. A fingerprint is made of their sizes and times.
#[derive(Debug)]
pub(super) struct Source {
    root: PathBuf,
    array: Array<()>,
    shard_slices: u64,
    /// The number of shards along each axis but the first.
    shards: Vec<usize>,
}

impl Source {
    /// Makes the source of `array`, which is `level` 0, in a store whose values are the files below `root`.
    pub(super) fn new(root: PathBuf, array: Array<()>, level: &Level) -> Self {
        let extents = std::iter::zip(&level.inner, &level.shard[1..]);
        let shards = extents.map(|(extent, shard)| {
            let shards = extent.div_ceil(*shard);
            usize::try_from(shards).unwrap_or(usize::MAX)
        });
        Self {
            root,
            array,
            shard_slices: level.shard_slices().max(1),
            shards: shards.collect(),
        }
    }

    /// Returns the fingerprint of the first `slices` slices.
    ///
    /// # Errors
    /// The error of a file whose size and times cannot be read.
    pub(super) fn look(&self, slices: u64) -> Result<MadeFrom, StorageError> {
        let epochs = slices.div_ceil(self.shard_slices);
        let step = epochs.div_ceil(STATES).max(1);
        let ends = (1..=epochs).filter(|end| end % step == 0 || end + 1 >= epochs);
        let ends = ends.map(|end| end.saturating_mul(self.shard_slices).min(slices));
        let mut states = Vec::new();
        self.for_each_state(ends, &mut |slices, state| {
            states.push((slices, state));
            true
        })?;
        Ok(MadeFrom { states })
    }

    /// Returns how many of the first slices have not changed since `before` was made; `None` if no slice of
    /// `before` has changed.
    ///
    /// # Errors
    /// The error of a file whose size and times cannot be read.
    pub(super) fn unchanged(&self, before: &MadeFrom) -> Result<Option<u64>, StorageError> {
        let mut same = 0;
        let mut expected = before.states.iter();
        let slices = before.states.iter().map(|(slices, _)| *slices);
        self.for_each_state(slices, &mut |slices, state| {
            let is_same = expected.next() == Some(&(slices, state));
            if is_same {
                same = slices;
            }
            is_same
        })?;
        let all = before.states.last().map_or(0, |(slices, _)| *slices);
        Ok((same < all).then_some(same))
    }

    /// Calls `take` with each number of `slices` and the state of the hash after them, as long as `take`
    /// returns true.
    fn for_each_state(
        &self,
        slices: impl Iterator<Item = u64>,
        take: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(), StorageError> {
        let mut hasher = XxHash3_64::new();
        let mut next = 0;
        for slices in slices {
            let end = slices.div_ceil(self.shard_slices).max(next);
            (next..end).try_for_each(|epoch| self.add(epoch, &mut hasher))?;
            next = end;
            if !take(slices, hasher.finish()) {
                break;
            }
        }
        Ok(())
    }

    /// Adds the names, sizes and times of a shard epoch's files to the hash.
    fn add(&self, epoch: u64, hasher: &mut XxHash3_64) -> Result<(), StorageError> {
        for number in 0..self.shards.iter().product() {
            let inner = c_order::coordinates(number, &self.shards);
            let indices = inner.into_iter().map(|at| at as u64);
            let indices: Vec<u64> = std::iter::once(epoch).chain(indices).collect();
            let key = self.array.chunk_key(&indices);
            let metadata = match fs::metadata(self.root.join(key.as_str())) {
                Ok(metadata) => metadata,
                // A shard without a file has nothing but the fill value.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            let since = metadata.modified()?.duration_since(UNIX_EPOCH);
            let time = since.map_or(0, |time| time.as_nanos());
            hasher.write(key.as_str().as_bytes());
            hasher.write(&metadata.len().to_le_bytes());
            hasher.write(&time.to_le_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use zarrs::array::{ArrayBuilder, data_type};

    use super::*;

    /// Makes an array of 200 epochs of three shards each, and returns its files. Some shards are stored.
    fn source() -> (tempfile::TempDir, Source) {
        let directory = tempfile::tempdir().unwrap();
        let array = ArrayBuilder::new(vec![400, 6], vec![2, 2], data_type::uint8(), 0_u8);
        let array = array.build(std::sync::Arc::new(()), "/a").unwrap();
        let level = Level {
            inner: vec![6],
            subchunk: vec![1, 2],
            shard: vec![2, 2],
            factors: vec![1, 1],
        };
        let source = Source::new(directory.path().to_path_buf(), array, &level);
        for epoch in 0..200 {
            for shard in 0..3 {
                if (epoch + shard) % 5 > 0 {
                    put(&source, epoch, shard, b"abc");
                }
            }
        }
        (directory, source)
    }

    fn path(source: &Source, epoch: u64, shard: u64) -> PathBuf {
        source
            .root
            .join(source.array.chunk_key(&[epoch, shard]).as_str())
    }

    fn put(source: &Source, epoch: u64, shard: u64, value: &[u8]) {
        let path = path(source, epoch, shard);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, value).unwrap();
    }

    #[test]
    fn the_first_change_is_found() {
        let (_directory, source) = source();
        for slices in [0, 1, 2, 7, 39, 300, 399, 400] {
            let before = source.look(slices).unwrap();
            assert_eq!(MadeFrom::parse(&before.to_json()), Some(before.clone()));
            assert!(before.states.len() <= STATES as usize + 2);
            assert_eq!(source.unchanged(&before).unwrap(), None, "{slices}");
            for epoch in [0, 1, 57, 199] {
                // A shard that comes late, and is not there any more.
                let at = path(&source, epoch, (5 - epoch % 5) % 5 % 3);
                let was = at
                    .exists()
                    .then(|| fs::metadata(&at).unwrap().modified().unwrap());
                fs::write(&at, b"more bytes").unwrap();
                let unchanged = source.unchanged(&before).unwrap();
                if epoch * 2 < slices {
                    let unchanged = unchanged.unwrap();
                    assert!(unchanged <= epoch * 2, "{slices} {epoch}: {unchanged}");
                    let step = slices.div_ceil(2).div_ceil(STATES).max(1) * 2;
                    assert!(
                        unchanged + step >= epoch * 2,
                        "{slices} {epoch}: {unchanged}"
                    );
                } else {
                    assert_eq!(unchanged, None);
                }
                match was {
                    None => fs::remove_file(&at).unwrap(),
                    Some(time) => {
                        fs::write(&at, b"abc").unwrap();
                        let file = fs::File::options().write(true).open(&at).unwrap();
                        file.set_modified(time).unwrap();
                    }
                }
                assert_eq!(source.unchanged(&before).unwrap(), None);
            }
        }
    }

    #[test]
    fn a_description_of_something_else() {
        for other in [
            json!(null),
            json!("x"),
            json!([[1, 2]]),
            json!([["1", "f"]]),
            json!([[1, "g"]]),
        ] {
            assert_eq!(MadeFrom::parse(&other), None, "{other}");
        }
    }
}
