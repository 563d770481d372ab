//! Chains that the engines do not know, through zarrs' own `CodecChain`. The decoders in it are bounded
//! already, where they can be (`bounded.rs`).

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;

use zarrs::array::{ArrayBytes, CodecChain, DataType, FillValue};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecError, CodecOptions};

use crate::engine::{EngineError, SubchunkCodec};
use crate::store::no_panic;

/// A chain, and what it needs to know of the subchunks.
pub(crate) struct ForeignChain<'a> {
    pub(crate) chain: &'a CodecChain,
    pub(crate) shape: &'a [NonZeroU64],
    pub(crate) data_type: &'a DataType,
    pub(crate) fill_value: &'a FillValue,
    pub(crate) options: CodecOptions,
}

impl fmt::Debug for ForeignChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.chain.fmt(f)
    }
}

impl SubchunkCodec for ForeignChain<'_> {
    fn encode<'b>(&self, decoded: Cow<'b, [u8]>) -> Result<Cow<'b, [u8]>, EngineError> {
        self.chain
            .encode(
                ArrayBytes::new_flen(decoded),
                self.shape,
                self.data_type,
                self.fill_value,
                &self.options,
            )
            .map_err(|error| EngineError::Foreign(Box::new(error)))
    }

    fn decode<'b>(&self, encoded: Cow<'b, [u8]>) -> Result<Cow<'b, [u8]>, EngineError> {
        let decoded = no_panic(|| {
            self.chain.decode(
                encoded,
                self.shape,
                self.data_type,
                self.fill_value,
                &self.options,
            )
        });
        decoded
            .and_then(|bytes| Ok(bytes.into_fixed()?))
            .map_err(|error| EngineError::Foreign(Box::new(error)))
    }
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
