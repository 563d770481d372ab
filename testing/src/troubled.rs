//! A bytes-to-bytes codec that keeps bytes as they are, and fails when it is told to, as if the machine had no
//! memory.

use std::any::Any;
use std::borrow::Cow;
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zarrs::array::{ArrayBytesRaw, BytesRepresentation};
use zarrs::metadata::Configuration;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{PluginCreateError, ZarrVersion, impl_extension_aliases};
use zarrs_codec::{
    BytesToBytesCodecTraits, Codec, CodecError, CodecMetadataOptions, CodecOptions, CodecPluginV3,
    CodecTraits, CodecTraitsV3, PartialDecoderCapability, PartialEncoderCapability,
    RecommendedConcurrency,
};

pub const NAME: &str = "test.troubled";

static IS_TROUBLED: AtomicBool = AtomicBool::new(false);

/// Calls `work` while the codec decodes nothing. One test of a process may do so.
pub fn while_troubled<T>(work: impl FnOnce() -> T) -> T {
    IS_TROUBLED.store(true, Ordering::SeqCst);
    let result = work();
    IS_TROUBLED.store(false, Ordering::SeqCst);
    result
}

inventory::submit! {
    CodecPluginV3::new::<Troubled>()
}

#[derive(Debug)]
struct Troubled;

impl_extension_aliases!(Troubled, v3: NAME);

impl CodecTraitsV3 for Troubled {
    fn create(_metadata: &MetadataV3) -> Result<Codec, PluginCreateError> {
        Ok(Codec::BytesToBytes(Arc::new(Self)))
    }
}

impl CodecTraits for Troubled {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn configuration(
        &self,
        _version: ZarrVersion,
        _options: &CodecMetadataOptions,
    ) -> Option<Configuration> {
        Some(Configuration::default())
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        PartialDecoderCapability {
            partial_read: false,
            partial_decode: false,
        }
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        PartialEncoderCapability {
            partial_encode: false,
        }
    }
}

impl BytesToBytesCodecTraits for Troubled {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn BytesToBytesCodecTraits> {
        self
    }

    fn recommended_concurrency(
        &self,
        _decoded: &BytesRepresentation,
    ) -> Result<RecommendedConcurrency, CodecError> {
        Ok(RecommendedConcurrency::new_maximum(1))
    }

    fn encoded_representation(&self, decoded: &BytesRepresentation) -> BytesRepresentation {
        *decoded
    }

    fn encode<'a>(
        &self,
        decoded: ArrayBytesRaw<'a>,
        _options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        Ok(Cow::Owned(decoded.into_owned()))
    }

    fn decode<'a>(
        &self,
        encoded: ArrayBytesRaw<'a>,
        _decoded: &BytesRepresentation,
        _options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        if IS_TROUBLED.load(Ordering::SeqCst) {
            return Err(Error::from(ErrorKind::OutOfMemory).into());
        }
        Ok(Cow::Owned(encoded.into_owned()))
    }
}
