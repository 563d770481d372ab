//! `zarrs-cuda reencode`: re-encodes any Zarr v2 or v3 array as a sharded v3 array.

use std::str::FromStr;

use clap::ValueEnum;
use zarrs::array::codec::ShardingIndexLocation;
use zarrs_cuda_convert::{
    Failure, Part, Pattern, Place, Reencode, Report, ShapesFor, Shared, SubchunkCodec,
};

use crate::arguments::{CODECS, Shape};
use crate::common::Common;
use crate::outcome::Outcome;
use crate::reports::{
    array_json, array_text, dry_run_json, dry_run_text, group_json, group_text, part_json,
    part_text,
};
use crate::shapes::ShapeArgs;
use crate::stop;
use crate::watcher::Terminal;

/// Re-encode any Zarr v2 or v3 array as a sharded v3 array
#[derive(clap::Args, Clone, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "switches of the command line"
)]
pub(crate) struct Args {
    /// A Zarr array, of v2 or v3; with --recursive also a group
    #[arg(value_name = "IN")]
    input: Place,
    /// The directory of the new array
    #[arg(value_name = "OUT")]
    output: Place,
    #[command(flatten)]
    shapes: ShapeArgs,
    #[arg(long, value_name = "CODEC", default_value = "zstd:3", help = CODECS)]
    codec: SubchunkCodec,
    /// Where a shard keeps its index
    #[arg(long, value_enum, value_name = "WHERE", default_value = "end")]
    index: IndexLocation,
    /// Re-encode every array of the group IN; shapes are for arrays of as many dimensions
    #[arg(long)]
    recursive: bool,
    /// With --recursive: only arrays whose path matches, as temperature or surface/*; `*` is any characters but
    /// `/`, and `**` any. It may be given several times
    #[arg(long, value_name = "PATTERN", requires = "recursive")]
    include: Vec<Pattern>,
    /// With --recursive: the shape of shards, and of subchunks, of arrays whose path matches, as
    /// 't2m=256,320,320/64,32,32'. Of several, the first that matches counts
    #[arg(
        long = "shape-for",
        value_name = "PATTERN=A,B,…[/A,B,…]",
        requires = "recursive"
    )]
    shapes_for: Vec<ShapeFor>,
    /// Make subchunks of the shape of IN's chunks, or of its subchunks if IN has shards
    #[arg(long, conflicts_with_all = ["subchunk", "subchunk_size"])]
    keep_chunks: bool,
    /// With --recursive: consolidate the metadata of OUT also if IN has no consolidated metadata
    #[arg(long, requires = "recursive")]
    consolidate_metadata: bool,
    /// With --recursive: leave out arrays that cannot be done, and do the others. When the cause is gone, --resume adds
    /// them; with both, a run goes on, and leaves out what still cannot be done. Not with --overwrite, which deletes all
    /// arrays of OUT first
    #[arg(long, requires = "recursive", conflicts_with = "overwrite")]
    keep_going: bool,
    /// Say what happens to a shard, and why
    #[arg(long)]
    explain: bool,
    /// Read both arrays again with zarrs' own codecs, and compare every bit. No other implementation
    /// decodes IN
    #[arg(long)]
    verify: bool,
    /// Re-encode IN also if none of its chunks is stored: every element is the fill value
    #[arg(long)]
    allow_empty: bool,
    /// Replace the arrays that are in OUT. An OUT whose parts are not all made is replaced by --prepare alone
    #[arg(long)]
    overwrite: bool,
    /// Go on with an interrupted run of the same command: what is whole in OUT is kept. If OUT was made in parts and is
    /// complete: make shards again that are missing or damaged
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Make one part of OUT, as 3/16. Other processes, on any machines, make the others; the last one
    /// makes OUT readable. If a machine dies, make its part again: `zarrs-cuda status OUT` lists the
    /// parts that are missing
    #[arg(long, value_name = "I/N", conflicts_with_all = ["overwrite", "resume", "verify"])]
    part: Option<Part>,
    /// Plan N parts, and make none: for stores that cannot create an object only if there is none, and to replace
    /// OUT (with --overwrite)
    #[arg(long, value_name = "N", conflicts_with_all = ["part", "resume", "verify"])]
    prepare: Option<u64>,
    /// Only say what would be done: the shards, the bytes, the reads of IN and the memory, of each part, and what
    /// cannot be re-encoded. With --resume also the shards that are kept
    #[arg(long, conflicts_with = "verify")]
    dry_run: bool,
}

