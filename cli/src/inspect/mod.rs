//! `zarrs-cuda inspect`: what is in the shards of an array, and where.

pub(crate) mod stored;

use serde_json::json;
use zarrs_cuda::maintenance::Shards;

use crate::arguments::{ShardIndices, shape_text};
use crate::common::Common;
use crate::failure::Failure;
use crate::open::{self, Place};
use crate::outcome::Outcome;

/// Show what is in the shards of an array, and where
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The directory of a sharded array
    array: Place,
    /// The indices of a shard in the grid of shards, as 0,1,0 or 0/1/0
    shard: Option<ShardIndices>,
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let opened = open::array(&args.array)?;
    let shards = Shards::of(&opened.array)?;
    let _ = (&args.shard, common.columns(), common.has_colours());
    let stored = shards.stored()?;
    let text: Vec<_> = stored
        .iter()
        .map(|(shard, size)| format!("{} {size}", shape_text(shard)))
        .collect();
    Ok(Outcome::new(text.join("\n"), json!({ "shards": stored })))
}
