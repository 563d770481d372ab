//! The kernels, each with a function that checks its arguments and launches it.

pub mod aggregate;
pub mod chunk_tables;
pub mod compressed_frames;
pub mod crc32;
pub mod crc32c;
mod fast_division;
pub mod place;
pub mod reduce;
pub mod scatter;
pub mod shuffle;
pub mod spans;
pub mod split;
#[cfg(test)]
pub(crate) mod testing;
mod units;
