//! A chain's compressor on a device: its nvCOMP format, its frames, and its buffers.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::arena::{Arena, Region, SLOT_ALIGNMENT};
use super::compressed_frame_parts::{CompressedFrameLayout, most_encoded};
use super::frame_parsing::blosc_beside_streams;
use super::kernels::chunk_tables::Chunking;
use super::kernels::compressed_frames::{
    BloscFormat, GZIP_OVERHEAD, StreamFormat, ZSTD_OVERHEAD, blosc_bound,
};
use super::kernels::crc32c::CHECKSUM;
use super::kernels::shuffle::{BloscBlocks, Shuffle};
use super::nvcomp::{Compressor, Format, Nvcomp, Requirements};
use crate::contract::{BloscStage, Cname, KnownChain, Shuffle as Filter, Stage};
use crate::layout::SubchunkGrid;

/// The number of bytes of a Blosc block if the chain does not choose a size: nvCOMP is fastest with this one.
const BLOSC_BLOCK: usize = 64 << 10;

/// The format of the frames around compressed streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompressedFrameFormat {
    Zstd,
    Gzip,
    Blosc(BloscFormat),
}

/// The compressor of a chain, for subchunks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// The number of CRC32C stages before the compressor, and after the compressor.
    pub before: usize,
    pub after: usize,
    format: Format,
    pub(super) frame: CompressedFrameFormat,
    pub chunking: Chunking,
}

impl Compression {
    /// Returns the compressor of `chain`; `None` if the chain has no compressor.
    ///
    /// # Errors
    /// The reason why the host has to run the compressor.
    pub(super) fn of_chain(
        grid: &SubchunkGrid,
        chain: &KnownChain,
        levels: HighestLevels,
    ) -> Result<Option<Self>, String> {
        let Some(before) = chain.stages.iter().position(|stage| !stage.is_fixed_size()) else {
            return Ok(None);
        };
        let (stage, behind) = (&chain.stages[before], &chain.stages[before + 1..]);
        if let Some(second) = behind.iter().find(|stage| !stage.is_fixed_size()) {
            return Err(format!(
                "{} after {} runs on the host: a device runs one compressor",
                second.name(),
                stage.name()
            ));
        }
        let bytes = before
            .checked_mul(CHECKSUM)
            .and_then(|checksums| checksums.checked_add(grid.subchunk_bytes()))
            .filter(|&bytes| bytes > 0)
            .ok_or("subchunks without bytes, or with more than a machine can address")?;
        let (format, frame, block) = match stage {
            Stage::Zstd { level, checksum } => {
                zstd(*level, *checksum, levels)?;
                (Format::Zstd, CompressedFrameFormat::Zstd, bytes)
            }
            Stage::Gzip { level } => (gzip(*level, levels)?, CompressedFrameFormat::Gzip, bytes),
            Stage::Blosc(stage) => {
                let (format, frame) = blosc(stage, bytes, levels)?;
                (
                    format,
                    CompressedFrameFormat::Blosc(frame),
                    frame.blocks.block,
                )
            }
            Stage::Crc32c => return Err("a checksum does not compress".to_string()),
        };
        if block > format.largest_chunk() {
            return Err(format!(
                "nvCOMP compresses {format} chunks of at most {} bytes, and these have {block}: use smaller subchunks",
                format.largest_chunk()
            ));
        }
        Ok(Some(Self {
            before,
            after: behind.len(),
            format,
            frame,
            chunking: Chunking::new(bytes, block),
        }))
    }

    /// Returns the layout of the frames that this compressor makes, for the decompressor.
    pub(super) fn as_layout(
        &self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
    ) -> CompressedFrameLayout {
        let raw = matches!(self.frame, CompressedFrameFormat::Blosc(_));
        let beside = if raw {
            blosc_beside_streams(self.chunking)
        } else {
            0
        };
        let most = most_encoded(grid, chain).unwrap_or(usize::MAX);
        CompressedFrameLayout {
            before: self.before,
            format: self.format,
            chunking: self.chunking,
            shuffle: self.shuffled(),
            raw,
            encoded: most.saturating_add(beside),
        }
    }

