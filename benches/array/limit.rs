//! The limit of the machine: the bytes of each shard into one warm buffer of a thread, the calls of the
//! compressor, and one contiguous copy of the elements.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::time::Instant;

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};
use zarrs::array::codec::ShardingCodecConfiguration;
use zarrs::array::{CodecOptions, FillValue, data_type};
use zarrs::storage::{ReadableStorageTraits, ReadableWritableStorage, StoreKey};
use zarrs_cuda::internals::Limit;
use zarrs_cuda::{CudaShardingCodec, Options};

use crate::Result;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Reads, decodes and copies the shards at `keys` of `store`, which are files below `folder` if it is
/// given. `warm` is memory for all elements. Returns the seconds.
pub(crate) fn limit(
    store: &ReadableWritableStorage,
    folder: Option<&std::path::Path>,
    keys: &[StoreKey],
    shard: [u64; 3],
    configuration: &ShardingCodecConfiguration,
    warm: &mut [u8],
) -> Result<f64> {
    thread_local! {
        static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
    }
    let codec = CudaShardingCodec::new_with_configuration(configuration, Options::default())?;
    let shape: Vec<NonZeroU64> = shard
        .iter()
        .map(|&d| NonZeroU64::try_from(d))
        .collect::<std::result::Result<_, _>>()?;
    let limit = Limit::new(
        &codec,
        &shape,
        &data_type::uint16(),
        &FillValue::from(0_u16),
    )?;
    let len = warm.len() / keys.len();
    let options = CodecOptions::default().with_concurrent_target(1);
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
                            limit.decode(&value, &options)?;
                        }
                        Some(folder) => {
                            use std::io::Read as _;
                            file.clear();
                            std::fs::File::open(folder.join(key[0].as_str()))?.read_to_end(file)?;
                            limit.decode(file, &options)?;
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
