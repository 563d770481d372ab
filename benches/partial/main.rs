//! Partial updates of a shard: ours with each strategy, zarrs' partial encoder, and zarrs without
//! it. They take turns, each on a file of its own in the same file system.
//!
//! `cargo bench --package zarrs_cuda_benches --bench partial [-- [--quick] [--in=FOLDER] FILTER…]`
//! prints a table, checks the goals, and writes `target/bench/partial.json`. A filter is a part of
//! a name like `one_subchunk/zstd-1/auto`. `--quick` makes only a few updates, as a test of the
//! benchmark, and writes `target/bench/partial-quick.json`. The shards are in a temporary folder in
//! `target/tmp`, or in FOLDER, to measure another file system.
//!
//! - `ours_ms`, `zarrs_partial_ms` and `zarrs_rewrite_ms` are medians. `…_quartile_ms` are lower
//!   quartiles, which other work on the machine disturbs less. Before each update there is a pause
//!   of 2 ms. Methods that rewrite whole shards have a shorter series of their own. The other
//!   methods take turns with them there, but do not count: the deletion of the old file slows down
//!   the next disk access.
//! - `bytes_read`, `bytes_written` and `bytes_changed` are means over the updates of the case.
//!   `bytes_changed` counts the encodings of the touched subchunks, and the index if it changed.
//!   These means and the medians exclude compaction.
//! - `…_1000` describe 1 000 updates of one subchunk, with compaction. `amplification` is written
//!   bytes over changed bytes. `growth` is the final size of the shard over its size without unused
//!   bytes, and `largest` is the worst such ratio. `ms` is the mean time with compaction,
//!   `median_ms` the median without it.
//!
//! After them come shards of many subchunks (`index.rs`), whose filters are like
//! `index/1000000/zstd-1/auto`.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "made-up data, and numbers for people"
)]

use std::path::PathBuf;

use serde_json::Value;
use zarrs_cuda_benches::arguments::Arguments;
use zarrs_cuda_benches::goals::Goals;
use zarrs_cuda_benches::{Result, chains, results};

mod cases;
mod contender;
mod counting;
#[allow(unsafe_code, reason = "an allocator")]
mod heap;
mod index;
mod report;
mod series;

use cases::Case;
use contender::Method;
use report::Report;

/// `target/tmp`.
const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// The inner codecs after `bytes`.
struct Chain {
    name: &'static str,
    codecs: Value,
    /// Whether every subchunk encodes to the same size.
    fixed_size: bool,
}

fn chains() -> Result<[Chain; 3]> {
    let chain = |name, fixed_size| -> Result<Chain> {
        Ok(Chain {
            name,
            codecs: chains::codecs(name)?,
            fixed_size,
        })
    };
    Ok([
        chain("none", true)?,
        chain("zstd-1", false)?,
        chain("blosc-lz4-shuffle", false)?,
    ])
}

/// What is measured, and where.
struct Run {
    quick: bool,
    /// The folder for the shards.
    folder: PathBuf,
    arguments: Arguments,
}

impl Run {
    fn of_process() -> Self {
        let arguments = Arguments::of_process();
        Self {
            quick: arguments.quick(),
            folder: arguments.folder(TMP),
            arguments,
        }
    }

    /// The methods that take part: zarrs', and those of ours that the filters select. Empty if the
    /// filters select none of ours.
    fn methods(&self, case: Case, chain: &Chain) -> Vec<Method> {
        let mut methods = Method::ALL.to_vec();
        methods.retain(|&method| {
            let name = format!("{}/{}/{}", case.name(), chain.name, method.name());
            !method.is_ours() || self.arguments.wants(&name)
        });
        if methods.iter().any(|method| method.is_ours()) {
            methods
        } else {
            Vec::new()
        }
    }

    /// The number of updates of a case, and the number in the series with whole rewrites.
    fn rounds(&self, case: Case) -> (usize, usize) {
        match case {
            _ if self.quick => (3, 1),
            Case::OneSubchunk => (301, 9),
            Case::Slice => (61, 9),
            Case::Quarter => (25, 9),
        }
    }

    /// The number of updates of one subchunk in the test of the shard's growth.
    fn many(&self) -> usize {
        if self.quick { 30 } else { 1000 }
    }
}

fn main() -> Result<()> {
    let run = Run::of_process();
    report::print_head();
    let mut rows = Vec::new();
    let mut goals = Goals::default();
    for case in Case::ALL {
        for chain in &chains()? {
            let mut methods = run.methods(case, chain);
            if methods.is_empty() {
                continue;
            }
            let (updates, rewrites) = run.rounds(case);
            let measure = |case, methods: &[Method], updates| {
                series::run(case, chain, methods, updates, &run.folder)
            };
            let rewriting = measure(case, &methods, rewrites)?;
            methods.retain(|&method| method != Method::ZarrsRewrite);
            let outcomes = measure(case, &methods, updates)?;
            let many = if case == Case::OneSubchunk {
                measure(case, &methods, run.many())?
            } else {
                Vec::new()
            };
            let report = Report {
                case,
                chain,
                rewriting,
                updates,
                outcomes,
                many_updates: run.many(),
                many,
            };
            rows.extend(report.print()?);
            report.check(&mut goals)?;
        }
    }
    let wanted = |name: &str| run.arguments.wants(name);
    rows.extend(index::run(run.quick, wanted, &run.folder, &mut goals)?);
    goals.print("auto, and of each row of indexes");

    let name = if run.quick {
        "partial-quick.json"
    } else {
        "partial.json"
    };
    results::write(TMP, name, &rows)?;
    Ok(())
}
