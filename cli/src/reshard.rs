//! `zarrs-cuda reshard`: moves encoded subchunks into other shards, without decoding them.

use clap::ValueEnum;
use indicatif::HumanCount;
use serde_json::{Map, Value, json};
use zarrs::metadata::v3::MetadataV3;
use zarrs_cuda_convert::words::bytes_text;
use zarrs_cuda_convert::{Failure, Layout, Part, Place, Reshard, Resharded};

use crate::arguments::Shape;
use crate::common::Common;
use crate::outcome::Outcome;
use crate::reencode::{IndexLocation, shared};
use crate::reports::{part_json, part_text};
use crate::watcher::Terminal;

const EXAMPLES: &str = "\
Valid if IN and OUT have the same shape, data type, fill value, subchunk shape and codecs of a
subchunk (levels may differ: OUT takes those of IN). Otherwise use `zarrs-cuda reencode`.

OUT is new, and --shard or --chunks says what it becomes. Or OUT is the directory of an array
that has a zarr.json and no chunks yet, which says so. A run that was interrupted goes on when
it is started again.";

/// Move subchunks between chunks and shards without decoding them
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The directory of the array to read
    input: Place,
    /// The directory of the new array
    output: Place,
    /// Shards of this shape in elements, a whole multiple of a subchunk
    #[arg(long, value_name = "A,B,…", conflicts_with = "chunks")]
    shard: Option<Shape>,
    /// No shards: each subchunk becomes a chunk
    #[arg(long)]
    chunks: bool,
    /// Where a shard keeps its index [default: as in IN, or at the end]
    #[arg(long, value_enum, value_name = "WHERE", conflicts_with = "chunks")]
    index: Option<IndexLocation>,
    /// How the keys of chunks or shards are written [default: as in IN]
    #[arg(long, value_enum, value_name = "ENCODING")]
    chunk_keys: Option<KeyEncoding>,
    /// Make one part of OUT, as 3/16. Other processes, on any machines, make the others; the last one
    /// makes OUT readable. `zarrs-cuda status OUT` lists the parts that are missing
    #[arg(long, value_name = "I/N", requires = "shard")]
    part: Option<Part>,
    /// Plan N parts, and make none: for file systems without hard links
    #[arg(long, value_name = "N", requires = "shard", conflicts_with = "part")]
    prepare: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KeyEncoding {
    /// Keys such as c/0/1
    #[value(name = "default/")]
    DefaultSlash,
    /// Keys such as c.0.1
    #[value(name = "default.")]
    DefaultDot,
    /// Keys such as 0/1
    #[value(name = "v2/")]
    V2Slash,
    /// Keys such as 0.1
    #[value(name = "v2.")]
    V2Dot,
}

impl KeyEncoding {
    fn metadata(self) -> MetadataV3 {
        let (name, separator) = match self {
            Self::DefaultSlash => ("default", "/"),
            Self::DefaultDot => ("default", "."),
            Self::V2Slash => ("v2", "/"),
            Self::V2Dot => ("v2", "."),
        };
        let separator = ("separator".to_string(), separator.into());
        MetadataV3::new_with_configuration(name, Map::from_iter([separator]))
    }
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let mut reshard = Reshard::new(args.input.clone(), args.output.clone());
    reshard.layout = match &args.shard {
        Some(Shape(shard)) => Some(Layout::Shards(shard.clone())),
        None => args.chunks.then_some(Layout::Chunks),
    };
    reshard.index = args.index.map(Into::into);
    reshard.chunk_keys = args.chunk_keys.map(KeyEncoding::metadata);
    reshard.memory = common.memory() as u64;
    reshard.threads = common.threads();
    if let Some(shared) = shared(args.prepare, args.part)? {
        let report = reshard.run_part(shared, &Terminal::new(common))?;
        return Ok(Outcome::new(part_text(&report), part_json(&report)));
    }
    let report = reshard.run(&Terminal::new(common))?;
    Ok(Outcome::new(text(&report, &args.output), json_of(&report)))
}

fn text(report: &Resharded, output: &Place) -> String {
    let seconds = report.time.as_secs_f64();
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rounded for people"
    )]
    let rate = (report.bytes as f64 / seconds.max(1e-9)) as u64;
    let kept = match report.kept {
        0 => String::new(),
        kept => format!(", and {} were there already", counted(kept, report.to)),
    };
    let done = format!(
        "{output} is complete: {} out of {}{kept}\n\
         {}, {}, in {seconds:.2} s, {}/s; {}",
        counted(report.written, report.to),
        counted(report.stored, report.from),
        counted(report.subchunks, "subchunk"),
        bytes_text(report.bytes),
        bytes_text(rate),
        match report.codec_calls {
            0 => "no codec was called".to_string(),
            calls => format!("{} of codecs", counted(calls, "call")),
        },
    );
    [&[done], &report.notes[..]].concat().join("\n")
}

fn json_of(report: &Resharded) -> Value {
    json!({
        "input": { "objects": report.stored, "kind": report.from },
        "output": {
            "kind": report.to,
            "objects_written": report.written,
            "objects_kept": report.kept,
        },
        "subchunks": report.subchunks,
        "bytes": report.bytes,
        "seconds": report.time.as_secs_f64(),
        "codec_calls": report.codec_calls,
        "notes": report.notes,
    })
}

/// Returns a number of things as text: `1 shard`, `2,000 shards`.
fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", HumanCount(count))
}
