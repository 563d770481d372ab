//! The reason why a value was not decompressed: its bytes, or missing memory.

use crate::contract::EngineError;
use crate::memory::allocate;

/// The reason why a value was not decompressed.
#[derive(Debug, PartialEq, Eq)]
pub enum NotDecoded {
    /// The bytes are invalid in the format of the compressor.
    Invalid(String),
    /// Memory could not be allocated. The bytes may be valid.
    Memory { what: &'static str, bytes: usize },
}

impl NotDecoded {
    /// Returns the error of the stage `stage` for the subchunk with this number.
    pub(super) fn at(self, subchunk: usize, stage: &'static str) -> EngineError {
        match self {
            Self::Invalid(reason) => EngineError::Decode {
                subchunk,
                stage,
                reason,
            },
            Self::Memory { what, bytes } => EngineError::OutOfMemory { what, bytes },
        }
    }
}

impl From<String> for NotDecoded {
    fn from(reason: String) -> Self {
        Self::Invalid(reason)
    }
}

/// Checks that `bytes` can be allocated for `what`, before a library allocates them that would not return an
/// error.
///
/// # Errors
/// [`NotDecoded::Memory`] if the bytes cannot be allocated.
pub(super) fn check_memory(what: &'static str, bytes: usize) -> Result<(), NotDecoded> {
    let room = allocate::with_capacity(bytes, what, false);
    room.map(drop)
        .map_err(|_| NotDecoded::Memory { what, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_not_what_bytes_show() {
        let what = "a test";
        let bytes = usize::MAX / 2;
        let none = check_memory(what, bytes).unwrap_err();
        assert!(matches!(
            none.at(3, "zstd"),
            EngineError::OutOfMemory { what: "a test", bytes: b } if b == bytes
        ));
        assert!(check_memory(what, 100).is_ok());
        let invalid = NotDecoded::from("no".to_string()).at(3, "zstd");
        assert!(matches!(invalid, EngineError::Decode { subchunk: 3, .. }));
    }
}
