//! Updates of part of a shard: ours by each strategy, zarrs' partial encoder, and zarrs without it,
//! alternating, each on a file of its own in the same file system.
//!
//! `cargo bench --bench partial [-- [--quick] [--in=FOLDER] FILTER…]` prints a table, checks the
//! goals, and writes `target/bench/partial.json`. A filter is a part of `one_subchunk/zstd-1/auto` and
//! the like. With `--quick` there are only a few updates, to see that it runs, and the file is
//! `target/bench/partial-quick.json`. The shards are in a temporary folder in `target/tmp`, or in
//! FOLDER, if another file system is to be measured.
//!
//! - `ours_ms`, `zarrs_partial_ms` and `zarrs_rewrite_ms` are medians, `…_quartile_ms` lower quartiles,
//!   which noise of the machine disturbs less. Before each update all rest for 2 ms. What rewrites whole shards has
//!   its own, shorter series, in turns with the others, which do not count there: discarding the old
//!   file keeps the disk busy for whoever comes next.
//! - `bytes_read`, `bytes_written` and `bytes_changed` are means over the updates of the case.
//!   Changed are the encodings of the subchunks that an update touches, and the index if it is another
//!   one afterwards. Compaction, where a codec asks for it, is not among them, and not in the medians.
//! - `…_1000` are of 1 000 updates of one subchunk, with compaction: `amplification` is what was
//!   written, over what changed; `growth` is the size of the shard at the end over its size without
//!   unused bytes, `largest` the same at its worst, `ms` the mean time with that of compaction,
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

use std::error::Error;
use std::path::PathBuf;

use serde_json::Value;

mod cases;
#[path = "../chains.rs"]
mod chains;
mod contender;
mod counting;
#[path = "../goals.rs"]
mod goals;
#[allow(unsafe_code, reason = "an allocator")]
mod heap;
mod index;
#[path = "../microscopy.rs"]
mod microscopy;
mod report;
#[path = "../results.rs"]
mod results;
mod series;

use cases::Case;
use contender::Method;
use goals::Goals;
use report::Report;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Inner codecs behind `bytes`.
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

struct Arguments {
    quick: bool,
    /// Where the shards are.
    folder: PathBuf,
    filters: Vec<String>,
}

impl Arguments {
    fn of_process() -> Self {
        let (flags, filters): (Vec<_>, Vec<_>) = std::env::args()
            .skip(1)
            .partition(|argument| argument.starts_with("--"));
        Self {
            quick: flags.iter().any(|flag| flag == "--quick"),
            folder: flags
                .iter()
                .find_map(|flag| flag.strip_prefix("--in="))
                .map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from),
            filters,
        }
    }

    /// The methods that take part: zarrs', and ours as far as the filters go. None, if none of ours.
    fn methods(&self, case: Case, chain: &Chain) -> Vec<Method> {
        let mut methods = Method::ALL.to_vec();
        methods.retain(|&method| {
            let name = format!("{}/{}/{}", case.name(), chain.name, method.name());
            !method.is_ours()
                || self.filters.is_empty()
                || self.filters.iter().any(|f| name.contains(f.as_str()))
        });
        if methods.iter().any(|method| method.is_ours()) {
            methods
        } else {
            Vec::new()
        }
    }

    /// How many updates of a case, and how many with what rewrites whole shards.
    fn rounds(&self, case: Case) -> (usize, usize) {
        match case {
            _ if self.quick => (3, 1),
            Case::OneSubchunk => (301, 9),
            Case::Slice => (61, 9),
            Case::Quarter => (25, 9),
        }
    }

    /// How many updates of one subchunk, to see how the shard grows.
    fn many(&self) -> usize {
        if self.quick { 30 } else { 1000 }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::of_process();
    report::print_head();
    let mut rows = Vec::new();
    let mut goals = Goals::default();
    for case in Case::ALL {
        for chain in &chains()? {
            let mut methods = arguments.methods(case, chain);
            if methods.is_empty() {
                continue;
            }
            let (updates, rewrites) = arguments.rounds(case);
            let run = |case, methods: &[Method], updates| {
                series::run(case, chain, methods, updates, &arguments.folder)
            };
            let rewriting = run(case, &methods, rewrites)?;
            methods.retain(|&method| method != Method::ZarrsRewrite);
            let outcomes = run(case, &methods, updates)?;
            let many = if case == Case::OneSubchunk {
                run(case, &methods, arguments.many())?
            } else {
                Vec::new()
            };
            let report = Report {
                case,
                chain,
                rewriting,
                updates,
                outcomes,
                many_updates: arguments.many(),
                many,
            };
            rows.extend(report.print()?);
            report.check(&mut goals)?;
        }
    }
    let wanted = |name: &str| {
        let filters = &arguments.filters;
        filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()))
    };
    rows.extend(index::run(
        arguments.quick,
        wanted,
        &arguments.folder,
        &mut goals,
    )?);
    goals.print("auto, and of each row of indexes");

    let name = if arguments.quick {
        "partial-quick.json"
    } else {
        "partial.json"
    };
    results::write(name, &rows)?;
    Ok(())
}
