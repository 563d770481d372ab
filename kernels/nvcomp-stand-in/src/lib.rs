//! Shared libraries with the C interface of nvCOMP that need no GPU: what they are given are
//! addresses of the host, and they do their work when they are called.
//!
//! `stand_in.c` says what they are strict about, `zstd.c`, `deflate.c` and `lz4.c` what they write.

use std::path::PathBuf;

/// A library, by what it is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandIn {
    /// Version 6.0. Asks for inputs at multiples of 4, outputs of 8, temporary memory of 16.
    Six,
    /// Version 5.3, with its names. Asks for multiples of 2, 16 and 32.
    Five,
    /// Says that it is 4.2, and ends the process if it is asked how much memory it takes.
    Four,
    /// Says that it is 7.0.
    Seven,
    /// Version 6.0, of which every third chunk fails, in [`FAILURES`] ways in turn.
    Failing,
    /// Version 6.0 that compresses no batch, whatever is in it.
    Refusing,
    /// Version 6.0. Asks for inputs, outputs and temporary memory at multiples of 256.
    Coarse,
    /// Version 6.0 without one of the functions for LZ4, and one for decompressing deflate.
    Incomplete,
    /// Version 6.0 that finds no device, so that zstd's temporary memory is unknown.
    NoDevice,
    /// Has nothing that says which version it is.
    NoProperties,
}

/// A chunk that begins with this and one of the digits below [`FAILURES`] cannot be compressed by
/// any of them.
pub const FAILS: &str = "stand-in fails ";

/// How a chunk can fail: with a status and a size that is garbage; with a status and a size that
/// looks right; without a status, of size 0; without a status, of a size larger than its slot.
pub const FAILURES: u8 = 4;

/// The digit of a chunk of which nothing is said, and for which nothing is written: whatever was in
/// its slot, its size and its status stays.
pub const SILENT: u8 = FAILURES;

impl StandIn {
    /// The file, named as such a library is.
    #[must_use]
    pub fn path(self) -> PathBuf {
        let major = match self {
            Self::Five => 5,
            Self::Four => 4,
            Self::Seven => 7,
            _ => 6,
        };
        let folder = format!("{self:?}").to_lowercase();
        PathBuf::from(env!("STAND_IN_LIBRARIES"))
            .join(folder)
            .join(format!("libnvcomp.so.{major}"))
    }
}
