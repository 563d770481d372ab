//! `zarrs-cuda reencode`: any Zarr v2 or v3 array as a sharded v3 array.
//!
//! The array is read and written shard by shard, so it may be larger than memory: one shard is read while
//! another one is written. Where that takes more than `--memory`, shards are made in boxes of subchunks
//! (`parts.rs` chooses them, `assembly.rs` puts them together). Every value, the data type, the fill value, the
//! attributes and the dimension names are carried over bit for bit.
//!
//! An output never looks more complete than it is. A shard is written to a temporary file and then
//! renamed; an object of a store appears as a whole anyway. `zarr.json`, without which no reader opens
//! the array, comes last: until then it is called `zarr.json.incomplete`. `--resume` continues an
//! interrupted run.

mod arrays;
mod assembly;
mod copy;
mod covered;
mod directory;
mod found;
mod hierarchy;
mod objects;
mod readable;
mod resume;
mod run;
mod shapes;
mod target;
mod verify;
mod xarray;

use clap::ValueEnum;
use serde_json::json;
use zarrs::array::ArraySubset;
use zarrs::array::codec::ShardingIndexLocation;
use zarrs_codec::ArrayToBytesCodecTraits;
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::apart::{must_lie_apart, must_not_be_in_an_array};
use zarrs_cuda_convert::chunks::{Chunks, Empty};
use zarrs_cuda_convert::codec::SubchunkCodec;
use zarrs_cuda_convert::consolidated;
use zarrs_cuda_convert::evidence::Evidence;
use zarrs_cuda_convert::open::{self, Opened, Place};

use self::arrays::{Input, Output, describe, metadata_json};
use self::copy::copy;
use self::covered::Covered;
use self::resume::Stored;
use self::run::Run;
use self::shapes::Shapes;
use self::target::Target;
use self::verify::verify;
use crate::arguments::CODECS;
use crate::common::Common;
use crate::explain;
use crate::outcome::{Outcome, wrapped};
use crate::shapes::ShapeArgs;
use crate::stop;

/// Re-encode any Zarr v2 or v3 array as a sharded v3 array
#[derive(clap::Args, Clone, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "switches of the command line"
)]
pub(crate) struct Args {
    /// A Zarr array, of v2 or v3; with --recursive also a group
    #[arg(value_name = "IN")]
    pub(crate) input: Place,
    /// The directory of the new array
    #[arg(value_name = "OUT")]
    pub(crate) output: Place,
    #[command(flatten)]
    pub(crate) shapes: ShapeArgs,
    #[arg(long, value_name = "CODEC", default_value = "zstd:3", help = CODECS)]
    pub(crate) codec: SubchunkCodec,
    /// Where a shard keeps its index
    #[arg(long, value_enum, value_name = "WHERE", default_value = "end")]
    pub(crate) index: IndexLocation,
    /// Re-encode every array of the group IN; shapes are for arrays of as many dimensions
    #[arg(long)]
    pub(crate) recursive: bool,
    /// With --recursive: leave out arrays that cannot be done, and do the others
    #[arg(long, requires = "recursive", conflicts_with = "overwrite")]
    pub(crate) keep_going: bool,
    /// Say what happens to a shard, and why
    #[arg(long)]
    pub(crate) explain: bool,
    /// Read both arrays again with zarrs' own codecs, and compare every bit. No other implementation
    /// decodes IN
    #[arg(long)]
    pub(crate) verify: bool,
    /// Re-encode IN also if none of its chunks is stored: every element is the fill value
    #[arg(long)]
    pub(crate) allow_empty: bool,
    /// Replace the arrays that are in OUT
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Go on with an interrupted run of the same command: what is whole in OUT is kept
    #[arg(long, conflicts_with = "overwrite")]
    pub(crate) resume: bool,
}

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

impl Args {
    fn mode(&self) -> Mode {
        Mode {
            resume: self.resume,
            overwrite: self.overwrite,
        }
    }
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let _listening = stop::wait_for_me();
    must_lie_apart(&args.input, &args.output)?;
    must_not_be_in_an_array(&args.output)?;
    if args.recursive {
        return hierarchy::run(args, common);
    }
    let job = Job {
        args,
        common,
        input: args.input.clone(),
        output: args.output.clone(),
    };
    job.run()
}

