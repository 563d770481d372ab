//! A bytes-to-bytes codec that neither zarrs nor this crate has heard of: it flips bits.

use std::any::Any;
use std::borrow::Cow;
use std::sync::{Arc, Once};

use zarrs::array::{ArrayBytesRaw, BytesRepresentation};
use zarrs::metadata::Configuration;
use zarrs::plugin::{ExtensionName, ZarrVersion};
use zarrs_codec::{
    BytesToBytesCodecTraits, Codec, CodecError, CodecMetadataOptions, CodecOptions,
    CodecRuntimePluginV3, CodecTraits, PartialDecoderCapability, PartialEncoderCapability,
    RecommendedConcurrency, register_codec_v3,
};

pub(crate) const NAME: &str = "test.xor";

/// Make zarrs know the codec. To be called before anything is created in this process: while it
/// writes to the registry, nobody may create nested codecs.
pub(crate) fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        register_codec_v3(CodecRuntimePluginV3::new(
            |name| name == NAME,
            |_| Ok(Codec::BytesToBytes(Arc::new(Xor))),
        ));
    });
}

#[derive(Debug)]
struct Xor;

fn flip(bytes: &[u8]) -> ArrayBytesRaw<'static> {
    Cow::Owned(bytes.iter().map(|byte| byte ^ 0x5A).collect())
}

impl ExtensionName for Xor {
    fn name(&self, _version: ZarrVersion) -> Option<Cow<'static, str>> {
        Some(Cow::Borrowed(NAME))
    }
}

impl CodecTraits for Xor {
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

impl BytesToBytesCodecTraits for Xor {
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
        Ok(flip(&decoded))
    }

    fn decode<'a>(
        &self,
        encoded: ArrayBytesRaw<'a>,
        _decoded: &BytesRepresentation,
        _options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        Ok(flip(&encoded))
    }
}
