//! The results of `frame_parts` in plain numbers, for a fuzz target.

use zarrs_cuda_engine::contract::{Job, KnownChain};
use zarrs_cuda_engine::cuda::frame_parts;
use zarrs_cuda_engine::cuda::kernels::shuffle::Shuffle;
use zarrs_cuda_engine::cuda::nvcomp::Format;
use zarrs_cuda_engine::layout::Extent;

/// The compressed streams of a shard, as a device would get them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFrames {
    /// The format of the streams: `zstd`, `deflate` or `lz4`.
    pub format: &'static str,
    /// Bytes of a decoded subchunk, with the checksums that precede the compressor in the chain.
    pub bytes: usize,
    /// Bytes of each decoded stream. The last stream of a subchunk may be shorter.
    pub block: usize,
    /// Whether bits or bytes are shuffled in each block, and the size of an element.
    pub shuffle: Option<(DeviceShuffle, usize)>,
    /// The streams of each subchunk. A subchunk that is not stored has none.
    pub subchunks: Vec<Vec<DeviceStream>>,
    /// For gzip, the CRC-32 of each decoded subchunk.
    pub checksums: Vec<u32>,
}

/// The filter that is undone after decompression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceShuffle {
    /// The byte shuffle.
    Bytes,
    /// The bit shuffle.
    Bits,
}

/// One stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceStream {
    /// The offset of the stream in the encoded subchunk, in bytes.
    pub start: usize,
    /// The length of the stream, in bytes.
    pub len: usize,
    /// Whether the stream is stored uncompressed.
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
