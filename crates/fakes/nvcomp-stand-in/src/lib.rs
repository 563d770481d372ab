//! Shared libraries with the C interface of nvCOMP that need no GPU. They take addresses of the
//! host, and do their work when they are called.
//!
//! `stand_in.c` says what they check. `zstd.c`, `deflate.c` and `lz4.c` say what they write.

use std::path::{Path, PathBuf};

/// A variant of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandIn {
    /// Version 6.0. Requires inputs at multiples of 4, outputs of 8, temporary memory of 16.
    Six,
    /// Version 5.3, with its function names. Requires multiples of 2, 16 and 32.
    Five,
    /// Reports version 4.2, and ends the process if its temporary memory is queried.
    Four,
    /// Reports version 7.0.
    Seven,
    /// Version 6.0 in which every third chunk fails, in [`FAILURES`] ways in turn.
    Failing,
    /// Version 6.0 that compresses no batch.
    Refusing,
    /// Version 6.0. Requires inputs, outputs and temporary memory at multiples of 256.
    Coarse,
    /// Version 6.0 without one of the functions for LZ4, and one for decompressing deflate.
    Incomplete,
    /// Version 6.0 that finds no device, so that zstd's temporary memory is unknown.
    NoDevice,
    /// Lacks the function that reports the version.
    NoProperties,
}

/// A chunk that begins with this and one of the digits below [`FAILURES`] cannot be compressed by
/// any stand-in.
pub const FAILS: &str = "stand-in fails ";

/// The number of ways in which a chunk can fail: an error status and a garbage size, an error
/// status and a plausible size, no error status and size 0, or no error status and a size larger
/// than the slot.
pub const FAILURES: u8 = 4;

/// The digit of a chunk for which nothing is written: its slot, its size and its status keep their
/// contents.
pub const SILENT: u8 = FAILURES;

/// Returns whether a file is one of the stand-ins, and not NVIDIA's library.
#[must_use]
pub fn is_stand_in(path: &Path) -> bool {
    path.starts_with(env!("STAND_IN_LIBRARIES"))
}

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
