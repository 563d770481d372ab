//! Calls LZ4, in the library that C-Blosc links.

use std::ffi::c_int;

/// Compresses `from` into `to` as one block. Returns the size of the block; `None` if `to` is too short. A
/// larger `acceleration` is faster, and makes larger blocks.
pub(super) fn compress(acceleration: u8, from: &[u8], to: &mut [u8]) -> Option<usize> {
    let (len, room) = (c_int::try_from(from.len()), c_int::try_from(to.len()));
    let (len, room) = (len.ok()?, room.ok()?);
    // SAFETY: the pointers and lengths are those of `from` and `to`. The function keeps no pointer.
    let written = unsafe {
        lz4_sys::LZ4_compress_fast(
            from.as_ptr().cast(),
            to.as_mut_ptr().cast(),
            len,
            room,
            c_int::from(acceleration),
        )
    };
    usize::try_from(written).ok().filter(|&written| written > 0)
}
