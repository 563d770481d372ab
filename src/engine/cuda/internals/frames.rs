//! `frame_parts` in plain numbers, for a fuzz target.

use crate::engine::cuda::frame_parts;
use crate::engine::cuda::kernels::shuffle::Shuffle;
use crate::engine::cuda::nvcomp::Format;
use crate::engine::{Job, KnownChain};
use crate::layout::Extent;

/// The compressed streams of a shard, as a device would be given them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFrames {
    /// What decodes the streams: `zstd`, `deflate` or `lz4`.
    pub format: &'static str,
    /// Bytes of a decoded subchunk, with the checksums in front of the compressor.
    pub bytes: usize,
    /// Bytes of each decoded stream but the last of a subchunk.
    pub block: usize,
    /// Whether bits or bytes are shuffled in each block, and the size of an element.
    pub shuffle: Option<(DeviceShuffle, usize)>,
    /// The streams of each subchunk; none of one that is not stored.
    pub subchunks: Vec<Vec<DeviceStream>>,
    /// The CRC-32 of each decoded subchunk, with gzip.
    pub checksums: Vec<u32>,
}

/// Which filter is undone after decompression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceShuffle {
    /// That of bytes.
    Bytes,
    /// That of bits.
    Bits,
}

/// One stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceStream {
    /// Where it begins in the encoded subchunk.
    pub start: usize,
    /// How many bytes it has.
    pub len: usize,
    /// Whether it is stored as it is.
    pub is_raw: bool,
}

pub(crate) fn device_frames(
    job: &Job<'_>,
    chain: &KnownChain,
    encoded: &[u8],
    extents: &[Extent],
) -> Result<DeviceFrames, &'static str> {
    let parts = frame_parts::parse(job, chain, encoded, extents)?;
    let streams = |subchunk| {
        let parts = parts.of_subchunk(subchunk).iter();
        let streams = parts.map(|part| DeviceStream {
            start: part.start,
            len: part.len,
            is_raw: part.raw,
        });
        streams.collect()
    };
    Ok(DeviceFrames {
        format: match parts.layout.format {
            Format::Zstd => "zstd",
            Format::Deflate { .. } => "deflate",
            Format::Lz4 => "lz4",
        },
        bytes: parts.layout.chunking.bytes,
        block: parts.layout.chunking.block,
        shuffle: parts.layout.shuffle.map(|(shuffle, blocks)| {
            let shuffle = match shuffle {
                Shuffle::Bytes => DeviceShuffle::Bytes,
                Shuffle::Bits => DeviceShuffle::Bits,
            };
            (shuffle, blocks.element)
        }),
        subchunks: (0..extents.len()).map(streams).collect(),
        checksums: parts.checksums.clone(),
    })
}
