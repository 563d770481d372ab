//! The compressed streams in the frames of a shard: where a device finds them.
//!
//! On corrupt input, nvCOMP's decompressors hang, fault, or write anything within their outputs. So the host
//! checks the structure of the frames before anything is launched: the headers, and that all sizes and
//! offsets in them match the frame. The contents of the compressed streams are not checked, so a device must
//! decode trusted data only. Before this check, the host compares the checksums that the chain has after the
//! compressor. With such a checksum, no accidental damage reaches the device.
//!
//! If a device cannot take a frame, the host decodes the shard, whether the frame is legal or not:
//! the host has the last word on the data.

pub use super::frame_parsing::CompressedFramePart;
use super::frame_parsing::{
    BLOSC_COMPRESSOR, Reason, ZSTD_CHECKSUM, blosc, blosc_beside_streams, blosc_block,
    blosc_stream, gzip, one_member, zstd,
};
use super::kernels::chunk_tables::Chunking;
use super::kernels::crc32c::CHECKSUM;
use super::kernels::shuffle::{BloscBlocks, Shuffle};
use super::nvcomp::Format;
use crate::contract::{Cname, EngineError, KnownChain, ShardJob, Stage};
use crate::layout::{Extent, SubchunkGrid};
use crate::subchunk::stages;
use crate::subchunk::stages::encoded_bound;

/// The properties that are the same for all frames of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedFrameLayout {
    /// The number of CRC32C stages in front of the compressor.
    pub(super) before: usize,
    pub format: Format,
    /// The sizes of a subchunk's chunks. Each chunk is decompressed separately.
    pub chunking: Chunking,
    pub shuffle: Option<(Shuffle, BloscBlocks)>,
    /// Whether a chunk may be stored without compression.
    pub(super) raw: bool,
    /// The most bytes of an encoded subchunk.
    pub(super) encoded: usize,
}

impl CompressedFrameLayout {
    /// Returns the layout of `frame`, which `stage` wrote from `bytes` bytes. `most` is the most bytes of an
    /// encoded subchunk, without the bytes that a Blosc frame has [beside its streams](blosc_beside_streams).
    fn of_frame(
        stage: &Stage,
        frame: &[u8],
        bytes: usize,
        before: usize,
        most: usize,
    ) -> Result<Self, Reason> {
        let whole = |format| Self {
            before,
            format,
            chunking: Chunking::new(bytes, bytes),
            shuffle: None,
            raw: false,
            encoded: most,
        };
        Ok(match stage {
            Stage::Zstd { .. } => whole(Format::Zstd),
            // Decompression is the same for every algorithm.
            Stage::Gzip { .. } => whole(Format::Deflate { algorithm: 0 }),
            Stage::Blosc(_) => {
                let header = blosc(frame, bytes)?;
                Self {
                    chunking: header.chunking,
                    shuffle: header.shuffle(),
                    raw: true,
                    encoded: most.saturating_add(blosc_beside_streams(header.chunking)),
                    ..whole(header.format)
                }
            }
            Stage::Crc32c => return Err("a checksum is no compressor"),
        })
    }
}

/// The chunks in the frames of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressedFrameParts {
    pub layout: CompressedFrameLayout,
    /// For each subchunk, the index of its first chunk in `chunks`, if the subchunk is stored.
    starts: Vec<Option<usize>>,
    chunks: Vec<CompressedFramePart>,
    /// For each subchunk, the CRC-32 of its decompressed bytes; empty without gzip.
    pub checksums: Vec<u32>,
}

impl CompressedFrameParts {
    /// Returns the chunks of `frames`, which all have the layout `layout`; `None` for a subchunk without a frame.
    pub(super) fn of_frames<'f>(
        layout: CompressedFrameLayout,
        frames: impl Iterator<Item = Option<&'f ParsedFrame>>,
    ) -> Self {
        // Blosc has no deflate on a device.
        let has_checksums = matches!(layout.format, Format::Deflate { .. });
        let mut parts = Self {
            layout,
            starts: Vec::new(),
            chunks: Vec::new(),
            checksums: Vec::new(),
        };
        for frame in frames {
            parts.starts.push(frame.map(|_| parts.chunks.len()));
            parts
                .chunks
                .extend(frame.iter().flat_map(|frame| &frame.chunks));
            if has_checksums {
                let checksum = frame.map_or(0, |frame| frame.checksum);
                parts.checksums.push(checksum);
            }
        }
        parts
    }

    /// Returns the chunks of `subchunk`; an empty slice if the subchunk is not stored.
    pub fn of_subchunk(&self, subchunk: usize) -> &[CompressedFramePart] {
        let start = self.starts.get(subchunk).copied().flatten();
        let chunks = self.layout.chunking.chunks();
        start
            .and_then(|start| self.chunks.get(start..start + chunks))
            .unwrap_or_default()
    }
}

/// Returns the compressor of `chain`, and the number of stages before the compressor. The error is the reason
/// why a device decodes no shards of the chain.
fn compressor(chain: &KnownChain) -> Result<(&Stage, usize), Reason> {
    let stages = chain.stages.iter().enumerate();
    let mut compressors = stages.filter(|(_, stage)| !stage.is_fixed_size());
    let (Some((before, stage)), None) = (compressors.next(), compressors.next()) else {
        return Err("a device runs one decompressor");
    };
    match stage {
        Stage::Zstd { checksum: true, .. } => Err(ZSTD_CHECKSUM),
        Stage::Blosc(blosc) if !matches!(blosc.cname, Cname::Lz4 | Cname::Lz4Hc | Cname::Zstd) => {
            Err(BLOSC_COMPRESSOR)
        }
        _ => Ok((stage, before)),
    }
}

