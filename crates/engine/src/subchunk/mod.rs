//! Encodes and decodes one subchunk on one thread of the host. Both engines use this module: a device leaves
//! to it the subchunks that the device's compressor cannot encode.
//!
//! | file | purpose |
//! |---|---|
//! | `scatter` | copies a subchunk out of the shard: order of axes, byte order, comparison with the fill
//! value |
//! | `zstd`, `gzip`, `blosc`, `crc32c` | one stage each, for whole buffers |
//! | `bounded` | decompresses one value into bounded memory |
//! | `not_decoded` | the reason why a value was not decompressed: its bytes, or missing memory |
//! | `stages` | runs the stages of a chain, in the buffers of one thread |
//! | `encode` | encodes one subchunk of a shard with its whole chain |
//! | `compare` | compares one encoded subchunk with its elements |
//! | `scratch` | buffers and contexts of a thread, kept between calls |

#[allow(unsafe_code)]
mod blosc;
mod bounded;
pub(super) mod compare;
pub(super) mod crc32c;
pub(super) mod encode;
mod gzip;
mod not_decoded;
pub(super) mod scatter;
pub(super) mod scratch;
pub(super) mod stages;
mod zstd;

pub use bounded::DecompressedFormat;
pub use not_decoded::NotDecoded;
