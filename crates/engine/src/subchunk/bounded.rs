//! Decompresses one value into bounded memory.

use super::blosc::{self, Blosc};
use super::not_decoded::NotDecoded;
use super::scratch::Scratch;
use super::zstd;
use crate::memory::allocate::at_least;

/// A format of compressed values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecompressedFormat {
    /// Zstandard frames.
    Zstd,
    /// A gzip member.
    Gzip,
    /// A zlib stream.
    Zlib,
    /// A Blosc 1 frame.
    Blosc,
}

impl DecompressedFormat {
    /// Returns whether a value in this format tells the length of its content before it is decompressed.
    pub fn says_how_long(self) -> bool {
        matches!(self, Self::Zstd | Self::Blosc)
    }

    /// Returns the most bytes that any `len` bytes of this format can be decompressed to, whatever length
    /// they tell.
    fn most(self, len: usize) -> usize {
        let (content, encoded) = match self {
            // A match of 258 bytes takes at least two bits, and a dynamic block has a header.
            Self::Gzip | Self::Zlib => (1032, 1),
            // A block decompresses to at most 128 KiB, and has a header of 3 bytes. Of the compressors inside
            // Blosc, zstd reaches the highest ratio.
            Self::Zstd | Self::Blosc => (128 << 10, 3),
        };
        len.div_ceil(encoded).saturating_mul(content)
    }

    /// Decompresses `from`, whose content has at most `most` bytes. It allocates the smallest of `most`, the
    /// length that `from` tells, and the most that `from` can be decompressed to.
    ///
    /// # Errors
    /// - [`NotDecoded::Invalid`] if the content is longer than that, or if `from` is invalid.
    /// - [`NotDecoded::Memory`] if memory cannot be allocated.
    pub fn decompress(self, from: &[u8], most: usize) -> Result<Vec<u8>, NotDecoded> {
        let most = most.min(self.most(from.len()));
        let len = match self {
            Self::Gzip | Self::Zlib => most,
            // A frame may leave out the length of its content. Then this is an upper bound of the length.
            Self::Zstd => zstd::content_bound(from)?.min(most),
            Self::Blosc => {
                let len = blosc::content_len(from)?;
                if len > most {
                    return Err(format!("its header says {len} bytes").into());
                }
                len
            }
        };
        let mut content = Vec::new();
        let to = at_least(&mut content, len).map_err(|_| NotDecoded::Memory {
            what: "the content of a subchunk",
            bytes: len,
        })?;
        let contexts = &mut Scratch::take().contexts;
        let written = match self {
            Self::Zstd => contexts.zstd.decompress(from, to),
            Self::Gzip => contexts.gzip.decompress(from, to),
            Self::Zlib => contexts.gzip.decompress_zlib(from, to),
            Self::Blosc => Blosc::decompress(from, to),
        }?;
        content.truncate(written);
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_that_fits_exactly() {
        let mut contexts = Scratch::take();
        for len in [0, 1, 1000, 1 << 20] {
            let content = vec![7; len];
            let mut frame = vec![0; zstd::bound(len)];
            let zstd = &mut contexts.contexts.zstd;
            let written = zstd.compress(1, false, &content, &mut frame).unwrap();
            let frame = &frame[..written];
            assert_eq!(
                DecompressedFormat::Zstd.decompress(frame, len).unwrap(),
                content
            );
            let again = [frame, frame].concat();
            let twice = DecompressedFormat::Zstd
                .decompress(&again, 2 * len)
                .unwrap();
            assert_eq!(twice.len(), 2 * len);
            if len > 0 {
                assert!(DecompressedFormat::Zstd.decompress(frame, len - 1).is_err());
                assert!(
                    DecompressedFormat::Zstd
                        .decompress(&again, 2 * len - 1)
                        .is_err()
                );
            }
        }
    }
}
