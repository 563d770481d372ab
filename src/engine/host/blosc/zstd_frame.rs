//! Blosc 1 frames of zstd streams.
//!
//! ```text
//! 0   version of the format (2)            16  start of each block, from the start of the frame
//! 1   version of the zstd stream (1)       ..  for each block: size of the stream, the stream
//! 2   flags
//! 3   typesize
//! 4   bytes of content                     Integers have 32 bits and are little-endian.
//! 8   bytes of a block, the last but       A stream as long as its block is the block itself.
//! 12  bytes of the frame
//! ```
//!
//! Source: C-Blosc 1.21, `README_HEADER.rst` and `blosc.c` (block sizes, levels).

use crate::engine::host::scatter::at_least;
use crate::engine::host::zstd::Zstd;
use crate::engine::{BloscStage, Cname, Shuffle};

const HEADER: usize = 16;
const FORMAT: u8 = 2;
const STREAM_FORMAT: u8 = 1;
const FLAG_SHUFFLE: u8 = 0x01;
const FLAG_DONT_SPLIT: u8 = 0x10;
const COMPRESSOR_ZSTD: u8 = 4 << 5;

/// Smaller buffers are not compressed.
const MIN_BUFFER: usize = 128;
const MAX_BUFFER: usize = i32::MAX as usize - HEADER;
const MAX_BLOCK: usize = (i32::MAX as usize - 255 * 4) / 3;

/// Compresses frames.
#[derive(Default)]
pub(super) struct ZstdFrame {
    zstd: Zstd,
    shuffled: Vec<u8>,
}

impl ZstdFrame {
    /// Compress `from` into `to`, and return the frame's size; `None` if that is for C-Blosc: other
    /// compressors, bit shuffle, and whatever is not compressed at all.
    pub(super) fn compress(
        &mut self,
        parameters: &BloscStage,
        from: &[u8],
        to: &mut [u8],
    ) -> Option<usize> {
        let typesize = if parameters.typesize > 255 {
            1
        } else {
            parameters.typesize
        };
        let is_ours = parameters.cname == Cname::Zstd
            && parameters.shuffle != Shuffle::Bit
            && parameters.level > 0
            && (MIN_BUFFER..=MAX_BUFFER).contains(&from.len())
            && from.len() >= typesize;
        if !is_ours {
            return None;
        }
        let level = match parameters.level {
            9 => zstd_safe::max_c_level(),
            level => i32::from(level) * 2 - 1,
        };
        let blocksize = block_size(parameters, typesize, from.len());
        let blocks = from.len().div_ceil(blocksize);
        let mut flags = FLAG_DONT_SPLIT | COMPRESSOR_ZSTD;
        if parameters.shuffle == Shuffle::Byte {
            flags |= FLAG_SHUFFLE;
        }

        let limit = to.len().min(from.len() + HEADER);
        let to = &mut to[..limit];
        let mut written = HEADER + 4 * blocks;
        for (number, block) in from.chunks(blocksize).enumerate() {
            write_u32(to, HEADER + 4 * number, written)?;
            let block = if parameters.shuffle == Shuffle::Byte && typesize > 1 {
                let shuffled = at_least(&mut self.shuffled, block.len()).ok()?;
                shuffle(typesize, block, shuffled);
                shuffled
            } else {
                block
            };
            let size_at = written;
            written += 4;
            // A stream may not be longer than its block.
            let room = to.len().checked_sub(written).filter(|&room| room > 0)?;
            let stream = &mut to[written..written + room.min(block.len())];
            let len = match self.zstd.compress(level, false, block, stream) {
                Ok(len) if len < block.len() => len,
                _ => {
                    stream.get_mut(..block.len())?.copy_from_slice(block);
                    block.len()
                }
            };
            write_u32(to, size_at, len)?;
            written += len;
        }
        to[..4].copy_from_slice(&[FORMAT, STREAM_FORMAT, flags, u8::try_from(typesize).ok()?]);
        write_u32(to, 4, from.len())?;
        write_u32(to, 8, blocksize)?;
        write_u32(to, 12, written)?;
        Some(written)
    }
}

