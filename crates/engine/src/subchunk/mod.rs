//! One subchunk on one thread of the host. Both engines use it: a device leaves to it the subchunks
//! that its compressor cannot encode.
//!
//! | file | purpose |
//! |---|---|
//! | `scatter` | a subchunk out of the shard and back: copy, byte order, transpose, fill-value test |
//! | `zstd`, `gzip`, `blosc`, `crc32c` | one stage each, over whole buffers |
//! | `bounded` | one compressed value, decompressed into bounded memory |
//! | `not_decoded` | whether the bytes or the machine kept a value from being decompressed |
//! | `stages` | those stages one after the other, in the buffers of one thread |
//! | `encode` | all of that, for one subchunk of a shard |
//! | `scratch` | per-thread buffers and contexts, kept between calls |

#[allow(unsafe_code)]
mod blosc;
mod bounded;
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
