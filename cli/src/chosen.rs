//! Chooses the shards of an array to work on: the named ones, or the stored ones, by a listing.

use std::io;

use indicatif::HumanCount;
use serde_json::{Value, json};
use zarrs::array::Array;
use zarrs_cuda::maintenance::ArrayLease;

use crate::arguments::{Part, ShardIndices, shape_text};
use crate::failure::Failure;
use crate::inspect::stored::{self, Keys};
use crate::open::{Opened, Place};
use crate::progress::counted;

/// An array, and which of its shards.
#[derive(clap::Args, Debug)]
pub(crate) struct ShardArgs {
    /// A sharded array
    pub(crate) array: Place,
    /// Only these shards, by their indices in the grid of shards [default: all]
    shards: Vec<ShardIndices>,
    /// Only the part I of N of the shards: shard k of the grid belongs to part k mod N
    #[arg(long, value_name = "I/N")]
    part: Option<Part>,
}

impl ShardArgs {
    /// The chosen shards of `opened` that are there: the named ones, or those that a listing finds. Without a
    /// listing, every one of the grid.
    pub(crate) fn chosen(&self, opened: &Opened, grid: &Grid) -> Result<Chosen, Failure> {
        if !self.shards.is_empty() {
            return self.named(grid);
        }
        match listed(opened, grid)? {
            Ok(listed) => Ok(self.of_part(grid, listed)),
            Err(why) => Ok(self.every(grid, &why)),
        }
    }

    /// The lease for changing these shards: of all of the array, or of the part. `doing` names the change.
    pub(crate) fn lease(&self, opened: &Opened, doing: &str) -> Result<ArrayLease, Failure> {
        let lease = match (&opened.place, &opened.conditional, self.part) {
            (Place::Directory(path), _, None) => ArrayLease::take(path),
            (Place::Directory(path), _, Some(part)) => {
                ArrayLease::take_part(path, part.index(), part.of())
            }
            (Place::Url(_), Some(store), part) => {
                let (store, array) = (store.clone(), opened.array.path());
                let taken = match part {
                    None => ArrayLease::take_in(store, array),
                    Some(part) => ArrayLease::take_part_in(store, array, part.index(), part.of()),
                };
                taken.map_err(io::Error::other)
            }
            (Place::Url(_), None, _) => {
                let message = format!("cannot {doing} {}: it can only be read", opened.place);
                return Err(Failure::failed(message));
            }
        };
        lease
            .map_err(|error| {
                let message = format!("cannot {doing} {}: {error}", opened.place);
                let remedy = match opened.place {
                    Place::Directory(_) => "see whether another process works on the array, and whether this one may have more open files (`ulimit -n`), and try again",
                    Place::Url(_) => "see whether another process works on the array, and try again",
                };
                Failure::failed(message).with_remedy(remedy)
            })
    }

    /// Says that other processes are not refused, if `lease` was to be taken and there is none.
    pub(crate) fn lease_text(lease: Option<&ArrayLease>) -> Option<String> {
        let is_missing = lease.is_some_and(|lease| !lease.is_held());
        is_missing.then(|| {
            "no lease: other processes that changed the array meanwhile were not refused".to_owned()
        })
    }

    /// Whether shards are chosen by their names.
    pub(crate) fn are_named(&self) -> bool {
        !self.shards.is_empty()
    }

    fn is_of_part(&self, position: u128) -> bool {
        self.part.is_none_or(|part| part.has(position))
    }

    /// The shards that are named, each once.
    pub(crate) fn named(&self, grid: &Grid) -> Result<Chosen, Failure> {
        let positions = self.shards.iter().map(|ShardIndices(shard)| {
            grid.position(shard).ok_or_else(|| {
                let last = grid.0.iter().map(|count| count.saturating_sub(1));
                let last: Vec<_> = last.collect();
                let failure = Failure::usage(format!(
                    "{} is not a shard: the grid of shards is {}",
                    shape_text(shard),
                    shape_text(&grid.0)
                ));
                if grid.0.contains(&0) {
                    return failure; // there is no shard
                }
                failure.with_remedy(format!("the last shard is {}", shape_text(&last)))
            })
        });
        let mut positions = positions.collect::<Result<Vec<_>, _>>()?;
        positions.retain(|&position| self.is_of_part(position));
        // Two threads must not work on one shard.
        positions.sort_unstable();
        positions.dedup();
        Ok(Chosen {
            looked_at: positions.len() as u128,
            positions: Positions::These(positions),
            outside: None,
            failures: Vec::new(),
        })
    }

