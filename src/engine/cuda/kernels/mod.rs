//! The kernels, each with the launch that it wants.

pub(crate) mod aggregate;
pub(crate) mod chunks;
pub(crate) mod crc32;
pub(crate) mod crc32c;
mod fast_division;
pub(crate) mod frames;
pub(crate) mod ptx;
pub(crate) mod scatter;
pub(crate) mod shuffle;
pub(crate) mod spans;
pub(crate) mod split;
#[cfg(test)]
mod testing;
