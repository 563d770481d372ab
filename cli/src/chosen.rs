//! Chooses the shards of an array to work on: the named ones, or the stored ones, by a listing.

use std::io;

use indicatif::HumanCount;
use serde_json::{Value, json};
use zarrs_cuda::maintenance::ArrayLease;
use zarrs_cuda_convert::grid::{Grid, Listed, listed};
use zarrs_cuda_convert::open::{Opened, Place};
use zarrs_cuda_convert::words::{counted, shape_text};
use zarrs_cuda_convert::{Failure, Part};

use crate::arguments::ShardIndices;
use crate::outcome::Outcome;

/// A sentence for people about damage that the array itself cannot mend.
pub(crate) const OTHER_DAMAGE: &str = "Other damage is made again from the source, by the command that made the array: \
     `zarrs-cuda reencode IN OUT …` with --resume --verify if OUT was made in parts, which keeps what is whole, else with --overwrite";

/// Adds to `outcome` what to do about damage that the array itself cannot mend, and sets the exit code for it.
pub(crate) fn with_other_damage(outcome: Outcome) -> Outcome {
    outcome
        .with_note(&format!("help: {OTHER_DAMAGE}"))
        .not_well()
}

/// An array, and which of its shards.
#[derive(clap::Args, Debug)]
pub(crate) struct ShardArgs {
    /// A sharded array
    pub(crate) array: Place,
    /// Only these shards, by their indices in the grid of shards [default: all]
    shards: Vec<ShardIndices>,
    /// Only the part I of N of the shards, as 3/16: every Nth of the grid
    #[arg(long, value_name = "I/N")]
    part: Option<Part>,
}

impl ShardArgs {
    /// Returns the same choice of the shards of `array`. Shards that are named are those of one array.
    pub(crate) fn of(&self, array: Place) -> Self {
        Self {
            array,
            shards: Vec::new(),
            part: self.part,
        }
    }

    /// Returns the chosen shards of `opened` that may be stored: the named ones, or the stored ones that a
    /// listing finds. If the store cannot be listed, returns every shard of the grid.
    pub(crate) fn chosen(&self, opened: &Opened, grid: &Grid) -> Result<Chosen, Failure> {
        if !self.shards.is_empty() {
            return self.named(grid);
        }
        match listed(opened, grid)? {
            Ok(listed) => Ok(self.of_part(grid, listed)),
            Err(why) => Ok(self.every(grid, &why)),
        }
    }

    /// Takes the lease for changing these shards: for the whole array, or for the part. `doing` names the
    /// change.
    pub(crate) fn lease(&self, opened: &Opened, doing: &str) -> Result<ArrayLease, Failure> {
        let lease = match (&opened.place, &opened.stores.conditional, self.part) {
            (Place::Directory(path), _, None) => ArrayLease::take(path),
            (Place::Directory(path), _, Some(part)) => {
                ArrayLease::take_part(path, part.number(), part.of())
            }
            (Place::Url(_), Some(store), part) => {
                let (store, array) = (store.clone(), opened.array.path());
                let taken = match part {
                    None => ArrayLease::take_in(store, array),
                    Some(part) => ArrayLease::take_part_in(store, array, part.number(), part.of()),
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

    /// Returns a line for people if `lease` could not be held, so that it does not keep other processes away.
    pub(crate) fn lease_text(lease: Option<&ArrayLease>) -> Option<String> {
        let is_missing = lease.is_some_and(|lease| !lease.is_held());
        is_missing.then(|| {
            "no lease: other processes that changed the array meanwhile were not refused".to_owned()
        })
    }

    /// Returns whether the user named the shards.
    pub(crate) fn are_named(&self) -> bool {
        !self.shards.is_empty()
    }

    /// Returns the beginning of a sentence about the chosen shards, with a space behind it; nothing if these are all.
    pub(crate) fn some_are(&self) -> String {
        match (self.are_named(), self.part) {
            (false, None) => String::new(),
            (false, Some(part)) => format!("part {part} of the shards is "),
            (true, None) => "the named shards are ".to_owned(),
            (true, Some(part)) => format!("the named shards of part {part} are "),
        }
    }

    /// Adds to `outcome` which shards it is about.
    pub(crate) fn named_in(&self, outcome: Outcome) -> Outcome {
        let part = self.part.map(|part| part.to_string());
        let note = part.as_ref().map(|part| {
            format!("this is part {part} of the shards: the others were not looked at")
        });
        let outcome = outcome.with("part", json!(part));
        let outcome = outcome.with("named_shards", json!(self.are_named()));
        match note {
            Some(note) => outcome.with_note(&note),
            None => outcome,
        }
    }

    fn is_of_part(&self, position: u128) -> bool {
        self.part
            .is_none_or(|part| position % u128::from(part.of().get()) == u128::from(part.number()))
    }

    /// Returns the named shards, each once.
    pub(crate) fn named(&self, grid: &Grid) -> Result<Chosen, Failure> {
        let positions = self.shards.iter().map(|ShardIndices(shard)| {
            grid.position(shard).ok_or_else(|| {
                let last = grid.counts().iter().map(|count| count.saturating_sub(1));
                let last: Vec<_> = last.collect();
                let failure = Failure::usage(format!(
                    "{} is not a shard: the grid of shards is {}",
                    shape_text(shard),
                    shape_text(grid.counts())
                ));
                if grid.counts().contains(&0) {
                    return failure; // the grid has no shards
                }
                failure.with_remedy(format!("the last shard is {}", shape_text(&last)))
            })
        });
        let mut positions = positions.collect::<Result<Vec<_>, _>>()?;
        positions.retain(|&position| self.is_of_part(position));
        // A shard that is named twice counts once: two threads must not work on it.
        positions.sort_unstable();
        positions.dedup();
        Ok(Chosen {
            looked_at: positions.len() as u128,
            positions: Positions::These(positions),
            outside: None,
            failures: Vec::new(),
        })
    }

    /// Returns those shards of a listing that belong to the part. The listing may have any order.
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

    /// Returns every shard of the grid that belongs to the part. Tells the user their number, and `why` the
    /// store is asked for each of them.
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
            (u128::from(part.number()), u128::from(part.of().get()))
        });
        let end = grid.len();
        Steps { first, step, end }
    }
}

/// Returns a line for people about stored shards outside of the grid; `None` if there are none.
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
    /// The number of stored shards outside of the grid; `None` if the store was not listed.
    outside: Option<u64>,
    failures: Vec<Failure>,
}

