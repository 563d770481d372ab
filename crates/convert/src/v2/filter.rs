//! A codec of zarrs over a decoder of bytes. It encodes nothing: arrays of Zarr v2 are inputs alone.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use zarrs::array::ArrayBytesRaw;
use zarrs::metadata::Configuration;
use zarrs::plugin::{ExtensionName, ZarrVersion};
use zarrs::storage::StorageError;
use zarrs::storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs_codec::{
    BytesPartialDecoderTraits, BytesRepresentation, BytesToBytesCodecTraits, CodecError,
    CodecMetadataOptions, CodecOptions, CodecPartialDefault, CodecTraits, PartialDecoderCapability,
    PartialEncoderCapability, RecommendedConcurrency,
};

/// A decoder of one codec of numcodecs, with its configuration.
pub(super) trait Decoder: fmt::Debug + Send + Sync {
    /// Decodes the bytes of a chunk to as many bytes as `expected` says. Checksums need not be compared if
    /// `expected.checksum` is false.
    ///
    /// # Errors
    /// The bytes are no such encoding. The text says what is wrong, without the name of the codec.
    fn decode<'a>(
        &self,
        encoded: Cow<'a, [u8]>,
        expected: Expected,
    ) -> Result<Cow<'a, [u8]>, String>;

    /// Returns how many bytes an encoding of `decoded` bytes has.
    fn encoded_size(&self, decoded: u64) -> EncodedSize;

    /// Returns the sizes of elements if each of them is decoded alone; `None` if a chunk is decoded as a whole.
    fn elements(&self) -> Option<ElementSizes> {
        None
    }
}

/// The numbers of bytes of an element.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElementSizes {
    pub(super) decoded: u64,
    pub(super) encoded: u64,
}

/// The demands on the result of a decoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) size: Size,
    /// Whether checksums are compared.
    pub(super) checksum: bool,
}

/// The number of bytes of a decoded chunk, as far as the metadata say it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Size {
    Exactly(u64),
    AtMost(u64),
    Unknown,
}

impl Size {
    /// Returns the number of bytes that a decoder may make, if `unknown` is the limit without metadata.
    pub(super) fn limit(self, unknown: u64) -> u64 {
        match self {
            Self::Exactly(size) | Self::AtMost(size) => size,
            Self::Unknown => unknown,
        }
    }

    /// Checks that a result of `decoded` bytes is one that the metadata allow.
    pub(super) fn must_be(self, decoded: u64) -> Result<(), String> {
        match self {
            Self::Exactly(size) if size != decoded => {
                Err(format!("it decodes to {decoded} bytes, and not to {size}"))
            }
            Self::AtMost(size) if size < decoded => Err(format!(
                "it decodes to {decoded} bytes, which is more than {size}"
            )),
            _ => Ok(()),
        }
    }
}

/// The number of bytes of an encoded chunk.
#[derive(Clone, Copy, Debug)]
pub(super) enum EncodedSize {
    Exactly(u64),
    AtMost(u64),
}

/// A codec whose encoded bytes are the decoded ones.
#[derive(Debug)]
pub(super) struct Identity;

impl Decoder for Identity {
    fn decode<'a>(&self, encoded: Cow<'a, [u8]>, _: Expected) -> Result<Cow<'a, [u8]>, String> {
        Ok(encoded)
    }

    fn encoded_size(&self, decoded: u64) -> EncodedSize {
        EncodedSize::Exactly(decoded)
    }
}

/// Returns the codec `id` of zarrs that decodes with `decoder`.
pub(super) fn codec(
    id: &'static str,
    configuration: Configuration,
    decoder: Box<dyn Decoder>,
) -> Arc<dyn BytesToBytesCodecTraits> {
    Arc::new(Filter {
        id,
        configuration,
        decoder,
    })
}

#[derive(Debug)]
struct Filter {
    id: &'static str,
    configuration: Configuration,
    decoder: Box<dyn Decoder>,
}

impl ExtensionName for Filter {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        matches!(version, ZarrVersion::V2).then_some(Cow::Borrowed(self.id))
    }
}

impl CodecTraits for Filter {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn configuration(&self, _: ZarrVersion, _: &CodecMetadataOptions) -> Option<Configuration> {
        Some(self.configuration.clone())
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        PartialDecoderCapability {
            partial_read: self.decoder.elements().is_some(),
            partial_decode: self.decoder.elements().is_some(),
        }
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        PartialEncoderCapability {
            partial_encode: false,
        }
    }
}

impl BytesToBytesCodecTraits for Filter {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn BytesToBytesCodecTraits> {
        self
    }

    fn recommended_concurrency(
        &self,
        _: &BytesRepresentation,
    ) -> Result<RecommendedConcurrency, CodecError> {
        Ok(RecommendedConcurrency::new_maximum(1))
    }

