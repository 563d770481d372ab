//! Writes Blosc 1 frames of zstd and LZ4 streams.
//!
//! ```text
//! 0   version of the format (2)            16  start of each block, from the start of the frame
//! 1   version of the streams (1)           ..  for each block, for each of its streams: size, stream
//! 2   flags
//! 3   typesize
//! 4   bytes of content                     Integers have 32 bits and are little-endian.
//! 8   bytes of each block but the last     A stream as long as its content is the content itself.
//! 12  bytes of the frame
//! ```
//!
//! With zstd, a block is one stream. With LZ4, a block may be as many streams of equal length as an element
//! has bytes.
//!
//! Source: C-Blosc 1.21, `README_HEADER.rst` and `blosc.c` (block sizes, streams, levels).

use super::{lz4, shuffle};
use crate::contract::{BloscStage, Cname, Shuffle};
use crate::memory::allocate::at_least;
use crate::subchunk::zstd::Zstd;

const HEADER: usize = 16;
const FORMAT: u8 = 2;
const STREAM_FORMAT: u8 = 1;
const FLAG_SHUFFLE: u8 = 0x01;
const FLAG_DONT_SPLIT: u8 = 0x10;
const COMPRESSOR_LZ4: u8 = 1 << 5;
const COMPRESSOR_ZSTD: u8 = 4 << 5;

/// The least size of a buffer that is compressed, and of a part of a block that becomes a stream of its own.
const MIN_BUFFER: usize = 128;
const MAX_BUFFER: usize = i32::MAX as usize - HEADER;
const MAX_BLOCK: usize = (i32::MAX as usize - 255 * 4) / 3;
/// The most streams that a block is divided into.
const MAX_STREAMS: usize = 16;

/// Compresses bytes into Blosc frames, with memory that is used again.
#[derive(Default)]
pub(super) struct BloscCompressor {
    zstd: Zstd,
    shuffled: Vec<u8>,
}

impl BloscCompressor {
    /// Compresses `from` into `to`, and returns the size of the frame. Returns `None` if C-Blosc has to write
    /// the frame: with another compressor, with bit shuffle, or without compression.
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
        let is_ours = match parameters.cname {
            Cname::Zstd => true,
            // Without AVX2, C-Blosc is not slower.
            Cname::Lz4 => shuffle::is_fast(),
            _ => false,
        } && parameters.shuffle != Shuffle::Bit
            && (1..=9).contains(&parameters.level)
            && (MIN_BUFFER..=MAX_BUFFER).contains(&from.len())
            && (1..=from.len()).contains(&typesize);
        if !is_ours {
            return None;
        }
        let blocksize = block_size(parameters, typesize, from.len());
        let blocks = from.len().div_ceil(blocksize);
        let splits = is_split(parameters.cname, typesize, blocksize);
        let mut flags = match parameters.cname {
            Cname::Lz4 => COMPRESSOR_LZ4,
            _ => COMPRESSOR_ZSTD,
        };
        if parameters.shuffle == Shuffle::Byte {
            flags |= FLAG_SHUFFLE;
        }
        if !splits {
            flags |= FLAG_DONT_SPLIT;
        }

        let limit = to.len().min(from.len() + HEADER);
        let to = &mut to[..limit];
        let mut written = HEADER + 4 * blocks;
        for (number, block) in from.chunks(blocksize).enumerate() {
            write_u32(to, HEADER + 4 * number, written)?;
            let content = if parameters.shuffle == Shuffle::Byte && typesize > 1 {
                let shuffled = at_least(&mut self.shuffled, block.len()).ok()?;
                shuffle::shuffle(typesize, block, shuffled);
                shuffled
            } else {
                block
            };
            let len = if splits && block.len() == blocksize {
                block.len() / typesize
            } else {
                block.len()
            };
            for content in content.chunks(len) {
                written += stream(&mut self.zstd, parameters, content, to.get_mut(written..)?)?;
            }
        }
        to[..4].copy_from_slice(&[FORMAT, STREAM_FORMAT, flags, u8::try_from(typesize).ok()?]);
        write_u32(to, 4, from.len())?;
        write_u32(to, 8, blocksize)?;
        write_u32(to, 12, written)?;
        Some(written)
    }
}

