//! `zarrs-cuda reshard`: encoded subchunks into other shards, without decoding them.

use crate::common::Common;
use crate::failure::Failure;
use crate::open::Place;
use crate::outcome::Outcome;

/// Move subchunks between chunks and shards without decoding them
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The array to read
    input: Place,
    /// The directory of the new array
    output: Place,
}

pub(crate) fn run(args: &Args, _common: &Common) -> Result<Outcome, Failure> {
    let (input, output) = (args.input.directory()?, args.output.directory()?);
    Err(Failure::failed(format!(
        "cannot reshard {} to {} yet",
        input.display(),
        output.display()
    )))
}
