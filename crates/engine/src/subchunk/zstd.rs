//! The zstd stage, whose contexts each thread makes once.

use zstd_safe::{CCtx, CParameter, DCtx, ErrorCode, get_error_name};

use super::not_decoded::NotDecoded;

/// The most bytes that a decompression context takes.
const DECOMPRESSOR_LEN: usize = 192 << 10;

/// The contexts of Zstandard.
#[derive(Default)]
pub(super) struct Zstd {
    /// The compression context, and its level and checksum flag.
    compressor: Option<(CCtx<'static>, i32, bool)>,
    decompressor: Option<DCtx<'static>>,
}

/// Returns the most bytes that a frame with a content of `len` bytes can have.
pub(super) fn bound(len: usize) -> usize {
    zstd_safe::compress_bound(len)
}

/// Returns the most bytes that the content of the frames in `from` can have, according to their headers.
///
/// # Errors
/// The reason of the library, if `from` does not consist of complete frames.
pub(super) fn content_bound(from: &[u8]) -> Result<usize, String> {
    let bound = zstd_safe::decompress_bound(from).map_err(reason)?;
    usize::try_from(bound).map_err(|_| format!("{bound} bytes are more than there are addresses"))
}

impl Zstd {
    /// Compresses `from` into `to`, as one frame that has its content size. Returns the size of the frame.
    ///
    /// # Errors
    /// The reason of the library.
    pub(super) fn compress(
        &mut self,
        level: i32,
        checksum: bool,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<usize, String> {
        let context = match &mut self.compressor {
            Some((context, l, c)) if *l == level && *c == checksum => context,
            other => {
                let mut context = CCtx::try_create().ok_or("no memory for a context")?;
                context
                    .set_parameter(CParameter::CompressionLevel(level))
                    .and_then(|_| context.set_parameter(CParameter::ChecksumFlag(checksum)))
                    .map_err(reason)?;
                &mut other.insert((context, level, checksum)).0
            }
        };
        context.compress2(to, from).map_err(reason)
    }

    /// Decompresses the frames in `from` into `to`. Returns the size of the content.
    ///
    /// # Errors
    /// The frames are invalid, their content is longer than `to`, or memory cannot be allocated.
    pub(super) fn decompress(&mut self, from: &[u8], to: &mut [u8]) -> Result<usize, NotDecoded> {
        let no_memory = || NotDecoded::Memory {
            what: "a context of zstd",
            bytes: DECOMPRESSOR_LEN,
        };
        let context = match &mut self.decompressor {
            Some(context) => context,
            none => none.insert(DCtx::try_create().ok_or_else(no_memory)?),
        };
        let decompressed = context.decompress(to, from);
        decompressed.map_err(|code| match code {
            NO_MEMORY => no_memory(),
            code => reason(code).into(),
        })
    }
}

/// The error `ZSTD_error_memory_allocation` of the library, in the form in which its functions return it.
const NO_MEMORY: ErrorCode = 0_usize.wrapping_sub(64);

fn reason(code: ErrorCode) -> String {
    get_error_name(code).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_says_of_memory() {
        assert!(reason(NO_MEMORY).contains("not enough memory"));
        let context = DCtx::try_create().expect("memory");
        assert!(context.sizeof() <= DECOMPRESSOR_LEN, "{}", context.sizeof());
    }
}
