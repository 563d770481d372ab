//! Blosc 1 frames, with a stream for each block.

use super::{Args, BLOCK, CompressedFrames, Streams, TUNING, WARPS, pieces};
use crate::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};
use crate::cuda::kernels::shuffle::{BloscBlocks, Shuffle};
use crate::cuda::kernels::spans::{Launch, Slots};

const HEADER: usize = 16;
const INTEGER: usize = 4;

/// The version of the frame format, and the version of each compressor's stream format.
const FORMAT: u8 = 2;
const STREAM_VERSION: u8 = 1;

const FLAG_SHUFFLE: u8 = 0x01;
const FLAG_BIT_SHUFFLE: u8 = 0x04;
/// The flag of a frame in which a block has one stream, and not one for each byte of an element.
const FLAG_DONT_SPLIT: u8 = 0x10;

/// The limits of C-Blosc on the bytes of a buffer and of a block. C-Blosc counts in signed 32-bit integers,
/// also the bytes of a frame.
const MAX_BUFFER: usize = i32::MAX as usize - HEADER;
const MAX_BLOCK: usize = (i32::MAX as usize - 255 * 4) / 3;

/// The format of the compressed streams in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFormat {
    /// Each stream is an LZ4 block.
    Lz4,
    /// Each stream is a Zstandard frame.
    Zstd,
}

/// The format of a Blosc frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BloscFormat {
    pub(crate) streams: StreamFormat,
    /// The shuffle of the blocks before their compression; `None` if they are not shuffled.
    pub(crate) shuffle: Option<Shuffle>,
    pub(crate) blocks: BloscBlocks,
}

impl BloscFormat {
    /// Returns the first word of a frame: versions, flags and type size. `None` if the type size does not
    /// fit.
    pub(crate) fn word(self) -> Option<u32> {
        let compressor = match self.streams {
            StreamFormat::Lz4 => 1 << 5,
            StreamFormat::Zstd => 4 << 5,
        };
        let shuffle = match self.shuffle {
            None => 0,
            Some(Shuffle::Bytes) => FLAG_SHUFFLE,
            Some(Shuffle::Bits) => FLAG_BIT_SHUFFLE,
        };
        let flags = FLAG_DONT_SPLIT | compressor | shuffle;
        let element = u8::try_from(self.blocks.element).ok().filter(|&n| n > 0)?;
        let word = [FORMAT, STREAM_VERSION, flags, element];
        Some(u32::from_le_bytes(word))
    }
}

/// Returns the largest size of a frame in bytes, which is the size with all blocks uncompressed.
/// Returns `None` if Blosc has no such frame.
pub(crate) fn blosc_bound(blocks: BloscBlocks) -> Option<usize> {
    let BloscBlocks {
        bytes,
        block,
        element,
    } = blocks;
    let has_blocks = (1..=MAX_BLOCK.min(bytes)).contains(&block);
    if !has_blocks || bytes > MAX_BUFFER || !(1..=255).contains(&element) {
        return None;
    }
    let bound = HEADER + bytes.div_ceil(block) * 2 * INTEGER + bytes;
    i32::try_from(bound).is_ok().then_some(bound)
}

/// Enqueues kernels that make a Blosc frame for each subchunk, with one stream for each block. A
/// stream that is not shorter than its block is ignored: the frame stores the block itself. The
/// block comes from the subchunk's slot in `inputs`, which holds the compressor's input. A subchunk
/// whose flag in `stored` (a `u32` each) is zero gets no frame, and its streams are ignored.
///
/// The contents of the streams are not checked.
///
/// # Errors
/// A span is too short or misaligned, slots overlap or do not match, slots of frames have fewer bytes than
/// [`blosc_bound`], Blosc has no frames of this size, or the driver fails.
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists.
pub(crate) unsafe fn frame_blosc(
    driver: &dyn Driver,
    stream: StreamId,
    format: BloscFormat,
    inputs: Slots,
    streams: Streams,
    stored: Option<DeviceSpan>,
    frames: CompressedFrames,
) -> Result<(), DriverError> {
    let kernel = |kernel| Launch {
        driver,
        stream,
        kernel,
    };
    let (layout, copy) = (kernel("frame_blosc_layout"), kernel("frame_blosc_streams"));
    let BloscBlocks { bytes, block, .. } = format.blocks;
    let (Some(word), Some(bound)) = (format.word(), blosc_bound(format.blocks)) else {
        return layout.require(false, || format!("Blosc has no frames of {format:?}"));
    };
    let spans = Args::new(&layout, streams, bytes.div_ceil(block), stored, frames)?;
    let input_span = layout.slots("subchunks", inputs)?;
    spans.apart(&layout, "subchunks", input_span)?;
    let (count, stride) = (frames.slots.count, frames.slots.stride);
    layout.require(inputs.count == count && inputs.stride >= bytes, || {
        format!(
            "{} slots of {} bytes do not hold {count} subchunks of {bytes}",
            inputs.count, inputs.stride
        )
    })?;
    layout.require(stride >= bound, || {
        format!("a slot of {stride} bytes has no room for a frame of {bound}")
    })?;
    if count == 0 {
        return Ok(());
    }
    let shape = [bytes, block].map(|n| Arg::U32(u32::try_from(n).unwrap_or(u32::MAX)));
    let stream_stride = Arg::U64(streams.slots.stride as u64);
    let args = [
        Arg::U64(streams.most as u64),
        Arg::Span(spans.stream_sizes, Access::Read),
        Arg::Span(spans.statuses, Access::Read),
        spans.stored,
        shape[0],
        shape[1],
        Arg::U64(count as u64),
        Arg::U32(word),
        Arg::Span(spans.frames, Access::Write),
        Arg::U64(stride as u64),
        Arg::Span(spans.sizes, Access::Write),
        Arg::Span(spans.framed, Access::Write),
        Arg::Span(spans.outcomes, Access::Write),
    ];
    let grid = layout.grid(count, WARPS, TUNING.most);
    // SAFETY: a slot has room for the part of a frame before the streams. All other spans have an element for
    // each stream or subchunk.
    unsafe { layout.run(grid, BLOCK, &args)? };
    let args = [
        Arg::Span(input_span, Access::Read),
        Arg::U64(inputs.stride as u64),
        Arg::Span(spans.streams, Access::Read),
        stream_stride,
        Arg::Span(spans.stream_sizes, Access::Read),
        shape[0],
        shape[1],
        Arg::U64(count as u64),
        Arg::Span(spans.frames, Access::Update),
        Arg::U64(stride as u64),
        Arg::Span(spans.sizes, Access::Read),
    ];
    let grid = copy.grid(pieces(streams.slots.count, block), WARPS, TUNING.most);
    // SAFETY: for each frame, each stream lies within its slot, or is not shorter than its block, which lies
    // within the subchunk's slot. The offsets that the layout kernel wrote leave room for all streams and
    // blocks.
    unsafe { copy.run(grid, BLOCK, &args) }
}
