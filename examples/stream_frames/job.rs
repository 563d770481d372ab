//! The command line.

use std::num::NonZeroU64;
use std::path::PathBuf;

use lexopt::ValueExt;
use zarrs_cuda::Backend;

use crate::Stop;

pub(crate) const USAGE: &str = "\
A simulated camera, whose frames (uint16) become a sharded Zarr array in OUT while it runs.

Usage: stream_frames OUT [OPTIONS]

Options:
  --frames N           stop after N frames               [default: at Ctrl-C]
  --rate R             frames per second; 0: as many as are taken
                                                         [default: 0]
  --wait               with a rate: wait for room, instead of dropping frames
  --shape Y,X          elements of a frame               [default: 2304,2304]
  --subchunk Z,Y,X     shape of a subchunk               [default: 16,128,128]
  --shard Z,Y,X        shape of a shard                  [default: 128,768,768]
  --codec CODEC        how subchunks are compressed      [default: none]
                         none | zstd | blosc (with lz4) | crc32c | zstd:LEVEL | gzip:LEVEL |
                         blosc-NAME:LEVEL:SHUFFLE
  --backend auto|host|cuda                               [default: auto]
  --memory MIB         how much memory the writer may take for buffers
                                                         [default: a quarter of this machine's]
  --help               print this

If there is an array in OUT, the camera goes on where it ends; its shapes and codecs are those of the
array. Ctrl-C stops the camera and finishes the array.

Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// The job that the command line asks for.
pub(crate) struct Job {
    pub(crate) output: PathBuf,
    /// `None` runs until the program is stopped.
    pub(crate) frames: Option<u64>,
    /// Frames per second; `None` runs as fast as the writer accepts frames.
    pub(crate) rate: Option<f64>,
    pub(crate) wait: bool,
    pub(crate) frame: [NonZeroU64; 2],
    pub(crate) subchunk: [NonZeroU64; 3],
    pub(crate) shard: [NonZeroU64; 3],
    pub(crate) codec: String,
    pub(crate) backend: Backend,
    /// The memory budget, in bytes.
    pub(crate) memory: Option<usize>,
}

impl Job {
    /// Returns `None` if help is requested.
    pub(crate) fn from_arguments() -> Result<Option<Self>, Stop> {
        let usage = |error: lexopt::Error| Stop::Usage(error.to_string());
        let extent = |extent| NonZeroU64::new(extent).unwrap_or(NonZeroU64::MIN);
        let mut job = Self {
            output: PathBuf::new(),
            frames: None,
            rate: None,
            wait: false,
            frame: [2304, 2304].map(extent),
            subchunk: [16, 128, 128].map(extent),
            shard: [128, 768, 768].map(extent),
            codec: "none".to_string(),
            backend: Backend::Auto,
            memory: None,
        };
        if !job.parse().map_err(usage)? {
            return Ok(None);
        }
        if job.output.as_os_str().is_empty() {
            return Err(Stop::Usage("an OUT is needed".to_string()));
        }
        Ok(Some(job))
    }

    /// Returns `false` if help is requested.
    fn parse(&mut self) -> Result<bool, lexopt::Error> {
        use lexopt::prelude::{Long, Short, Value};

        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("frames") => self.frames = Some(parser.value()?.parse()?),
                Long("rate") => {
                    self.rate = match parser.value()?.parse()? {
                        0.0 => None,
                        rate if f64::is_finite(rate) && rate > 0.0 => Some(rate),
                        _ => return Err("a rate is frames per second, at least 0".into()),
                    }
                }
                Long("wait") => self.wait = true,
                Long("shape") => self.frame = parser.value()?.parse_with(shape)?,
                Long("subchunk") => self.subchunk = parser.value()?.parse_with(shape)?,
                Long("shard") => self.shard = parser.value()?.parse_with(shape)?,
                Long("codec") => {
                    self.codec = match parser.value()?.string()?.as_str() {
                        "zstd" => "zstd:1".to_string(),
                        "blosc" => "blosc-lz4:5:shuffle".to_string(),
                        codec => codec.to_string(),
                    };
                }
                Long("backend") => {
                    self.backend = parser.value()?.parse_with(|value| match value {
                        "auto" => Ok(Backend::Auto),
                        "host" => Ok(Backend::Host),
                        "cuda" => Ok(Backend::Cuda),
                        _ => Err("it is `auto`, `host` or `cuda`"),
                    })?;
                }
                Long("memory") => {
                    let mib: usize = parser.value()?.parse()?;
                    self.memory = Some(mib.saturating_mul(1 << 20));
                }
                Long("help") | Short('h') => return Ok(false),
                Value(path) if self.output.as_os_str().is_empty() => self.output = path.into(),
                other => return Err(other.unexpected()),
            }
        }
        Ok(true)
    }
}

/// Parses `A,B,…` with `N` extents.
fn shape<const N: usize>(text: &str) -> Result<[NonZeroU64; N], String> {
    let extents: Result<Vec<NonZeroU64>, _> = text.split(',').map(str::parse).collect();
    extents
        .ok()
        .and_then(|extents| extents.try_into().ok())
        .ok_or_else(|| format!("it is {N} numbers above 0 with commas between them"))
}
