//! Bytes-to-bytes codecs that neither zarrs nor this crate knows. One flips bits. The other also
//! appends bytes, and does not bound how many.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use zarrs::array::{ArrayBytesRaw, BytesRepresentation};
use zarrs::metadata::Configuration;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{ExtensionName, PluginCreateError, ZarrVersion, impl_extension_aliases};
use zarrs_codec::{
    BytesToBytesCodecTraits, Codec, CodecError, CodecMetadataOptions, CodecOptions, CodecPluginV3,
    CodecTraits, CodecTraitsV3, PartialDecoderCapability, PartialEncoderCapability,
    RecommendedConcurrency,
};

pub const NAME: &str = "test.xor";

/// The name of the codec that appends bytes.
pub const PADDING: &str = "test.padding";

// zarrs finds these codecs like its own: they are registered before `main`, without a lock that
// another thread may need.
inventory::submit! {
    CodecPluginV3::new::<Flips>()
}

inventory::submit! {
    CodecPluginV3::new::<Pads>()
}

struct Flips;

struct Pads;

impl_extension_aliases!(Flips, v3: NAME);
impl_extension_aliases!(Pads, v3: PADDING);

impl CodecTraitsV3 for Flips {
    fn create(_metadata: &MetadataV3) -> Result<Codec, PluginCreateError> {
        Ok(Codec::BytesToBytes(Arc::new(Xor { padding: false })))
    }
}

impl CodecTraitsV3 for Pads {
    fn create(_metadata: &MetadataV3) -> Result<Codec, PluginCreateError> {
        Ok(Codec::BytesToBytes(Arc::new(Xor { padding: true })))
    }
}

#[derive(Debug)]
struct Xor {
    /// Whether bytes are appended. Their number depends on the content.
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
