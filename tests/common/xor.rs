//! Bytes-to-bytes codecs that neither zarrs nor this crate has heard of: one flips bits, and one also
//! appends bytes, and does not say how many at most.

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

/// The name of the codec that appends bytes.
pub(crate) const PADDING: &str = "test.padding";

/// Make zarrs know the codecs. To be called before anything is created in this process: while it
/// writes to the registry, nobody may create nested codecs.
pub(crate) fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        for (name, padding) in [(NAME, false), (PADDING, true)] {
            register_codec_v3(CodecRuntimePluginV3::new(
                move |asked| asked == name,
                move |_| Ok(Codec::BytesToBytes(Arc::new(Xor { padding }))),
            ));
        }
    });
}

#[derive(Debug)]
struct Xor {
    /// Whether bytes are appended, and how many of them, which depends on the others.
    padding: bool,
}

fn flip(bytes: &[u8]) -> ArrayBytesRaw<'static> {
    Cow::Owned(bytes.iter().map(|byte| byte ^ 0x5A).collect())
}

impl ExtensionName for Xor {
    fn name(&self, _version: ZarrVersion) -> Option<Cow<'static, str>> {
        Some(Cow::Borrowed(if self.padding { PADDING } else { NAME }))
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
        if self.padding {
            BytesRepresentation::UnboundedSize
        } else {
            *decoded
        }
    }

    fn encode<'a>(
        &self,
        decoded: ArrayBytesRaw<'a>,
        _options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let mut encoded = flip(&decoded).into_owned();
        if self.padding {
            let len = decoded
                .iter()
                .fold(0, |sum: u8, byte| sum.wrapping_add(*byte))
                % 40;
            encoded.resize(encoded.len() + usize::from(len), 0);
            encoded.push(len);
        }
        Ok(encoded.into())
    }

    fn decode<'a>(
        &self,
        encoded: ArrayBytesRaw<'a>,
        _decoded: &BytesRepresentation,
        _options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        if !self.padding {
            return Ok(flip(&encoded));
        }
        let content = encoded.split_last().and_then(|(len, bytes)| {
            let content = bytes.len().checked_sub(usize::from(*len))?;
            bytes.get(..content)
        });
        content
            .map(flip)
            .ok_or_else(|| CodecError::Other("too few bytes".to_owned()))
    }
}
