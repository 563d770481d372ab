//! The report of one case and one chain.

use serde_json::{Value, json};
use zarrs_cuda::WriteStrategy;
use zarrs_cuda_benches::Result;
use zarrs_cuda_benches::goals::Goals;

use crate::Chain;
use crate::cases::Case;
use crate::contender::Method;
use crate::series::Outcome;

/// The results of every method for the same random updates of one case.
pub(crate) struct Report<'a> {
    pub(crate) case: Case,
    pub(crate) chain: &'a Chain,
    /// The series with methods that rewrite whole shards.
    pub(crate) rewriting: Vec<Outcome>,
    /// The number of updates in the series without these methods, and its results.
    pub(crate) updates: usize,
    pub(crate) outcomes: Vec<Outcome>,
    /// The number of updates of one subchunk in the test of the shard's growth, and its results.
    pub(crate) many_updates: usize,
    pub(crate) many: Vec<Outcome>,
}

pub(crate) fn print_head() {
    println!(
        "{:12} {:17} {:8} {:>8} {:>8} {:>8} {:>7} {:>8} {:>8} {:>8} {:>6} {:>6} {:>7}",
        "case",
        "chain",
        "strategy",
        "ours ms",
        "zarrs ms",
        "whole ms",
        "x zarrs",
        "read",
        "written",
        "changed",
        "amplif",
        "growth",
        "largest"
    );
}

impl Report<'_> {
    /// Prints the results of our strategies, and returns their rows.
    pub(crate) fn print(&self) -> Result<Vec<Value>> {
        let zarrs = find(&self.outcomes, Method::ZarrsPartial)?;
        let zarrs_partial_ms = zarrs.median_ms();
        let zarrs_rewrite_ms = find(&self.rewriting, Method::ZarrsRewrite)?.median_ms();
        let zarrs_many = find(&self.many, Method::ZarrsPartial).ok();
        let mut rows = Vec::new();
        for method in Method::ALL {
            let Ok(ours) = find(&self.outcomes, method) else {
                continue;
            };
            if !method.is_ours() {
                continue;
            }
            let many = find(&self.many, method).ok();
            let ours_ms = ours.median_ms();
            let amplification = many.map(Outcome::amplification);
            let growth = many.map(|many| many.growth);
            let largest = many.map(|many| many.largest);
            println!(
                "{:12} {:17} {:8} {ours_ms:8.3} {zarrs_partial_ms:8.3} {zarrs_rewrite_ms:8.3} \
                 {:7.2} {:8.0} {:8.0} {:8.0} {:>6} {:>6} {:>7}",
                self.case.name(),
                self.chain.name,
                method.name(),
                ours_ms / zarrs_partial_ms,
                ours.read(),
                ours.written(),
                ours.changed(),
                text(amplification),
                text(growth),
                text(largest),
            );
            rows.push(json!({
                "case": self.case.name(), "chain": self.chain.name, "strategy": method.name(),
                "updates": self.updates,
                "ours_ms": ours_ms,
                "zarrs_partial_ms": zarrs_partial_ms,
                "zarrs_rewrite_ms": zarrs_rewrite_ms,
                "ours_quartile_ms": ours.quartile_ms(),
                "zarrs_partial_quartile_ms": zarrs.quartile_ms(),
                "bytes_read": ours.read(),
                "bytes_written": ours.written(),
                "bytes_changed": ours.changed(),
                "zarrs_bytes_read": zarrs.read(),
                "zarrs_bytes_written": zarrs.written(),
                "updates_1000": many.map(|_| self.many_updates),
                "amplification_1000": amplification,
                "growth_1000": growth,
                "largest_1000": largest,
                "compactions_1000": many.map(|many| many.compactions),
                "bytes_read_1000": many.map(Outcome::read),
                "bytes_written_1000": many.map(Outcome::written),
                "bytes_changed_1000": many.map(Outcome::changed),
                "ms_1000": many.map(Outcome::mean_ms),
                "median_ms_1000": many.map(Outcome::median_ms),
                "zarrs_amplification_1000": zarrs_many.map(Outcome::amplification),
                "zarrs_growth_1000": zarrs_many.map(|many| many.growth),
                "zarrs_ms_1000": zarrs_many.map(Outcome::mean_ms),
                "zarrs_median_ms_1000": zarrs_many.map(Outcome::median_ms),
            }));
        }
        Ok(rows)
    }

    /// Compares the results of `Auto` with the goals.
    pub(crate) fn check(&self, goals: &mut Goals) -> Result<()> {
        let Ok(auto) = find(&self.outcomes, Method::Ours(WriteStrategy::Auto)) else {
            return Ok(());
        };
        let what = |what: &str| format!("{}/{}, {what}", self.case.name(), self.chain.name);
        let zarrs_partial = find(&self.outcomes, Method::ZarrsPartial)?.median_ms();
        let zarrs_rewrite = find(&self.rewriting, Method::ZarrsRewrite)?.median_ms();
        let time = what("time over that of zarrs' partial encoder");
        goals.at_most(&time, auto.median_ms() / zarrs_partial, 1.0);
        if self.case == Case::OneSubchunk {
            let time = what("time of zarrs' rewriting over ours");
            goals.at_least(&time, zarrs_rewrite / auto.median_ms(), 20.0);
        }
        let written = what("written over changed, without compaction");
        goals.at_most(&written, auto.written() / auto.changed(), 1.1);

        let Ok(auto) = find(&self.many, Method::Ours(WriteStrategy::Auto)) else {
            return Ok(());
        };
        let (size, amplification) = if self.chain.fixed_size {
            (1.0, 1.1)
        } else {
            (1.34, 4.5)
        };
        let many = |of: &str| what(&format!("{} updates, {of}", self.many_updates));
        let written = many("written over changed, without compaction");
        goals.at_most(&written, auto.written() / auto.changed(), 1.1);
        goals.at_most(&many("largest over compact size"), auto.largest, size);
        let amplified = many("written over changed, with compaction");
        goals.at_most(&amplified, auto.amplification(), amplification);
        Ok(())
    }
}

fn find(outcomes: &[Outcome], method: Method) -> Result<&Outcome> {
    let found = outcomes.iter().find(|outcome| outcome.method == method);
    Ok(found.ok_or_else(|| format!("{} took no part", method.name()))?)
}

fn text(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_string(), |value| format!("{value:.3}"))
}
