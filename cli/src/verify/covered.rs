//! Chooses the shards to compare: those that are stored in at least one of two arrays.

use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::chunks::Chunks;
use zarrs_cuda_convert::grid::{Grid, add_covered, listed};
use zarrs_cuda_convert::open::Opened;

use crate::chosen::{Chosen, ShardArgs};

/// Returns the chosen shards of `one` that are stored, or in which `other` has chunks; `chunks` are those of
/// both arrays, if they were listed. Also returns the number of chosen shards that are stored in neither
/// array, if the fill values differ, and 0 otherwise.
pub(super) fn chosen(
    args: &ShardArgs,
    one: &Opened,
    other: &Opened,
    chunks: [Option<&Chunks>; 2],
    grid: &Grid,
) -> Result<(Chosen, u128), Failure> {
    if args.are_named() {
        return Ok((args.named(grid)?, 0));
    }
    let mut all = match listed(one, grid)? {
        Ok(all) => all,
        Err(why) => return Ok((args.every(grid, &why), 0)),
    };
    let [of_one, of_other] = chunks.map(|chunks| chunks.and_then(Chunks::indices));
    // A shard that was listed may be gone by now: compare it, too.
    let counted = of_one.into_iter().flatten();
    all.positions
        .extend(counted.filter_map(|shard| grid.position(&shard)));
    if let Err(why) = add_covered(&mut all, &one.array, other, of_other, grid)? {
        let why = format!("for {}, {why}", other.place);
        return Ok((args.every(grid, &why), 0));
    }
    let chosen = args.of_part(grid, all);
    let fill_values = [one, other].map(|opened| opened.array.fill_value().as_ne_bytes());
    let unwritten = if fill_values[0] == fill_values[1] {
        0
    } else {
        chosen.looked_at().saturating_sub(chosen.len())
    };
    Ok((chosen, unwritten))
}