    /// Returns the shuffle of Blosc and the blocks that it shuffles; `None` if the chain does not shuffle.
    pub fn shuffled(&self) -> Option<(Shuffle, BloscBlocks)> {
        match self.frame {
            CompressedFrameFormat::Blosc(BloscFormat {
                shuffle: Some(shuffle),
                blocks,
                ..
            }) => Some((shuffle, blocks)),
            _ => None,
        }
    }

    /// Returns the most bytes of a frame whose streams have at most `stream` bytes; `None` if there is no
    /// such frame.
    fn frame_bound(&self, stream: usize) -> Option<usize> {
        match self.frame {
            CompressedFrameFormat::Zstd => stream.checked_add(ZSTD_OVERHEAD),
            CompressedFrameFormat::Gzip => stream.checked_add(GZIP_OVERHEAD),
            CompressedFrameFormat::Blosc(format) => blosc_bound(format.blocks),
        }
    }
}

/// The highest level of each codec that a device compresses. The host compresses higher levels. A level says
/// nothing about decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HighestLevels {
    pub zstd: i32,
    pub gzip: u32,
    /// The highest level of Blosc with lz4, and with zstd.
    pub blosc_lz4: u8,
    pub blosc_zstd: u8,
}

impl HighestLevels {
    /// All levels.
    pub const ALL: Self = Self {
        zstd: i32::MAX,
        gzip: u32::MAX,
        blosc_lz4: u8::MAX,
        blosc_zstd: u8::MAX,
    };
}

impl Default for HighestLevels {
    /// Returns low levels. A user who asks for a higher level asks for small files, and nvCOMP has no level
    /// for these.
    ///
    /// C-Blosc hands level `2 * clevel - 1` to Zstandard, and 22 for its own level 9. So level 2 of Blosc is
    /// Zstandard's level 3.
    fn default() -> Self {
        Self {
            zstd: 3,
            gzip: 9,
            blosc_lz4: 5,
            blosc_zstd: 2,
        }
    }
}

/// A remark of messages about the level of nvCOMP. The page `docs/guide/gpu.md` has the source of the numbers.
const LARGER: &str = "whose files are larger than the host's (by how much is unknown here, others report 8 to 50 %: see the guide's page on GPUs)";

/// Checks that a device can run zstd with these parameters.
fn zstd(level: i32, checksum: bool, levels: HighestLevels) -> Result<(), String> {
    if checksum {
        return Err(
            "zstd with a content checksum runs on the host: nvCOMP writes none".to_string(),
        );
    }
    let highest = levels.zstd;
    if level > highest {
        return Err(format!(
            "zstd level {level} is encoded on the host: nvCOMP has one level, {LARGER}, and `Options::with_device_levels` sends levels up to {highest} to it"
        ));
    }
    Ok(())
}

/// Returns nvCOMP's algorithm for a level of gzip. By its documentation, algorithm 2 compresses
/// better than zlib's level 1, and 4 better than level 6; 5 compresses best.
fn gzip(level: u32, levels: HighestLevels) -> Result<Format, String> {
    let highest = levels.gzip;
    if level > highest {
        return Err(format!(
            "gzip level {level} is encoded on the host: `Options::with_device_levels` sends levels up to {highest} to a device"
        ));
    }
    let algorithm = match level {
        0 => return Err("gzip level 0 runs on the host: it compresses nothing".to_string()),
        1 | 2 => 2,
        3..=6 => 4,
        _ => 5,
    };
    Ok(Format::Deflate { algorithm })
}