    fn encoded_representation(&self, decoded: &BytesRepresentation) -> BytesRepresentation {
        let encoded = |size: u64| self.decoder.encoded_size(size);
        match *decoded {
            BytesRepresentation::FixedSize(size) => match encoded(size) {
                EncodedSize::Exactly(size) => BytesRepresentation::FixedSize(size),
                EncodedSize::AtMost(size) => BytesRepresentation::BoundedSize(size),
            },
            BytesRepresentation::BoundedSize(size) => {
                let (EncodedSize::Exactly(size) | EncodedSize::AtMost(size)) = encoded(size);
                BytesRepresentation::BoundedSize(size)
            }
            BytesRepresentation::UnboundedSize => BytesRepresentation::UnboundedSize,
        }
    }

    fn encode<'a>(
        &self,
        _: ArrayBytesRaw<'a>,
        _: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        Err(CodecError::Other(format!(
            "cannot encode with the codec `{}` of Zarr v2: it is decoded alone",
            self.id
        )))
    }

    fn decode<'a>(
        &self,
        encoded: ArrayBytesRaw<'a>,
        decoded: &BytesRepresentation,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let size = match *decoded {
            BytesRepresentation::FixedSize(size) => Size::Exactly(size),
            BytesRepresentation::BoundedSize(size) => Size::AtMost(size),
            BytesRepresentation::UnboundedSize => Size::Unknown,
        };
        self.decoded(encoded, size, options)
    }

    /// Returns a decoder of parts if elements are decoded alone. The elements of a chunk outside of the array
    /// may be ones that cannot be decoded, and nobody asks for them.
    fn partial_decoder(
        self: Arc<Self>,
        input: Arc<dyn BytesPartialDecoderTraits>,
        decoded: &BytesRepresentation,
        _: &CodecOptions,
    ) -> Result<Arc<dyn BytesPartialDecoderTraits>, CodecError> {
        Ok(match (self.decoder.elements(), *decoded) {
            (Some(sizes), BytesRepresentation::FixedSize(size)) => Arc::new(Parts {
                filter: self,
                input,
                sizes,
                size,
            }),
            _ => Arc::new(CodecPartialDefault::new_bytes(
                input,
                *decoded,
                self.into_dyn(),
            )),
        })
    }
}

impl Filter {
    fn decoded<'a>(
        &self,
        encoded: ArrayBytesRaw<'a>,
        size: Size,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let bytes = encoded.len();
        let expected = Expected {
            size,
            checksum: options.validate_checksums(),
        };
        self.decoder
            .decode(encoded, expected)
            .and_then(|decoded| {
                size.must_be(decoded.len() as u64)?;
                Ok(decoded)
            })
            .map_err(|error| {
                CodecError::Other(format!(
                    "cannot decode {bytes} bytes with the codec `{}`: {error}",
                    self.id
                ))
            })
    }
}

/// A decoder of parts of a chunk, whose elements are decoded alone.
struct Parts {
    filter: Arc<Filter>,
    input: Arc<dyn BytesPartialDecoderTraits>,
    sizes: ElementSizes,
    /// The number of bytes of the decoded chunk.
    size: u64,
}

impl Parts {
    /// Returns the elements that have bytes of `part`, as a range of their numbers.
    fn elements(&self, part: &Range<u64>) -> Range<u64> {
        let size = self.sizes.decoded;
        part.start / size..part.end.max(part.start).div_ceil(size)
    }
}

impl BytesPartialDecoderTraits for Parts {
    fn exists(&self) -> Result<bool, StorageError> {
        self.input.exists()
    }

    fn size_held(&self) -> usize {
        self.input.size_held()
    }

    fn partial_decode_many(
        &self,
        parts: ByteRangeIterator<'_>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<ArrayBytesRaw<'_>>>, CodecError> {
        let ElementSizes { decoded, encoded } = self.sizes;
        let parts: Vec<_> = parts.map(|part| part.to_range(self.size)).collect();
        let ranges = parts.iter().map(|part| {
            let elements = self.elements(part);
            let bytes = (elements.end - elements.start).saturating_mul(encoded);
            ByteRange::FromStart(elements.start.saturating_mul(encoded), Some(bytes))
        });
        let ranges: Vec<_> = ranges.collect();
        let stored = self
            .input
            .partial_decode_many(Box::new(ranges.into_iter()), options)?;
        let Some(stored) = stored else {
            return Ok(None);
        };
        let decode = |(part, stored): (&Range<u64>, ArrayBytesRaw<'_>)| {
            let elements = self.elements(part);
            let size = Size::Exactly((elements.end - elements.start).saturating_mul(decoded));
            let bytes = self.filter.decoded(stored, size, options)?;
            let start = part.start - elements.start * decoded;
            let end = start + (part.end.max(part.start) - part.start);
            let cut = usize::try_from(start).ok().zip(usize::try_from(end).ok());
            let cut = cut.and_then(|(start, end)| bytes.get(start..end));
            let cut = cut.ok_or_else(|| {
                CodecError::Other(format!(
                    "the bytes {part:?} are outside of a decoded chunk of {} bytes",
                    self.size
                ))
            })?;
            Ok(Cow::Owned(cut.to_vec()))
        };
        let decoded: Result<_, CodecError> = parts.iter().zip(stored).map(decode).collect();
        decoded.map(Some)
    }

    fn supports_partial_decode(&self) -> bool {
        self.input.supports_partial_decode()
    }
}
