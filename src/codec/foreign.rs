//! Chains that the engines do not know, through zarrs' own `CodecChain`. The decoders in it are bounded
//! already, where they can be (`bounded.rs`).

use std::borrow::{Borrow, Cow};
use std::fmt;
#[cfg(feature = "async")]
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(feature = "async")]
use std::{pin::pin, task::Poll};

use zarrs::array::ArrayBytes;
use zarrs_codec::{ArrayToBytesCodecTraits, CodecError, CodecOptions};

use super::sharding::Sharding;
use crate::engine::{EngineError, SubchunkCodec};

/// The inner codecs of some shards, as an engine calls them. `S` is how it knows the shards.
pub(crate) struct ForeignChain<S> {
    shards: S,
    options: CodecOptions,
}

impl<S: Borrow<Sharding>> ForeignChain<S> {
    pub(super) fn new(shards: S, options: CodecOptions) -> Self {
        Self { shards, options }
    }
}

impl<S: Borrow<Sharding>> fmt::Debug for ForeignChain<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shards.borrow().codec.inner_codecs.fmt(f)
    }
}

impl<S: Borrow<Sharding> + Send + Sync> SubchunkCodec for ForeignChain<S> {
    fn encode<'b>(&self, decoded: Cow<'b, [u8]>) -> Result<Cow<'b, [u8]>, EngineError> {
        let shards = self.shards.borrow();
        let (codec, decoded) = (&shards.codec, ArrayBytes::new_flen(decoded));
        codec
            .inner_codecs
            .encode(
                decoded,
                &codec.subchunk_shape,
                &shards.data_type,
                &shards.fill_value,
                &self.options,
            )
            .map_err(|error| EngineError::Foreign(Box::new(error)))
    }

    fn decode<'b>(&self, encoded: Cow<'b, [u8]>) -> Result<Cow<'b, [u8]>, EngineError> {
        let shards = self.shards.borrow();
        let codec = &shards.codec;
        let decoded = no_panic(|| {
            codec.inner_codecs.decode(
                encoded,
                &codec.subchunk_shape,
                &shards.data_type,
                &shards.fill_value,
                &self.options,
            )
        });
        decoded
            .and_then(|bytes| Ok(bytes.into_fixed()?))
            .map_err(|error| EngineError::Foreign(Box::new(error)))
    }
}

/// Run a decoder that is not ours on bytes that may be hostile. Some of zarrs' codecs panic on
/// them, and some of its stores if a value ends too soon: that becomes an error here, since
/// corrupted data must not bring an application down.
///
/// # Errors
/// What `decode` returned, or that it panicked.
pub(crate) fn no_panic<T>(decode: impl FnOnce() -> Result<T, CodecError>) -> Result<T, CodecError> {
    // A decoder that panicked halfway leaves nothing behind that is used again.
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| Err(panicked()))
}

/// The same, asynchronously.
///
/// # Errors
/// What `decode` returned, or that it panicked.
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

/// An engine's error, as zarrs' callers expect it.
pub(crate) fn codec_error(error: EngineError) -> CodecError {
    match error {
        EngineError::Checksum { .. } => CodecError::InvalidChecksum,
        EngineError::Foreign(error) => match error.downcast::<CodecError>() {
            Ok(error) => *error,
            Err(error) => CodecError::Other(error.to_string()),
        },
        error => CodecError::Other(error.to_string()),
    }
}
