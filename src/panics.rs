//! Turns panics of codecs and stores of other packages into errors.

#[cfg(feature = "async")]
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(feature = "async")]
use std::{pin::pin, task::Poll};

use zarrs::plugin::PluginCreateError;
use zarrs_codec::CodecError;

/// Runs foreign code on bytes that may be hostile. Some of zarrs' codecs panic on such bytes, and some stores
/// panic where a value ends too soon. Corrupted data must not end an application.
///
/// # Errors
/// The error of `decode`, or an error that says that `decode` panicked.
pub(crate) fn no_panic<T>(decode: impl FnOnce() -> Result<T, CodecError>) -> Result<T, CodecError> {
    // The caller does not use values again that a panic left half changed.
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| Err(panicked()))
}

/// Does the same as [`no_panic`] for a future.
///
/// # Errors
/// The error of `decode`, or an error that says that `decode` panicked.
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

/// Creates codecs from metadata that may be hostile. Some of zarrs' codecs panic on settings that they do not take.
///
/// # Errors
/// The error of `create`, or an error with the message of the panic.
pub(crate) fn no_panic_of_settings<T>(
    create: impl FnOnce() -> Result<T, PluginCreateError>,
) -> Result<T, PluginCreateError> {
    catch_unwind(AssertUnwindSafe(create)).unwrap_or_else(|panic| {
        let message = (panic.downcast_ref::<String>().map(String::as_str))
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(PluginCreateError::Other(format!(
            "a codec does not take its settings, and panicked: {}",
            message.unwrap_or("without a message")
        )))
    })
}

fn panicked() -> CodecError {
    CodecError::Other(
        "a codec or store panicked while decoding: the shard may be corrupted".to_string(),
    )
}
