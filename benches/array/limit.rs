//! The limit of the machine: the bytes of each shard into one warm buffer of a thread, the calls of the
//! compressor, and one contiguous copy of the elements.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::time::Instant;

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};
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