/// Write a little-endian integer; `None` if it does not fit, or has no room.
fn write_u32(to: &mut [u8], at: usize, value: usize) -> Option<()> {
    let value = u32::try_from(value).ok()?;
    to.get_mut(at..at + 4)?
        .copy_from_slice(&value.to_le_bytes());
    Some(())
}

/// The size of a block, as C-Blosc chooses it for zstd.
fn block_size(parameters: &BloscStage, typesize: usize, len: usize) -> usize {
    /// Twice the size of the L1 cache that C-Blosc assumes.
    const BASE: usize = 64 << 10;
    let wanted = if parameters.blocksize > 0 {
        parameters.blocksize.clamp(MIN_BUFFER, MAX_BLOCK)
    } else if len < BASE / 2 {
        len
    } else {
        match parameters.level {
            1 => BASE / 2,
            2 => BASE,
            3 => BASE * 2,
            4 | 5 => BASE * 4,
            6..=8 => BASE * 8,
            _ => BASE * 16,
        }
    };
    let blocksize = wanted.min(len);
    if blocksize > typesize {
        blocksize / typesize * typesize
    } else {
        blocksize
    }
}

/// Byte `j` of every element, for each `j`; then the bytes that are no whole element.
fn shuffle(typesize: usize, from: &[u8], to: &mut [u8]) {
    fn planes<const N: usize>(from: &[u8], to: &mut [u8]) {
        let elements = from.as_chunks::<N>().0;
        for (j, plane) in to
            .chunks_exact_mut(elements.len().max(1))
            .take(N)
            .enumerate()
        {
            for (byte, element) in plane.iter_mut().zip(elements) {
                *byte = element[j];
            }
        }
    }
    let elements = from.len() / typesize;
    let whole = elements * typesize;
    match typesize {
        2 => planes::<2>(&from[..whole], &mut to[..whole]),
        4 => planes::<4>(&from[..whole], &mut to[..whole]),
        8 => planes::<8>(&from[..whole], &mut to[..whole]),
        _ => {
            for (i, element) in from.chunks_exact(typesize).enumerate() {
                for (j, byte) in element.iter().enumerate() {
                    to[j * elements + i] = *byte;
                }
            }
        }
    }
    to[whole..from.len()].copy_from_slice(&from[whole..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::host::blosc;

    /// Frames must be what C-Blosc writes, bit for bit: then every reader of those reads these.
    #[test]
    fn frames_equal_those_of_c_blosc() {
        let mut ours = ZstdFrame::default();
        let mut state = 1_u32;
        let noise: Vec<u8> = (0..700_000)
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if i % 3 == 0 {
                    (state >> 24) as u8
                } else {
                    (i / 1000) as u8
                }
            })
            .collect();
        let mut compared = 0;
        for len in [
            0, 1, 127, 128, 129, 4096, 32_767, 32_768, 65_536, 300_001, 700_000,
        ] {
            for level in [1, 3, 5, 9] {
                for (shuffle, typesize) in [
                    (Shuffle::None, 1),
                    (Shuffle::Byte, 1),
                    (Shuffle::Byte, 2),
                    (Shuffle::Byte, 3),
                    (Shuffle::Byte, 4),
                    (Shuffle::Byte, 8),
                    (Shuffle::Byte, 255),
                    (Shuffle::Byte, 256),
                ] {
                    for blocksize in [0, 100, 1000, 1 << 20] {
                        if level == 9 && (len > 70_000 || blocksize > 0) {
                            continue;
                        }
                        let parameters = BloscStage {
                            cname: Cname::Zstd,
                            level,
                            shuffle,
                            typesize,
                            blocksize,
                        };
                        let from = &noise[..len];
                        let mut expected = vec![0; blosc::bound(len)];
                        let expected_len = blosc::compress(&parameters, from, &mut expected);
                        let mut frame = vec![0; blosc::bound(len)];
                        if let Some(frame_len) = ours.compress(&parameters, from, &mut frame) {
                            assert_eq!(Ok(frame_len), expected_len, "{len} {parameters:?}");
                            assert_eq!(frame[..frame_len], expected[..frame_len]);
                            compared += 1;
                        }
                    }
                }
            }
        }
        assert!(compared > 500, "{compared}");
    }
}
