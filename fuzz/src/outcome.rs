//! The result of an attempt to read.

use std::panic::{AssertUnwindSafe, catch_unwind};

use zarrs_codec::CodecError;

/// The elements, or the error.
pub(crate) type Outcome = Result<Vec<u8>, String>;

/// Reads with zarrs. zarrs panics on some hostile bytes, which counts as an error.
pub(crate) fn of_zarrs(read: impl FnOnce() -> Result<Vec<u8>, CodecError>) -> Outcome {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(CodecError::Other("zarrs panicked".to_string())))
        .map_err(|error| error.to_string())
}

/// Reads with this crate: a panic is a finding.
pub(crate) fn of_ours(read: impl FnOnce() -> Result<Vec<u8>, CodecError>) -> Outcome {
    read().map_err(|error| error.to_string())
}

/// Fails unless both have the same elements, or both are errors.
pub(crate) fn assert_agree(one: (&str, &Outcome), other: (&str, &Outcome)) {
    let agree = match (one.1, other.1) {
        (Ok(one), Ok(other)) => one == other,
        (Err(_), Err(_)) => true,
        _ => false,
    };
    let ((name, outcome), (other_name, other_outcome)) = (one, other);
    assert!(
        agree,
        "{name}: {outcome:?}, but {other_name}: {other_outcome:?}"
    );
}

/// Whether a subchunk was rejected as too long. Only partial reads check that: they would request
/// such a length from the store, and no encoder produces it.
pub(crate) fn is_too_long(outcome: &Outcome) -> bool {
    let error = outcome.as_ref().err();
    error.is_some_and(|error| error.contains("in the shard index, expected at most"))
}
