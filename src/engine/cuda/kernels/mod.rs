//! The kernels, each with the launch that it wants.

pub(crate) mod aggregate;
#[allow(dead_code, reason = "for compressors on the device")]
pub(crate) mod chunks;
#[allow(dead_code, reason = "for gzip on the device")]
pub(crate) mod crc32;
pub(crate) mod crc32c;
mod fast_division;
#[allow(dead_code, unused_imports, reason = "for compressors on the device")]
pub(crate) mod frames;
pub(crate) mod ptx;
pub(crate) mod scatter;
#[allow(dead_code, reason = "for Blosc on the device")]
pub(crate) mod shuffle;
pub(crate) mod spans;
pub(crate) mod split;
#[cfg(test)]
mod testing;
