//! Reads the structure of one frame of zstd, gzip or Blosc: its headers, and whether all sizes and offsets match
//! the frame. The contents of compressed streams are not decompressed.
//!
//! Frames are read before a device decodes them (`compressed_frame_parts`), and after a device has made them
//! (`frame_checks`).
//!
//! Sources: RFC 8878 (zstd), RFC 1952 and RFC 1951 (gzip), C-Blosc 1.21 `blosc.c`.

use super::arena::SLOT_ALIGNMENT;
use super::kernels::chunk_tables::Chunking;
use super::kernels::shuffle::{BloscBlocks, Shuffle};
use super::nvcomp::Format;

/// The reason why a frame is refused. Shards are counted by reason, so the text contains no numbers.
pub(super) type Reason = &'static str;

/// The place of a chunk's encoded bytes in the encoded subchunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedFramePart {
    /// The offset from the begin of the encoded subchunk, in bytes.
    pub start: usize,
    pub len: usize,
    /// Whether the chunk is stored without compression.
    pub raw: bool,
}
pub(super) const ZSTD_CHECKSUM: Reason =
    "a zstd frame has a content checksum, which a device does not compare";

/// The number of bytes of the largest window that every zstd decoder has to support.
const MOST_WINDOW: u64 = 8 << 20;

/// The properties of a zstd frame on which its readers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ZstdFrame {
    /// Whether the header contains the size of the content.
    pub(super) tells: bool,
    /// Whether a checksum of the content is behind the blocks.
    checksum: bool,
    /// The number of bytes of the window; 0 if the content is the window.
    window: u64,
    /// The number of bytes of the content.
    content: u64,
}

impl ZstdFrame {
    /// Checks that an encoder has a reason for the window of the frame.
    pub(super) fn for_host(self) -> Result<(), Reason> {
        if self.window > MOST_WINDOW.max(self.content.saturating_mul(2)) {
            return Err("the window of a zstd frame is much larger than its content");
        }
        Ok(())
    }

    /// Checks that a device decodes the frame. If `tells`, the header has to contain the size of the content.
    pub(super) fn for_device(self, tells: bool) -> Result<(), Reason> {
        if self.checksum {
            return Err(ZSTD_CHECKSUM);
        }
        if tells && !self.tells {
            return Err("a zstd frame does not tell the size of its content");
        }
        if self.window > MOST_WINDOW {
            return Err("the window of a zstd frame is larger than a device takes");
        }
        Ok(())
    }
}

