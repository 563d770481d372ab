//! Shards with access by subchunk (`SparseShardStore`): updates, reads, and consolidation.
//!
//! `cargo bench --package zarrs_cuda_benches --bench sparse [-- [--quick] [--in=FOLDER] FILTER…]`
//! prints a table, checks the goals, and writes `target/bench/sparse.json`. A filter is a part of a
//! name like `update/none`. `--quick` has only a few rounds, as a test of the benchmark, and the
//! file is `sparse-quick.json`. Arrays are in a temporary folder in `target/tmp` or FOLDER, in
//! zarrs' `FilesystemStore`, which syncs its files.
//!
//! The arrays are uint16 in shards of 256³ with subchunks of 32³. The contenders take turns. Each
//! number is the median of the rounds, after one that does not count.
//!
//! - `update`: random subchunks stored per second through `Array::store_chunk` of the sparse array,
//!   which adds to the frame. The reference is `store_array_subset` of the same box of the sharded
//!   array: without a partial encoder (`rewrite`: the whole shard is read and stored), with zarrs'
//!   (`zarrs partial`), and with this crate's (`partial`).
//! - `read`: four shards by one `retrieve_array_subset` of the sparse array, in GB/s of elements.
//!   The reference is the same read of the sharded array through this crate's codec (`shards`) and
//!   zarrs' (`zarrs`). There are `no` frames, or frames that hold `half` of the subchunks. With
//!   `listed once` a listing is reused for a second; otherwise each read of a subchunk lists. With
//!   `reader` the array is read by `SparseShardStore::reader`, and the references are this crate's
//!   reader of the sharded array (`shards, reader`), `shards` as above, and the first row's read of
//!   the sparse array (`adapter`).
//! - `consolidate`: a shard with half of its subchunks in its frame, in GB/s of the resulting
//!   shard. The reference is a plain copy of that shard: read, written to a temporary, synced,
//!   renamed.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "made-up data, and rates for people"
)]

use serde_json::{Value, json};
use zarrs_cuda_benches::arguments::Arguments;
use zarrs_cuda_benches::goals::Goals;
use zarrs_cuda_benches::{Result, results};

mod consolidate;
mod read;
mod sharded;
mod update;

use sharded::Sharded;

const CHAINS: [&str; 3] = ["none", "zstd-1", "blosc-lz4"];
/// `target/tmp`.
const TMP: &str = env!("CARGO_TARGET_TMPDIR");

/// Our rate and a reference, in the same unit.
struct Row {
    case: String,
    chain: &'static str,
    unit: &'static str,
    ours: f64,
    reference: f64,
    reference_name: &'static str,
    /// The ratio that meets the goal.
    goal: Option<f64>,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours / self.reference
    }

    fn print(&self) {
        println!(
            "{:24} {:10} {:>10.2} {:>10.2} {:8} {:14} {:>8.2}",
            self.case,
            self.chain,
            self.ours,
            self.reference,
            self.unit,
            self.reference_name,
            self.ratio()
        );
    }

    fn check(&self, goals: &mut Goals) {
        if let Some(goal) = self.goal {
            let what = format!("{}/{} over {}", self.case, self.chain, self.reference_name);
            goals.at_least(&what, self.ratio(), goal);
        }
    }

    fn json(&self) -> Value {
        json!({
            "case": self.case,
            "chain": self.chain,
            "unit": self.unit,
            "ours": self.ours,
            "reference": self.reference,
            "reference_name": self.reference_name,
            "ratio": self.ratio(),
        })
    }
}

fn median(values: Vec<f64>) -> f64 {
    zarrs_cuda_benches::median(values).unwrap_or(f64::NAN)
}

fn main() -> Result<()> {
    let arguments = Arguments::of_process();
    let (quick, folder) = (arguments.quick(), arguments.folder(TMP));
    let rounds = if quick { 1 } else { 7 };

    println!(
        "{:24} {:10} {:>10} {:>10} {:8} {:14} {:>8}",
        "case", "chain", "ours", "reference", "unit", "reference", "ratio"
    );
    let mut rows = Vec::new();
    for chain in CHAINS {
        for (case, run) in [
            (
                "update",
                update::run as fn(&Sharded, usize) -> Result<Vec<Row>>,
            ),
            ("read", read::run),
            ("consolidate", consolidate::run),
        ] {
            if arguments.wants(&format!("{case}/{chain}")) {
                let sharded = Sharded::new(chain, &folder)?;
                let measured = run(&sharded, rounds)?;
                measured.iter().for_each(Row::print);
                rows.extend(measured);
            }
        }
    }
    let mut goals = Goals::default();
    for row in &rows {
        row.check(&mut goals);
    }
    goals.print("sparse shards");
    let name = if quick {
        "sparse-quick.json"
    } else {
        "sparse.json"
    };
    let rows: Vec<Value> = rows.iter().map(Row::json).collect();
    println!(
        "\nwritten to {}",
        results::write(TMP, name, &rows)?.display()
    );
    Ok(())
}