/// Checks that a device can decode shards of `chain`, which has a compressor. The error is the reason why it
/// cannot.
pub(super) fn suits(chain: &KnownChain) -> Result<(), Reason> {
    compressor(chain).map(|_| ())
}

/// Returns the most bytes of an encoded subchunk, without the bytes that a Blosc frame has [beside its
/// streams](blosc_beside_streams). `None` if they are more than a machine can address.
///
/// Encoders other than the host's make longer frames of data that do not compress. The compressors on a
/// device are such encoders. The margin has room for the longer frames.
pub(super) fn most_encoded(grid: &SubchunkGrid, chain: &KnownChain) -> Option<usize> {
    let bound = encoded_bound(chain, grid.subchunk_bytes())?;
    bound.checked_add(bound / 4 + 256)
}

/// The compressed streams of one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedFrame {
    pub layout: CompressedFrameLayout,
    chunks: Vec<CompressedFramePart>,
    /// The CRC-32 of the decompressed bytes; 0 without gzip.
    checksum: u32,
}

/// Finds the compressed streams in the frames of one chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameParser<'a> {
    stage: &'a Stage,
    before: usize,
    /// The number of checksums behind the compressor.
    after: usize,
    /// The number of bytes in front of the compressor.
    bytes: usize,
    /// The [most bytes](most_encoded) of an encoded subchunk.
    most: usize,
    validate_checksums: bool,
}

impl<'a> FrameParser<'a> {
    /// # Errors
    /// The reason why a device decodes no shards of the chain.
    pub(super) fn new(
        grid: &SubchunkGrid,
        chain: &'a KnownChain,
        validate_checksums: bool,
    ) -> Result<Self, Reason> {
        const TOO_LARGE: Reason = "subchunks are too large for a device";
        let (stage, before) = compressor(chain)?;
        let bytes = before
            .checked_mul(CHECKSUM)
            .and_then(|checksums| checksums.checked_add(grid.subchunk_bytes()))
            .filter(|&bytes| bytes > 0)
            .ok_or(TOO_LARGE)?;
        Ok(Self {
            stage,
            before,
            after: chain.stages.len() - before - 1,
            bytes,
            most: most_encoded(grid, chain).ok_or(TOO_LARGE)?,
            validate_checksums,
        })
    }

    /// Parses the encoded subchunk with the number `subchunk`. Compares the checksums behind its frame.
    ///
    /// # Errors
    /// The reason why the host has to decode the subchunk.
    pub(super) fn parse(&self, subchunk: usize, encoded: &[u8]) -> Result<ParsedFrame, Reason> {
        let mut frame = encoded;
        for _checksum in 0..self.after {
            frame =
                stages::strip(subchunk, frame, self.validate_checksums).map_err(
                    |error| match error {
                        EngineError::Checksum { .. } => {
                            "a checksum behind the compressor is invalid"
                        }
                        _ => "a subchunk has no room for its checksum",
                    },
                )?;
        }
        let bytes = self.bytes;
        let layout =
            CompressedFrameLayout::of_frame(self.stage, frame, bytes, self.before, self.most)?;
        if encoded.len() > layout.encoded {
            return Err("a frame is longer than any encoder makes it");
        }
        let (mut chunks, mut checksum) = (Vec::new(), 0);
        match self.stage {
            Stage::Gzip { .. } => {
                let (part, of_member) = gzip(frame, bytes)?;
                let stream = frame.get(part.start..part.start + part.len);
                one_member(stream.unwrap_or_default(), bytes)?;
                chunks.push(part);
                checksum = of_member;
            }
            Stage::Blosc(_) => {
                let (chunking, format) = (layout.chunking, layout.format);
                for block in 0..chunking.blocks() {
                    let mut at = blosc_block(frame, block)?;
                    for chunk in chunking.of_block(block) {
                        let (part, zstd) = blosc_stream(frame, chunking, format, (at, chunk))?;
                        zstd.map_or(Ok(()), |zstd| zstd.for_device(false))?;
                        at = part.start + part.len;
                        chunks.push(part);
                    }
                }
            }
            _ => {
                zstd(frame, bytes)?.for_device(true)?;
                chunks.push(CompressedFramePart {
                    start: 0,
                    len: frame.len(),
                    raw: false,
                });
            }
        }
        Ok(ParsedFrame {
            layout,
            chunks,
            checksum,
        })
    }
}

/// Finds the compressed streams of the encoded shard `encoded`.
pub fn parse(
    job: &ShardJob<'_>,
    chain: &KnownChain,
    encoded: &[u8],
    extents: &[Extent],
) -> Result<CompressedFrameParts, Reason> {
    let parser = FrameParser::new(job.grid, chain, job.validate_checksums)?;
    if extents.len() != job.grid.num_subchunks() {
        return Err("an index of another shard");
    }
    let mut found: Option<CompressedFrameLayout> = None;
    let mut frames = Vec::with_capacity(extents.len());
    for (subchunk, extent) in extents.iter().enumerate() {
        let Some(extent) = extent else {
            frames.push(None);
            continue;
        };
        let bytes = encoded.get(extent.clone());
        let bytes = bytes.ok_or("a subchunk ends outside its shard")?;
        let frame = parser.parse(subchunk, bytes)?;
        if *found.get_or_insert(frame.layout) != frame.layout {
            return Err("the Blosc frames of a shard have blocks or shuffles of several kinds");
        }
        frames.push(Some(frame));
    }
    let layout = found.ok_or("no subchunk is stored")?;
    let frames = frames.iter().map(Option::as_ref);
    Ok(CompressedFrameParts::of_frames(layout, frames))
}