/// The states of an output that a run accepts.
#[derive(Clone, Copy)]
struct Mode {
    /// The output of an interrupted run, which this run goes on with.
    resume: bool,
    /// An array, which this run replaces.
    overwrite: bool,
}

/// One array to re-encode.
struct Job<'a> {
    args: &'a Args,
    common: &'a Common,
    input: Place,
    output: Place,
}

/// The user stopped the run while it was planned.
fn not_begun() -> Failure {
    Failure::interrupted("stopped before anything was written")
}

/// The plan for an array, before anything is written.
struct Plan<'a> {
    job: Job<'a>,
    shapes: Shapes,
    input: Input,
    /// The chunks of the input that are stored, and how many for people.
    chunks: Chunks,
    counted: String,
    opened: Opened,
    target: Target,
    output: Output,
    run: Run,
    mode: Mode,
    /// An earlier run has done it.
    is_done: bool,
}

impl<'a> Job<'a> {
    fn run(self) -> Result<Outcome, Failure> {
        self.plan(false)?.run()
    }

    /// Opens the input, and decides what the output becomes. Writes nothing. `is_stale`: the input was
    /// written since an earlier run may have done it.
    fn plan(self, is_stale: bool) -> Result<Plan<'a>, Failure> {
        // All sharded arrays use our codec, also a sharded input.
        let _registration = zarrs_cuda::register(self.common.options())?;
        let (opened, chunks) = self.listed()?;
        let empty = if self.args.allow_empty {
            Empty::Allowed
        } else if self.args.recursive {
            Empty::Told
        } else {
            Empty::Refused
        };
        let counted = chunks.told(&opened, empty)?;
        let input = opened.array.with_storage(opened.array.storage());
        self.must_be_decodable(&input)?;
        let shapes = Shapes::choose(&self, &input)?;
        let input = input.with_codec_options(shapes.parts.options());
        let target = Target::new(&self.output)?;
        let output = describe(&self, &target, &input, &shapes, opened.has_no_fill_value)?;
        let output = output.with_codec_options(shapes.parts.options());
        let evidence = Evidence::of(&self.input, &*input.storage())?;
        let run = Run::of_array(self.args, &shapes, evidence, metadata_json(&output)?);
        let mut mode = self.args.mode();
        let is_published = self.args.recursive && self.args.resume && target.is_published(&run)?;
        let is_done = is_published && !is_stale;
        if is_published && is_stale {
            mode = Mode {
                resume: false,
                overwrite: true,
            };
        }
        if !is_done {
            target.check(mode, &run)?;
            self.must_be_read(&chunks, &input, &shapes)?;
        }
        Ok(Plan {
            job: self,
            shapes,
            input,
            chunks,
            counted,
            opened,
            target,
            output,
            run,
            mode,
            is_done,
        })
    }

    /// Checks that the codecs of the input take its data type. Some say so only when they decode.
    fn must_be_decodable(&self, input: &Input) -> Result<(), Failure> {
        let Ok(chunk) = input.chunk_shape(&vec![0; input.dimensionality()]) else {
            return Ok(()); // there are no chunks
        };
        let codecs = input.codecs();
        let encoded = codecs.encoded_representation(&chunk, input.data_type(), input.fill_value());
        encoded.map(drop).map_err(|error| {
            Failure::failed(format!("cannot decode {}: {error}", self.input))
                .with_remedy("re-encode the array with zarr-python")
        })
    }

    /// Checks that the first stored chunk can be read, as far as it is in one part of a shard of the output. Some
    /// codecs fail only then, and the output is not begun yet.
    fn must_be_read(&self, chunks: &Chunks, input: &Input, shapes: &Shapes) -> Result<(), Failure> {
        let Some(first) = chunks.indices().and_then(|mut chunks| chunks.next()) else {
            return Ok(());
        };
        let region = input.chunk_subset_bounded(&first).map_err(|error| {
            Failure::failed(format!(
                "cannot find the chunk {first:?} of {}: {error}",
                self.input
            ))
        })?;
        let axes = region.to_ranges().into_iter();
        let axes = axes.zip(&shapes.shard).zip(&shapes.parts.shape);
        let ranges: Vec<_> = axes
            .map(|((chunk, shard), part)| {
                let shard = chunk.start / shard.get() * shard.get();
                let parts_before = (chunk.start - shard) / part;
                let end = shard.saturating_add((parts_before + 1).saturating_mul(*part));
                chunk.start..chunk.end.min(end)
            })
            .collect();
        let region = ArraySubset::new_with_ranges(&ranges);
        let read = copy::read(self, chunks, input, shapes, &region);
        read.map(drop)
            .map_err(|failure| failure.with_remedy("nothing was written. Is the input whole?"))
    }

    /// The input, and which of its chunks are stored.
    fn listed(&self) -> Result<(Opened, Chunks), Failure> {
        let mut input = open::array(&self.input)?;
        let chunks = Chunks::of(&mut input)?;
        Ok((input, chunks))
    }
}