fn blosc(
    stage: &BloscStage,
    bytes: usize,
    levels: HighestLevels,
) -> Result<(Format, BloscFormat), String> {
    let (format, streams, highest) = match stage.cname {
        Cname::Lz4 => (Format::Lz4, StreamFormat::Lz4, levels.blosc_lz4),
        Cname::Zstd => (Format::Zstd, StreamFormat::Zstd, levels.blosc_zstd),
        cname => {
            return Err(format!(
                "blosc with {} runs on the host: nvCOMP has lz4 and zstd for it",
                cname.as_str()
            ));
        }
    };
    let level = stage.level;
    if level == 0 {
        return Err("blosc level 0 runs on the host: it compresses nothing".to_string());
    }
    if level > highest {
        return Err(format!(
            "blosc with {} of level {level} is encoded on the host: nvCOMP has one level, {LARGER}, and `Options::with_device_levels` sends levels up to {highest} to it",
            stage.cname.as_str()
        ));
    }
    // C-Blosc treats larger elements as single bytes.
    let element = match stage.typesize {
        size @ 1..=255 => size,
        _ => 1,
    };
    let shuffle = match stage.shuffle {
        Filter::None => None,
        Filter::Byte if element == 1 => None,
        Filter::Byte => Some(Shuffle::Bytes),
        Filter::Bit => Some(Shuffle::Bits),
    };
    // Blocks hold whole groups of eight elements, and begin at multiples of the widest load.
    let group = element * SLOT_ALIGNMENT;
    let block = match stage.blocksize {
        0 => (BLOSC_BLOCK / group).max(1) * group,
        size => size,
    }
    .min(bytes);
    if block < bytes && !block.is_multiple_of(group) {
        return Err(format!(
            "blosc blocks of {block} bytes run on the host: a device takes multiples of {group}"
        ));
    }
    let format_of = BloscFormat {
        streams,
        shuffle,
        blocks: BloscBlocks {
            bytes,
            block,
            element,
        },
    };
    if blosc_bound(format_of.blocks).is_none() {
        return Err(format!("Blosc has no frames of {bytes} bytes"));
    }
    Ok((format, format_of))
}

/// A chain's compressor, and nvCOMP's requirements for it.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub compression: Compression,
    pub compressor: Compressor,
    requirements: BatchRequirements,
}

impl Prepared {
    /// Prepares the compressor for batches of up to `most` subchunks. The context of the device with the
    /// number `device` is current on this thread.
    pub(super) fn new(
        compression: Compression,
        nvcomp: &Nvcomp,
        device: usize,
        most: usize,
    ) -> Result<Self, String> {
        let compressor = nvcomp.compressor(compression.format)?;
        let Chunking { bytes, block, .. } = compression.chunking;
        let input = compressor.alignments().input;
        if block < bytes && !block.is_multiple_of(input) {
            return Err(format!(
                "nvCOMP takes {} chunks at multiples of {input} bytes, and Blosc's have {block}",
                compression.format
            ));
        }
        let query = |chunks, block, total| compressor.requirements(chunks, block, total);
        Ok(Self {
            compression,
            requirements: BatchRequirements::new(compression.chunking, device, most, &query)?,
            compressor,
        })
    }

    /// Returns the alignment of slots, in bytes.
    pub(super) fn slot_alignment(&self) -> usize {
        self.compressor.alignments().input.max(SLOT_ALIGNMENT)
    }

    /// Returns nvCOMP's requirements for the compression of `count` subchunks at once.
    ///
    /// # Errors
    /// nvCOMP was not asked about so many subchunks.
    pub fn requirements(&self, count: usize) -> Result<&Requirements, String> {
        self.requirements.of_batch(count)
    }

    /// Checks that the buffers have the sizes that nvCOMP requires on the device with the number `device`,
    /// whose context is current on this thread.
    ///
    /// # Errors
    /// The buffers are too small. The reason has the numbers.
    pub(super) fn check(&self, buffers: &Buffers, device: usize) -> Result<(), String> {
        self.requirements
            .check(&buffers.requirements, device, &|chunks, block, total| {
                self.compressor.requirements(chunks, block, total)
            })
    }
}

/// A function that asks nvCOMP for the requirements of a batch. The arguments are the number of chunks, the
/// bytes of the largest chunk, and the bytes of all chunks.
pub(super) type Query<'a> = &'a dyn Fn(usize, usize, usize) -> Result<Requirements, String>;

/// nvCOMP's requirements for batches of subchunks, for compression or for decompression.
#[derive(Clone, Debug)]
pub(super) struct BatchRequirements {
    chunking: Chunking,
    /// The requirements of ever smaller batches. Each batch has half as many subchunks as the batch before.
    all: Vec<Requirements>,
    /// The devices, by their numbers, and the numbers of chunks for which these requirements suffice there.
    /// nvCOMP is asked once about each, because every shard checks its lane.
    sufficient: Arc<Mutex<HashSet<(usize, usize)>>>,
}

