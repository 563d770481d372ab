//! Estimates for shards of typical kinds, which tell how this machine would divide the work.

use super::{Engines, Estimates};
use crate::options::Options;
use zarrs_cuda_engine::contract::{BloscStage, Cname, KnownChain, Shuffle, Stage};
use zarrs_cuda_engine::layout::SubchunkGrid;

/// A kind of shard, and the estimated times to encode one shard of this kind.
///
/// ```
/// use zarrs_cuda::{Backend, Options, TypicalShard, typical_shards};
///
/// let host = Options::default().with_backend(Backend::Host);
/// let times = |kind: &TypicalShard| (kind.codec, kind.estimates.host);
/// let slowest = typical_shards(&host).iter().map(times).max_by_key(|(_, time)| *time);
/// if let Some((codec, time)) = slowest {
///     println!("{codec} takes the host longest: {time:?} a shard");
/// }
/// # assert!(slowest.is_some());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypicalShard {
    /// The inner codec that follows `bytes`.
    pub codec: &'static str,
    /// The shape of the shard, in elements of two bytes.
    pub shard: [u64; 3],
    /// The shape of a subchunk, in elements.
    pub subchunk: [u64; 3],
    /// The estimated times.
    pub estimates: Estimates,
}

const SHARD: [u64; 3] = [256; 3];
const SUBCHUNK: [u64; 3] = [32; 3];

/// Estimates the times to encode shards of 256³ elements of two bytes in subchunks of 32³, for typical inner
/// codecs. Uses the devices that `options` allow, and makes no context on them.
///
/// ```
/// use zarrs_cuda::Options;
///
/// // With `with_devices`, `estimates.device` has the times of a device, too.
/// for kind in zarrs_cuda::typical_shards(&Options::default()) {
///     println!("{:20} {}", kind.codec, kind.estimates);
///     assert_eq!(kind.shard, [256; 3]);
/// }
/// ```
#[must_use]
pub fn typical_shards(options: &Options) -> Vec<TypicalShard> {
    shards(&Engines::of_process(options), options)
}

pub(super) fn shards(engines: &Engines, options: &Options) -> Vec<TypicalShard> {
    let zstd = |level| Stage::Zstd {
        level,
        checksum: false,
    };
    let blosc = |cname, level| {
        Stage::Blosc(BloscStage {
            cname,
            level,
            shuffle: Shuffle::Byte,
            typesize: 2,
            blocksize: 0,
        })
    };
    let Ok(grid) = SubchunkGrid::new(&SHARD, &SUBCHUNK, 2) else {
        return Vec::new();
    };
    [
        ("none", None),
        ("zstd:1", Some(zstd(1))),
        ("zstd:3", Some(zstd(3))),
        ("gzip:1", Some(Stage::Gzip { level: 1 })),
        ("blosc-lz4:5:shuffle", Some(blosc(Cname::Lz4, 5))),
        ("blosc-zstd:2:shuffle", Some(blosc(Cname::Zstd, 2))),
    ]
    .into_iter()
    .filter_map(|(codec, stage)| {
        let chain = KnownChain {
            order: vec![0, 1, 2],
            swap: 1,
            stages: stage.into_iter().collect(),
        };
        Some(TypicalShard {
            codec,
            shard: SHARD,
            subchunk: SUBCHUNK,
            estimates: engines.estimates(options, &grid, Ok(&chain))?,
        })
    })
    .collect()
}