/// Returns a number of shards as JSON: as a double if it has more than 64 bits.
pub(crate) fn json_number(shards: u128) -> Value {
    #[allow(clippy::cast_precision_loss, reason = "JSON has no better number")]
    u64::try_from(shards).map_or_else(|_| json!(shards as f64), Value::from)
}

enum Positions {
    /// Some positions, sorted.
    These(Vec<u128>),
    Every(Steps),
}

/// Positions of a grid at equal steps. They are computed, and not stored.
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
    /// Returns the number of shards to work on.
    pub(crate) fn len(&self) -> u128 {
        match &self.positions {
            Positions::These(positions) => positions.len() as u128,
            Positions::Every(steps) => steps.len(),
        }
    }

    /// Returns the position in the grid of the shard with the index `number` among the chosen ones.
    pub(crate) fn get(&self, number: u64) -> Option<u128> {
        match &self.positions {
            Positions::These(positions) => {
                let number = usize::try_from(number).ok()?;
                positions.get(number).copied()
            }
            Positions::Every(steps) => steps.get(number),
        }
    }

    /// Returns the positions, sorted; none if they are computed one by one.
    pub(crate) fn positions(&self) -> &[u128] {
        match &self.positions {
            Positions::These(positions) => positions,
            Positions::Every(_) => &[],
        }
    }

    /// Keeps only the shards at `positions`, which are sorted.
    pub(crate) fn only(mut self, positions: &[u128]) -> Self {
        if let Positions::These(these) = &mut self.positions {
            these.retain(|position| positions.binary_search(position).is_ok());
        }
        self
    }

    /// Returns the number of shards of the grid that were chosen, stored or not.
    pub(crate) fn looked_at(&self) -> u128 {
        self.looked_at
    }

    /// Returns the number of [`looked_at`](Self::looked_at) as JSON.
    pub(crate) fn looked_at_json(&self) -> Value {
        json_number(self.looked_at)
    }

    /// Returns the number of stored shards outside of the grid; `None` if the store was not listed.
    pub(crate) fn outside(&self) -> Option<u64> {
        self.outside
    }

    /// Returns a line for people about the stored shards outside of the grid; `None` if there are none.
    pub(crate) fn outside_text(&self) -> Option<String> {
        outside_text(self.outside.unwrap_or(0))
    }

    /// Takes the failures for directories that could not be listed. The work goes on with the shards that
    /// were found.
    pub(crate) fn take_failures(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.failures)
    }
}

#[cfg(test)]
mod tests {
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
    fn shards_are_chosen_by_name_part_and_listing() {
        let all = args(&[], None);
        assert_eq!(every(&all.every(&Grid(vec![]), "a test")), [0]);
        assert!(every(&all.every(&Grid(vec![4, 0]), "a test")).is_empty());
        let grid = Grid(vec![2, 3]);
        let half = args(&[], Some("2/2"));
        assert_eq!(every(&half.every(&grid, "a test")), [1, 3, 5]);
        // Each once, in order.
        let named = args(&[&[1, 1], &[1, 0], &[1, 0]], None)
            .named(&grid)
            .unwrap();
        assert_eq!((every(&named), named.looked_at()), (vec![3, 4], 2));
        let named = args(&[&[1, 0], &[1, 1]], Some("2/2")).named(&grid).unwrap();
        assert_eq!(every(&named), [3]);
        assert!(args(&[&[2, 0]], None).named(&grid).is_err());

        let large = Grid(vec![1 << 40, 1 << 40]);
        let listed = Listed {
            positions: vec![1 << 60, 7, 9, 7],
            ..Listed::default()
        };
        let chosen = args(&[], Some("2/4")).of_part(&large, listed);
        assert_eq!((every(&chosen), chosen.looked_at()), (vec![9], 1 << 78));
        let walk = args(&[], Some("4/1000000")).every(&large, "a test");
        assert_eq!((walk.get(0), walk.get(2)), (Some(3), Some(2_000_003)));
    }
}