/// The shapes for arrays whose paths match a pattern, as an argument: `PATTERN=A,B` or `PATTERN=A,B/A,B`.
#[derive(Clone, Debug)]
struct ShapeFor(ShapesFor);

impl FromStr for ShapeFor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, shapes) = text.rsplit_once('=').ok_or_else(|| {
            "it is a pattern and shapes, as t2m=256,320,320 or t2m=256,320,320/64,32,32".to_owned()
        })?;
        let (shard, subchunk) = match shapes.split_once('/') {
            Some((shard, subchunk)) => (shard, Some(subchunk)),
            None => (shapes, None),
        };
        let shape = |text: &str| text.parse().map(|Shape(shape)| shape);
        Ok(Self(ShapesFor {
            pattern: pattern
                .parse()
                .map_err(|failure: Failure| failure.to_string())?,
            shard: shape(shard)?,
            subchunk: subchunk.map(shape).transpose()?,
        }))
    }
}

/// The end of a shard at which its index lies, as an argument.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum IndexLocation {
    Start,
    End,
}

impl From<IndexLocation> for ShardingIndexLocation {
    fn from(location: IndexLocation) -> Self {
        match location {
            IndexLocation::Start => Self::Start,
            IndexLocation::End => Self::End,
        }
    }
}

/// Returns the work in a run of several processes, from the arguments `--prepare` and `--part`.
pub(crate) fn shared(prepare: Option<u64>, part: Option<Part>) -> Result<Option<Shared>, Failure> {
    Ok(match (prepare, part) {
        (Some(parts), _) => Some(Shared::Prepare {
            parts: Part::new(1, parts)?.of(),
        }),
        (None, part) => part.map(Shared::Part),
    })
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let _listening = stop::wait_for_me(); // Ctrl-C also stops the planning
    let mut reencode = Reencode::new(args.input.clone(), args.output.clone());
    reencode.shapes = args.shapes.wishes();
    reencode.shapes.keep_chunks = args.keep_chunks;
    reencode.shapes.for_paths = args.shapes_for.iter().map(|one| one.0.clone()).collect();
    reencode.include.clone_from(&args.include);
    reencode.consolidate_metadata = args.consolidate_metadata;
    reencode.codec = args.codec.clone();
    reencode.index = args.index.into();
    reencode.recursive = args.recursive;
    reencode.keep_going = args.keep_going;
    reencode.explain = args.explain;
    reencode.verify = args.verify;
    reencode.allow_empty = args.allow_empty;
    reencode.overwrite = args.overwrite;
    reencode.resume = args.resume;
    reencode.shared = shared(args.prepare, args.part)?;
    reencode.dry_run = args.dry_run;
    reencode.options = common.options();
    reencode.threads = common.threads();
    Ok(match reencode.run(&Terminal::new(common))? {
        Report::Array(report) => Outcome::new(array_text(&report), array_json(&report)),
        Report::Group(report) => {
            Outcome::new(group_text(&report), group_json(&report)).with_errors(report.failures)
        }
        Report::Part(report) => {
            Outcome::new(part_text(&report), part_json(&report)).with_errors(report.failures)
        }
        Report::DryRun(report) => {
            Outcome::new(dry_run_text(&report), dry_run_json(&report)).with_errors(report.failures)
        }
    })
}
