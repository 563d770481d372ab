//! Arrays of Zarr v2: which library decodes each codec of numcodecs.
//!
//! | codec | library |
//! |---|---|
//! | `blosc`, `zstd`, `gzip`, `zlib`, `bz2` | zarrs |
//! | `shuffle`, `fletcher32`, `adler32` | zarrs |
//! | `vlen-utf8`, `vlen-bytes`, `pcodec` | zarrs; `pcodec` in bounded memory, by `zarrs_cuda` |
//! | `delta`, `quantize`, `astype`, `fixedscaleoffset` | [`elements`] |
//! | `bitround` | none: encoded bytes are the decoded ones |
//! | `packbits` | [`packbits`] |
//! | `crc32`, `crc32c` | [`checksum`], over `crc32fast` and `crc32c` |
//! | `lz4` | [`lz4`], over `lz4_flex` |
//! | `lzma` | [`lzma`], over `liblzma` |
//! | others | none: [`refusal`] |
//!
//! numcodecs runs the list of filters from its end, and each filter takes bytes for elements of the data type
//! in its own configuration. So each codec of this folder is one of bytes for zarrs, also if its elements are
//! numbers: then zarrs keeps the order of the list, and the byte order of each filter is its own.

mod array;
mod checksum;
mod elements;
mod filter;
mod lz4;
mod lzma;
mod packbits;
#[cfg(test)]
mod tests;

use zarrs::metadata::Configuration;
use zarrs::plugin::PluginCreateError;
use zarrs_codec::{Codec, CodecRuntimePluginV2, register_codec_v2};

pub(crate) use self::array::as_numcodecs_reads;
use self::filter::{Decoder, Identity};

/// Creates a decoder from the configuration of a codec.
type Create = fn(&Configuration) -> Result<Box<dyn Decoder>, String>;

/// The codecs of this folder.
const OURS: [(&str, Create); 10] = [
    ("delta", elements::delta),
    ("quantize", elements::quantize),
    ("astype", elements::astype),
    ("fixedscaleoffset", elements::fixed_scale_offset),
    ("bitround", |_| Ok(Box::new(Identity))),
    ("packbits", |_| Ok(Box::new(packbits::PackBits))),
    ("crc32", checksum::crc32),
    ("crc32c", checksum::crc32c),
    ("lz4", |_| Ok(Box::new(lz4::Lz4))),
    ("lzma", lzma::lzma),
];

/// Registers the codecs of this folder with zarrs.
pub(crate) fn register() {
    for (id, create) in OURS {
        register_codec_v2(CodecRuntimePluginV2::new(
            move |name| name == id,
            move |metadata| {
                let decoder = create(metadata.configuration())
                    .map_err(|error| PluginCreateError::Other(format!("{id}: {error}")))?;
                Ok(Codec::BytesToBytes(filter::codec(
                    id,
                    metadata.configuration().clone(),
                    decoder,
                )))
            },
        ));
    }
}

/// Returns the reason why no library decodes the codec `id`; `None` if its name alone is no reason.
pub(crate) fn refusal(id: &str) -> Option<&'static str> {
    Some(match id {
        "pickle" => "it holds Python objects, and reading them runs code of whoever wrote the file",
        "json2" | "msgpack2" | "vlen-array" | "categorize" => {
            "it holds Python objects, which Zarr v3 has no data type for"
        }
        "zfpy" => "it is decoded by the library zfp, which is not part of this program",
        "jenkins_lookup3" => "its checksum is not known here",
        "base64" => "it is not decoded here",
        _ => return None,
    })
}
