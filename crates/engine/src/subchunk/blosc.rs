//! The Blosc stage, by C-Blosc 1.21, the library that zarrs links. For two kinds of frames, C-Blosc is slow.
//! It makes a new Zstandard context for every block, which takes much of the time for a small block. And it
//! shuffles with the instructions of the oldest processors of an architecture, which takes half as long as
//! compressing with LZ4. So [`frame`] writes these frames, byte for byte like C-Blosc.

mod frame;
mod lz4;
mod shuffle;

use std::ffi::{CStr, c_int};

use blosc_src::{
    BLOSC_BITSHUFFLE, BLOSC_MAX_OVERHEAD, BLOSC_NOSHUFFLE, BLOSC_SHUFFLE, blosc_cbuffer_sizes,
    blosc_cbuffer_validate, blosc_compress_ctx, blosc_decompress_ctx,
};

use crate::contract::{BloscStage, Cname, Shuffle};

use super::not_decoded::{NotDecoded, check_memory};
use frame::BloscCompressor;

/// The buffers and contexts of the Blosc stage.
#[derive(Default)]
pub(super) struct Blosc {
    frame: BloscCompressor,
}

/// Returns the most bytes that a frame with a content of `len` bytes can have.
pub(super) fn bound(len: usize) -> usize {
    len.saturating_add(BLOSC_MAX_OVERHEAD as usize)
}

/// Returns the number of bytes of the content of the frame `from`, according to its header.
pub(super) fn content_len(from: &[u8]) -> Result<usize, String> {
    let mut len = 0;
    // SAFETY: the pointer and length are those of `from`, and the function writes one integer.
    let invalid = unsafe { blosc_cbuffer_validate(from.as_ptr().cast(), from.len(), &raw mut len) };
    if invalid == 0 {
        Ok(len)
    } else {
        Err("the data is not a valid Blosc frame".to_string())
    }
}

impl Blosc {
    /// Compresses `from` into `to`, as one frame. Returns the size of the frame.
    pub(super) fn compress(
        &mut self,
        parameters: &BloscStage,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<usize, String> {
        match self.frame.compress(parameters, from, to) {
            Some(written) => Ok(written),
            None => compress(parameters, from, to),
        }
    }

    /// Decompresses the frame `from` into `to`. Returns the size of the content.
    ///
    /// # Errors
    /// The frame is invalid, its content is longer than `to`, or memory cannot be allocated.
    pub(super) fn decompress(from: &[u8], to: &mut [u8]) -> Result<usize, NotDecoded> {
        let len = content_len(from)?;
        if len > to.len() {
            let room = to.len();
            let reason = format!("the content has {len} bytes where at most {room} are expected");
            return Err(reason.into());
        }
        if len == 0 {
            return Ok(0);
        }
        // C-Blosc does not check whether its allocation succeeded.
        check_memory("blocks of Blosc", block_memory(from, to.len()))?;
        // SAFETY: the function reads as many bytes as the frame's header says, which was checked against the
        // length of `from`. It writes at most `len` bytes to `to`, which has as many. It refuses blocks that
        // are larger than `len`, so that the length of `to` does not decide whether a frame is valid.
        let written =
            unsafe { blosc_decompress_ctx(from.as_ptr().cast(), to.as_mut_ptr().cast(), len, 1) };
        usize::try_from(written).map_err(|_| format!("C-Blosc returned {written}").into())
    }
}

/// Returns the bytes of memory that C-Blosc allocates to decompress the frame `from`, whose header was
/// checked, into `room` bytes. It allocates none for a frame with blocks larger than `room`, which is
/// invalid.
fn block_memory(from: &[u8], room: usize) -> usize {
    /// The extra bytes that C-Blosc allocates for a block: four for each of at most 255 bytes of an element.
    const EXTRA: usize = 4 * 255;
    let (mut content, mut frame, mut block) = (0, 0, 0);
    // SAFETY: the header was checked, so `from` has 16 bytes, and the function reads no more. It writes one
    // integer through each of the other pointers.
    unsafe {
        blosc_cbuffer_sizes(
            from.as_ptr().cast(),
            &raw mut content,
            &raw mut frame,
            &raw mut block,
        );
    }
    block.min(room).saturating_mul(2).saturating_add(EXTRA)
}

/// Compresses `from` into `to` with C-Blosc. Returns the size of the frame.
fn compress(parameters: &BloscStage, from: &[u8], to: &mut [u8]) -> Result<usize, String> {
    let shuffle = match parameters.shuffle {
        Shuffle::None => BLOSC_NOSHUFFLE,
        Shuffle::Byte => BLOSC_SHUFFLE,
        Shuffle::Bit => BLOSC_BITSHUFFLE,
    };
    // SAFETY: the pointers and lengths are those of `from` and `to`, and the name is a NUL-terminated
    // constant. The function keeps no pointer.
    let written = unsafe {
        blosc_compress_ctx(
            c_int::from(parameters.level),
            c_int::try_from(shuffle).unwrap_or_default(),
            parameters.typesize.max(1),
            from.len(),
            from.as_ptr().cast(),
            to.as_mut_ptr().cast(),
            to.len(),
            c_name(parameters.cname).as_ptr(),
            parameters.blocksize,
            1,
        )
    };
    match usize::try_from(written) {
        Ok(written) if written > 0 => Ok(written),
        _ => Err(format!(
            "C-Blosc returned {written} for {} bytes with {parameters:?}",
            from.len()
        )),
    }
}

fn c_name(cname: Cname) -> &'static CStr {
    match cname {
        Cname::BloscLz => c"blosclz",
        Cname::Lz4 => c"lz4",
        Cname::Lz4Hc => c"lz4hc",
        Cname::Snappy => c"snappy",
        Cname::Zlib => c"zlib",
        Cname::Zstd => c"zstd",
    }
}
