//! Checks the frames that a device has made, before they are stored: headers, sizes, chains of blocks, and the
//! checksums behind the compressor. This is done for every subchunk, and reads only headers, except for the
//! checksums. The contents of compressed streams are not decompressed: `result_checks` does that for some.

use super::compression::{CompressedFrameFormat, Compression};
use super::frame_parsing::{
    Reason, blosc, blosc_block, blosc_stream, blosc_streams_begin, gzip, zstd,
};
use super::kernels::compressed_frames::BloscFormat;
use crate::subchunk::crc32c;

/// The header of every gzip member that a device makes (`kernels/frames.cu`).
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// Checks that `encoded` has the structure of a subchunk that `compression` encodes.
///
/// # Errors
/// The reason why no encoder makes these bytes.
pub(super) fn check_frame(compression: &Compression, encoded: &[u8]) -> Result<(), Reason> {
    let mut frame = encoded;
    for _checksum in 0..compression.after {
        frame = crc32c::strip(frame, true).map_err(|invalid| match invalid {
            crc32c::Invalid::Truncated => "a subchunk has no room for its checksum",
            crc32c::Invalid::Mismatch => {
                "the checksum behind the compressor is not that of the bytes before it"
            }
        })?;
    }
    let bytes = compression.chunking.bytes;
    match compression.frame {
        CompressedFrameFormat::Zstd => zstd(frame, bytes)?.for_host(),
        CompressedFrameFormat::Gzip if !frame.starts_with(&GZIP_HEADER) => {
            Err("the header of a gzip member is not the one that a device writes")
        }
        CompressedFrameFormat::Gzip => gzip(frame, bytes).map(|_| ()),
        CompressedFrameFormat::Blosc(format) => check_blosc(compression, format, frame),
    }
}

/// Checks a Blosc frame. A device writes the streams in the order of their blocks, and without gaps.
fn check_blosc(compression: &Compression, format: BloscFormat, frame: &[u8]) -> Result<(), Reason> {
    let header = blosc(frame, compression.chunking.bytes)?;
    let word = format.word().map(u32::to_le_bytes);
    if word.as_ref() != frame.first_chunk() || header.chunking != compression.chunking {
        return Err("the header of a Blosc frame has other parameters than the codec");
    }
    let chunking = compression.chunking;
    let mut end = blosc_streams_begin(chunking);
    for number in 0..chunking.blocks() {
        // A block is one stream.
        let at = blosc_block(frame, number)?;
        let (part, _) = blosc_stream(frame, chunking, header.format, (at, number))?;
        // The size of a stream is in front of the stream.
        if part.start != end + 4 {
            return Err("the streams of a Blosc frame do not follow one another");
        }
        end = part.start + part.len;
    }
    if end != frame.len() {
        return Err("there are bytes behind the streams of a Blosc frame");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::frame_parsing::ZstdFrame;

    /// A frame with one uncompressed block, which has a window of 2^(10 + `exponent`) bytes.
    fn with_window(exponent: u8, content: &[u8]) -> Vec<u8> {
        let len = content.len() as u32;
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 2 << 6, exponent << 3];
        frame.extend(len.to_le_bytes());
        frame.extend(&(len << 3 | 1).to_le_bytes()[..3]);
        frame.extend(content);
        frame
    }

    /// A flipped bit in the exponent of a window is no window that an encoder needs.
    #[test]
    fn a_window_has_a_reason() {
        let content = [7; 300];
        for (exponent, is_right) in [(0, true), (7, true), (13, true), (14, false), (23, false)] {
            let frame = with_window(exponent, &content);
            let checked = zstd(&frame, content.len()).and_then(ZstdFrame::for_host);
            assert_eq!(checked.is_ok(), is_right, "{exponent}: {checked:?}");
        }
    }
}