impl BatchRequirements {
    /// Asks nvCOMP for the requirements of batches of up to `most` subchunks on the device with the number
    /// `device`.
    ///
    /// # Errors
    /// nvCOMP does not answer, or a batch has more bytes than a machine can address.
    pub(super) fn new(
        chunking: Chunking,
        device: usize,
        most: usize,
        query: Query<'_>,
    ) -> Result<Self, String> {
        let halves = |count: &usize| (*count > 1).then_some(count / 2);
        let all = std::iter::successors(Some(most.max(1)), halves)
            .map(|count| ask(chunking, count, query))
            .collect::<Result<Vec<Requirements>, _>>()?;
        let sufficient = all.iter().map(|known| (device, known.chunks)).collect();
        Ok(Self {
            chunking,
            all,
            sufficient: Arc::new(Mutex::new(sufficient)),
        })
    }

    /// Returns the smallest of the known requirements that suffice for `count` subchunks at once.
    ///
    /// # Errors
    /// nvCOMP was not asked about so many subchunks.
    pub(super) fn of_batch(&self, count: usize) -> Result<&Requirements, String> {
        let chunks = count.saturating_mul(self.chunking.chunks());
        self.all
            .iter()
            .rfind(|requirements| requirements.chunks >= chunks)
            .ok_or_else(|| format!("nvCOMP was not asked about {chunks} chunks at once"))
    }

    /// Checks that `known`, one of these requirements, suffices on the device with the number `device`, which
    /// `query` asks about. An answer that `known` suffices is kept.
    ///
    /// # Errors
    /// `known` does not suffice. The reason has the numbers.
    pub(super) fn check(
        &self,
        known: &Requirements,
        device: usize,
        query: Query<'_>,
    ) -> Result<(), String> {
        let batch = (device, known.chunks);
        let sufficient = || {
            self.sufficient
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if sufficient().contains(&batch) {
            return Ok(());
        }
        let needed = ask(self.chunking, known.chunks / self.chunking.chunks(), query)?;
        if needed.temp <= known.temp && needed.max_output <= known.max_output {
            sufficient().insert(batch);
            return Ok(());
        }
        Err(format!(
            "nvCOMP asks for {} bytes of temporary memory on this device, and for {} on the one that it was asked about",
            needed.temp, known.temp
        ))
    }
}

/// Asks nvCOMP for the requirements of `count` subchunks at once.
fn ask(chunking: Chunking, count: usize, query: Query<'_>) -> Result<Requirements, String> {
    let bytes = chunking.bytes;
    let too_large = || format!("{count} subchunks of {bytes} bytes are too many at once");
    let chunks = count.checked_mul(chunking.chunks()).ok_or_else(too_large)?;
    let total = count.checked_mul(bytes).ok_or_else(too_large)?;
    query(chunks, chunking.longest(), total)
}

/// The buffers of a compressor, all in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffers {
    pub(super) requirements: Requirements,
    /// The slots after the shuffle; empty if the chain does not shuffle.
    pub(super) shuffled: Region,
    /// Tables of one `u64` per chunk: the addresses and sizes of the chunks, and of the compressed streams.
    pub(super) input_pointers: Region,
    pub(super) input_sizes: Region,
    pub(super) output_pointers: Region,
    pub(super) output_sizes: Region,
    /// A table of nvCOMP's status of each chunk, as an `i32`.
    pub(super) statuses: Region,
    pub(super) streams: Region,
    pub(super) stream_stride: usize,
    /// A table of the CRC-32 of each subchunk, as a `u32`, for gzip.
    pub(super) checksums: Region,
    pub(super) temp: Region,
    pub(super) frames: Region,
    pub(super) frame_stride: usize,
    /// A table of the number of bytes in each subchunk's frame, as a `u64`.
    pub(super) sizes: Region,
    /// A table of one `u32` per subchunk: whether the subchunk has a frame.
    pub(super) framed: Region,
    /// The number of subchunks that are compressed at once. All buffers but `frames`, `sizes` and `framed`
    /// have room for this many subchunks.
    pub(super) at_once: usize,
    /// The most bytes of an encoded subchunk, including the checksums after the frame.
    pub(super) encoded: usize,
}

