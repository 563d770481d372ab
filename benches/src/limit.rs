//! The most that the host engine could reach on this machine.

use std::num::NonZeroUsize;

use zarrs_cuda_engine::contract::{Chain, EngineError, KnownChain, ShardJob};
use zarrs_cuda_engine::host::limit;
use zarrs_cuda_engine::layout::{Extent, SubchunkGrid};

use crate::{Result, chains};

/// The bytes of an element: uint16.
const ELEMENT: usize = 2;
/// The offset and the length of a subchunk that is not stored.
const MISSING: [u64; 2] = [u64::MAX; 2];

/// Shards, and the threads that work on one. Each subchunk takes the same gather and the same library
/// call as in the host engine, into warm buffers of a thread, and nothing is kept.
#[derive(Debug)]
pub struct Limit {
    grid: SubchunkGrid,
    chain: KnownChain,
    threads: NonZeroUsize,
}

impl Limit {
    /// Takes shards of `shard` elements of uint16, in cubic subchunks of `edge` elements along each
    /// axis, with the inner codecs `chain` and the index at the end.
    pub fn new(chain: &str, shard: [u64; 3], edge: u64, threads: NonZeroUsize) -> Result<Self> {
        Ok(Self {
            grid: SubchunkGrid::new(&shard, &[edge; 3], ELEMENT)?,
            chain: KnownChain {
                order: vec![0, 1, 2],
                swap: if cfg!(target_endian = "big") {
                    ELEMENT
                } else {
                    1
                },
                stages: chains::stages(chain)?,
            },
            threads,
        })
    }

    /// Encodes the subchunks of the elements `decoded`.
    pub fn encode(&self, decoded: &[u8]) -> std::result::Result<(), EngineError> {
        limit::encode(&self.job(), decoded)
    }

    /// Decodes the subchunks of the shard `encoded`.
    pub fn decode(&self, encoded: &[u8]) -> std::result::Result<(), EngineError> {
        limit::decode(&self.job(), encoded, &self.extents(encoded)?)
    }

    fn job(&self) -> ShardJob<'_> {
        ShardJob {
            grid: &self.grid,
            chain: Chain::Known(&self.chain),
            fill_value: &[0; ELEMENT],
            store_empty: false,
            validate_checksums: true,
            threads: self.threads,
            huge_pages: true,
        }
    }

    /// The places of the subchunks. The index ends with its own checksum, which is not part of the work.
    fn extents(&self, encoded: &[u8]) -> std::result::Result<Vec<Extent>, EngineError> {
        let entries = self.grid.num_subchunks();
        let index = encoded.len().checked_sub(16 * entries + 4);
        let index = index.ok_or(EngineError::Internal("a shard is shorter than its index"))?;
        let (numbers, _) = encoded[index..].as_chunks::<8>();
        let entries = numbers[..2 * entries].as_chunks::<2>().0.iter();
        let extent = |entry: &[[u8; 8]; 2]| {
            let [start, len] = entry.map(u64::from_le_bytes);
            ([start, len] != MISSING).then(|| start as usize..(start + len) as usize)
        };
        Ok(entries.map(extent).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::num::NonZeroU64;

    use zarrs::array::{ArrayBytes, ArrayToBytesCodecTraits, CodecOptions, FillValue, data_type};
    use zarrs_cuda::{CudaShardingCodec, Options};

    use super::*;
    use crate::microscopy::Microscopy;

    /// The limit knows the codecs of each chain: it reads what our codec writes, and finds changed bytes.
    #[test]
    fn every_chain_is_encoded_and_decoded() -> Result<()> {
        let (shard, edge) = ([16; 3], 8);
        let data = Microscopy::new().volume([0; 3], shard, 5);
        let shape: Vec<NonZeroU64> = shard.into_iter().filter_map(NonZeroU64::new).collect();
        let (data_type, fill_value) = (data_type::uint16(), FillValue::from(0_u16));
        for chain in chains::ALL {
            let configuration = chains::configuration(&chains::codecs(chain)?, edge)?;
            let codec =
                CudaShardingCodec::new_with_configuration(&configuration, Options::default())?;
            let elements = ArrayBytes::new_flen(Cow::Borrowed(data.as_slice()));
            let options = CodecOptions::default();
            let encoded = codec.encode(elements, &shape, &data_type, &fill_value, &options)?;
            let limit = Limit::new(chain, shard, edge, NonZeroUsize::MIN)?;
            limit.encode(&data)?;
            limit.decode(&encoded)?;
            if chain != "none" {
                let mut damaged = encoded.into_owned();
                let first = limit
                    .extents(&damaged)?
                    .swap_remove(0)
                    .ok_or("no subchunk")?;
                damaged[first].fill(0xff);
                assert!(limit.decode(&damaged).is_err(), "{chain}");
            }
        }
        assert!(Limit::new("nothing", shard, edge, NonZeroUsize::MIN).is_err());
        let limit = Limit::new("none", shard, edge, NonZeroUsize::MIN)?;
        assert!(limit.decode(&[0; 100]).is_err());
        Ok(())
    }
}
