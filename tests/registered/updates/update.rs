//! An update of a shard, as what it does to the store: up to some byte of it, perhaps.

use std::collections::BTreeSet;

use zarrs_cuda::WriteStrategy;

use super::Location;
use super::case::{Case, Chain};
use zarrs_cuda_testing::Rng;
use zarrs_cuda_testing::stores::watched::Call;

/// Up to how many bytes an update may be stopped after every one of them.
const EVERY: usize = 600;

/// The elements of a unit: what is lost or kept as one. That is a subchunk, and a subchunk of an inner
/// shard if that is updated in place.
pub(crate) type Unit = Vec<u8>;

/// An update of a shard, and what it does to the store.
pub(crate) struct Update {
    pub(crate) strategy: WriteStrategy,
    /// The object before it.
    pub(crate) old: Option<Vec<u8>>,
    pub(crate) calls: Vec<Call>,
    /// Each unit before and after it, and whether it is to change it.
    pub(crate) before: Vec<Unit>,
    pub(crate) after: Vec<Unit>,
    pub(crate) touched: Vec<bool>,
}

/// What a unit reads as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// As it was, and as it is to be: that is the same.
    Same,
    Old,
    New,
    /// Neither, or not at all.
    Lost,
}

/// How an update changes a shard; every kind has to be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Creates,
    /// Subchunks alone.
    DataOnly,
    Grows,
    /// The index is rewritten where it is.
    Rewrites,
}

impl Update {
    pub(crate) fn steps(&self) -> usize {
        self.calls.iter().map(Call::steps).sum()
    }

    /// The object after so many steps of the update.
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

    /// After how many steps to stop: each number for some updates, and for others those near the
    /// borders of what is written and a few more.
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
                // Ranges may hold several things: a record begins or ends 64 bytes from a border.
                near(border);
                near((border + 64).min(total));
                border += bytes.len();
                near(border.saturating_sub(64));
            }
            near(border);
        }
        stops
    }

    /// Whether what was touched must be as it was, or as it was to be.
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

/// An object after so many steps of `calls`.
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
