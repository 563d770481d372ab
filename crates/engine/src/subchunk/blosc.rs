//! The Blosc stage: C-Blosc 1.21, the library that zarrs links, but for two things. C-Blosc makes a new
//! Zstandard context for every block, which costs a good part of compressing a small one; and it
//! shuffles with the instructions that every processor of an architecture has, which takes half as long
//! as compressing with LZ4. So frames of these are laid out here ([`frame`]), byte for byte as C-Blosc
//! does.

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
use frame::BloscFrame;

/// Blosc's state.
#[derive(Default)]
pub(super) struct Blosc {
    frame: BloscFrame,
}

/// Returns the most bytes that a frame of `len` bytes can have.
pub(super) fn bound(len: usize) -> usize {
    len.saturating_add(BLOSC_MAX_OVERHEAD as usize)
}

/// Returns the number of bytes that the frame `from` has as content, by its header.
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
    /// Compresses `from` into `to`, as one frame. Returns the frame's size.
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

    /// Decompresses the frame `from` into `to`. Returns the number of bytes.
    ///
    /// # Errors
    /// The reason, also if the content is longer than `to`; or that there is no memory.
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
        // C-Blosc uses the address without looking at it.
        check_memory("blocks of Blosc", block_memory(from, to.len()))?;
        // SAFETY: the frame's header was checked against the length of `from`, which is what the
        // function reads by; it writes at most `len` bytes to `to`, which has as many. It refuses
        // blocks larger than that, so that what is valid does not depend on the room there is.
        let written =
            unsafe { blosc_decompress_ctx(from.as_ptr().cast(), to.as_mut_ptr().cast(), len, 1) };
        usize::try_from(written).map_err(|_| format!("C-Blosc returned {written}").into())
    }
}

/// Returns the memory that C-Blosc takes to decompress the frame `from`, whose header was checked, to `room`
/// bytes, in bytes. A frame with larger blocks is invalid, and C-Blosc takes no memory for it.
fn block_memory(from: &[u8], room: usize) -> usize {
    /// The bytes beside each block: four for each byte of an element.
    const EXTRA: usize = 4 * 255;
    let (mut content, mut frame, mut block) = (0, 0, 0);
    // SAFETY: the header was checked, so `from` has its 16 bytes, and the function reads no more. It writes
    // one integer to each of the others.
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

/// Compresses with C-Blosc.
fn compress(parameters: &BloscStage, from: &[u8], to: &mut [u8]) -> Result<usize, String> {
    let shuffle = match parameters.shuffle {
        Shuffle::None => BLOSC_NOSHUFFLE,
        Shuffle::Byte => BLOSC_SHUFFLE,
        Shuffle::Bit => BLOSC_BITSHUFFLE,
    };
    // SAFETY: the pointers and lengths are those of `from` and `to`, and the name is a
    // NUL-terminated constant. The function keeps nothing.
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
