//! `zarrs-cuda compact`: stores shards again, without their unused bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use zarrs_cuda::maintenance::{ArrayLease, Compaction};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::grid::Grid;
use zarrs_cuda_convert::open::{self, Opened};
use zarrs_cuda_convert::words::{bytes_text, counted, shape_text};

use crate::chosen::ShardArgs;
use crate::common::Common;
use crate::outcome::Outcome;
use crate::replacing::ReplacedShards;
use crate::work::on_each;

/// Store shards again without their unused bytes
///
/// Nothing else may write the array meanwhile: a writer that extends it is refused. No subchunk is decoded.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    shards: ShardArgs,
    /// How much of a shard has to be unused, as a fraction of its size
    #[arg(long, value_name = "FRACTION", default_value = "0.25", value_parser = fraction)]
    unused: f64,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

fn fraction(text: &str) -> Result<f64, String> {
    let fraction = text
        .parse()
        .ok()
        .filter(|fraction| (0.0..=1.0).contains(fraction));
    fraction.ok_or_else(|| "it is a number from 0 to 1".to_string())
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let _registration = zarrs_cuda::register(common.options())?;
    let opened = open::array(&args.shards.array)?;
    let lease = if args.dry_run {
        None
    } else {
        opened.place.must_be_written("compact")?;
        opened.must_be_plain("compact")?;
        Some(args.shards.lease(&opened, "compact")?)
    };
    let shards = open::shards(&opened)?;
    let replacing = ReplacedShards::of(&opened)?;
    let grid = Grid::of(&opened.array)?;
    let mut chosen = args.shards.chosen(&opened, &grid)?;
    let stored = Sizes::default();
    let budget = common.budget();
    let mut done = on_each(
        ["compacting", "no shard was left torn"],
        &grid,
        &chosen,
        common.threads(), // each thread waits for its memory
        |shard| {
            let Some(usage) = shards.usage(shard)? else {
                return Ok(None);
            };
            let Some(unused) = usage.unused else {
                return Err(invalid_index(&opened, shard));
            };
            #[allow(clippy::cast_precision_loss, reason = "a fraction")]
            let is_enough = unused as f64 > args.unused * usage.size as f64;
            if !is_enough || unused == 0 {
                stored.add(usage.size, usage.size);
                return Ok(None);
            }
            let doing = format!(
                "compact the shard {} of {}",
                shape_text(shard),
                opened.place
            );
            // Memory for the stored shard and the new one.
            let _taken = budget.take(doing, usage.size.saturating_add(usage.size - unused))?;
            let compaction = if args.dry_run {
                shards.preview_compact(shard)?
            } else {
                replacing.compact(shard)?
            };
            if let Some(Compaction { before, after, .. }) = compaction {
                stored.add(before, after);
            }
            Ok(compaction.filter(|compaction| compaction.after < compaction.before))
        },
    )?;

    let mut lines = Vec::new();
    let mut rows = Vec::new();
    let mut unknown = 0_u64;
    for (shard, compaction) in &done.results {
        lines.push(in_words(shard, compaction, args.dry_run));
        unknown = unknown.saturating_add(compaction.unknown);
        rows.push(json!({
            "shard": shard, "before": compaction.before, "after": compaction.after,
            "unknown": compaction.unknown,
        }));
    }
    let [shards, before, after] = stored.get();
    lines.push(format!(
        "{} of {} {}: {} -> {}",
        rows.len(),
        counted(shards + done.failures.len() as u64, "stored shard"),
        if args.dry_run {
            "to compact"
        } else {
            "compacted"
        },
        bytes_text(before),
        bytes_text(after)
    ));
    if unknown > 0 {
        let verb = if args.dry_run { "would be" } else { "were" };
        lines.push(format!(
            "{} {verb} dropped that no index in the shards knew: of updates that were interrupted, or whose index was \
             overwritten since, or of another program",
            counted(unknown, "byte")
        ));
    }
    lines.extend(chosen.outside_text());
    lines.extend(ShardArgs::lease_text(lease.as_ref()));
    let json = json!({
        "array": opened.place.to_string(),
        "dry_run": args.dry_run,
        "lease": lease.as_ref().map(ArrayLease::is_held),
        "stored": shards,
        "outside_of_grid": chosen.outside(),
        "before": before,
        "after": after,
        "unknown": unknown,
        "compacted": rows,
    });
    done.failures.extend(chosen.take_failures());
    let outcome = Outcome::new(lines.join("\n"), json);
    Ok(args.shards.named_in(outcome).with_errors(done.failures))
}

/// The number of stored shards, and the bytes of all of them before and after. Threads share it.
#[derive(Default)]
struct Sizes([AtomicU64; 3]);

impl Sizes {
    fn add(&self, before: u64, after: u64) {
        for (sum, one) in self.0.iter().zip([1, before, after]) {
            sum.fetch_add(one, Ordering::Relaxed);
        }
    }

    fn get(&self) -> [u64; 3] {
        self.0.each_ref().map(|sum| sum.load(Ordering::Relaxed))
    }
}

fn in_words(shard: &[u64], compaction: &Compaction, is_dry: bool) -> String {
    let Compaction { before, after, .. } = compaction;
    let mut line = format!(
        "shard {}: {} -> {}",
        shape_text(shard),
        bytes_text(*before),
        bytes_text(*after)
    );
    if *after == 0 {
        let verb = if is_dry { "is to be" } else { "was" };
        line += &format!("; it had no subchunks, and {verb} erased");
    }
    if compaction.unknown > 0 {
        let bytes = counted(compaction.unknown, "byte");
        line += &format!("; no index in it knew {bytes} of that");
    }
    line
}

fn invalid_index(opened: &Opened, shard: &[u64]) -> Failure {
    Failure::failed(format!(
        "cannot compact the shard {} of {}: its index is invalid",
        shape_text(shard),
        opened.place
    ))
    .with_remedy("see it with `zarrs-cuda inspect`, and repair it with `zarrs-cuda recover` first")
}
