//! `zarrs-cuda compact`: stores shards again without their unused bytes.

use std::fs;
use std::io;
use std::sync::Arc;

use serde_json::json;
use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::maintenance::Shards;
use zarrs_storage::storage_adapter::atomic_write::AtomicWriteStorageAdapter;

use crate::arguments::shape_text;
use crate::budget::Budget;
use crate::common::Common;
use crate::failure::Failure;
use crate::open::{self, Opened, Store};
use crate::outcome::Outcome;
use crate::progress::{bytes_text, counted};
use crate::work::{Grid, ShardArgs, on_each};

/// Store shards again without their unused bytes
///
/// Nothing else may write the array meanwhile. No subchunk is decoded.
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
    if !args.dry_run {
        opened.place.must_be_written("compact")?;
    }
    let shards = open::shards(&opened)?;
    let replacing = Replacing::of(&opened)?;
    let grid = Grid::of(&opened.array);
    let positions = args.shards.positions(&grid)?;
    let budget = Budget::of(common);
    let done = on_each(
        ["compacting", "no shard was left torn"],
        &grid,
        &positions,
        common.threads(), // each waits for its memory
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
                return Ok(Some((usage.size, usage.size)));
            }
            if args.dry_run {
                return Ok(Some((usage.size, usage.size - unused)));
            }
            let doing = format!(
                "compact the shard {} of {}",
                shape_text(shard),
                opened.place
            );
            // The shard, and its new form.
            let _taken = budget.take(doing, usage.size.saturating_add(usage.size - unused))?;
            let compaction = replacing.compact(shard)?;
            Ok(compaction.map(|compaction| (compaction.before, compaction.after)))
        },
    )?;

    let mut lines = Vec::new();
    let mut rows = Vec::new();
    let (mut before, mut after) = (0, 0);
    for (shard, (was, is)) in &done.results {
        before += was;
        after += is;
        if is < was {
            lines.push(format!(
                "shard {}: {} -> {}",
                shape_text(shard),
                bytes_text(*was),
                bytes_text(*is)
            ));
            rows.push(json!({ "shard": shard, "before": was, "after": is }));
        }
    }
    lines.push(format!(
        "{} of {} {}: {} -> {}",
        rows.len(),
        counted(done.results.len() + done.failures.len(), "stored shard"),
        if args.dry_run {
            "to compact"
        } else {
            "compacted"
        },
        bytes_text(before),
        bytes_text(after)
    ));
    let json = json!({
        "array": opened.place.to_string(),
        "dry_run": args.dry_run,
        "stored": done.results.len(),
        "before": before,
        "after": after,
        "compacted": rows,
    });
    Ok(Outcome::new(lines.join("\n"), json).with_errors(done.failures))
}

fn invalid_index(opened: &Opened, shard: &[u64]) -> Failure {
    Failure::failed(format!(
        "cannot compact the shard {} of {}: its index is invalid",
        shape_text(shard),
        opened.place
    ))
    .with_remedy("see it with `zarrs-cuda inspect`, and repair it with `zarrs-cuda recover` first")
}

/// The array, whose shards are replaced as a whole.
enum Replacing<'a> {
    /// In temporaries that are renamed.
    Files {
        array: Box<Array<AtomicWriteStorageAdapter<FilesystemStore>>>,
        files: Arc<FilesystemStore>,
    },
    /// A value of an object store is replaced at once.
    Objects(&'a Array<Store>),
}

impl<'a> Replacing<'a> {
    fn of(opened: &'a Opened) -> Result<Self, Failure> {
        let Some(files) = &opened.files else {
            return Ok(Self::Objects(&opened.array));
        };
        let store = Arc::new(AtomicWriteStorageAdapter::new(files.clone()));
        let metadata = opened.array.metadata().clone();
        let array = Array::new_with_metadata(store, "/", metadata)
            .map_err(|error| Failure::failed(format!("cannot open {}: {error}", opened.place)))?;
        Ok(Self::Files {
            array: Box::new(array),
            files: files.clone(),
        })
    }

    fn compact(
        &self,
        shard: &[u64],
    ) -> Result<Option<zarrs_cuda::maintenance::Compaction>, Failure> {
        match self {
            Self::Files { array, files } => {
                // The remains of a compaction that was killed, which the adapter would not replace.
                let file = files.key_to_fspath(&array.chunk_key(shard));
                let mut temporary = file.clone().into_os_string();
                temporary.push(".tmp");
                match fs::remove_file(&temporary) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(Failure::failed(format!(
                            "cannot delete {}, which a compaction left that was killed: {error}",
                            temporary.display()
                        )));
                    }
                    _ => {}
                }
                Ok(Shards::of(array)?.compact(shard)?)
            }
            Self::Objects(array) => Ok(Shards::of(*array)?.compact(shard)?),
        }
    }
}