impl Buffers {
    /// Returns the buffers for batches of `count` subchunks in slots of `slot_stride` bytes. Of each batch,
    /// `at_once` subchunks are compressed at once. `None` if the buffers are more than this machine can
    /// address.
    pub(super) fn new(
        arena: &mut Arena,
        compression: &Compression,
        requirements: Requirements,
        (at_once, count): (usize, usize),
        slot_stride: usize,
    ) -> Option<Self> {
        let chunks = requirements.chunks;
        let alignment = requirements.alignments.output.max(SLOT_ALIGNMENT);
        let stream_stride = requirements
            .max_output
            .checked_next_multiple_of(alignment)?;
        let encoded = compression
            .frame_bound(requirements.max_output)?
            .checked_add(compression.after.checked_mul(CHECKSUM)?)?;
        let frame_stride = encoded.checked_next_multiple_of(SLOT_ALIGNMENT)?;
        let u64s = chunks.checked_mul(8)?;
        let shuffled = match compression.shuffled() {
            Some(_) => slot_stride.checked_mul(at_once)?,
            None => 0,
        };
        let checksums = match compression.frame {
            CompressedFrameFormat::Gzip => at_once.checked_mul(4)?,
            _ => 0,
        };
        Some(Self {
            requirements,
            shuffled: arena.region(shuffled)?,
            input_pointers: arena.region(u64s)?,
            input_sizes: arena.region(u64s)?,
            output_pointers: arena.region(u64s)?,
            output_sizes: arena.region(u64s)?,
            statuses: arena.region(chunks.checked_mul(4)?)?,
            streams: arena.region(stream_stride.checked_mul(chunks)?)?,
            stream_stride,
            checksums: arena.region(checksums)?,
            temp: arena.region(requirements.temp)?,
            frames: arena.region(frame_stride.checked_mul(count)?)?,
            frame_stride,
            sizes: arena.region(count.checked_mul(8)?)?,
            framed: arena.region(count.checked_mul(4)?)?,
            at_once,
            encoded,
        })
    }

    /// Returns the same buffers, but with the parts of `frames`, `sizes` and `framed` that belong to the
    /// subchunks `range`.
    pub(super) fn part(&self, range: &Range<usize>) -> Self {
        let of = |region: Region, size: usize| region.part(range.start * size..range.end * size);
        Self {
            frames: of(self.frames, self.frame_stride),
            sizes: of(self.sizes, 8),
            framed: of(self.framed, 4),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::nvcomp::Alignments;
    use super::*;

    /// nvCOMP is asked once about each batch on each device. An answer that a batch does not suffice is not
    /// kept.
    #[test]
    fn nvcomp_is_asked_once_about_each_device_and_batch() {
        let asked = Cell::new(0);
        let temp = Cell::new(100);
        let query = |chunks, max_chunk_bytes, total_bytes| {
            asked.set(asked.get() + 1);
            Ok(Requirements {
                chunks,
                max_chunk_bytes,
                total_bytes,
                alignments: Alignments {
                    input: 1,
                    output: 1,
                    temp: 1,
                },
                max_output: 10,
                temp: temp.get(),
            })
        };
        let chunking = Chunking::new(8, 8);
        let requirements = BatchRequirements::new(chunking, 3, 4, &query).unwrap();
        assert_eq!(asked.get(), 3, "batches of 4, 2 and 1");
        let batch = |count| *requirements.of_batch(count).unwrap();
        for (device, count, sum) in [
            (3, 4, 3),
            (3, 1, 3),
            (5, 4, 4),
            (5, 4, 4),
            (5, 2, 5),
            (3, 2, 5),
            (5, 2, 5),
            (0, 2, 6),
        ] {
            requirements.check(&batch(count), device, &query).unwrap();
            assert_eq!(asked.get(), sum, "device {device}, {count} subchunks");
        }
        temp.set(101);
        for sum in [7, 8] {
            requirements.check(&batch(4), 0, &query).unwrap_err();
            assert_eq!(asked.get(), sum);
        }
        temp.set(100);
        requirements.check(&batch(4), 0, &query).unwrap();
        requirements.check(&batch(4), 0, &query).unwrap();
        assert_eq!(asked.get(), 9);
    }
}