/// Checks that `frame` is one zstd frame of `expected` bytes of content, as far as its headers and its chain
/// of blocks tell.
pub(super) fn zstd(frame: &[u8], expected: usize) -> Result<ZstdFrame, Reason> {
    const BAD_HEADER: Reason = "the header of a zstd frame is not one that a device takes";
    const BLOCKS: Reason = "the blocks of a zstd frame are not what a device takes";
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    const MOST_BLOCK: u64 = 128 << 10;
    let rest = frame.strip_prefix(&MAGIC).ok_or(BAD_HEADER)?;
    let (&descriptor, mut rest) = rest.split_first().ok_or(BAD_HEADER)?;
    let checksum = descriptor & 0b100 != 0;
    // The reserved bit of the header, and the two bits of the dictionary's identifier.
    if descriptor & 0b1011 != 0 {
        return Err(BAD_HEADER);
    }
    let single_segment = descriptor & 0b10_0000 != 0;
    let mut window = None;
    if !single_segment {
        let (&byte, behind) = rest.split_first().ok_or(BAD_HEADER)?;
        rest = behind;
        let base = 1_u64 << (10 + u32::from(byte >> 3));
        window = Some(base + base / 8 * u64::from(byte & 7));
    }
    let size_bytes = match (descriptor >> 6, single_segment) {
        (0, false) => 0,
        (flag, _) => 1_usize << flag,
    };
    let (size, mut rest) = rest.split_at_checked(size_bytes).ok_or(BAD_HEADER)?;
    let little_endian = |bytes: &[u8]| {
        let digits = bytes.iter().rev();
        digits.fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let expected = expected as u64;
    match (little_endian(size), size_bytes) {
        (_, 0) => {}
        (size, 2) if size + 256 == expected => {}
        (size, 1 | 4 | 8) if size == expected => {}
        _ => return Err("a zstd frame is not of the size of a subchunk"),
    }
    let window = window.unwrap_or(expected);
    let most_block = window.min(MOST_BLOCK);
    // The least and the most bytes that the blocks can decompress to.
    let (mut least, mut most) = (0_u64, 0_u64);
    loop {
        let (header, behind) = rest.split_at_checked(3).ok_or(BLOCKS)?;
        let header = little_endian(header);
        let size = header >> 3;
        if size > most_block {
            return Err(BLOCKS);
        }
        let stored = match header >> 1 & 3 {
            0 => size,
            1 => 1,
            2 if size >= 2 => size,
            _ => return Err(BLOCKS),
        };
        if header >> 1 & 3 == 2 {
            most += most_block;
        } else {
            (least, most) = (least + size, most + size);
        }
        let stored = usize::try_from(stored).map_err(|_| BLOCKS)?;
        (_, rest) = behind.split_at_checked(stored).ok_or(BLOCKS)?;
        if header & 1 == 1 {
            break;
        }
    }
    if rest.len() != if checksum { 4 } else { 0 } {
        return Err("there are bytes behind a zstd frame");
    }
    if !(least..=most).contains(&expected) {
        return Err(BLOCKS);
    }
    Ok(ZstdFrame {
        tells: size_bytes > 0,
        checksum,
        window: if single_segment { 0 } else { window },
        content: expected,
    })
}

/// Returns the compressed stream and the CRC-32 of a gzip member of `expected` bytes of content. Only
/// decompression can tell where the member ends, and whether a second member follows.
pub(super) fn gzip(member: &[u8], expected: usize) -> Result<(CompressedFramePart, u32), Reason> {
    const BAD_HEADER: Reason = "the header of a gzip member is not one that a device takes";
    const TRAILER: usize = 8;
    let (header, mut rest) = member.split_first_chunk::<10>().ok_or(BAD_HEADER)?;
    let [0x1f, 0x8b, 8, flags, ..] = *header else {
        return Err(BAD_HEADER);
    };
    let (header_checksum, extra, name, comment) = (1 << 1, 1 << 2, 1 << 3, 1 << 4);
    if flags & 0xe0 != 0 {
        return Err(BAD_HEADER);
    }
    if flags & extra != 0 {
        let (len, behind) = rest.split_first_chunk().ok_or(BAD_HEADER)?;
        let len = usize::from(u16::from_le_bytes(*len));
        (_, rest) = behind.split_at_checked(len).ok_or(BAD_HEADER)?;
    }
    for field in [name, comment] {
        if flags & field != 0 {
            let end = rest.iter().position(|&byte| byte == 0).ok_or(BAD_HEADER)?;
            rest = &rest[end + 1..];
        }
    }
    if flags & header_checksum != 0 {
        (_, rest) = rest.split_at_checked(2).ok_or(BAD_HEADER)?;
    }
    let len = rest.len().checked_sub(TRAILER).ok_or(BAD_HEADER)?;
    let (stream, trailer) = rest.split_at(len);
    let (checksum, size) = trailer.split_first_chunk().ok_or(BAD_HEADER)?;
    let size = size.first_chunk().map(|size| u32::from_le_bytes(*size));
    if size.is_none_or(|size| u32::try_from(expected) != Ok(size)) {
        return Err("a gzip member is not of the size of a subchunk");
    }
    deflate(stream)?;
    let part = CompressedFramePart {
        start: member.len() - rest.len(),
        len,
        raw: false,
    };
    Ok((part, u32::from_le_bytes(*checksum)))
}

/// Checks that no bytes of the deflate stream `stream` look like the border to a second member of at most
/// `most` bytes.
pub(super) fn one_member(stream: &[u8], most: usize) -> Result<(), Reason> {
    if has_border(stream, most) {
        return Err("a gzip subchunk has several members");
    }
    Ok(())
}

/// Returns whether `stream` contains four bytes that look like the size of a gzip member of at most `most`
/// bytes, followed by the header of the next member. In a stream of 64 KiB, this happens by chance about once
/// in 10⁸ times.
fn has_border(stream: &[u8], most: usize) -> bool {
    const FIRST: u8 = 0x1f;
    /// The number of bytes that are searched for `FIRST` at once.
    const AT_ONCE: usize = 64;
    let is_border = |at: usize| {
        let header = stream.get(at..at + 4);
        let size = at.checked_sub(4).and_then(|start| stream.get(start..at));
        let size = size.and_then(|size| size.first_chunk());
        matches!(header, Some([FIRST, 0x8b, 8, flags]) if flags & 0xe0 == 0)
            && size.is_some_and(|size| u32::from_le_bytes(*size) as usize <= most)
    };
    stream.chunks(AT_ONCE).enumerate().any(|(number, bytes)| {
        bytes.contains(&FIRST)
            && (0..bytes.len()).any(|i| bytes[i] == FIRST && is_border(number * AT_ONCE + i))
    })
}

/// Checks the parts of a deflate stream that can be read without decompression: the blocks at its
/// begin that are not compressed, and the type of the first other block.
fn deflate(mut stream: &[u8]) -> Result<(), Reason> {
    const BAD_BLOCKS: Reason = "the blocks of a gzip member are not what a device takes";
    /// An empty last block with fixed Huffman codes.
    const EMPTY: [u8; 2] = [3, 0];
    loop {
        let (&first, rest) = stream.split_first().ok_or(BAD_BLOCKS)?;
        match first >> 1 & 3 {
            0 => {}
            3 => return Err(BAD_BLOCKS),
            _ if stream.len() < EMPTY.len() || stream.starts_with(&EMPTY) => {
                return Err(BAD_BLOCKS);
            }
            _ => return Ok(()),
        }
        let (header, rest) = rest.split_first_chunk::<4>().ok_or(BAD_BLOCKS)?;
        let [a, b, c, d] = *header;
        let len = u16::from_le_bytes([a, b]);
        if len != !u16::from_le_bytes([c, d]) {
            return Err(BAD_BLOCKS);
        }
        (_, stream) = rest.split_at_checked(usize::from(len)).ok_or(BAD_BLOCKS)?;
        if first & 1 == 1 {
            return if stream.is_empty() {
                Ok(())
            } else {
                Err(BAD_BLOCKS)
            };
        }
    }
}

pub(super) const BLOSC_COMPRESSOR: Reason = "a Blosc frame of a compressor that a device has not";
const BAD_BLOSC_HEADER: Reason = "the header of a Blosc frame is not one that a device takes";
const BLOSC_STREAMS: Reason = "the streams of a Blosc frame are not what a device takes";
const BLOSC_HEADER: usize = 16;
/// The least number of bytes of the chunks of a Blosc frame that a device decompresses apart from one another and
/// then puts together. C-Blosc makes no smaller blocks and streams.
pub(super) const LEAST_APART: usize = 128;

/// The parsed header of a Blosc frame.
pub(super) struct BloscHeader {
    pub(super) format: Format,
    shuffle: Option<Shuffle>,
    element: usize,
    pub(super) chunking: Chunking,
}

impl BloscHeader {
    /// Returns the shuffle of the frame, and the blocks that are shuffled.
    pub(super) fn shuffle(&self) -> Option<(Shuffle, BloscBlocks)> {
        let Chunking { bytes, block, .. } = self.chunking;
        let blocks = BloscBlocks {
            bytes,
            block,
            element: self.element,
        };
        self.shuffle.map(|shuffle| (shuffle, blocks))
    }
}

/// Parses the header of a Blosc frame of `expected` bytes of content.
///
/// C-Blosc's compressor decides by `split_block` whether blocks are split, and clears the flag "do not split".
/// Its decompressor, `blosc_d`, splits a block if the flag is clear, the block is not the shorter last one, an
/// element has at most `MOST_SPLIT` bytes, and a stream of the block has at least `LEAST_STREAM` bytes. The
/// decompressor has the last word, so its rule is the one here.
pub(super) fn blosc(frame: &[u8], expected: usize) -> Result<BloscHeader, Reason> {
    let (shuffle, memcpyed, future, bit_shuffle, dont_split) = (1, 2, 8, 4, 0x10);
    let &[2, 1, flags, element, ..] = frame else {
        return Err(BAD_BLOSC_HEADER);
    };
    let integer = |at| integer(frame, at).ok_or(BAD_BLOSC_HEADER);
    let (bytes, block, len) = (integer(4)?, integer(8)?, integer(12)?);
    if flags & future != 0 || element == 0 || len != frame.len() {
        return Err(BAD_BLOSC_HEADER);
    }
    if bytes != expected {
        return Err("a Blosc frame is not of the size of a subchunk");
    }
    if block == 0 || block > bytes {
        return Err(BAD_BLOSC_HEADER);
    }
    if flags & memcpyed != 0 {
        return Err("a Blosc frame is not compressed");
    }
    let format = match flags >> 5 {
        1 => Format::Lz4,
        4 => Format::Zstd,
        _ => return Err(BLOSC_COMPRESSOR),
    };
    let element = usize::from(element);
    let is_split = flags & dont_split == 0 && may_split(block, element);
    let chunking = Chunking {
        bytes,
        block,
        split: if is_split { element } else { 1 },
    };
    if !block.is_multiple_of(chunking.split) {
        return Err("the blocks of a Blosc frame are not of whole elements");
    }
    if !chunking.begins_at(SLOT_ALIGNMENT) && chunking.step() < LEAST_APART {
        return Err("the streams of a Blosc frame do not begin where a device can write them");
    }
    // The check limits the memory for the list of chunks.
    if blosc_beside_streams(chunking) > frame.len() - BLOSC_HEADER {
        return Err(BLOSC_STREAMS);
    }
    let shuffle = if flags & shuffle != 0 && element > 1 {
        Some(Shuffle::Bytes)
    } else if flags & bit_shuffle != 0 {
        Some(Shuffle::Bits)
    } else {
        None
    };
    Ok(BloscHeader {
        format,
        shuffle,
        element,
        chunking,
    })
}

/// Returns whether a block of `block` bytes may have one stream for each byte of its elements.
pub(super) fn may_split(block: usize, element: usize) -> bool {
    /// C-Blosc's `MAX_SPLITS` and `MIN_BUFFERSIZE`.
    const MOST_SPLIT: usize = 16;
    const LEAST_STREAM: usize = 128;
    (1..=MOST_SPLIT).contains(&element) && block / element >= LEAST_STREAM
}

/// Returns the number of bytes that a Blosc frame needs for the offsets of its blocks and the sizes of its
/// streams.
pub(super) fn blosc_beside_streams(chunking: Chunking) -> usize {
    let integers = chunking.blocks().saturating_add(chunking.chunks());
    integers.saturating_mul(4)
}

/// Returns the offset of the block with the number `block` in a Blosc frame. The streams of the block are there,
/// one behind the other, each behind its size. Blocks may be in any order, since C-Blosc writes a block when a
/// thread has compressed it.
pub(super) fn blosc_block(frame: &[u8], block: usize) -> Result<usize, Reason> {
    integer(frame, BLOSC_HEADER + 4 * block).ok_or(BLOSC_STREAMS)
}

/// Returns the stream of the chunk with the number `chunk` in a Blosc frame whose streams have the format
/// `format`. The size of the stream is at the offset `at`. The structure of a stream of zstd is returned, too.
///
/// A stream that is as long as its chunk is the chunk, without compression.
pub(super) fn blosc_stream(
    frame: &[u8],
    chunking: Chunking,
    format: Format,
    (at, chunk): (usize, usize),
) -> Result<(CompressedFramePart, Option<ZstdFrame>), Reason> {
    let len = integer(frame, at).ok_or(BLOSC_STREAMS)?;
    let start = at + 4;
    let content = chunking.chunk(chunk).len();
    let is_behind_the_starts = start >= blosc_streams_begin(chunking) + 4;
    let stream = frame.get(start..).and_then(|rest| rest.get(..len));
    let Some(stream) = stream.filter(|_| is_behind_the_starts && (1..=content).contains(&len))
    else {
        return Err(BLOSC_STREAMS);
    };
    let raw = len == content;
    let zstd = match format {
        Format::Zstd if !raw => Some(zstd(stream, content)?),
        _ => None,
    };
    Ok((CompressedFramePart { start, len, raw }, zstd))
}

/// Returns the offset in a Blosc frame at which its table of blocks ends.
pub(super) fn blosc_streams_begin(chunking: Chunking) -> usize {
    BLOSC_HEADER + 4 * chunking.blocks()
}

/// Returns the little-endian `i32` at offset `at` of `frame`; `None` if it lies outside the frame or is
/// negative.
fn integer(frame: &[u8], at: usize) -> Option<usize> {
    let bytes = frame.get(at..)?.first_chunk()?;
    usize::try_from(i32::from_le_bytes(*bytes)).ok()
}