    /// The shards at some positions of a listing, in any order, that are of the part.
    pub(crate) fn of_part(&self, grid: &Grid, listed: Listed) -> Chosen {
        let mut positions = listed.positions;
        positions.retain(|&position| self.is_of_part(position));
        positions.sort_unstable();
        positions.dedup();
        Chosen {
            positions: Positions::These(positions),
            looked_at: self.steps(grid).len(),
            outside: Some(listed.outside),
            failures: listed.failures,
        }
    }

    /// Every shard of the grid that is of the part, one after the other. Says how many there are, and `why` each
    /// of them has to be asked for.
    pub(crate) fn every(&self, grid: &Grid, why: &str) -> Chosen {
        let steps = self.steps(grid);
        let count = match u64::try_from(steps.len()) {
            Ok(count) => HumanCount(count).to_string(),
            Err(_) => steps.len().to_string(),
        };
        let plural = if steps.len() == 1 { "" } else { "s" };
        tell!("{count} shard{plural} to ask for, one by one: {why}");
        Chosen {
            looked_at: steps.len(),
            positions: Positions::Every(steps),
            outside: None,
            failures: Vec::new(),
        }
    }

    fn steps(&self, grid: &Grid) -> Steps {
        let (first, step) = self.part.map_or((0, 1), |part| {
            (u128::from(part.index()), u128::from(part.of().get()))
        });
        let end = grid.len();
        Steps { first, step, end }
    }
}

/// The grid of the shards of an array.
#[derive(Clone, Debug)]
pub(crate) struct Grid(Vec<u64>);

impl Grid {
    /// # Errors
    /// The grid has more shards than can be numbered.
    pub(crate) fn of<S: ?Sized>(array: &Array<S>) -> Result<Self, Failure> {
        let counts = array.chunk_grid_shape();
        let mut volume = Some(1_u128);
        for &count in counts.iter().filter(|count| **count > 0) {
            volume = volume.and_then(|volume| volume.checked_mul(u128::from(count)));
        }
        if volume.is_none() {
            return Err(Failure::failed(format!(
                "a grid of {} shards has more of them than can be numbered",
                shape_text(counts)
            )));
        }
        Ok(Self(counts.to_vec()))
    }

    /// The number of shards along each axis.
    pub(crate) fn counts(&self) -> &[u64] {
        &self.0
    }

    /// The number of shards.
    pub(crate) fn len(&self) -> u128 {
        let counts = self.0.iter().map(|&count| u128::from(count));
        counts.fold(1, u128::saturating_mul)
    }

    /// The indices of the shard at `position`, in C order.
    pub(crate) fn indices(&self, mut position: u128) -> Vec<u64> {
        let mut indices = vec![0; self.0.len()];
        for (index, &count) in indices.iter_mut().zip(&self.0).rev() {
            let count = u128::from(count.max(1));
            // Less than `count`, which is of 64 bits.
            *index = u64::try_from(position % count).unwrap_or(0);
            position /= count;
        }
        indices
    }

    /// The position of a shard, in C order. `None` if the grid has no such shard.
    pub(crate) fn position(&self, indices: &[u64]) -> Option<u128> {
        if indices.len() != self.0.len() {
            return None;
        }
        let mut position = 0_u128;
        for (&index, &count) in indices.iter().zip(&self.0) {
            (index < count).then_some(())?;
            position = position
                .checked_mul(u128::from(count))?
                .checked_add(u128::from(index))?;
        }
        Some(position)
    }
}

/// The shards of an array by a listing.
#[derive(Default)]
pub(crate) struct Listed {
    /// The positions of the stored shards in the grid, in any order.
    pub(crate) positions: Vec<u128>,
    /// The number of stored shards outside of the grid.
    pub(crate) outside: u64,
    /// Directories that cannot be read.
    pub(crate) failures: Vec<Failure>,
}

/// The shards of `opened` by a listing, or why there is none.
pub(crate) fn listed(opened: &Opened, grid: &Grid) -> Result<Result<Listed, String>, Failure> {
    let array = &opened.array;
    let keys = Keys::new(array.chunk_key_encoding(), &grid.0);
    if let Some(why) = cannot_list(opened, &keys) {
        return Ok(Err(why));
    }
    let mut listed = Listed::default();
    listed.failures = stored::objects(opened, |object| {
        let Some(indices) = keys.parse(object.key) else {
            return;
        };
        // A directory in the place of a shard is looked at, too: the work on it fails.
        match grid.position(&indices) {
            Some(position) => listed.positions.push(position),
            None => listed.outside += 1,
        }
    })?;
    Ok(Ok(listed))
}

/// Positions that may be there several times.
const FEW: usize = 1 << 16;

