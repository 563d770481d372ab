//! Panics of codecs and stores that this library does not know, as errors.

#[cfg(feature = "async")]
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(feature = "async")]
use std::{pin::pin, task::Poll};

use zarrs_codec::CodecError;

/// Run foreign code on bytes that may be hostile. Some of zarrs' codecs panic on such bytes, and some stores
/// panic where a value ends too soon. Corrupted data must not bring an application down.
///
/// # Errors
/// The error of `decode`, or that it panicked.
pub(crate) fn no_panic<T>(decode: impl FnOnce() -> Result<T, CodecError>) -> Result<T, CodecError> {
    // Nothing that a panic left half done is used again.
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| Err(panicked()))
}

/// [`no_panic`], of a future.
///
/// # Errors
/// The error of `decode`, or that it panicked.
#[cfg(feature = "async")]
pub(crate) async fn async_no_panic<T>(
    decode: impl Future<Output = Result<T, CodecError>>,
) -> Result<T, CodecError> {
    let mut decode = pin!(decode);
    poll_fn(|context| {
        // A future that panicked is not polled again.
        catch_unwind(AssertUnwindSafe(|| decode.as_mut().poll(context)))
            .unwrap_or_else(|_| Poll::Ready(Err(panicked())))
    })
    .await
}

fn panicked() -> CodecError {
    CodecError::Other(
        "a codec or store panicked while decoding: the shard may be corrupted".to_string(),
    )
}
