//! `zarrs-cuda explain`: tells the stages of an array's shards, the engine that runs each, and why.

use serde_json::{Value, json};
use zarrs_cuda::{Estimates, Explanation};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::open::{self, Place};

use crate::common::Common;
use crate::outcome::{Outcome, wrapped};

/// Say what happens to the shards of an array, where, and why
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The directory of a sharded array
    array: Place,
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let _registration = zarrs_cuda::register(common.options())?;
    let opened = open::array(&args.array)?;
    let explanation = zarrs_cuda::explain(&opened.array).map_err(|error| {
        Failure::failed(format!("cannot explain {}: {error}", opened.place))
            .with_remedy("`zarrs-cuda reencode` makes a sharded array of any Zarr array")
    })?;
    let json = json!({ "array": opened.place.to_string(), "explanation": json_of(&explanation) });
    let text = wrapped(&explanation.to_string(), common.columns());
    Ok(Outcome::new(text, json))
}

pub(crate) fn json_of(explanation: &Explanation) -> Value {
    let stages = explanation.stages.iter().map(|stage| {
        json!({
            "stage": stage.stage, "place": stage.place.to_string(), "reason": stage.reason,
        })
    });
    json!({
        "engine": explanation.engine,
        "why": explanation.why,
        "estimates": explanation.estimates.as_ref().map(estimates_json),
        "decoding": explanation.decoding,
        "shard": explanation.shard,
        "subchunk": explanation.subchunk,
        "subchunks": explanation.num_subchunks,
        "subchunk_bytes": explanation.subchunk_bytes,
        "device_memory": explanation.memory.as_ref().map(ToString::to_string),
        "first_wait": explanation.first_wait,
        "stages": stages.collect::<Vec<_>>(),
        "partial_writes": explanation.partial_writes,
        "no_huge_pages": explanation.no_huge_pages,
    })
}

/// Returns the estimates in seconds; the device's is null if there is none.
pub(crate) fn estimates_json(estimates: &Estimates) -> Value {
    json!({
        "host": estimates.host.as_secs_f64(),
        "device": estimates.device.map(|device| device.as_secs_f64()),
    })
}