/// Adds the shards of `one` in which `other` has chunks, or says why they are not known. `chunks` are those that an
/// earlier listing has found: then none is made, which could miss one that is gone.
pub(crate) fn add_covered<S: ?Sized>(
    all: &mut Listed,
    one: &Array<S>,
    other: &Opened,
    chunks: Option<impl Iterator<Item = Vec<u64>>>,
    grid: &Grid,
) -> Result<Result<(), String>, Failure> {
    let array = &other.array;
    let keys = Keys::new(array.chunk_key_encoding(), array.chunk_grid_shape());
    if let Some(why) = cannot_list(other, &keys) {
        return Ok(Err(why));
    }
    let mut failed = None;
    let mut tidy_at = FEW;
    let mut add = |chunk: &[u64]| {
        let region = array.chunk_subset_bounded(chunk);
        let shards = region.and_then(|region| Ok(one.chunks_in_array_subset(&region)?));
        match shards {
            Ok(Some(shards)) => {
                for shard in &shards.indices() {
                    let position = grid.position(&shard);
                    // Neighbours are often of one shard.
                    if position.is_some() && all.positions.last() != position.as_ref() {
                        all.positions.extend(position);
                    }
                    // A shard may have very many chunks.
                    if all.positions.len() >= tidy_at {
                        all.positions.sort_unstable();
                        all.positions.dedup();
                        tidy_at = all.positions.len().saturating_mul(2).max(FEW);
                    }
                }
            }
            Ok(None) => {}
            Err(error) => failed = Some(format!("{}: {error}", array.chunk_key(chunk))),
        }
    };
    let failures = match chunks {
        Some(chunks) => {
            chunks.for_each(|chunk| add(&chunk));
            Vec::new()
        }
        None => stored::objects(other, |object| {
            if let Some(chunk) = keys.in_grid(object.key) {
                add(&chunk);
            }
        })?,
    };
    if let Some(error) = failed {
        return Err(Failure::failed(format!(
            "cannot tell which shards have elements of the chunk {error}"
        )));
    }
    all.failures.extend(failures);
    Ok(Ok(()))
}

/// Why the chunks of an array cannot be found by a listing.
pub(crate) fn cannot_list(opened: &Opened, keys: &Keys<'_>) -> Option<String> {
    if let Some(reason) = opened.has_no_listing() {
        return Some(reason);
    }
    (!keys.are_known()).then(|| "the keys of its chunks do not spell out their indices".to_string())
}

/// The line for people about stored shards outside of the grid; `None` if there are none.
pub(crate) fn outside_text(outside: u64) -> Option<String> {
    let (are, were) = if outside == 1 {
        ("lies", "was")
    } else {
        ("lie", "were")
    };
    (outside > 0).then(|| {
        format!(
            "{} {are} outside of the grid, left by a larger array, and {were} not looked at",
            counted(outside, "stored shard")
        )
    })
}

/// The shards to work on.
pub(crate) struct Chosen {
    positions: Positions,
    /// The number of shards of the grid that were chosen, stored or not.
    looked_at: u128,
    /// The number of stored shards outside of the grid, if there was a listing.
    outside: Option<u64>,
    failures: Vec<Failure>,
}

/// A number of shards as JSON, which has no whole numbers of more than 64 bits.
pub(crate) fn json_number(shards: u128) -> Value {
    #[allow(clippy::cast_precision_loss, reason = "JSON has no better number")]
    u64::try_from(shards).map_or_else(|_| json!(shards as f64), Value::from)
}

enum Positions {
    /// In order.
    These(Vec<u128>),
    Every(Steps),
}

/// Positions of a grid, one step from each other. None of them is kept.
struct Steps {
    first: u128,
    step: u128,
    end: u128,
}

impl Steps {
    fn len(&self) -> u128 {
        self.end.saturating_sub(self.first).div_ceil(self.step)
    }

    fn get(&self, number: u64) -> Option<u128> {
        let behind = u128::from(number).checked_mul(self.step)?;
        let position = self.first.checked_add(behind)?;
        (position < self.end).then_some(position)
    }
}

impl Chosen {
    /// How many shards are worked on.
    pub(crate) fn len(&self) -> u128 {
        match &self.positions {
            Positions::These(positions) => positions.len() as u128,
            Positions::Every(steps) => steps.len(),
        }
    }

    /// The position of the shard with this number among them.
    pub(crate) fn get(&self, number: u64) -> Option<u128> {
        match &self.positions {
            Positions::These(positions) => {
                let number = usize::try_from(number).ok()?;
                positions.get(number).copied()
            }
            Positions::Every(steps) => steps.get(number),
        }
    }

