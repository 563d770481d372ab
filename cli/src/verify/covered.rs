//! Chooses the shards to compare: the ones that are stored in one of two arrays.

use crate::chosen::{Chosen, Grid, Listed, ShardArgs, cannot_list, listed};
use crate::failure::Failure;
use crate::inspect::stored::{self, Keys};
use crate::open::Opened;

/// The chosen shards of `one` that are stored, or in which `other` has chunks. Beside them, the number of the
/// chosen shards that are in neither, and nevertheless differ: by the fill values.
pub(super) fn chosen(
    args: &ShardArgs,
    one: &Opened,
    other: &Opened,
    grid: &Grid,
) -> Result<(Chosen, u128), Failure> {
    if args.are_named() {
        return Ok((args.named(grid)?, 0));
    }
    let mut all = match listed(one, grid)? {
        Ok(all) => all,
        Err(why) => return Ok((args.every(grid, &why), 0)),
    };
    if let Err(why) = add_covered(&mut all, one, other, grid)? {
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

/// Adds the shards of `one` in which `other` has chunks, or says why they are not known.
fn add_covered(
    all: &mut Listed,
    one: &Opened,
    other: &Opened,
    grid: &Grid,
) -> Result<Result<(), String>, Failure> {
    let array = &other.array;
    let keys = Keys::new(array.chunk_key_encoding(), array.chunk_grid_shape());
    if let Some(why) = cannot_list(other, &keys) {
        return Ok(Err(why));
    }
    let mut failed = None;
    let failures = stored::objects(other, |object| {
        let Some(chunk) = keys.in_grid(object.key) else {
            return;
        };
        let region = array.chunk_subset_bounded(&chunk);
        let shards = region.and_then(|region| Ok(one.array.chunks_in_array_subset(&region)?));
        match shards {
            Ok(Some(shards)) => {
                for shard in &shards.indices() {
                    let position = grid.position(&shard);
                    // Neighbours are often of one shard.
                    if position.is_some() && all.positions.last() != position.as_ref() {
                        all.positions.extend(position);
                    }
                }
            }
            Ok(None) => {}
            Err(error) => failed = Some(format!("{}: {error}", object.key)),
        }
    })?;
    if let Some(error) = failed {
        return Err(Failure::failed(format!(
            "cannot tell which shards have elements of the chunk {error}"
        )));
    }
    all.failures.extend(failures);
    Ok(Ok(()))
}
