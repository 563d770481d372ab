//! The limits of the machine. Reading: the bytes of each shard into one warm buffer of a thread, the calls of the
//! compressor, and one contiguous copy of the elements. Writing: the calls of the compressor, and one contiguous
//! write of each encoded shard.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::time::Instant;

use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};
use tempfile::TempDir;
use zarrs::storage::{ReadableStorageTraits, ReadableWritableStorage, StoreKey};
use zarrs_cuda_benches::Result;
use zarrs_cuda_benches::limit::Limit;

use crate::Layout;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Reads, decodes and copies the shards at `keys` of `store`, which are files below `folder` if it is
/// given. `warm` is memory for all elements. Returns the seconds.
pub(crate) fn limit(
    store: &ReadableWritableStorage,
    folder: Option<&std::path::Path>,
    keys: &[StoreKey],
    layout: &Layout,
    warm: &mut [u8],
) -> Result<f64> {
    thread_local! {
        static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
    }
    let (shard, edge) = (layout.shard.1, layout.subchunk);
    let limit = Limit::new(layout.chain, shard, edge, NonZeroUsize::MIN)?;
    let len = warm.len() / keys.len();
    let once = |warm: &mut [u8]| -> std::result::Result<f64, Failed> {
        let clock = Instant::now();
        keys.par_chunks(1)
            .zip(warm.par_chunks_mut(len))
            .try_for_each(|(key, output)| {
                BUFFERS.with_borrow_mut(|(file, decoded)| -> std::result::Result<(), Failed> {
                    decoded.resize(len, 1);
                    match folder {
                        None => {
                            let value = store.get(&key[0])?.ok_or("a shard is missing")?;
                            limit.decode(&value)?;
                        }
                        Some(folder) => {
                            use std::io::Read as _;
                            file.clear();
                            std::fs::File::open(folder.join(key[0].as_str()))?.read_to_end(file)?;
                            limit.decode(file)?;
                        }
                    }
                    output.copy_from_slice(&decoded[..output.len()]);
                    Ok(())
                })
            })?;
        Ok(clock.elapsed().as_secs_f64())
    };
    // The first time makes the buffers warm.
    let seconds = once(warm).and_then(|_| once(warm));
    seconds.map_err(|error| error.to_string().into())
}

/// A shard that the limit writes.
pub(crate) struct LimitShard {
    /// The elements, in C order.
    pub(crate) decoded: Vec<u8>,
    /// The bytes that are stored for them.
    pub(crate) encoded: Vec<u8>,
}

/// Measures the limit of writing.
pub(crate) struct WritingLimit {
    limit: Limit,
    /// The shards, and memory for the bytes of each, which was written before.
    shards: Vec<(LimitShard, Vec<u8>)>,
    /// The folder of the files, unless shards are copied to memory.
    folder: Option<TempDir>,
}

impl WritingLimit {
    /// Takes the shards of `layout`, which are written to files in `folder` or copied to memory.
    pub(crate) fn new(
        layout: &Layout,
        shards: Vec<LimitShard>,
        folder: Option<TempDir>,
    ) -> Result<Self> {
        let (shape, edge) = (layout.shard.1, layout.subchunk);
        let with_output = |shard: LimitShard| {
            let len = folder.as_ref().map_or(shard.encoded.len(), |_| 0);
            (shard, vec![1; len])
        };
        Ok(Self {
            limit: Limit::new(layout.chain, shape, edge, NonZeroUsize::MIN)?,
            shards: shards.into_iter().map(with_output).collect(),
            folder,
        })
    }

    /// Encodes and writes all shards, and returns the seconds.
    pub(crate) fn write(&mut self) -> Result<f64> {
        let Self {
            limit,
            shards,
            folder,
        } = self;
        let folder = folder.as_ref().map(TempDir::path);
        let clock = Instant::now();
        let shards = shards.par_iter_mut().enumerate().with_max_len(1);
        let written = shards.try_for_each(|(number, (shard, output))| {
            limit.encode(&shard.decoded)?;
            match folder {
                None => output.copy_from_slice(&shard.encoded),
                Some(folder) => {
                    let new = folder.join(format!("{number}.new"));
                    File::create(&new)?.write_all(&shard.encoded)?;
                    fs::rename(new, folder.join(number.to_string()))?;
                }
            }
            Ok(())
        });
        let seconds = clock.elapsed().as_secs_f64();
        written.map_err(|error: Failed| error.to_string())?;
        Ok(seconds)
    }
}