    /// The positions in order, unless they are computed one by one.
    pub(crate) fn positions(&self) -> &[u128] {
        match &self.positions {
            Positions::These(positions) => positions,
            Positions::Every(_) => &[],
        }
    }

    /// Leaves out the shards that are not at `positions`, which are in order.
    pub(crate) fn only(mut self, positions: &[u128]) -> Self {
        if let Positions::These(these) = &mut self.positions {
            these.retain(|position| positions.binary_search(position).is_ok());
        }
        self
    }

    /// The number of shards of the grid that were chosen, stored or not.
    pub(crate) fn looked_at(&self) -> u128 {
        self.looked_at
    }

    /// The same number as JSON.
    pub(crate) fn looked_at_json(&self) -> Value {
        json_number(self.looked_at)
    }

    /// The number of stored shards outside of the grid, if there was a listing.
    pub(crate) fn outside(&self) -> Option<u64> {
        self.outside
    }

    /// The line for people about the stored shards outside of the grid.
    pub(crate) fn outside_text(&self) -> Option<String> {
        outside_text(self.outside.unwrap_or(0))
    }

    /// Takes the directories that could not be listed. The rest is worked on nevertheless.
    pub(crate) fn take_failures(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.failures)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zarrs::array::{ArrayBuilder, data_type};
    use zarrs::storage::store::MemoryStore;

    use super::*;

    fn args(shards: &[&[u64]], part: Option<&str>) -> ShardArgs {
        ShardArgs {
            array: "a".parse().unwrap(),
            shards: shards
                .iter()
                .map(|shard| ShardIndices(shard.to_vec()))
                .collect(),
            part: part.map(|part| part.parse().unwrap()),
        }
    }

    fn every(chosen: &Chosen) -> Vec<u128> {
        (0..).map_while(|number| chosen.get(number)).collect()
    }

    #[test]
    fn positions_are_in_c_order() {
        let grid = Grid(vec![2, 3]);
        assert_eq!(grid.len(), 6);
        for position in 0..6 {
            assert_eq!(grid.position(&grid.indices(position)), Some(position));
        }
        assert_eq!(grid.indices(4), [1, 1]);
        for wrong in [&[2, 0][..], &[0, 3], &[0], &[0, 0, 0]] {
            assert_eq!(grid.position(wrong), None);
        }
        let large = Grid(vec![u64::MAX, u64::MAX]);
        let last = vec![u64::MAX - 1, u64::MAX - 1];
        let position = large.position(&last).unwrap();
        assert_eq!((position + 1, large.indices(position)), (large.len(), last));
    }

    #[test]
    fn shards_are_chosen_by_name_part_and_listing() {
        let all = args(&[], None);
        assert_eq!(every(&all.every(&Grid(vec![]), "a test")), [0]);
        assert!(every(&all.every(&Grid(vec![4, 0]), "a test")).is_empty());
        let grid = Grid(vec![2, 3]);
        let half = args(&[], Some("1/2"));
        assert_eq!(every(&half.every(&grid, "a test")), [1, 3, 5]);
        // Each once, in order.
        let named = args(&[&[1, 1], &[1, 0], &[1, 0]], None)
            .named(&grid)
            .unwrap();
        assert_eq!((every(&named), named.looked_at()), (vec![3, 4], 2));
        let named = args(&[&[1, 0], &[1, 1]], Some("1/2")).named(&grid).unwrap();
        assert_eq!(every(&named), [3]);
        assert!(args(&[&[2, 0]], None).named(&grid).is_err());

        let large = Grid(vec![1 << 40, 1 << 40]);
        let listed = Listed {
            positions: vec![1 << 60, 7, 9, 7],
            ..Listed::default()
        };
        let chosen = args(&[], Some("1/4")).of_part(&large, listed);
        assert_eq!((every(&chosen), chosen.looked_at()), (vec![9], 1 << 78));
        let walk = args(&[], Some("3/1000000")).every(&large, "a test");
        assert_eq!((walk.get(0), walk.get(2)), (Some(3), Some(2_000_003)));
    }

    #[test]
    fn grids_that_cannot_be_numbered_are_refused() {
        let array = |shape: Vec<u64>| {
            let rank = shape.len();
            ArrayBuilder::new(shape, vec![1; rank], data_type::uint8(), 0_u8)
                .build(Arc::new(MemoryStore::new()), "/")
                .unwrap()
        };
        assert!(Grid::of(&array(vec![u64::MAX; 2])).is_ok());
        assert!(Grid::of(&array(vec![1 << 43; 3])).is_err());
        assert!(Grid::of(&array(vec![1 << 60, 0, 1 << 60])).is_ok());
    }
}
