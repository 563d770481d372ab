//! Runs chains that the engines do not know, through zarrs' own `CodecChain`. The decoders of the chain are
//! already bounded, where a bound is possible (`codec/bounded.rs`).

use std::borrow::{Borrow, Cow};
use std::fmt;

use zarrs::array::ArrayBytes;
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};

use super::sharding::Sharding;
use crate::panics::no_panic;
use zarrs_cuda_engine::contract::{EngineError, SubchunkCodec};

/// The inner codecs of `shards`, as a codec that an engine can call. `S` owns or borrows the [`Sharding`].
pub(crate) struct ForeignChain<S> {
    shards: S,
    options: CodecOptions,
}

impl<S: Borrow<Sharding>> ForeignChain<S> {
    pub(crate) fn new(shards: S, options: CodecOptions) -> Self {
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
