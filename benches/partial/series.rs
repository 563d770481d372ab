//! Applies the same updates to several contenders.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use zarrs_cuda_benches::Result;
use zarrs_cuda_benches::microscopy::Microscopy;

use crate::Chain;
use crate::cases::{Case, SHARD};
use crate::contender::{Contender, Cost, Method};

/// The results of one contender in a series.
pub(crate) struct Outcome {
    pub(crate) method: Method,
    costs: Vec<Cost>,
    /// How often the shard was compacted.
    pub(crate) compactions: usize,
    compacted: u64,
    compaction_seconds: f64,
    /// The final size of the shard, relative to its size without unused bytes.
    pub(crate) growth: f64,
    /// The largest such ratio before a compaction.
    pub(crate) largest: f64,
}

impl Outcome {
    pub(crate) fn median_ms(&self) -> f64 {
        self.quantile_ms(0.5)
    }

    /// The lower quartile, which other work on the machine disturbs less.
    pub(crate) fn quartile_ms(&self) -> f64 {
        self.quantile_ms(0.25)
    }

    fn quantile_ms(&self, quantile: f64) -> f64 {
        let mut all: Vec<f64> = self.costs.iter().map(|cost| cost.seconds * 1e3).collect();
        all.sort_by(f64::total_cmp);
        all[(all.len() as f64 * quantile) as usize]
    }

    /// The mean time of an update, including compaction.
    pub(crate) fn mean_ms(&self) -> f64 {
        let updates: f64 = self.costs.iter().map(|cost| cost.seconds).sum();
        (updates + self.compaction_seconds) * 1e3 / self.costs.len() as f64
    }

    /// The mean of the bytes that an update read, without compaction.
    pub(crate) fn read(&self) -> f64 {
        self.mean(|cost| cost.traffic.read)
    }

    /// The mean of the bytes that an update wrote, without compaction.
    pub(crate) fn written(&self) -> f64 {
        self.mean(|cost| cost.traffic.written)
    }

    /// The mean of the bytes that an update changed.
    pub(crate) fn changed(&self) -> f64 {
        self.mean(|cost| cost.changed)
    }

    /// The written bytes, including compaction, relative to the changed bytes.
    pub(crate) fn amplification(&self) -> f64 {
        let compacted = self.compacted as f64 / self.costs.len() as f64;
        (self.written() + compacted) / self.changed()
    }

    fn mean(&self, of: impl Fn(&Cost) -> u64) -> f64 {
        self.costs.iter().map(of).sum::<u64>() as f64 / self.costs.len() as f64
    }
}

/// Applies the same `updates` random updates to each of `methods`, after one that does not count. A
/// contender that asks for compaction gets it after the update.
pub(crate) fn run(
    case: Case,
    chain: &Chain,
    methods: &[Method],
    updates: usize,
    folder: &Path,
) -> Result<Vec<Outcome>> {
    let folder = TempDir::new_in(folder)?;
    let mut source = Microscopy::new();
    let mut shard = source.volume([0; 3], [SHARD; 3], 5);
    let mut contenders = methods
        .iter()
        .map(|&method| contend(method, &chain.codecs, folder.path(), &shard))
        .collect::<Result<Vec<_>>>()?;
    for round in 0..=updates {
        let update = case.update(&mut source);
        update.apply(&mut shard);
        // Shuffles the order each time: the contender after a large write may have to wait for the
        // disk.
        for left in (2..=contenders.len()).rev() {
            contenders.swap(left - 1, (source.random() % left as u64) as usize);
        }
        for (contender, outcome) in &mut contenders {
            let cost = contender.update(&update)?;
            let growth = contender.growth()?;
            let compaction = contender.compact_if_asked()?;
            if round == 0 {
                continue;
            }
            outcome.costs.push(cost);
            outcome.largest = outcome.largest.max(growth);
            if let Some(compaction) = compaction {
                outcome.compactions += 1;
                outcome.compacted += compaction.written;
                outcome.compaction_seconds += compaction.seconds;
            }
        }
    }
    let mut outcomes = Vec::new();
    for (contender, mut outcome) in contenders {
        if !contender.holds(&shard, &chain.codecs)? {
            let method = outcome.method.name();
            return Err(format!(
                "{} of {}: after {updates} updates by {method} zarrs reads something else",
                case.name(),
                chain.name
            )
            .into());
        }
        outcome.growth = contender.growth()?;
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

fn contend(
    method: Method,
    codecs: &Value,
    folder: &Path,
    shard: &[u8],
) -> Result<(Contender, Outcome)> {
    let outcome = Outcome {
        method,
        costs: Vec::new(),
        compactions: 0,
        compacted: 0,
        compaction_seconds: 0.0,
        growth: 0.0,
        largest: 0.0,
    };
    Ok((Contender::new(method, codecs, folder, shard)?, outcome))
}