/// Writes the size of the stream of `content`, and the stream, to `to`. Returns the number of bytes that it
/// wrote; `None` if `to` is too short.
fn stream(
    zstd: &mut Zstd,
    parameters: &BloscStage,
    content: &[u8],
    to: &mut [u8],
) -> Option<usize> {
    let (_, stream) = to
        .split_at_mut_checked(4)
        .filter(|(_, to)| !to.is_empty())?;
    // A stream must not be longer than its content.
    let room = stream.len().min(content.len());
    let compressed = if parameters.cname == Cname::Lz4 {
        lz4::compress(10 - parameters.level, content, &mut stream[..room])
    } else {
        let level = match parameters.level {
            9 => zstd_safe::max_c_level(),
            level => i32::from(level) * 2 - 1,
        };
        let stream = &mut stream[..room];
        zstd.compress(level, false, content, stream).ok()
    };
    let len = match compressed {
        Some(len) if len < content.len() => len,
        _ => {
            stream.get_mut(..content.len())?.copy_from_slice(content);
            content.len()
        }
    };
    write_u32(to, 0, len)?;
    Some(4 + len)
}

/// Writes a little-endian integer; returns `None` if it does not fit 32 bits, or if `to` is too short.
fn write_u32(to: &mut [u8], at: usize, value: usize) -> Option<()> {
    let value = u32::try_from(value).ok()?;
    to.get_mut(at..at + 4)?
        .copy_from_slice(&value.to_le_bytes());
    Some(())
}

/// Returns whether a block of `blocksize` bytes is divided into several streams.
fn is_split(cname: Cname, typesize: usize, blocksize: usize) -> bool {
    cname == Cname::Lz4 && typesize <= MAX_STREAMS && blocksize / typesize >= MIN_BUFFER
}

/// Returns the size of a block that C-Blosc would choose.
fn block_size(parameters: &BloscStage, typesize: usize, len: usize) -> usize {
    /// The size of the L1 cache that C-Blosc assumes.
    const L1: usize = 32 << 10;
    let mut blocksize = if parameters.blocksize > 0 {
        parameters.blocksize.clamp(MIN_BUFFER, MAX_BLOCK)
    } else if len < L1 {
        len
    } else {
        let (base, most) = match parameters.cname {
            Cname::Lz4 => (L1, 8),
            _ => (2 * L1, 16),
        };
        match parameters.level {
            1 => base / 2,
            2 => base,
            3 => base * 2,
            4 | 5 => base * 4,
            6..=8 => base * 8,
            _ => base * most,
        }
    };
    if is_split(parameters.cname, typesize, blocksize) {
        blocksize = (blocksize.min(256 << 10) * typesize).clamp(64 << 10, 1 << 20);
    }
    let blocksize = blocksize.min(len);
    if blocksize > typesize {
        blocksize / typesize * typesize
    } else {
        blocksize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subchunk::blosc;

    /// Frames must be what C-Blosc writes, bit for bit: then every reader of those reads these.
    #[test]
    fn frames_equal_those_of_c_blosc() {
        let mut ours = BloscCompressor::default();
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
        let mut compared = [0; 2];
        for (cname, len) in [Cname::Zstd, Cname::Lz4].into_iter().flat_map(|cname| {
            [
                0, 1, 127, 128, 129, 4096, 32_767, 32_768, 65_536, 300_001, 700_000,
            ]
            .map(|len| (cname, len))
        }) {
            for level in [1, 2, 3, 5, 7, 9] {
                for (shuffle, typesize) in [
                    (Shuffle::None, 1),
                    (Shuffle::Byte, 1),
                    (Shuffle::Byte, 2),
                    (Shuffle::Byte, 3),
                    (Shuffle::Byte, 4),
                    (Shuffle::None, 4),
                    (Shuffle::Byte, 8),
                    (Shuffle::Byte, 16),
                    (Shuffle::Byte, 17),
                    (Shuffle::Byte, 255),
                    (Shuffle::Byte, 256),
                ] {
                    for blocksize in [0, 100, 1000, 1 << 20] {
                        if cname == Cname::Zstd && level > 3 && (len > 70_000 || blocksize > 0) {
                            continue;
                        }
                        let parameters = BloscStage {
                            cname,
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
                            compared[usize::from(cname == Cname::Lz4)] += 1;
                        }
                    }
                }
            }
        }
        assert!(compared[0] > 500, "{compared:?}");
        assert!(compared[1] > 500 || !shuffle::is_fast(), "{compared:?}");
    }
}
