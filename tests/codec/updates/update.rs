//! An update of a shard as a list of calls to the store, which can be cut at any byte.

use std::collections::BTreeSet;

use zarrs_cuda::WriteStrategy;

use super::Location;
use super::case::{Case, Chain};
use zarrs_cuda_testing::Rng;
use zarrs_cuda_testing::stores::watched::Call;

/// The largest number of bytes at which an update may be stopped after every single byte.
const EVERY: usize = 600;

/// The elements of a unit, which is lost or kept as one. A unit is a subchunk, or a subchunk of an
/// inner shard if inner shards are updated in place.
pub(crate) type Unit = Vec<u8>;

/// An update of a shard, and its calls to the store.
pub(crate) struct Update {
    pub(crate) strategy: WriteStrategy,
    /// The object before the update.
    pub(crate) old: Option<Vec<u8>>,
    pub(crate) calls: Vec<Call>,
    /// For each unit: its old elements, its new elements, and whether the update writes it.
    pub(crate) before: Vec<Unit>,
    pub(crate) after: Vec<Unit>,
    pub(crate) touched: Vec<bool>,
}

/// The state of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// The old and new elements, which are equal.
    Same,
    Old,
    New,
    /// Other elements, or unreadable.
    Lost,
}

/// How an update changes a shard. Every kind must occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Creates,
    /// Writes only subchunks.
    DataOnly,
    Grows,
    /// Rewrites the index in place.
    Rewrites,
}

impl Update {
    pub(crate) fn steps(&self) -> usize {
        self.calls.iter().map(Call::steps).sum()
    }

    /// The object after this many steps of the update.
    pub(crate) fn torn(&self, steps: usize) -> Option<Vec<u8>> {
        torn(self.old.clone(), &self.calls, steps)
    }

    pub(crate) fn kind(&self, case: &Case) -> Kind {
        let (old, new) = (self.old.as_ref(), self.torn(self.steps()));
        let (Some(old), Some(new)) = (old, new) else {
            return Kind::Creates;
        };
        let len = case.index.size(case.shards().num_subchunks());
        let index = match case.index.location {
            Location::Start => 0..len,
            Location::End => old.len() - len..old.len(),
        };
        if new.len() > old.len() {
            Kind::Grows
        } else if old[index.clone()] == new[index] {
            Kind::DataOnly
        } else {
            Kind::Rewrites
        }
    }

    /// The numbers of steps after which to stop. For some small updates these are all numbers. For
    /// others they are a few numbers, and those near the borders of written ranges.
    pub(crate) fn stops(&self, rng: &mut Rng) -> BTreeSet<usize> {
        let total = self.steps();
        if total <= EVERY && rng.one_in(4) {
            return (0..=total).collect();
        }
        let mut stops: BTreeSet<usize> = (0..20).map(|_| below(rng, total)).collect();
        let mut near = |border: usize| {
            for step in border.saturating_sub(3)..=(border + 3).min(total) {
                stops.insert(step);
            }
        };
        near(0);
        let mut border = 0;
        for call in &self.calls {
            let Call::Write(ranges) = call else {
                border += call.steps();
                near(border);
                continue;
            };
            for (_, bytes) in ranges {
                // Ranges may hold several parts: a record starts or ends 64 bytes from a border.
                near(border);
                near((border + 64).min(total));
                border += bytes.len();
                near(border.saturating_sub(64));
            }
            near(border);
        }
        stops
    }

    /// Whether touched units must be either all old or all new.
    pub(crate) fn is_safe(&self, chain: Chain) -> bool {
        match self.strategy {
            WriteStrategy::Append => true,
            WriteStrategy::Auto => !chain.in_place,
            _ => false,
        }
    }
}

pub(crate) fn below(rng: &mut Rng, n: usize) -> usize {
    usize::try_from(rng.below(n as u64)).unwrap()
}

/// The object after this many steps of `calls`.
pub(crate) fn torn(
    mut object: Option<Vec<u8>>,
    calls: &[Call],
    mut steps: usize,
) -> Option<Vec<u8>> {
    for call in calls {
        let done = steps.min(call.steps());
        call.apply(&mut object, done);
        steps -= done;
    }
    object
}
