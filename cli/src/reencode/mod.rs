//! `zarrs-cuda reencode`: any Zarr v2 or v3 array as a sharded v3 array.
//!
//! The array is read and written shard by shard, so it may be larger than memory: at most two
//! shards are held decoded at a time, one of them also encoded, and one chunk of the input for each
//! thread. (One shard is read while the other is written; a shard at the edge of the array is held
//! twice.) Every value, the data type, the fill value, the attributes and the dimension names are
//! carried over bit for bit.
//!
//! An output never looks more complete than it is. A shard is written to a temporary file and then
//! renamed; an object of a store appears as a whole anyway. `zarr.json`, without which no reader opens
//! the array, comes last: until then it is called `zarr.json.incomplete`. `--resume` continues an
//! interrupted run.

mod arrays;
mod copy;
mod directory;
mod hierarchy;
mod objects;
mod shapes;
mod target;
mod verify;
mod xarray;

use clap::ValueEnum;
use serde_json::json;
use zarrs::array::codec::ShardingIndexLocation;

use self::arrays::{Input, describe};
use self::copy::copy;
use self::shapes::Shapes;
use self::target::Target;
use self::verify::verify;
use crate::codec::{CODECS, SubchunkCodec};
use crate::common::Common;
use crate::explain;
use crate::failure::Failure;
use crate::open::{self, Place};
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
    /// Say what happens to a shard, and why
    #[arg(long)]
    pub(crate) explain: bool,
    /// Read both arrays again with zarrs' own codecs, and compare every bit. No other implementation
    /// decodes IN
    #[arg(long)]
    pub(crate) verify: bool,
    /// Replace the arrays that are in OUT
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Go on with an interrupted run of the same command; IN must be unchanged
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

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let _listening = stop::wait_for_me();
    must_lie_apart(&args.input, &args.output)?;
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

/// Checks that neither of two places is within the other.
fn must_lie_apart(input: &Place, output: &Place) -> Result<(), Failure> {
    match (input, output) {
        (Place::Directory(input), Place::Directory(output)) => {
            directory::must_lie_apart(input, output)
        }
        (Place::Url(from), Place::Url(to)) => {
            let [from, to] = [from, to].map(|url| format!("{}/", url.trim_end_matches('/')));
            if from.starts_with(&to) || to.starts_with(&from) {
                return Err(Failure::usage(format!(
                    "IN and OUT must lie apart: {input} and {output}"
                )));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// One array to re-encode.
struct Job<'a> {
    args: &'a Args,
    common: &'a Common,
    input: Place,
    output: Place,
}

impl Job<'_> {
    fn run(&self) -> Result<Outcome, Failure> {
        let Self { args, common, .. } = self;
        // From here on, all sharded arrays use our codec, also a sharded input.
        let registration = zarrs_cuda::register(common.options())?;
        let input = self.open()?;
        let shapes = Shapes::choose(self, &input)?;
        let target = Target::new(&self.output)?;
        let output = describe(self, &target, &input, &shapes)?;
        common.say(format!("{} -> {}", self.input, self.output));
        if args.recursive && args.resume && target.is_published(&output)? {
            let json = json!({
                "input": self.input.to_string(), "output": self.output.to_string(),
            });
            return Ok(Outcome::new("done before", json));
        }
        common.say(format!("{shapes}, {}", args.codec));
        if let Some(note) = shapes.reading_twice() {
            common.say(note);
        }
        let explanation = if args.explain {
            let explanation = zarrs_cuda::explain(&output);
            match &explanation {
                Ok(explanation) => common.say(wrapped(&explanation.to_string(), common.columns())),
                Err(error) => common.say(format!("nothing to explain: {error}")),
            }
            explanation.ok()
        } else {
            None
        };

        target.prepare(args, &output)?;
        let outcome = copy(self, &shapes, &input, &output).and_then(|copied| {
            drop(registration);
            if args.verify {
                verify(self, &shapes, &output)?;
            }
            target.publish()?;
            Ok(copied)
        });
        let tidied = target.remove_temporaries();
        let copied = outcome.map_err(|failure| {
            failure.with_remedy(format!(
                "{} is incomplete, and no Zarr reader opens it: run the same command with --resume \
                 to go on, or with --overwrite to start again",
                self.output
            ))
        })?;
        tidied?;
        let json = json!({
            "input": self.input.to_string(),
            "output": self.output.to_string(),
            "shape": shapes.array,
            "shard": shapes.shard,
            "subchunk": shapes.subchunk,
            "codec": args.codec.to_string(),
            "explanation": explanation.as_ref().map(explain::json_of),
            "verified": args.verify,
            "copied": copied.json(self, &input, &output)?,
        });
        Ok(Outcome::new(copied.summary(self, &input, &output)?, json))
    }

    fn open(&self) -> Result<Input, Failure> {
        let opened = open::array(&self.input)?;
        Ok(opened.array)
    }
}