impl Plan<'_> {
    fn run(&self) -> Result<Outcome, Failure> {
        let Self {
            job,
            shapes,
            input,
            output,
            ..
        } = self;
        let Job { args, common, .. } = job;
        common.say(format!("{} -> {}", job.input, job.output));
        if self.is_done {
            let json = json!({ "input": job.input.to_string(), "output": job.output.to_string() });
            return Ok(Outcome::new("done before", json));
        }
        common.say(&self.counted);
        common.say(format!("{shapes}, {}", args.codec));
        for note in shapes.notes(&common.budget()) {
            common.say(note);
        }
        for repair in &self.opened.repairs {
            common.say(format!("note: {repair}"));
        }
        let explanation = if args.explain {
            let explanation = zarrs_cuda::explain(output);
            match &explanation {
                Ok(explanation) => common.say(wrapped(&explanation.to_string(), common.columns())),
                Err(error) => common.say(format!("nothing to explain: {error}")),
            }
            explanation.ok()
        } else {
            None
        };

        let registration = zarrs_cuda::register(common.options())?;
        if stop::is_asked() {
            return Err(not_begun());
        }
        let begun = self.target.begin(self.mode, &self.run)?;
        if let Some(changes) = &begun.changes {
            common.say(format!(
                "note: {changes} of {} changed since the run began: shards of them are written again",
                job.input
            ));
        }
        let stored = Stored::of(job, input, output, begun.changes.as_ref())?;
        let incomplete = |failure: Failure| {
            failure.with_remedy(format!(
                "{} is incomplete, and no Zarr reader opens it: run the same command with --resume \
                 to go on, or with --overwrite to start again",
                job.output
            ))
        };
        let covered = Covered::of(&self.opened, &self.chunks, shapes, input, output);
        let covered = covered.map_err(incomplete)?;
        let copied = copy(job, shapes, &covered, &self.chunks, input, output, &stored)
            .map_err(incomplete)?;
        drop(registration);
        if args.verify {
            verify(job, shapes, output).map_err(incomplete)?;
        }
        let left = begun.remove_temporaries()?;
        begun.publish().map_err(incomplete)?;
        let mut notes = Vec::new();
        if !left.is_empty() {
            notes.push(left.to_string());
        }
        if !args.recursive {
            notes.extend(consolidated::stale_above(&job.output, &[]));
        }
        let sizes = copied.sizes(job, input, output)?;
        let json = json!({
            "input": job.input.to_string(),
            "output": job.output.to_string(),
            "shape": shapes.array,
            "shard": shapes.shard,
            "subchunk": shapes.subchunk,
            "codec": args.codec.to_string(),
            "chunks": self.chunks.json(),
            "explanation": explanation.as_ref().map(explain::json_of),
            "verified": args.verify,
            "copied": copied.json(&sizes),
            "notes": notes,
            "repaired_metadata": self.opened.repairs,
        });
        let mut lines = vec![copied.summary(&sizes)];
        lines.extend(notes);
        Ok(Outcome::new(lines.join("\n"), json))
    }
}
