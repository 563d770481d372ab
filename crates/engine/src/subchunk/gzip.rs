//! The gzip stage, by libdeflate, which compresses a whole buffer to one gzip member. It also decompresses
//! zlib streams, which have the same compressed data with another header and checksum.

use libdeflater::{CompressionLvl, Compressor, DecompressionError, Decompressor};

use super::not_decoded::{NotDecoded, check_memory};

/// The contexts of libdeflate.
#[derive(Default)]
pub(super) struct Gzip {
    /// The compressor, and its level.
    compressor: Option<(Compressor, u32)>,
    decompressor: Option<Decompressor>,
}

/// Returns the most bytes that a member with a content of `len` bytes can have.
///
/// This is the bound of libdeflate: stored blocks of at least 5 000 bytes, 5 bytes for each block, one byte
/// of slack, and 18 bytes of header and trailer.
pub(super) fn bound(len: usize) -> usize {
    let blocks = len.div_ceil(5_000).max(1);
    len.saturating_add(5 * blocks + 1 + 18 + 8)
}

impl Gzip {
    /// Compresses `from` into `to`, as one member. Returns the size of the member.
    ///
    /// `level` is 0 to 9. Compared to zlib's, libdeflate's members of the same level are a little smaller,
    /// and much faster to make.
    pub(super) fn compress(
        &mut self,
        level: u32,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<usize, String> {
        let compressor = match &mut self.compressor {
            Some((compressor, l)) if *l == level => compressor,
            other => {
                let valid = i32::try_from(level)
                    .ok()
                    .and_then(|level| CompressionLvl::new(level).ok())
                    .ok_or_else(|| format!("there is no level {level}"))?;
                &mut other.insert((Compressor::new(valid), level)).0
            }
        };
        compressor
            .gzip_compress(from, to)
            .map_err(|_| "the output buffer is too small".to_string())
    }

    /// Decompresses the member at the start of `from` into `to`. Returns the size of the content.
    ///
    /// # Errors
    /// The member is invalid, its content is longer than `to`, or memory cannot be allocated.
    pub(super) fn decompress(&mut self, from: &[u8], to: &mut [u8]) -> Result<usize, NotDecoded> {
        self.decompressor()?
            .gzip_decompress(from, to)
            .map_err(|error| reason(&error, "gzip member").into())
    }

    /// Decompresses the zlib stream at the start of `from` into `to`. Returns the size of the content.
    ///
    /// # Errors
    /// The errors of [`decompress`](Self::decompress).
    pub(super) fn decompress_zlib(
        &mut self,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<usize, NotDecoded> {
        self.decompressor()?
            .zlib_decompress(from, to)
            .map_err(|error| reason(&error, "zlib stream").into())
    }

    fn decompressor(&mut self) -> Result<&mut Decompressor, NotDecoded> {
        /// The most bytes that a decompressor takes.
        const LEN: usize = 64 << 10;
        Ok(match &mut self.decompressor {
            Some(decompressor) => decompressor,
            none => {
                // Check the memory first: the library panics if its allocation fails.
                check_memory("libdeflate's decompressor", LEN)?;
                none.insert(Decompressor::new())
            }
        })
    }
}

fn reason(error: &DecompressionError, what: &str) -> String {
    match error {
        DecompressionError::BadData => format!("the data is not a valid {what}"),
        DecompressionError::InsufficientSpace => "the content is too long".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_at_least_libdeflates() {
        let mut compressor = Compressor::new(CompressionLvl::new(1).expect("a level"));
        for len in (0..70_000).step_by(97).chain([1 << 20, 1 << 30]) {
            assert!(bound(len) >= compressor.gzip_compress_bound(len), "{len}");
        }
    }
}
