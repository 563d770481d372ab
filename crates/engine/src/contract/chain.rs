//! The chain of codecs of a subchunk, as data: chains that engines implement, and an interface for all other
//! chains.

use std::borrow::Cow;
use std::fmt;

use super::EngineError;

/// The codecs of a subchunk.
#[derive(Clone, Copy, Debug)]
pub enum Chain<'a> {
    /// Codecs that the engines implement themselves.
    Known(&'a KnownChain),
    /// Codecs that only the layer above the engines implements, for one subchunk at a time.
    Foreign(&'a dyn SubchunkCodec),
}

impl Chain<'_> {
    /// Returns the order of the axes in an encoded subchunk of `dimensions` axes: the encoded axis `k` is the
    /// decoded axis `order[k]`.
    pub fn order(&self, dimensions: usize) -> Vec<usize> {
        match self {
            Self::Known(chain) => chain.order.clone(),
            Self::Foreign(_) => (0..dimensions).collect(),
        }
    }
}

/// A chain of any number of `transpose`, then `bytes`, and then any of the [`Stage`]s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownChain {
    /// The encoded axis `k` is the decoded axis `order[k]`.
    pub order: Vec<usize>,
    /// The number of bytes whose order is reversed together; 1 if no bytes are swapped.
    pub swap: usize,
    /// The codecs that encode the bytes, in the order of encoding.
    pub stages: Vec<Stage>,
}

/// A bytes-to-bytes codec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Compresses to a Zstandard frame.
    Zstd { level: i32, checksum: bool },
    /// Compresses to a gzip member, with a level from 0 to 9.
    Gzip { level: u32 },
    /// Compresses to a Blosc 1 frame.
    Blosc(BloscStage),
    /// Appends the CRC32C of the bytes, little-endian.
    Crc32c,
}

/// The parameters of a Blosc 1 frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BloscStage {
    pub cname: Cname,
    /// The level of compression, from 0 to 9.
    pub level: u8,
    pub shuffle: Shuffle,
    /// The unit of the shuffle, in bytes; at least 1.
    pub typesize: usize,
    /// The size of a block in bytes; 0 lets Blosc choose.
    pub blocksize: usize,
}

/// A compressor inside Blosc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cname {
    BloscLz,
    Lz4,
    Lz4Hc,
    Snappy,
    Zlib,
    Zstd,
}

/// The filter before Blosc's compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    None,
    Byte,
    Bit,
}

impl Stage {
    /// Returns the name of the codec, as errors and `explain` show it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Zstd { .. } => "zstd",
            Self::Gzip { .. } => "gzip",
            Self::Blosc(_) => "blosc",
            Self::Crc32c => "crc32c",
        }
    }

    /// Returns whether the size of the output depends only on the size of the input.
    pub fn is_fixed_size(&self) -> bool {
        matches!(self, Self::Crc32c)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zstd { level, checksum } => {
                write!(f, "zstd level {level}")?;
                if *checksum {
                    f.write_str(" with checksum")?;
                }
                Ok(())
            }
            Self::Gzip { level } => write!(f, "gzip level {level}"),
            Self::Blosc(blosc) => {
                let shuffle = match blosc.shuffle {
                    Shuffle::None => "no shuffle".to_string(),
                    Shuffle::Byte => format!("byte shuffle of {}", blosc.typesize),
                    Shuffle::Bit => format!("bit shuffle of {}", blosc.typesize),
                };
                write!(
                    f,
                    "blosc {} level {}, {shuffle}",
                    blosc.cname.as_str(),
                    blosc.level
                )
            }
            Self::Crc32c => f.write_str("crc32c"),
        }
    }
}

impl Cname {
    /// Returns the name of the compressor in Blosc's metadata.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BloscLz => "blosclz",
            Self::Lz4 => "lz4",
            Self::Lz4Hc => "lz4hc",
            Self::Snappy => "snappy",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }
}

impl KnownChain {
    /// Returns whether every encoded subchunk has the same number of bytes.
    pub fn is_fixed_size(&self) -> bool {
        self.stages.iter().all(Stage::is_fixed_size)
    }
}

/// Encodes and decodes one subchunk with codecs that the engines do not know.
pub trait SubchunkCodec: fmt::Debug + Send + Sync {
    /// Encodes the elements of a subchunk, given in C order.
    fn encode<'b>(&self, decoded: Cow<'b, [u8]>) -> Result<Cow<'b, [u8]>, EngineError>;

    /// Decodes a subchunk to its elements, in C order.
    fn decode<'b>(&self, encoded: Cow<'b, [u8]>) -> Result<Cow<'b, [u8]>, EngineError>;
}
