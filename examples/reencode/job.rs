//! The command line.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use lexopt::ValueExt;
use zarrs::array::codec::ShardingIndexLocation;
use zarrs_cuda::Backend;

use crate::Stop;
use crate::arrays::arrays_in;

pub(crate) const USAGE: &str = "\
Re-encodes a Zarr v2 or v3 array on disk into a sharded v3 array.

Usage: reencode IN OUT [OPTIONS]
       reencode            (the volume in examples/data, into target/reencode, verified)

Options:
  --shard A,B,…        shape of a shard, in elements     [default: about 128 MiB]
  --subchunk A,B,…     shape of a subchunk, in elements  [default: about 128 KiB, near-cubic]
  --codec CODEC        how subchunks are compressed      [default: zstd:3]
                         none | crc32c | zstd:LEVEL | gzip:LEVEL | blosc-NAME:LEVEL:SHUFFLE
                         NAME: lz4, lz4hc, zstd, zlib, snappy, blosclz
                         SHUFFLE: shuffle, bitshuffle, noshuffle
  --index start|end    where a shard keeps its index     [default: end]
  --backend auto|host|cuda                               [default: auto]
  --explain            say what happens to a shard, and why
  --verify             read both arrays again with zarrs' own codecs, and compare every bit
  --overwrite          delete the array in OUT first
  --resume             go on with an interrupted run of the same command (IN must be unchanged)
  --help               print this

Exit codes: 0 done, 1 failed or not equal, 2 wrong usage, 130 interrupted.";

/// The job that the command line asks for.
#[allow(clippy::struct_excessive_bools)] // they are switches of the command line
pub(crate) struct Job {
    pub(crate) input: PathBuf,
    pub(crate) output: PathBuf,
    pub(crate) shard: Option<Vec<NonZeroU64>>,
    pub(crate) subchunk: Option<Vec<NonZeroU64>>,
    /// The target size if `shard` or `subchunk` is not given.
    pub(crate) shard_bytes: u64,
    pub(crate) subchunk_bytes: u64,
    pub(crate) codec: String,
    pub(crate) index: ShardingIndexLocation,
    pub(crate) backend: Backend,
    pub(crate) explain: bool,
    pub(crate) verify: bool,
    pub(crate) overwrite: bool,
    pub(crate) resume: bool,
}

impl Job {
    /// Returns `None` if help is requested.
    pub(crate) fn from_arguments() -> Result<Option<Self>, Stop> {
        if std::env::args_os().len() == 1 {
            return Self::demonstration().map(Some);
        }
        let mut job = Self::new(PathBuf::new(), PathBuf::new());
        let mut paths = Vec::new();
        match job.parse(&mut paths) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(Stop::Usage(error.to_string())),
        }
        let Ok([input, output]) = <[PathBuf; 2]>::try_from(paths) else {
            return Err(Stop::Usage("an IN and an OUT are needed".to_string()));
        };
        (job.input, job.output) = (input, output);
        if job.overwrite && job.resume {
            return Err(Stop::Usage(
                "--overwrite deletes what --resume goes on with: give one of them".to_string(),
            ));
        }
        Ok(Some(job))
    }

    fn new(input: PathBuf, output: PathBuf) -> Self {
        Self {
            input,
            output,
            shard: None,
            subchunk: None,
            shard_bytes: 128 << 20,
            subchunk_bytes: 128 << 10,
            codec: "zstd:3".to_string(),
            index: ShardingIndexLocation::End,
            backend: Backend::Auto,
            explain: false,
            verify: false,
            overwrite: false,
            resume: false,
        }
    }

    /// Re-encodes the array in `examples/data`, with sizes that suit it.
    fn demonstration() -> Result<Self, Stop> {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data");
        let input = arrays_in(&data)
            .into_iter()
            .next()
            .ok_or_else(|| format!("there is no Zarr array in {}", data.display()))?;
        // The program is TARGET/PROFILE/examples/reencode.
        let program = std::env::current_exe().unwrap_or_default();
        let target = match program.ancestors().nth(3) {
            Some(target) if target.join("CACHEDIR.TAG").exists() => target.to_path_buf(),
            _ => Path::new(env!("CARGO_MANIFEST_DIR")).join("target"),
        };
        let output = target
            .join("reencode")
            .join(input.file_name().unwrap_or_default());
        Ok(Self {
            shard_bytes: 256 << 10,
            subchunk_bytes: 4 << 10,
            explain: true,
            verify: true,
            overwrite: true,
            ..Self::new(input, output)
        })
    }

    /// Returns `false` if help is requested.
    fn parse(&mut self, paths: &mut Vec<PathBuf>) -> Result<bool, lexopt::Error> {
        use lexopt::prelude::{Long, Short, Value};

        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("shard") => self.shard = Some(parser.value()?.parse_with(parse_shape)?),
                Long("subchunk") => self.subchunk = Some(parser.value()?.parse_with(parse_shape)?),
                Long("codec") => self.codec = parser.value()?.string()?,
                Long("index") => {
                    self.index = parser.value()?.parse_with(|value| match value {
                        "start" => Ok(ShardingIndexLocation::Start),
                        "end" => Ok(ShardingIndexLocation::End),
                        _ => Err("it is `start` or `end`"),
                    })?;
                }
                Long("backend") => {
                    self.backend = parser.value()?.parse_with(|value| match value {
                        "auto" => Ok(Backend::Auto),
                        "host" => Ok(Backend::Host),
                        "cuda" => Ok(Backend::Cuda),
                        _ => Err("it is `auto`, `host` or `cuda`"),
                    })?;
                }
                Long("explain") => self.explain = true,
                Long("verify") => self.verify = true,
                Long("overwrite") => self.overwrite = true,
                Long("resume") => self.resume = true,
                Long("help") | Short('h') => return Ok(false),
                Value(path) => paths.push(path.into()),
                _ => return Err(argument.unexpected()),
            }
        }
        Ok(true)
    }
}

/// Parses `64,64,64`. An empty value is the shape of an array without dimensions.
fn parse_shape(value: &str) -> Result<Vec<NonZeroU64>, String> {
    if value.is_empty() {
        return Ok(Vec::new());
    }
    value
        .split(',')
        .map(|edge| {
            edge.trim()
                .parse()
                .map_err(|_| format!("`{edge}` is not a whole number above 0, as in 64,64,64"))
        })
        .collect()
}
